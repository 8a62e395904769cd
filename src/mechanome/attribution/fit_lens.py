"""Fitting a tuned lens: a regression to start from, then descent on the KL divergence itself.

    text -> windows -> streams -> regression onto the last stream -> KL steps on random tokens -> held-out quality

The regression needs one pass over a little text and no logits, and takes most of the way. What is minimized then is
the lens's own aim, KL(final prediction || what is read), over the whole vocabulary and without an approximation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from mechanome.attribution.lens_descent import Descent, Sums, divergence, log_probs
from mechanome.attribution.readout import Readout
from mechanome.attribution.tuned_lens import Quality, Translator, TunedLens, identity
from mechanome.core import BadInput, Batches, BudgetTooSmall, TooFewRows, bootstrap, fit, seeded
from mechanome.engine import Batch, Model, Site, memory
from mechanome.engine.asked import one_of, opened_model
from mechanome.engine.inputs import Inputs
from mechanome.engine.plain import integers, whole
from mechanome.engine.token_rows import token_rows

Start = Literal["regression", "identity"]
_WINDOWS_A_STEP = 4
_WINDOWS_MEASURED = 32
_LEAST_WINDOWS = 10
_TOO_LARGE = 2**63  # for the generators of torch


def fit_tuned_lens(
    model: Model,
    data: Inputs,
    *,
    layers: int | Iterable[int] | None = None,
    rank: int | None = None,
    start: Start = "regression",
    warmup: int = 16,
    steps: int = 40,
    tokens: int = 64,
    lr: float = 1e-4,
    context: int = 128,
    held_out: float = 0.1,
    measured: int = 256,
    checkpoint_dir: str | Path | None = None,
    every: int = 10,
    budget: memory.Budget = None,
    seed: int = 0,
    quiet: bool = False,
) -> TunedLens:
    """Fit translators from each layer's stream to the model's final prediction (Belrose et al. 2023).

    Texts are joined and cut into windows of equal length. A window's first position takes no part: its stream is often
    a sink, like no other's.

    Args:
        model: a language model with one tower.
        data: text, several texts, chats, or token ids; some ten thousand tokens or more.
        layers: after which blocks; None for all, and the embedding too. The last layer needs no translator.
        rank: of each map's difference from the identity; None for full rank.
        start: "regression" (least squares onto the last stream) or "identity" (the logit lens).
        warmup: steps that only read streams, four windows each: for the regression, and for each feature's scale.
        steps: descent steps on the KL divergence after that; 0 leaves the start as it is.
        tokens: random tokens per step.
        lr: of Adam, falling to 0; in units of the last stream's scale per standardized feature.
        context: tokens of a window.
        held_out: share of windows that are only measured on.
        measured: tokens to measure on, held-out and fitted each.
        checkpoint_dir: where checkpoints are kept; a fit that was killed goes on from there, to the same bits.
        every: steps between checkpoints.
        budget: memory for the regression's sums.
        seed: of windows, tokens and held-out share.
        quiet: no progress line.

    Returns:
        a `TunedLens`, with its quality per layer beside the logit lens's.

    Raises:
        BadInput: settings that make no sense, or checkpoints of another fit. TooFewRows: less than ten windows of text.
        NotServed: a model whose logits are not made from its last block's output.
        BudgetTooSmall: sums that do not fit. NotFinite: the fit diverged.
    """
    opened_model(model)
    counts = {"warmup": warmup, "tokens": tokens, "measured": measured, "every": every}
    _check(counts | ({} if rank is None else {"rank": rank}), 1)
    _check({"context": context}, 2)
    _check({"steps": steps, "seed": seed}, 0)
    seed = int(seed)  # the generators of torch take no other whole number
    _check_shares(start, held_out, lr)
    readout, sites = Readout.of(model), _sites(model, layers)
    last = Site("resid_post", model.n_layers - 1)
    if rank is not None and rank > readout.width:
        raise BadInput(f"rank={rank}", f"the stream is {readout.width} wide", "give less, or None for full rank")
    windows = _windows(model, data, context)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(seed))
    cut = min(max(2, round(held_out * len(windows))), len(windows) - 2)
    held, train = windows[order[:cut]], windows[order[cut:]]
    name, digest = identity(model)
    settings = {
        "sites": [str(s) for s in sites], "rank": rank, "start": start, "warmup": warmup, "steps": steps,
        "tokens": tokens, "lr": lr, "context": context, "held_out": held_out, "model": digest,
        "windows": len(windows), "data": sha256(windows.numpy().tobytes()).hexdigest(),
    }  # fmt: skip
    shape = (len(sites), readout.width, start == "regression")
    if (needed := Sums.nbytes(*shape)) > (limit := memory.parse_budget(budget)):
        raise BudgetTooSmall(
            f"a budget of {memory.show(limit)}",
            f"the sums of {len(sites)} layers need {memory.show(needed)}",
            "fit fewer layers at a time, or use start='identity'",
        )
    state = _State(Sums(*shape), model.device)

    def step(rows: Tensor) -> Mapping[str, float]:
        streams = _streams(model, [*sites, last], train[rows])
        if state.descent is None:
            for part in streams.unbind(1):
                state.sums.add(part[:-1], part[-1])
            state.done += 1
            if state.done == warmup:
                state.descent = state.sums.start(rank, model.device)
            return {"tokens read": float(state.sums.sums["count"])}
        x = _some(streams, tokens)
        left = 1 - (state.done - warmup) / steps
        state.done += 1
        return {"KL": state.descent.step(x[:-1], log_probs(readout, x[-1]), readout, lr * left)}

    batches = Batches(len(train), min(_WINDOWS_A_STEP, len(train)), seed=seed)
    fit(
        step, state, batches, steps=warmup + steps, checkpoint_dir=checkpoint_dir, every=every,
        settings=settings, seed=seed, what="fitting a tuned lens", quiet=quiet,
    )  # fmt: skip
    assert state.descent is not None
    translators = dict(zip(sites, state.descent.translators()))
    with seeded(seed):
        quality = _quality(model, readout, translators, last, held, train, measured)
    return TunedLens(name, digest, last, translators, quality, settings | {"seed": seed})


@dataclass
class _State:
    """All that changes while fitting: sums first, then the maps."""

    sums: Sums
    device: torch.device
    done: int = 0
    descent: Descent | None = None

    def state_dict(self) -> dict[str, Any]:
        if self.descent is None:
            return {"done": self.done, "sums": self.sums.sums}
        return {"done": self.done, "descent": self.descent.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        self.done = state["done"]
        if "sums" in state:
            self.sums.sums = dict(state["sums"])
        else:
            self.descent = Descent.of(state["descent"], self.device)


def _check(counts: Mapping[str, Any], least: int) -> None:
    for what, value in counts.items():
        found = whole(value)
        if found is None or not least <= found < _TOO_LARGE:
            why = f"{value!r} is no whole number from {least} on, or too large"
            raise BadInput(f"{what} of a tuned lens", why, "give another one")


def _check_shares(start: str, held_out: float, lr: float) -> None:
    one_of("start", start, ("regression", "identity"))
    for what, value, most, example in (("held_out", held_out, 1.0, 0.1), ("lr", lr, float("inf"), 1e-4)):
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < most:
            why = f"it is a number above 0 and below {most:g}"
            raise BadInput(f"{what}={value!r}", why, f"give one such as {example:g}")


def _sites(model: Model, layers: int | Iterable[int] | None) -> list[Site]:
    depth = model.n_layers
    if layers is None:
        return [Site("resid_pre", 0), *(Site("resid_post", i) for i in range(depth - 1))]
    chosen = integers(layers, "layers of a tuned lens")
    if not chosen or not all(0 <= i < depth - 1 for i in chosen):
        raise BadInput(
            f"layers={layers!r}",
            f"translators belong to layers 0 to {depth - 2}; the last one needs none",
            "give one, a list of them, or None for all",
        )
    return [Site("resid_post", i) for i in dict.fromkeys(chosen)]


def _windows(model: Model, data: Inputs, context: int) -> Tensor:
    """Windows of the joined texts `[window, context]`, each beginning with the model's first token, if it has one."""
    if model.context is not None and context > model.context:
        raise BadInput(f"context={context}", f"the model's is {model.context}", "give less")
    tokenizer = model.tokenizer
    if isinstance(data, (Batch, Mapping)):
        batch = model.encode(data)
        spans = zip(batch.input_ids.tolist(), batch.frame.starts, batch.frame.lengths)
        rows = [ids[start : start + n] for ids, start, n in spans]
    else:
        rows, _, _ = token_rows(data, tokenizer, "none")
    between = getattr(tokenizer, "eos_token_id", None)
    stream = [i for row in rows for i in (*row, *([between] if between is not None else []))]
    first = getattr(tokenizer, "bos_token_id", None) if model.bos == "auto" else whole(model.bos)
    lead = [] if first is None else [first]
    body = context - len(lead)
    n = len(stream) // body
    if n < _LEAST_WINDOWS:
        raise TooFewRows(
            f"{len(stream)} tokens of text",
            f"they make {n} windows of {context}, and {_LEAST_WINDOWS} are needed",
            "give more text, or a smaller context=",
        )
    cut = torch.tensor(stream[: n * body]).view(n, body)
    windows = torch.cat([torch.tensor(lead).expand(n, len(lead)).long(), cut], dim=1)
    model.encode(windows[:1])  # refuses ids that do not exist
    return windows


def _streams(model: Model, sites: list[Site], windows: Tensor) -> Tensor:
    """Streams `[site, window, pos, d_model]` without the first position, float32."""
    run = model.run(windows, capture=sites, logits=False)
    return torch.stack([run[site][:, 1:].float() for site in sites])


def _some(streams: Tensor, tokens: int) -> Tensor:
    """At least so many random tokens, equally many of each window: `[site, token, d_model]`, window by window."""
    _, windows, length, _ = streams.shape
    each = min(-(-tokens // windows), length)
    chosen = torch.rand(windows, length).argsort(1)[:, :each].to(streams.device)
    return streams[:, torch.arange(windows, device=streams.device)[:, None], chosen].flatten(1, 2)


def _quality(
    model: Model, readout: Readout, translators: Mapping[Site, Translator], last: Site,
    held: Tensor, train: Tensor, measured: int,
) -> dict[Site, Quality]:  # fmt: skip
    def read(windows: Tensor) -> tuple[Tensor, Tensor]:
        """Streams of tokens to measure on, and the final log-probabilities."""
        some = windows[:_WINDOWS_MEASURED]
        pieces = [_streams(model, [*translators, last], w) for w in some.split(_WINDOWS_A_STEP)]
        x = torch.cat([_some(p, -(-measured * p.shape[1] // len(some))) for p in pieces], dim=1)
        return x, log_probs(readout, x[-1])

    def kl(x: Tensor, final: Tensor, translate: Callable[[Site, Tensor], Tensor]) -> list[Tensor]:
        sites = enumerate(translators)
        return [divergence(readout, translate(site, x[i]), final).double().cpu() for i, site in sites]

    seen, unseen = read(train), read(held)
    fitted, tuned = (kl(*pair, lambda site, x: translators[site](x)) for pair in (seen, unseen))
    plain = kl(*unseen, lambda site, x: x)
    count = min(len(held), _WINDOWS_MEASURED)
    groups = [i * count // len(tuned[0]) for i in range(len(tuned[0]))]  # tokens lie window by window
    return {
        site: Quality(
            bootstrap(tuned[i], groups=groups, resamples=1000),
            bootstrap(plain[i], groups=groups, resamples=1000),
            float(fitted[i].mean()),
        )
        for i, site in enumerate(translators)
    }
