"""The verbs of `mechanome explain`, each with its run folder: one prompt, many prompts, two models.

A run of many prompts writes every result as it is made: the page, the record, then a line in `metrics.jsonl`, which
says that both are whole. So a run that was stopped, however it was stopped, goes on from its folder, and ends with the
same result. A run of one prompt leaves nothing unless it is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from mechanome.core import (
    BadInput,
    Bar,
    CorruptFile,
    RunConfig,
    RunFolder,
    atomic_write,
    lock,
    notice,
    verb,
    versions,
    write_json,
)
from mechanome.core.whole_runs import whole_run
from mechanome.engine import load
from mechanome.explain.asked import Asked
from mechanome.explain.comparison import ModelComparison, again
from mechanome.explain.done import check_weights, done, row
from mechanome.explain.explanation import Explanation
from mechanome.explain.fixed import settled
from mechanome.explain.items import Item, further, items
from mechanome.explain.items import chat as as_chat
from mechanome.explain.many import Explanations, Settings, Settle, as_it_is, notes_of, results
from mechanome.explain.outcome import Found, Outcome
from mechanome.explain.pipeline import DEFAULT_MODEL, explain

CONFIG = "config.yaml"
"""What a run folder was asked to do."""


def run(
    prompt: Asked,
    *,
    model: str = DEFAULT_MODEL,
    answer: str | None = None,
    foil: str | None = None,
    counterfactual: Asked | None = None,
    counterfactuals: int = 3,
    seed: int = 0,
    budget: str | None = None,
    circuit: bool = True,
    paraphrases: Path | Sequence[Any] = (),
    certify: bool = False,
    units: str | None = None,
    chat: bool = False,
    out: str | Path = "runs",
    quiet: bool = False,
) -> Outcome:
    """Explain one prompt, and write the run folder; if anything goes wrong, or on Ctrl-C, no folder is left.

    Args:
        prompt, model, quiet, and all from `answer` to `units`: as in `mechanome.explain`.
        chat: take prompts and counterfactuals that are texts as a user's message. out: where run folders are.

    Raises:
        MechanomeError: as `mechanome.explain`; and where the folder cannot be made.
    """
    arguments = {
        "prompt": as_chat(prompt) if chat else prompt,
        "model": model,
        "answer": answer,
        "foil": foil,
        "counterfactual": as_chat(counterfactual) if chat else counterfactual,
        "counterfactuals": counterfactuals,
        "budget": budget,
        "circuit": circuit,
        "paraphrases": _records(further(paraphrases), chat),
        "certify": certify,
        "units": units,
    }
    return _start("explain", arguments, seed, out, quiet)


def run_many(
    prompts: Path | Sequence[Any],
    *,
    model: str = DEFAULT_MODEL,
    against: str | None = None,
    chat: bool = False,
    counterfactuals: int = 3,
    seed: int = 0,
    budget: str | None = None,
    circuit: bool = False,
    out: str | Path = "runs",
    quiet: bool = False,
) -> Outcome:
    """Explain many prompts, and write a page for each and one about all.

    Args:
        prompts, model, counterfactuals, seed, budget, circuit, quiet: as in `mechanome.explain.explain_many`.
        against: a second model that is asked the same, and compared; None for none.
        chat: take text prompts and counterfactuals as a user's message.
        out: where run folders are.

    Raises:
        MechanomeError: as `explain_many`. Once a prompt is done the folder stays, also on Ctrl-C; a note on the error
            says how to go on.
    """
    records = _records(items(prompts), chat)
    for opened in filter(None, (model, against)):
        Settings(counterfactuals, seed, budget, circuit).check(opened)
    arguments = {
        "prompts": records,
        "model": model,
        "counterfactuals": counterfactuals,
        "budget": budget,
        "circuit": circuit,
    }
    if against is None:
        return _start("explain-many", arguments, seed, out, quiet)
    return _start("explain-against", {**arguments, "against": against}, seed, out, quiet)


def resume(
    folder: str | Path, prompts: Path | Sequence[Any] | None = None, *, chat: bool = False, quiet: bool = False
) -> Outcome:
    """Go on with a run that was stopped; the result is that of a run that was not.

    Args:
        folder: its run folder, which holds the prompts, too.
        prompts: what they must be; None for whatever they are. chat: as in `run_many`.
        quiet: no progress.

    Raises:
        BadInput: no such folder, of a run that cannot be resumed, of other prompts, or at work in another process; or
            its configuration or model was changed since.
        CorruptFile: a damaged folder.
    """
    path = Path(folder)
    config = RunConfig.read(path / CONFIG)
    if config.verb not in WORK:
        raise BadInput(str(path), f"it is a run of {config.verb!r}", f"resume a run of {' or '.join(WORK)}")
    if prompts is not None and _records(items(prompts), chat) != config.arguments.get("prompts"):
        raise BadInput(str(path), "it is a run of other prompts", "resume without --prompts, or start a new run")
    for name in ("mechanome", "torch", "transformers"):
        if config.versions.get(name) != versions().get(name):
            notice(f"this run was started with {name} {config.versions.get(name)}: its numbers may differ in part")
    run = RunFolder.reopen(path, config)
    with _alone(run):
        for left in path.rglob(".*.tmp"):  # what a killed process was writing
            left.unlink()
        with _said_how_to_resume(run), run:
            return _work(run, quiet)


def _records(asked: Sequence[Item], chat: bool) -> list[dict[str, Any]]:
    """Checked prompts as the configuration holds them."""
    return [(item.as_chat() if chat else item).record() for item in asked]


def _start(name: str, arguments: Mapping[str, Any], seed: int, out: str | Path, quiet: bool) -> Outcome:
    """A new folder, and the work in it; if nothing is done, nothing is left."""
    with whole_run(name, arguments, base=out, seed=seed, keep=_how_to_go_on) as run, _alone(run):
        return _work(run, quiet)


@contextmanager
def _alone(run: RunFolder) -> Iterator[None]:
    """No other process may work in the folder meanwhile; its configuration is the lock, for it is never replaced.

    Raises:
        BadInput: another process does.
    """
    with lock(run.path / CONFIG, timeout=0):
        yield


def _how_to_go_on(run: RunFolder) -> str:
    """What is said of a run that stopped; empty where nothing of it is worth keeping."""
    done = len(run.metrics())
    return f"{done} done and kept; go on with `mechanome explain --resume {run.path}`" if done else ""


@contextmanager
def _said_how_to_resume(run: RunFolder) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if said := _how_to_go_on(run):
            error.add_note(said)
        raise


def _work(run: RunFolder, quiet: bool) -> Outcome:
    odd = ARGUMENTS[run.config.verb] ^ set(run.config.arguments)
    if odd:
        why = f"arguments that are missing or unknown: {', '.join(map(repr, sorted(odd)))}"
        raise CorruptFile(f"a run of {run.config.verb}", why, "restore its config.yaml, or start a new run")
    found = WORK[run.config.verb](run, quiet)
    outcome = Outcome(found, run.path)
    write_json(run.path / outcome.file, outcome.record)
    run.write_report(found.html(replay=f"mechanome replay {run.path}"))
    return outcome


def _explain(run: RunFolder, quiet: bool) -> Explanation:
    asked = {name: value for name, value in run.config.arguments.items() if name != "out"}
    return explain(**asked, seed=run.config.seed or 0, quiet=quiet)


def _explain_many(run: RunFolder, quiet: bool) -> Explanations:
    asked = items(run.config.arguments["prompts"])
    return _measured(run, run.config.arguments["model"], asked, quiet)


def _explain_against(run: RunFolder, quiet: bool) -> ModelComparison:
    base = _explain_many(run, quiet)
    asked = [again(result) for result in base]
    tuned = run.config.arguments["against"]
    return ModelComparison(base, _measured(run, tuned, asked, quiet, len(asked), "tuned-", settled))


def _measured(
    run: RunFolder,
    model: str,
    asked: Sequence[Item],
    quiet: bool,
    first: int = 0,
    prefix: str = "",
    settle: Settle = as_it_is,
) -> Explanations:
    """One model's results; those in the folder already are read, the others made and written.

    Args:
        first: step of the first prompt in `metrics.jsonl`. prefix: of the names of the files. settle: has the last
            word on each result.
    """
    seed = run.config.seed or 0
    given = run.config.arguments
    settings = Settings(given["counterfactuals"], seed, given["budget"], given["circuit"])
    settings.check(model)
    before = done(run, asked, model, settings, first)
    known = {id: kept.result for id, kept in before.items()}
    notes = next((kept.notes for kept in before.values()), ())
    steps = {item.id: n for n, item in enumerate(asked)}

    def keep(item: Item, found: Explanation) -> str:
        name = f"{prefix}{steps[item.id] + 1:0{len(str(len(asked)))}d}"
        page = f"pages/{name}.html"
        with atomic_write(run.path / page, "w") as handle:
            handle.write(found.html(replay=f"mechanome replay {run.path}", back="../report.html"))
        write_json(run.path / "explanations" / f"{name}.json", found.record())
        return page

    todo = [item for item in asked if item.id not in known]
    if todo:
        opened = load(model)
        check_weights(run, before.values(), opened)
        notes = notes_of(opened)
    with Bar(f"explaining with {model}", len(asked), quiet) as bar:
        bar.skip(len(known))
        for result in results(todo, opened, settings, bar, keep, settle) if todo else ():
            run.log(first + steps[result.item.id], row(result, opened, model, settings))
            known[result.item.id] = result
    return Explanations(tuple(known[item.id] for item in asked), model, seed, notes)


WORK: dict[str, Callable[[RunFolder, bool], Found]] = {
    "explain": _explain,
    "explain-many": _explain_many,
    "explain-against": _explain_against,
}
"""Every verb: what it does in its run folder."""
_ALL = {"model", "counterfactuals", "budget", "circuit", "out"}
ARGUMENTS: dict[str, set[str]] = {
    "explain": {*_ALL, "prompt", "answer", "foil", "counterfactual", "paraphrases", "certify", "units"},
    "explain-many": {*_ALL, "prompts"},
    "explain-against": {*_ALL, "prompts", "against"},
}
"""What the configuration of each holds."""


def _again(name: str, arguments: Mapping[str, Any]) -> Outcome:
    rest = {key: value for key, value in arguments.items() if key not in ("seed", "out")}
    return _start(name, rest, arguments["seed"], arguments["out"], quiet=False)


for _name in WORK:
    verb(_name)(partial(_again, _name))
