"""Many prompts explained with one model: one result each, and what they have in common.

The model is opened once. Of each prompt only the numbers that a summary needs are kept, so memory does not grow with
activations; the whole explanation is handed out as soon as it is made. A prompt that cannot be explained is a result,
too, with its reason.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from mechanome.core import Bar, Interval, MechanomeError, Table, binomial, bootstrap, plain
from mechanome.engine import Model, load, parse
from mechanome.engine.memory import Budget
from mechanome.explain.components import name_of
from mechanome.explain.explanation import Explanation
from mechanome.explain.items import Item, items
from mechanome.explain.pipeline import DEFAULT_MODEL, explain
from mechanome.explain.refusals import refuse_early
from mechanome.explain.result import VERDICTS, Measured, Result, Verdict
from mechanome.explain.written import Written
from mechanome.report import Page
from mechanome.tasks import Task

RECURRING = 2
"""A part recurs if at least this many prompts name it."""
FEWEST = 5
"""Prompts from which on a mean over prompts is given with an interval."""

Opened = str | Path | nn.Module | Model


@dataclass(frozen=True)
class Recurring:
    """A part that several explanations name.

    Args:
        site: its output.
        named: for how many prompts it is named.
        explained: how many of them are explained; of the others, the named parts did not pass the verification.
        effect: mean share that it alone restores, over all prompts where it was measured, whether named or not, with
            its bootstrap interval over prompts.
    """

    site: str
    named: int
    explained: int
    effect: Interval

    @property
    def name(self) -> str:
        """In words."""
        return name_of(parse(self.site))


@dataclass(frozen=True)
class Explanations(Written):
    """The results of many prompts, in their order; iterating gives each `Result`.

    Args:
        results: one a prompt.
        model: its id.
        seed: of the random sets.
        notes: what a reader must know about the model's weights.
    """

    results: tuple[Result, ...]
    model: str
    seed: int
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @property
    def measured(self) -> tuple[Measured, ...]:
        """The numbers of those that were measured."""
        return tuple(r.measured for r in self.results if r.measured is not None)

    @property
    def counts(self) -> dict[Verdict, int]:
        """How many of each verdict."""
        found = Counter(result.verdict for result in self.results)
        return {verdict: found[verdict] for verdict in VERDICTS}

    @property
    def shares(self) -> dict[Verdict, Interval]:
        """The share of each verdict among all prompts, with its exact binomial interval."""
        return {verdict: binomial(count, len(self)) for verdict, count in self.counts.items()}

    @property
    def seconds(self) -> float:
        """Wall time of all."""
        return sum(result.seconds for result in self.results)

    def recurring(self) -> tuple[Recurring, ...]:
        """The parts that are named for at least two prompts; those come first that most *explained* prompts name."""
        named = Counter(site for m in self.measured for site in m.named)
        explained = Counter(
            site for r in self.results if r.verdict == "explained" and r.measured for site in r.measured.named
        )
        found = []
        for site, count in named.items():
            values = [m.effects[site] for m in self.measured if site in m.effects]
            if count >= RECURRING:
                found.append(Recurring(site, count, explained[site], bootstrap(values, seed=self.seed)))
        return tuple(sorted(found, key=lambda part: (-part.explained, -part.named, -part.effect.estimate, part.site)))

    def table(self) -> Table:
        """One row a prompt."""
        columns = ["id", "prompt", "verdict", "says", "%", "answer", "foil", "parts", "lost %", "back %"]
        return Table([*columns, "stability", "seconds", "reason"], [_row(result) for result in self.results])

    def record(self) -> dict[str, Any]:
        """Everything as plain data: what `to_json` writes."""
        return plain(
            {
                "format": "mechanome-explanations",
                "version": 1,
                "model": self.model,
                "seed": self.seed,
                "notes": list(self.notes),
                "counts": self.counts,
                "shares": {verdict: vars(interval) for verdict, interval in self.shares.items()},
                "recurring": [
                    {**vars(part), "name": part.name, "effect": vars(part.effect)} for part in self.recurring()
                ],
                "results": [{**result.item.record(), **result.record()} for result in self.results],
            },
            "explanations",
        )

    def document(self, replay: str = "") -> Page:
        """The report page; `replay` is the command that repeats this run."""
        from mechanome.explain.summary import document

        return document(self, replay)

    def __rich__(self) -> Any:
        from mechanome.explain.summary import page

        return page(self)


Keep = Callable[[Item, Explanation], str]
"""Told of every explanation as it is made; returns where its page is, or an empty text."""


Settle = Callable[[Result, Model, Budget], Result]
"""Has the last word on a result."""


def as_it_is(result: Result, model: Model, budget: Budget) -> Result:
    """The result itself."""
    return result


@dataclass(frozen=True)
class Settings:
    """What is the same for all prompts.

    Args:
        counterfactuals, seed, budget, circuit: as in `mechanome.explain`.
    """

    counterfactuals: int = 3
    seed: int = 0
    budget: Budget = None
    circuit: bool = False

    def check(self, model: Opened) -> None:
        """Refuse what no prompt could be explained with, before the model is opened."""
        refuse_early(" ", model, None, None, None, **vars(self))


def explain_many(
    prompts: Path | Sequence[Any] | Task,
    model: Opened = DEFAULT_MODEL,
    *,
    counterfactuals: int = 3,
    seed: int = 0,
    budget: Budget = None,
    circuit: bool = False,
    quiet: bool = False,
    keep: Keep = lambda item, explanation: "",
    settle: Settle = as_it_is,
) -> Explanations:
    """Explain many prompts with one model, opened once.

    Args:
        prompts: the path of a file, `.jsonl` or `.txt` with one prompt a line; or a list of texts, of chats, or of
            mappings with `prompt` and, where fixed, `answer`, `foil`, `counterfactual` and `id`; or a `Task`.
        model, counterfactuals, seed, budget, quiet: as in `mechanome.explain`.
        circuit: find the circuit of every prompt, too, from its own ranking of edges; it stands on the prompt's page.
        keep: called with every prompt and its whole explanation, which nobody else keeps; returns the place of a page
            that the summary then links to, or an empty text.
        settle: has the last word on every result.

    Returns:
        the results: `e.table()`, `e.recurring()`, `e.shares`, `e.html()`, `e.to_json()`.

    Raises:
        BadInput, UnknownName: prompts that are not as described, before anything runs; a budget that is no size.
        UnknownModel: a model that cannot be opened. What one prompt is refused for is its result, and raises nothing.
    """
    checked = items(prompts)
    settings = Settings(counterfactuals, seed, budget, circuit)
    settings.check(model)
    with Bar("explaining", len(checked), quiet) as bar:
        opened = load(model)
        made = tuple(results(checked, opened, settings, bar, keep, settle))
    return Explanations(made, opened.name, seed, notes_of(opened))


def notes_of(model: Model) -> tuple[str, ...]:
    """What a reader must know about its weights."""
    return () if model.source is None else tuple(model.source.notes)


def results(
    asked: Iterable[Item], model: Model, settings: Settings, bar: Bar, keep: Keep, settle: Settle = as_it_is
) -> Iterator[Result]:
    """One result after the other.

    Args:
        asked: the prompts.
        model: an opened model.
        settings: of all of them.
        bar: told of each.
        keep: given each explanation.
        settle: has the last word on each result.
    """
    for item in asked:
        bar.advance(0, item.text[:40])
        start = time.perf_counter()
        result = settle(_one(item, model, settings, keep), model, settings.budget)
        bar.advance(1, result.verdict)
        yield replace(result, seconds=round(time.perf_counter() - start, 3))


def _one(item: Item, model: Model, settings: Settings, keep: Keep) -> Result:
    try:
        found = explain(
            item.prompt,
            model,
            answer=item.answer,
            foil=item.foil,
            counterfactual=item.counterfactual,
            counterfactuals=settings.counterfactuals,
            seed=settings.seed,
            budget=settings.budget,
            circuit=settings.circuit,
            quiet=True,
        )
        verdict: Verdict = "explained" if found.explained else "not explained"
        reason = "; ".join(found.verification.failures)
        return Result(item, verdict, reason, 0.0, Measured.of(found), keep(item, found))
    except MechanomeError as refusal:
        return Result(item, "refused", str(refusal), 0.0)
    except OSError:  # a full disk is no property of the prompt
        raise
    except Exception as error:  # a mistake of ours must not lose the other prompts: the row and the exit code tell it
        return Result(item, "failed", f"{type(error).__name__}: {error}", 0.0)


def _row(result: Result) -> list[Any]:
    start = [result.item.id, result.item.text, result.verdict]
    end = [round(result.seconds, 1), result.reason]
    m = result.measured
    if m is None:
        return [*start, *[None] * 8, *end]
    parts = ", ".join(name_of(parse(site)) for site in m.named)
    shares = (share and round(100 * share, 1) for share in (m.removed, m.kept))
    return [*start, m.says, round(100 * m.probability, 1), m.answer, m.foil, parts, *shares, m.stability, *end]
