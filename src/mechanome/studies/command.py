"""`mechanome study`: list the studies, or run one.

Everything heavy is imported inside, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from mechanome.core.tiers import Tier
from mechanome.studies.registry import STUDIES

if TYPE_CHECKING:
    from mechanome.studies.running import Outcome
    from mechanome.studies.study import Study

_LIST = "list"


def names(incomplete: str = "") -> list[str]:
    """What the shell completes: `list` and every study that begins like this."""
    return [name for name in (_LIST, *STUDIES) if name.startswith(incomplete)]


def study(
    name: Annotated[str, typer.Argument(help="A study, or 'list'.", autocompletion=names)] = _LIST,
    tier: Annotated[Tier, typer.Option(help="smoke (seconds, never judged), cpu (minutes) or full (GPUs).")] = "cpu",
    seeds: Annotated[int | None, typer.Option(help="How many of the study's seeds; without it, the tier's.")] = None,
    pilot: Annotated[bool, typer.Option("--pilot", help="Pilot seeds, for trying things out; never judged.")] = False,
    model: Annotated[
        list[str] | None, typer.Option(help="Another model: an id, or role=id. Repeat for several roles.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the run folder goes.")] = Path("runs"),
    record: Annotated[bool, typer.Option("--record", help="Also write results/studies/NAME.json.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 where a judged claim fails.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, to standard output.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")] = False,
) -> None:
    """Measure a paper's claims on real models, or list the papers."""
    if name == _LIST:
        rows = [_row(STUDIES[known]) for known in STUDIES]
        _print_json(rows) if json else _print(_listed(rows))
        return
    chosen = STUDIES[name]  # an unknown name is answered before anything heavy is imported

    from mechanome.core import silence
    from mechanome.studies.running import run

    with silence() if quiet or json else nullcontext():
        choices = {"seeds": _seeds(seeds, pilot), "models": _models(model or [])}
        outcome = run(chosen, tier, **choices, out=out, record=record, quiet=quiet or json)
    if json:
        _print_json({**outcome.record, "folder": str(outcome.folder)})
    else:
        _print(outcome.found)
        _print(_files(outcome))
    if code := outcome.code(strict):
        raise typer.Exit(code)


def _files(outcome: Outcome) -> Text:
    files = {"report": outcome.report, "repeat": f"mechanome replay {outcome.folder}", "recorded": outcome.recorded}
    return Text("\n" + "\n".join(f"{what:<9}{where}" for what, where in files.items() if where))


def _row(study: Study[Any]) -> dict[str, Any]:
    models = list(study.scales["cpu"].models.values())
    claims = [claim.id for claim in study.claims]
    return {"study": study.name, "paper": study.paper, "title": study.title, "models": models, "claims": claims}


def _listed(rows: list[dict[str, Any]]) -> Text:
    """Two lines a study; names are never cut, so that they can be copied."""
    text = Text()
    for row in rows:
        on = f" on {', '.join(row['models'])}" if row["models"] else ""
        text.append(f"{row['study']}", "bold").append(f"  paper {row['paper']}, {len(row['claims'])} claims{on}\n")
        text.append(f"    {row['title']}\n", "dim")
    return text


def _seeds(count: int | None, pilot: bool) -> Any:
    if pilot and count is not None:
        raise typer.BadParameter("--pilot has its own seeds: leave --seeds out")
    return "pilot" if pilot else count


def _models(given: list[str]) -> dict[str, str]:
    """``role=id`` as a pair; a bare id stands for the first role."""
    return {role if sign else "": model if sign else role for role, sign, model in (x.partition("=") for x in given)}


def _print(what: Any) -> None:
    Console().print(what, soft_wrap=True)


def _print_json(value: Any) -> None:
    import json

    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
