"""`mechanome circuit`: find a circuit for a task, and measure how far to trust it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from mechanome.cli.explaining import MODEL, Units, show
from mechanome.cli.frame import Json, Quiet, command, model_ids, muted

Method = Literal[
    "eap-ig", "eap", "eap-ig-activations", "clean-corrupted", "relp", "exact",
    "top-n", "greedy", "acdc", "edge-pruning", "gumbel", "deterministic",
]  # fmt: skip
"""Names of `mechanome.circuits.finding.ways.WAYS`, said here so that a mistake is answered before that is imported."""
Level = Literal["edge", "node"]
Metric = Literal["logit_diff", "logprob"]
Kind = Literal["patch", "zero", "mean", "positional-mean", "noise"]


def tasks(incomplete: str) -> list[str]:
    """What the shell completes for a task."""
    from mechanome.tasks.generators import TASKS

    return [name for name in TASKS if name.startswith(incomplete)]


def shares(text: str) -> list[float]:
    """Sizes as typed: numbers with commas between."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        why = f"{text!r} is no list of shares: write 0.001,0.01,0.1,1"
        raise typer.BadParameter(why, param_hint="--sizes") from None


@command
def circuit(
    task: Annotated[str, typer.Argument(help="A task, or a .jsonl file of examples.", autocompletion=tasks)],
    model: Annotated[str, typer.Option(help="Registry id, folder or hub id.", autocompletion=model_ids)] = MODEL,
    method: Annotated[Method, typer.Option(metavar="<name>", help="One of those above.")] = "eap-ig",
    level: Annotated[Level | None, typer.Option(metavar="<name>", help="edge, or node: as with --units.")] = None,
    units: Annotated[Units | None, typer.Option(metavar="<name>", help="Cut MLPs into neurons, or svd.")] = None,
    size: Annotated[int | None, typer.Option(min=1, metavar="<int>", help="Edges. Default: as few as suffice.")] = None,
    threshold: Annotated[float | None, typer.Option(metavar="<x>", help="What an edge is worth at least.")] = None,
    sizes: Annotated[str | None, typer.Option(metavar="<x,y>", help="Shares of all edges on the curve.")] = None,
    metric: Annotated[Metric | None, typer.Option(metavar="<name>", help="Default: the task's own.")] = None,
    intervention: Annotated[Kind, typer.Option(metavar="<name>", help="What other edges carry.")] = "patch",
    examples: Annotated[int, typer.Option(min=1, metavar="<int>", help="How many, both halves.")] = 32,
    verify: Annotated[
        int | None, typer.Option(min=0, metavar="<int>", help="Edges measured exactly. Default: 100.")
    ] = None,
    stability: Annotated[bool, typer.Option("--stability", help="Would other examples give the same?")] = False,
    certify: Annotated[bool, typer.Option("--certify", help="Which parts hang on no single example?")] = False,
    seed: Annotated[int, typer.Option(min=0, metavar="<int>", help="Of examples and halves.")] = 0,
    budget: Annotated[str | None, typer.Option(metavar="<size>", help="Memory, such as 2GB.")] = None,
    out: Annotated[Path, typer.Option(metavar="<folder>", help="Where the run folder goes.")] = Path("runs"),
    json: Json = False,
    quiet: Quiet = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit code 1 if it is not faithful.")] = False,
    open_: Annotated[bool, typer.Option("--open", help="Open the report in the browser.")] = False,
) -> None:
    """Find the circuit of a task, and measure it on examples it was not found on.

    Methods that score edges: eap-ig, eap, eap-ig-activations, clean-corrupted,
    relp (estimates) and exact. Searches, which need --size or --threshold:
    top-n, greedy, acdc, edge-pruning, gumbel and deterministic.
    """
    # What needs no model is checked before anything heavy is imported, so that a mistake is answered at once.
    from mechanome.engine.registry.naming import named_by
    from mechanome.tasks.naming import task_file

    task_file(task)
    named_by(model)
    given = {} if sizes is None else {"sizes": shares(sizes)}

    from mechanome.circuits.command import run

    with muted(quiet or json):
        outcome = run(
            task,
            model=model,
            method=method,
            level=level or "",
            units=units,
            size=size,
            threshold=threshold,
            metric=metric,
            intervention=intervention,
            examples=examples,
            verify=verify,
            stability=stability,
            certify=certify,
            seed=seed,
            budget=budget,
            out=out,
            quiet=quiet or json,
            **given,
        )
    show(outcome, json)
    if open_:
        typer.launch(outcome.report.resolve().as_uri())
    if code := outcome.code(strict):
        raise typer.Exit(code)
