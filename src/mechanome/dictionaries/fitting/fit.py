"""`fit`: dictionaries from a stream of activations, many at once.

All share the stream: a batch is loaded, checked, cast and normalized once. Everything else about a fit (checkpoints,
resuming to the same bits, refusing a loss that is no number) is the one loop of `mechanome.core`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, overload

from mechanome.activations import ActivationStream
from mechanome.core.errors import BadInput
from mechanome.core.fit import Fitted, Parts
from mechanome.core.fit import fit as run
from mechanome.dictionaries.architectures import Recipe
from mechanome.dictionaries.autoencoder import SparseAutoencoder
from mechanome.dictionaries.crew import ALONE, Crew
from mechanome.dictionaries.fitting.arguments import check_stream, length, pairs
from mechanome.dictionaries.fitting.ends import Asked, Ends, first_rows, joined
from mechanome.dictionaries.fitting.schedule import Schedule, learning_rate
from mechanome.dictionaries.fitting.session import OnMetrics, Session
from mechanome.dictionaries.fitting.start import started
from mechanome.dictionaries.fitting.trainee import Trainee
from mechanome.dictionaries.norm import Affine
from mechanome.dictionaries.scores import Scorer
from mechanome.engine.asked import count
from mechanome.engine.plain import number

START = 16_384
"""Rows that normalization and starting weights are estimated from."""


@dataclass(frozen=True)
class DictionaryFit:
    """A fitted dictionary.

    Args:
        dictionary: in `eval()` mode, its weights frozen.
        history: metrics by step: `step, rows, loss, fvu, l0, dead, rows_per_second`; losses are of normalized rows.
        report: how it was fitted, as JSON: name, seed, learning rate, steps, seconds of this run, the last metrics.
    """

    dictionary: SparseAutoencoder
    history: list[dict[str, float]] = field(repr=False)
    report: Mapping[str, Any] = field(repr=False)


@overload
def fit(recipes: Recipe, stream: ActivationStream, *, seed: int = 0, **options: Any) -> DictionaryFit: ...


@overload
def fit(
    recipes: Recipe | Sequence[Recipe], stream: ActivationStream, *, seed: int | Sequence[int] = 0, **options: Any
) -> list[DictionaryFit]: ...


def fit(  # type: ignore[misc]  # its options are what the overloads call so
    recipes: Recipe | Sequence[Recipe],
    stream: ActivationStream,
    *,
    steps: int | None = None,
    tokens: int | None = None,
    lr: float | str = "auto",
    warmup: float = 0.05,
    decay: float = 0.2,
    clip: float | None = None,
    seed: int | Sequence[int] = 0,
    select: str = "exact",
    normalize: str = "scale",
    site: Asked = None,
    site_in: Asked = None,
    site_out: Asked = None,
    revive_every: int | None = None,
    checkpoint_dir: str | Path | None = None,
    every: int = 1000,
    resume: bool = True,
    log_every: int = 10,
    on_metrics: OnMetrics | None = None,
    quiet: bool = False,
    parallel: bool = False,
) -> DictionaryFit | list[DictionaryFit]:
    """Fit dictionaries to a stream of activations.

    Args:
        recipes: what to fit, or several to fit side by side; a sweep of k is a list of recipes.
        stream: batches of activations.
        steps: batches to learn from. tokens: the same, in rows. Without either, the whole stream, or one epoch of one
            without end.
        lr: peak learning rate of Adam; "auto" falls with the square root of the width, see :func:`learning_rate`.
        warmup: share of the steps over which the rate goes up. decay: over which it comes down to zero at the end.
        clip: largest norm of a dictionary's gradients; None for any.
        seed: of starting weights; several fit every recipe once with each.
        select: how active latents are chosen: "exact", or by "bf16" or "int8" scores, which is faster; their values
            and all gradients are exact float32 in any case.
        normalize: a name of `KINDS` in :mod:`mechanome.dictionaries.norm`, estimated from the first rows.
        site: what autoencoders read and write; not needed where the stream has one site. A crosscoder takes several
            (all, if not given).
        site_in, site_out: what transcoders read and write.
        revive_every: steps between restarts of dead latents (resampling); None for none.
        checkpoint_dir, every, resume, quiet: as `mechanome.core.fit`.
        log_every: steps between records of the history; the last step is recorded in any case.
        on_metrics: called with (steps done, metrics) at each record; names of dictionaries stand before the metrics
            where there are several.
        parallel: share each batch with the other processes that `torchrun` started; the result is that of one process
            to rounding. Every process must see the same stream; checkpoints are kept for each.

    Returns:
        one :class:`DictionaryFit`; a list, recipe by recipe and seed by seed, where several were asked for.

    Raises:
        BadInput: no recipe, no stream, no length, more steps than the stream has, sites that do not suit a recipe.
        TooFewRows: an empty stream. UnknownSite: a site that the stream does not have.
        NotFinite: NaN or infinity among the rows (nothing is learned from that batch), or a loss that is none.
    """
    asked = pairs(recipes, seed)
    several = not isinstance(recipes, Recipe) or isinstance(seed, Iterable)
    check_stream(stream)
    every, log_every = count("every", every), count("log_every", log_every)
    revive_every = None if revive_every is None else count("revive_every", revive_every)
    if clip is not None and not number(clip, "clip") > 0:
        raise BadInput(f"clip={clip}", "it is the largest norm of gradients", "give a positive number, or None")
    crew, scorer = Crew.launched() if parallel else ALONE, Scorer(select)
    ends = [Ends.of(recipe, stream, site, site_in, site_out) for recipe, _ in asked]
    first, size = first_rows(stream, START)
    done_after = length(stream, size, steps, tokens)
    schedule = Schedule(done_after, warmup, decay)
    every_sites = {sites for end in ends for sites in end.both}
    raw = {sites: [Affine.estimate(first[s].float(), normalize) for s in sites] for sites in every_sites}
    norms = {sites: Affine.cat(parts) for sites, parts in raw.items()}
    start = {sites: norms[sites](joined(first, sites)) for sites in every_sites}

    trainees = []
    for (recipe, s), end in zip(asked, ends):
        d_in, d_out = end.widths(stream)
        parts = tuple(stream.widths[name] for name in end.written) if len(end.written) > 1 else ()
        spec = recipe.spec(d_in, d_out, sites_in=end.read, sites_out=end.written, site_widths=parts)
        model = started(recipe, spec, norms[end.read], norms[end.written], start[end.read], start[end.written], s)
        rate = learning_rate(lr, recipe.width)
        trainees.append(Trainee(model, recipe, rate, schedule, scorer, crew, revive_every, clip))
    names = _names(asked)
    said = None if crew.rank else on_metrics
    session = Session(names, trainees, ends, norms, stream.widths, done_after, log_every, said)

    folder = None if checkpoint_dir is None else Path(checkpoint_dir)
    settings = {
        "recipes": [{"architecture": recipe.architecture, "seed": s, **recipe.settings()} for recipe, s in asked],
        "sites": [end.both for end in ends],
        "steps": done_after,
        "lr": lr,
        "warmup": warmup,
        "decay": decay,
        "clip": clip,
        "select": select,
        "normalize": normalize,
        "revive_every": revive_every,
        "processes": crew.size,
    }
    done = run(
        session.step,
        Parts(history=session.history, **{f"dictionary_{n}": trainee for n, trainee in enumerate(trainees)}),
        stream,
        steps=done_after,
        checkpoint_dir=folder if folder is None or crew.alone else folder / f"process-{crew.rank}",
        every=every,
        resume=resume,
        settings=settings,
        seed=asked[0][1],
        what=f"fit {names[0]}" if len(names) == 1 else f"fit {len(names)} dictionaries",
        quiet=quiet or crew.rank > 0,
    )
    fits = [
        _finished(trainee, name, s, done, records, normalize, first[end.read[0]] if len(end.read) == 1 else None)
        for trainee, name, (_, s), end, records in zip(trainees, names, asked, ends, session.history.records)
    ]
    return fits if several else fits[0]


def _names(asked: Sequence[tuple[Recipe, int]]) -> list[str]:
    """A short name for each, different ones."""
    names: list[str] = []
    for recipe, seed in asked:
        k = getattr(recipe.form, "k", None)
        parts = [recipe.architecture, str(recipe.width), *([f"k{k}"] if k else []), f"s{seed}"]
        name = "-".join(parts)
        names.append(name if name not in names else f"{name}-{len(names)}")
    return names


def _finished(
    trainee: Trainee,
    name: str,
    seed: int,
    done: Fitted,
    records: list[dict[str, float]],
    normalize: str,
    first: Any,
) -> DictionaryFit:
    """The result, with its origin in its spec."""
    last = records[-1] if records else {}
    model = trainee.model.eval().requires_grad_(False)
    report = {"name": name, "seed": seed, "learning_rate": trainee.rate, "steps": done.steps, "rows": trainee.rows}
    report |= {"seconds": done.seconds, **{f"last_{key}": last[key] for key in ("loss", "fvu", "l0", "dead") if last}}
    norm = None if first is None else float(first.float().norm(dim=1).mean())
    origin = {"seed": seed, "rows": trainee.rows, "normalize": normalize, "mean_norm": norm, "fvu": last.get("fvu")}
    model.spec = replace(model.spec, provenance={**model.spec.provenance, **origin})
    return DictionaryFit(model, records, report)
