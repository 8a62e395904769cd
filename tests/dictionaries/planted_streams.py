"""Small streams with known features: for autoencoders, transcoders, crosscoders and a polynomial."""

import torch

from mechanome.activations import ArrayActivations, PlantedFeatures

FEATURES, D, ACTIVE = 24, 20, 2
WIDTH = 32


def planted(batch=256, seed=0):
    """One site, endless."""
    return PlantedFeatures(FEATURES, D, active=ACTIVE, exact=True, bias=1.0, noise=0.01, batch=batch, seed=seed)


def two_sites(seed=0, rows=20_000, batch=256, skip=0.0):
    """Sites "a" and "b" that share codes, and their features.

    With `skip` the second has a linear map of the first, and only strong codes besides: a map could express all codes.
    """
    source = PlantedFeatures(FEATURES, D, active=ACTIVE, exact=True, noise=0.01, batch=rows, seed=seed)
    other = PlantedFeatures(FEATURES, D + 4, active=ACTIVE, exact=True, batch=1, seed=seed + 100)
    x, codes = source.batch(0)
    if skip:
        generator = torch.Generator().manual_seed(seed)
        y = 3 * (codes - 1).relu() @ other.features + skip * x @ torch.randn(D, D + 4, generator=generator)
    else:
        y = codes @ other.features + 0.5
    return ArrayActivations({"a": x, "b": y}, batch=batch, seed=seed), source.features, other.features


def recovery(features, atoms):
    """Mean over planted features of the largest cosine with an atom."""
    unit = torch.nn.functional.normalize
    return (unit(features, dim=1) @ unit(atoms, dim=1).T).max(1).values.mean().item()


def polynomial(seed=0, rows=20_000, batch=256, rank=8):
    """Rows whose codes also act in pairs, through `rank` squares; and the features."""
    source = PlantedFeatures(FEATURES, D, active=3, exact=True, values="folded", batch=rows, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    u = torch.linalg.qr(torch.randn(FEATURES, rank, generator=generator))[0]
    c = torch.nn.functional.normalize(torch.randn(D, rank, generator=generator), dim=0)
    x, codes = source.batch(0)
    pairs = (codes @ u) ** 2 @ c.T
    pairs *= 0.5 * x.norm(dim=1).mean() / pairs.norm(dim=1).mean()
    return ArrayActivations(x + pairs, batch=batch, seed=seed), source.features
