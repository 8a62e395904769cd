"""What every command shares: the application, how errors end it, and where output goes."""

from __future__ import annotations

import functools
import json as jsonlib
import sys
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from mechanome.version import __version__

app = typer.Typer(
    name="mechanome",
    help="Open a neural network, find the mechanism behind a behavior, prove it, change it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Try: mechanome explain 'The capital of France is'",
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, to standard output.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes.")]

_debug: ContextVar[bool] = ContextVar("mechanome_debug", default=False)


def model_ids(incomplete: str) -> list[str]:
    """What the shell completes for a model: registry ids, which need no download to be named."""
    from mechanome.engine.registry.catalog import catalog

    return [model.id for model in catalog() if model.id.startswith(incomplete)]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Register a command whose errors become one message and an exit code."""

    @functools.wraps(function)
    def guarded(*args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except KeyboardInterrupt as stop:
            say("interrupted", "; ".join(_notes(stop)) or "nothing was kept")
            raise typer.Exit(130) from None
        except (typer.Exit, typer.BadParameter):
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

    code = error.exit_code if isinstance(error, MechanomeError) else 1
    if isinstance(error, MechanomeError):
        say("error", str(error))
    elif isinstance(error, OSError) and error.errno:  # the system refused: a full disk, a folder without permission
        say("error", str(error))
        say("hint", "check the path, its permissions and the free space")
    else:
        say("unexpected error", f"{type(error).__name__}: {error}")
        say("hint", "`mechanome --debug ...` shows the traceback; please report it with the command you typed")
    for note in _notes(error):
        say("kept", note)
    return code


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", []))


def say(kind: str, message: str) -> None:
    """A line on standard error."""
    Console(stderr=True).print(Text(f"{kind}: ", style="bold red") + Text(message), soft_wrap=True)


def print_json(value: Any) -> None:
    """JSON on standard output."""
    sys.stdout.write(jsonlib.dumps(value, indent=2, ensure_ascii=False) + "\n")


def muted(quiet: bool) -> AbstractContextManager[None]:
    """No progress and no notes inside, if wanted."""
    from mechanome.core import silence

    return silence() if quiet else nullcontext()


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
