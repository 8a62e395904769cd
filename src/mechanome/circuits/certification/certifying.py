"""`certify`: which parts of a circuit are proved not to hang on single examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.certification.bounds import Level
from mechanome.circuits.certification.certificate import Certificate
from mechanome.circuits.certification.discovery import BLOCK, Discoverer, Rule, Scored, counted, masks
from mechanome.circuits.certification.functions import Function
from mechanome.circuits.effects import Effects
from mechanome.circuits.score_matrix import Scores
from mechanome.circuits.selecting import Select
from mechanome.core import BadInput, TooFewRows, notice, track

_FEW_KEPT = 5
"""Examples that a mask should leave on average."""


def certify(
    discover: Callable[[list[Any]], Any] | Rule | int,
    dataset: Sequence[Any] | Scores | Effects | Tensor,
    *,
    p_del: float = 0.6,
    tau: float = 0.95,
    n: int = 1000,
    n0: int = 100,
    alpha: float = 0.001,
    correction: str = "bonferroni",
    seed: int = 0,
    names: Sequence[str] = (),
    quiet: bool = False,
) -> Certificate:
    """Certify a circuit: run its discovery on random parts of the examples, and prove what all of them agree on.

    Every example is deleted with chance `p_del`, independently. `n0` such masks guess for each component whether the
    method finds it; `n` other masks count how many agree with the guess. A component is certified where the
    Clopper-Pearson bound of that share is above `tau`. Then no change of the examples by up to
    `floor(log(1.5 - tau) / log(p_del))` insertions, deletions and substitutions can turn the majority around; each
    component's own bound may prove more (Anani et al. 2026, paper 26). A sub-dataset without examples counts as one on
    which nothing is found.

    Args:
        discover: what follows from examples. Either a rule over mean scores, such as `Select(40)` (a number is a size),
            with scores per example as `dataset`: the fast way, all masks in a few products. Or any function from a list
            of examples to booleans over components, or to a `Circuit`: it is run `n + n0` times, and must be a
            function of the set of examples, which is checked first.
        dataset: the examples (anything with a length and an index), or their scores: a `Scores` with `each`,
            `Effects`, or a tensor `[example, node]` or `[example, source, target]`.
        p_del: chance that an example is deleted.
        tau: share of masks that must vote alike, from 0.5 to 1.
        n: masks that are counted. n0: masks for the guess, not counted.
        alpha: chance that anything is certified wrongly (with `correction="none"`: that one component is).
        correction: for many components: "bonferroni", "holm" or "none".
        seed: of the masks.
        names: of the components that a function finds, where they are no edges of a graph.
        quiet: no progress and no notice.

    Returns:
        a `Certificate`: votes, lower bounds, decisions and radii of components, `circuit()`, `table()`, `save()`.

    Raises:
        BadInput: settings that prove nothing (a radius of 0, too few masks), a method that is not deterministic or
            depends on the order of its examples, or results that are no sets.
        TooFewRows: fewer than two examples. NotFinite: scores that are NaN or infinite.
    """
    level = Level(p_del, tau, n, n0, alpha, correction, seed)
    discovery, how = _discovery(discover, dataset, names)
    if discovery.examples < 2:
        raise TooFewRows("a certificate", f"there is {discovery.examples} example to delete", "give at least two")
    level.enough_for(len(discovery.components))
    if isinstance(discovery, Function):
        discovery.check(torch.Generator().manual_seed(level.seed))
    generator = torch.Generator().manual_seed(level.seed)  # its own, so that functions and scores see the same masks
    guesses = masks(discovery.examples, p_del, n0, generator)
    fresh = masks(discovery.examples, p_del, n, generator)
    half = 2 * counted(discovery, _blocks(guesses, "guessing", quiet))
    votes = counted(discovery, _blocks(fresh, "counting votes", quiet))
    guess = half > n0
    found = discovery.sets(torch.ones(1, discovery.examples, dtype=torch.bool))[0]
    notes = _notes(discovery, level)
    if not quiet:
        for note in notes:
            notice(note)
    agree = torch.where(guess, votes, n - votes)
    return Certificate(discovery.components, level, discovery.examples, found, guess, agree, how, notes)


def _discovery(discover: Any, dataset: Any, names: Sequence[str]) -> tuple[Discoverer, str]:
    rule = Select(discover) if isinstance(discover, int) and not isinstance(discover, bool) else discover
    if isinstance(rule, Rule):
        if names:
            raise BadInput("names", "scores bring their own", "leave names out")
        return Scored(Effects.of(dataset), rule), "scores"
    if not callable(discover):
        why = f"a {type(discover).__name__} is no function of examples and no rule over scores"
        raise BadInput("the method", why, "give a function, or Select(size) with scores per example")
    if isinstance(dataset, (Scores, Effects)):
        raise BadInput("scores", "a function takes examples", "give Select(size) instead of the function")
    return Function.of(discover, dataset, names), "function"


def _blocks(kept: Tensor, what: str, quiet: bool) -> Iterator[Tensor]:
    yield from track(kept.split(BLOCK), what, quiet=quiet)


def _notes(discovery: Discoverer, level: Level) -> tuple[str, ...]:
    kept = (1 - level.p_del) * discovery.examples
    if kept >= _FEW_KEPT:
        return ()
    return (
        f"A mask leaves {kept:.3g} of {discovery.examples} examples on average: votes are about very small datasets. "
        f"Give more examples, or a lower p_del.",
    )
