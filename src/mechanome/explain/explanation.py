"""`Explanation`: everything that was measured about one prediction, with its verdict, its story and its provenance."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console

from mechanome.core import Table, plain
from mechanome.explain.circuit import PromptCircuit
from mechanome.explain.components import Component, cut_remark
from mechanome.explain.direct import Direct
from mechanome.explain.effects import Grid
from mechanome.explain.hiding import Hidden
from mechanome.explain.importance import Importance
from mechanome.explain.lens import Lens
from mechanome.explain.question import Question
from mechanome.explain.stability import Stability
from mechanome.explain.tokens import Prediction, quoted, whole
from mechanome.explain.units import PromptUnits
from mechanome.explain.verification import Verification


@dataclass(frozen=True)
class Origin:
    """Which model it was, exactly.

    Args:
        id: registry id, hub id, folder, or the class of a module that was passed in.
        source: where the weights came from.
        sha256: of the weights file; empty for a module that was passed in.
        license: SPDX name, or `unknown`.
        notes: what a reader must know about the weights.
    """

    id: str
    source: str
    sha256: str
    license: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """Why a model predicted what it predicted.

    Args:
        question: the contrast that is explained, and the automatic choices in words.
        prediction: the likeliest next tokens after the prompt.
        counter_prediction: after the counterfactual.
        lens: what each layer would say, None where it cannot be read.
        hidden: what hiding each token does, None where it cannot be hidden.
        importance: how much each token mattered by several measures, None where attention cannot be read or edited.
        flow: which position carries the answer at each layer.
        parts: the effects of heads, MLPs and other mixers, one grid a kind.
        direct: what each part writes directly, None where the residual stream is not a sum of parts.
        components: the parts named, strongest first.
        verification: whether they are the explanation.
        stability: whether the same parts carry the answer against other counterfactuals; the verdict is not its matter.
        origin: the model.
        versions: of the software.
        seed: of the random sets.
        seconds: wall time of each part of the work.
        left_out: what could not be measured on this model, and why.
        cut: further parts that are strong enough to be named, but beyond the number that is.
        circuit: how few edges of the model's graph are enough, None where that was not asked for or cannot be had.
        units: which neurons or singular units of MLPs carry the answer, None where that was not asked for.
    """

    question: Question
    prediction: Prediction
    counter_prediction: Prediction
    lens: Lens | None
    hidden: Hidden | None
    importance: Importance | None
    flow: Grid
    parts: tuple[Grid, ...]
    direct: Direct | None
    components: tuple[Component, ...]
    verification: Verification
    stability: Stability
    origin: Origin
    versions: Mapping[str, str]
    seed: int
    seconds: Mapping[str, float]
    left_out: tuple[str, ...] = field(default=())
    cut: int = 0
    circuit: PromptCircuit | None = None
    units: PromptUnits | None = None

    @property
    def explained(self) -> bool:
        """Whether the verification passed."""
        return self.verification.passed

    @property
    def verdict(self) -> str:
        """ "explained" or "not explained"."""
        return "explained" if self.explained else "not explained"

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on how it was measured: what was left out, and where a long prompt was measured in part."""
        notes = [note for grid in (self.flow, *self.parts) for note in grid.notes]
        cut = [cut_remark(self.cut)] if self.cut else []
        circuit = () if self.circuit is None else self.circuit.notes
        return tuple(dict.fromkeys((*self.left_out, *cut, *circuit, *self.origin.notes, *notes)))

    def table(self) -> Table:
        """The named parts with their effects."""
        tokens = self.question.tokens
        rows = [
            [
                part.name,
                round(100 * part.restores, 1),
                round(100 * part.breaks, 1),
                f"{quoted(tokens[part.position])} ({part.position})",
                ", ".join(f"{quoted(tokens[p])} {whole(w)}" for p, w in part.attended),
            ]
            for part in self.components
        ]
        return Table(["part", "restores %", "breaks %", "acts at", "attends to"], rows)

    def record(self) -> dict[str, Any]:
        """Everything as plain data: what `to_json` writes. Numbers that are undefined are None."""
        from mechanome.explain.record import record

        return plain(record(self), "explanation")

    def to_json(self) -> str:
        """Everything as JSON text."""
        return json.dumps(self.record(), indent=2, ensure_ascii=False)

    def html(self, replay: str = "", back: str = "") -> str:
        """The self-contained report page.

        Args:
            replay: the command that repeats this run, shown on the page.
            back: relative path of the page about all prompts, for a link.
        """
        from mechanome.explain.document import document

        return document(self, replay, back).html()

    def _repr_html_(self) -> str:
        from mechanome.explain.document import document

        return document(self).framed()

    def __rich__(self) -> Any:
        from mechanome.explain.terminal import page

        return page(self)

    def __str__(self) -> str:
        out = io.StringIO()
        Console(file=out, width=100, color_system=None).print(self)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
