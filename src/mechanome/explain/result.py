"""What became of one prompt among many: its verdict and the numbers that a summary needs, as small as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from mechanome.core import plain
from mechanome.engine import Site
from mechanome.explain.asked import Asked
from mechanome.explain.effects import Grid
from mechanome.explain.explanation import Explanation
from mechanome.explain.items import Item
from mechanome.explain.question import Question
from mechanome.explain.tokens import Prediction

Verdict = Literal["explained", "not explained", "refused", "failed"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""Verified; measured but not verified; input that cannot be explained; an error that should not happen."""


@dataclass(frozen=True)
class Measured:
    """The numbers of one explanation that are kept.

    Args:
        answer, foil: the contrast, as text.
        counterfactual: what the prompt was compared with.
        says: the likeliest next token, as text.
        probability: of that token.
        high, low: logit of the answer minus logit of the foil, after the prompt and after the counterfactual.
        effects: site to the share that it alone restores, for every part that was measured.
        shape: point to layers and parts a layer.
        removed: share of the gap that is lost without the named parts; None where none were named.
        kept: share that only they bring back, likewise.
        named: sites of the named parts, strongest first, without echoes of the input.
        stability: against how many further counterfactuals the named parts carry the contrast, such as `1 of 2`; empty
            where there were none.
        without: the likeliest next token when the named parts are removed, as text; empty where none were named.
        echoes: sites of the parts that merely repeat the input.
    """

    answer: str
    foil: str
    counterfactual: Asked
    says: str
    probability: float
    high: float
    low: float
    effects: Mapping[str, float] = field(repr=False)
    shape: Mapping[str, tuple[int, int]]
    removed: float | None = None
    kept: float | None = None
    named: tuple[str, ...] = ()
    stability: str = ""
    without: str = ""
    echoes: tuple[str, ...] = ()

    @classmethod
    def of(cls, e: Explanation) -> Measured:
        """What is kept of an explanation."""
        v, tested = e.verification, e.stability
        return replace(
            cls.of_question(e.question, e.prediction, e.parts),
            removed=v.removed.share,
            kept=v.kept.share,
            named=tuple(str(part.site) for part in e.components if not part.echo),
            without=v.removed.after.tokens[0].text,
            echoes=tuple(str(part.site) for part in e.components if part.echo),
            stability=f"{tested.stable} of {len(tested.comparisons)}" if tested.comparisons else "",
        )

    @classmethod
    def of_question(cls, q: Question, prediction: Prediction, grids: Sequence[Grid]) -> Measured:
        """What is kept of a question whose parts were measured, but not named."""
        effects = {
            str(Site(grid.point, layer, head=j if grid.axis == "head" else None)): value
            for grid in grids
            for layer, row in zip(grid.layers, grid.shares.tolist())
            for j, value in enumerate(row)
            if value == value
        }
        return cls(
            answer=q.scores.answer.text,
            foil=q.scores.foil.text,
            counterfactual=q.counterfactual if q.other.chat is None else q.other.chat,
            says=prediction.tokens[0].text,
            probability=prediction.probabilities[0],
            high=q.high,
            low=q.low,
            effects=effects,
            shape={grid.point: (grid.shares.shape[0], grid.shares.shape[1]) for grid in grids},
        )

    @property
    def gap(self) -> float:
        """What all shares are shares of, in logits."""
        return self.high - self.low

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Measured:
        """Read back what `vars` gave, after a journey through JSON."""
        shape = {point: (size[0], size[1]) for point, size in record["shape"].items()}
        sites = {name: tuple(record[name]) for name in ("named", "echoes")}
        return cls(**{**record, **sites, "shape": shape})


@dataclass(frozen=True)
class Result:
    """What became of one prompt.

    Args:
        item: the prompt.
        verdict: "explained", "not explained", "refused" (it cannot be explained) or "failed" (a mistake of ours).
        reason: why it is not "explained"; empty if it is.
        seconds: wall time.
        measured: the numbers; None where there are none. In a comparison, what is refused may have some, too.
        page: its own report, relative to the summary; empty if none was written.
    """

    item: Item
    verdict: Verdict
    reason: str
    seconds: float
    measured: Measured | None = None
    page: str = ""

    def record(self) -> dict[str, Any]:
        """As plain data."""
        own = {name: getattr(self, name) for name in ("verdict", "reason", "seconds", "page")}
        measured = None if self.measured is None else vars(self.measured)
        return plain({"id": self.item.id, **own, "measured": measured}, "result")

    @classmethod
    def from_record(cls, item: Item, record: Mapping[str, Any]) -> Result:
        """Read back what `record` gave."""
        found = record["measured"]
        measured = None if found is None else Measured.from_record(found)
        return cls(item, record["verdict"], record["reason"], record["seconds"], measured, record["page"])
