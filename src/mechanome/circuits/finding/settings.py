"""`Settings`: what is asked of a search for a circuit, checked before any model is opened."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from mechanome.circuits.finding.certifiable import check_certifiable, fewest_examples
from mechanome.circuits.finding.unit_graph import UNITS
from mechanome.circuits.finding.ways import WAYS, Way
from mechanome.circuits.interventions import KINDS
from mechanome.circuits.metrics import SIZES
from mechanome.circuits.search.limits import worth
from mechanome.core import BadInput
from mechanome.engine.asked import count, one_of, seed_of
from mechanome.engine.memory import parse_budget
from mechanome.engine.plain import number, whole
from mechanome.tasks import METRICS

_PARTS = 10
"""Fewer sources no graph has; certificates of more parts need more examples."""
_LIMITS = {
    "size": "size, a number of edges such as 200",
    "threshold": "threshold, what an edge is worth at least, such as 0.01",
}
"""Where a search stops, for people."""


@dataclass(frozen=True)
class Settings:
    """What is asked.

    Args:
        method: a name of `WAYS`.
        level: whether edges are chosen, or sources with all edges between them: "edge" or "node". Empty takes edges,
            and sources where MLPs are cut into units.
        units: what MLPs are cut into, a name of `mechanome.circuits.finding.unit_graph.UNITS`; None leaves them whole.
        size: edges (or sources) of the circuit; None takes the smallest one on the curve that is faithful enough.
        threshold: what an edge must be worth, for searches that stop there.
        sizes: shares of all edges (or sources) at which circuits are measured.
        metric: a name of `mechanome.tasks.METRICS`; None for the task's own.
        intervention: what edges outside the circuit carry.
        examples: how many are used, both halves together.
        seed: of the examples, of their division, and of methods that draw.
        stability: whether the method is repeated on resampled examples.
        certify: whether parts are certified that no single example decides on (paper 26).
        verify: edges measured exactly; None for the usual number.
        budget: memory for the largest piece, such as "2GB".

    Raises:
        BadInput: a name that does not exist, or a number that cannot be.
    """

    method: str = "eap-ig"
    level: str = ""
    units: str | None = None
    size: int | None = None
    threshold: float | None = None
    sizes: tuple[float, ...] = SIZES
    metric: str | None = None
    intervention: str = "patch"
    examples: int = 32
    seed: int = 0
    stability: bool = False
    certify: bool = False
    verify: int | None = None
    budget: str | None = None

    def __post_init__(self) -> None:
        one_of("method", self.method, WAYS, "there is no such method")
        if self.units is not None:
            one_of("units", self.units, UNITS, "MLPs cannot be cut into these")
            self._check_units(WAYS[self.method])
        if not self.level:
            object.__setattr__(self, "level", "edge" if self.units is None else "node")
        one_of("level", self.level, ("edge", "node"))
        if self.level not in WAYS[self.method].levels:
            raise BadInput(f"level {self.level!r}", f"{self.method} finds edges", "leave it out")
        one_of("intervention", self.intervention, KINDS, "there is no such intervention")
        if self.metric is not None:
            one_of("metric", self.metric, METRICS, "there is no such metric of a task")
        self._check_limits(WAYS[self.method])
        count("examples", self.examples)
        seed_of(self.seed)
        if self.verify is not None and (whole(self.verify) is None or self.verify < 0):
            raise BadInput(f"verify={self.verify!r}", "it must be a whole number from 0", "give one such as 0")
        if self.verify and not WAYS[self.method].screens:
            raise BadInput(f"verify={self.verify}", f"{self.method} is no estimate to verify", "leave it out")
        if self.certify and WAYS[self.method].searches:
            why = f"{self.method} would search again for each of a thousand masks"
            raise BadInput("certify", why, "choose a method that scores, or call mechanome.circuits.certify")
        if self.certify:  # how many parts there are is not known yet: no graph has fewer
            least = 2 * fewest_examples(_PARTS) - 1
            check_certifiable((self.examples + 1) // 2, _PARTS, f"use at least {least} examples: one half finds")
        object.__setattr__(self, "sizes", _shares(self.sizes))
        parse_budget(self.budget)

    def _check_units(self, way: Way) -> None:
        """Ways that would run the model for every single unit are refused."""
        if not way.screens:
            why = f"{self.method} would run the model again for every one of tens of thousands"
            fix = "choose an estimate, such as relp or eap-ig; the strongest are then measured exactly"
            raise BadInput(f"units={self.units!r}", why, fix)

    def _check_limits(self, way: Way) -> None:
        given = [name for name in ("size", "threshold") if getattr(self, name) is not None]
        for name in given:
            if name not in way.limits:
                fix = f"give {' or '.join(way.limits)}" if way.limits else "leave it out"
                raise BadInput(f"{name}={getattr(self, name)!r}", f"{self.method} does not take it", fix)
        if self.size is not None:
            count("size", self.size)
        if self.threshold is not None:
            worth(self.threshold)
        if way.searches and len(given) != 1:
            fix = "give " + " or ".join(_LIMITS[name] for name in way.limits)
            raise BadInput(f"the search {self.method}", "it needs one limit", fix)

    def record(self) -> dict[str, Any]:
        """As plain data; `Settings(**record)` gives them back."""
        return {**asdict(self), "sizes": list(self.sizes)}


def _shares(sizes: Any) -> tuple[float, ...]:
    found = tuple(sorted({float(number(share, "a size of the curve")) for share in sizes}))
    if len(found) < 2 or not all(0 < share <= 1 for share in found):
        raise BadInput(f"sizes {list(sizes)}", "they are two or more shares above 0, up to 1", "write 0.001,0.01,0.1,1")
    return found
