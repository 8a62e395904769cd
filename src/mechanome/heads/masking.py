"""Hiding tokens: the causal reference for every measure of token importance.

A token is hidden by attention knockout: in every layer some queries cannot attend to it, and the rest of each of their
rows is renormalized. Which queries is a choice, a row of `HIDDEN_FROM`: from the last position alone, others still see
the token, and what they took from it is still there; from every later position, nothing after it knows of it. With an
answer of several tokens the last position is each that predicts one of them. Hiding the sink is another experiment (it
breaks attention itself), so effects keep it apart.

What is hidden changes nothing before the first query that is blinded, so those tokens are run once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from mechanome.core import BadInput, NotServed, Table, UnknownName, nearest
from mechanome.engine import AttentionKnockout, Batch, Edit, Model, Prefix, preflight
from mechanome.engine.boundaries import answers_of, listed, prompt_texts
from mechanome.engine.inputs import Inputs
from mechanome.engine.memory import Budget
from mechanome.engine.resume import can_prefix, shared_prefix
from mechanome.heads.reading import on_one_line, one_prompt, token_labels

Answer = str | int | Sequence[int] | None
From = Literal["last", "later"]
HIDDEN_FROM: dict[str, str] = {
    "last": "the last position",
    "later": "every later position",
}
"""Which queries a token can be hidden from. Tokens hidden together from later positions still see each other where they
are neighbors."""
TOKENS_AT_ONCE = 1024
"""Rows times positions of one forward pass."""
ROWS_AT_ONCE = 32
"""Rows of one forward pass: wider ones gain little, and each row's positions are resolved against all of them."""


@dataclass(frozen=True)
class Masked:
    """Log-probabilities of one answer with tokens hidden.

    Args:
        base: log p(answer) with nothing hidden, in nats.
        logprobs: with each set hidden, fp64 `[set]`.
        hidden: the sets of positions.
        answer: the answer's token ids.
        tokens: of the prompt.
        hidden_from: a name of `HIDDEN_FROM`.
    """

    base: float
    logprobs: Tensor = field(repr=False)
    hidden: tuple[tuple[int, ...], ...] = field(repr=False)
    answer: tuple[int, ...]
    tokens: tuple[str, ...] = field(repr=False)
    hidden_from: str = "last"

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
        title = f"Hidden from {HIDDEN_FROM[self.hidden_from]}; log p(answer) is {self.base:.4g} with nothing hidden"
        return Table(("positions", "tokens", "log p", "drop"), rows, title)


@dataclass(frozen=True)
class LeaveOneOut:
    """What hiding each token alone does to the answer.

    Args:
        effects: the drop of log p(answer), fp64 `[pos]`; NaN at positions that were left out.
        base: log p(answer) with nothing hidden, in nats.
        sink: positions whose effect is another experiment; they are measured, but not among `others`.
        answer: token ids. tokens: of the prompt.
        hidden_from: a name of `HIDDEN_FROM`.
    """

    effects: Tensor = field(repr=False)
    base: float
    sink: tuple[int, ...]
    answer: tuple[int, ...]
    tokens: tuple[str, ...] = field(repr=False)
    hidden_from: str = "last"
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
        where = HIDDEN_FROM[self.hidden_from]
        title = f"Drop of log p(answer) when a token is hidden from {where}; {self.base:.4g} with all"
        return Table(("position", "token", "drop", "sink"), rows, title)


def neighbors(length: int, most: int) -> tuple[tuple[int, ...], ...]:
    """Positions 0 to `length` - 1 as at most `most` groups of neighbors, equally large but for the last one."""
    size = -(-length // max(1, min(length, most)))
    return tuple(tuple(range(start, min(start + size, length))) for start in range(0, length, size))


def masked_runs(
    model: Model,
    inputs: Inputs,
    hidden: Sequence[Sequence[int]],
    read: Callable[[Tensor], Tensor],
    *,
    hidden_from: From = "last",
    continued: Sequence[int] = (),
    budget: Budget = None,
) -> Tensor:
    """Hide each set of positions in all layers, and read the next-token logits; exact.

    Args:
        model: an opened causal language model.
        inputs: one prompt, without padding.
        hidden: sets of positions, each run as one row of a batch; negative positions count from the end.
        read: from float32 logits `[set, predicted token, vocab]` to what is kept of them, `[set, ...]`.
        hidden_from: a name of `HIDDEN_FROM`.
        continued: token ids after the prompt; then the logits after each of them are read too.
        budget: memory for the rows that run at once, such as "2GB".

    Returns:
        what was read, `[set, ...]`, on the CPU.

    Raises:
        BadInput: several prompts, no set, or a position outside the prompt.
        UnknownName: no such `hidden_from`.
        NotServed: a model that does not predict the next token, or whose scores cannot be edited in every layer.
        BudgetTooSmall: not even one row fits.
    """
    _check_served(model)
    if hidden_from not in HIDDEN_FROM:
        raise UnknownName(
            f"hidden_from '{hidden_from}'", "there is no such choice", nearest(hidden_from, list(HIDDEN_FROM))
        )
    batch = one_prompt(model, inputs)
    n = batch.frame.lengths[0]
    row = model.encode([batch.input_ids[0].tolist() + list(continued)], bos="none")
    sets = [_knockouts(batch.frame.positions(list(s), 0), n, n + len(continued), hidden_from) for s in hidden]
    if not sets:
        raise BadInput("tokens to hide", "there is no set of positions", "give at least one, it may be empty")
    # Rows that are blinded late share the most, and pieces of them the longest prefix.
    order = sorted(range(len(sets)), key=lambda i: min((queries[0] for _, queries in sets[i]), default=n - 1))
    logits: bool | str = True if continued else "last"
    one = AttentionKnockout(range(model.n_layers), src=[[0]], dst=[n - 1])
    fitting = preflight.rows_at_once(model, row.take([0] * len(sets)), [], one, None, logits, budget)
    once = n - 1 if hidden_from == "last" and can_prefix(model) is None else 0
    size = min(fitting, ROWS_AT_ONCE, max(1, TOKENS_AT_ONCE // (n + len(continued) - once)))
    found: dict[int, Tensor] = {}
    prefix: Prefix | None = None
    for start in range(0, len(order), size):
        part = order[start : start + size]
        first = min((queries[0] for i in part for _, queries in sets[i]), default=n - 1)
        if prefix is None or len(prefix) < first:
            prefix = shared_prefix(model, row, first)
        edits = _edits(model, [sets[i] for i in part])
        out = model.run(row.take([0] * len(part)), edits=edits, logits=logits, prefix=prefix, budget=budget).logits
        assert out is not None
        predicting = out[:, None] if out.dim() == 2 else out[:, -len(continued) - 1 :]
        found |= zip(part, read(predicting.float().cpu()))
    return torch.stack([found[i] for i in range(len(sets))])


def mask_tokens(
    model: Model,
    inputs: Inputs,
    hidden: Sequence[Sequence[int]],
    answer: Answer = None,
    *,
    hidden_from: From = "last",
    budget: Budget = None,
) -> Masked:
    """Hide each set of positions, in all layers, and score the answer; exact.

    Args:
        model, inputs, hidden, hidden_from, budget: as in `masked_runs`.
        answer: a text, a token id or ids; None takes the likeliest next token.

    Returns:
        a `Masked`.

    Raises:
        BadInput: an answer that is no continuation; and what `masked_runs` raises.
    """
    _check_served(model)
    batch = one_prompt(model, inputs)
    n = batch.frame.lengths[0]
    sets = tuple(tuple(batch.frame.positions(list(s), 0)) for s in hidden)
    ids = _answer_ids(model, inputs, batch, answer)

    def logprob(logits: Tensor) -> Tensor:
        each = logits.log_softmax(-1).double()
        return each.gather(-1, torch.tensor(ids).expand(len(each), -1)[..., None])[..., 0].sum(-1)

    values = masked_runs(model, batch, [(), *sets], logprob, hidden_from=hidden_from, continued=ids[:-1], budget=budget)
    return Masked(float(values[0]), values[1:], sets, tuple(ids), token_labels(model, batch, n), hidden_from)


def leave_one_out(
    model: Model,
    inputs: Inputs,
    answer: Answer = None,
    *,
    sink: Sequence[int] = (0,),
    positions: Sequence[int] | None = None,
    hidden_from: From = "last",
    budget: Budget = None,
) -> LeaveOneOut:
    """Hide each token alone and see how far log p(answer) drops; exact.

    The causal reference of paper 34 (Cunningham & Muca Cirone 2026).

    Args:
        model, inputs, answer, hidden_from, budget: as in `mask_tokens`.
        sink: positions that count as attention sinks.
        positions: which tokens to hide, None for all.

    Returns:
        a `LeaveOneOut`.
    """
    batch = one_prompt(model, inputs)
    n = batch.frame.lengths[0]
    each = list(range(n)) if positions is None else batch.frame.positions(list(positions), 0)
    found = mask_tokens(model, inputs, [[p] for p in each], answer, hidden_from=hidden_from, budget=budget)
    effects = torch.full((n,), float("nan"), dtype=torch.float64)
    effects[each] = found.drops
    sinks = tuple(batch.frame.positions(list(sink), 0))
    return LeaveOneOut(effects, found.base, sinks, found.answer, found.tokens, hidden_from)


Knockout = tuple[Sequence[int], Sequence[int]]
"""Keys, and the queries that cannot attend to them."""


def _knockouts(hidden: Sequence[int], n: int, end: int, hidden_from: str) -> list[Knockout]:
    """What hiding one set means for a prompt of `n` tokens, continued to `end`."""
    if not hidden:
        return []
    if hidden_from == "last":
        return [(hidden, range(n - 1, end))]
    ordered = sorted(set(hidden))
    ends = [i for i, p in enumerate(ordered) if p + 1 not in hidden]
    runs = [ordered[start + 1 : stop + 1] for start, stop in zip([-1, *ends], ends)]
    return [(run, range(run[-1] + 1, end)) for run in runs if run[-1] + 1 < end]


def _edits(model: Model, sets: Sequence[Sequence[Knockout]]) -> list[Edit]:
    """One row a set: the k-th knockouts of all rows are one edit a layer."""
    edits: list[Edit] = []
    for k in range(max(map(len, sets))):
        here = [s[k] if k < len(s) else ((), ()) for s in sets]
        src, dst = ([list(pair[side]) for pair in here] for side in (0, 1))
        alike = [queries for keys, queries in zip(src, dst) if keys]
        same = all(queries == alike[0] for queries in alike)
        edits += AttentionKnockout(range(model.n_layers), src=src, dst=alike[0] if same else dst)
    return edits


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
            reason = why.partition(". Fix: ")[0]
            raise NotServed(f"hiding tokens in {model.name}", reason, "use a model whose layers all attend")


def _answer_ids(model: Model, inputs: Inputs, batch: Batch, answer: Any) -> list[int]:
    if answer is None:
        logits = model.run(batch, logits="last").logits
        assert logits is not None
        return [int(logits[0].argmax())]
    given = answers_of([[answer]] if isinstance(answer, int) else answer)
    if len(given) != 1:
        raise BadInput(f"{len(given)} answers", "one prompt has one answer here", "give a text or a list of ids")
    return listed(model, prompt_texts(inputs), given)[0]
