"""The verb `mechanome fit`: dictionaries from a store of activations, in a run folder that can be gone on from.

runs/...-fit-ab12cd/ config.yaml         what was asked
                     metrics.jsonl       loss, FVU, L0, dead latents, rows per second
                     checkpoint/         the newest states
                     dictionaries/NAME/  what was fitted
                     fit.json            how it ended
                     report.html         curves
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from mechanome.core import BadInput, Left, RunConfig, RunFolder, verb, write_json
from mechanome.core.files import lock
from mechanome.core.whole_runs import expect, whole_run
from mechanome.dictionaries.commands.opening import DICTIONARIES, store
from mechanome.dictionaries.commands.recipes import recipes
from mechanome.dictionaries.fitting import DictionaryFit, fit
from mechanome.dictionaries.formats import write

VERB, RESULT, CHECKPOINT = "fit", "fit.json", "checkpoint"
_ARGUMENTS = {"architecture", "acts", "acts_id", "width", "k", "seeds", "around", "settings", "options", "out"}
"""What the configuration holds."""


@dataclass(frozen=True)
class Fits:
    """What was fitted.

    Args:
        fits: by name. acts: the store they learned from. seconds: of this run.
    """

    fits: Mapping[str, DictionaryFit] = field(repr=False)
    acts: str
    seconds: float

    def record(self) -> dict[str, Any]:
        """As plain data."""
        each = {
            name: {**dict(fitted.report), "folder": f"{DICTIONARIES}/{name}", "spec": fitted.dictionary.spec.as_json()}
            for name, fitted in self.fits.items()
        }
        return {"acts": self.acts, "seconds": round(self.seconds, 3), "dictionaries": each}

    def __rich__(self) -> Any:
        from mechanome.dictionaries.commands.fit_page import at_a_glance

        return at_a_glance(self).rich()


@dataclass(frozen=True)
class Outcome(Left[Fits]):
    """What the verb leaves behind.

    Args:
        file: the name of the result's record in the folder.
    """

    file: str = RESULT

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
        options: `batch` rows a step (4096), `epochs` passes over the store (1; `steps` or `tokens` say otherwise), and
            any option of `fit`.

    Raises:
        BadInput, UnknownName: recipes, sites or options that are none; the folder cannot be made.
        NotFinite: a loss that is no number; the checkpoint before it stays.
    """
    recipes(architecture, width, k, around, settings)
    opened = store(acts)
    if len(set(seeds)) < len(seeds) or not seeds:
        raise BadInput(f"seeds {list(seeds)}", "each fits once", "give different ones")
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
    opened = store(acts)
    if opened.recipe["id"] != given["acts_id"]:
        raise BadInput(str(acts), "it is not the store that this fit was started on", "give that one")
    stream = opened.stream(
        batch=rest.pop("batch", 4096), seed=seeds[0], epochs=rest.pop("epochs", 1), sites=rest.pop("sites", None)
    )
    settings = {name: tuple(v) if isinstance(v, list) else v for name, v in given["settings"].items()}
    made = recipes(given["architecture"], given["width"], given["k"], given["around"], settings)
    fitted = fit(
        made,
        stream,
        seed=seeds,
        checkpoint_dir=folder.path / CHECKPOINT,
        on_metrics=partial(_log, folder),
        quiet=quiet,
        **rest,
    )
    found = Fits({each.report["name"]: each for each in fitted}, str(acts), max(f.report["seconds"] for f in fitted))
    outcome = Outcome(found, folder.path)
    for name, each in found.fits.items():
        if not (folder.path / DICTIONARIES / name).exists():
            write(each.dictionary, folder.path / DICTIONARIES / name)
    write_json(folder.path / RESULT, outcome.record)
    folder.write_report(document(found, f"mechanome replay {folder.path}").html())
    return outcome


def _log(folder: RunFolder, step: int, metrics: Mapping[str, float]) -> None:
    folder.log(step, metrics)


@verb(VERB)
def _again(arguments: Mapping[str, Any]) -> Outcome:
    """Run what a configuration says, in a new folder."""
    expect(VERB, {name: None for name in arguments if name != "seed"}, _ARGUMENTS)
    rest = {name: value for name, value in arguments.items() if name not in ("seed", "acts_id", "options")}
    return run(**rest, **arguments["options"])
