"""Integrated gradients: a metric's change from a baseline, spread exactly over the units of a site.

The gradient is averaged along the straight path from the baseline to the actual activations and multiplied by the
difference. The shares sum to the metric's change up to the quadrature's error, which is reported: an *estimate*
that says how good it is (Sundararajan et al. 2017).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from mechanome.core import BadInput, ShapeMismatch, Table
from mechanome.engine import Edit, Model, Site, parse
from mechanome.engine.asked import count, one_of, opened_model
from mechanome.engine.frame import Positions
from mechanome.engine.inputs import Batch, Inputs
from mechanome.engine.metrics import Metric

Quadrature = Literal["midpoint", "left", "right", "trapezoid"]


def nodes(rule: str, steps: int) -> tuple[Tensor, Tensor]:
    """Points in [0, 1] and their weights.

    Raises:
        BadInput: an unknown rule, or no steps.
    """
    steps = count("steps", steps)
    grid = torch.arange(steps, dtype=torch.float64)
    even = torch.full((steps,), 1 / steps, dtype=torch.float64)
    rules = {
        "midpoint": ((grid + 0.5) / steps, even),
        "left": (grid / steps, even),
        "right": ((grid + 1) / steps, even),
    }
    ends = torch.full((steps + 1,), 1 / steps, dtype=torch.float64)
    ends[[0, -1]] /= 2
    rules["trapezoid"] = (torch.arange(steps + 1, dtype=torch.float64) / steps, ends)
    return rules[one_of("rule", rule, rules)]


@dataclass(frozen=True)
class IntegratedGradients:
    """Shares of a metric's change, an estimate by quadrature.

    Attributes:
        site: where. shares: in the site's own axes, `[row, pos, feature...]`.
        change: the metric minus the metric at the baseline, exact, `[row]`.
        error: how far the shares' sum is from `change`, relative to it, `[row]`.
    """

    site: Site
    shares: Tensor = field(repr=False)
    change: Tensor
    error: Tensor

    def by_position(self) -> Tensor:
        """Shares summed over features, `[row, pos]`."""
        return self.shares.flatten(2).sum(-1)

    def table(self) -> Table:
        """Change and error per row."""
        rows = [(i, float(c), float(e)) for i, (c, e) in enumerate(zip(self.change, self.error))]
        return Table(("row", "change of the metric", "relative error"), rows, f"integrated gradients at {self.site}")


def integrated_gradients(
    model: Model,
    metric: Metric,
    inputs: Inputs,
    site: str | Site = "resid_pre.0",
    baseline: Inputs | Literal["zero"] | Tensor = "zero",
    *,
    steps: int = 32,
    rule: Quadrature = "midpoint",
    at: Positions = "last",
) -> IntegratedGradients:
    """Spread a metric's change from a baseline over a site.

    Args:
        metric: `metric(logits [rows, vocab], rows) -> [rows]`.
        baseline: "zero", a tensor that broadcasts to the site, or inputs of the same shape to take it from. Where a
            norm reads the site, a path from zero changes everything near zero, which few steps cannot follow:
            prefer inputs, and look at `error`.
        steps, rule: the quadrature; `midpoint` is the best of equal cost.
        at: the position whose logits the metric reads.

    Raises:
        BadInput: no steps, an unknown rule, a metric that is not one number per row, a baseline of other lengths.
        ShapeMismatch: a baseline that does not broadcast to the site. NotFinite: a metric that is NaN or infinite.
    """
    opened_model(model)
    points, weights = nodes(rule, steps)
    site = parse(site).whole
    batch = model.encode(inputs)
    actual = model.run(batch, capture=site).captured[site]
    start = _baseline(model, site, batch, actual, baseline)
    mean = torch.zeros_like(actual, dtype=torch.float64)
    for point, weight in zip(points.tolist(), weights.tolist()):
        value = start + (actual - start) * point
        mean += weight * model.grad(metric, batch, [site], edits=[Edit(site, "set", value)], at=at).sites[site].double()
    shares = mean * (actual - start).double()
    ends = [
        model.grad(metric, batch, [site], edits=[Edit(site, "set", v)], at=at).metric.double() for v in (start, actual)
    ]
    change = ends[1] - ends[0]
    error = (shares.flatten(1).sum(1) - change).abs() / change.abs().clamp(min=1e-12)
    if site.point in ("scores", "pattern"):
        shares = shares.transpose(1, 2)
    return IntegratedGradients(site, shares, change, error)


def _baseline(model: Model, site: Site, batch: Batch, actual: Tensor, baseline: Inputs | Tensor) -> Tensor:
    if isinstance(baseline, str) and baseline == "zero":
        return torch.zeros_like(actual)
    if isinstance(baseline, Tensor) and baseline.is_floating_point():
        pairs = zip(reversed(baseline.shape), reversed(actual.shape))
        if baseline.dim() > actual.dim() or not all(have in (1, need) for have, need in pairs):
            raise ShapeMismatch(
                f"a baseline of shape {list(baseline.shape)}",
                f"{site} is {list(actual.shape)}",
                "give what broadcasts to it",
            )
        return baseline.to(actual).expand_as(actual)
    other = model.encode(baseline)
    if other.frame.lengths != batch.frame.lengths:
        raise BadInput("the baseline", "its rows have other token lengths than the inputs", "choose equal lengths")
    return model.run(other, capture=site).captured[site]
