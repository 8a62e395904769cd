"""`mechanome`: the same verbs as the Python interface.

Everything heavy is imported inside the command that needs it, so that `--help` answers at once. Results go to standard
output, everything else to standard error. Exit codes: 0 done, 1 an error that should not happen or, with `--strict`,
something that is not explained, 2 something to correct, with the fix, 130 interrupted.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from mechanome.cli import circuit, dictionaries, explaining  # noqa: F401  (they register their commands)
from mechanome.cli.frame import Json, app, command, model_ids, print_json
from mechanome.studies.command import study

command(study)


@command
def models(json: Json = False) -> None:
    """List the models that can be opened by name, and what each serves."""
    from mechanome.cli.listing import model_lines
    from mechanome.engine.registry import models_table

    table = models_table()
    if json:
        print_json(table.records())
        return
    for line in model_lines(table.records()):
        Console().print(line, soft_wrap=True)


@command
def corpora(json: Json = False) -> None:
    """List the built-in corpora that `harvest --data` opens by name."""
    from mechanome.activations import corpora_table

    table = corpora_table()
    if json:
        print_json(table.records())
        return
    for row in table.records():
        size = "no download" if not row["MB"] else f"{row['MB']:.1f} MB"
        print(f"{row['id']:<13}{row['kind']:<6}{row['tokens']:>10,} tokens   {size}   {row['license']}")
        print(f"    {row['description']}")


@command
def sites(
    model: Annotated[str, typer.Argument(help="Registry id, folder or hub id.", autocompletion=model_ids)],
    pattern: Annotated[str, typer.Argument(help="A site or glob, such as z.* or resid_post.3.")] = "",
    json: Json = False,
) -> None:
    """List what can be read and edited in a model, and why not the rest."""
    from mechanome.engine.registry.naming import named_by

    named_by(model)  # a typing error is answered before anything heavy is imported

    from mechanome.cli.listing import site_lines, site_rows
    from mechanome.engine import load

    opened = load(model)
    rows = site_rows(opened, pattern)
    if json:
        print_json(rows)
        return
    for line in site_lines(opened, rows):
        Console().print(line, soft_wrap=True)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code.

    Args:
        arguments: as typed; None takes those of the process.
    """
    app(arguments, prog_name="mechanome")
