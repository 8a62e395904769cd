"""What exactly is explained: why this answer rather than that one, for this prompt rather than that one.

An explanation is always a contrast. The `foil` says rather than what, the `counterfactual` says compared with what;
both have automatic choices, and every automatic choice is put into words that the result carries with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mechanome.core import BadInput, NotFinite, NotServed, ShapeMismatch
from mechanome.engine import Batch, LogitDiff, Model
from mechanome.explain.answers import Continuation, Score, Scores, fork, parting, read, whole_scores
from mechanome.explain.asked import Asked, Message
from mechanome.explain.choices import choose_answer, choose_foil, next_logits
from mechanome.explain.counterfactual import Swap
from mechanome.explain.prompts import Prompt
from mechanome.explain.subject import Subject
from mechanome.explain.tokens import Prediction, Token, percent, quoted
from mechanome.report import number

MIN_GAP = 0.5
"""Prompt and counterfactual must differ by this much in the logit difference, or there is nothing to explain."""


@dataclass(frozen=True)
class Question:
    """A contrast between two prompts of equal length and between two next tokens.

    Args:
        subject: prompt, whole answer and, if it was given, whole foil.
        other: what the prompt is compared with.
        clean: the prompt as one row, with the tokens that answer and foil share behind it.
        corrupted: the counterfactual likewise, as many tokens.
        answer: the token whose prediction is explained: the first of the whole answer that the foil does not share.
        foil: the token it is compared with.
        swap: how the counterfactual was made, None if it was given.
        choices: every automatic choice, in words.
        clean_logits: next-token logits after `clean`, `[vocab]`.
        corrupted_logits: next-token logits after `corrupted`, `[vocab]`.
        scores: answer and foil as whole texts.
        opening: the likeliest next token after the prompt alone, without what answer and foil share.
        shared: the tokens that both share, the last ones of both rows.
        shared_text: what they make, as it stands behind both prompts; empty where answer and foil share none.
        further: other swaps that would do, best first; none where the counterfactual was given.
    """

    subject: Subject = field(repr=False)
    other: Prompt = field(repr=False)
    clean: Batch = field(repr=False)
    corrupted: Batch = field(repr=False)
    answer: Token
    foil: Token
    swap: Swap | None
    choices: tuple[str, ...]
    clean_logits: Tensor = field(repr=False)
    corrupted_logits: Tensor = field(repr=False)
    scores: Scores
    opening: Prediction = field(repr=False)
    shared: tuple[Token, ...] = ()
    shared_text: str = ""
    further: tuple[Swap, ...] = field(default=(), repr=False)

    @property
    def prompt(self) -> str:
        """The text given; of a chat, its last message."""
        return self.subject.prompt.text

    @property
    def counterfactual(self) -> str:
        """The text it is compared with; of a chat, the message that was swapped, or the last one."""
        return self.other.text

    @property
    def chat(self) -> tuple[Message, ...] | None:
        """The messages, None for a text."""
        return self.subject.prompt.chat

    @property
    def content(self) -> tuple[int, ...]:
        """Positions of the prompt's own tokens: not the template of a chat, not the tokens that answer and foil
        share."""
        return self.subject.prompt.content

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


def ask(
    model: Model, prompt: Asked, answer: str | None = None, foil: str | None = None, counterfactual: Asked | None = None
) -> Question:
    """Settle what is explained; what is None is chosen.

    Raises:
        NotServed: not a language model with a tokenizer.
        BadInput: an empty or too long prompt, an answer or foil that cannot be used, a counterfactual that is the
            prompt or that does not change the answer, or none that could be made.
        ShapeMismatch: a counterfactual of another token length.
        NotFinite: a model whose predictions are no numbers.
    """
    _check_model(model)
    own = Prompt.of(model, prompt)
    given = None if counterfactual is None else _given(model, own, counterfactual)
    last = next_logits(model, own.batch)
    if bool(last.isnan().any()) or float(last.max()) == float("inf"):  # minus infinity is a token that is ruled out
        raise NotFinite(f"the logits of {model.name}", "some are NaN or infinite", "use float32, or check the weights")
    choices: list[str] = []
    rival = None if foil is None else read(model, "foil", own, foil, last, choices)
    subject = Subject(own, choose_answer(model, own, answer, rival, last, choices), rival)
    if rival is not None:
        fork(subject.answer, rival)
    if given is not None:
        question = against(model, subject, given, choices=choices)
    else:
        swap, *further = subject.best_swaps(model, last)
        question = against(model, subject, own.swapped(model, swap.position, swap.new.id), swap, choices)
        question = replace(question, further=tuple(further))
    if question.gap < MIN_GAP:
        raise BadInput(
            f"counterfactual {quoted(question.counterfactual)}",
            f"{_little(question)} the preference for {question.answer} over {question.foil} (logit difference "
            f"{number(question.high)} after the prompt, {number(question.low)} after the counterfactual)"
            f"{_rather(question)}",
            "choose a counterfactual with another answer, or another --foil",
        )
    return question


def against(
    model: Model, subject: Subject, other: Prompt, swap: Swap | None = None, choices: Sequence[str] = ()
) -> Question:
    """The question that one counterfactual makes of a subject; the foil is chosen where none was given.

    Args:
        model: an opened language model.
        subject: what is explained.
        other: the counterfactual, as many tokens.
        swap: how it was made.
        choices: what was decided before, in words.
    """
    prompt, answer = subject.prompt, subject.answer
    chosen: list[str] = []
    foil = subject.foil or choose_foil(model, prompt, other, answer, chosen)
    n = fork(answer, foil)
    first, second = (p.followed_by(model, answer.ids[:n]) for p in (prompt, other))
    clean, corrupted = next_logits(model, first), next_logits(model, second)
    token, rival = answer.tokens[n], foil.tokens[n]
    if len(answer.tokens) == len(foil.tokens) == 1:
        after = [logits.double().log_softmax(-1) for logits in (clean, corrupted)]
        scores = Scores(*(Score(t.text, 1, *(float(a[t.id]) for a in after)) for t in (token, rival)))
    else:
        scores = whole_scores(model, prompt, other, answer, foil)
    made = [] if swap is None else [_said(swap, token, clean, corrupted)]
    shared = Continuation.of(model, answer.ids[:n])
    alone = next_logits(model, prompt.batch) if n else clean
    question = Question(
        subject=subject,
        other=other,
        clean=first,
        corrupted=second,
        answer=token,
        foil=rival,
        swap=swap,
        choices=(),
        clean_logits=clean,
        corrupted_logits=corrupted,
        scores=scores,
        opening=Prediction.of(model, alone, 1),
        shared=shared.tokens,
        shared_text=shared.text,
    )
    said = (*choices, *made, *chosen, *parting(answer, foil, n), *scores.sentences(question.high))
    return replace(question, choices=said)


def _little(question: Question) -> str:
    """What the counterfactual does to the preference instead of weakening it."""
    return "it strengthens" if question.gap <= -MIN_GAP else "it hardly changes"


def _rather(question: Question) -> str:
    """That the model prefers the foil, where it does."""
    return "" if question.high >= 0 else f"; after the prompt the model prefers {question.foil} to {question.answer}"


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


def _given(model: Model, prompt: Prompt, counterfactual: Asked) -> Prompt:
    other = Prompt.of(model, counterfactual, "the counterfactual")
    n, m = prompt.length, other.length
    if n != m:
        lists = "; ".join(" ".join(quoted(t) for t in _shown(p.batch.tokens[0])) for p in (prompt, other))
        raise ShapeMismatch(
            f"a counterfactual of {m} tokens for a prompt of {n}",
            f"effects are compared token by token ({lists})",
            "change words for others of as many tokens",
        )
    if prompt.ids == other.ids:
        raise BadInput("the counterfactual", "it is the prompt itself", "change the word that decides the answer")
    return other


def _shown(tokens: tuple[str, ...], most: int = 24) -> tuple[str, ...]:
    return tokens if len(tokens) <= most else (*tokens[:most], "...")


def _said(swap: Swap, answer: Token, clean: Tensor, corrupted: Tensor) -> str:
    before, after = (percent(float(logits.softmax(-1)[answer.id])) for logits in (clean, corrupted))
    return (
        f"counterfactual: {swap.old} swapped for {swap.new} (automatic: of the swaps of one token, the one that "
        f"costs the answer most for its plausibility; {answer} falls from {before} to {after})"
    )
