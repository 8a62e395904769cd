"""Making a task: drafts are drawn until there are enough distinct examples, each in its split, with its shots.

The same name, seed and settings give the same examples, and more of them begin with those of fewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from mechanome.core.errors import BadInput, TooFewRows, UnknownName, nearest
from mechanome.core.progress import notice
from mechanome.engine.model import Model
from mechanome.tasks.example import Example
from mechanome.tasks.generator import SPLITS, Draft, Generator
from mechanome.tasks.generators import TASKS
from mechanome.tasks.selection import unaligned
from mechanome.tasks.task import Provenance, Task
from mechanome.tasks.words import words

USUAL = 200
"""Examples where no number is given."""
PATIENCE = 8
"""Passes without a new example before a generator counts as exhausted."""


def make(
    name: str,
    n: int | None = None,
    seed: int = 0,
    *,
    shots: int | None = None,
    split: str | None = None,
    model: Model | None = None,
    quiet: bool = False,
) -> Task:
    """Examples of a task.

    Args:
        name: a name of `mechanome.tasks.TASKS`.
        n: how many; by default 200, or as many as there are.
        seed: other seeds draw other examples; the split of a topic depends on no seed.
        shots: solved examples in front of each, of the same template and split; None for the generator's own number.
        split: "train", "validation" or "test": only examples whose topics are all of it. By default all three, marked.
        model: draw only counterfactuals of as many tokens as the prompt, so that `task.batch(model)` serves.
        quiet: do not say why there are fewer than usual.

    Raises:
        UnknownName: no such task or split. BadInput: a negative number.
        TooFewRows: there are not as many as were asked for; the message says why.
    """
    if name not in TASKS:
        raise UnknownName(f"task '{name}'", "there is no such generator", nearest(name, TASKS))
    generator = TASKS[name]
    shots = generator.shots if shots is None else shots
    splits = [s for s, _ in SPLITS]
    if split is not None and split not in splits:
        raise UnknownName(f"split '{split}'", "generators divide topics into three", nearest(split, splits))
    if shots < 0 or (n is not None and n < 1):
        raise BadInput(f"n={n}, shots={shots}", "n counts from 1, shots from 0", "choose other numbers")
    examples = _collect(generator, USUAL if n is None else n, seed, shots, split, model)
    if len(examples) < (n or USUAL):
        why = generator.why_few or f"its word lists ({', '.join(generator.lists)}) give no more under these settings"
        if n is not None or not examples:
            raise TooFewRows(f"{n or USUAL} examples of '{name}'", f"there are {len(examples)}: {why}", "ask for fewer")
        if not quiet:
            notice(f"{name}: {len(examples)} examples, because {why}")
    lists = tuple(f"{w} ({words(w).license}; {words(w).source})" for w in generator.lists)
    return Task(name, tuple(examples), generator.summary, provenance=Provenance(name, seed, shots, split, lists))


def _collect(
    generator: Generator, wanted: int, seed: int, shots: int, split: str | None, model: Model | None
) -> list[Example]:
    random = Random(f"{generator.name}/{seed}")
    seen: set[str] = set()
    found: list[Example] = []
    for draft in _patiently(generator, random, shots > 0, found):
        home = generator.split(draft)
        if draft.prompt.text in seen or home is None or split not in (None, home):
            continue
        example = _example(generator, draft, home, shots, Random(f"{generator.name}/{seed}/{draft.prompt.text}"))
        if model is not None and unaligned(model, example):
            continue
        seen.add(draft.prompt.text)
        found.append(example)
        if len(found) == wanted:
            break
    return found


def _patiently(generator: Generator, random: Random, shown: bool, found: list[Example]) -> Iterator[Draft]:
    """Drafts of pass after pass, until several passes have added nothing to what the caller found."""
    idle = 0
    while idle < PATIENCE:
        before = len(found)
        yield from generator.draw(random, shown)
        idle = idle + 1 if len(found) == before else 0


def _example(generator: Generator, draft: Draft, home: str, shots: int, random: Random) -> Example:
    solved = [d.solved for d in _demonstrations(generator, draft, home, shots, random)]
    head = "".join(s + generator.joiner for s in solved)
    prompt, other = draft.prompt.behind(head), draft.counterfactual.behind(head)
    return Example(
        prompt.text,
        answer=draft.answer,
        foil=draft.foil,
        counterfactual=other.text,
        label=draft.label or draft.answer.strip(),
        spans=prompt.spans,
        counterfactual_spans=other.spans,
        groups={"template": draft.template, "topic": draft.topics[0], **draft.groups},
        split=home,
    )


def _demonstrations(generator: Generator, draft: Draft, home: str, shots: int, random: Random) -> list[Draft]:
    """Other drafts of the same template, no two about one topic, and of the same split where topics are divided."""
    chosen: list[Draft] = []
    taken = set(draft.topics)
    for _ in range(PATIENCE if shots else 0):
        for other in generator.draw(random, True):
            near = not generator.by_topic or generator.split(other) == home
            if near and other.template == draft.template and taken.isdisjoint(other.topics[:1]):
                chosen.append(other)
                taken.add(other.topics[0])
            if len(chosen) == shots:
                return chosen
    if shots:
        raise TooFewRows(
            f"{shots} shots of '{generator.name}'", f"split '{home}' has {len(chosen)} other topics", "ask for fewer"
        )
    return chosen
