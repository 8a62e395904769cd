"""Sections of the report page about the model: where the answer travels, which parts cause it, does that hold."""

from __future__ import annotations

from mechanome.core import Table
from mechanome.explain import story
from mechanome.explain.components import Component, cut_remark, name_of
from mechanome.explain.direct import Direct
from mechanome.explain.effects import Grid
from mechanome.explain.explanation import Explanation
from mechanome.explain.tokens import quoted, whole
from mechanome.report import Contest, Dots, HeatMap, Line, Meter, Section, Sheet, Weights, number

_MOST_TOKENS = 32
"""Longer prompts show only the positions that were measured, or the tokens around a head's query."""
_WRITERS = 8
"""Parts listed that write the answer directly; the numbers have all."""


def flow(e: Explanation) -> Section:
    """The residual stream, by layer and position."""
    shown = [p for p in range(e.question.length) if e.question.length <= _MOST_TOKENS or _moved(e.flow, p)]
    values = [[_cell(e.flow, i, p) for i in range(len(e.flow.layers))] for p in shown]
    return Section(
        "Where it travels: layers and positions",
        (
            "The residual stream of the prompt is put into the counterfactual's run, at one layer and one position at "
            f"a time. Strong green: this place alone brings {story.whole_of(e)} back.",
        ),
        HeatMap([e.question.tokens[p] for p in shown], [str(x) for x in e.flow.layers], values, "layer", "token"),
        method=("Exact: activation patching of the stream before each layer, one run a cell.", *_notes(e.flow)),
        limit=("That a place carries the answer does not say who put it there, or who reads it.",),
    )


def _moved(grid: Grid, column: int) -> bool:
    values = grid.shares[:, column]
    return bool((~values.isnan() & (values != 0)).any())


def _cell(grid: Grid, row: int, column: int) -> float | None:
    value = float(grid.shares[row, column])
    return None if value != value else value


def _notes(*grids: Grid) -> Line:
    return tuple(f" {note[0].upper()}{note[1:]}." for note in dict.fromkeys(n for grid in grids for n in grid.notes))


def parts(e: Explanation) -> Section:
    """Every head, MLP and mixer."""
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
            f"the counterfactual. Strong green: this part alone brings {story.whole_of(e)} back.",
        ),
        HeatMap(rows, [str(x) for x in layers], values, "layer", "part", breaks),
        method=("Exact: activation patching, one run a cell; no gradient estimate.", *_notes(*e.parts)),
        limit=(
            "Effects of single parts need not add up: parts stand in for each other, and later parts react to "
            "earlier ones. The test below takes them together.",
        ),
    )


def _row_name(grid: Grid, column: int) -> str:
    return {"z": f"head {column}", "mlp_out": "MLP", "mixer_out": "mixer"}[grid.point]


def named(e: Explanation) -> Section:
    """The parts of the explanation."""
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
    cut = cut_remark(e.cut) if e.cut else ""
    return Section(
        "The parts named, and what they look at",
        (
            "Restores: what comes back when only this part is taken from the prompt. Breaks: what is lost when only "
            "this part is taken from the counterfactual. Shading: where the head's query at that token attends.",
        ),
        Sheet(
            (
                ("part", "layer and, for a head, its number"),
                ("restores", f"share of {story.whole_of(e)} that comes back"),
                ("breaks", f"share of {story.whole_of(e)} that is lost"),
                ("acts at", "the position at which it restores most"),
                ("attends to", "attention of the query at that position, in the prompt"),
            ),
            rows,
            [i for i, part in enumerate(e.components) if part.echo],
            e.table(),
        ),
        (f"{cut[0].upper()}{cut[1:]}.",) if cut else (),
        (
            "Both effects are exact. Named are the parts with the largest mean of the two among those that restore "
            "most; the model's own first-layer echo of the input is listed, but not tested.",
        ),
        ("Attention shows where a head looks, not what it takes from there, nor what it computes.",),
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


def writers(found: Direct) -> Section:
    """What writes the answer directly."""
    rows = [
        (
            w.name,
            number(w.prompt),
            number(w.counterfactual),
            Meter(w.change / found.gap),
            "" if w.restores is None else Meter(w.restores),
        )
        for w in found.writers[:_WRITERS]
    ]
    high = sum(w.prompt for w in found.writers)
    low = sum(w.counterfactual for w in found.writers)
    notes = "".join(f" {note[0].upper()}{note[1:]}." for note in found.notes)
    return Section(
        "What writes the answer directly",
        (
            "What each part itself adds to the preference at the last token, with nothing in between: direct effect "
            "only. Beside it, the exact effect by every route, as above. A part with a large exact effect that writes "
            "little acts through others.",
        ),
        Sheet(
            (
                ("part", "layer and, for a head, its number"),
                ("prompt", "logits of the preference that it writes after the prompt"),
                ("counterfactual", "and after the counterfactual"),
                ("direct", "the difference of the two, as a share of the whole difference"),
                ("every route", "what it restores in all, direct and through other parts"),
            ),
            rows,
            numbers=found.table(),
        ),
        (
            f"Listed are the {len(rows)} of {len(found.writers)} parts that differ most. "
            f"Sum check: all {len(found.writers)} parts, embedding and biases included, write "
            f"{number(high, 3)} logits after the prompt and "
            f"{number(low, 3)} after the counterfactual; the model's own preference differs by "
            f"{found.error:.0e} at most.",
        ),
        (
            "Direct logit attribution: the last residual stream is a sum of all parts' outputs, and with the last "
            f"norm's scale held it is read linearly.{notes}",
        ),
        ("What a part does through later parts is not counted here; what it writes may be undone by others.",),
    )


def verification(e: Explanation) -> Section:
    """Both tests."""
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
                f"interval of their mean {number(100 * trial.spread.lo, 0)} to {whole(trial.spread.hi)}), p = "
                f"{trial.p:.2f}; the model then says ",
                story.said(e, trial.after.tokens[0]),
                ". ",
            )
        )
    beyond = story.beyond(e)
    remarks = (v.removed.least or v.kept.least, beyond[:1].upper() + beyond[1:])
    return Section(
        "Does the explanation hold?",
        (
            f"The {v.tested} named parts are tested together, echoes excepted. Remove: they alone take their "
            "counterfactual values, in the prompt's run. Keep: they alone take their prompt values, in the "
            f"counterfactual's run. Gray: {len(v.removed.random)} random sets with as many heads and MLPs, drawn from "
            "all other parts.",
        ),
        Dots(contests, f"share of {story.whole_of(e)} lost (remove) or brought back (keep)"),
        (*(piece for line in finding for piece in line), *(f"{remark}. " for remark in remarks if remark)),
        method=("Exact: one run for the parts, and one for each random set, in both directions.",),
        limit=(
            "The parts were chosen and tested on the same pair of prompts: that they matter here does not show that "
            "they do this job elsewhere.",
        ),
    )


def stability(e: Explanation) -> Section:
    """The same parts against other counterfactuals."""
    rows = [
        (
            story.excerpt(c.counterfactual, e.question.prompt),
            Weights([c.foil.text], [0.0]),
            Meter(c.lost),
            Meter(c.back),
            "yes" if c.carries else "no",
            f"{len(c.again)} of {len(c.effects)}",
        )
        for c in e.stability.comparisons
    ]
    return Section(
        "Is it the same against other counterfactuals?",
        (
            "A contrast shows only the mechanism of what it changes. Here the prompt is compared with other texts, and "
            "the parts named above are tested again: removed and kept, as before.",
        ),
        Sheet(
            (
                ("compared with", "another automatic counterfactual"),
                ("foil", "what the answer is compared with here"),
                ("remove", "share of the preference that is lost without the named parts"),
                ("keep", "share that only they bring back"),
                ("carried", "whether both reach the half that the test asks for"),
                ("named again", "which of the parts would be named here as well"),
            ),
            rows,
            numbers=_comparisons(e),
        ),
        (
            f"In {e.stability.stable} of {len(rows)} further counterfactuals the same parts "
            + ("carry the answer" if e.explained else "reach the test's shares; above they did not pass it")
            + f". On average {whole(e.stability.found_again)} of them would be named there, too.",
        ),
        ("Exact, as above. There are no random sets here, and the verdict does not depend on it.",),
        ("Automatic counterfactuals swap one token each; they are a few of many, not a sample of anything.",),
    )


def _comparisons(e: Explanation) -> Table:
    rows = [
        (
            c.counterfactual,
            quoted(c.foil.text),
            c.gap,
            c.lost,
            c.back,
            ", ".join(map(name_of, c.own)),
            None if c.correlation is None else c.correlation.estimate,
            None if c.correlation is None else c.correlation.lo,
            None if c.correlation is None else c.correlation.hi,
        )
        for c in e.stability.comparisons
    ]
    correlation = "rank correlation of all parts' effects"
    names = ("compared with", "foil", "gap (logits)", "lost", "kept", "named here", correlation, "lower", "upper")
    return Table(names, rows)
