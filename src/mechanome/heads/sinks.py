"""Attention sinks: positions that take attention and give little, and what that does to a head's output.

Paper 34 (Cunningham & Muca Cirone 2026). Split a head's output at query i into its sink part and the rest: with sink
rate s, the sink's transformed value u, and m the attention-weighted mean of the other values,

    o = s u + (1 - s) m,   ||o||^2 = s^2 ||u||^2 + 2 s (1 - s) u.m + (1 - s)^2 ||m||^2,

a convex parabola in s of curvature 2 ||u - m||^2: where u is short, attention to the sink turns the head down. All
lengths are taken in value space through W_O W_O^T, so nothing of size query x d_model is made per head. Where a model
has sinks of its own (rows of the pattern sum below 1), 1 - s is the attention that the other tokens really get.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.core import BadInput, TooFewRows
from mechanome.heads.reading import per_query_head


@dataclass(frozen=True)
class SinkSplit:
    """One layer, split into sink and rest at every query; all `[head, query]`.

    Args:
        rate: s, the attention to the sink.
        rest: the attention to all other tokens; 1 - s where rows sum to 1.
        sink_squared: ||u||^2. mean_squared: ||m||^2. product: u.m. All 0 where there is no sink, or no rest.
        output_squared: ||o||^2, from the parts.
    """

    rate: Tensor = field(repr=False)
    rest: Tensor = field(repr=False)
    sink_squared: Tensor = field(repr=False)
    mean_squared: Tensor = field(repr=False)
    product: Tensor = field(repr=False)
    output_squared: Tensor = field(repr=False)

    @property
    def curvature(self) -> Tensor:
        """Second derivative of ||o||^2 in s with u and m held: 2 ||u - m||^2, never below 0."""
        return (2 * (self.sink_squared - 2 * self.product + self.mean_squared)).clamp(min=0)

    @property
    def lowest(self) -> Tensor:
        """s*, the sink rate at which ||o|| is smallest with u and m held; NaN where u = m."""
        return 2 * (self.mean_squared - self.product) / self.curvature

    @property
    def cosine(self) -> Tensor:
        """cos(u, m); NaN where one of them is 0."""
        return self.product / (self.sink_squared * self.mean_squared).sqrt()

    @property
    def suppression(self) -> Tensor:
        """The suppression index 1 - ||o|| / ||m||: how far the sink turns the head down; NaN where there is no rest.

        ||m|| is the length of the output with the sink removed and the rest renormalized.
        """
        there = self.mean_squared.where(self.mean_squared > 0, float("nan"))
        return 1 - (self.output_squared / there).sqrt()

    @property
    def contribution(self) -> Tensor:
        """The sink's contribution weight, <s u, o> / ||o||^2, unclipped; NaN where the output is 0."""
        return (self.rate.square() * self.sink_squared + self.rate * self.rest * self.product) / self.output_squared

    def parabola(self, rate: Tensor | float) -> Tensor:
        """||o||^2 at another sink rate, with u and m held and the rest at 1 - rate."""
        s = torch.as_tensor(rate, dtype=self.rate.dtype, device=self.rate.device)
        return s**2 * self.sink_squared + 2 * s * (1 - s) * self.product + (1 - s) ** 2 * self.mean_squared


def split_at_sink(
    pattern: Tensor, values: Tensor, output_weight: Tensor | None = None, sink: int | Sequence[int] = 0
) -> SinkSplit:
    """Split a layer's head outputs into the sink's part and the rest.

    Args:
        pattern: `[head, query, key]`. values: `[kv, key, d_v]`. output_weight: `[head, d_v, d_model]`, None measures
            lengths in value space.
        sink: the sink's key, or several, whose attention-weighted mean value then stands for u.

    Raises:
        BadInput: no sink, or one outside the prompt.
    """
    n = pattern.shape[-1]
    places = sorted({p % n for p in _sinks(sink, n)})
    per_head = per_query_head(values, pattern.shape[0])
    at = torch.zeros(n, dtype=torch.bool, device=pattern.device)
    at[places] = True
    rate, rest = pattern[..., at].sum(-1), pattern[..., ~at].sum(-1)
    sink_sum, rest_sum = pattern[..., at] @ per_head[:, at], pattern[..., ~at] @ per_head[:, ~at]
    u, m = _over(sink_sum, rate), _over(rest_sum, rest)

    def product(a: Tensor, b: Tensor) -> Tensor:
        return ((a if output_weight is None else a @ (output_weight @ output_weight.mT)) * b).sum(-1)

    uu, mm, um = product(u, u), product(m, m), product(u, m)
    squared = rate.square() * uu + 2 * rate * rest * um + rest.square() * mm
    return SinkSplit(rate, rest, uu.clamp(min=0), mm.clamp(min=0), um, squared.clamp(min=0))


def find_sinks(pattern: Tensor, threshold: float = 0.2, queries: Sequence[int] | None = None) -> list[int]:
    """Positions that act as sinks: their mean attention over all heads and later queries reaches a threshold.

    Args:
        pattern: `[..., query, key]`, all heads of one layer or of many.
        threshold: mean attention, 0 to 1.
        queries: positions along the query axis; None means 0, 1, 2 ...

    Returns:
        positions, in order; the last token has no later query and is never one.
    """
    flat = pattern.flatten(0, -3)
    place = torch.arange(flat.shape[1]) if queries is None else torch.tensor(list(queries))
    later = (place[:, None] > torch.arange(flat.shape[2])).to(flat)
    rate = (flat.mean(0) * later).sum(0) / later.sum(0).clamp(min=1)
    return (rate >= threshold).nonzero()[:, 0].tolist()


def fit_parabola(x: Tensor, y: Tensor, least: int = 8, spread: float = 0.02) -> Tensor | None:
    """Least-squares coefficients c of y = c0 + c1 x + c2 x^2, fp64 `[3]`; the curvature is 2 c2.

    Args:
        x, y: `[row]`.
        least: rows needed. spread: standard deviation of x needed, for where x hardly varies no parabola is determined.

    Returns:
        None where x has too few rows or varies too little.
    """
    s, v = x.double().cpu(), y.double().cpu()
    if len(s) < least or float(s.std()) < spread:
        return None
    # Centered for the solve: powers of numbers near 1 are nearly collinear.
    center = s.mean()
    t = s - center
    c = torch.linalg.lstsq(torch.stack([torch.ones_like(t), t, t**2], 1), v[:, None]).solution[:, 0]
    return torch.stack([c[0] - c[1] * center + c[2] * center**2, c[1] - 2 * c[2] * center, c[2]])


def looking(queries: Sequence[int], sink: int | Sequence[int], causal: bool, n: int) -> list[int]:
    """Indices of the queries that count: no sinks, and in a causal model not query 0, which sees only itself.

    Raises:
        TooFewRows: none is left.
    """
    places = {p % n for p in _sinks(sink, n)} | ({0} if causal else set())
    kept = [i for i, q in enumerate(queries) if q not in places]
    if not kept:
        raise TooFewRows("sink analysis", "every query is a sink itself", "use a longer prompt")
    return kept


def _sinks(sink: int | Sequence[int], n: int) -> list[int]:
    places = [sink] if isinstance(sink, int) else list(sink)
    if not places or not all(-n <= p < n for p in places):
        raise BadInput(f"sink {sink}", f"there are {n} tokens", f"name positions {-n} to {n - 1}")
    return places


def _over(total: Tensor, weight: Tensor) -> Tensor:
    """A weighted mean from a weighted sum, 0 where the weight is."""
    return total / weight.clamp(min=torch.finfo(weight.dtype).tiny).unsqueeze(-1)
