"""Steering through circuits of nodes: what predictions become when some are scaled or set from another prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.circuits.neurons.nodes import Nodes
from mechanome.core import BadInput, NotFinite, Table, track
from mechanome.engine import Edit
from mechanome.engine.asked import in_vocabulary, token_ids
from mechanome.engine.inputs import Inputs
from mechanome.engine.memory import Budget


@dataclass(frozen=True, eq=False)
class Steered:
    """Next-token predictions at the last position, as they are and under changes.

    Args:
        names: of the changes.
        clean: probability of each followed token, `[example, token]`.
        values: the same under each change, `[change, example, token]`.
        changed: whether the likeliest token is another one, `[change, example]` of booleans.
        likeliest: its id, `[change, example]`.
    """

    names: tuple[str, ...]
    clean: Tensor = field(repr=False)
    values: Tensor = field(repr=False)
    changed: Tensor = field(repr=False)
    likeliest: Tensor = field(repr=False)

    def table(self) -> Table:
        """One row per change: share of examples whose likeliest token changed, and the mean rise of each token's."""
        rise = (self.values - self.clean).mean(1)
        columns = ("change", "likeliest changed", *(f"token {i}" for i in range(self.clean.shape[1])))
        rows = [(n, float(c.float().mean()), *map(float, r)) for n, c, r in zip(self.names, self.changed, rise)]
        return Table(columns, rows, "rise of probabilities")


def steer(
    nodes: Nodes,
    inputs: Inputs,
    tokens: Sequence[int] | Tensor,
    changes: Mapping[str, Sequence[Edit]],
    *,
    budget: Budget = None,
    quiet: bool = False,
) -> Steered:
    """Run prompts under changes.

    Args:
        nodes: that the changes are of.
        inputs: prompts that have these positions.
        tokens: ids to follow.
        changes: by name, edits of circuits: `circuit.scale(0)`, `circuit.set(Fill.means(nodes, [prompt]))`, or several
            joined, such as `there.set(fill) + here.scale(0)`; later ones come second at a shared site.
        budget: memory of one run. quiet: no progress bar.

    Raises:
        BadInput: no changes, tokens that do not exist, prompts of other positions. NotFinite: NaN or infinite logits.
    """
    if not changes:
        raise BadInput("changes", "there are none", "give circuit.scale(0), or circuit.set(fill)")
    model, ids = nodes.model, token_ids("tokens", tokens)
    batch = model.encode(inputs)
    nodes.check(batch)

    def said(edits: Sequence[Edit]) -> Tensor:
        logits = model.run(batch, edits=edits, logits="last", budget=budget).logits
        if logits is None or not bool(torch.isfinite(logits).all()):
            raise NotFinite(f"logits of {model.name}", "some are NaN or infinite", "load it in float32")
        return logits.float().cpu().softmax(-1)

    own = said(())
    in_vocabulary("tokens", ids, own.shape[-1])
    found = [said(edits) for edits in track(list(changes.values()), "steering", quiet=quiet)]
    likeliest = torch.stack([p.argmax(-1) for p in found])
    values = torch.stack([p[:, ids] for p in found])
    return Steered(tuple(changes), own[:, ids], values, likeliest != own.argmax(-1), likeliest)
