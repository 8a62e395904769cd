"""Phases: at which places the targets of a graph read, and what happens to the stream on the way there."""

from __future__ import annotations

from dataclasses import dataclass, replace

from mechanome.circuits.norms import Norm
from mechanome.circuits.wiring import Reads, Turns, Wiring, Writes
from mechanome.engine import Site


@dataclass(frozen=True)
class Span:
    """Consecutive sources that add to the stream: those from `start` up to `stop`.

    Args:
        norm: what their sum goes through first, None for nothing. into: the site of its input.
    """

    start: int
    stop: int
    norm: Norm | None = None
    into: Site | None = None


Step = Span | Turns
"""What happens to a stream on its way: sources add to it, or it is normed."""


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
        if isinstance(event, Writes):
            start, stop = event.group.first, event.group.first + event.group.count
            last = steps[-1] if steps else None
            if isinstance(last, Span) and last.into == event.into:
                steps[-1] = replace(last, stop=stop)
            else:
                steps.append(Span(start, stop, event.norm, event.into))
        elif event is not None:
            steps.append(event)
    return tuple(found)
