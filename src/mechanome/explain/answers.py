"""Answer and foil as whole texts: their tokens, where they part, and how likely each is as a whole.

Both may be several tokens. What is explained is one prediction: the *fork*, the first token at which they differ. The
tokens before it, which both share, are appended to both prompts, as if the model had said them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from mechanome.core import BadInput
from mechanome.engine import Model
from mechanome.engine.boundaries import listed
from mechanome.explain.prompts import Prompt
from mechanome.explain.tokens import Token, quoted
from mechanome.report import number


@dataclass(frozen=True)
class Continuation:
    """A text the model may say after the prompt.

    Args:
        tokens: its tokens, at least one.
        text: what they make together; a character may be spread over several tokens.
    """

    tokens: tuple[Token, ...]
    text: str

    @property
    def ids(self) -> list[int]:
        """Its token ids."""
        return [token.id for token in self.tokens]

    def __str__(self) -> str:
        return quoted(self.text)

    @classmethod
    def of(cls, model: Model, ids: Sequence[int]) -> Continuation:
        """The continuation of some ids."""
        text = model.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        return cls(tuple(Token.of(model, i) for i in ids), text)


@dataclass(frozen=True)
class Score:
    """How likely one whole continuation is: the sum of its tokens' log-probabilities, each given those before it.

    Args:
        text: the continuation.
        tokens: how many tokens it has.
        prompt: after the prompt, in nats.
        counterfactual: after the counterfactual, in nats.
    """

    text: str
    tokens: int
    prompt: float
    counterfactual: float


@dataclass(frozen=True)
class Scores:
    """Answer and foil as wholes; the explanation itself is of the token at which they part.

    Args:
        answer: the whole answer.
        foil: the whole foil.
    """

    answer: Score
    foil: Score

    @property
    def high(self) -> float:
        """Log-odds of the whole answer against the whole foil after the prompt, in nats."""
        return self.answer.prompt - self.foil.prompt

    @property
    def low(self) -> float:
        """After the counterfactual."""
        return self.answer.counterfactual - self.foil.counterfactual

    @property
    def several(self) -> bool:
        """Whether one of them has more than one token, so that the wholes say more than the fork."""
        return max(self.answer.tokens, self.foil.tokens) > 1

    def sentences(self, fork: float) -> list[str]:
        """What the wholes say, and where they disagree with the fork.

        Args:
            fork: logit of the answer's token minus logit of the foil's, after the prompt.
        """
        if not self.several:
            return []
        each = [
            f"{quoted(s.text)} ({s.tokens} token{'s' if s.tokens > 1 else ''}) {number(s.prompt)} after the prompt and "
            f"{number(s.counterfactual)} after the counterfactual"
            for s in (self.answer, self.foil)
        ]
        said = [f"log-probabilities of the whole texts, in nats: {'; '.join(each)}"]
        longer = (
            "; every further token makes a text less likely, so compare texts of different length with care"
            if self.answer.tokens != self.foil.tokens
            else ""
        )
        if self.high * fork < 0:
            one, other = (self.answer, self.foil) if self.high > 0 else (self.foil, self.answer)
            said.append(
                f"the whole texts disagree with the token explained: after the prompt {quoted(one.text)} is likelier "
                f"than {quoted(other.text)} as a whole, while its token is the less likely one of the two{longer}"
            )
        if self.high <= self.low:
            said.append(
                f"the whole texts disagree with the token explained: the counterfactual does not make "
                f"{quoted(self.answer.text)} less likely against {quoted(self.foil.text)} as a whole"
            )
        return said


def read(model: Model, role: str, prompt: Prompt, text: str, last: Tensor, choices: list[str]) -> Continuation:
    """The tokens of a text after the prompt; without a leading space it is also read with one, as the likelier of both.

    Args:
        model: an opened language model.
        role: "answer" or "foil", named in errors and choices.
        prompt: what it comes after.
        text: the continuation as given.
        last: next-token logits after the prompt, `[vocab]`.
        choices: what was decided is added here, in words.

    Raises:
        BadInput: a text without a token.
    """
    if not isinstance(text, str):
        raise BadInput(f"{role} of type {type(text).__name__}", "it is a text", f"write {role}=' Paris'")
    spellings = [text] if not text or text[0].isspace() else [text, " " + text]
    found = {s: read for s in spellings if (read := _tokens(model, prompt, s))[0]}
    if not found:
        raise BadInput(f"{role} {quoted(text)}", "it has no token", f"give a word, such as --{role} ' Paris'")
    spelling = max(found, key=lambda s: float(last[found[s][0][0]]))
    ids, alone = found[spelling]
    if spelling != text:
        choices.append(f"{role}: {quoted(text)} read as {quoted(spelling)}, as the model would continue")
    if alone:
        choices.append(
            f"{role}: the tokens of {quoted(spelling)} by itself are taken; written behind this prompt, it would merge "
            "with the prompt's last token"
        )
    return Continuation.of(model, ids)


def _tokens(model: Model, prompt: Prompt, text: str) -> tuple[list[int], bool]:
    """Ids of a text behind the prompt, and whether they had to be taken from the text alone."""
    if not text:
        return [], False
    try:
        return listed(model, [prompt.text if prompt.chat is None else prompt.chat], [text])[0], False
    except BadInput:  # a token would straddle the boundary
        return list(model.tokenizer(text, add_special_tokens=False)["input_ids"]), True


def fork(answer: Continuation, foil: Continuation) -> int:
    """The index of the first token at which they differ.

    Raises:
        BadInput: they are the same, or one is the beginning of the other.
    """
    for n, (a, b) in enumerate(zip(answer.ids, foil.ids)):
        if a != b:
            return n
    if answer.ids == foil.ids:
        raise BadInput(f"foil {foil}", "it is the answer", "choose another foil")
    short, long = sorted((answer, foil), key=lambda c: len(c.ids))
    raise BadInput(
        f"answer {answer} and foil {foil}",
        f"{short} is the beginning of {long}, so no token tells them apart",
        f"say what else would follow {short}",
    )


def parting(answer: Continuation, foil: Continuation, n: int) -> list[str]:
    """Which token of texts of several tokens is explained, in words; nothing to say for texts of one token.

    Args:
        answer: the whole answer.
        foil: the whole foil.
        n: the index at which they part.
    """
    several = [
        f"{role} {text} is {len(text.tokens)} tokens ({' '.join(map(str, text.tokens))})"
        for role, text in (("answer", answer), ("foil", foil))
        if len(text.tokens) > 1
    ]
    if not several:
        return []
    shared, contrast = " ".join(map(str, answer.tokens[:n])), f"{answer.tokens[n]} rather than {foil.tokens[n]}"
    where = (
        f"they share {shared}, which is put behind both prompts; what is explained is the token after it, {contrast}"
        if n
        else f"what is explained is the first token, {contrast}"
    )
    return [f"{'; '.join(several)}; {where}"]


def whole_scores(
    model: Model, prompt: Prompt, counterfactual: Prompt, answer: Continuation, foil: Continuation
) -> Scores:
    """Both continuations after both prompts, each token scored given those before it.

    Raises:
        BadInput: prompt and continuation together are longer than the context.
    """
    rows = model.encode([prompt.ids, counterfactual.ids], bos="none")
    found = model.score_options(rows, [answer.ids, foil.ids]).logprobs.tolist()
    sides = zip((answer, foil), zip(*found))
    return Scores(*(Score(side.text, len(side.ids), *after) for side, after in sides))
