"""Activations whose features are known: a sparse sum of planted directions, with the codes that made each row.

A row is ``x = codes @ features + bias + noise``; the codes are zero or positive. Whatever a dictionary method claims to
find can be checked against `features` and `batch(i)`. Batch i is a function of the seed and i alone, so the stream is
endless, any batch can be asked for by itself, and going back to a position is exact and free.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from scipy.special import ndtri
from torch import Tensor

from mechanome.activations.activations import Activations
from mechanome.activations.planting import (
    conditional,
    directions,
    downwards,
    generator,
    offset,
    parents_of,
    power_law,
    square_root,
)
from mechanome.core.errors import BadInput, CorruptFile, UnknownName, nearest
from mechanome.engine.asked import count, seed_of
from mechanome.engine.plain import number

Draw = Callable[[np.random.Generator, int], np.ndarray]
"""A generator and a count to that many values."""

VALUES: dict[str, Draw] = {
    "constant": lambda rng, n: np.ones(n),
    "uniform": lambda rng, n: rng.uniform(0.5, 1.5, n),
    "folded": lambda rng, n: np.abs(rng.normal(1.0, 0.3, n)),
    "exponential": lambda rng, n: rng.exponential(1.0, n),
    "lognormal": lambda rng, n: rng.lognormal(-0.125, 0.5, n),
}
"""How strong a feature is where it is active; every distribution has mean 1 (``folded``, |N(1, 0.3)|, to 1e-4)."""


class PlantedFeatures:
    """An endless stream of activations with known features.

    Args:
        n_features: how many features.
        d: width of the activations.
        active: features active in a row, on average.
        decay: frequencies follow ``rank ** -decay``; 0 makes all features equally frequent. Where the power law would
            pass 1 the feature is always active, and the rest is scaled so that the average stays ``active``.
        frequencies: ``[feature]`` probabilities of being active; replaces ``active`` and ``decay``.
        exact: every row has exactly ``active`` features, drawn one after another without replacement with weights
            ``frequencies`` (which then are weights, not probabilities).
        values: a name of `VALUES`, or a function of a numpy generator and a count.
        correlation: ``[feature, feature]`` correlations of the normal variables that decide who is active (a Gaussian
            copula: it changes who is active together and leaves every frequency as it is).
        hierarchy: child -> parent: a child is active only where its parent is, with its frequency kept.
        noise: standard deviation of Gaussian noise on each coordinate.
        bias: a vector ``[d]``, or the norm of a random one.
        features: directions ``[feature, d]``, used as they are; or "random" (unit) or "orthogonal" (unit).
        batch: rows in a batch.
        seed: of features, bias and every batch.
        site: the name under which rows are yielded.

    Attributes:
        features: ``[feature, d]``, fp32. bias: ``[d]``, fp32. frequencies: ``[feature]``, float64.

    Raises:
        BadInput: counts that do not fit, probabilities outside 0 to 1, a child more frequent than its parent, a
            correlation that is none. ShapeMismatch: arrays of another width. UnknownName: no such values.
    """

    rows: int | None = None

    def __init__(
        self,
        n_features: int,
        d: int,
        *,
        active: float = 4.0,
        decay: float = 0.0,
        frequencies: Any = None,
        exact: bool = False,
        values: str | Draw = "uniform",
        correlation: Any = None,
        hierarchy: Mapping[int, int] | None = None,
        noise: float = 0.0,
        bias: float | Tensor | Sequence[float] = 0.0,
        features: Literal["random", "orthogonal"] | Tensor = "random",
        batch: int = 4096,
        seed: int = 0,
        site: str = "planted",
    ) -> None:
        n_features, d, batch = count("n_features", n_features), count("d", d), count("batch", batch)
        seed = seed_of(seed)
        if not 0 <= number(noise, "noise") < math.inf:
            raise BadInput("planted features", f"noise {noise}", "give a finite number from 0 on")
        if isinstance(values, str) and values not in VALUES:
            raise UnknownName(f"values {values!r}", "no such distribution", nearest(values, VALUES))
        self.n_features, self.d, self.batch_rows, self.seed, self.noise = n_features, d, batch, seed, float(noise)
        self.exact = int(active) if exact else 0
        self.values = values
        self.frequencies = torch.from_numpy(power_law(n_features, active, decay, frequencies))
        self.features = directions(n_features, d, features, seed)
        self.bias = offset(d, bias, seed)
        self._parents = parents_of(hierarchy or {}, self.frequencies.numpy())
        self._factor = None if correlation is None else square_root(correlation, n_features, self._parents)
        self._check_exact(exact, active)
        self._site, self._next = site, 0
        self.sites: tuple[str, ...] = (site,)
        self.widths: dict[str, int] = {site: d}

    def batch(self, index: int) -> tuple[Tensor, Tensor]:
        """Batch number ``index``, whatever the position of the stream.

        Returns:
            x: activations ``[row, d]``, fp32. codes: ``[row, feature]``, fp32, zero where a feature is not active.

        Raises:
            BadInput: the index is below 0.
        """
        if index < 0:
            raise BadInput("batch", f"there is none of number {index}", "count from 0")
        rng = generator(self.seed, "batch", index)
        on = self._exact_draw(rng) if self.exact else self._active(rng)
        codes = np.zeros(on.shape, dtype=np.float32)
        n = int(on.sum())
        strength = np.asarray((VALUES[self.values] if isinstance(self.values, str) else self.values)(rng, n))
        if strength.shape != (n,) or not np.all(np.isfinite(strength)) or np.any(strength < 0):
            raise BadInput("values", "the function does not return that many numbers from 0 on", "return one a place")
        codes[on] = strength
        _, active = np.nonzero(on)  # row by row, as the strengths are
        starts = np.concatenate([[0], np.cumsum(on.sum(1))[:-1]])
        x = F.embedding_bag(  # the product with the sparse codes, at the price of the active ones
            torch.from_numpy(active),
            self.features,
            torch.from_numpy(starts),
            mode="sum",
            per_sample_weights=torch.from_numpy(codes[on]),
        )
        x += self.bias
        if self.noise:
            x += torch.from_numpy(rng.standard_normal(x.shape, dtype=np.float32)) * self.noise
        return x, torch.from_numpy(codes)

    def __iter__(self) -> Iterator[Activations]:
        """Batches from the present position on, for ever; the label ``row`` counts rows of the whole stream."""
        while True:
            index, self._next = self._next, self._next + 1
            first = index * self.batch_rows
            rows = torch.arange(first, first + self.batch_rows)
            yield Activations({self._site: self.batch(index)[0]}, {"row": rows})

    def state(self) -> dict[str, Any]:
        """The position of the next batch, with the fingerprint of what makes the batches."""
        return {"recipe": self.fingerprint, "batch": self._next}

    def seek(self, state: Mapping[str, Any]) -> None:
        """Go to a position.

        Raises:
            CorruptFile: it is no position. BadInput: it is a position in other planted features.
        """
        if set(state) != {"recipe", "batch"} or not isinstance(state["batch"], int) or state["batch"] < 0:
            raise CorruptFile("stream position", f"it holds {sorted(state)}", "use a position of the same stream")
        if state["recipe"] != self.fingerprint:
            raise BadInput("stream position", "it belongs to other planted features", "use the same settings")
        self._next = state["batch"]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that batches are made from (a function given as ``values`` counts by its name)."""
        named = self.values if isinstance(self.values, str) else getattr(self.values, "__qualname__", "function")
        digest = hashlib.sha256(json.dumps([self.seed, self.batch_rows, self.noise, self.exact, named]).encode())
        factor = np.zeros(0) if self._factor is None else self._factor
        for array in (self.features.numpy(), self.bias.numpy(), self.frequencies.numpy(), factor, self._parents):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def _active(self, rng: np.random.Generator) -> np.ndarray:
        """Who is active, ``[row, feature]`` bool: each by itself, together by the copula, or below a parent."""
        shape = (self.batch_rows, self.n_features)
        own = conditional(self.frequencies.numpy(), self._parents)
        if self._factor is None:
            on = rng.random(shape) < own
        else:
            on = rng.standard_normal(shape) @ self._factor.T < ndtri(own)
        for child in downwards(self._parents):
            on[:, child] &= on[:, self._parents[child]]
        return on

    def _exact_draw(self, rng: np.random.Generator) -> np.ndarray:
        """Exactly so many in each row: the largest of log weight + Gumbel noise is a draw without replacement."""
        shape = (self.batch_rows, self.n_features)
        with np.errstate(divide="ignore"):
            keys = np.log(self.frequencies.numpy()) + rng.gumbel(size=shape)
        chosen = np.argpartition(-keys, self.exact - 1, axis=1)[:, : self.exact]
        on = np.zeros(shape, dtype=bool)
        np.put_along_axis(on, chosen, True, axis=1)
        return on

    def _check_exact(self, exact: bool, active: float) -> None:
        if not exact:
            return
        possible = int((self.frequencies > 0).sum())
        if active != int(active) or not 1 <= active <= possible:
            raise BadInput("active", f"{active} of {possible} features cannot be exact", "give a whole number of them")
        if self._factor is not None or (self._parents >= 0).any():
            why = "an exact count leaves no room for correlation or hierarchy"
            raise BadInput("exact", why, "leave exact out, or the other two")
