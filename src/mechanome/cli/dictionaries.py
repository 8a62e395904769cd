"""`mechanome harvest`, `fit`, `eval` and `features`: from text to dictionaries, measured and read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mechanome.cli.explaining import MODEL, show
from mechanome.cli.frame import Json, Quiet, command, model_ids, muted, print_json

Packing = Literal["packed", "isolated", "sequence"]
Order = Literal["shuffled", "sequence"]
Stored = Literal["bf16", "fp16", "fp32"]
Select = Literal["exact", "bf16", "int8"]
By = Literal["role", "token class"]

Out = Annotated[Path, typer.Option(metavar="<folder>", help="Where the run folder goes.")]
Open = Annotated[bool, typer.Option("--open", help="Open the report in the browser.")]
Acts = Annotated[Path, typer.Option("--acts", metavar="<folder>", help="What `mechanome harvest` made.")]
Cluster = Annotated[str | None, typer.Option(metavar="<name>", help="local, auto, or an address of ray.")]
Seed = Annotated[int, typer.Option(min=0, metavar="<int>", help="Of draws and intervals.")]

_SUFFIX = {"k": 1_000, "M": 1_000_000, "B": 1_000_000_000}


def amount(text: str | None, flag: str) -> int | None:
    """A number as typed: 500000, 500k, 1M, 1e6."""
    if text is None:
        return None
    number, unit = (text[:-1], _SUFFIX[text[-1]]) if text[-1:] in _SUFFIX else (text, 1)
    try:
        found = float(number) * unit
        if found < 1 or found != int(found):
            raise ValueError
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is no whole number: write 500000, 500k or 1M", param_hint=flag) from None
    return int(found)


def whole_numbers(text: str | None, flag: str) -> list[int]:
    """Whole numbers as typed, with commas between."""
    try:
        return [] if text is None else [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of whole numbers: write 16,32", param_hint=flag) from None


def corpora(incomplete: str) -> list[str]:
    """What the shell completes for texts: built-in corpora."""
    from mechanome.activations.corpora.table import CORPORA

    return [name for name in CORPORA if name.startswith(incomplete)]


def architectures(incomplete: str) -> list[str]:
    """What the shell completes for an architecture."""
    from mechanome.dictionaries.commands.recipes import PLAIN

    return [name for name in PLAIN if name.startswith(incomplete)]


@command
def harvest(
    site: Annotated[list[str], typer.Option("--site", metavar="<site>", help="What to keep; again for more.")],
    data: Annotated[
        str, typer.Option(help="A .txt, .jsonl or .parquet file, a folder, a corpus.", autocompletion=corpora)
    ] = "english",
    model: Annotated[str, typer.Option(help="Registry id, folder or hub id.", autocompletion=model_ids)] = MODEL,
    tokens: Annotated[str | None, typer.Option(metavar="<int>", help="How many, such as 1M. Default: all.")] = None,
    context: Annotated[int, typer.Option(min=2, metavar="<int>", help="Most tokens of a sequence.")] = 256,
    packing: Annotated[Packing, typer.Option(metavar="<name>", help="packed, isolated or sequence.")] = "packed",
    order: Annotated[Order, typer.Option(metavar="<name>", help="shuffled or sequence.")] = "shuffled",
    dtype: Annotated[Stored, typer.Option(metavar="<name>", help="Of stored values: bf16, fp16, fp32.")] = "bf16",
    keep_sinks: Annotated[bool, typer.Option("--keep-sinks", help="First tokens and massive norms, too.")] = False,
    field: Annotated[str | None, typer.Option(metavar="<name>", help="Of the text in each line or row.")] = None,
    seed: Seed = 0,
    budget: Annotated[str | None, typer.Option(metavar="<size>", help="Memory, such as 2GB.")] = None,
    to: Annotated[Path, typer.Option(metavar="<folder>", help="Where stores go.")] = Path("acts"),
    no_resume: Annotated[bool, typer.Option("--no-resume", help="Begin anew what was stopped.")] = False,
    cluster: Cluster = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a model over texts and store its activations.

    The same command goes on with a harvest that was stopped, and finds one
    that is done. Corpora: english, python-docs, chatterbot, dialogues.
    """
    wanted = amount(tokens, "--tokens")

    from mechanome.engine.registry.naming import named_by

    named_by(model)

    from mechanome.activations import Drop, texts
    from mechanome.activations import harvest as run
    from mechanome.engine import load

    with muted(quiet or json):
        store = run(
            load(model),
            texts(data, field=field),
            site,
            to,
            tokens=wanted,
            context=context,
            packing=packing,
            order=order,
            dtype=dtype,
            drop=Drop.nothing() if keep_sinks else None,
            seed=seed,
            resume=not no_resume,
            budget=budget,
            cluster=cluster,
            quiet=quiet or json,
        )
    kept = {"store": str(store.path), "rows": store.rows, "dropped": store.dropped, "sites": store.widths}
    if json:
        print_json({**kept, "recipe": dict(store.recipe)})
        return
    named = [f"{name} of width {width}" for name, width in store.widths.items()]
    said = ", ".join(named if len(named) <= 3 else [*named[:2], "...", f"{named[-1]}: {len(named)} sites"])
    print(f"{store.rows:,} rows of {said} ({store.dropped:,} left out: first tokens and massive norms)")
    first, *more = store.widths
    ends = "" if not more else f" --site {first}" if len(more) > 1 else f" --site {first} --site-out {more[0]}"
    print(f"\nstore  {store.path}\nnext   mechanome fit topk --acts {store.path}{ends} --width 4096 --k 16,32,64")


@command
def fit(
    architecture: Annotated[str, typer.Argument(help="Such as topk.", autocompletion=architectures)] = "topk",
    acts: Annotated[Path | None, typer.Option(metavar="<folder>", help="What `mechanome harvest` made.")] = None,
    width: Annotated[int, typer.Option(min=1, metavar="<int>", help="How many latents.")] = 4096,
    k: Annotated[str | None, typer.Option(metavar="<k,k>", help="Active latents (32); several sweep.")] = None,
    seed: Annotated[str, typer.Option(metavar="<s,s>", help="Of starting weights; several repeat.")] = "0",
    tokens: Annotated[str | None, typer.Option(metavar="<int>", help="Rows to learn from. Default: all.")] = None,
    epochs: Annotated[int, typer.Option(min=1, metavar="<int>", help="Passes over the store.")] = 1,
    batch: Annotated[int | None, typer.Option(min=1, metavar="<int>", help="Rows of a step. Default: by rows.")] = None,
    lr: Annotated[str, typer.Option(metavar="<x>", help="Peak learning rate, or auto.")] = "auto",
    select: Annotated[Select, typer.Option(metavar="<name>", help="Choose by exact, bf16 or int8 scores.")] = "exact",
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="<name=x>", help="Of the recipe, such as l1=5.")
    ] = None,
    site: Annotated[list[str] | None, typer.Option(metavar="<site>", help="What is read.")] = None,
    site_out: Annotated[str | None, typer.Option(metavar="<site>", help="What a transcoder writes.")] = None,
    around: Annotated[
        str | None, typer.Option(metavar="<name>", help="transcoder, skip_transcoder, crosscoder.")
    ] = None,
    revive_every: Annotated[int | None, typer.Option(min=1, metavar="<int>", help="Steps to revive dead ones.")] = None,
    every: Annotated[int, typer.Option(min=1, metavar="<int>", help="Steps between checkpoints.")] = 200,
    cluster: Cluster = None,
    out: Out = Path("runs"),
    resume: Annotated[Path | None, typer.Option(metavar="<folder>", help="Go on with the run there.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    open_: Open = False,
) -> None:
    """Fit dictionaries to stored activations, many side by side.

    Architectures: relu, topk, batchtopk, jumprelu, gated, matryoshka, poly,
    abstopk, groupmax.
    A run that was stopped goes on with --resume, to the same bits.
    """
    if (acts is None) == (resume is None):
        raise typer.BadParameter("give --acts FOLDER, or --resume FOLDER", param_hint="--acts")
    if (site_out is not None and not site) or (site_out is None and str(around).endswith("transcoder")):
        why = "a transcoder reads one site and writes another: give --site and --site-out"
        raise typer.BadParameter(why, param_hint="--site-out")
    options = _options(tokens, epochs, batch, lr, select, revive_every, every)
    ks, seeds = whole_numbers(k, "--k"), whole_numbers(seed, "--seed")

    from mechanome.dictionaries.commands import fitting
    from mechanome.dictionaries.commands.recipes import typed

    with muted(quiet or json):
        if resume is not None:
            outcome = fitting.resume(resume, quiet or json)
        else:
            outcome = fitting.run(
                architecture,
                str(acts),
                width=width,
                k=ks,
                seeds=seeds,
                around=around or ("transcoder" if site_out else None),
                settings=typed(settings or ()),
                out=out,
                quiet=quiet or json,
                **({} if cluster is None else {"cluster": cluster}),
                **options,
                **_ends(site, site_out),
            )
    _shown(outcome, json, open_)
    if not json:
        print("next    " + "\n        ".join(outcome.next))


def _options(
    tokens: str | None, epochs: int, batch: int | None, lr: str, select: str, revive_every: int | None, every: int
) -> dict[str, Any]:
    """Options of the fit, as `commands.fitting.run` takes them."""
    try:
        rate: float | str = lr if lr == "auto" else float(lr)
    except ValueError:
        raise typer.BadParameter(f"{lr!r} is no number", param_hint="--lr") from None
    rows = amount(tokens, "--tokens")
    found: dict[str, Any] = {"lr": rate, "select": select, "every": every}
    found |= {name: n for name, n in (("batch", batch), ("revive_every", revive_every)) if n is not None}
    # With a number of rows the store is read as often as that takes.
    return {**found, "epochs": epochs} if rows is None else {**found, "tokens": rows, "epochs": None}


def _ends(site: Sequence[str] | None, site_out: str | None) -> dict[str, Any]:
    """Where dictionaries read and write, as `fit` takes it."""
    if site_out is not None:
        return {"site_in": site[0] if site else None, "site_out": site_out}
    return {} if not site else {"site": site[0] if len(site) == 1 else list(site)}


@command
def eval(
    dictionaries: Annotated[list[Path], typer.Argument(help="Of any format, or run folders of fit.")],
    acts: Acts,
    rows: Annotated[str | None, typer.Option(metavar="<int>", help="Read so many. Default: all.")] = None,
    ce: Annotated[int, typer.Option(min=0, metavar="<int>", help="Sequences to measure loss recovered on.")] = 0,
    model: Annotated[
        str | None, typer.Option(help="Default: the one harvested from.", autocompletion=model_ids)
    ] = None,
    by: Annotated[By | None, typer.Option(metavar="<name>", help="Also by role, or by token class.")] = None,
    site: Annotated[str | None, typer.Option(metavar="<site>", help="Where files that do not say read.")] = None,
    seed: Seed = 0,
    budget: Annotated[str | None, typer.Option(metavar="<size>", help="Memory, such as 2GB.")] = None,
    out: Out = Path("runs"),
    json: Json = False,
    quiet: Quiet = False,
    open_: Open = False,
) -> None:
    """Measure dictionaries on stored activations: FVU, L0, dead latents, loss recovered.

    Formats: ours and SAELens', dictionary_learning, sparsify, circuit-tracer,
    Gemma Scope, Llama Scope, Qwen Scope.
    """
    count = amount(rows, "--rows")

    from mechanome.dictionaries.commands.evaluating import run

    with muted(quiet or json):
        outcome = run(
            dictionaries,
            acts,
            rows=count,
            ce=ce,
            model=model,
            by=by,
            site=site,
            seed=seed,
            budget=budget,
            out=out,
            quiet=quiet or json,
        )
    _shown(outcome, json, open_)


@command
def features(
    dictionary: Annotated[Path, typer.Argument(help="Of any format.")],
    acts: Acts,
    latents: Annotated[str | None, typer.Option(metavar="<i,i>", help="Which. Default: 60 that fire.")] = None,
    rows: Annotated[str | None, typer.Option(metavar="<int>", help="Read so many. Default: all.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Default: the one harvested from.", autocompletion=model_ids)
    ] = None,
    no_effects: Annotated[bool, typer.Option("--no-effects", help="Do not open the model.")] = False,
    site: Annotated[str | None, typer.Option(metavar="<site>", help="Where files that do not say read.")] = None,
    seed: Seed = 0,
    out: Out = Path("runs"),
    json: Json = False,
    quiet: Quiet = False,
    open_: Open = False,
) -> None:
    """Make cards of latents: what they fire on, what they promote, how often."""
    chosen, count = whole_numbers(latents, "--latents"), amount(rows, "--rows")

    from mechanome.dictionaries.commands.showing import run

    with muted(quiet or json):
        outcome = run(
            dictionary,
            acts,
            latents=chosen,
            model=model,
            rows=count,
            effects=not no_effects,
            site=site,
            seed=seed,
            out=out,
            quiet=quiet or json,
        )
    _shown(outcome, json, open_)


def _shown(outcome: Any, json: bool, open_: bool) -> None:
    show(outcome, json)
    if open_:
        typer.launch(outcome.report.resolve().as_uri())
