"""`mechanome explain` and `mechanome replay`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.text import Text

from mechanome.cli.frame import Json, Quiet, command, model_ids, muted, print_json

if TYPE_CHECKING:
    from mechanome.explain.outcome import Outcome

MODEL = "smollm2-135m-instruct"
Units = Literal["neurons", "svd"]
"""Names of `mechanome.circuits.finding.unit_graph.UNITS`, said here so that a mistake is answered before that is
imported."""

_ABOUT = {"prompt", "answer", "foil", "counterfactual"}
"""Options that say what is asked about one prompt."""
_SHOWING = {"json", "quiet", "strict", "open_"}
"""Options that say how the result is told."""

Strict = Annotated[bool, typer.Option("--strict", help="Exit code 1 if not explained.")]


@command
def explain(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(help="The text whose next token is explained.")] = None,
    answer: Annotated[str | None, typer.Option(help="Default: the likeliest token.")] = None,
    foil: Annotated[str | None, typer.Option(help="Rather than what. Default: chosen.")] = None,
    counterfactual: Annotated[str | None, typer.Option(help="Another text of as many tokens.")] = None,
    counterfactuals: Annotated[int, typer.Option(min=1, metavar="<int>", help="How many it is compared over.")] = 3,
    chat: Annotated[bool, typer.Option("--chat", help="Take texts as a user's message.")] = False,
    prompts: Annotated[Path | None, typer.Option(metavar="<file>", help="Many: .jsonl or .txt, one a line.")] = None,
    against: Annotated[
        str | None, typer.Option(help="Another model, asked the same.", autocompletion=model_ids)
    ] = None,
    model: Annotated[str, typer.Option(help="Registry id, folder or hub id.", autocompletion=model_ids)] = MODEL,
    circuit: Annotated[bool, typer.Option("--circuit", help="One for each of many prompts.")] = False,
    no_circuit: Annotated[bool, typer.Option("--no-circuit", help="No circuit of the one prompt.")] = False,
    paraphrases: Annotated[
        Path | None, typer.Option(metavar="<file>", help="Such prompts, to find its circuit.")
    ] = None,
    certify: Annotated[bool, typer.Option("--certify", help="Which edges hang on no one prompt?")] = False,
    units: Annotated[Units | None, typer.Option(metavar="<name>", help="Of MLPs, too: neurons, svd.")] = None,
    seed: Annotated[int, typer.Option(min=0, metavar="<int>", help="Of the random parts to be beaten.")] = 0,
    budget: Annotated[str | None, typer.Option(metavar="<size>", help="Memory, such as 2GB.")] = None,
    out: Annotated[Path, typer.Option(metavar="<folder>", help="Where the run folder goes.")] = Path("runs"),
    resume: Annotated[Path | None, typer.Option(metavar="<folder>", help="Go on with the run there.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
) -> None:
    """Explain why a model continues a text as it does, and test the explanation."""
    given = _given(context)
    if not given & {"prompt", "prompts", "resume"}:
        raise typer.BadParameter("give a text, or --prompts FILE, or --resume FOLDER", context, param_hint="PROMPT")
    if resume is not None:
        _refuse(context, given - _SHOWING - {"resume", "prompts", "chat"}, "--resume")
    if prompts is not None:
        _refuse(context, given & _ABOUT, "--prompts")
    if circuit and no_circuit:
        raise typer.BadParameter("not beside --circuit, which asks for it", context, param_hint="--no-circuit")
    if paraphrases is not None and (prompts is not None or against is not None or no_circuit):
        why = "they are for the circuit of one prompt in one model"
        raise typer.BadParameter(why, context, param_hint="--paraphrases")
    if (certify or units) and (prompts is not None or against is not None):
        why = "of one prompt in one model only"
        raise typer.BadParameter(why, context, param_hint="--certify" if certify else "--units")
    # What needs no model is checked before anything heavy is imported, so that a mistake is answered at once.
    from mechanome.engine.memory import parse_budget
    from mechanome.explain.asked import check_asked, check_certify
    from mechanome.explain.items import items
    from mechanome.explain.models import check_named

    for what, text in (("the prompt", prompt), ("the counterfactual", counterfactual)):
        if text is not None:
            check_asked(what, text)
    if budget is not None:
        parse_budget(budget)
    asked = None if prompts is None else items(prompts)
    alike = () if paraphrases is None else items(paraphrases)
    check_certify(certify, not no_circuit, len(alike))
    if resume is not None:
        _recorded(resume)
    for named in (model, against):
        if named is not None:
            check_named(named)

    from mechanome.explain.command import resume as go_on
    from mechanome.explain.command import run, run_many

    with muted(quiet or json):
        if resume is not None:
            outcome = go_on(resume, asked, chat=chat, quiet=quiet or json)
        elif asked is not None or against is not None:
            one = {"prompt": prompt, "answer": answer, "foil": foil, "counterfactual": counterfactual}
            outcome = run_many(
                asked or [one],
                model=model,
                against=against,
                chat=chat,
                counterfactuals=counterfactuals,
                seed=seed,
                budget=budget,
                circuit=circuit,
                out=out,
                quiet=quiet or json,
            )
        else:
            outcome = run(
                prompt or "",
                model=model,
                answer=answer,
                foil=foil,
                counterfactual=counterfactual,
                counterfactuals=counterfactuals,
                seed=seed,
                budget=budget,
                circuit=not no_circuit,
                paraphrases=alike,
                certify=certify,
                units=units,
                chat=chat,
                out=out,
                quiet=quiet or json,
            )
    show(outcome, json)
    if open_:
        typer.launch(outcome.report.resolve().as_uri())
    _exit(outcome.code(strict))


@command
def replay(
    config: Annotated[Path, typer.Argument(help="A run folder, or its config.yaml.")],
    json: Json = False,
    quiet: Quiet = False,
    strict: Strict = False,
) -> None:
    """Do a run again, in a new run folder, and compare."""
    _recorded(config)

    import mechanome.circuits.command
    import mechanome.dictionaries.commands.evaluating
    import mechanome.dictionaries.commands.fitting
    import mechanome.dictionaries.commands.showing
    import mechanome.explain.command
    import mechanome.studies.running  # noqa: F401  (all register their verbs)
    from mechanome.core import notice
    from mechanome.core import replay as again

    with muted(quiet or json):
        outcome = again(config)
        notice(_compared(outcome, config if config.is_dir() else config.parent))
    show(outcome, json)
    _exit(outcome.code(strict))


def _recorded(path: Path) -> None:
    """Check that a run's configuration, or its folder's, can be read, before anything heavy is imported."""
    from mechanome.core import RunConfig

    RunConfig.read(path / "config.yaml" if path.is_dir() else path)


def _given(context: typer.Context) -> set[str]:
    """The parameters that were typed."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def _refuse(context: typer.Context, names: Iterable[str], beside: str) -> None:
    """Refuse options that would be ignored."""
    flags = {"prompt": "PROMPT"} | {p.name: p.opts[0] for p in context.command.params if p.name != "prompt"}
    wrong = ", ".join(sorted(flags[name] for name in names))
    if wrong:
        raise typer.BadParameter(f"not beside {beside}, which says it already", context, param_hint=wrong)


def _compared(outcome: Outcome, folder: Path) -> str:
    from mechanome.core import read_json
    from mechanome.explain.apart import difference

    recorded = folder / outcome.file
    if not recorded.is_file():
        return f"{folder} holds no {outcome.file} to compare with"
    apart = difference(read_json(recorded), outcome.record)
    if apart is None:
        return f"the result differs from the one recorded in {folder} in more than numbers"
    return f"repeated: the largest difference from the recorded numbers is {apart:.1e}"


def show(outcome: Any, json: bool) -> None:
    """Print what a verb found, and where it is kept.

    Args:
        outcome: of any verb with a run folder: it has `found`, `record`, `folder` and `report`.
        json: whether the record is all that is printed.
    """
    if json:
        print_json({**outcome.record, "folder": str(outcome.folder)})
        return
    console = Console()
    console.print(outcome.found)
    console.print(Text(f"\nreport  {outcome.report}\nrepeat  mechanome replay {outcome.folder}"), soft_wrap=True)


def _exit(code: int) -> None:
    if code:
        raise typer.Exit(code)
