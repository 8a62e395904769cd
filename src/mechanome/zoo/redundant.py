"""A small redundant transformer: four layers of eight heads that learned three tasks with residual dropout.

| document | ids, after the first token |
|---|---|
| indirect object | `A and B went ; B gave ball to A`, either name first |
| agreement | `the dogs near a cat were quickly red and small`: the verb agrees with the first noun |
| copying | five different names, then the same again |

Dropout on what every part adds to the stream makes parts stand in for each other, so that one task has many circuits
(paper 10, arXiv 2605.12671). Tokens are numbers; `TOKENS` says where each kind of word is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, dropout
from transformers import LlamaConfig, LlamaForCausalLM

from mechanome.core import BadInput, Parts, fit, seeded
from mechanome.engine.asked import count
from mechanome.zoo.kept import kept_weights

_VERSION = 1  # raised when documents or training change, so that older weights are not believed

_COUNTS = {
    "start": 1, "name": 60, "and": 1, "stop": 1, "to": 1, "went": 8, "gave": 8, "object": 24, "singular": 12,
    "plural": 12, "verb singular": 4, "verb plural": 4, "article": 4, "near": 6, "adverb": 6, "adjective": 8,
}  # fmt: skip


def _ranges() -> dict[str, range]:
    found, first = {}, 0
    for kind, size in _COUNTS.items():
        found[kind] = range(first, first + size)
        first += size
    return found


TOKENS = _ranges()
"""Kind of word to its token ids; 160 in all."""
VOCAB = sum(_COUNTS.values())
LENGTH = 11
"""Tokens of a document."""
_OBJECT = ("start", "name", "and", "name", "went", "stop", "name", "gave", "object", "to", "name")
_AGREEMENT = (
    "start", "article", "singular", "near", "article", "singular", "verb singular", "adverb", "adjective", "and",
    "adjective",
)  # fmt: skip
_TOLD = ((10,), (6,), (6, 7, 8, 9, 10))
"""Places of the tokens that can be known, per task."""


@dataclass(frozen=True)
class RedundantRecipe:
    """How the transformer is made and trained.

    Args:
        layers, heads, width, mlp: of the model, which is a Llama: RMS norms, rotary positions, gated MLPs.
        dropped: share of what parts add to the stream that training drops.
        steps, batch, rate: of AdamW with one cycle.
    """

    layers: int = 4
    heads: int = 8
    width: int = 128
    mlp: int = 256
    dropped: float = 0.1
    steps: int = 2500
    batch: int = 64
    rate: float = 3e-3

    def __post_init__(self) -> None:
        for name in ("layers", "heads", "width", "mlp", "steps", "batch"):
            count(name, getattr(self, name))
        if not 0 <= self.dropped < 1:
            raise BadInput(f"dropped={self.dropped}", "it is a share", "give a number from 0 to below 1")


@dataclass(frozen=True, eq=False)
class ObjectPrompts:
    """Prompts of the indirect object.

    Args:
        ids: documents up to "to", `[prompt, pos]`.
        good, bad: the name that was given to, and the other one, `[prompt]`.
    """

    ids: Tensor
    good: Tensor
    bad: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, rows: Tensor | slice) -> ObjectPrompts:
        return ObjectPrompts(self.ids[rows], self.good[rows], self.bad[rows])


def object_prompts(n: int, seed: int = 0) -> ObjectPrompts:
    """Draw prompts of the indirect object, half of them with the good name first.

    Args:
        n: how many. seed: of the draw.
    """
    ids = _indirect_objects(count("n", n), torch.Generator().manual_seed(seed))
    return ObjectPrompts(ids[:, :-1], ids[:, -1], ids[:, 6])


def documents(n: int, generator: torch.Generator) -> Tensor:
    """Training documents of the three tasks in turn, `[n, LENGTH]`."""
    kinds = (_indirect_objects, _agreements, _copies)
    return torch.cat([make(len(range(i, n, len(kinds))), generator) for i, make in enumerate(kinds)])


def redundant_transformer(
    seed: int = 0, recipe: RedundantRecipe | None = None, *, quiet: bool = False
) -> LlamaForCausalLM:
    """The transformer of a seed, in eval mode; trained on first use (minutes), then read from the cache.

    Args:
        seed: of initial weights and documents. recipe: None for the usual one. quiet: no progress.

    Raises:
        CorruptFile: the kept weights are damaged.
    """
    chosen = recipe or RedundantRecipe()
    settings = {**asdict(chosen), "seed": seed, "version": _VERSION}
    model = _made(chosen)
    model.load_state_dict(
        kept_weights("redundant", settings, lambda: train_redundant(seed, chosen, quiet=quiet).state_dict())
    )
    return model.eval()


def train_redundant(seed: int, recipe: RedundantRecipe | None = None, *, quiet: bool = False) -> LlamaForCausalLM:
    """Train the transformer of a seed; nothing is read from or written to the cache.

    Args:
        seed: of initial weights and documents. recipe: None for the usual one. quiet: no progress.
    """
    chosen = recipe or RedundantRecipe()
    with seeded(seed):
        model = _made(chosen)
    optimizer = torch.optim.AdamW(model.parameters(), lr=chosen.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, chosen.rate, total_steps=chosen.steps, pct_start=0.1)
    generator = torch.Generator().manual_seed(seed)

    def step(_: int) -> dict[str, Tensor]:
        ids = documents(chosen.batch, generator)
        logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
        each = cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        known = _known(len(ids))
        loss = ((each * known).sum(1) / known.sum(1)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss}

    dropping = [part.register_forward_hook(_dropping(chosen.dropped)) for part in _writers(model)]
    state = Parts(model=model, optimizer=optimizer, schedule=schedule)
    fit(step, state, steps=chosen.steps, seed=seed, what="training a redundant transformer", quiet=quiet)
    for handle in dropping:
        handle.remove()
    return model.eval()


def _known(n: int) -> Tensor:
    """Which tokens of `documents` what stands before them tells, all but the first, `[n, LENGTH - 1]`.

    The loss is taken on these alone: on random words it would be noise that drowns the tasks.
    """
    found = torch.zeros(n, LENGTH - 1)
    first = 0
    for i, places in enumerate(_TOLD):
        last = first + len(range(i, n, len(_TOLD)))
        found[first:last, torch.tensor(places) - 1] = 1
        first = last
    return found


def _made(recipe: RedundantRecipe) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB, hidden_size=recipe.width, intermediate_size=recipe.mlp, num_hidden_layers=recipe.layers,
            num_attention_heads=recipe.heads, max_position_embeddings=32, tie_word_embeddings=False,
            bos_token_id=0, eos_token_id=None, pad_token_id=None,
        )
    )  # fmt: skip


def _writers(model: LlamaForCausalLM) -> Iterable[nn.Module]:
    """The last linear map of every part that adds to the stream."""
    for layer in model.model.layers:
        yield layer.self_attn.o_proj
        yield layer.mlp.down_proj


def _dropping(share: float) -> Callable[[nn.Module, Any, Tensor], Tensor]:
    return lambda module, inputs, output: dropout(output, share, module.training)


def _drawn(kinds: Iterable[str], n: int, generator: torch.Generator) -> Tensor:
    """Random words of each kind, `[n, pos]`."""
    return torch.stack(
        [torch.randint(TOKENS[k].start, TOKENS[k].stop, (n,), generator=generator) for k in kinds], dim=1
    )


def _names(n: int, many: int, generator: torch.Generator) -> Tensor:
    """Different names in each row, `[n, many]`."""
    return TOKENS["name"].start + torch.rand(n, len(TOKENS["name"]), generator=generator).argsort(1)[:, :many]


def _indirect_objects(n: int, generator: torch.Generator) -> Tensor:
    ids = _drawn(_OBJECT, n, generator)
    good, bad = _names(n, 2, generator).T
    first = torch.rand(n, generator=generator).argsort() % 2 == 0
    ids[:, 1], ids[:, 3] = torch.where(first, good, bad), torch.where(first, bad, good)
    ids[:, 6], ids[:, 10] = bad, good
    return ids


def _agreements(n: int, generator: torch.Generator) -> Tensor:
    ids = _drawn(_AGREEMENT, n, generator)
    several = torch.rand(n, 2, generator=generator) < 0.5
    ids[:, [2, 5]] += several * len(TOKENS["singular"])
    ids[:, 6] += several[:, 0] * len(TOKENS["verb singular"])
    return ids


def _copies(n: int, generator: torch.Generator) -> Tensor:
    names = _names(n, 5, generator)
    return torch.cat([torch.zeros(n, 1, dtype=torch.long), names, names], 1)
