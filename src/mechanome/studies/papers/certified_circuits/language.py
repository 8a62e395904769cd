"""Circuits of heads and MLPs, plain and certified, of a language model on agreement."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from mechanome.circuits import Circuit, Graph, execute, scores
from mechanome.circuits.certification import certify, same_size
from mechanome.circuits.effects import Components, Effects
from mechanome.circuits.selecting import Select
from mechanome.core import TooFewRows
from mechanome.engine import Model
from mechanome.studies.papers.certified_circuits import Settings
from mechanome.tasks import Task, make

METHODS = ("certified", "plain", "same size")
KINDS = ("same", "held")
"""Prompts that circuits are run on: of the templates they were found on, and of others."""


def measured(model: Model, seed: int, size: Settings) -> dict[str, Any]:
    """Circuits of one seed's prompts.

    Returns:
        right: `[method, kind, share, prompt]` of booleans, prompts of each kind in turn; kept: nodes of each circuit,
        `[method, share]`; prompts: how many were tried and done right.
    """
    graph = Graph.of(model)
    concept, asked, right = _prompts(model, seed, size)
    each = scores(graph, concept, method="eap", level="node", per_input=True, quiet=True).each
    assert each is not None
    where = torch.ones(len(graph.sources), dtype=torch.bool)
    where[0] = False  # the embedding is always inside
    effects = Effects(each[:, where], Components(where, graph))
    mean = effects.values.double().mean(0)
    found = [
        certify(Select(max(1, round(share * len(mean)))), effects, n=size.masks, quiet=True)
        for share in size.node_shares
    ]
    sets = torch.stack(
        [
            torch.stack([c.certified_in for c in found]),
            torch.stack([c.found for c in found]),
            torch.stack([same_size(c, mean) for c in found]),
        ]
    )
    chosen = effects.components.placed(sets.flatten(0, 1))
    chosen[:, 0] = True
    circuits = [Circuit.of_nodes(graph, row) for row in chosen]
    done = [(execute(circuits, task, quiet=True).values > 0).unflatten(0, sets.shape[:2]) for task in asked]
    return {"right": torch.stack(done, 1), "kept": sets.sum(2), "prompts": right}


def _prompts(model: Model, seed: int, size: Settings) -> tuple[Task, list[Task], list[int]]:
    """Pairs to find circuits on, and others of the same and of held-out templates, all done right by the model.

    Raises:
        TooFewRows: the model does not do so many right.
    """
    drawn = make("subject_verb", size.candidates, seed, model=model, quiet=True)
    done = drawn.filter(model, quiet=True)
    near = [e for e in done.task if " that " not in str(e.inputs)]
    held = [e for e in done.task if " that " in str(e.inputs)]
    if len(near) < size.prompts + size.asked or len(held) < size.asked:
        why = f"{model.name} does {len(near)} with a thing and {len(held)} with a clause right"
        raise TooFewRows(f"{size.prompts + size.asked} and {size.asked} prompts", why, "try more candidates")
    parts = near[: size.prompts], near[size.prompts :][: size.asked], held[: size.asked]
    first, *rest = (replace(done.task, examples=tuple(part)) for part in parts)
    return first, rest, [len(drawn), done.kept]
