"""How likely are given continuations: teacher-forced log-probabilities of answers of several tokens, under edits.

A continuation is read as if it had been generated: the prompt is the prefill, the continuation's tokens are the
decode phase, and the state at position p predicts the token at p + 1. So an edit means what it means in `generate`.

Token boundaries are true ones: prompt and continuation are tokenized as one text, and a text whose tokens
straddle the boundary is refused, for no sum of log-probabilities would belong to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, NotServed
from mechanome.core.tables import Table
from mechanome.engine.asked import one_of
from mechanome.engine.boundaries import answers_of, listed, prompt_texts
from mechanome.engine.edits import Edit, flatten
from mechanome.engine.inputs import Batch, Inputs, Spans
from mechanome.engine.memory import Budget
from mechanome.engine.model import Model
from mechanome.engine.plain import whole
from mechanome.engine.teacher import token_logprobs
from mechanome.engine.worlds import by_position

Normalize = Literal["sum", "mean", "unconditional"]
Edits = Edit | Iterable[Edit | Iterable[Edit]]


@dataclass(frozen=True)
class OptionScores:
    """Log-probabilities of answers; axes `[prompt, option]`, NaN where a prompt has fewer options.

    Attributes:
        options: per prompt, the options as text or ids.
        logprobs: fp64, summed over each option's tokens.
        tokens: how many tokens each option has.
        scores: fp64, normalized as asked for; what `best` compares.
        normalize: "sum" (none), "mean" (per token) or "unconditional" (minus the option's log-probability without
            the prompt).
    """

    options: list[list[Any]]
    logprobs: Tensor = field(repr=False)
    tokens: Tensor = field(repr=False)
    scores: Tensor = field(repr=False)
    normalize: Normalize = "sum"

    @property
    def best(self) -> list[int]:
        """Per prompt, the index of the option with the highest score."""
        return self.scores.nan_to_num(float("-inf")).argmax(1).tolist()

    def table(self) -> Table:
        """One row per prompt and option."""
        best = self.best
        return Table(
            ("prompt", "option", "tokens", "log-prob", "score", "best"),
            [
                (p, str(option), int(self.tokens[p, o]), *self._numbers(p, o), "*" if best[p] == o else "")
                for p, options in enumerate(self.options)
                for o, option in enumerate(options)
            ],
            f"Options ({self.normalize})",
        )

    def _numbers(self, p: int, o: int) -> tuple[float, float]:
        return float(self.logprobs[p, o]), float(self.scores[p, o])

    def __repr__(self) -> str:
        return self.table().text()

    def _repr_html_(self) -> str:
        return self.table().html()


def logprob(
    model: Model,
    prompts: Inputs,
    continuations: Any,
    edits: Edits = (),
    *,
    per_token: bool = False,
    spans: Spans = (),
    budget: Budget = None,
) -> Tensor:
    """Log-probability of each continuation after its prompt.

    Args:
        prompts: as in `Model.run`; one prompt serves all continuations.
        continuations: a text or ids, or a list of them, one per prompt; one continuation serves all prompts.
        edits: what to change; rows are pairs of prompt and continuation.
        per_token: return each token's log-probability instead of their sum.
        spans: labels for prompt positions, one mapping per prompt.
        budget: bytes that one piece of the work may take (see `mechanome.engine.memory`); edits that tie rows
            together keep all rows in one piece.

    Returns:
        fp64 `[row]`, or `[row, token]` with NaN behind a continuation's end; each token's value is computed in fp32.

    Raises:
        BadInput: an empty continuation, one whose tokens straddle the boundary, a row longer than the context.
        NotServed: a model that does not predict the next token.
        BudgetTooSmall: not even one row, or rows that must stay together, fit.
    """
    _causal(model)
    given, batch = answers_of(continuations), model.encode(prompts, spans=spans)
    texts = prompt_texts(prompts)
    if batch.rows == 1 and len(given) > 1:
        batch = batch.take([0] * len(given))
    texts = texts * batch.rows if len(texts) == 1 else texts
    given = given * batch.rows if len(given) == 1 else given
    if len(given) != batch.rows:
        raise BadInput(
            f"{len(given)} continuations", f"there are {batch.rows} prompts", "give one per prompt, or a single one"
        )
    answers = listed(model, texts, given)
    each = token_logprobs(model, batch, answers, by_position(flatten(edits)), 1, budget)
    return each if per_token else each.nansum(1)


def score_options(
    model: Model,
    prompts: Inputs,
    options: Sequence[Any],
    normalize: Normalize = "sum",
    edits: Edits = (),
    *,
    unconditional: Inputs | None = None,
    spans: Spans = (),
    budget: Budget = None,
) -> OptionScores:
    """Score every option after every prompt; each prompt is read once where the model has a key/value cache.

    Args:
        prompts: as in `Model.run`.
        options: texts or lists of ids for all prompts, or one such list per prompt.
        normalize: see `OptionScores`.
        edits: what to change; rows are prompts, and each option sees its prompt's edits.
        unconditional: the prompt that stands for none; by default the model's first token alone. Edits of rows or
            positions cannot be carried over to it, so it is always scored without edits.
        spans, budget: see `logprob`.

    Raises:
        BadInput, NotServed, BudgetTooSmall: as `logprob` does.
    """
    _causal(model)
    one_of("normalize", normalize, ("sum", "mean", "unconditional"))
    batch = model.encode(prompts, spans=spans)
    texts = prompt_texts(prompts)
    texts = texts * batch.rows if len(texts) == 1 else texts
    own = _per_prompt(options, batch.rows)
    most = max(map(len, own))
    # Prompts with fewer options repeat their first one; its scores are dropped again below.
    full = [[*o, *[o[0]] * (most - len(o))] for o in own]
    answers = listed(model, [t for t in texts for _ in range(most)], [a for row in full for a in row])
    each = token_logprobs(model, batch, answers, by_position(flatten(edits)), most, budget)
    logprobs = each.nansum(1).view(batch.rows, most)
    tokens = torch.tensor([len(a) for a in answers]).view(batch.rows, most)
    there = torch.tensor([[o < len(row) for o in range(most)] for row in own])
    logprobs = logprobs.masked_fill(~there, float("nan"))
    scores = logprobs / tokens if normalize == "mean" else logprobs
    if normalize == "unconditional":
        distinct = list(dict.fromkeys(map(tuple, answers)))
        alone = _without(model, unconditional)
        prior = token_logprobs(
            model, alone.take([0] * len(distinct)), [list(d) for d in distinct], [], 1, budget
        ).nansum(1)
        index = torch.tensor([distinct.index(tuple(a)) for a in answers])
        scores = logprobs - prior[index].view(batch.rows, most)
    return OptionScores(own, logprobs, tokens.masked_fill(~there, 0), scores, normalize)


def _causal(model: Model) -> None:
    towers = {t.name: t for t in model.architecture.towers}
    tower = towers.get("decoder", towers.get(None))
    if tower is None or not tower.causal:
        raise NotServed(
            f"scoring continuations with {type(model.core).__name__}",
            "it does not predict each token from those before it",
            "use a causal or an encoder-decoder language model",
        )


def _per_prompt(options: Sequence[Any], rows: int) -> list[list[Any]]:
    options = options.tolist() if isinstance(options, Tensor) else options
    if not isinstance(options, Sequence) or isinstance(options, (str, bytes)) or not options:
        raise BadInput("the options", "they are not a list with something in it", "give a list of texts or of ids")
    if not isinstance(options[0], str) and not isinstance(options[0], Sequence):
        raise BadInput(f"option {options[0]!r}", "it is neither a text nor a list of ids", "write [[5], [6]]")
    if not all(len(o) for o in options if isinstance(o, Sequence)):
        raise BadInput("the options", "one of them is empty", "give each prompt at least one, of at least one token")
    if isinstance(options[0], str) or whole(options[0][0]) is not None:
        return [answers_of(options)] * rows
    own: list[list[Any]] = [answers_of(o) for o in options]
    if len(own) != rows:
        raise BadInput(f"options for {len(own)} prompts", f"there are {rows} prompts", "give each at least one option")
    return own


def _without(model: Model, unconditional: Inputs | None) -> Batch:
    if unconditional is not None:
        return model.encode(unconditional)
    first = getattr(model.tokenizer, "bos_token_id", None)
    first = getattr(model.config, "bos_token_id", None) if first is None else first
    if not isinstance(first, int) or getattr(model.config, "is_encoder_decoder", False):
        raise BadInput(
            "unconditional scores", "no first token stands for an empty prompt", "give unconditional='Answer:'"
        )
    return model.encode([[first]])
