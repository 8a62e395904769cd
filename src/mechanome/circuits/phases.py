"""Phases: at which places the targets of a graph read, and what happens to the stream on the way there."""

from __future__ import annotations

from dataclasses import dataclass

from mechanome.circuits.wiring import Reads, Turns, Wiring, Writes


@dataclass(frozen=True)
class Span:
    """Consecutive sources that add to the stream as they are: those from `start` up to `stop`."""

    start: int
    stop: int


Step = Span | Writes | Turns
"""What happens to a stream on its way: sources add to it, a group adds through a norm, or it is normed."""


@dataclass(frozen=True, eq=False)
class Phase:
    """Groups of targets that read at the same place.

    Args:
        number: its place in the order of phases.
        reads: the groups.
        steps: what happens to the stream before, in order.
    """

    number: int
    reads: tuple[Reads, ...]
    steps: tuple[Step, ...]

    @property
    def targets(self) -> slice:
        """Their indices, which are consecutive."""
        last = self.reads[-1].group
        return slice(self.reads[0].group.first, last.first + last.count)

    @property
    def after(self) -> int:
        """How many sources have written."""
        return self.reads[0].group.after

    def own(self, reads: Reads) -> slice:
        """The indices of one group among the targets of this phase."""
        first = reads.group.first - self.targets.start
        return slice(first, first + reads.group.count)


def phases(wiring: Wiring) -> tuple[Phase, ...]:
    """The phases of a wiring, in order."""
    found: list[Phase] = []
    steps: list[Step] = []
    reads: list[Reads] = []
    for event in (*wiring.events, None):
        if isinstance(event, Reads):
            reads.append(event)
            continue
        if reads:
            found.append(Phase(len(found), tuple(reads), tuple(steps)))
            reads = []
        if isinstance(event, Writes) and event.norm is None:
            start, stop = event.group.first, event.group.first + event.group.count
            if steps and isinstance(steps[-1], Span):
                steps[-1] = Span(steps[-1].start, stop)
            else:
                steps.append(Span(start, stop))
        elif event is not None:
            steps.append(event)
    return tuple(found)
