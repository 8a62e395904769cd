"""Does the explanation hold? The named parts are tested together, against random parts of equal number and kind.

Two exact tests on the same prompt. *Remove*: give the named parts their counterfactual values in the prompt's run; at
least half of the preference must be lost. *Keep*: give only the named parts their prompt values in the counterfactual's
run; at least half must come back. In both they must beat random sets, drawn from all other parts with as many of each
kind, by the Monte Carlo test p = (1 + sets that do as well) / (1 + sets), and those sets must do little on average:
where random parts do nearly as much, the named ones explain nothing. The answer must also be what the model says. If
one test fails, the behavior is *not explained*, and the page says so. Echoes of the input take no part: with them the
tests would pass whatever else is named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mechanome.core import Interval, TooFewRows, bootstrap
from mechanome.engine import Site
from mechanome.explain.components import Component, every_site
from mechanome.explain.effects import TOKENS, Grid
from mechanome.explain.pair import Loan, Pair
from mechanome.explain.tokens import Prediction, whole

MUST_REMOVE = 0.5
"""Removing the named parts must lose this share of the preference."""
MUST_KEEP = 0.5
"""Keeping only the named parts must bring this share back."""
RANDOM_AT_MOST = 0.25
"""Random sets must lose, and bring back, no more than this share on average."""
LEVEL = 0.05
"""Largest p-value against random sets."""
SETS = 50
FEWEST_SETS = 20
"""Random sets, and the fewest where a long prompt makes them dear; 20 are needed to reach `LEVEL`."""


@dataclass(frozen=True)
class Trial:
    """One test.

    Args:
        share: of the gap, lost (remove) or brought back (keep) by the named parts together.
        needed: the least share that passes.
        random: the same for each random set.
        spread: mean of the random sets with its 95 % bootstrap interval.
        after: what the model predicts in this state.
    """

    share: float
    needed: float
    random: tuple[float, ...] = field(repr=False)
    spread: Interval
    after: Prediction

    @property
    def beaten(self) -> int:
        """Random sets that do less."""
        return sum(r < self.share for r in self.random)

    @property
    def p(self) -> float:
        """Chance of a random set doing as well, by the Monte Carlo test."""
        return (1 + len(self.random) - self.beaten) / (1 + len(self.random))

    @property
    def least(self) -> str:
        """That p is as small as these random sets allow, in words; empty where it is not."""
        n = len(self.random)
        return f"p = {self.p:.2f} is the smallest possible with {n} random sets" if self.beaten == n else ""

    @property
    def enough(self) -> bool:
        """Whether the share reaches what is needed."""
        return self.share >= self.needed

    @property
    def special(self) -> bool:
        """Whether random sets do clearly less."""
        return self.p <= LEVEL and self.spread.estimate <= RANDOM_AT_MOST

    @property
    def passed(self) -> bool:
        """Both."""
        return self.enough and self.special


@dataclass(frozen=True)
class Verification:
    """Both tests.

    Args:
        removed: the prompt's run with the named parts at their counterfactual values.
        kept: the counterfactual's run with only the named parts at their prompt values.
        tested: how many parts were tested together.
        parts: how many parts the model has in all.
        said: what the model says after the prompt instead of the answer; empty if it says the answer.
    """

    removed: Trial
    kept: Trial
    tested: int
    parts: int
    said: str = ""

    @property
    def passed(self) -> bool:
        """Whether the behavior is explained."""
        return not self.said and self.removed.passed and self.kept.passed

    @property
    def failures(self) -> tuple[str, ...]:
        """What failed, in words."""
        said = [f"the model does not say the answer but {self.said}"] if self.said else []
        for verb, trial in (("removing them loses", self.removed), ("keeping only them brings back", self.kept)):
            if not trial.enough:
                said.append(f"{verb} {whole(trial.share)}, at least {whole(trial.needed)} is needed")
            elif trial.spread.estimate > RANDOM_AT_MOST:
                said.append(f"{verb} {whole(trial.share)}, but random parts do {whole(trial.spread.estimate)}")
            elif not trial.special:
                n = len(trial.random)
                said.append(f"{n - trial.beaten} of {n} random sets do as much (p = {trial.p:.2f})")
        return tuple(said)


def verify(pair: Pair, grids: Sequence[Grid], named: Sequence[Component], seed: int = 0) -> Verification:
    """Test the named parts.

    Args:
        pair: both runs, holding every part.
        grids: all parts, one grid a kind.
        named: the parts of the explanation.
        seed: of the random sets.

    Raises:
        TooFewRows: too few other parts to compare with.
    """
    question = pair.question
    everything, echoes = every_site(grids), {part.site for part in named if part.echo}
    chosen = [part.site for part in named if not part.echo]
    others = [site for site in everything if site not in echoes]
    count = min(SETS, max(FEWEST_SETS, TOKENS // (2 * (question.length - question.differing[0]))))
    sets: list[list[Loan]] = [
        [(site, None) for site in group] for group in (chosen, *_random_sets(others, chosen, count, seed))
    ]
    without, only = pair.removed(sets, "removing parts"), pair.restored(sets, "keeping parts")
    top = Prediction.of(pair.model, question.clean_logits, 1).tokens[0]
    lost, back = (1 - question.restored(without)).tolist(), question.restored(only).tolist()
    return Verification(
        _trial(lost, MUST_REMOVE, Prediction.of(pair.model, without[0], 3), seed),
        _trial(back, MUST_KEEP, Prediction.of(pair.model, only[0], 3), seed),
        len(chosen),
        len(everything),
        "" if top.id == question.answer.id else str(top),
    )


def _trial(shares: Sequence[float], needed: float, after: Prediction, seed: int) -> Trial:
    own, *others = shares
    return Trial(own, needed, tuple(others), bootstrap(others, seed=seed), after)


def _random_sets(everything: Sequence[Site], chosen: Sequence[Site], count: int, seed: int) -> list[list[Site]]:
    """Sets of other parts with as many of each kind."""
    generator = np.random.default_rng(seed)
    taken = set(chosen)
    pools = {point: [s for s in everything if s.point == point and s not in taken] for point in _points(everything)}
    wanted = {point: sum(s.point == point for s in chosen) for point in pools}
    for point, pool in pools.items():
        if len(pool) < wanted[point]:
            raise TooFewRows(
                f"{len(pool)} other parts at {point}",
                f"random sets need {wanted[point]}",
                "explain a model with more layers",
            )
    return [
        [pools[point][i] for point, n in wanted.items() for i in generator.choice(len(pools[point]), n, replace=False)]
        for _ in range(count)
    ]


def _points(sites: Sequence[Site]) -> list[str]:
    return list(dict.fromkeys(site.point for site in sites))
