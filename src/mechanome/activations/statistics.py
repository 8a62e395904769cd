"""What a store knows of each site: mean, second moments and norms, in float64 over every row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mechanome.core.tensor_files import read_tensors, write_tensors

QUANTILES = (0.0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0)
_FORMAT = "activation-statistics"
_AT_ONCE = 16_384


@dataclass(frozen=True, eq=False)
class SiteStatistics:
    """Moments of the rows of a site, as they are stored.

    Args:
        count: how many rows.
        mean: `[d]`.
        second: mean of `x x^T`, `[d, d]`.
        norm: mean norm.
        quantiles: per entry of `QUANTILES`, the norm below which that share of rows lies.
    """

    count: int
    mean: Tensor
    second: Tensor
    norm: float
    quantiles: dict[float, float]

    @property
    def covariance(self) -> Tensor:
        """`[d, d]`, divided by the count."""
        return self.second - torch.outer(self.mean, self.mean)

    @property
    def variance(self) -> float:
        """Mean squared distance from the mean: what the fraction of variance unexplained is a fraction of."""
        return float(self.second.trace() - self.mean.square().sum())

    def tensors(self) -> dict[str, Tensor]:
        """As named tensors."""
        return {
            "count": torch.tensor(self.count), "mean": self.mean, "second": self.second,
            "norm": torch.tensor(self.norm, dtype=torch.float64),
            "quantiles": torch.tensor([self.quantiles[q] for q in QUANTILES], dtype=torch.float64),
        }  # fmt: skip

    @classmethod
    def of(cls, tensors: dict[str, Any]) -> SiteStatistics:
        """From what `tensors` gave."""
        quantiles = dict(zip(QUANTILES, tensors["quantiles"].tolist()))
        return cls(int(tensors["count"]), tensors["mean"], tensors["second"], float(tensors["norm"]), quantiles)


def measure(parts: Iterable[Tensor]) -> SiteStatistics:
    """Statistics of rows that come in parts `[row, d]`."""
    count, total, second, norms = 0, None, None, []
    for part in parts:
        for piece in part.split(_AT_ONCE):
            x = piece.double()
            count += len(x)
            total = x.sum(0) if total is None else total + x.sum(0)
            second = x.T @ x if second is None else second.addmm_(x.T, x)
            norms.append(x.norm(dim=1))
    assert total is not None and second is not None
    every = torch.cat(norms).sort().values
    # Nearest ranks: torch.quantile refuses more than 16 million values.
    at = {q: float(every[round(q * (count - 1))]) for q in QUANTILES}
    return SiteStatistics(count, total / count, second / count, float(every.mean()), at)


def write_statistics(path: Path, parts: Mapping[str, Iterable[Tensor]]) -> None:
    """Measure the rows of each site, which come in parts `[row, d]`, and write a file that `read_statistics` reads."""
    tensors: dict[str, Tensor] = {}
    for site, rows in parts.items():
        tensors |= {f"{site}/{name}": x for name, x in measure(rows).tensors().items()}
    write_tensors(path, tensors, format=_FORMAT)


def read_statistics(path: Path) -> dict[str, SiteStatistics]:
    """Statistics per site.

    Raises:
        CorruptFile: damaged, or another file.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for name, value in read_tensors(path, format=_FORMAT).tensors.items():
        site, _, part = name.rpartition("/")
        found.setdefault(site, {})[part] = value
    return {site: SiteStatistics.of(tensors) for site, tensors in found.items()}
