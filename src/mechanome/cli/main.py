"""`mechanome`: the same verbs as the Python interface.

Everything heavy is imported inside the command that needs it, so that `--help` answers at once. Results go to standard
output, everything else to standard error. Exit codes: 0 done, 1 an error that should not happen, 2 something to
correct, with the fix, 130 interrupted.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from mechanome.version import __version__

if TYPE_CHECKING:
    from mechanome.explain.command import Outcome

_MODEL = "smollm2-135m-instruct"
_HELP = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    name="mechanome",
    help="Open a neural network, find the mechanism behind a behavior, prove it, change it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
    epilog="Try: mechanome explain 'The capital of France is'",
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, to standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")]


_debug: ContextVar[bool] = ContextVar("mechanome_debug", default=False)


def _command(function: Callable[..., None]) -> Callable[..., None]:
    """Register a command whose errors become one message and an exit code."""

    @functools.wraps(function)
    def guarded(*args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except KeyboardInterrupt:
            _say("interrupted", "nothing was kept")
            raise typer.Exit(130) from None
        except typer.Exit:
            raise
        except Exception as error:
            if _debug.get():
                traceback.print_exc()
            raise typer.Exit(_explained(error)) from None

    app.command()(guarded)
    return guarded


def _explained(error: Exception) -> int:
    """Say what went wrong, and what to do; returns the exit code."""
    from mechanome.core.errors import MechanomeError

    if isinstance(error, MechanomeError):
        _say("error", str(error))
        return error.exit_code
    _say("unexpected error", f"{type(error).__name__}: {error}")
    _say("hint", "`mechanome --debug ...` shows the traceback; please report it with the command you typed")
    return 1


def _say(kind: str, message: str) -> None:
    Console(stderr=True).print(Text(f"{kind}: ", style="bold red") + Text(message), soft_wrap=True)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"mechanome {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    _debug.set(debug)


@_command
def explain(
    prompt: Annotated[str, typer.Argument(help="The text whose next token is explained.")],
    answer: Annotated[str | None, typer.Option(help="The next token to explain. Without it, the likeliest.")] = None,
    foil: Annotated[
        str | None, typer.Option(help="Rather than which. Without it, the counterfactual's answer or the runner-up.")
    ] = None,
    counterfactual: Annotated[
        str | None,
        typer.Option(help="Compared with which prompt, of as many tokens. Without it, one token is swapped."),
    ] = None,
    model: Annotated[str, typer.Option(help="Registry id, folder or hub id.")] = _MODEL,
    seed: Annotated[int, typer.Option(help="Of the random parts that the explanation must beat.")] = 0,
    budget: Annotated[str | None, typer.Option(help="Memory for the largest piece, such as 2GB.")] = None,
    out: Annotated[Path, typer.Option(help="Where the run folder goes.")] = Path("runs"),
    json: Json = False,
    quiet: Quiet = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
) -> None:
    """Explain why a model continues a text as it does, and test the explanation."""
    from mechanome.explain.command import run

    with _muted(quiet or json):
        outcome = run(
            prompt,
            model=model,
            answer=answer,
            foil=foil,
            counterfactual=counterfactual,
            seed=seed,
            budget=budget,
            out=out,
            quiet=quiet or json,
        )
    _show(outcome, json)
    if open_:
        typer.launch(outcome.report.resolve().as_uri())


@_command
def models(json: Json = False) -> None:
    """List the models that can be opened by name, and what each serves."""
    from mechanome.cli.listing import model_lines
    from mechanome.engine.registry import models_table

    table = models_table()
    if json:
        _print_json(table.records())
        return
    for line in model_lines(table.records()):
        Console().print(line, soft_wrap=True)


@_command
def sites(
    model: Annotated[str, typer.Argument(help="Registry id, folder or hub id.")],
    pattern: Annotated[str, typer.Argument(help="A site or glob, such as z.* or resid_post.3.")] = "",
    json: Json = False,
) -> None:
    """List what can be read and edited in a model, and why not the rest."""
    from mechanome.cli.listing import site_lines, site_rows
    from mechanome.engine import load

    opened = load(model)
    rows = site_rows(opened, pattern)
    if json:
        _print_json(rows)
        return
    for line in site_lines(opened, rows):
        Console().print(line, soft_wrap=True)


@_command
def replay(
    config: Annotated[Path, typer.Argument(help="A run folder, or its config.yaml.")],
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Do a run again, in a new run folder, and compare."""
    import mechanome.explain.command  # noqa: F401  (registers its verb)
    from mechanome.core import notice
    from mechanome.core import replay as again

    with _muted(quiet or json):
        outcome = again(config)
        folder = config if config.is_dir() else config.parent
        notice(_compared(outcome, folder))
    _show(outcome, json)


def _compared(outcome: Outcome, folder: Path) -> str:
    from mechanome.core import read_json
    from mechanome.explain.command import RESULT, difference

    recorded = folder / RESULT
    if not recorded.is_file():
        return f"{folder} holds no {RESULT} to compare with"
    apart = difference(read_json(recorded), outcome.explanation.record())
    if apart is None:
        return f"the result differs from the one recorded in {folder} in more than numbers"
    return f"repeated: the largest difference from the recorded numbers is {apart:.1e}"


def _show(outcome: Outcome, json: bool) -> None:
    if json:
        _print_json({**outcome.explanation.record(), "folder": str(outcome.folder)})
        return
    console = Console()
    console.print(outcome.explanation)
    console.print(Text(f"\nreport  {outcome.report}\nrepeat  mechanome replay {outcome.folder}"), soft_wrap=True)


def _print_json(value: Any) -> None:
    import json

    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def _muted(quiet: bool) -> Any:
    from contextlib import nullcontext

    from mechanome.core import silence

    return silence() if quiet else nullcontext()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code.

    Args:
        arguments: as typed; None takes those of the process.
    """
    app(arguments, prog_name="mechanome")
