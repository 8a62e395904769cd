"""The second part of paper 20's study: steering what state a city is in, through the neurons that say so."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.neurons import Fill, NodeCircuit, Nodes, NodeScores, attribute, steer
from mechanome.core import TooFewRows
from mechanome.engine import Logit, Model
from mechanome.studies.papers.neuron_circuits import SCALES, Settings
from mechanome.studies.papers.neuron_circuits.prompts import CITIES, ids_of

_LAST = 6
"""Positions that are steered: " is in the state of", and the last token of the city."""
_ALIKE = 20


def known(model: Model, cities: int) -> list[dict[str, Any]]:
    """The first cities whose state is the likeliest next token, one token long.

    Raises:
        TooFewRows: fewer than two.
    """
    found = []
    for city, state in CITIES:
        answer, ids = ids_of(model, f" {state}"), ids_of(model, f"{city} is in the state of")
        if len(answer) == 1 and len(ids) >= _LAST:
            logits = model.run([ids], logits="last").logits
            assert logits is not None
            if int(logits.flatten().argmax()) == answer[0]:
                found.append({"city": city, "state": state, "answer": answer[0], "ids": ids})
        if len(found) == cities:
            break
    if len(found) < 2:
        raise TooFewRows("cities", f"{model.name} knows the state of {len(found)}", "use another model")
    return found


def measure_facts(model: Model, size: Settings) -> dict[str, Any]:
    """Remove, scale and exchange the neurons that are specific to each city's state."""
    rows = known(model, size.cities)
    ids, answers = [row["ids"] for row in rows], torch.tensor([row["answer"] for row in rows])
    nodes = Nodes.of(model, ids, last=_LAST)
    found = attribute(nodes, ids, Logit(answers), per_input=True, quiet=True)
    fills = [Fill.means(nodes, [own]) for own in ids]
    own = [_specific(found, answers, i, size.steered) for i in range(len(rows))]
    alike = [[_alike(c, fill, draw) for draw in range(size.draws)] for c, fill in zip(own, fills)]
    scaled, random, clean = [], [], []
    for i, row in enumerate(ids):
        changes = {f"x{factor:g}": own[i].scale(factor) for factor in SCALES}
        changes |= {f"random {draw}": c.scale(0) for draw, c in enumerate(alike[i])}
        said = steer(nodes, [row], [int(answers[i])], changes, quiet=True)
        p = said.values[:, 0, 0]
        clean.append(said.clean[0, 0])
        scaled.append(p[: len(SCALES)])
        random.append(p[len(SCALES) :].mean())
    moved = steer(nodes, ids, answers, {str(i): own[i].set(fills[i]) for i in range(len(rows))}, quiet=True)
    control = steer(nodes, ids, answers, {str(i): alike[i][0].set(fills[i]) for i in range(len(rows))}, quiet=True)
    each = torch.arange(len(rows))
    return {
        "cities": [f"{row['city']} ({row['state']})" for row in rows],
        "answers": answers,
        "clean": torch.stack(clean),
        "scaled": torch.stack(scaled),
        "random": torch.stack(random),
        # From donor to prompt: the probability of the donor's state.
        "moved": moved.values[each, :, each],
        "moved-random": control.values[each, :, each],
        "before": moved.clean.T.contiguous(),
        "likeliest": moved.likeliest,
    }


def _specific(found: NodeScores, answers: Tensor, row: int, n: int) -> NodeCircuit:
    """The nodes that speak for this prompt's state by the most more than nodes do for other prompts' states."""
    assert found.each is not None
    others = found.each[answers != answers[row]].mean(0)
    return NodeCircuit.of(found.nodes, (found.each[row] - others).topk(n).indices.tolist())


def _alike(circuit: NodeCircuit, fill: Fill, seed: int) -> NodeCircuit:
    """As many other nodes: for each one of the same site and position, drawn among those as active on this prompt."""
    nodes, generator = circuit.nodes, torch.Generator().manual_seed(seed)
    size, taken = fill.flat().abs(), circuit.kept.clone()
    drawn = []
    for node in circuit:
        index, position, _ = nodes.where(node)
        start = nodes.index(nodes.sites[index].site, position, 0)
        there = slice(start, start + nodes.sites[index].size)
        apart = (size[there] - size[node]).abs().masked_fill(taken[there], float("inf"))
        near = apart.topk(_ALIKE, largest=False).indices
        chosen = start + int(near[torch.randint(_ALIKE, (1,), generator=generator)])
        taken[chosen] = True
        drawn.append(chosen)
    return NodeCircuit.of(nodes, drawn)
