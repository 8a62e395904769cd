"""Token importance: one interface for every cheap answer to "which tokens did the model use here?".

Each metric is a row of `METRICS`. They are claims, not facts: what hiding a token does to the answer is the reference
(`mechanome.heads.masking`), and a metric is as good as it predicts that. Contribution weights are those of paper 34
(Cunningham & Muca Cirone 2026); the others are its baselines, and should be shown beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mechanome.core import BadInput, NotServed, Table, UnknownName, nearest
from mechanome.engine import Batch, LogProb, Model, Site
from mechanome.engine.asked import ids_or_texts
from mechanome.engine.inputs import Inputs
from mechanome.engine.memory import Budget
from mechanome.heads.aggregates import Aggregate, prepared
from mechanome.heads.contribution import contribution, transformed_lengths
from mechanome.heads.reading import (
    AttentionLayer,
    Reading,
    on_one_line,
    one_prompt,
    per_query_head,
    read_attention,
    stacked,
)


def rollout(pattern: Tensor) -> Tensor:
    """Attention rollout `[query, key]`: patterns averaged over heads, half the stream kept, multiplied over layers.

    Args:
        pattern: `[layer, head, query, key]`, layers in order; queries are all positions.
    """
    n = pattern.shape[-1]
    kept = torch.eye(n, dtype=pattern.dtype, device=pattern.device)
    mixed = 0.5 * pattern.mean(1) + 0.5 * kept
    mixed = mixed / mixed.sum(-1, keepdim=True)
    for layer in mixed:
        kept = layer @ kept
    return kept


@dataclass(frozen=True)
class Ask:
    """What a metric is computed from.

    Args:
        model: an opened model. batch: the prompt. reading: its attention at the query, or at all queries.
        query: the position that looks. place: where it lies on the reading's query axis.
        heads: which heads take part, None for all. answer: the token whose log-probability is differentiated.
        tower: of a model with several.
    """

    model: Model
    batch: Batch
    reading: Reading
    query: int
    place: int
    heads: tuple[int, ...] | None
    answer: int | None
    tower: str | None

    @property
    def layers(self) -> list[AttentionLayer]:
        """The layers, with the query alone on their query axes."""
        here = slice(self.place, self.place + 1)
        return [replace(layer, pattern=layer.pattern[:, here]) for layer in self.reading.layers]

    def per_head(self, rule: Callable[[AttentionLayer], Tensor]) -> Tensor:
        """A rule from a layer to `[head, query, key]`, at the query: `[layer, head, key]`."""
        return self.chosen(stacked([rule(layer)[:, 0] for layer in self.layers], "token importance"))

    def chosen(self, values: Tensor) -> Tensor:
        """The heads that take part, of `[layer, head, ...]`."""
        return values if self.heads is None else values[:, list(self.heads)]


@dataclass(frozen=True)
class TokenMetric:
    """One row of the registry.

    Args:
        definition: in one clause.
        cells: from an `Ask` to cells `[..., key]`, which are averaged.
        signed: whether values below 0 mean "against".
        by_head: whether heads can be chosen.
        all_queries: whether it needs the attention of every position, not of the query alone.
        answer: whether it needs an answer token.
    """

    definition: str
    cells: Callable[[Ask], Tensor]
    signed: bool = False
    by_head: bool = True
    all_queries: bool = False
    answer: bool = False


def _attention(ask: Ask) -> Tensor:
    return ask.per_head(lambda layer: layer.pattern)


def _value_weighted(ask: Ask) -> Tensor:
    return ask.per_head(lambda x: x.pattern * per_query_head(x.values, x.pattern.shape[0]).norm(dim=-1)[:, None, :])


def _norm(ask: Ask) -> Tensor:
    return ask.per_head(lambda x: x.pattern * transformed_lengths(x.values, x.output_weight)[:, None, :])


def _contribution_head(ask: Ask) -> Tensor:
    return ask.per_head(lambda x: contribution(x.pattern, x.values, x.output_weight).values)


def _contribution_layer(ask: Ask) -> Tensor:
    parts = [contribution(x.pattern, x.values, x.output_weight, form="layer").values for x in ask.layers]
    return torch.cat(parts)


def _rollout(ask: Ask) -> Tensor:
    pattern = ask.chosen(stacked([layer.pattern for layer in ask.reading.layers], "attention rollout"))
    return rollout(pattern)[ask.place][None]


def _gradient_x_input(ask: Ask) -> Tensor:
    site = Site("embed", tower=ask.tower)
    assert ask.answer is not None
    found = ask.model.grad(LogProb(ask.answer), ask.batch, [site], at=ask.query)
    return (found[site] * found.run[site]).sum(-1).float()


METRICS: dict[str, TokenMetric] = {
    "attention": TokenMetric("attention weight a", _attention),
    "value_weighted": TokenMetric("a ||v||: attention times the length of the value", _value_weighted),
    "norm": TokenMetric("a ||u||: attention times the length of the value after W_O (Kobayashi et al. 2020)", _norm),
    "rollout": TokenMetric("attention multiplied through the layers (Abnar and Zuidema 2020)", _rollout,
                           all_queries=True),
    "contribution_head": TokenMetric("share of each head's own output (paper 34)", _contribution_head, signed=True),
    "contribution_layer": TokenMetric("share of attention's output (paper 34)", _contribution_layer, signed=True,
                                      by_head=False),
    "gradient_x_input": TokenMetric("gradient of log p(answer) times the embedding", _gradient_x_input, signed=True,
                                    by_head=False, answer=True),
}  # fmt: skip


@dataclass(frozen=True)
class TokenImportance:
    """One number per token.

    Args:
        values: `[key]`.
        cells: what they are the mean of, `[layer, head, key]` or `[layer, key]`; one cell where a metric has no layers.
        metric: a name of `METRICS`. query: the position that looks. tokens: along the key axis.
        answer: the token id that was differentiated, where the metric needs one.
    """

    values: Tensor = field(repr=False)
    cells: Tensor = field(repr=False)
    metric: str
    query: int
    tokens: tuple[str, ...] = field(repr=False)
    answer: int | None = None
    axes: tuple[str, ...] = ("key",)

    def ranking(self, exclude: Sequence[int] = ()) -> list[int]:
        """Positions from the most important one down; `exclude` leaves some out, such as the sink."""
        left_out = {p % len(self.tokens) for p in exclude}
        return [p for p in self.values.argsort(descending=True, stable=True).tolist() if p not in left_out]

    def table(self) -> Table:
        """One row a token, in the order of the prompt."""
        rank = {position: i + 1 for i, position in enumerate(self.ranking())}
        rows = [(j, on_one_line(token), float(self.values[j]), rank[j]) for j, token in enumerate(self.tokens)]
        title = f"Importance for position {self.query}: {METRICS[self.metric].definition}"
        return Table(("position", "token", self.metric, "rank"), rows, title)


def token_importance(
    model: Model,
    inputs: Inputs,
    metric: str | Iterable[str] = "contribution_layer",
    query: int = -1,
    *,
    layers: Iterable[int] | None = None,
    heads: Sequence[int] | None = None,
    aggregate: Aggregate = "signed",
    answer: int | str | None = None,
    tower: str | None = None,
    budget: Budget = None,
) -> dict[str, TokenImportance]:
    """How much each token mattered to one query, by one metric or several, from one pass where they share it.

    Args:
        model: an opened model.
        inputs: one prompt, without padding.
        metric: names of `METRICS`, or "all".
        query: the position that looks; negative counts from the end.
        layers: which layers are averaged (and, for rollout, multiplied); None for all that have attention.
        heads: which heads of each layer; None for all. Metrics without heads refuse a choice.
        aggregate: what is averaged over layers and heads: "signed" values, "absolute" ones, or "normalized" ones.
        answer: the token for "gradient_x_input", an id or a one-token text; None takes the likeliest at the query.
        tower, budget: as in `read_attention`.

    Returns:
        metric name -> `TokenImportance`, in the order asked for.

    Raises:
        UnknownName: no such metric or aggregate. BadInput: heads for a metric without heads, or that do not exist.
        NotServed: attention, or for the gradient the embedding, that cannot be read.
    """
    names = [metric] if isinstance(metric, str) else list(metric)
    names = list(METRICS) if names == ["all"] else names
    for name in names:
        if name not in METRICS:
            raise UnknownName(f"metric '{name}'", "there is no such token metric", nearest(name, METRICS))
        if heads is not None and not METRICS[name].by_head:
            raise BadInput(f"heads for '{name}'", "it does not distinguish heads", "leave heads= out")
    chosen = [METRICS[name] for name in names]
    batch = one_prompt(model, inputs)
    every = any(m.all_queries for m in chosen)
    reading = read_attention(model, batch, layers, None if every else [query], tower=tower, budget=budget)
    position = model.frames(batch)[tower].resolved(1, len(reading.tokens)).positions(query, 0)[0]
    _check_heads(reading, heads)
    if any(m.answer for m in chosen):
        answer = _likeliest(model, batch, position, len(reading.tokens)) if answer is None else answer
    token = ids_or_texts(model, answer)
    picked = None if heads is None else tuple(heads)
    ask = Ask(model, batch, reading, position, reading.queries.index(position), picked, token, tower)
    found = {}
    for name, row in zip(names, chosen):
        cells = row.cells(ask)
        values = prepared(cells, aggregate).reshape(-1, cells.shape[-1]).mean(0)
        used = token if row.answer else None
        found[name] = TokenImportance(values, cells, name, position, reading.tokens, used)
    return found


def _check_heads(reading: Reading, heads: Sequence[int] | None) -> None:
    if heads is None:
        return
    count = min(layer.pattern.shape[0] for layer in reading.layers)
    if not heads or not all(0 <= h < count for h in heads):
        raise BadInput(f"heads {list(heads)}", f"there are heads 0 to {count - 1}", "name some of them")


def _likeliest(model: Model, batch: Batch, position: int, n: int) -> int:
    last = position == n - 1
    logits = model.run(batch, logits="last" if last else True).logits
    if logits is None:
        raise NotServed(f"the likeliest token of {model.name}", "it has no logits", "use a metric without gradient")
    return int((logits[0] if last or logits.dim() == 2 else logits[0, position]).argmax())
