"""Hiding tokens from the last position: the causal reference for every measure of token importance.

A token is hidden by attention knockout: in every layer the last query cannot attend to it, and the rest of each row is
renormalized. Other positions still see it, so what they took from it earlier is still there. With an answer of several
tokens, the token is hidden from every position that predicts one of them. Hiding the sink is another experiment (it
breaks attention itself), so effects keep it apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mechanome.core import BadInput, NotServed, Table
from mechanome.engine import AttentionKnockout, Batch, Model, preflight
from mechanome.engine.boundaries import answers_of, listed, prompt_texts
from mechanome.engine.inputs import Inputs
from mechanome.engine.memory import Budget
from mechanome.heads.reading import on_one_line, one_prompt, token_labels

Answer = str | int | Sequence[int] | None


@dataclass(frozen=True)
class Masked:
    """Log-probabilities of one answer with tokens hidden.

    Args:
        base: log p(answer) with nothing hidden, in nats.
        logprobs: with each set hidden, fp64 `[set]`.
        hidden: the sets of positions.
        answer: the answer's token ids.
        tokens: of the prompt.
    """

    base: float
    logprobs: Tensor = field(repr=False)
    hidden: tuple[tuple[int, ...], ...] = field(repr=False)
    answer: tuple[int, ...]
    tokens: tuple[str, ...] = field(repr=False)

    @property
    def drops(self) -> Tensor:
        """How far each set lowers log p(answer), fp64 `[set]`: above 0 where the hidden tokens spoke for the answer."""
        return self.base - self.logprobs

    def table(self) -> Table:
        """One row a set: the hidden tokens, log p(answer), and its drop."""
        rows = [
            (" ".join(map(str, s)), on_one_line("".join(self.tokens[p] for p in s)), float(value), float(drop))
            for s, value, drop in zip(self.hidden, self.logprobs, self.drops)
        ]
        title = f"Hidden from the last position; log p(answer) is {self.base:.4g} with nothing hidden"
        return Table(("positions", "tokens", "log p", "drop"), rows, title)


@dataclass(frozen=True)
class LeaveOneOut:
    """What hiding each token alone does to the answer.

    Args:
        effects: the drop of log p(answer), fp64 `[pos]`; NaN at positions that were left out.
        base: log p(answer) with nothing hidden, in nats.
        sink: positions whose effect is another experiment; they are measured, but not among `others`.
        answer: token ids. tokens: of the prompt.
    """

    effects: Tensor = field(repr=False)
    base: float
    sink: tuple[int, ...]
    answer: tuple[int, ...]
    tokens: tuple[str, ...] = field(repr=False)
    axes: tuple[str, ...] = ("pos",)

    @property
    def others(self) -> tuple[int, ...]:
        """The measured positions without the sink."""
        known = (~self.effects.isnan()).nonzero()[:, 0].tolist()
        return tuple(p for p in known if p not in self.sink)

    def table(self) -> Table:
        """One row a token, in the order of the prompt."""
        rows = [
            (
                j,
                on_one_line(token),
                None if bool(self.effects[j].isnan()) else float(self.effects[j]),
                "*" if j in self.sink else "",
            )
            for j, token in enumerate(self.tokens)
        ]
        title = f"Drop of log p(answer) when a token is hidden from the last position; {self.base:.4g} with all"
        return Table(("position", "token", "drop", "sink"), rows, title)


def mask_tokens(
    model: Model,
    inputs: Inputs,
    hidden: Sequence[Sequence[int]],
    answer: Answer = None,
    *,
    budget: Budget = None,
) -> Masked:
    """Hide each set of positions from the last one, in all layers, and score the answer; exact.

    Args:
        model: an opened causal language model.
        inputs: one prompt, without padding.
        hidden: sets of positions, each run as one row of a batch; negative positions count from the end.
        answer: a text, a token id or ids; None takes the likeliest next token.
        budget: memory for the rows that run at once, such as "2GB".

    Returns:
        a `Masked`.

    Raises:
        BadInput: several prompts, a position outside the prompt, an answer that is no continuation.
        NotServed: a model that does not predict the next token, or whose scores cannot be edited in every layer.
        BudgetTooSmall: not even one row fits.
    """
    _check_served(model)
    batch = one_prompt(model, inputs)
    n = batch.frame.lengths[0]
    sets = tuple(tuple(batch.frame.positions(list(s), 0)) for s in hidden)
    ids = batch.input_ids[0].tolist()
    answer_ids = _answer_ids(model, inputs, batch, answer)
    rows = model.encode([ids + answer_ids[:-1]])
    asking = list(range(n - 1, n - 1 + len(answer_ids)))
    every: list[tuple[int, ...]] = [(), *sets]
    logits: bool | str = "last" if len(answer_ids) == 1 else True
    one = AttentionKnockout(range(model.n_layers), src=[[0]], dst=asking)
    size = preflight.rows_at_once(model, rows.take([0] * len(every)), [], one, None, logits, budget)
    scores = []
    for start in range(0, len(every), size):
        part = every[start : start + size]
        src = [list(s) for s in part]
        edits = AttentionKnockout(range(model.n_layers), src=src, dst=asking) if any(src) else []
        found = model.run(rows.take([0] * len(part)), edits=edits, logits=logits, budget=budget).logits
        assert found is not None
        predicting = found[:, None] if found.dim() == 2 else found[:, asking]
        each = predicting.float().log_softmax(-1).cpu().double()
        scores.append(each.gather(-1, torch.tensor(answer_ids).expand(len(part), -1)[..., None])[..., 0].sum(-1))
    values = torch.cat(scores)
    return Masked(float(values[0]), values[1:], sets, tuple(answer_ids), token_labels(model, batch, n))


def leave_one_out(
    model: Model,
    inputs: Inputs,
    answer: Answer = None,
    *,
    sink: Sequence[int] = (0,),
    positions: Sequence[int] | None = None,
    budget: Budget = None,
) -> LeaveOneOut:
    """Hide each token alone from the last position and see how far log p(answer) drops; exact.

    The causal reference of paper 34 (Cunningham & Muca Cirone 2026).

    Args:
        model, inputs, answer, budget: as in `mask_tokens`.
        sink: positions that count as attention sinks.
        positions: which tokens to hide, None for all.

    Returns:
        a `LeaveOneOut`.
    """
    batch = one_prompt(model, inputs)
    n = batch.frame.lengths[0]
    each = list(range(n)) if positions is None else batch.frame.positions(list(positions), 0)
    found = mask_tokens(model, inputs, [[p] for p in each], answer, budget=budget)
    effects = torch.full((n,), float("nan"), dtype=torch.float64)
    effects[each] = found.drops
    sinks = tuple(batch.frame.positions(list(sink), 0))
    return LeaveOneOut(effects, found.base, sinks, found.answer, found.tokens)


def _check_served(model: Model) -> None:
    towers = model.architecture.towers
    if len(towers) != 1 or not towers[0].causal:
        raise NotServed(
            f"hiding tokens in {model.name}",
            "it does not predict each token from those before it",
            "use a causal language model",
        )
    for layer in range(model.n_layers):
        if why := model.why_not_edit(f"scores.{layer}"):
            raise NotServed(f"hiding tokens in {model.name}", why, "use a model whose layers all attend")


def _answer_ids(model: Model, inputs: Inputs, batch: Batch, answer: Any) -> list[int]:
    if answer is None:
        logits = model.run(batch, logits="last").logits
        assert logits is not None
        return [int(logits[0].argmax())]
    given = answers_of([[answer]] if isinstance(answer, int) else answer)
    if len(given) != 1:
        raise BadInput(f"{len(given)} answers", "one prompt has one answer here", "give a text or a list of ids")
    return listed(model, prompt_texts(inputs), given)[0]
