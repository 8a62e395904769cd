"""Pictures of paper 34's study: measures side by side, one prompt, and the sinks of every head."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mechanome.core.tables import show
from mechanome.report import HeatMap, Section, Sheet, Weights, number
from mechanome.studies.papers.contribution_weights import MEASURES, METRICS
from mechanome.studies.study import Effect

if TYPE_CHECKING:
    from mechanome.studies.papers.contribution_weights.measuring import Stored


def sections(stored: Stored, effects: Mapping[str, Effect]) -> tuple[Section, ...]:
    """The study's sections, in order."""
    return (_side_by_side(effects), _one_prompt(stored), _sink_by_layer(stored), *_suppression(stored))


def _side_by_side(effects: Mapping[str, Effect]) -> Section:
    def cell(measure: str, metric: str) -> str:
        at = effects[f"{measure}-{metric.replace('_', '-')}"].interval
        return "" if at is None else f"{number(at.estimate)} [{number(at.lo)}, {number(at.hi)}]"

    rows = [[named, *(cell(measure, metric) for measure in MEASURES)] for metric, named in METRICS.items()]
    columns = (("measure of importance", ""), *((name, what) for name, what in MEASURES.items()))
    lead = ("Every measure of token importance against masking and against the tokens known to bear the answer. "
            "Means over prompts with 95 % intervals; kept: lower is better, all others: higher.",)  # fmt: skip
    return Section("Measures of importance side by side", lead, Sheet(columns, rows), _strongest(effects))


def _strongest(effects: Mapping[str, Effect]) -> tuple[str, ...]:
    """Which measure predicts masking best: the claims compare with attention only, and must not hide the others."""
    found = {metric: effects[f"agreement-{metric.replace('_', '-')}"].interval for metric in METRICS}
    ranked = sorted((at.estimate, metric) for metric, at in found.items() if at is not None)[::-1]
    said = ", ".join(f"{METRICS[metric]} {show(value)}" for value, metric in ranked[:3])
    return (f"By agreement with masking, the strongest here: {said}.",)


def _one_prompt(stored: Stored) -> Section:
    found = stored.masked[0]
    scored = stored.scores[found["prompt"]]
    tokens = scored["tokens"]
    named = {"masking, size of the effect": found["effects"].abs()}
    named |= {name: scored["scores"][metric] for metric, name in METRICS.items()}
    rows: list[list[str | Weights]] = [[name, Weights(tokens, _relative(x))] for name, x in named.items()]
    lead = ("How strongly each measure points at each token for the last position, relative to its strongest token "
            "without the first; values below 0 are not shaded.",)  # fmt: skip
    return Section("One prompt", lead, Sheet((("measure", ""), ("tokens", "")), rows))


def _relative(values: Tensor) -> list[float]:
    above = values.clamp(min=0)
    strongest = float(above[1:].max()) or 1.0
    return (above / strongest).clamp(max=1).tolist()


def _sink_by_layer(stored: Stored) -> Section:
    rows = {"attention": "attention", "contribution_head": "head form", "contribution_layer": "layer form"}
    mean = {metric: torch.stack([scored["sink"][metric] for scored in stored.scores]).mean(0) for metric in rows}
    layers = [str(i) for i in range(len(mean["attention"]))]
    values = [shares.tolist() for shares in mean.values()]
    picture = HeatMap(list(rows.values()), layers, values, "layer", "share", ends=("opposes the output", "all of it"))
    lead = ("What the first token gets from the last position: its share of attention, and its share of what attention "
            "writes (contribution weights, head and layer form). Means over heads and prompts.",)  # fmt: skip
    return Section("The decoder's sink, layer by layer", lead, picture)


def _suppression(stored: Stored) -> Iterator[Section]:
    for role, found in stored.sinks.items():
        yield Section(
            f"How far the sink turns heads down: {role}",
            ("1 - ||o|| / ||m||: how much shorter a head's output is than without its sink, the rest renormalized.",),
            _heads(found),
        )


def _heads(found: Mapping[str, Any]) -> HeatMap:
    values = found["suppression"].T
    cells = [[None if v != v else v for v in row] for row in values.tolist()]
    heads, layers = ([str(i) for i in range(n)] for n in values.shape)
    return HeatMap(heads, layers, cells, "layer", "head", ends=("twice as loud", "silenced"))
