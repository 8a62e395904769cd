"""A folder of training checkpoints: one safetensors file a step, written whole, the newest few kept.

A file holds a nest of tensors and plain values (see :mod:`mechanome.core.state`). Since each is renamed into place
only when complete, a process killed at any moment leaves the earlier ones as they were.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mechanome.core.errors import CorruptFile, NotFinite
from mechanome.core.files import folder, lock
from mechanome.core.progress import notice
from mechanome.core.state import flatten, unflatten
from mechanome.core.tensor_files import read_tensors, write_tensors

_FORMAT, _VERSION = "checkpoint", 1
_NAME = re.compile(r"step-(\d{9,})\.safetensors")


@dataclass(frozen=True)
class CheckpointFolder:
    """Checkpoints by step.

    Args:
        path: the folder, made when first written to.
        keep: how many of the newest stay; at least 2, so that one damaged file is never the end.
    """

    path: Path
    keep: int = 2

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        object.__setattr__(self, "keep", max(2, self.keep))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from writing here.

        Raises:
            BadInput: another process is, or the path is a file.
        """
        with lock(folder(self.path) / ".lock", timeout=0):
            for leftover in self.path.glob(".step-*.tmp"):
                leftover.unlink(missing_ok=True)
            yield

    def file(self, step: int) -> Path:
        """Where a step's checkpoint lies."""
        return self.path / f"step-{step:09d}.safetensors"

    def steps(self) -> list[int]:
        """The steps that are here, ascending."""
        files = self.path.iterdir() if self.path.is_dir() else ()
        return sorted(int(match[1]) for file in files if (match := _NAME.fullmatch(file.name)))

    def save(self, step: int, tree: Any) -> None:
        """Keep a state, and drop all but the newest ``keep``.

        Args:
            step: steps done so far.
            tree: a nest as :func:`mechanome.core.state.flatten` takes it.

        Raises:
            NotFinite: a tensor holds NaN; nothing is written, earlier checkpoints stay.
            BadInput: the nest holds something that is neither tensor nor plain value.
        """
        tensors, skeleton = flatten(tree)
        broken = [name for name, tensor in tensors.items() if _has_nan(tensor)]
        if broken:
            why = f"NaN in {', '.join(broken[:3])}{' ...' if len(broken) > 3 else ''} after step {step}"
            raise NotFinite("checkpoint", why, "lower the learning rate and resume from an earlier checkpoint")
        write_tensors(self.file(step), tensors, format=_FORMAT, version=_VERSION, meta={"step": step, "tree": skeleton})
        for old in self.steps()[: -self.keep]:
            self.file(old).unlink(missing_ok=True)

    def load(self, step: int) -> Any:
        """The state of a step.

        Raises:
            BadInput: no checkpoint of that step.
            CorruptFile: damaged.
        """
        content = read_tensors(self.file(step), format=_FORMAT, version=_VERSION)
        # Copies: tensors mapped from the file lie at other alignments, and may outlive it.
        return unflatten({name: tensor.clone() for name, tensor in content.tensors.items()}, content.meta["tree"])

    def latest(self) -> tuple[int, Any] | None:
        """The newest readable step and its state; None where there are no checkpoints. Damaged ones are reported.

        Raises:
            CorruptFile: there are checkpoints, and every one is damaged.
        """
        steps = self.steps()
        for step in reversed(steps):
            try:
                return step, self.load(step)
            except CorruptFile as error:
                notice(f"checkpoint of step {step} is passed over: {error}")
        if steps:
            why = f"all {len(steps)} checkpoints are damaged"
            raise CorruptFile(str(self.path), why, "start over in another folder")
        return None


def _has_nan(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and bool(torch.isnan(tensor).any())
