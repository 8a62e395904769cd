"""An explanation as plain data: every number that was measured, under the name a reader of the file would look for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from mechanome.explain.components import Component, name_of
from mechanome.explain.counterfactual import Swap
from mechanome.explain.effects import Grid
from mechanome.explain.lens import Lens
from mechanome.explain.question import Question
from mechanome.explain.stability import Comparison, Stability
from mechanome.explain.tokens import Prediction
from mechanome.explain.verification import Trial

if TYPE_CHECKING:
    from mechanome.explain.explanation import Explanation


def record(e: Explanation) -> dict[str, Any]:
    """Everything that was measured, by name."""
    return {
        "format": "mechanome-explanation",
        "version": 1,
        "verdict": e.verdict,
        "failures": list(e.verification.failures),
        "question": _question(e.question),
        "prediction": _prediction(e.prediction),
        "counterfactual_prediction": _prediction(e.counter_prediction),
        "lens": None if e.lens is None else _lens(e.lens),
        "hidden": None
        if e.hidden is None
        else [
            {"positions": list(group), "change": float(c), "answer_probability": float(p)}
            for group, c, p in zip(e.hidden.groups, e.hidden.change, e.hidden.probability)
        ],
        "hidden_together": None if e.hidden is None else e.hidden.together,
        "importance": None if e.importance is None else e.importance.record(),
        "flow": _grid(e.flow),
        "parts": [_grid(grid) for grid in e.parts],
        "direct": None if e.direct is None else e.direct.record(),
        "components": [_component(part) for part in e.components],
        "components_cut": e.cut,
        "verification": {
            "tested": e.verification.tested,
            "parts": e.verification.parts,
            "said_instead": e.verification.said,
            "remove": _trial(e.verification.removed),
            "keep": _trial(e.verification.kept),
        },
        "stability": {**_stability(e.stability), "of_verified_parts": e.explained},
        "circuit": None if e.circuit is None else e.circuit.record(),
        "units": None if e.units is None else e.units.record(),
        "model": vars(e.origin),
        "versions": dict(e.versions),
        "seed": e.seed,
        "notes": list(e.notes),
        "seconds": {name: round(value, 3) for name, value in e.seconds.items()},
    }


def _question(q: Question) -> dict[str, Any]:
    return {
        "prompt": q.prompt,
        "counterfactual": q.counterfactual,
        "chat": q.chat and [dict(message) for message in q.chat],
        "counterfactual_chat": q.other.chat and [dict(message) for message in q.other.chat],
        "tokens": list(q.tokens),
        "counterfactual_tokens": list(q.other_tokens),
        "differing_positions": list(q.differing),
        "answer": vars(q.answer),
        "foil": vars(q.foil),
        "shared": [vars(token) for token in q.shared],
        "prediction_before_shared": _prediction(q.opening),
        "scores": {
            name: {
                "text": score.text,
                "tokens": score.tokens,
                "log_prob": {"prompt": score.prompt, "counterfactual": score.counterfactual},
            }
            for name, score in (("answer", q.scores.answer), ("foil", q.scores.foil))
        },
        "choices": list(q.choices),
        "swap": None if q.swap is None else _swap(q.swap),
        "logit_difference": {"prompt": q.high, "counterfactual": q.low},
    }


def _swap(swap: Swap) -> dict[str, Any]:
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


def _stability(stability: Stability) -> dict[str, Any]:
    return {
        "stable": stability.stable,
        "compared": len(stability.comparisons),
        "why_none": stability.why_none,
        "conclusion": stability.conclusion,
        "comparisons": [_comparison(comparison) for comparison in stability.comparisons],
    }


def _comparison(c: Comparison) -> dict[str, Any]:
    return {
        "counterfactual": c.counterfactual,
        "swap": _swap(c.swap),
        "foil": vars(c.foil),
        "gap": c.gap,
        "remove": c.lost,
        "keep": c.back,
        "carries": c.carries,
        "components": [
            {"name": e.name, "site": str(e.site), "restores": e.restores, "breaks": e.breaks} for e in c.effects
        ],
        "own_components": [name_of(site) for site in c.own],
        "found_again": [name_of(site) for site in c.again],
        "jaccard": c.jaccard,
        "rank_correlation": None if c.correlation is None else vars(c.correlation),
    }
