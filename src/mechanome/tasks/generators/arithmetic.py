"""Sums and differences of numbers below 100. The counterfactual changes one number, and the result keeps its length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import add, sub
from random import Random

from mechanome.tasks.generator import Draft, Generator
from mechanome.tasks.writing import write

PER_PASS = 500
OPERATIONS: tuple[tuple[str, str, Callable[[int, int], int]], ...] = (("+", "plus", add), ("-", "minus", sub))
TEMPLATES = ("{a} {op} {b} =", "{a} {word} {b} is", "Question: What is {a} {op} {b}? Answer:")


def draw(random: Random, shown: bool) -> Iterator[Draft]:
    """Drafts over two operations and numbers of one or two digits."""
    for _ in range(PER_PASS):
        template, (sign, word, operation) = random.choice(TEMPLATES), random.choice(OPERATIONS)
        a, b = random.randint(2, 60), random.randint(1, 39)
        result = operation(a, b)
        others = [x for x in range(2, 61) if x != a and _like(x, a) and _like(operation(x, b), result)]
        if result < 0 or not others:
            continue
        other = random.choice(others)
        scene = {"b": str(b)} | ({"op": sign} if "{op}" in template else {"word": word})
        yield Draft(
            prompt=write(template, a=str(a), **scene),
            counterfactual=write(template, a=str(other), **scene),
            answer=f" {result}",
            foil=f" {operation(other, b)}",
            template=template,
            topics=(f"{a} {sign} {b}",),
            end="" if template.endswith(("=", ":")) else ".",
            groups={"operation": word},
        )


def _like(one: int, other: int) -> bool:
    """Both not negative, and of as many digits."""
    return min(one, other) >= 0 and len(str(one)) == len(str(other))


GENERATOR = Generator("arithmetic", "The result of adding or subtracting two numbers.", draw, (), shots=2)
