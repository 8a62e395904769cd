"""Paper 42 where the answer is known: planted features that also act in pairs, and dictionaries fitted to them.

A row is `codes @ features + g ((codes @ mixing) ** 2) @ outs.T + noise`. Features i and j, active together, add
`2 g outs (mixing_i * mixing_j)`, a vector that neither owns: its length is the true interaction of the pair.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanome.activations import PlantedFeatures
from mechanome.activations.planting import generator
from mechanome.dictionaries import PolynomialAutoencoder, PolySAE, SparseAutoencoder, SparseCodes, TopK, fit
from mechanome.dictionaries.metrics import fvu, match
from mechanome.studies.papers.polysae import Settings

HELD_OUT = 10**6
"""Number of the first batch that no fit sees."""


class InteractingFeatures(PlantedFeatures):
    """Planted features with planted interactions of low rank; arguments as `PlantedFeatures`.

    Args:
        rank: columns of the mixing.
        share: mean length of the interactions over mean length of the linear part.

    Attributes:
        mixing: `[feature, rank]`, orthonormal columns. outs: `[d, rank]`, unit columns. gain: g.
    """

    def __init__(self, n_features: int, d: int, *, rank: int = 8, share: float = 0.5, **options: Any) -> None:
        super().__init__(n_features, d, **options)
        rng = generator(self.seed, "interactions")
        outs = rng.standard_normal((d, rank))
        self.mixing = torch.from_numpy(np.linalg.qr(rng.standard_normal((n_features, rank)))[0]).float()
        self.outs = torch.from_numpy(outs / np.linalg.norm(outs, axis=0)).float()
        self.gain = 1.0
        codes = super().batch(HELD_OUT)[1]
        linear, more = (part.norm(dim=1).mean() for part in (codes @ self.features, self.interactions(codes)))
        self.gain = share * float(linear / more)

    def interactions(self, codes: Tensor) -> Tensor:
        """The part of each row that is not linear in its code, `[row, d]`, from codes `[row, feature]`."""
        return self.gain * (codes @ self.mixing).square() @ self.outs.T

    def batch(self, index: int) -> tuple[Tensor, Tensor]:
        """As `PlantedFeatures.batch`, interactions included."""
        x, codes = super().batch(index)
        return x + self.interactions(codes), codes

    def pair_lengths(self, pairs: Tensor) -> Tensor:
        """True interaction of pairs of different features `[pair, 2]`: `[pair]`."""
        product = self.mixing[pairs[:, 0]] * self.mixing[pairs[:, 1]]
        return (2 * self.gain * product @ self.outs.T).norm(dim=1)

    @property
    def fingerprint(self) -> str:
        """Of all that batches are made from."""
        return sha256(json.dumps([super().fingerprint, self.outs.shape[1], self.gain]).encode()).hexdigest()


def planted(seed: int, size: Settings) -> dict[str, Any]:
    """Fit every dictionary to planted interactions, and look at pairs.

    Args:
        seed: of features, batches and starting weights. size: the sizes.

    Returns:
        per dictionary (names of `ARMS`) what `_scores` returns, and for "poly" the `share` of its interactions.
    """
    stream = InteractingFeatures(
        size.features, size.d, active=size.k, decay=0.7, exact=True, values="folded", noise=0.02,
        batch=size.batch, seed=seed,
    )  # fmt: skip
    ranks = size.ranks
    recipes = {
        "sae": TopK(size.width, k=size.k),
        "wide": TopK(size.wide, k=size.k),
        "linear": PolySAE(size.width, k=size.k, order=1, ranks=ranks[:1]),
        "poly": PolySAE(size.width, k=size.k, order=len(ranks), ranks=ranks, power_rate=size.power_rate),
    }
    fits = fit(
        list(recipes.values()), stream, steps=size.steps, lr=size.rate, warmup=0.02, decay=0.3, normalize=size.norm,
        seed=seed, quiet=True,
    )  # fmt: skip
    assert isinstance(fits, list)
    batches = [stream.batch(HELD_OUT + 1 + i)[0] for i in range(size.held_out)]
    rows = torch.cat(batches)
    return {name: _scores(done.dictionary, stream, rows) for name, done in zip(recipes, fits)}


@torch.no_grad()
def _scores(dictionary: SparseAutoencoder, stream: InteractingFeatures, x: Tensor) -> dict[str, Any]:
    """How well a dictionary does on held-out rows `[row, d]`, and what it says of pairs of features.

    Returns:
        fvu; found: how many features have an atom of cosine 0.9 or more; compounds: see `compounds`; pairs: see
        `pairs`; share: of the interactions, where it has any.
    """
    codes = dictionary.encode(x)
    matched = match(stream.features, dictionary.atoms())
    of_pairs = pairs(dictionary, stream, codes, matched.first, matched.second, matched.cosine)
    found = {
        "fvu": fvu(x, dictionary.decode(codes)),
        "found": int((matched.cosine >= 0.9).sum()),
        "compounds": compounds(dictionary, stream, of_pairs),
        "pairs": of_pairs,
    }
    if isinstance(dictionary, PolynomialAutoencoder):
        found["share"] = dictionary.interaction_share(codes)
    return found


@torch.no_grad()
def pairs(
    dictionary: SparseAutoencoder,
    stream: InteractingFeatures,
    codes: SparseCodes,
    features: Tensor,
    latents: Tensor,
    cosine: Tensor,
) -> dict[str, Tensor]:
    """Every pair of features whose atoms are matched and active together in some row.

    Args:
        dictionary: the dictionary. stream: what it was fitted to. codes: of held-out rows.
        features, latents, cosine: the match, `[matched]` each; pairs need a cosine of `MATCHED` on both sides.

    Returns:
        `[pair]` each: first, second (latents), first_feature, second_feature; truth: the planted interaction; together:
        in how many rows both are active; covariance: of the two codes, its size; at_first, at_second: mean values where
        active; strength: length of the pair atom at these values (0 for dictionaries without interactions).
    """
    good = cosine >= MATCHED
    features, latents = features[good], latents[good]
    a, b = torch.triu_indices(len(features), len(features), 1)
    i, j = latents[a], latents[b]
    z = codes.dense().double()
    on = (z > 0).double()
    together = (on.T @ on)[i, j]
    both = together > 0
    a, b, i, j, together = (part[both] for part in (a, b, i, j, together))
    mean = z.sum(0) / on.sum(0).clamp_min(1)
    atoms = torch.stack([i, j], dim=1)
    strength = torch.zeros(len(i), dtype=torch.float64)
    if isinstance(dictionary, PolynomialAutoencoder):
        strength = dictionary.interaction_strength(atoms).double() * mean[i] * mean[j]
    return {
        "first": i,
        "second": j,
        "first_feature": features[a],
        "second_feature": features[b],
        "truth": stream.pair_lengths(torch.stack([features[a], features[b]], dim=1)).double(),
        "together": together,
        "covariance": torch.cov(z.T)[i, j].abs(),
        "at_first": mean[i],
        "at_second": mean[j],
        "strength": strength,
    }


@torch.no_grad()
def compounds(
    dictionary: SparseAutoencoder, stream: InteractingFeatures, of: Mapping[str, Tensor], most: int = 100
) -> float:
    """Whether two latents together write what two features together are: mean cosine over the pairs that interact most.

    Args:
        dictionary: the dictionary. stream: what it was fitted to. of: as `pairs` returns it. most: so many pairs.
    """
    top = of["truth"].argsort(descending=True)[:most]
    if not len(top):
        return float("nan")
    latents = torch.stack([of["first"], of["second"]], dim=1)[top]
    values = torch.stack([of["at_first"], of["at_second"]], dim=1)[top].float()
    planted = torch.zeros(len(top), stream.n_features)
    planted[torch.arange(len(top))[:, None], torch.stack([of["first_feature"], of["second_feature"]], 1)[top]] = 1.0
    truth = planted @ stream.features + stream.interactions(planted)
    made = dictionary.decode(SparseCodes.of_topk(latents, values, dictionary.spec.width)) - _rest(dictionary)
    return float(torch.nn.functional.cosine_similarity(made, truth, dim=1).double().mean())


def _rest(dictionary: SparseAutoencoder) -> Tensor:
    """What a dictionary writes when nothing is active, `[1, d]`."""
    return dictionary.decode(SparseCodes.of_dense(torch.zeros(1, dictionary.spec.width)))


MATCHED = 0.7
"""Cosine from which an atom stands for a feature."""
