"""Prompts of the engine benchmark: pairs of equal token length, and token rows of any size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_STORY = (
    "Sarah had two old friends, Paul and Tom, who lived in a house by the sea. Every summer she took the train to "
    "visit them, and they walked along the beach and told each other long stories until the stars came out. This "
    "year {} was away, so only one of them came to the station. They cooked fish over a fire, talked about the "
    "winter and watched the boats come home. On the last evening, before the train left, Sarah opened her bag and "
    "gave the book to"
)


@dataclass(frozen=True)
class Pair:
    """A clean prompt, its counterfactual, the answer of the clean one and that of the other."""

    clean: str
    corrupted: str
    answer: str
    foil: str

    def request(self, tokenizer: Any) -> dict[str, Any]:
        """Token ids, the start token first, as the workers take them."""
        (answer,), (foil,) = (_ids(tokenizer, text) for text in (self.answer, self.foil))
        clean, corrupted = ([tokenizer.bos_token_id, *_ids(tokenizer, t)] for t in (self.clean, self.corrupted))
        return {"clean": clean, "corrupted": corrupted, "answer": answer, "foil": foil}


PAIRS = {
    "ioi": Pair(
        "When Mary and John went to the store, John gave a drink to",
        "When Mary and John went to the store, Mary gave a drink to",
        " Mary",
        " John",
    ),
    "first token": Pair(
        "Mary and John went to the store, then John gave a drink to",
        "Tom and John went to the store, then John gave a drink to",
        " Mary",
        " Tom",
    ),
    "story": Pair(_STORY.format("Paul"), _STORY.format("Tom"), " Tom", " Paul"),
}


def rows(tokenizer: Any, count: int, width: int) -> list[list[int]]:
    """`count` rows of `width` tokens, the start token first: the story over and over, each row shifted by one token."""
    story = _ids(tokenizer, _STORY.format("Paul"))
    text = story * (1 + (count + width) // len(story))
    return [[tokenizer.bos_token_id, *text[i : i + width - 1]] for i in range(count)]


def halves(tokenizer: Any, width: int) -> dict[str, Any]:
    """A pair of `width` tokens that differs at the middle one."""
    ((clean,), answer, foil) = rows(tokenizer, 1, width), PAIRS["story"].answer, PAIRS["story"].foil
    (a,), (b,) = _ids(tokenizer, answer), _ids(tokenizer, foil)
    corrupted = list(clean)
    corrupted[width // 2] = a if clean[width // 2] != a else b
    return {"clean": clean, "corrupted": corrupted, "answer": a, "foil": b}


def _ids(tokenizer: Any, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]
