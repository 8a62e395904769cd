"""`Where` an edit acts: positions, rows, phase, steps and keys, as plain data that cannot choose nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mechanome.core.errors import BadInput
from mechanome.engine import plain
from mechanome.engine.frame import PHASES, Positions


@dataclass(frozen=True)
class Where:
    """Where an edit acts; everything left out means everywhere.

    Integers may be of any make (NumPy, tensors, ranges, iterators); they are kept as ints and tuples.

    Args:
        pos: positions in real tokens (see `Frame.positions`); for scores and patterns these are queries.
        rows: batch rows.
        phase: "prefill" (the prompt) or "decode" (generated tokens).
        steps: generation steps: step s acts on the position that predicts generated token s (0 is the last prompt
            token); for a module that is called several times in one pass, its calls.
        keys: for scores and patterns: key positions.

    Raises:
        BadInput: something that is not an integer or a name, or an empty list, which would choose nothing.
    """

    pos: Positions = None
    rows: Sequence[int] | None = None
    phase: Literal["prefill", "decode"] | None = None
    steps: Sequence[int] | None = None
    keys: Positions = None

    def __post_init__(self) -> None:
        if self.phase is not None and self.phase not in PHASES:
            raise BadInput(f"phase '{self.phase}'", "there is no such phase", "use 'prefill' or 'decode'")
        steps = plain.chosen(self.steps, "steps")
        if steps is not None and min(steps) < 0:
            raise BadInput(f"step {min(steps)}", "steps count from 0, the last prompt token", "use pos= for the prompt")
        made = {
            "pos": plain.somewhere(self.pos, "positions"),
            "rows": plain.chosen(self.rows, "rows"),
            "steps": steps,
            "keys": plain.somewhere(self.keys, "keys"),
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)

    @property
    def everywhere(self) -> bool:
        """Whether nothing is restricted."""
        return self == Where()
