"""A toy in which features are known: they share a space too small for them, and a head must attend by some of them.

Paper 28 (Franco, Loughridge & Crovella 2026). N sparse features f are written into D < N dimensions, r = f W, and read
back by ReLU(r W^T + b). A head attends among keys by l_j = r Omega s_j, Omega = W_Q W_K^T of rank H. It should attend
as a template says: pairs of features (i on the query, j on the key) with strengths. Both losses are minimized together;
then one asks whether the singular vectors of Omega are the features of the template.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from mechanome.circuits.native.weight_units import WeightUnits, random_rotation
from mechanome.core import BadInput, Parts, fit, seeded

_SMALL = 0.3
"""Scale of a head's first weights: what is left of large ones would crowd the spectrum of Omega."""

Pair = tuple[int, int, float]
"""Feature on the query, feature on the key, strength."""


@dataclass(frozen=True)
class KnownFeatures:
    """The toy's settings.

    Args:
        features: N. width: D, of the space they share. d_head: H.
        pairs: the template.
        absent: chance that a feature is 0; else it is uniform in [0, 1].
        weight: of the attention loss beside the reconstruction loss; 0 trains no head.
        sharpness: what the template's logits are multiplied by.
        keys: tokens that the head chooses among.
        steps, batch, lr: of Adam.

    Raises:
        BadInput: a template with features that do not exist, or sizes that make no sense.
    """

    features: int = 20
    width: int = 10
    d_head: int = 10
    pairs: tuple[Pair, ...] = ((0, 1, 1.0),)
    absent: float = 0.9
    weight: float = 1.0
    sharpness: float = 5.0
    keys: int = 8
    steps: int = 4000
    batch: int = 256
    lr: float = 1e-3

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", tuple((int(i), int(j), float(s)) for i, j, s in self.pairs))
        sizes = (self.features, self.width, self.d_head, self.keys - 1, self.steps, self.batch)
        if min(sizes) < 1 or self.d_head > self.width or not 0 <= self.absent < 1:
            raise BadInput(f"{self}", "its sizes make no toy", "use d_head <= width, two keys or more, absent below 1")
        if not self.pairs or any(not 0 <= x < self.features for i, j, _ in self.pairs for x in (i, j)):
            raise BadInput("pairs", f"they name features outside 0 to {self.features - 1}", "name others")

    @classmethod
    def graded(cls, pairs: int, **settings: object) -> KnownFeatures:
        """A template of disjoint pairs with strengths from 1 up in steps of 0.2."""
        template = tuple((2 * p, 2 * p + 1, 1.0 + 0.2 * p) for p in range(pairs))
        return cls(pairs=template, **settings)  # type: ignore[arg-type]


class _Toy(nn.Module):
    def __init__(self, size: KnownFeatures) -> None:
        super().__init__()
        self.written = nn.Parameter(torch.randn(size.features, size.width) / size.width**0.5)
        self.bias = nn.Parameter(torch.zeros(size.features))
        self.query = nn.Parameter(_SMALL * torch.randn(size.width, size.d_head) / size.width**0.5)
        self.key = nn.Parameter(_SMALL * torch.randn(size.width, size.d_head) / size.width**0.5)


@dataclass(frozen=True, eq=False)
class TrainedToy:
    """A trained toy.

    Args:
        settings: its own.
        written: the features as directions, `[feature, width]`.
        query, key: W_Q and W_K, `[width, d_head]`.
        reconstruction, attention: last losses.
    """

    settings: KnownFeatures
    written: Tensor = field(repr=False)
    query: Tensor = field(repr=False)
    key: Tensor = field(repr=False)
    reconstruction: float
    attention: float

    def units(self) -> WeightUnits:
        """Units of Omega = W_Q W_K^T, float64."""
        return WeightUnits.svd_of_product(self.query.double(), self.key.double().T)

    def alignment(self, units: WeightUnits | None = None, *, apart: bool = False) -> Alignment:
        """How well units match the template's features.

        Args:
            units: those of Omega, or others of the same width.
            apart: give each pair a unit of its own (the assignment with the largest sum of cosines). Without it each
                pair has the unit that fits it best: pairs whose features are opposite directions can share one, because
                two signs cancel.
        """
        found = self.units() if units is None else units
        lengths = self.written.double().norm(dim=1, keepdim=True).clamp(min=1e-12)
        features = self.written.double() / lengths
        first = (features[[i for i, _, _ in self.settings.pairs]] @ found.left.T).abs()
        second = (features[[j for _, j, _ in self.settings.pairs]] @ found.right.T).abs()
        rows, columns = torch.arange(len(first)), (first + second).argmax(1)
        if apart:
            rows, columns = (torch.as_tensor(x) for x in linear_sum_assignment(-(first + second).numpy()))
        strengths = torch.tensor([s for _, _, s in self.settings.pairs], dtype=torch.float64)[rows]
        return Alignment(first[rows, columns], second[rows, columns], found.values[columns], strengths, columns)

    def chance(self, seed: int = 0) -> Alignment:
        """The alignment with random orthonormal directions in place of the singular vectors."""
        turns = [random_rotation(self.settings.width, 2 * seed + i, torch.float64) for i in range(2)]
        d_head = self.settings.d_head
        return self.alignment(WeightUnits(turns[0][:d_head], self.units().values, turns[1][:d_head]))

    def crowding(self) -> float:
        """Mean |cos| between features of the template and all others."""
        unit = nn.functional.normalize(self.written.double(), dim=1)
        cosines = (unit @ unit.T).abs()
        attended = sorted({x for i, j, _ in self.settings.pairs for x in (i, j)})
        rest = [x for x in range(len(unit)) if x not in attended]
        return float(cosines[attended][:, rest].mean())


@dataclass(frozen=True)
class Alignment:
    """Template pairs and the units matched to them; see `TrainedToy.alignment`.

    Args:
        query, key: |cos| of each pair's features with its unit's two sides, `[pair]`.
        values: singular values of these units, `[pair]`. strengths: of the pairs, `[pair]`. units: which, `[pair]`.
    """

    query: Tensor
    key: Tensor
    values: Tensor
    strengths: Tensor
    units: Tensor

    @property
    def shared(self) -> float:
        """Share of pairs whose unit another pair has too."""
        units = self.units.tolist()
        return sum(units.count(unit) > 1 for unit in units) / len(units)

    @property
    def mean(self) -> float:
        """Mean |cos| over pairs and both sides."""
        return float(torch.cat([self.query, self.key]).mean())

    @property
    def worst(self) -> float:
        """Smallest |cos| of any pair and side."""
        return float(torch.cat([self.query, self.key]).min())


def train_known_features(settings: KnownFeatures, seed: int = 0, *, quiet: bool = True) -> TrainedToy:
    """Train the toy from a seed. Paper 28 (Franco, Loughridge & Crovella 2026).

    Args:
        settings: of the toy. seed: of initial weights and samples. quiet: no progress line.

    Raises:
        NotFinite: the fit diverged.
    """
    with seeded(seed):
        toy = _Toy(settings)
    optimizer = torch.optim.Adam(toy.parameters(), lr=settings.lr)
    generator = torch.Generator().manual_seed(seed)
    template = torch.zeros(settings.features, settings.features)
    for i, j, strength in settings.pairs:
        template[i, j] = strength

    def step(_: int) -> dict[str, Tensor]:
        shape = (settings.batch, 1 + settings.keys, settings.features)
        # One draw makes both: 0 with the chance `absent`, else uniform.
        f = torch.relu(torch.rand(shape, generator=generator) - settings.absent) / (1 - settings.absent)
        stream = f @ toy.written
        back = torch.relu(stream @ toy.written.T + toy.bias)
        reconstruction = (back - f).square().sum(-1).mean()
        query, keys = stream[:, 0] @ toy.query, stream[:, 1:] @ toy.key
        logits = torch.einsum("bd,bkd->bk", query, keys)
        wanted = settings.sharpness * torch.einsum("bi,ij,bkj->bk", f[:, 0], template, f[:, 1:])
        attention = nn.functional.cross_entropy(logits, wanted.softmax(-1))
        loss = reconstruction + settings.weight * attention
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return {"reconstruction": reconstruction, "attention": attention}

    done = fit(
        step,
        Parts(model=toy, optimizer=optimizer),
        steps=settings.steps,
        seed=seed,
        settings=asdict(settings),
        what="toy with known features",
        quiet=quiet,
    )
    written, query, key = (p.detach().clone() for p in (toy.written, toy.query, toy.key))
    return TrainedToy(settings, written, query, key, done.metrics["reconstruction"], done.metrics["attention"])
