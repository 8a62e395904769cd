"""`Explanation`: everything that was measured about one prediction, with its verdict, its story and its provenance."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from torch import Tensor

from mechanome.core import Table, plain
from mechanome.explain.components import Component
from mechanome.explain.direct import Direct
from mechanome.explain.effects import Grid
from mechanome.explain.hiding import Hidden
from mechanome.explain.importance import Importance
from mechanome.explain.lens import Lens
from mechanome.explain.question import Question
from mechanome.explain.tokens import Prediction, quoted, whole
from mechanome.explain.verification import Trial, Verification


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
        origin: the model.
        versions: of the software.
        seed: of the random sets.
        seconds: wall time of each part of the work.
        left_out: what could not be measured on this model, and why.
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
    origin: Origin
    versions: Mapping[str, str]
    seed: int
    seconds: Mapping[str, float]
    left_out: tuple[str, ...] = field(default=())

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
        return tuple(dict.fromkeys((*self.left_out, *self.origin.notes, *notes)))

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
        return plain(_record(self), "explanation")

    def to_json(self) -> str:
        """Everything as JSON text."""
        return json.dumps(self.record(), indent=2, ensure_ascii=False)

    def html(self, replay: str = "") -> str:
        """The self-contained report page.

        Args:
            replay: the command that repeats this run, shown on the page.
        """
        from mechanome.explain.document import document

        return document(self, replay).html()

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


def _record(e: Explanation) -> dict[str, Any]:
    q = e.question
    return {
        "format": "mechanome-explanation",
        "version": 1,
        "verdict": e.verdict,
        "failures": list(e.verification.failures),
        "question": {
            "prompt": q.prompt,
            "counterfactual": q.counterfactual,
            "tokens": list(q.tokens),
            "counterfactual_tokens": list(q.other_tokens),
            "differing_positions": list(q.differing),
            "answer": vars(q.answer),
            "foil": vars(q.foil),
            "choices": list(q.choices),
            "swap": None if q.swap is None else _swap(e),
            "logit_difference": {"prompt": q.high, "counterfactual": q.low},
        },
        "prediction": _prediction(e.prediction),
        "counterfactual_prediction": _prediction(e.counter_prediction),
        "lens": None if e.lens is None else _lens(e.lens),
        "hidden": None
        if e.hidden is None
        else [
            {"positions": list(group), "change": float(c), "answer_probability": float(p)}
            for group, c, p in zip(e.hidden.groups, e.hidden.change, e.hidden.probability)
        ],
        "importance": None if e.importance is None else e.importance.record(),
        "flow": _grid(e.flow),
        "parts": [_grid(grid) for grid in e.parts],
        "direct": None if e.direct is None else e.direct.record(),
        "components": [_component(part) for part in e.components],
        "verification": {
            "tested": e.verification.tested,
            "parts": e.verification.parts,
            "said_instead": e.verification.said,
            "remove": _trial(e.verification.removed),
            "keep": _trial(e.verification.kept),
        },
        "model": vars(e.origin),
        "versions": dict(e.versions),
        "seed": e.seed,
        "notes": list(e.notes),
        "seconds": {name: round(value, 3) for name, value in e.seconds.items()},
    }


def _swap(e: Explanation) -> dict[str, Any]:
    swap = e.question.swap
    assert swap is not None
    return {**vars(swap), "old": vars(swap.old), "new": vars(swap.new)}


def _prediction(prediction: Prediction) -> list[dict[str, Any]]:
    return [{**vars(t), "probability": p} for t, p in zip(prediction.tokens, prediction.probabilities)]


def _lens(lens: Lens) -> list[dict[str, Any]]:
    columns = (lens.layers, lens.answer.tolist(), lens.foil.tolist(), lens.answer_rank, lens.foil_rank, lens.top)
    names = ("layer", "answer_log_prob", "foil_log_prob", "answer_rank", "foil_rank", "top")
    return [{**dict(zip(names, row)), "top": vars(row[-1])} for row in zip(*columns)]


def _grid(grid: Grid) -> dict[str, Any]:
    return {
        "point": grid.point,
        "axis": grid.axis,
        "layers": list(grid.layers),
        "shares": _rows(grid.shares),
        "method": grid.method,
        "notes": list(grid.notes),
    }


def _rows(values: Tensor) -> list[list[float | None]]:
    return [[None if v != v else v for v in row] for row in values.tolist()]


def _component(part: Component) -> dict[str, Any]:
    return {
        "name": part.name,
        "site": str(part.site),
        "restores": part.restores,
        "breaks": part.breaks,
        "position": part.position,
        "restores_there": part.restores_there,
        "echo": part.echo,
        "attends": [{"position": p, "weight": w} for p, w in part.attended],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    return {
        "share": trial.share,
        "needed": trial.needed,
        "random": list(trial.random),
        "random_mean": vars(trial.spread),
        "p": trial.p,
        "passed": trial.passed,
        "after": _prediction(trial.after),
    }
