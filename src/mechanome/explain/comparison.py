"""Two models, such as a base and a tuned one, asked the same: which predictions, explanations and parts changed.

The base is explained first. The other is then asked the very same thing (same answer, foil and counterfactual),
so that preferences and effects mean the same in both, and it is measured also where it has lost the preference, so that
there is nothing left to explain. Effects are compared in logits, as each share times its own gap:
shares alone would rise wherever the gap shrinks. Parts are compared one by one only where both models have the same
layers and heads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mechanome.core import Interval, Table, binomial, bootstrap, paired_bootstrap, plain
from mechanome.engine import parse
from mechanome.engine.memory import Budget
from mechanome.explain.components import name_of
from mechanome.explain.fixed import settled
from mechanome.explain.items import Item, items
from mechanome.explain.many import FEWEST, Explanations, Keep, Opened, explain_many
from mechanome.explain.pairing import Pairing
from mechanome.explain.result import Measured, Result
from mechanome.explain.written import Written
from mechanome.report import Page


@dataclass(frozen=True)
class Change:
    """A part whose effect changed.

    Args:
        site: its output.
        base, tuned: mean effect in logits over the same prompts.
        n: prompts in which both measured it.
        interval: of the change, by paired bootstrap over prompts; None for fewer than `FEWEST`.
        echo: whether it merely repeats the input, in one of the models and prompts.
    """

    site: str
    base: float
    tuned: float
    n: int
    interval: Interval | None
    echo: bool = False

    @property
    def change(self) -> float:
        """Tuned minus base, in logits."""
        return self.tuned - self.base

    @property
    def name(self) -> str:
        """In words."""
        return name_of(parse(self.site))


@dataclass(frozen=True)
class Average:
    """A mean over prompts.

    Args:
        estimate: the mean.
        n: prompts.
        interval: with 95 % coverage; None for fewer than `FEWEST` prompts.
    """

    estimate: float
    n: int
    interval: Interval | None

    @classmethod
    def of(cls, values: Sequence[float], interval: Callable[[], Interval]) -> Average:
        """The mean of values, with its interval where they are enough."""
        return cls(float(np.mean(values)), len(values), interval() if len(values) >= FEWEST else None)


MOST = 12
"""Changed parts that are listed: those with the largest mean change."""


@dataclass(frozen=True)
class ModelComparison(Written):
    """Two models on the same prompts.

    Args:
        base: the results of the base model.
        tuned: the results of the tuned model, asked the same, in the same order.
    """

    base: Explanations
    tuned: Explanations

    @property
    def pairs(self) -> tuple[Pairing, ...]:
        """One a prompt."""
        return tuple(map(Pairing, self.base, self.tuned))

    @property
    def comparable(self) -> tuple[tuple[Measured, Measured], ...]:
        """The numbers of the prompts whose parts can be compared one by one."""
        return tuple(pair.both for pair in self.pairs if pair.both is not None and pair.comparable)

    @property
    def obstacle(self) -> str:
        """Why no parts can be compared one by one; empty if some can."""
        if self.comparable:
            return ""
        shapes = [next((m.shape for m in e.measured), None) for e in (self.base, self.tuned)]
        if None in shapes or shapes[0] == shapes[1]:
            return "no prompt was measured in both models"
        base, tuned = ("; ".join(f"{p} {a}\u00d7{b}" for p, (a, b) in (s or {}).items()) for s in shapes)
        return f"the models have other layers or heads (first {base}; second {tuned}), so no part stands for another"

    def quantities(self) -> dict[str, Average]:
        """What changed on average over prompts."""
        found: dict[str, Average] = {}
        seed = self.base.seed
        same = [pair.same_prediction for pair in self.pairs if pair.same_prediction is not None]
        if same:
            found["same prediction (share)"] = Average.of(same, lambda: binomial(sum(same), len(same)))
        both = [pair.both for pair in self.pairs if pair.both is not None]
        if both:
            base, tuned = ([m.high for m in column] for column in zip(*both))
            moved = [b - a for a, b in zip(base, tuned)]
            found["preference, second minus first (logits)"] = Average.of(
                moved, lambda: paired_bootstrap(tuned, base, seed=seed)
            )
        for name, values in (
            ("overlap of named parts (share)", [pair.overlap for pair in self.pairs]),
            ("rank correlation of effects", [pair.correlation for pair in self.pairs]),
        ):
            known = [value for value in values if value is not None]
            if known:
                found[name] = Average.of(known, partial(bootstrap, known, seed=seed))
        return found

    def changes(self, most: int = MOST) -> tuple[Change, ...]:
        """The parts whose effect changed most on average, in logits, largest first; then echoes of the input, likewise.

        Args:
            most: how many of either.
        """
        both = self.comparable
        rows: dict[str, list[tuple[float, float]]] = {}
        for a, b in both:
            for site in a.effects.keys() & b.effects.keys():
                rows.setdefault(site, []).append((a.effects[site] * a.gap, b.effects[site] * b.gap))
        echoes = {site for pair in both for m in pair for site in m.echoes}
        means = {site: np.mean(values, axis=0) for site, values in rows.items()}
        largest = sorted(means, key=lambda site: (-abs(means[site][1] - means[site][0]), site))
        parts, repeated = ([site for site in largest if (site in echoes) is echo][:most] for echo in (False, True))
        return tuple(self._change(site, rows[site], site in echoes) for site in (*parts, *repeated))

    def _change(self, site: str, rows: Sequence[tuple[float, float]], echo: bool) -> Change:
        base, tuned = zip(*rows)
        interval = paired_bootstrap(tuned, base, seed=self.base.seed) if len(rows) >= FEWEST else None
        return Change(site, float(np.mean(base)), float(np.mean(tuned)), len(rows), interval, echo)

    def table(self) -> Table:
        """One row a prompt."""
        columns = ["id", "prompt", "base", "tuned", "base says", "tuned says", "preference", "tuned preference"]
        return Table([*columns, "overlap", "rank correlation", "why not"], [_row(pair) for pair in self.pairs])

    def record(self) -> dict[str, Any]:
        """Everything as plain data: what `to_json` writes."""
        return plain(
            {
                "format": "mechanome-comparison",
                "version": 1,
                "base": self.base.model,
                "tuned": self.tuned.model,
                "seed": self.base.seed,
                "quantities": {name: _plain(average) for name, average in self.quantities().items()},
                "changes": [{**_plain(change), "name": change.name} for change in self.changes()],
                "obstacle": self.obstacle,
                "results": [pair.record() for pair in self.pairs],
            },
            "comparison",
        )

    def document(self, replay: str = "") -> Page:
        """The report page; `replay` is the command that repeats this run."""
        from mechanome.explain.comparison_page import document

        return document(self, replay)

    def __rich__(self) -> Any:
        from mechanome.explain.comparison_page import page

        return page(self)


def compare(
    base: Opened,
    tuned: Opened,
    prompts: Path | Sequence[Any],
    *,
    counterfactuals: int = 3,
    seed: int = 0,
    budget: Budget = None,
    circuit: bool = False,
    quiet: bool = False,
    keep: tuple[Keep, Keep] = (lambda item, explanation: "",) * 2,
) -> ModelComparison:
    """Explain the same prompts with two models, one after the other, and compare.

    Args:
        base, tuned: what `mechanome.load` opens, or opened models.
        prompts, counterfactuals, seed, budget, circuit, quiet: as in `explain_many`.
        keep: as in `explain_many`, for the base and for the tuned model.

    Returns:
        both results: `c.table()`, `c.changes()`, `c.quantities()`, `c.html()`, `c.to_json()`.

    Raises:
        BadInput, UnknownName, UnknownModel: as `explain_many`.
    """
    options: dict[str, Any] = {"counterfactuals": counterfactuals, "seed": seed, "budget": budget, "circuit": circuit}
    options["quiet"] = quiet
    first = explain_many(items(prompts), base, **options, keep=keep[0])
    second = explain_many([again(result) for result in first], tuned, **options, keep=keep[1], settle=settled)
    return ModelComparison(first, second)


def again(result: Result) -> Item:
    """The same question with every choice fixed, to be asked of another model; the item itself if it was refused."""
    m = result.measured
    if m is None:
        return result.item
    return Item(result.item.id, result.item.prompt, m.answer, m.foil, m.counterfactual)


def _plain(found: Average | Change) -> dict[str, Any]:
    return {**vars(found), "interval": None if found.interval is None else vars(found.interval)}


def _row(pair: Pairing) -> list[Any]:
    a, b = pair.base.measured, pair.tuned.measured
    return [
        pair.base.item.id,
        pair.base.item.text,
        pair.base.verdict,
        pair.tuned.verdict,
        a and a.says,
        b and b.says,
        a and round(a.high, 3),
        b and round(b.high, 3),
        pair.overlap,
        pair.correlation,
        pair.why_not,
    ]
