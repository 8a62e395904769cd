"""What exactly is explained: why this answer rather than that one, for this prompt rather than that one.

An explanation is always a contrast. The `foil` says rather than what, the `counterfactual` says compared with what;
both have automatic choices, and every automatic choice is put into words that the result carries with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.core import BadInput, NotServed, ShapeMismatch
from mechanome.engine import Batch, LogitDiff, Model
from mechanome.engine.inputs import token_strings
from mechanome.explain.counterfactual import Swap, difference, log_odds, swapped, swaps
from mechanome.explain.tokens import Token, percent, quoted

MIN_GAP = 0.5
"""Prompt and counterfactual must differ by this much in the logit difference, or there is nothing to explain."""


@dataclass(frozen=True)
class Question:
    """A contrast between two prompts of equal length and between two next tokens.

    Args:
        prompt: the text given.
        counterfactual: the text it is compared with.
        clean: the prompt as one row.
        corrupted: the counterfactual as one row, as many tokens.
        answer: the token whose prediction is explained.
        foil: the token it is compared with.
        swap: how the counterfactual was made, None if it was given.
        choices: every automatic choice, in words.
        clean_logits: next-token logits after the prompt, `[vocab]`.
        corrupted_logits: next-token logits after the counterfactual, `[vocab]`.
    """

    prompt: str
    counterfactual: str
    clean: Batch = field(repr=False)
    corrupted: Batch = field(repr=False)
    answer: Token
    foil: Token
    swap: Swap | None
    choices: tuple[str, ...]
    clean_logits: Tensor = field(repr=False)
    corrupted_logits: Tensor = field(repr=False)

    @property
    def metric(self) -> LogitDiff:
        """Logit of the answer minus logit of the foil: how strongly the model prefers the answer."""
        return LogitDiff(self.answer.id, self.foil.id)

    @property
    def tokens(self) -> tuple[str, ...]:
        """The prompt's tokens."""
        return self.clean.tokens[0]

    @property
    def other_tokens(self) -> tuple[str, ...]:
        """The counterfactual's tokens."""
        return self.corrupted.tokens[0]

    @property
    def length(self) -> int:
        """Tokens of either prompt."""
        return self.clean.frame.lengths[0]

    @property
    def differing(self) -> tuple[int, ...]:
        """Positions at which the two prompts differ."""
        same = self.clean.input_ids[0] == self.corrupted.input_ids[0]
        return tuple(int(p) for p in (~same).nonzero()[:, 0])

    def preference(self, logits: Tensor) -> Tensor:
        """The metric of next-token logits `[row, vocab]`, `[row]`."""
        return self.metric(logits, torch.zeros(len(logits), dtype=torch.long))

    @property
    def high(self) -> float:
        """The metric after the prompt."""
        return float(self.preference(self.clean_logits[None])[0])

    @property
    def low(self) -> float:
        """The metric after the counterfactual."""
        return float(self.preference(self.corrupted_logits[None])[0])

    @property
    def gap(self) -> float:
        """How far prompt and counterfactual are apart: every effect is a share of this."""
        return self.high - self.low

    def restored(self, logits: Tensor) -> Tensor:
        """Which share of the gap is there, from next-token logits `[row, vocab]`: 0 as after the counterfactual, 1 as
        after the prompt, `[row]`."""
        return (self.preference(logits) - self.low) / self.gap


def ask(model: Model, prompt: str, answer: str | None, foil: str | None, counterfactual: str | None) -> Question:
    """Settle what is explained; what is None is chosen.

    Raises:
        NotServed: not a language model with a tokenizer.
        BadInput: an empty or too long prompt, an answer or foil that cannot be used, a counterfactual that is the
            prompt or that does not change the answer, or none that could be made.
        ShapeMismatch: a counterfactual of another token length.
    """
    _check_model(model)
    if not isinstance(prompt, str):
        raise BadInput(f"a prompt of type {type(prompt).__name__}", "one text is explained at a time", "pass a string")
    clean = model.encode(prompt)
    given = None if counterfactual is None else _given(model, clean, counterfactual)
    every = _logits(model, clean)
    last = every[-1]
    choices: list[str] = []
    target = _answer(model, answer, last, choices)
    rival = None if foil is None else _named(model, "foil", foil, last, choices)
    _check_rival(target, rival, answer, foil)
    swap = None
    if given is None:
        score = log_odds(target.id) if rival is None else difference(target.id, rival.id)
        swap = swaps(model, clean, every, score)[0]
        given = model.encode([swapped(clean.input_ids[0], swap.position, swap.new.id)], bos="none")
    other = _logits(model, given)[-1]
    if swap is not None:
        before, after = (percent(float(logits.softmax(-1)[target.id])) for logits in (last, other))
        choices.append(
            f"counterfactual: {swap.old} swapped for {swap.new} (automatic: of the swaps of one token, the one that "
            f"costs the answer most for its plausibility; {target} falls from {before} to {after})"
        )
    rival = rival or _foil(model, target, last, other, choices)
    text = counterfactual if counterfactual is not None else _text(model, given)
    question = Question(prompt, text, clean, given, target, rival, swap, tuple(choices), last, other)
    if question.gap < MIN_GAP:
        raise BadInput(
            f"counterfactual {quoted(text)}",
            f"it hardly changes the preference for {target} over {rival} "
            f"(logit difference {question.high:.2f} after the prompt, {question.low:.2f} after the counterfactual)",
            "choose a counterfactual with another answer, or another --foil",
        )
    return question


def _check_model(model: Model) -> None:
    if model.tokenizer is None or not callable(model.tokenizer):
        raise NotServed(f"explaining {model.name}", "it came without a tokenizer", "pass tokenizer= to mechanome.load")
    towers = model.architecture.towers
    if len(towers) != 1 or not towers[0].causal or not model.serves("logits"):
        raise NotServed(
            f"explaining {model.name}",
            "it is no language model that predicts the next token",
            "use a causal language model, such as smollm2-135m-instruct",
        )


def _logits(model: Model, batch: Batch) -> Tensor:
    logits = model.run(batch).logits
    assert logits is not None
    return logits[0].float().cpu()


def _given(model: Model, clean: Batch, counterfactual: str) -> Batch:
    other = model.encode(counterfactual)
    n, m = clean.frame.lengths[0], other.frame.lengths[0]
    if n != m:
        lists = "; ".join(" ".join(quoted(t) for t in _shown(b.tokens[0])) for b in (clean, other))
        raise ShapeMismatch(
            f"a counterfactual of {m} tokens for a prompt of {n}",
            f"effects are compared token by token ({lists})",
            "change words for others of as many tokens",
        )
    if bool((clean.input_ids == other.input_ids).all()):
        raise BadInput("the counterfactual", "it is the prompt itself", "change the word that decides the answer")
    return other


def _shown(tokens: tuple[str, ...], most: int = 24) -> tuple[str, ...]:
    return tokens if len(tokens) <= most else (*tokens[:most], "...")


def _answer(model: Model, answer: str | None, last: Tensor, choices: list[str]) -> Token:
    top = Token.of(model, int(last.argmax()))
    share = last.softmax(-1)
    if answer is None:
        choices.append(f"answer: {top} (automatic: the model's likeliest next token, {percent(float(share[top.id]))})")
        return top
    target = _named(model, "answer", answer, last, choices)
    if target.id != top.id:
        choices.append(
            f"the model itself prefers {top} ({percent(float(share[top.id]))}) to the answer given "
            f"({percent(float(share[target.id]))})"
        )
    return target


def _named(model: Model, role: str, text: str, last: Tensor, choices: list[str]) -> Token:
    """The token a text starts with; a text without a leading space is also read with one, as the likelier of both."""
    spellings = [text] if not text or text[0].isspace() else [text, " " + text]
    ids = {s: list(model.tokenizer(s, add_special_tokens=False)["input_ids"]) for s in spellings}
    ids = {s: found for s, found in ids.items() if found}
    if not ids:
        raise BadInput(f"{role} {quoted(text)}", "it has no token", f"give a word, such as --{role} ' Paris'")
    spelling = max(ids, key=lambda s: float(last[ids[s][0]]))
    token = Token.of(model, ids[spelling][0])
    if spelling != text:
        choices.append(f"{role}: {quoted(text)} read as {quoted(spelling)}, as the model would continue")
    if len(ids[spelling]) > 1:
        parts = " ".join(quoted(t) for t in token_strings(model.tokenizer, ids[spelling]))
        choices.append(f"{role}: {quoted(spelling)} is several tokens ({parts}); the first one, {token}, stands for it")
    return token


def _check_rival(target: Token, rival: Token | None, answer: str | None, foil: str | None) -> None:
    if rival is None or rival.id != target.id:
        return
    same = answer is None or answer.strip() == (foil or "").strip()
    why = (
        "it is the answer" if same else f"it starts with the same token as the answer {quoted(answer or '')}: {target}"
    )
    raise BadInput(f"foil {quoted(foil or '')}", why, "choose a foil whose first token is another one")


def _foil(model: Model, target: Token, last: Tensor, other: Tensor, choices: list[str]) -> Token:
    top = Token.of(model, int(other.argmax()))
    if top.id != target.id:
        share = percent(float(other.softmax(-1)[top.id]))
        choices.append(f"foil: {top} (automatic: the likeliest next token after the counterfactual, {share})")
        return top
    best = last.clone()
    best[target.id] = float("-inf")
    second = Token.of(model, int(best.argmax()))
    share = percent(float(last.softmax(-1)[second.id]))
    choices.append(f"foil: {second} (automatic: the prompt's likeliest other token, {share})")
    return second


def _text(model: Model, batch: Batch) -> str:
    return model.tokenizer.decode(batch.input_ids[0].tolist(), skip_special_tokens=True)
