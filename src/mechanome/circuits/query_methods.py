"""Ways to find the circuit of a query: who proposes circuits, and how the winners become a circuit of any size.

A circuit of `n` edges is the first `n` of a ranking. Matrices of scores propose rankings, of the query itself and of
samples of its behavior; at each *anchor*, a size at which all are run, the one with the largest NDF on the query wins.

| method | rankings | a circuit of n edges |
|---|---|---|
| `single` | the query's scores | its top n |
| `averaging` | the mean of all scores | its top n |
| `best-of-n` | the query's and each sample's | the winner's top n |
| `best-of-n-csm` | the same | one ranking for all n: the first anchor's winner, what the second one's adds, and so on |
| `interpolated` | the same | as before, of the two anchors around n only |
| `gaussian` | the query's, and with normal noise on it | the winner's top n |
| `edge-replacement` | the query's, and with random edges in place of a share of its own | the winner's top n |
| `random` | random ones | the winner's top n |

The last three are controls: they choose among as many circuits and know nothing of samples. Source: query circuits,
arXiv 2509.24808 (BoN, BoN-CSM, iBoN, BoN-GP, BoN-ER).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.circuits.circuit import Circuit
from mechanome.circuits.effects import Components
from mechanome.circuits.graph import Graph
from mechanome.circuits.score_matrix import Scores
from mechanome.engine.asked import seed_of


@dataclass(frozen=True, eq=False)
class Ranking:
    """Edges in order.

    Args:
        name: who proposes it.
        order: numbers of the graph's edges (as `graph.mask` lists them), the best first.
        replaced: share of the first n that random edges from behind them stand in for. seed: of their draw.
    """

    name: str
    order: Tensor = field(repr=False)
    replaced: float = 0.0
    seed: int = 0

    @classmethod
    def of(cls, name: str, values: Tensor, replaced: float = 0.0, seed: int = 0) -> Ranking:
        """By the size of scores `[edge]`; of equal ones the first comes first."""
        return cls(name, values.abs().argsort(descending=True, stable=True), replaced, seed)

    def top(self, n: int) -> Tensor:
        """The first n edges, `[n]`."""
        few = min(round(self.replaced * n), len(self.order) - n)
        if few < 1:
            return self.order[:n]
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + n)
        out = torch.randperm(n, generator=generator)[:few]
        put = n + torch.randperm(len(self.order) - n, generator=generator)[:few]
        chosen = self.order[:n].clone()
        chosen[out] = self.order[put]
        return chosen


@dataclass(frozen=True)
class Draw:
    """What proposals are drawn from.

    Args:
        scores: of the query, then of each sample.
        count: how many a control draws beside the query's own.
        strength: of a control.
        seed: of its draws.
    """

    scores: Sequence[Scores]
    count: int
    strength: float
    seed: int

    def __post_init__(self) -> None:
        seed_of(self.seed)

    def edges(self, number: int = 0) -> Tensor:
        """The scores of one input, `[edge]`."""
        found = self.scores[number]
        return found.edge_values()[found.graph.mask].float()

    def generator(self, number: int) -> torch.Generator:
        """Of one drawn proposal."""
        return torch.Generator().manual_seed(self.seed * 1_000_003 + number)


def _own(draw: Draw) -> list[Ranking]:
    return [Ranking.of("query", draw.edges())]


def _mean(draw: Draw) -> list[Ranking]:
    mean = torch.stack([draw.edges(i) for i in range(len(draw.scores))]).mean(0)
    return [Ranking.of("mean", mean)]


def _each(draw: Draw) -> list[Ranking]:
    samples = range(1, len(draw.scores))
    return [*_own(draw), *(Ranking.of(f"sample {i}", draw.edges(i)) for i in samples)]


def _noisy(draw: Draw) -> list[Ranking]:
    values, found = draw.edges(), _own(draw)
    for i in range(draw.count):
        noise = torch.randn(len(values), generator=draw.generator(i)) * draw.strength
        found.append(Ranking.of(f"noise {i + 1}", values + noise))
    return found


def _replaced(draw: Draw) -> list[Ranking]:
    values = draw.edges()
    seeds = ((i, draw.seed * 1_009 + i) for i in range(draw.count))
    return [*_own(draw), *(Ranking.of(f"replacement {i + 1}", values, draw.strength, seed) for i, seed in seeds)]


def _random(draw: Draw) -> list[Ranking]:
    n = len(draw.edges())
    return [Ranking(f"random {i + 1}", torch.randperm(n, generator=draw.generator(i))) for i in range(draw.count + 1)]


Tiers = Sequence[Tensor]
"""What the winner of each anchor proposes there, numbers of edges, the best first."""


def _winner(tiers: Tiers, anchors: Sequence[int], n: int) -> Tensor:
    return tiers[anchors.index(n)]


def _every_tier(tiers: Tiers, anchors: Sequence[int], n: int) -> Tensor:
    return merged(tiers)[:n]


def _next_tiers(tiers: Tiers, anchors: Sequence[int], n: int) -> Tensor:
    above = next(i for i, anchor in enumerate(anchors) if anchor >= n)
    exact = anchors[above] == n
    return merged(tiers[above if exact else max(above - 1, 0) : above + 1])[:n]


def merged(tiers: Tiers) -> Tensor:
    """One ranking of several: the first, then what each following one adds, in its order."""
    seen = dict.fromkeys(edge for tier in tiers for edge in tier.tolist())
    return torch.tensor(list(seen))


@dataclass(frozen=True)
class QueryMethod:
    """One way to find the circuit of a query.

    Args:
        definition: in one clause.
        propose: rankings to choose from.
        circuit: from what winners propose at anchors, and a size, to the edges of a circuit.
        samples: whether samples matter.
        between: whether circuits are defined at sizes that are no anchors.
        strength: of a control, where none is given; None for what is no control or has no strength.
        unit: what that strength is. most: what it stays below.
    """

    definition: str
    propose: Callable[[Draw], list[Ranking]]
    circuit: Callable[[Tiers, Sequence[int], int], Tensor] = _winner
    samples: bool = False
    between: bool = False
    strength: float | None = None
    unit: str = ""
    most: float = math.inf


QUERY_METHODS: dict[str, QueryMethod] = {
    "single": QueryMethod("the query's own scores", _own),
    "averaging": QueryMethod("the mean of the scores of query and samples", _mean, samples=True),
    "best-of-n": QueryMethod("at each size the best of the circuits of query and samples", _each, samples=True),
    "best-of-n-csm": QueryMethod("one ranking, filled by the winners of one size after another", _each, _every_tier,
                                 samples=True, between=True),
    "interpolated": QueryMethod("between two sizes, the winner of the smaller filled up by that of the larger", _each,
                                _next_tiers, samples=True, between=True),
    "gaussian": QueryMethod("control: the best of the query's scores with noise", _noisy, strength=1e-3,
                            unit="standard deviation of the noise, in units of the metric"),
    "edge-replacement": QueryMethod("control: the best of the query's circuit with random edges in it", _replaced,
                                    strength=0.1, unit="share of edges that are replaced", most=1.0),
    "random": QueryMethod("control: the best of random circuits", _random),
}  # fmt: skip


def circuit_of(graph: Graph, edges: Tensor) -> Circuit:
    """The circuit of some edges by number."""
    flat = torch.zeros(graph.n_edges, dtype=torch.bool)
    flat[edges] = True
    return Circuit(graph, Components(graph.mask, graph).placed(flat))
