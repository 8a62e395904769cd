"""Speculative ACDC: circuits of guessed decisions run together, with the decisions of the sequential version.

| step | what happens |
|---|---|
| guess | from the circuit that remains, the next edges are decided by a guess; this gives a chain of circuits |
| run | all circuits of the chain, as one batch |
| settle | in order, each decision is made from what was run, as long as all guesses before it were right |

A decision rests on two circuits, with and without the edge. As long as the guesses before were right, both were run;
the first wrong guess is itself a valid decision, and what comes after it in the chain is thrown away. So each batch
settles at least one decision. How many are guessed depends on how often guesses have been right (Leviathan et al. 2023
do so for text).

What must not differ is the decision itself. In a batch of another size the same circuit rounds otherwise. Where a
change lies within the margin of rounding of the threshold, both circuits are run alone, exactly as the sequential
version runs them, and the decision rests on these numbers. The margin is eight times the largest difference seen so far
between a circuit alone and in a batch, at least a few units of the last place of the logits; circuits are compared in
batches 1, 2, 4, 8 and so on, and at every close decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from mechanome.circuits.score_matrix import Scores
from mechanome.circuits.search.decisions import Decision, Decisions, Edge, Remaining
from mechanome.circuits.search.guessing import Guesser
from mechanome.circuits.search.running import Runner
from mechanome.core.progress import Bar

_SAFETY = 8.0
"""The margin over the largest rounding that was seen."""
_LAST_PLACES = 4.0
"""The least rounding that is assumed, in units of the last place of the largest logit."""


class Step(NamedTuple):
    """A guessed decision.

    Args:
        edge: which. without: the circuit without it, `[source, target]`; None for an idle edge. stays: the guess.
    """

    edge: Edge
    without: Tensor | None
    stays: bool


@dataclass
class Rounding:
    """How far the objective of a circuit depends on what it was run with.

    Attributes:
        least: what is assumed anyway. worst: the largest difference seen.
    """

    least: float
    worst: float = 0.0

    @property
    def size(self) -> float:
        """By how much one number may be off."""
        return max(self.least, _SAFETY * self.worst)

    def seen(self, alone: float, among: float) -> None:
        """Take note of a circuit that was run both ways."""
        self.worst = max(self.worst, abs(alone - among))


@dataclass(eq=False)
class Speculation:
    """A speculative search on its way.

    Attributes:
        runner: runs circuits.
        todo: edges in the order in which they are decided.
        remaining: the circuit that remains.
        guesser: guesses. threshold: an edge goes where the objective changes by less. at_most: circuits in a batch.
        rounding: of the objective.
        made: decisions so far.
    """

    runner: Runner
    todo: Sequence[Edge]
    remaining: Remaining
    guesser: Guesser
    threshold: float
    at_most: int
    rounding: Rounding
    made: list[Decision] = field(default_factory=list)
    _rounds: int = 0
    _circuits: int = 0
    _alone: int = 0
    _guesses: int = 0
    _right: int = 0
    _current: tuple[Tensor, int] | None = None
    """The circuit that remains as it was run, and its known sources; None for the one that the search started from."""
    _exact: float | None = None
    """The objective of that circuit, run alone; None if not known."""

    @classmethod
    def of(
        cls,
        runner: Runner,
        todo: Sequence[Edge],
        remaining: Remaining,
        scores: Scores,
        threshold: float,
        at_most: int,
    ) -> Speculation:
        """A search that has not begun; arguments as `acdc` has them."""
        sizes = scores.edge_values().double().abs().nan_to_num(nan=0.0)
        largest = max(float(part.own.abs().max()) for part in runner.parts)
        least = _LAST_PLACES * torch.finfo(runner.ready.wiring.model.dtype).eps * max(largest, abs(remaining.value))
        at_most = runner.at_once(at_most)
        return cls(runner, todo, remaining, Guesser(sizes), threshold, at_most, Rounding(least), _exact=remaining.value)

    def run(self, objective: str, bar: Bar) -> Decisions:
        """Decide all edges; `remaining` is what is left.

        Args:
            objective: its name. bar: is advanced by decisions.
        """
        while len(self.made) < len(self.todo):
            before = len(self.made)
            self.guesser.fit()
            self._settle(self._guess(self.guesser.length(self.at_most)))
            bar.advance(len(self.made) - before)
        return Decisions(
            self.runner.graph,
            tuple(self.made),
            self.threshold,
            objective,
            self._circuits + self._alone,
            self._rounds,
            self._alone,
            self._guesses,
            self._right,
            self.rounding.size,
        )

    def _guess(self, length: int) -> list[Step]:
        """The next decisions as they are guessed, up to `length` that need a run."""
        ahead = Remaining(self.remaining.edges, self.remaining.value, self.remaining.serves)
        steps: list[Step] = []
        runs = 0
        for place in range(len(self.made), len(self.todo)):
            if runs == length:
                break
            edge = self.todo[place]
            without, idle = ahead.without(edge), not ahead.leads_on(edge.target)
            stays = not idle and self.guesser.stays(edge.source, edge.target)
            steps.append(Step(edge, None if idle else without, stays))
            ahead.edges = ahead.edges if stays else without
            runs += not idle
        return steps

    def _settle(self, steps: Sequence[Step]) -> None:
        """Run the circuits of some steps and make the decisions that follow."""
        tried = [step for step in steps if step.without is not None]
        values = iter(self._values(tried))
        for step in steps:
            edge, without = step.edge, step.without
            if without is None:
                self.remaining.edges = self.remaining.without(edge)
                self.made.append(Decision(edge, None, False))
                continue
            value, exact = next(values), None
            change = value - self.remaining.value
            if abs(change - self.threshold) <= 2 * self.rounding.size:
                exact = self._run_alone(without, edge.known, value)
                change = exact - self._remaining_alone()
            kept = change >= self.threshold
            self.made.append(Decision(edge, change, kept))
            if not kept:
                self.remaining.edges, self.remaining.value = without, value
                self._current, self._exact = (without, edge.known), exact
            right = kept == step.stays
            self._guesses, self._right = self._guesses + 1, self._right + right
            self.guesser.learn(edge.source, edge.target, kept, right)
            if not right:
                return

    def _values(self, tried: Sequence[Step]) -> list[float]:
        """The objective of circuits that are run together."""
        circuits = [step.without for step in tried if step.without is not None]
        if not circuits:
            return []
        values = self.runner.values(torch.stack(circuits), min(step.edge.known for step in tried))
        self._rounds, self._circuits = self._rounds + 1, self._circuits + len(circuits)
        if self._rounds & (self._rounds - 1) == 0:
            self._run_alone(circuits[-1], tried[-1].edge.known, values[-1])
        return values

    def _run_alone(self, circuit: Tensor, known: int, among: float) -> float:
        """The objective of a circuit, run as the sequential version runs it."""
        (value,) = self.runner.values(circuit[None], known)
        self._alone += 1
        self.rounding.seen(value, among)
        return value

    def _remaining_alone(self) -> float:
        """The objective of the circuit that remains, run as the sequential version ran it."""
        if self._exact is None:
            assert self._current is not None
            self._exact = self._run_alone(*self._current, self.remaining.value)
        return self._exact
