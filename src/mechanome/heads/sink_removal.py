"""Removing the sink: what a layer does without it, and whether that moves unsure tokens most.

Paper 34 (Cunningham & Muca Cirone 2026): sinks hold the representations of low-confidence tokens still. One layer at a
time, the sink's attention is removed and the rest renormalized (an attention knockout: the layer's own output norm, MLP
and residual stream follow from it exactly), and the drift of each token, 1 - cos(x after the block, x before it), is
compared with the unchanged run and with the entropy of the model's next-token prediction there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.core import Interval, NotServed, Table, spearman
from mechanome.engine import AttentionKnockout, Model, Site
from mechanome.engine.inputs import Inputs
from mechanome.engine.memory import Budget
from mechanome.heads.reading import attention_layers, on_one_line, one_prompt, token_labels
from mechanome.heads.sinks import looking


def drift(before: Tensor, after: Tensor) -> Tensor:
    """1 - cos(after, before) along the last axis: 0 where a block leaves a token's direction as it is."""
    return 1 - torch.nn.functional.cosine_similarity(after, before, dim=-1)


@dataclass(frozen=True)
class SinkRemoval:
    """Each layer with and without its sink, for one prompt.

    Args:
        with_sink, without_sink: drift of each token in each layer, `[layer, query]`.
        norms_with, norms_without: length of what attention adds to the stream, `[layer, query]`; in "sandwich" blocks
            a norm has evened it out.
        entropy: of the next-token prediction in nats, `[query]`.
        layers: of the layer axis. queries: positions along the query axis. tokens: of the prompt.
    """

    with_sink: Tensor = field(repr=False)
    without_sink: Tensor = field(repr=False)
    norms_with: Tensor = field(repr=False)
    norms_without: Tensor = field(repr=False)
    entropy: Tensor = field(repr=False)
    layers: tuple[int, ...]
    queries: tuple[int, ...] = field(repr=False)
    tokens: tuple[str, ...] = field(repr=False)
    axes: tuple[str, ...] = ("layer", "query")

    @property
    def increase(self) -> Tensor:
        """How much more a token drifts without the sink, `[layer, query]`."""
        return self.without_sink - self.with_sink

    @property
    def louder(self) -> Tensor:
        """How much longer attention's output is without the sink, as a ratio, `[layer, query]`."""
        return self.norms_without / self.norms_with

    def table(self) -> Table:
        """One row a token: entropy, mean drift over layers with and without the sink, mean ratio of lengths."""
        means = (self.with_sink.mean(0), self.without_sink.mean(0), self.louder.mean(0))
        rows = [
            (q, on_one_line(self.tokens[q]), float(self.entropy[i]), *(float(m[i]) for m in means))
            for i, q in enumerate(self.queries)
        ]
        columns = ("position", "token", "entropy", "drift", "drift without sink", "output ratio")
        return Table(columns, rows, "Removing the sink, one layer at a time")


def sink_removal(
    model: Model,
    inputs: Inputs,
    sink: int | Sequence[int] = 0,
    *,
    layers: Iterable[int] | None = None,
    budget: Budget = None,
) -> SinkRemoval:
    """Remove the sink in one layer at a time, exactly.

    Args:
        model: an opened model with logits.
        inputs: one prompt, without padding.
        sink: the sink's position, or several.
        layers: which layers, None for all that attend; each is one run of the model.
        budget: memory, such as "2GB".

    Returns:
        a `SinkRemoval`; sinks, and query 0 of a causal model, are no queries in it.

    Raises:
        BadInput: several prompts, padding, a sink outside the prompt. TooFewRows: every token is a sink.
        NotServed: no logits per position, or attention scores that cannot be edited.
    """
    batch = one_prompt(model, inputs)
    n = batch.frame.lengths[0]
    chosen = attention_layers(model, layers, None)
    for layer in chosen:
        if why := model.why_not_edit(f"scores.{layer}"):
            raise NotServed(f"removing the sink in layer {layer}", why, "leave this layer out with layers=")
    queries = looking(range(n), sink, model.architecture.tower(None).causal, n)
    sites = [Site(point, layer) for layer in chosen for point in ("resid_pre", "resid_post", "attn_out")]
    plain = model.run(batch, capture=sites, budget=budget)
    if plain.logits is None or plain.logits.dim() != 3:
        raise NotServed(f"the entropy of {model.name}", "it predicts no token at each position", "use sink_report")
    log_probs = plain.logits[0, queries].float().log_softmax(-1)
    src = [sink] if isinstance(sink, int) else list(sink)
    rows: list[tuple[Tensor, ...]] = []
    for layer in chosen:
        out, attn = Site("resid_post", layer), Site("attn_out", layer)
        edits = AttentionKnockout(layer, src=src, dst=queries)
        cut = model.run(batch, capture=[out, attn], edits=edits, logits=False, budget=budget)
        before = plain[Site("resid_pre", layer)][0, queries].float()
        after = [run[out][0, queries].float() for run in (plain, cut)]
        lengths = [run[attn][0, queries].float().norm(dim=-1) for run in (plain, cut)]
        rows.append((drift(before, after[0]), drift(before, after[1]), lengths[0], lengths[1]))
    with_sink, without, norms_with, norms_without = (torch.stack(column).cpu() for column in zip(*rows))
    entropy = torch.special.entr(log_probs.exp()).sum(-1).cpu()
    labels = token_labels(model, batch, n)
    return SinkRemoval(with_sink, without, norms_with, norms_without, entropy, tuple(chosen), tuple(queries), labels)


def drift_against_entropy(removals: Sequence[SinkRemoval], *, level: float = 0.99, seed: int = 0) -> Interval:
    """Spearman's correlation of the mean drift increase over layers with entropy, over the tokens of all prompts.

    Args:
        removals: one a prompt.
        level: of the interval, which resamples whole prompts where there are several.
        seed: of the resamples.

    Raises:
        NotFinite: one of the two does not vary.
    """
    increase = torch.cat([r.increase.mean(0) for r in removals])
    entropy = torch.cat([r.entropy for r in removals])
    groups = [i for i, r in enumerate(removals) for _ in r.queries]
    return spearman(increase, entropy, level=level, seed=seed, groups=groups if len(removals) > 1 else None)
