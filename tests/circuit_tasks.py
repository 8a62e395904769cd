"""A task whose circuit is known: in the model `tiny.lonely`, head 1.3 alone tells the last token about earlier ones."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import tiny
import torch

import mechanome as mn
from mechanome.tasks import Example, Task

NOUNS = ("cat", "dog", "cow", "hen", "fox")


def sentences() -> list[tuple[str, str]]:
    """Pairs of sentences that differ in their noun."""
    return [(f"the {a} {v} on the", f"the {b} {v} on the") for v in ("sat", "ran") for a, b in permutations(NOUNS, 2)]


def task(model: mn.Model) -> Task:
    """Pairs whose answer and foil are the words that the nouns decide between, on both sides."""
    pairs, made = sentences(), []
    words = torch.tensor([model.single_token(f" {word}") for word in tiny.WORDS])
    logits = {s: model.run(s).logits[0, -1][words] for pair in pairs for s in pair}
    for n, (clean, other) in enumerate(pairs):
        a, b = logits[clean], logits[other]
        margins = torch.minimum(a[:, None] - a[None, :], b[None, :] - b[:, None])
        answer, foil = divmod(int(margins.argmax()), len(words))
        if margins.max() > 0.1:
            made.append(
                Example(
                    clean,
                    answer=f" {tiny.WORDS[answer]}",
                    foil=f" {tiny.WORDS[foil]}",
                    counterfactual=other,
                    spans={"noun": clean.split()[1]},
                    groups={"number": str(n)},
                )
            )
    return Task("nouns", tuple(made), "Which word follows a noun.")


def written(folder: Path) -> Path:
    """The task of `tiny.save`'s model as a file."""
    path = folder / "nouns.jsonl"
    task(mn.load(tiny.save(folder / "model"), check="off")).to_jsonl(path)
    return path
