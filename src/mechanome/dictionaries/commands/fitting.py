"""The verb `mechanome fit`: dictionaries from a store of activations, in a run folder that can be gone on from.

runs/...-fit-ab12cd/ config.yaml         what was asked
                     metrics.jsonl       loss, FVU, L0, dead latents, rows per second
                     checkpoint/         the newest states
                     dictionaries/NAME/  what was fitted
                     fit.json            how it ended
                     report.html         curves
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from mechanome.activations import ActivationStream
from mechanome.core import BadInput, Bar, Left, RunConfig, RunFolder, verb, write_json
from mechanome.core.cluster import fan_out
from mechanome.core.files import lock
from mechanome.core.whole_runs import expect, whole_run
from mechanome.dictionaries.architectures import Recipe
from mechanome.dictionaries.commands.opening import DICTIONARIES, store
from mechanome.dictionaries.commands.recipes import recipes
from mechanome.dictionaries.fitting import DictionaryFit, fit
from mechanome.dictionaries.formats import write

VERB, RESULT, CHECKPOINT = "fit", "fit.json", "checkpoint"
LARGEST, SMALLEST, STEPS = 4096, 64, 256
"""Rows of a step where none are given: the most, within these, that leave one pass so many steps. Adam moves a weight
by about its rate a step, so that a few large steps hardly leave the start."""
FEW = 100
"""Steps below which a fit is said to be short."""
_ARGUMENTS = {"architecture", "acts", "acts_id", "width", "k", "seeds", "around", "settings", "options", "out"}
"""What the configuration holds."""

_Read = Callable[[], ActivationStream]


@dataclass(frozen=True)
class Fits:
    """What was fitted.

    Args:
        fits: by name. acts: the store they learned from. seconds: of this run.
    """

    fits: Mapping[str, DictionaryFit] = field(repr=False)
    acts: str
    seconds: float

    @property
    def notes(self) -> tuple[str, ...]:
        """What makes the fits doubtful: few steps, or no more explained than by the mean. Empty if nothing does."""
        steps = min(fitted.report["steps"] for fitted in self.fits.values())
        bad = [name for name, fitted in self.fits.items() if fitted.report.get("last_fvu", 0.0) >= 1]
        few = f"A fit of {steps} steps is short: more text, more epochs or a smaller batch give it more."
        lost = f"{', '.join(bad)}: no more is explained than by the mean of all rows; a lower learning rate may help."
        return (*([few] if steps < FEW else []), *([lost] if bad else []))

    @property
    def best(self) -> str:
        """The name of the fit of the lowest FVU in its last batches."""
        return min(self.fits, key=lambda name: self.fits[name].report.get("last_fvu", math.inf))

    def record(self) -> dict[str, Any]:
        """As plain data."""
        each = {
            name: {**dict(fitted.report), "folder": f"{DICTIONARIES}/{name}", "spec": fitted.dictionary.spec.as_json()}
            for name, fitted in self.fits.items()
        }
        notes = {"notes": list(self.notes)} if self.notes else {}
        return {"acts": self.acts, "seconds": round(self.seconds, 3), **notes, "dictionaries": each}

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        from mechanome.dictionaries.commands.fit_page import at_a_glance

        return Group(at_a_glance(self).rich(), *(Text(f"\n{note}") for note in self.notes))


@dataclass(frozen=True)
class Outcome(Left[Fits]):
    """What the verb leaves behind.

    Args:
        file: the name of the result's record in the folder.
    """

    file: str = RESULT

    @property
    def next(self) -> tuple[str, ...]:
        """Commands that go on from here."""
        one = self.folder / DICTIONARIES / self.found.best
        return (
            f"mechanome features {one} --acts {self.found.acts}",
            f"mechanome eval {self.folder} --acts <a store of other text>",
        )

    def code(self, strict: bool = False) -> int:
        """The exit code: a fit that ends has done what it was asked."""
        return 0


def run(
    architecture: str,
    acts: str | Path,
    *,
    width: int,
    k: Sequence[int] = (),
    seeds: Sequence[int] = (0,),
    around: str | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | Path = "runs",
    quiet: bool = False,
    **options: Any,
) -> Outcome:
    """Fit dictionaries to a store, and write the run folder.

    Args:
        architecture, width, k, around, settings: as `commands.recipes.recipes`.
        acts: a store's folder.
        seeds: each recipe is fitted once with each.
        out: where run folders are.
        quiet: no progress.
        options: `batch` rows a step (4096; fewer, down to 64, where a pass would have less than 256 steps), `epochs`
            passes over the store (1; `steps` or `tokens` say otherwise), and any option of `fit`.
            With `cluster`, as in `mechanome.core.cluster.fan_out`, dictionaries are not fitted side by side: each is a
            task of its own, with one thread, on machines that see the store and the run folder under the same paths.

    Raises:
        BadInput, UnknownName: recipes, sites or options that are none; the folder cannot be made.
        NotFinite: a loss that is no number; the checkpoint before it stays. NotServed: the cluster cannot be had.
    """
    recipes(architecture, width, k, around, settings)
    opened = store(acts)
    if len(set(seeds)) < len(seeds) or not seeds:
        raise BadInput(f"seeds {list(seeds)}", "each fits once", "give different ones")
    if len(set(k)) < len(k):
        raise BadInput(f"k = {', '.join(map(str, k))}", "each fits once", "give different ones")
    options.setdefault("batch", _batch(opened.rows, options.get("tokens")))
    asked = {
        "architecture": architecture,
        "acts": str(acts),
        "acts_id": opened.recipe["id"],
        "width": width,
        "k": list(k),
        "seeds": list(seeds),
        "around": around,
        "settings": {name: list(v) if isinstance(v, tuple) else v for name, v in (settings or {}).items()},
        "options": options,
    }
    with whole_run(VERB, asked, base=out, seed=seeds[0], keep=_kept) as folder, _alone(folder):
        return _work(folder, quiet)


def resume(path: str | Path, quiet: bool = False) -> Outcome:
    """Go on with a fit that was stopped; the result is, to the bit, that of one that was not.

    Raises:
        BadInput: no run folder of a fit, or another process works in it. CorruptFile: a damaged folder.
    """
    folder = Path(path)
    config = RunConfig.read(folder / "config.yaml")
    if config.verb != VERB:
        raise BadInput(str(folder), f"it is a run of {config.verb!r}", "resume a run of mechanome fit")
    reopened = RunFolder.reopen(folder, config)
    with _alone(reopened), reopened:
        return _work(reopened, quiet)


def _batch(rows: int, tokens: int | None) -> int:
    """Rows of a step, a power of two, by the different rows that are read: more passes over them are more steps."""
    most = min(rows, tokens or rows) // STEPS
    return max(SMALLEST, min(LARGEST, 1 << max(0, most.bit_length() - 1)))


def _alone(folder: RunFolder) -> AbstractContextManager[None]:
    """No other process may work in the folder meanwhile; its configuration, which is never replaced, is the lock."""
    return lock(folder.path / "config.yaml", timeout=0)


def _kept(folder: RunFolder) -> str:
    """How to go on with a fit that has a checkpoint."""
    if not any((folder.path / CHECKPOINT).rglob("step-*.safetensors")):
        return ""
    return f"checkpoints; go on with `mechanome fit --resume {folder.path}`"


def _work(folder: RunFolder, quiet: bool) -> Outcome:
    from mechanome.dictionaries.commands.fit_page import document

    given = folder.config.arguments
    expect(VERB, given, _ARGUMENTS)
    acts, seeds, rest = given["acts"], given["seeds"], dict(given["options"])
    opened = store(Path(acts).resolve())  # a worker may stand elsewhere
    if opened.recipe["id"] != given["acts_id"]:
        raise BadInput(str(acts), "it is not the store that this fit was started on", "give that one")
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in given["settings"].items()}
    made = recipes(given["architecture"], given["width"], given["k"], given["around"], settings)
    read = partial(
        opened.stream,
        batch=rest.pop("batch"),
        seed=seeds[0],
        epochs=rest.pop("epochs", 1),
        sites=rest.pop("sites", None),
    )
    if (cluster := rest.pop("cluster", None)) is None:
        checkpoints, log = folder.path / CHECKPOINT, partial(_log, folder)
        fitted = fit(made, read(), seed=seeds, checkpoint_dir=checkpoints, on_metrics=log, quiet=quiet, **rest)
        for each in fitted:
            _write(folder, each)
    else:
        fitted = _apart(folder, made, seeds, read, rest, cluster, quiet)
    found = Fits({each.report["name"]: each for each in fitted}, str(acts), max(f.report["seconds"] for f in fitted))
    outcome = Outcome(found, folder.path)
    write_json(folder.path / RESULT, outcome.record)
    folder.write_report(document(found, f"mechanome replay {folder.path}").html())
    return outcome


def _apart(
    folder: RunFolder,
    made: Sequence[Recipe],
    seeds: Sequence[int],
    read: _Read,
    options: Mapping[str, Any],
    cluster: str,
    quiet: bool,
) -> list[DictionaryFit]:
    """Each recipe with each seed by itself, on a cluster; metrics are logged, and dictionaries written, as they end."""
    asked = [(n, recipe, seed) for n, (recipe, seed) in enumerate(product(made, seeds), 1)]
    names = [f"fit {n} of {len(asked)}, {recipe.architecture} with seed {seed}" for n, recipe, seed in asked]
    task = partial(_by_itself, read, (folder.path / CHECKPOINT).resolve(), options)
    fitted = []
    with (
        Bar("Fitting dictionaries", len(asked), quiet) as bar,
        fan_out(task, asked, cluster=cluster, names=names, threads=1, quiet=quiet) as found,
    ):
        for each in found:
            if _write(folder, each):
                for record in each.history:
                    step, name = int(record["step"]), each.report["name"]
                    _log(folder, step, {f"{name}/{key}": value for key, value in record.items() if key != "step"})
            fitted.append(each)
            bar.advance(remark=each.report["name"])
    return fitted


def _by_itself(
    read: _Read, checkpoints: Path, options: Mapping[str, Any], asked: tuple[int, Recipe, int]
) -> DictionaryFit:
    """One of them, in a worker."""
    number, recipe, seed = asked
    return fit(recipe, read(), seed=seed, checkpoint_dir=checkpoints / str(number), quiet=True, **options)


def _write(folder: RunFolder, fitted: DictionaryFit) -> bool:
    """Write a dictionary, unless an earlier run of this folder has; whether it did."""
    path = folder.path / DICTIONARIES / fitted.report["name"]
    if path.exists():
        return False
    write(fitted.dictionary, path)
    return True


def _log(folder: RunFolder, step: int, metrics: Mapping[str, float]) -> None:
    folder.log(step, metrics)


@verb(VERB)
def _again(arguments: Mapping[str, Any]) -> Outcome:
    """Run what a configuration says, in a new folder."""
    expect(VERB, {name: None for name in arguments if name != "seed"}, _ARGUMENTS)
    rest = {name: value for name, value in arguments.items() if name not in ("seed", "acts_id", "options")}
    return run(**rest, **arguments["options"])
