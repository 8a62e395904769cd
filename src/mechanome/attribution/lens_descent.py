"""The arithmetic of a tuned lens: sums and their regression, the KL divergence with its gradient, descent on it.

A site's map is `x + unit * (z P + c)` with `z = (x - mean) / deviation`, so that a step of the optimizer means the
same in every layer and feature, however large its streams are. P is one matrix, or two whose product it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mechanome.attribution.tuned_lens import Translator

RIDGE = 1e-2
"""Penalty of the regression on standardized features."""
_LOGITS_AT_ONCE = 2**24
_BETAS = (0.9, 0.99)

Readout = Any
"""From last-layer streams `[row, d_model]` to logits `[row, vocab]`; gradients flow through."""


def log_probs(readout: Readout, x: Tensor) -> Tensor:
    """Log-probabilities `[row, vocab]` in nats that streams `[row, d_model]` are read as, float32."""
    with torch.no_grad():
        return readout(x).float().log_softmax(-1)


def divergence(readout: Readout, x: Tensor, final: Tensor) -> Tensor:
    """KL(final || what is read) in nats, `[row]`.

    Args:
        x: streams `[row, d_model]`. final: log-probabilities `[row, vocab]`.
    """
    return torch.cat([kl for kl, _ in _divergence(readout, x, final, gradient=False)])


def divergence_and_slope(readout: Readout, x: Tensor, final: Tensor) -> tuple[Tensor, Tensor]:
    """`divergence`, and its gradient by the streams, `[row, d_model]`."""
    values, slopes = zip(*_divergence(readout, x, final, gradient=True))
    return torch.cat(values), torch.cat(slopes)


def _divergence(readout: Readout, x: Tensor, final: Tensor, gradient: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Some rows at a time, so that few logits exist at once; the gradient is empty where it is not wanted."""
    size = max(1, _LOGITS_AT_ONCE // final.shape[-1])
    for part, log_p in zip(x.detach().split(size), final.split(size)):
        part.requires_grad_(gradient)
        with torch.set_grad_enabled(gradient):
            logits = readout(part).float()
        log_q, p = logits.detach().log_softmax(-1), log_p.exp()
        kl, slope = (p * (log_p - log_q)).sum(-1), part.new_empty(0)
        if gradient:
            # By the logits the gradient is the difference of the two distributions: no graph of a softmax is kept.
            (slope,) = torch.autograd.grad(logits, part, log_q.exp_().sub_(p))
        yield kl, slope


class Sums:
    """Sums over tokens, float64 on the CPU: what the regression and the scale of each feature are made from.

    Args:
        sites, width: how many streams, of which width.
        full: also products of features, for the regression; else only their squares.
    """

    def __init__(self, sites: int, width: int, full: bool) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64)

        self.full = full
        self.sums = {"count": zeros(), "size": zeros(), "x": zeros(sites, width), "y": zeros(width)}
        self.sums["xx"] = zeros(sites, width, width) if full else zeros(sites, width)
        if full:
            self.sums["xy"] = zeros(sites, width, width)

    @staticmethod
    def nbytes(sites: int, width: int, full: bool) -> int:
        """Bytes that the sums take."""
        return 8 * sites * width * (2 * width if full else 1)

    def add(self, x: Tensor, final: Tensor) -> None:
        """Add streams `[site, token, d_model]` and the last layer's `[token, d_model]`.

        The last layer's are divided by their size (root mean square), which its norm does too.
        """
        size = final.pow(2).mean(-1, keepdim=True).sqrt()
        y = final / size
        new = {"count": torch.tensor(len(y)), "size": size.sum(), "x": x.sum(1), "y": y.sum(0)}
        new["xx"] = x.mT @ x if self.full else x.pow(2).sum(1)
        if self.full:
            new["xy"] = x.mT @ y
        for name, value in new.items():
            self.sums[name] += value.cpu().double()

    def start(self, rank: int | None, device: torch.device) -> Descent:
        """The maps to descend from: the regression's, or none that changes anything."""
        n = self.sums["count"]
        mean, mean_y = self.sums["x"] / n, self.sums["y"] / n
        second = self.sums["xx"] / n
        variance = (second.diagonal(dim1=1, dim2=2) if self.full else second) - mean.pow(2)
        spread = variance.mean(1, keepdim=True).sqrt()
        deviation = torch.maximum(variance.clamp(min=0).sqrt(), 1e-3 * spread)
        sites, width = mean.shape
        if not self.full:
            factors = (
                [torch.zeros(sites, width, width)]
                if rank is None
                else [torch.randn(sites, width, rank) / width**0.5, torch.zeros(sites, rank, width)]
            )
            return Descent(mean, deviation, spread, factors, torch.zeros(sites, width), device)
        unit = (self.sums["size"] / n).expand(sites, 1)
        scale = deviation[:, :, None]
        correlation = (second - mean[:, :, None] * mean[:, None, :]) / scale / scale.mT
        cross = (self.sums["xy"] / n - mean[:, :, None] * mean_y) / scale
        penalty = RIDGE * torch.eye(width, dtype=torch.float64)
        # What is fitted is the target; what is kept is its difference from the stream itself.
        full = torch.linalg.solve(correlation + penalty, cross) - torch.diag_embed(deviation) / unit[:, :, None]
        bias = mean_y - mean / unit
        if rank is None:
            return Descent(mean, deviation, unit, [full], bias, device)
        # The best map of this rank: project what the full one says onto its principal directions.
        directions = torch.linalg.eigh(full.mT @ correlation @ full).eigenvectors[:, :, -rank:]
        return Descent(mean, deviation, unit, [full @ directions, directions.mT], bias, device)


class Descent:
    """Standardized maps and their optimizer.

    Args:
        mean, deviation: of each feature, `[site, d_model]`. unit: of each site, `[site, 1]`.
        factors: `[site, d_model, d_model]`, or two of a lower rank. bias: `[site, d_model]`.
    """

    def __init__(
        self,
        mean: Tensor,
        deviation: Tensor,
        unit: Tensor,
        factors: Sequence[Tensor],
        bias: Tensor,
        device: torch.device | str,
    ) -> None:
        self.mean, self.deviation, self.unit = (t.to(device, torch.float32) for t in (mean, deviation, unit))
        # One leaf per site: the gradient of a slice would be as large as the whole. Contiguous, as they come back from
        # a file: a product of another layout rounds differently.
        self.maps = [
            [
                t.to(device, torch.float32).clone(memory_format=torch.contiguous_format).requires_grad_(True)
                for t in site
            ]
            for site in zip(*factors, bias)
        ]
        self.adam = torch.optim.Adam([t for site in self.maps for t in site], betas=_BETAS)

    def translate(self, site: int, x: Tensor) -> Tensor:
        """A site's streams `[token, d_model]` in the last layer's coordinates."""
        *factors, bias = self.maps[site]
        z = (x - self.mean[site]) / self.deviation[site]
        for factor in factors:
            z = z @ factor
        return x + self.unit[site] * (z + bias)

    def step(self, x: Tensor, final: Tensor, readout: Readout, lr: float) -> float:
        """Descend once on the mean KL of streams `[site, token, d_model]`; returns it, in nats."""
        self.adam.zero_grad()
        total = 0.0
        for site, streams in enumerate(x):
            translated = self.translate(site, streams)
            values, slope = divergence_and_slope(readout, translated, final)
            translated.backward(slope / len(streams))
            total += float(values.mean())
        self.adam.param_groups[0]["lr"] = lr
        self.adam.step()
        return total / len(x)

    def translators(self) -> Iterator[Translator]:
        """The maps as they apply to the streams themselves."""
        for i, (*factors, bias) in enumerate(self.maps):
            first, *rest = [factor.detach() for factor in factors]
            offset = self.mean[i] / self.deviation[i] @ first
            first = first / self.deviation[i][:, None] * (1.0 if rest else self.unit[i])
            rest = [factor * self.unit[i] for factor in rest]
            for factor in factors[1:]:
                offset = offset @ factor.detach()
            yield Translator((first, *rest), self.unit[i] * (bias.detach() - offset))

    def state_dict(self) -> dict[str, Any]:
        """Everything, as tensors."""
        *factors, bias = ([site[k].detach() for site in self.maps] for k in range(len(self.maps[0])))
        return {
            "mean": self.mean, "deviation": self.deviation, "unit": self.unit,
            "factors": [torch.stack(f) for f in factors], "bias": torch.stack(bias), "adam": self.adam.state_dict(),
        }  # fmt: skip

    @classmethod
    def of(cls, state: Mapping[str, Any], device: torch.device) -> Descent:
        """What `state_dict` described."""
        found = cls(**{k: state[k] for k in ("mean", "deviation", "unit", "factors", "bias")}, device=device)
        found.adam.load_state_dict(state["adam"])
        return found
