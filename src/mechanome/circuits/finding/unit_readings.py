"""What units of MLPs read and write: read off the weights, and where they are on in the texts at hand.

A unit detects a pattern and writes a direction (Detector-Effector Units, paper 05). Of a neuron, the detector is its
gate's weight (without a gate, its input weight), the norm before it folded in, told as the tokens that lie along it; of
a singular unit, a pattern of neurons. The effector is what the unit adds to the stream, told as the tokens whose logits
it moves directly. Both are readings: that the model uses a unit is measured by replacing it
(`mechanome.circuits.finding.carriers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mechanome.circuits.graph import Graph
from mechanome.circuits.layers import Group
from mechanome.circuits.native import MLPUnits, UnitCard, Vocabulary, WeightUnits, unit_cards
from mechanome.circuits.native.cards import Scored
from mechanome.circuits.native.folding import Fold
from mechanome.core import NotServed
from mechanome.engine import Batch, Model

_WORDS = {"neurons": "neuron", "svd": "unit"}
"""What a unit is called, by a name of `UNITS`."""


@dataclass(frozen=True)
class UnitReading:
    """One unit, as its weights and the texts tell it.

    Args:
        source: its name in the graph, which is a site for a neuron: `mlp_act.17.n1005`.
        layer: of its MLP. index: its number there.
        detects: tokens, or neurons, that its detector responds to most, with scores; empty where it cannot be read.
        detector: what these are.
        card: what it writes and where it is on. Signs are turned so that it promotes what it moves most.
        turned: whether they are: it then promotes this where it is negative.
    """

    source: str
    layer: int
    index: int
    detects: Scored = field(repr=False)
    detector: str
    card: UnitCard = field(repr=False)
    turned: bool

    @property
    def short(self) -> str:
        """Such as `17.n1005`."""
        return self.source.rpartition("/")[2].partition(".")[2]


def readings(graph: Graph, sources: Sequence[int], texts: Batch, k: int = 5, quiet: bool = True) -> list[UnitReading]:
    """Read some units of a graph whose MLPs are cut into neurons or singular units.

    Args:
        graph: made by `graph_of`. sources: numbers of units. texts: where they are looked for.
        k: tokens on each side, and contexts. quiet: no progress line.

    Returns:
        one a source, in the order given.
    """
    found: dict[int, UnitReading] = {}
    for group in graph.writers:
        own = [i for i in sources if group.kind == "unit" and group.first <= i < group.first + group.count]
        if own:
            found |= zip(own, _of_layer(graph, group, [i - group.first for i in own], texts, k, quiet))
    return [found[i] for i in sources]


def _of_layer(
    graph: Graph, group: Group, numbers: list[int], texts: Batch, k: int, quiet: bool
) -> Iterator[UnitReading]:
    assert group.layer is not None
    model, layer = graph.opened(), group.layer
    own, places = _cut(graph, layer, numbers)
    part, kind = own[layer], own.how
    vocabulary = Vocabulary.of(model)
    scores = vocabulary.promoted(part.right[places])
    turns = scores.gather(1, scores.abs().argmax(1, keepdim=True))[:, 0].sign()
    if kind == "neurons":
        detector, lists = _of_tokens(graph, layer, numbers, vocabulary, k)
    else:
        detector, lists = "neurons", [_of_neurons(t * part.left[p], k) for t, p in zip(turns, places)]
    norms = _out(model, layer, graph.tower).norm(dim=1) if kind == "neurons" else None
    told = texts if max(texts.frame.lengths) > 1 else None  # the first token opens many gates, and is left out
    cards = unit_cards(own, layer, places, told, k, quiet=quiet)
    for number, card, turn, detects in zip(numbers, cards, turns.tolist(), lists):
        named = replace(
            card,
            name=f"{_WORDS[kind]} {number} of layer {layer}",
            rank=card.rank if norms is None else int((norms > norms[number]).sum()),
            determined=kind == "neurons" or card.determined,
        )
        yield UnitReading(graph.sources[group.first + number], layer, number, detects, detector, named, turn < 0)


def _cut(graph: Graph, layer: int, numbers: list[int]) -> tuple[MLPUnits, list[int]]:
    """Units of one layer with what they detect and write, and the places there of those asked for.

    Of neurons, which can be many and need no decomposition, only those asked for are made.
    """
    units, model = graph.layers[layer].units, graph.opened()
    assert units is not None and units.basis is not None
    out = _out(model, layer, graph.tower)
    neurons = units.neurons is not None
    wanted = numbers if neurons else list(range(units.count))
    coordinates = torch.zeros(len(wanted), units.count, device=out.device)
    coordinates[range(len(wanted)), wanted] = 1.0
    left = units.basis.decode(coordinates)
    written = left @ out
    values = written.norm(dim=1)
    part = WeightUnits(left, values, written / values.clamp(min=torch.finfo(written.dtype).tiny)[:, None])
    made = MLPUnits(model, {layer: part}, "write", "neurons" if neurons else "svd", graph.tower)
    return made, list(range(len(numbers))) if neurons else numbers


def _out(model: Model, layer: int, tower: str | None) -> Tensor:
    return model.weight(f"W_out.{layer}", tower).value.detach().float()


def _of_tokens(
    graph: Graph, layer: int, numbers: list[int], vocabulary: Vocabulary, k: int
) -> tuple[str, list[Scored]]:
    """Tokens along the gates of neurons, or along their inputs where there are no gates."""
    model, tower = graph.opened(), graph.tower
    try:
        try:
            weight, detector = model.weight(f"W_gate.{layer}", tower).value, "tokens that open its gate"
        except NotServed:
            weight, detector = model.weight(f"W_in.{layer}", tower).value, "tokens that it responds to"
        directions = Fold.of(model, layer, "mlp", tower).matrix(weight.detach().float())[:, numbers].T
        scores = vocabulary.along(directions)
    except NotServed as refusal:
        return f"not read: {refusal.why}", [() for _ in numbers]
    best = scores.topk(min(k, scores.shape[1]))
    rows = zip(best.indices.tolist(), best.values.tolist())
    return detector, [tuple(zip(vocabulary.tokens(ids), values)) for ids, values in rows]


def _of_neurons(pattern: Tensor, k: int) -> Scored:
    """The neurons with the largest weights in a detector `[neuron]`, by size."""
    best = pattern.abs().topk(min(k, len(pattern))).indices.tolist()
    return tuple((f"n{i}", float(pattern[i])) for i in best)
