"""Does the finding depend on the counterfactual? The same parts, where the prompt is compared with something else.

Every contrast shows only the mechanism of what it changes. So the prompt is compared with other counterfactuals, too,
and for each of them two things are measured, both exactly. Do the parts named for the first one carry this contrast as
well: removing them loses at least half of the preference, keeping only them brings at least half of it back? These are
the shares that the verification asks for. And are they the parts that would have been named here?

There are no random sets here: that the parts named are special was tested by the verification. The verdict stays that
of the verification, whatever is found here. A long prompt is compared with fewer counterfactuals, and its parts are
measured in the likeliest layers only, so that all of this takes about as long as the explanation itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mechanome.core import BadInput, Interval, NotFinite, spearman
from mechanome.engine import Model, Site
from mechanome.engine.memory import Budget
from mechanome.explain.components import CANDIDATES, KINDS, TOP, Component, every_site, name_of, ranking
from mechanome.explain.counterfactual import Swap
from mechanome.explain.effects import TOKENS, Grid, having, parts
from mechanome.explain.pair import Loan, Pair
from mechanome.explain.question import MIN_GAP, Question, against
from mechanome.explain.tokens import Token, quoted, whole
from mechanome.explain.verification import MUST_KEEP, MUST_REMOVE

VARIANTS = CANDIDATES + 2 * (1 + TOP)
"""Runs of one comparison besides the sweeps: what candidates break, and the named parts together and alone, twice."""
RESAMPLES = 1000
"""Of the interval of the rank correlation."""


@dataclass(frozen=True)
class Effect:
    """What one named part does against another counterfactual, as shares of the gap there.

    Args:
        site: the part.
        restores: share that returns when only it comes from the prompt.
        breaks: share that is lost when only it comes from the counterfactual.
    """

    site: Site
    restores: float
    breaks: float

    @property
    def name(self) -> str:
        """In words, such as `head 23.4`."""
        return name_of(self.site)


@dataclass(frozen=True)
class Comparison:
    """The explanation's parts against another counterfactual.

    Args:
        counterfactual: its text; of a chat, the message that was swapped.
        swap: how it was made.
        foil: what the answer is compared with here.
        gap: difference of the preference between prompt and this counterfactual, in logits.
        lost: share of the gap that is lost when the named parts are removed together.
        back: share that is there when only they are kept.
        effects: of each named part by itself.
        own: the parts that would be named here, strongest first; echoes of the input excepted.
        correlation: Spearman's rank correlation of what every part restores, here and in the explanation, over parts
            measured in both, with a bootstrap interval over parts; None where the effects do not vary.
    """

    counterfactual: str
    swap: Swap
    foil: Token
    gap: float
    lost: float
    back: float
    effects: tuple[Effect, ...] = field(repr=False)
    own: tuple[Site, ...]
    correlation: Interval | None

    @property
    def carries(self) -> bool:
        """Whether the named parts carry this contrast, too."""
        return self.lost >= MUST_REMOVE and self.back >= MUST_KEEP

    @property
    def again(self) -> tuple[Site, ...]:
        """The named parts that would be named here as well."""
        named = {effect.site for effect in self.effects}
        return tuple(site for site in self.own if site in named)

    @property
    def jaccard(self) -> float:
        """Parts named in both, as a share of those named in either."""
        return len(self.again) / len({*self.own, *(effect.site for effect in self.effects)})


@dataclass(frozen=True)
class Stability:
    """All comparisons.

    Args:
        comparisons: one for each further counterfactual, the best first.
        why_none: why there is none, or no more than these; empty if there are as many as were asked for.
    """

    comparisons: tuple[Comparison, ...] = ()
    why_none: str = ""

    @property
    def stable(self) -> int:
        """Further counterfactuals against which the named parts carry the contrast."""
        return sum(comparison.carries for comparison in self.comparisons)

    @property
    def found_again(self) -> float:
        """Share of the named parts that would be named against the others as well, over all comparisons."""
        return sum(len(c.again) for c in self.comparisons) / sum(len(c.effects) for c in self.comparisons)

    @property
    def conclusion(self) -> str:
        """In one line."""
        n = len(self.comparisons)
        if not n:
            return f"stability was not tested: {self.why_none}"
        return (
            f"stable in {self.stable} of {n} further counterfactuals: "
            + ("; ".join(self._sentence(c) for c in self.comparisons))
            + f". {whole(self.found_again)} of the named parts are found again on average"
            + (f". No more were compared: {self.why_none}" if self.why_none else "")
        )

    @staticmethod
    def _sentence(c: Comparison) -> str:
        held = "the same parts carry it" if c.carries else "the named parts do not carry it"
        return f"against {quoted(c.counterfactual)} {held} (lost {whole(c.lost)}, back {whole(c.back)})"


def stability(
    model: Model,
    question: Question,
    grids: Sequence[Grid],
    named: Sequence[Component],
    count: int,
    budget: Budget = None,
    quiet: bool = False,
) -> Stability:
    """Compare the prompt with up to `count` further counterfactuals.

    Args:
        model: an opened language model.
        question: what was explained.
        grids: the effects of all parts there.
        named: the parts of the explanation.
        count: further counterfactuals.
        budget: memory for the largest piece.
        quiet: no progress line.
    """
    if not count:
        return Stability(why_none="only one counterfactual was asked for")
    sites = [part.site for part in named if not part.echo]
    try:
        swaps = question.further if question.swap is not None else question.subject.swaps(model)
    except BadInput as none:
        return Stability(why_none=f"{none.what}: {none.why}")
    found: list[Comparison] = []
    spent = 0
    why = "no further swap of one token changes the preference enough"
    for swap in swaps:
        if len(found) == count:
            break
        other = _other(model, question, swap)
        if other is None:
            continue
        spent += VARIANTS * (other.length - other.differing[0])
        if found and spent > TOKENS:
            why = "a long prompt"
            break
        found.append(_compare(model, other, swap, grids, sites, TOKENS // count, budget, quiet))
    return Stability(tuple(found), "" if len(found) == count else why)


def _other(model: Model, question: Question, swap: Swap) -> Question | None:
    """The question against another counterfactual; None where it is the same one, or changes too little."""
    prompt = question.subject.prompt.swapped(model, swap.position, swap.new.id)
    if prompt.ids == question.other.ids:
        return None
    other = against(model, question.subject, prompt, swap)
    return other if other.gap >= MIN_GAP else None


def _compare(
    model: Model,
    question: Question,
    swap: Swap,
    main: Sequence[Grid],
    sites: Sequence[Site],
    tokens: int,
    budget: Budget,
    quiet: bool,
) -> Comparison:
    kinds = [kind for kind in KINDS if having(model, kind.point)]
    grids = [parts(model, question, kind.point, kind.axis, budget, quiet, tokens) for kind in kinds]
    pair = Pair.of(model, question, [site.whole for site in every_site(grids)], quiet)
    own = ranking(pair, grids)
    groups: list[Sequence[Site]] = [sites, *([site] for site in sites)]
    loans: list[list[Loan]] = [[(site, None) for site in group] for group in groups]
    lost = (1 - question.restored(pair.removed(loans, "removing parts"))).tolist()
    back = question.restored(pair.restored(loans, "keeping parts")).tolist()
    return Comparison(
        counterfactual=question.counterfactual,
        swap=swap,
        foil=question.foil,
        gap=question.gap,
        lost=lost[0],
        back=back[0],
        effects=tuple(Effect(site, b, r) for site, b, r in zip(sites, back[1:], lost[1:])),
        own=own.named,
        correlation=_correlation(main, grids),
    )


def _correlation(main: Sequence[Grid], other: Sequence[Grid]) -> Interval | None:
    """Rank correlation of what the parts restore, over those measured in both."""
    first, second = (np.concatenate([grid.shares.flatten().numpy() for grid in grids]) for grids in (main, other))
    both = ~np.isnan(first) & ~np.isnan(second)
    try:
        return spearman(first[both], second[both], resamples=RESAMPLES)
    except NotFinite:
        return None
