"""Head scores: what kind of head is this, from its pattern on repeated random tokens.

A sequence of random tokens is written twice. Nothing in it can be predicted but from the first copy, so attention to a
fixed offset is a habit of the head and no accident of the text: to the token before (previous-token heads), to the
token that followed the same token a copy ago (induction heads), to the same token a copy ago (duplicate-token heads).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.core import BadInput, NotServed, Table, UnknownName, nearest
from mechanome.engine import Model, Site
from mechanome.engine.memory import Budget
from mechanome.heads.reading import attention_layers, stacked


def offset_mass(pattern: Tensor, offset: int, start: int) -> Tensor:
    """Mean attention from queries `start` on to the key `offset` positions before, `[..., query, key]` to `[...]`."""
    return pattern.diagonal(-offset, -2, -1)[..., start - offset :].mean(-1)


def entropy(pattern: Tensor) -> Tensor:
    """Mean entropy of a query's attention in nats, query 0 left out, `[..., query, key]` to `[...]`."""
    return torch.special.entr(pattern[..., 1:, :]).sum(-1).mean(-1)


@dataclass(frozen=True)
class Score:
    """One head score.

    Args:
        definition: in one clause.
        of: `(pattern [..., query, key], period, lead)` to `[...]`; the copies have `period` tokens and start after
            `lead` others.
    """

    definition: str
    of: Callable[[Tensor, int, int], Tensor]


SCORES: dict[str, Score] = {
    "entropy": Score("nats of a query's attention", lambda p, period, lead: entropy(p)),
    "sink": Score("attention to the first position", lambda p, period, lead: p[..., 1:, 0].mean(-1)),
    "previous": Score("attention to the token before", lambda p, period, lead: offset_mass(p, 1, 1)),
    "induction": Score(
        "from the second copy to what followed the same token",
        lambda p, period, lead: offset_mass(p, period - 1, lead + period),
    ),
    "duplicate": Score(
        "from the second copy to the same token", lambda p, period, lead: offset_mass(p, period, lead + period)
    ),
}


@dataclass(frozen=True)
class HeadScores:
    """Scores of every head; all but the entropy lie between 0 and 1.

    Args:
        values: `[score, layer, head]`, means over the sequences.
        names: along the score axis.
        layers: along the layer axis.
        period: tokens per copy. rows: sequences.
    """

    values: Tensor = field(repr=False)
    names: tuple[str, ...]
    layers: tuple[int, ...] = field(repr=False)
    period: int
    rows: int
    axes: tuple[str, ...] = ("score", "layer", "head")

    def __getitem__(self, name: str) -> Tensor:
        """One score, `[layer, head]`.

        Raises:
            UnknownName: no such score.
        """
        if name not in self.names:
            raise UnknownName(f"head score '{name}'", "there is no such score", nearest(name, self.names))
        return self.values[self.names.index(name)]

    def top(self, name: str, k: int = 5) -> Table:
        """The `k` heads with the highest score."""
        scores = self[name]
        values, places = scores.flatten().topk(min(k, scores.numel()))
        heads = [divmod(int(place), scores.shape[1]) for place in places]
        rows = [(f"{self.layers[layer]}.h{head}", float(v)) for (layer, head), v in zip(heads, values)]
        return Table(("head", name), rows, f"Highest {name} scores: {SCORES[name].definition}")

    def table(self) -> Table:
        """One row a head, one column a score."""
        rows = [
            (layer, head, *(float(v) for v in self.values[:, i, head]))
            for i, layer in enumerate(self.layers)
            for head in range(self.values.shape[2])
        ]
        title = f"Head scores on {self.rows} random sequences of {self.period} tokens, written twice"
        return Table(("layer", "head", *self.names), rows, title)


def repeated_tokens(model: Model, period: int = 24, rows: int = 4, seed: int = 0) -> tuple[Tensor, int]:
    """Random token ids written twice, after the model's first token where it has one.

    Args:
        model: an opened language model.
        period: tokens per copy. rows: sequences. seed: of the draw; special tokens are never drawn, none twice a copy.

    Returns:
        ids `[row, pos]`, and how many tokens stand before the first copy.

    Raises:
        BadInput: a period below 2, a copy longer than the vocabulary, or no vocabulary.
    """
    vocabulary = getattr(model.text_config, "vocab_size", None)
    special = set(getattr(model.tokenizer, "all_special_ids", None) or [])
    named = ("bos_token_id", "eos_token_id", "pad_token_id")
    special |= {i for n in named if isinstance(i := getattr(model.text_config, n, None), int)}
    if not isinstance(vocabulary, int):
        raise BadInput(f"repeated tokens for {model.name}", "it has no vocabulary", "read patterns of your own inputs")
    ordinary = torch.tensor([i for i in range(vocabulary) if i not in special])
    if not 2 <= period <= len(ordinary):
        raise BadInput(f"period {period}", f"there are {len(ordinary)} ordinary tokens", "use 2 or more, such as 24")
    generator = torch.Generator().manual_seed(seed)
    copies = torch.stack([ordinary[torch.randperm(len(ordinary), generator=generator)[:period]] for _ in range(rows)])
    first = getattr(model.tokenizer, "bos_token_id", None)
    first = getattr(model.text_config, "bos_token_id", None) if first is None else first
    lead = [] if not isinstance(first, int) else [torch.full((rows, 1), first)]
    return torch.cat([*lead, copies, copies], 1), len(lead)


def head_scores(
    model: Model,
    period: int = 24,
    rows: int = 4,
    seed: int = 0,
    *,
    layers: Iterable[int] | None = None,
    tower: str | None = None,
    budget: Budget = None,
) -> HeadScores:
    """Score every head on repeated random tokens.

    Args:
        model: an opened language model.
        period, rows, seed: see `repeated_tokens`.
        layers, tower, budget: as in `mechanome.heads.read_attention`.

    Returns:
        a `HeadScores` with every row of `SCORES`.

    Raises:
        BadInput, NotServed: no vocabulary, no attention that can be read, sequences longer than the context.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise NotServed(
            f"head scores of {model.name}", "its decoder reads another text than its encoder", "use read_attention"
        )
    found = attention_layers(model, layers, tower)
    ids, lead = repeated_tokens(model, period, rows, seed)
    sites = [Site("pattern", layer, tower=tower) for layer in found]
    run = model.run(ids, capture=sites, logits=False, budget=budget)
    pattern = stacked([run[site].float() for site in sites], "head scores")
    values = torch.stack([score.of(pattern, period, lead).mean(1) for score in SCORES.values()])
    return HeadScores(values, tuple(SCORES), tuple(found), period, rows)
