"""Sparse attention decomposition of a prompt: for each pair that a head attends to, its terms and what they explain.

Paper 28 (Franco, Loughridge & Crovella 2026). Terms are checked against the model's own scores: where these are more
than a product of queries and keys (a cap, a position bias), the head is refused instead of being explained in part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mechanome.circuits.native.head_units import QueryKey, query_key
from mechanome.circuits.native.rotary import rotations
from mechanome.circuits.native.sparse_attention import needed, relative, respectral, rotated, sides, sparseness
from mechanome.core import BadInput, NotServed, Table
from mechanome.engine import Model, Site
from mechanome.engine.asked import opened_model
from mechanome.engine.inputs import Inputs
from mechanome.engine.plain import integers

_SUMS = {torch.float64: 1e-8, torch.float32: 1e-3}
"""Largest difference of a sum of terms and the score it explains, relative to the largest score of its query."""


class Case(NamedTuple):
    """A head, a query and a key it attends to."""

    layer: int
    head: int
    query: int
    key: int


@dataclass(frozen=True, eq=False)
class AttentionTerms:
    """Relative scores of one prompt, in terms.

    Args:
        cases: along the case axis. tokens: of the prompt.
        weight: attention of each case, `[case]`. relative: its relative score, `[case]`.
        terms: `[case, unit]`, strongest unit first; they sum to `relative`.
        values: singular values, `[case, unit]`.
        rotated, respectral: terms of the two controls, `[case, draw, unit]`.
        error: largest difference of a sum of terms and the model's own relative score, over the largest score.

    All float64; heads of fewer units than others end in zeros.
    """

    cases: tuple[Case, ...] = field(repr=False)
    tokens: tuple[str, ...] = field(repr=False)
    weight: Tensor = field(repr=False)
    relative: Tensor = field(repr=False)
    terms: Tensor = field(repr=False)
    values: Tensor = field(repr=False)
    rotated: Tensor = field(repr=False)
    respectral: Tensor = field(repr=False)
    error: float

    @property
    def sparseness(self) -> Tensor:
        """Of each case's terms, `[case]`: see `mechanome.circuits.native.sparseness`."""
        return sparseness(self.terms)

    @property
    def needed(self) -> Tensor:
        """How many terms it takes to reach the relative score, `[case]`; 0 where it is not positive."""
        return needed(self.terms)

    def table(self, k: int = 12) -> Table:
        """The cases with the sparsest terms."""
        order = self.sparseness.argsort()[:k].tolist()
        counts, spread, control = self.needed, self.sparseness, sparseness(self.rotated).mean(-1)
        rows = []
        for i in order:
            at = self.cases[i]
            seen = [f"{p} {self.tokens[p]!r}" for p in (at.query, at.key)]
            strongest = int(self.terms[i].abs().argmax())
            numbers = (float(self.weight[i]), float(self.relative[i]), int(counts[i]), strongest)
            rows.append((f"{at.layer}.h{at.head}", *seen, *numbers, float(spread[i]), float(control[i])))
        columns = ("head", "query", "key", "attention", "relative score", "terms needed", "largest term",
                   "sparseness", "rotated")  # fmt: skip
        return Table(columns, rows, f"Attention in terms of singular vectors, {len(self.cases)} cases")

    def _repr_html_(self) -> str:
        return self.table().html()


def attention_terms(
    model: Model,
    inputs: Inputs,
    layers: Iterable[int] | None = None,
    *,
    heads: Iterable[tuple[int, int]] | None = None,
    threshold: float = 0.4,
    cases: Sequence[tuple[int, int, int, int]] | None = None,
    without_first: bool = False,
    draws: int = 1,
    seed: int = 0,
    tower: str | None = None,
) -> AttentionTerms:
    """Explain where heads look on one prompt. Paper 28 (Franco, Loughridge & Crovella 2026).

    Args:
        model: an opened language model.
        inputs: one prompt, without padding.
        layers: which; None for all that have attention. heads: only these (layer, head).
        threshold: pairs with at least this attention are explained: a query and an earlier (or, in an encoder, another)
            key that is neither itself nor the first token.
        cases: these (layer, head, query, key) instead.
        without_first: leave the first token, whose score is often like no other's, out of the mean over other keys.
        draws: random rotations of each control, per case. seed: of them.
        tower: of a model with several.

    Raises:
        BadInput: several prompts, no pair of that attention, or a query with fewer than two other keys.
        NotServed: a head whose scores are not the product of linear queries and keys.
    """
    opened_model(model)
    batch = model.encode(inputs)
    if batch.rows != 1 or batch.frame.padded:
        raise BadInput(f"{batch.rows} prompts", "terms are those of one prompt, without padding", "call it once each")
    at = [Case(*map(int, case)) for case in cases or ()]
    wanted = sorted({c.layer for c in at}) if at else _layers(model, layers, tower)
    points = ("scores", "pattern")
    folds = {layer: Site("resid_pre", layer, tower=tower) for layer in wanted}
    sites = [Site(point, layer, tower=tower) for layer in wanted for point in points] + list(folds.values())
    run = model.run(batch, capture=sites, logits=False)
    read = {site: run[site][0].double() for site in sites}
    length = read[sites[0]].shape[-1]
    patterns = {layer: read[Site("pattern", layer, tower=tower)] for layer in wanted}
    at = at or _attended(patterns, threshold, None if heads is None else set(heads))
    turned = rotations(model, sorted({case.layer for case in at}), length, tower)
    rows = []
    worst = 0.0
    made: dict[tuple[int, int], QueryKey] = {}
    for number, case in enumerate(at):
        if case[:2] not in made:
            made[case[:2]] = query_key(model, case.layer, case.head, length, turned=turned, tower=tower)
        scores = read[Site("scores", case.layer, tower=tower)][case.head, case.query]
        found = _explained(
            model, made[case[:2]], case, read[folds[case.layer]], scores, without_first, draws, seed + number
        )
        worst = max(worst, found.error)
        rows.append(found)
    return AttentionTerms(
        tuple(at),
        batch.tokens[0],
        torch.stack([patterns[c.layer][c.head, c.query, c.key] for c in at]),
        torch.stack([row.terms.sum() for row in rows]),
        _padded([row.terms for row in rows]),
        _padded([row.values for row in rows]),
        _padded([row.rotated for row in rows]),
        _padded([row.respectral for row in rows]),
        worst,
    )


def _layers(model: Model, layers: Iterable[int] | None, tower: str | None) -> list[int]:
    """The layers whose scores can be read; all of the wanted ones, where some are named."""
    if layers is not None:
        return list(integers(layers, "layers"))
    depth = len(model.architecture.tower(tower).blocks)
    served = [i for i in range(depth) if model.serves(Site("scores", i, tower=tower))]
    return served or [0]  # its refusal says why there is none


class _Explained(NamedTuple):
    terms: Tensor
    values: Tensor
    rotated: Tensor
    respectral: Tensor
    error: float


def _explained(
    model: Model, qk: QueryKey, case: Case, stream: Tensor, scores: Tensor, bare: bool, draws: int, seed: int
) -> _Explained:
    visible = scores > torch.finfo(model.dtype).min / 2
    others = visible.clone()
    others[[case.key, 0] if bare else [case.key]] = False
    if not (bool(others.any()) and bool(visible[case.key])):
        raise BadInput(f"{case}", "the key is hidden, or nothing is left to compare it with", "choose another pair")
    inputs = qk.inputs(stream)
    turns = qk.rotations.key[qk.layer]
    keys = torch.einsum("pi,pio->po", inputs @ qk.key, turns)
    difference = keys[case.key] - keys[others].mean(0)
    writes = qk.scale * qk.query @ qk.rotations.query[qk.layer][case.query]
    units = qk.units(case.query, case.key)
    first, second = sides(units.left, units.values, inputs[case.query], writes @ difference)
    terms = first * second
    exact = relative(scores, case.key, others)
    error = float((terms.sum() - exact).abs() / scores[visible].abs().max())
    if error > _SUMS.get(model.dtype, 5e-2):
        raise NotServed(
            f"head {case.layer}.h{case.head} of {model.name} in terms",
            f"its scores are more than a product of queries and keys (the terms miss one by {error:.1g})",
            "read its pattern instead (mechanome.heads)",
        )
    turned = [rotated(first, second, seed * draws + i) for i in range(draws)]
    apart = [respectral(first, second, units.values, seed * draws + i) for i in range(draws)]
    return _Explained(terms, units.values, torch.stack(turned), torch.stack(apart), error)


def _attended(patterns: dict[int, Tensor], threshold: float, heads: set[tuple[int, int]] | None) -> list[Case]:
    found = []
    for layer, pattern in patterns.items():
        for head, query, key in (pattern >= threshold).nonzero().tolist():
            enough = key not in (0, query) and query >= 2
            if enough and (heads is None or (layer, head) in heads):
                found.append(Case(layer, head, query, key))
    if not found:
        raise BadInput("this prompt", f"no head puts {threshold} on a token besides the first", "lower threshold=")
    return found


def _padded(rows: Sequence[Tensor]) -> Tensor:
    width = max(row.shape[-1] for row in rows)
    return torch.stack([torch.nn.functional.pad(row, (0, width - row.shape[-1])) for row in rows])
