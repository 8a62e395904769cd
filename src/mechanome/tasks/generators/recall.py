"""Key-value recall: who has what, said once in the prompt. The counterfactual asks for another person of the list."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from mechanome.tasks.generator import Draft, Generator
from mechanome.tasks.words import words
from mechanome.tasks.writing import write

PER_PASS = 500
SIZES = (3, 4, 5)
FORMS = (
    ("{%s} has the {%s}.", " ", "{query} has the", "."),
    ("{%s}: {%s}", "\n", "{query}:", ""),
    ("The {%s} number is {%s}.", " ", "The {query} number is", "."),
)
NUMBERS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")


def draw(random: Random, shown: bool) -> Iterator[Draft]:
    """Drafts over three forms and three list sizes."""
    for _ in range(PER_PASS):
        entry, joiner, query, end = random.choice(FORMS)
        size = random.choice(SIZES)
        named = "number" not in entry
        keys = random.sample(words("names" if named else "nouns").first, size)
        values = random.sample(words("things").first if named else NUMBERS, size)
        asked, other = random.sample(range(size), 2)
        listed, said = _list(entry, joiner, asked, other, keys, values)
        template = listed + joiner + query
        yield Draft(
            prompt=write(template, **said, query=keys[asked]),
            counterfactual=write(template, **said, query=keys[other]),
            answer=f" {values[asked]}",
            foil=f" {values[other]}",
            template=entry % ("key", "value") + joiner + query,
            topics=(keys[asked], keys[other]),
            end=end,
            groups={"size": str(size), "place": str(asked)},
        )


def _list(
    entry: str, joiner: str, asked: int, other: int, keys: list[str], values: list[str]
) -> tuple[str, dict[str, str]]:
    """The list's template and its words; spans: the key and value that are asked for, and those of the foil."""
    labels = {asked: ("key", "value"), other: ("other_key", "other_value")}
    names = [labels.get(i, (f"_key{i}", f"_value{i}")) for i in range(len(keys))]
    said = {name: word for pair, row in zip(names, zip(keys, values)) for name, word in zip(pair, row)}
    return joiner.join(entry % pair for pair in names), said


GENERATOR = Generator(
    "key_value", "What a person or thing was said to have.", draw, ("names", "things", "nouns"), joiner="\n\n"
)
