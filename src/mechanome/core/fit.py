"""The one fit loop: every training in Mechanome, from a probe to a dictionary, runs through :func:`fit`.

The caller gives a step (one batch in, metrics out) and the state it changes; the loop does what all trainings share:
seeding, counting, checkpoints, resuming, refusing a loss that is no number, progress. A fit that is killed at any
moment and started again ends in the same bits as one that was never stopped (same device and thread count),
because a checkpoint holds everything the next step depends on: state, data position and random generators.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from mechanome.core.checkpoints import CheckpointFolder
from mechanome.core.errors import BadInput, NotFinite, ShapeMismatch
from mechanome.core.formats import plain
from mechanome.core.progress import Bar
from mechanome.core.state import rng_state, seeded, set_rng_state
from mechanome.core.streams import Stream

Metrics = Mapping[str, float | torch.Tensor]
_END = object()


class FitState(Protocol):
    """Whatever a step changes: a model, an optimizer, a schedule, or several (:class:`Parts`)."""

    def state_dict(self) -> Mapping[str, Any]:
        """A nest of dicts, lists, tensors and plain values."""

    def load_state_dict(self, state: Any, /) -> Any:
        """Take a :meth:`state_dict` back."""


class Parts:
    """Several states as one: ``Parts(model=model, optimizer=optimizer, schedule=schedule)``."""

    def __init__(self, **parts: FitState) -> None:
        self.parts = parts

    def state_dict(self) -> dict[str, Any]:
        """Each part's state under its name."""
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Give each part its state.

        Raises:
            BadInput: the state has other parts.
        """
        if state.keys() != self.parts.keys():
            why = f"parts {sorted(state)} were saved, {sorted(self.parts)} are here"
            raise BadInput("fit state", why, "build the same parts")
        for name, part in self.parts.items():
            part.load_state_dict(state[name])


@dataclass(frozen=True)
class Fitted:
    """How a fit ended.

    Args:
        steps: steps done, earlier runs included.
        resumed_from: the step this run started at, 0 for a fresh one.
        metrics: of the last step; empty if this run had nothing left to do.
        seconds: of this run.
    """

    steps: int
    resumed_from: int
    metrics: dict[str, float]
    seconds: float


def fit(
    step: Callable[[Any], Metrics],
    state: FitState,
    data: Iterable[Any] | None = None,
    *,
    steps: int | None = None,
    checkpoint_dir: str | Path | None = None,
    every: int = 1000,
    keep: int = 2,
    resume: bool = True,
    settings: Mapping[str, Any] | None = None,
    on_metrics: Callable[[int, dict[str, float]], None] | None = None,
    log_every: int = 1,
    seed: int = 0,
    what: str = "fit",
    quiet: bool = False,
) -> Fitted:
    """Run a step until the data or the number of steps ends.

    Args:
        step: takes a batch (or, without data, the number of steps done) and returns metrics, such as
            ``{"loss": loss}``. Everything it changes from one call to the next must be in ``state``.
        state: what is saved and restored.
        data: batches; with ``checkpoint_dir`` they must be a :class:`Stream`, which can say where it is.
        steps: stop after so many in all, earlier runs included; None goes on until the data end.
        checkpoint_dir: where checkpoints go; None keeps none.
        every: steps between checkpoints; one more is written at the end.
        keep: how many of the newest checkpoints stay, at least 2.
        resume: go on from the newest whole checkpoint in ``checkpoint_dir``, if there is one. False refuses a
            folder that has some.
        settings: JSON that must be the same when resumed (learning rate, sizes ...); ``seed`` is always compared.
        on_metrics: called with (steps done, metrics) every ``log_every`` steps. After a kill, the steps since the last
            checkpoint are done again and reported again, with the same numbers.
        log_every: steps between calls.
        seed: of torch, numpy and Python while fitting; the caller's generators are put back at the end.
        what: the work in a few words, for the progress line.
        quiet: no progress line.

    Returns:
        how it ended.

    Raises:
        NotFinite: a metric is NaN or infinite (the step is named), or NaN would enter a checkpoint. The last
            checkpoint stays.
        BadInput: neither data nor steps, data without a position, checkpoints of another fit, or another process
            fitting in the same folder.
        ShapeMismatch: a checkpoint does not fit ``state``.
        CorruptFile: every checkpoint is damaged (a single damaged one is reported, and the one before is used).
    """
    if data is None and steps is None:
        raise BadInput("fit", "neither data nor steps would end it", "pass data, steps or both")
    if min(every, log_every) < 1:
        raise BadInput("fit", f"every={every}, log_every={log_every}", "use at least 1")
    stream = data if isinstance(data, Stream) else None
    if checkpoint_dir is not None and data is not None and stream is None:
        why = f"a {type(data).__name__} cannot say where it is, so the fit could not be resumed"
        raise BadInput("data", why, "pass a Stream (with state and seek), or no checkpoint_dir")

    folder = None if checkpoint_dir is None else CheckpointFolder(Path(checkpoint_dir), keep)
    agreed = plain({"seed": seed, **(settings or {})}, "settings")
    started = time.monotonic()
    metrics: dict[str, float] = {}
    with folder.held() if folder else nullcontext(), seeded(seed), Bar(what, steps, quiet) as bar:
        done = first = _resume(folder, state, stream, agreed, resume) if folder else 0
        bar.skip(done)
        for batch in _batches(data, done, steps):
            metrics = _checked(step(batch), done + 1, folder)
            done += 1
            if on_metrics is not None and done % log_every == 0:
                on_metrics(done, metrics)
            bar.advance(remark="  ".join(f"{name} {value:.4g}" for name, value in metrics.items()))
            if folder is not None and done % every == 0:
                folder.save(done, _snapshot(state, stream, agreed))
        if folder is not None and done not in folder.steps():
            folder.save(done, _snapshot(state, stream, agreed))
    return Fitted(done, first, metrics, time.monotonic() - started)


def _batches(data: Iterable[Any] | None, done: int, steps: int | None) -> Iterator[Any]:
    """What is left to do; a batch is only asked of the data if a step will use it."""
    source = itertools.count(done) if data is None else iter(data)
    while (steps is None or done < steps) and (batch := next(source, _END)) is not _END:
        yield batch
        done += 1


def _snapshot(state: FitState, stream: Stream | None, agreed: Mapping[str, Any]) -> dict[str, Any]:
    """All that the next step depends on."""
    position = None if stream is None else stream.state()
    return {"state": state.state_dict(), "data": position, "rng": rng_state(), "settings": agreed}


def _resume(
    folder: CheckpointFolder, state: FitState, stream: Stream | None, agreed: Mapping[str, Any], resume: bool
) -> int:
    """Take the newest checkpoint back; returns the steps done, 0 where there is none."""
    if not resume and folder.steps():
        raise BadInput(str(folder.path), "it already holds checkpoints", "use another folder, or resume=True")
    found = folder.latest()
    if found is None:
        return 0
    done, saved = found
    if saved["settings"] != agreed:
        names = sorted(saved["settings"].keys() | agreed.keys())
        was = saved["settings"]
        changed = [f"{n} was {was.get(n)!r}, now {agreed.get(n)!r}" for n in names if was.get(n) != agreed.get(n)]
        raise BadInput(str(folder.path), f"checkpoints of another fit ({'; '.join(changed)})", "use another folder")
    try:
        state.load_state_dict(saved["state"])
    except (KeyError, RuntimeError, ValueError) as error:
        why = f"its checkpoint does not fit this model or optimizer ({error})"
        raise ShapeMismatch(str(folder.path), why, "use another folder") from error
    if (stream is None) != (saved["data"] is None):
        raise BadInput(str(folder.path), "checkpoints of a fit with other data", "use another folder")
    if stream is not None:
        stream.seek(saved["data"])
    set_rng_state(saved["rng"])
    return done


def _checked(metrics: Metrics, step: int, folder: CheckpointFolder | None) -> dict[str, float]:
    """Metrics as finite numbers."""
    values = {name: float(v.detach() if isinstance(v, torch.Tensor) else v) for name, v in metrics.items()}
    broken = [f"{name} is {value}" for name, value in values.items() if not math.isfinite(value)]
    if broken:
        kept = folder.steps() if folder else []
        rescue = f" and resume from the checkpoint of step {kept[-1]}" if kept else ""
        raise NotFinite(f"step {step}", ", ".join(broken), f"lower the learning rate or clip gradients{rescue}")
    return values
