"""Contribution weights of a prompt: which tokens each head, and each layer, really takes its output from.

Paper 34 (Cunningham & Muca Cirone 2026); the formula is `mechanome.heads.contribution`. What is explained is the output
of the output projection without its bias: in models with a norm after attention ("sandwich" blocks), that norm's input.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from mechanome.core import BadInput, NotServed, Table, UnknownName, nearest
from mechanome.engine import Model
from mechanome.engine.frame import Positions
from mechanome.engine.inputs import Inputs
from mechanome.engine.memory import Budget
from mechanome.heads.aggregates import Aggregate, mean_over_queries, prepared
from mechanome.heads.contribution import EPS, Form, contribution, head_importance
from mechanome.heads.patterns import query_index
from mechanome.heads.reading import AttentionLayer, Reading, on_one_line, read_attention, stacked

Target = Literal["attention", "residual"]
Space = Literal["output", "value"]


@dataclass(frozen=True)
class Contributions:
    """Shares of tokens in what attention writes.

    Args:
        values: c, `[layer, head, query, key]`, or `[layer, query, key]` in the layer form.
        importance: the share of each head in its layer's output, `[layer, head, query]`.
        clipped: where parts cancel almost entirely and shares were bounded, `[layer, head, query]` or `[layer, query]`.
        stream: with `target="residual"`, the share of the residual stream itself, axes as `clipped`.
        layers: of the layer axis. queries: positions along the query axis. tokens: along the key axis.
        form, target, space: as asked for.
        causal: whether a position sees only itself and earlier ones.
        axes: names of the axes of `values`.
    """

    values: Tensor = field(repr=False)
    importance: Tensor = field(repr=False)
    clipped: Tensor = field(repr=False)
    stream: Tensor | None = field(repr=False)
    layers: tuple[int, ...]
    queries: tuple[int, ...] = field(repr=False)
    tokens: tuple[str, ...] = field(repr=False)
    form: str
    target: str
    space: str
    causal: bool
    axes: tuple[str, ...]

    @property
    def clipped_share(self) -> float:
        """The share of cells (a query of a head, or of a layer) in which shares were bounded; query 0 never counts."""
        counted = [i for i, q in enumerate(self.queries) if q > 0 or not self.causal]
        return float(self.clipped[..., counted].float().mean()) if counted else 0.0

    def of(self, query: int = -1, aggregate: Aggregate = "signed") -> Tensor:
        """One number per token for one query: the mean over layers and heads, `[key]`.

        Args:
            query: a position of the prompt; negative counts from its end.
            aggregate: "signed" shares, "absolute" ones, or shares "normalized" by sum_j |c_j|.

        Raises:
            BadInput: a query that was not read. UnknownName: no such aggregate.
        """
        row = self.values[..., query_index(self.queries, query, len(self.tokens)), :]
        return prepared(row, aggregate).flatten(0, -2).mean(0)

    def over_queries(self, aggregate: Aggregate = "signed") -> Tensor:
        """The mean over the queries that can see a key, query 0 left out: `[layer, head, key]` or `[layer, key]`.

        Raises:
            TooFewRows: only query 0 was read. UnknownName: no such aggregate.
        """
        return mean_over_queries(prepared(self.values, aggregate), self.queries, self.causal)

    def __repr__(self) -> str:
        shape = ", ".join(f"{n} {axis}" for n, axis in zip(self.values.shape, self.axes))
        return f"Contributions({shape}; {self.form} form, {self.target}, {self.space} space)"

    def table(self, query: int = -1) -> Table:
        """One row a token: its mean share over layers and heads, signed, absolute and normalized."""
        means = [self.of(query, name) for name in ("signed", "absolute", "normalized")]
        rows = [(j, on_one_line(token), *(float(m[j]) for m in means)) for j, token in enumerate(self.tokens)]
        position = range(len(self.tokens))[query]
        title = f"Contribution to position {position} ({self.form} form, {self.target}, {self.space} space)"
        return Table(("position", "token", "signed", "absolute", "normalized"), rows, title)


def contributions(
    model: Model,
    inputs: Inputs,
    form: Form = "head",
    target: Target = "attention",
    space: Space = "output",
    *,
    layers: Iterable[int] | None = None,
    queries: Positions = None,
    tower: str | None = None,
    eps: float = EPS,
    budget: Budget = None,
) -> Contributions:
    """Contribution weights of one prompt, paper 34 (Cunningham & Muca Cirone 2026).

    Args:
        model: an opened model.
        inputs: one prompt, without padding.
        form: "head", "layer" or "joint", see `mechanome.heads.contribution.FORMS`.
        target: "attention" projects on what attention writes; "residual" on the residual stream plus that.
        space: "output" is exact; "value" projects before W_O, cheaper, and another number.
        layers, queries, tower, budget: as in `read_attention`.
        eps: bounds shares where parts cancel, see `contribution`.

    Returns:
        a `Contributions`.

    Raises:
        BadInput, UnknownName, UnknownSite: see `read_attention`; "residual" in value space.
        NotServed: attention that cannot be read; "residual" where a norm stands between attention and the stream.
    """
    reading = read_attention(model, inputs, layers, queries, tower=tower, stream=target == "residual", budget=budget)
    return contributions_of(reading, form, target, space, eps=eps)


def contributions_of(
    reading: Reading, form: Form = "head", target: Target = "attention", space: Space = "output", *, eps: float = EPS
) -> Contributions:
    """The same from a `Reading`, which must hold the stream for `target="residual"`."""
    _check(reading, target, space)
    parts = [
        contribution(
            layer.pattern,
            layer.values,
            layer.output_weight if space == "output" else None,
            form=form,
            stream=layer.stream if target == "residual" else None,
            eps=eps,
        )
        for layer in reading.layers
    ]
    values = stacked([p.values for p in parts], "contributions")
    shares = [p.stream for p in parts if p.stream is not None]
    return Contributions(
        values,
        stacked([_importance(layer, eps) for layer in reading.layers], "head importance"),
        torch.stack([p.clipped for p in parts]),
        torch.stack(shares) if shares else None,
        reading.indices,
        reading.queries,
        reading.tokens,
        form,
        target,
        space,
        reading.causal,
        ("layer", "query", "key") if form == "layer" else ("layer", "head", "query", "key"),
    )


def _importance(layer: AttentionLayer, eps: float) -> Tensor:
    return head_importance(layer.pattern, layer.values, layer.output_weight, eps=eps)


def _check(reading: Reading, target: str, space: str) -> None:
    for name, given, valid in (("target", target, ("attention", "residual")), ("space", space, ("output", "value"))):
        if given not in valid:
            raise UnknownName(f"{name} '{given}'", f"there is no such {name}", nearest(given, valid))
    if target == "attention":
        return
    if space == "value":
        raise BadInput("target 'residual' in value space", "the stream lives after W_O", "use space='output'")
    for layer in reading.layers:
        if layer.normed_after:
            raise NotServed(
                f"target 'residual' in layer {layer.layer}",
                "a norm stands between attention's output and the residual stream",
                "use target='attention', which explains that norm's input",
            )
        if layer.stream is None:
            raise BadInput("target 'residual'", "this reading holds no stream", "read it with stream=True")
