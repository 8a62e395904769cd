"""Is a measure of token importance right? Tested by hiding the tokens it names, and against tokens known to matter.

Comprehensiveness: hiding the top tokens should cost the answer much. Sufficiency: keeping only them should cost little.
The deletion curve hides the tokens one after the other, most important first; the area under its drop is large where
the order is right. Protocol of paper 34 (Cunningham & Muca Cirone 2026).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from mechanome.core import BadInput, Interval, NotFinite, ShapeMismatch, Table, TooFewRows, bootstrap, spearman
from mechanome.core.numeric import numbers
from mechanome.engine import Model
from mechanome.engine.inputs import Inputs
from mechanome.engine.memory import Budget
from mechanome.heads.masking import Answer, mask_tokens
from mechanome.heads.reading import one_prompt

Numbers = Tensor | Sequence[float] | np.ndarray


@dataclass(frozen=True)
class Faithfulness:
    """How well an order of tokens predicts what hiding them does. Everything in nats of log p(answer).

    Args:
        base: log p(answer) with nothing hidden.
        k: how many tokens count as the top.
        comprehensiveness: drop when the top k are hidden; higher is better.
        sufficiency: drop when all but the top k are hidden; lower is better.
        hidden: how many tokens are hidden at each point of the deletion curve.
        curve: log p(answer) there, fp64 `[point]`.
        order: the positions that were ranked, most important first.
        kept: positions that were never hidden.
        tokens: of the prompt.
    """

    base: float
    k: int
    comprehensiveness: float
    sufficiency: float
    hidden: tuple[int, ...] = field(repr=False)
    curve: Tensor = field(repr=False)
    order: tuple[int, ...] = field(repr=False)
    kept: tuple[int, ...]
    tokens: tuple[str, ...] = field(repr=False)

    @property
    def auc(self) -> float:
        """Mean drop over the deletion curve (trapezoids over the share of tokens hidden); higher is better."""
        share = torch.tensor(self.hidden, dtype=torch.float64) / self.hidden[-1]
        return float(torch.trapezoid(self.base - self.curve, share))

    def table(self) -> Table:
        """One row a measure, then one a point of the curve."""
        rows = [
            (f"drop with the top {self.k} hidden (comprehensiveness)", self.comprehensiveness),
            (f"drop with only the top {self.k} kept (sufficiency)", self.sufficiency),
            ("mean drop over the deletion curve", self.auc),
            *((f"log p with {n} hidden", float(value)) for n, value in zip(self.hidden, self.curve)),
        ]
        return Table(("measure", "nats"), rows, f"Faithfulness; log p(answer) is {self.base:.4g} with nothing hidden")


def faithfulness(
    model: Model,
    inputs: Inputs,
    scores: Numbers,
    answer: Answer = None,
    k: int = 3,
    *,
    keep: Sequence[int] = (0,),
    points: int = 11,
    budget: Budget = None,
) -> Faithfulness:
    """Hide tokens in the order of their scores, and see what the answer loses; exact.

    Args:
        model, inputs, answer, budget: as in `mask_tokens`.
        scores: one number per token of the prompt, higher means more important.
        k: how many tokens count as the top.
        keep: positions that are never hidden: the sink, and -1 where the last token should keep seeing itself.
        points: at most so many points on the deletion curve, its ends included.

    Returns:
        a `Faithfulness`.

    Raises:
        ShapeMismatch: not one score per token. NotFinite: a score that is no number.
        TooFewRows: no more than k tokens can be hidden. BadInput: fewer than two points.
    """
    batch = one_prompt(model, inputs)
    values = _vector(scores, batch.frame.lengths[0])
    kept = tuple(sorted(batch.frame.positions(list(keep), 0)))
    order = _order(values, kept)
    if not 0 < k < len(order):
        raise TooFewRows(f"the top {k}", f"{len(order)} tokens can be hidden", "use a longer prompt, or a smaller k")
    if points < 2:
        raise BadInput(f"{points} points", "a curve has two ends", "use 11")
    counts = sorted({round(x) for x in np.linspace(0, len(order), min(points, len(order) + 1))})
    sets = [order[:k], order[k:], *(order[:n] for n in counts)]
    found = mask_tokens(model, inputs, sets, answer, budget=budget)
    drops = found.drops.tolist()
    return Faithfulness(
        found.base, k, drops[0], drops[1], tuple(counts), found.logprobs[2:], tuple(order), kept, found.tokens
    )


def hit_at_k(scores: Numbers, critical: Sequence[int], k: int = 3, exclude: Sequence[int] = (0,)) -> bool:
    """Whether one of the tokens known to matter is among the `k` with the highest scores.

    Args:
        scores: one number per token. critical: positions of the answer-bearing tokens.
        k: how many count. exclude: positions that take no part, such as the sink.

    Raises:
        BadInput: no critical token, or one outside the prompt or among those left out.
    """
    values = _vector(scores)
    wanted, left_out = _labels(len(values), critical, exclude)
    return bool(wanted & set(_order(values, left_out)[:k]))


def critical_auc(scores: Numbers, critical: Sequence[int], exclude: Sequence[int] = (0,)) -> float:
    """The chance that a critical token scores higher than another one; ties count half. 0.5 is chance.

    Args, raises: as `hit_at_k`; TooFewRows where every token is critical.
    """
    values = _vector(scores)
    wanted, left_out = _labels(len(values), critical, exclude)
    places = [p for p in range(len(values)) if p not in left_out]
    ranks = rankdata(values[places])
    inside = np.array([p in wanted for p in places])
    n, others = int(inside.sum()), int((~inside).sum())
    if not others:
        raise TooFewRows("critical_auc", "every token is critical", "label fewer tokens")
    return float((ranks[inside].sum() - n * (n + 1) / 2) / (n * others))


def agreement(
    scores: Sequence[Numbers], effects: Sequence[Numbers], *, exclude: Sequence[int] = (0,), seed: int = 0
) -> Interval:
    """Spearman's correlation of scores with effects of hiding, with an interval.

    Args:
        scores: per prompt, one number per token. effects: likewise (`LeaveOneOut.effects`); NaN ones take no part.
        exclude: positions that take no part in any prompt, such as the sink.
        seed: of the resamples.

    Returns:
        for one prompt its correlation, resampled over tokens; for several the mean of theirs, resampled over prompts.

    Raises:
        ShapeMismatch: lists of unequal length, or a prompt with more scores than effects.
        NotFinite: scores or effects of a prompt that do not vary. TooFewRows: a prompt of fewer than three tokens.
    """
    if len(scores) == len(effects) == 1:
        return spearman(*_pair(scores[0], effects[0], exclude), seed=seed)
    return bootstrap(agreements(scores, effects, exclude=exclude), seed=seed)


def agreements(scores: Sequence[Numbers], effects: Sequence[Numbers], *, exclude: Sequence[int] = (0,)) -> list[float]:
    """Spearman's correlation of scores with effects of hiding, prompt by prompt; compare two metrics' row by row.

    Args, raises: as `agreement`.
    """
    if len(scores) != len(effects):
        raise ShapeMismatch(f"{len(scores)} scores, {len(effects)} effects", "they come in pairs", "one each a prompt")
    return [_rank_correlation(*_pair(s, e, exclude)) for s, e in zip(scores, effects)]


def _pair(scores: Numbers, effects: Numbers, exclude: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    x, y = _vector(scores), np.asarray(effects, dtype=np.float64)
    if x.shape != y.shape:
        raise ShapeMismatch(f"{len(x)} scores, {len(y)} effects", "one each a token", "take both from one prompt")
    left_out = {p % len(x) for p in exclude}
    places = [p for p in range(len(x)) if p not in left_out and np.isfinite(y[p])]
    if len(places) < 3:
        raise TooFewRows("agreement", f"{len(places)} tokens", "use longer prompts")
    return x[places], y[places]


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    a, b = (rankdata(v) - (len(v) + 1) / 2 for v in (x, y))
    spread = float(np.sqrt((a**2).sum() * (b**2).sum()))
    if spread == 0.0:
        raise NotFinite("agreement", "all scores or all effects of a prompt are equal", "leave this prompt out")
    return float((a * b).sum() / spread)


def _vector(scores: Numbers, length: int | None = None) -> np.ndarray:
    values = numbers(scores, "scores")
    if values.ndim != 1 or (length is not None and len(values) != length):
        expected = "one number per token" if length is None else f"one number for each of {length} tokens"
        raise ShapeMismatch(f"scores {list(values.shape)}", f"they are {expected}", "use TokenImportance.values")
    return values


def _order(values: np.ndarray, left_out: Sequence[int] | set[int]) -> list[int]:
    ranked = np.argsort(-values, kind="stable").tolist()
    return [p for p in ranked if p not in left_out]


def _labels(n: int, critical: Sequence[int], exclude: Sequence[int]) -> tuple[set[int], set[int]]:
    outside = [p for p in (*critical, *exclude) if not -n <= p < n]
    if outside:
        raise BadInput(f"position {outside[0]}", f"there are {n} tokens", f"use {-n} to {n - 1}")
    wanted, left_out = {p % n for p in critical}, {p % n for p in exclude}
    if not wanted or wanted & left_out:
        why = "there is none" if not wanted else "some are left out as well"
        raise BadInput("critical tokens", why, "label the positions that bear the answer")
    return wanted, left_out
