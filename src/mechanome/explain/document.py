"""The report page of an explanation: which pictures, in which order, with which words."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mechanome.explain import story
from mechanome.explain.components import Component
from mechanome.explain.effects import Grid
from mechanome.explain.explanation import Explanation
from mechanome.explain.tokens import quoted, whole
from mechanome.explain.verification import LEVEL, MUST_KEEP, MUST_REMOVE, RANDOM_AT_MOST
from mechanome.report import (
    Bars,
    Contest,
    Dots,
    HeatMap,
    Line,
    Lines,
    Meter,
    Page,
    Section,
    Series,
    Sheet,
    TokenStrip,
    Weights,
    number,
)

_MOST_TOKENS = 32
"""Longer prompts show only the positions that were measured, or the tokens around a head's query."""


def document(e: Explanation, replay: str = "") -> Page:
    """The page.

    Args:
        e: an explanation.
        replay: the command that repeats it.
    """
    return Page(
        name=f"{e.verdict}: {e.question.prompt[:60]}",
        kicker=f"Mechanome \u00b7 explain \u00b7 {e.origin.id}",
        title=story.title(e),
        subtitle=story.subtitle(e),
        verdict=(e.verdict.capitalize(), e.explained, story.verdict(e)),
        story=story.story(e),
        sections=tuple(_sections(e)),
        measured=tuple(_measured(e)),
        limits=_limits(e),
        facts=tuple(_facts(e)),
        command=replay,
    )


def _sections(e: Explanation) -> Iterator[Section]:
    yield _prediction(e)
    if e.hidden is not None:
        yield _tokens(e)
    if e.lens is not None:
        yield _layers(e)
    yield _flow(e)
    yield _parts(e)
    yield _named(e)
    yield _verification(e)


def _prediction(e: Explanation) -> Section:
    q = e.question
    columns = [
        (f"after the {name}", [t.text for t in p.tokens], list(p.probabilities))
        for name, p in (("prompt", e.prediction), ("counterfactual", e.counter_prediction))
    ]
    return Section(
        "What the model says next",
        (
            "The likeliest next tokens after the prompt and after the counterfactual, \u201c",
            q.counterfactual,
            "\u201d. The preference explained below is the logit of ",
            story.answer(e),
            " minus the logit of ",
            story.foil(e),
            f": {number(q.high)} after the prompt, {number(q.low)} after the counterfactual.",
        ),
        Bars(columns, {q.answer.text: "answer", q.foil.text: "foil"}),
    )


def _tokens(e: Explanation) -> Section:
    q, hidden = e.question, e.hidden
    assert hidden is not None
    marks = {p: f"\u2192 {q.other_tokens[p].strip() or quoted(q.other_tokens[p])}" for p in q.differing}
    return Section(
        "Which tokens it depends on",
        (
            "How the preference changes when no later token can look at this one, in any layer. The last token has "
            "nothing after it. Orange: the answer loses; green: it gains. Arrows mark what the counterfactual has "
            "instead.",
        ),
        TokenStrip(q.tokens, [hidden.at(p) for p in range(q.length)], "change of the preference (logits)", marks),
    )


def _layers(e: Explanation) -> Section:
    lens, q = e.lens, e.question
    assert lens is not None
    series = [
        Series(t.text, role, values.tolist(), _lens_tips(e, t.text, values, ranks))
        for t, role, values, ranks in (
            (q.answer, "answer", lens.answer, lens.answer_rank),
            (q.foil, "foil", lens.foil, lens.foil_rank),
        )
    ]
    return Section(
        "Where in the layers the answer appears",
        (
            "Logit lens: the last position's residual stream after each layer, read with the model's own last norm and "
            "unembedding, as if it stopped there. It never does; only the last point is the model's own prediction.",
        ),
        Lines(lens.layers, series, "after layer", [quoted(t.text) for t in lens.top], "top token"),
    )


def _lens_tips(e: Explanation, name: str, values: torch.Tensor, ranks: tuple[int, ...]) -> list[str]:
    assert e.lens is not None
    places = [layer if layer == "embedding" else f"layer {layer}" for layer in e.lens.layers]
    return [
        f"after {place}: {quoted(name)} has {p:.2g}, rank {r:,}; the top token is {top}"
        for place, p, r, top in zip(places, values.exp().tolist(), ranks, e.lens.top)
    ]


def _flow(e: Explanation) -> Section:
    shown = [p for p in range(e.question.length) if e.question.length <= _MOST_TOKENS or _moved(e.flow, p)]
    values = [[_cell(e.flow, i, p) for i in range(len(e.flow.layers))] for p in shown]
    return Section(
        "Where it travels: layers and positions",
        (
            "The residual stream of the prompt is put into the counterfactual's run, at one layer and one position at "
            "a time. Strong color: this place alone brings the preference back.",
        ),
        HeatMap([e.question.tokens[p] for p in shown], [str(x) for x in e.flow.layers], values, "layer", "token"),
    )


def _moved(grid: Grid, column: int) -> bool:
    values = grid.shares[:, column]
    return bool((~values.isnan() & (values != 0)).any())


def _cell(grid: Grid, row: int, column: int) -> float | None:
    value = float(grid.shares[row, column])
    return None if value != value else value


def _parts(e: Explanation) -> Section:
    layers = sorted({layer for grid in e.parts for layer in grid.layers})
    rows: list[str] = []
    values: list[list[float | None]] = []
    breaks: list[int] = []
    for grid in e.parts:
        breaks += [len(rows)] if rows else []
        places = {layer: i for i, layer in enumerate(grid.layers)}
        for column in range(grid.shares.shape[1]):
            rows.append(_row_name(grid, column))
            values.append([_cell(grid, places[x], column) if x in places else None for x in layers])
    return Section(
        "Which parts cause it: every head and MLP",
        (
            "The same for the output of each part, at all positions: its value from the prompt, everything else from "
            "the counterfactual. These are exact effects, one run a cell.",
        ),
        HeatMap(rows, [str(x) for x in layers], values, "layer", "part", breaks),
    )


def _row_name(grid: Grid, column: int) -> str:
    return {"z": f"head {column}", "mlp_out": "MLP", "mixer_out": "mixer"}[grid.point]


def _named(e: Explanation) -> Section:
    rows = [
        (
            part.name,
            Meter(part.restores),
            Meter(part.breaks),
            Weights([e.question.tokens[part.position]], [0.0]),
            _reads(e, part),
        )
        for part in e.components
    ]
    return Section(
        "The parts named, and what they look at",
        (
            "Restores: what comes back when only this part is taken from the prompt. Breaks: what is lost when only "
            "this part is taken from the counterfactual. Shading: where the head's query at that token attends.",
        ),
        Sheet(
            (
                ("part", "layer and, for a head, its number"),
                ("restores", "share of the preference that comes back"),
                ("breaks", "share of the preference that is lost"),
                ("acts at", "the position at which it restores most"),
                ("attends to", "attention of the query at that position, in the prompt"),
            ),
            rows,
            [i for i, part in enumerate(e.components) if part.echo],
        ),
    )


def _reads(e: Explanation, part: Component) -> str | Weights:
    if part.echo:
        return "echo of the input: as good as swapping the token itself, so it is kept out of the test"
    if part.attends is None:
        return ""
    seen = range(part.position + 1)
    if len(seen) > _MOST_TOKENS:
        seen = sorted(part.attends[: part.position + 1].topk(8).indices.tolist())  # type: ignore[assignment]
    return Weights([e.question.tokens[p] for p in seen], [float(part.attends[p]) for p in seen])


def _verification(e: Explanation) -> Section:
    v = e.verification
    contests = [
        Contest("remove the parts", v.removed.share, v.removed.random, v.removed.needed),
        Contest("keep only the parts", v.kept.share, v.kept.random, v.kept.needed),
    ]
    finding: list[Line] = []
    for name, trial in (("Removing", v.removed), ("Keeping", v.kept)):
        finding.append(
            (
                f"{name}: {whole(trial.share)} against {whole(trial.spread.estimate)} for random sets (95 % "
                f"interval of their mean {100 * trial.spread.lo:.0f} to {whole(trial.spread.hi)}), p = "
                f"{trial.p:.2f}; the model then says ",
                story.said(e, trial.after.tokens[0]),
                ". ",
            )
        )
    return Section(
        "Does the explanation hold?",
        (
            f"The {v.tested} named parts are tested together, echoes excepted. Remove: they alone take their "
            "counterfactual values, in the prompt's run. Keep: they alone take their prompt values, in the "
            f"counterfactual's run. Gray: {len(v.removed.random)} random sets with as many heads and MLPs, drawn from "
            f"all other parts.",
        ),
        Dots(contests, "share of the preference lost (remove) or brought back (keep)"),
        tuple(piece for line in finding for piece in line),
    )


def _measured(e: Explanation) -> Iterator[Line]:
    q = e.question
    yield (
        "Every number here is exact: measured by running the unmodified model with one thing changed. Nothing is a "
        "gradient estimate; where a long prompt has too many places, an estimate chooses which are measured.",
    )
    yield ("Choices. ", "; ".join(q.choices) + "." if q.choices else "Answer, foil and counterfactual were given.")
    yield (
        f"Shares. The preference is the logit of {q.answer} minus the logit of {q.foil}, at the last token. Its gap "
        f"between prompt ({q.high:.3f}) and counterfactual ({q.low:.3f}) is 100 %. A share can exceed 100 % or be "
        f"negative.",
    )
    yield (
        f"Test. Explained means: the answer is what the model says; removing the named parts loses at least "
        f"{whole(MUST_REMOVE)} and keeping only them brings back at least {whole(MUST_KEEP)}; in both, random sets of "
        f"as many parts of each kind do at most {whole(RANDOM_AT_MOST)} on average, and the named parts beat them with "
        f"p \u2264 {LEVEL}, p = (1 + sets that do as well) / (1 + sets).",
    )
    for note in e.notes:
        yield (f"Note: {note}.",)


def _limits(e: Explanation) -> tuple[Line, ...]:
    return (
        ("One prompt against one counterfactual. The parts were chosen and tested on the same pair: that they matter "
         "here does not show that they do this job elsewhere.",),
        ("Only what differs between the two prompts is traced. What both share, such as the grammar of the sentence, "
         "is needed too and stays invisible; hiding tokens shows some of it.",),
        ("That a part carries the answer does not say what it computes. Attention shows where a head looks, not what "
         "it takes from there.",),
        ("Patched runs are states the model never reaches by itself. Effects of single parts need not add up: parts "
         "stand in for each other, and later parts react to earlier ones.",),
        ("The logit lens reads early layers in the language of the last one, which they need not speak.",),
    )  # fmt: skip


def _facts(e: Explanation) -> Iterator[tuple[str, str]]:
    yield "model", e.origin.id
    yield "source", e.origin.source
    yield "weights sha256", e.origin.sha256 or "not a file"
    yield "license", e.origin.license
    yield "prompt tokens", f"{e.question.length} ({' '.join(quoted(t) for t in e.question.tokens[:_MOST_TOKENS])})"
    yield "seed", str(e.seed)
    yield "versions", ", ".join(f"{name} {version}" for name, version in e.versions.items())
    yield "seconds", ", ".join(f"{name} {value:.1f}" for name, value in e.seconds.items())
