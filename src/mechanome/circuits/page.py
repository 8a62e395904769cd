"""The report page of a discovered circuit: which pictures, in which order, with which words around them."""

from __future__ import annotations

from collections.abc import Iterator

from mechanome.circuits.certification import certificate_section
from mechanome.circuits.finding import story
from mechanome.circuits.finding.discovery import Discovery
from mechanome.circuits.finding.measuring import ENOUGH
from mechanome.circuits.finding.plots import AgreementPicture, CurvePicture
from mechanome.circuits.finding.rows import drawable, rows, table
from mechanome.circuits.finding.unit_words import section as unit_section
from mechanome.circuits.finding.ways import WAYS
from mechanome.circuits.picture import CircuitPicture
from mechanome.circuits.screening import Screened
from mechanome.circuits.stability_card import StabilityReport
from mechanome.report import Line, Meter, Page, Section, Sheet, number
from mechanome.report.rendering import share

_LISTED = 20
"""Edges on the page; the numbers have all."""
_DRAWN = 80
"""Edges in the picture; with more it is a blot."""


def document(d: Discovery, replay: str = "") -> Page:
    """The page.

    Args:
        d: a discovery.
        replay: the command that repeats it.
    """
    return Page(
        name=f"{d.halves.finding.name} in {d.model.name}: {d.verdict}",
        kicker=" \u00b7 ".join(("Mechanome", "circuit", d.halves.finding.name, d.model.name)),
        title=story.title(d),
        subtitle=story.subtitle(d),
        verdict=(story.WORDS[d.verdict], d.verdict == "faithful", story.verdict(d)),
        story=story.story(d),
        sections=tuple(_sections(d)),
        measured=tuple(_measured(d)),
        limits=_LIMITS,
        facts=tuple(_facts(d)),
        command=replay,
    )


def _sections(d: Discovery) -> Iterator[Section]:
    yield _drawing(d)
    if d.measures.held_out.curve is not None:
        yield _curve(d)
    if d.ranked.screened is not None and d.ranked.screened.exact is not None:
        yield _agreement(d, d.ranked.screened)
    yield _parts(d)
    if d.carriers is not None:
        yield unit_section(d.carriers, "held-out examples", story.OTHERS[d.settings.intervention])
    yield _measures(d)
    if d.stability is not None:
        yield _stability(d, d.stability)
    if d.certificate is not None:
        yield certificate_section(d.certificate, _LISTED)


def _drawing(d: Discovery) -> Section:
    found, shown = d.ranked.scores, drawable(d)
    what = "estimated effect" if found is not None and found.estimate and d.ranked.screened is None else "effect"
    tips = {name: str(look) for name, look in d.looks.items()}
    colors = (
        f"Strength is the size of an edge's {what}. Green edges work for the answer: without them the metric falls; "
        "orange ones work against it. "
        if found is not None and d.settings.level == "edge"
        else ""
    )
    return Section(
        "The circuit",
        (
            "Layers from the input below to the output above; heads left (23.3 is head 3 of layer 23), MLPs right. "
            f"{colors}Point at an edge for its {'effect' if colors else 'name'}, at a head for where it looks.",
        ),
        CircuitPicture(shown, found, _DRAWN, tips),
        () if shown is d.circuit else (f"Only its strongest sources are shown, with {len(shown):,} edges.",),
        method=(
            "Where a head looks is its attention, a mean over the examples that the circuit was found on; the first "
            "token is left out, where heads look when they look at nothing.",
        ),
        limit=(
            "That an edge is in the circuit does not say what it carries. A key or value is shared by the heads of its "
            "group, so its edges are drawn to each of them.",
        ),
    )


def _curve(d: Discovery) -> Section:
    found, held = d.measures.finding.curve, d.measures.held_out.curve
    assert found is not None and held is not None
    return Section(
        "How much does a circuit of each size keep?",
        (
            "The model is run with a circuit's edges as they are, and all others carrying "
            f"{story.OTHERS[d.settings.intervention]}. 100\u202f% is the model itself, 0\u202f% no edge at all. Where "
            "the lines part, the circuit fits the examples it was found on.",
        ),
        CurvePicture(found, held, d.measures.chosen.share, d.faithfulness, ENOUGH),
        (f"CPR {story.value(held.cpr)}, CMD {story.value(held.cmd)}, over sizes {story.reach(held)}, held out.",),
        (
            "Exact: every circuit is run. Faithfulness is (metric of the circuit - metric of no edge) / (metric of the "
            "model - metric of no edge), a ratio of means over examples; intervals are bootstraps over examples. CPR "
            "is the area under the curve, CMD the area between it and 100\u202f% (MIB, Mueller et al. 2025), over the "
            "sizes shown.",
        ),
        ("A circuit that keeps the metric need not keep the rest of what the model says.",),
    )


def _agreement(d: Discovery, s: Screened) -> Section:
    level = d.settings.level
    known, names = s.verified.nonzero().tolist(), d.graph
    labels = [names.name(*at) if level == "edge" else names.sources[at[0]] for at in known]
    estimates, exact = s.pairs()
    agree = "not defined" if s.agreement is None else story.interval(s.agreement)
    order = "" if s.reordered is None else f"; {share(s.reordered)} of pairs change places"
    overlap = (
        "" if d.overlap is None else f" IoU of the circuit with that of the estimate alone: {d.overlap.value:.2f}."
    )
    one, every = "edge" if level == "edge" else "source", int(s.estimate.known.sum())
    which = f"the strongest {len(labels):,}" if len(labels) < every else "all"
    return Section(
        "Is the estimate right?",
        (
            f"All {every:,} {one}s have an estimate, and {which} were measured: the model was run with exactly that "
            "part changed. On the dashed line both agree.",
        ),
        AgreementPicture(
            labels, estimates.tolist(), exact.tolist(), one, s.estimate.method, story.UNIT[d.halves.finding.metric]
        ),
        (f"Rank correlation {agree}; {s.signs_changed} of {len(labels)} have another sign{order}.{overlap}",),
        (
            f"Estimate: {WAYS[s.estimate.method].says}. Where the exact number is known, the circuit is chosen by it. "
            "The rank correlation is Spearman's, signs included, with a bootstrap interval over what was measured.",
        ),
        ("Only the strongest estimates were checked: an edge that matters and has a small estimate stays unseen.",)
        if len(labels) < every
        else (),
    )


def _parts(d: Discovery) -> Section:
    kept = rows(d)[:_LISTED]
    one = "edge" if d.settings.level == "edge" else "source"
    unit = story.UNIT[d.halves.finding.metric]
    cells = [
        (
            row.name,
            "" if row.share is None else Meter(row.share),
            number(row.estimate, 3),
            number(row.exact, 3),
            "; ".join(filter(None, (str(d.looks.get(row.source, "")), row.remark))),
        )
        for row in kept
    ]
    return Section(
        f"The {one}s one by one",
        (
            f"The {len(kept)} strongest. An effect is by how much the metric changes where this {one} alone carries "
            f"{story.OTHERS[d.settings.intervention]}; its share is of the whole effect, positive where it works for "
            f"the answer.{_unmeasured(d)}",
        ),
        Sheet(
            (
                (one, "where it is read, and by what"),
                ("share", "of the whole effect; by the exact number where there is one"),
                ("estimate", f"from gradients, in {unit}"),
                ("exact", f"measured, in {unit}; empty where it was not"),
                ("remark", "where the sending head looks; what measuring corrected"),
            ),
            cells,
            numbers=table(d),
        ),
        method=(f"Both columns are means over the examples that the circuit was found on, in {unit}.",),
        limit=("Effects of single parts do not add up to that of the circuit.",),
    )


def _unmeasured(d: Discovery) -> str:
    """That effects are estimates, where a search was guided by some and measured none."""
    found = d.ranked.scores
    if found is None or d.ranked.screened is not None or not found.estimate:
        return ""
    return f" Here all are estimates by {found.method}, none was measured: their size and sign may be wrong."


def _measures(d: Discovery) -> Section:
    made = [(name, *(story.value(m, 3) for m in pair)) for name, pair in d.properties.items()]
    made += [(name, "", story.value(m, 3)) for name, m in d.without.items()]
    return Section(
        "How good is it?",
        (
            "Every measure on the examples that the circuit was found on, and on those held out. Trust the second "
            "column: the first one flatters.",
        ),
        Sheet((("measure", ""), ("found on", ""), ("held out", "with 95\u202f% intervals over examples")), made),
        method=(
            "Faithfulness: share of the effect kept. NDF: 1 minus the deviation from the model in units of the effect, "
            "cut to 0 to 1, example by example. KL: between the next-token distributions of model and circuit. "
            "Accuracy: share of examples on which the metric is positive. Circuit error: share on which the most "
            "likely token differs. The rest is all edges that are not in the circuit.",
        ),
        limit=("A rest that keeps much means that the circuit is not the only way: others can stand in for it.",),
    )


def _stability(d: Discovery, card: StabilityReport) -> Section:
    made = [
        (
            point.named,
            story.interval(point.jaccard),
            number(point.chance, 3),
            "" if point.nodes is None else story.interval(point.nodes),
            "" if point.node_chance is None else number(point.node_chance, 3),
            "" if point.weighted is None else story.interval(point.weighted),
        )
        for point in card.points
    ]
    tau = "" if card.tau is None else f" Kendall's tau of all scores: {story.interval(card.tau)}."
    return Section(
        "Would other examples give the same circuit?",
        (
            f"The method was repeated on {card.samples} resamples of {card.n} examples, and the circuits of two "
            "samples compared: 1 means always the same, beside what random sets of that size reach.",
        ),
        Sheet(
            (
                ("size", f"{card.kind} chosen"),
                ("Jaccard", f"shared {card.kind} over all {card.kind} of two samples"),
                ("by chance", "of random sets"),
                ("of nodes", "the same of the sources that send along them"),
                ("by chance", "of random sets"),
                ("weighted", "by the sizes of scores"),
            ),
            made,
            numbers=card.table(),
        ),
        (f"{tau} {' '.join(card.notes)}".strip(),) if tau or card.notes else (),
        (
            "Intervals over examples, by the jackknife (Meloux et al. 2026). Which edges are measured exactly stays "
            "the same in every sample.",
        ),
        ("Stability says that a method repeats itself, not that it is right.",),
    )


def _measured(d: Discovery) -> Iterator[Line]:
    h = d.halves
    yield (
        f"Examples. The first {h.used} that {d.model.name} does right and whose counterfactual has as many tokens; "
        f"divided by seed {h.seed} into {len(h.finding)} that find the circuit and {len(h.held_out)} that measure it.",
    )
    yield (
        "Graph. Sources are the embedding, every head and every MLP; targets are the query of each head, each key and "
        f"value (shared by a group of heads where the model groups them), each MLP and the logits: {d.graph.n_edges:,} "
        "edges. An edge carries what its source adds to what its target reads.",
    )
    chosen = (
        f"The size was given: {d.settings.size:,}."
        if d.settings.size is not None
        else f"The size is the smallest on the curve that surely keeps {share(ENOUGH)} on the examples it was found on."
    )
    yield (f"Choice. By the size of effects, strongest first; then without edges on no path. {chosen}",)
    yield (
        f"Verdict. {story.WORDS['faithful']}: the whole 95\u202f% interval of faithfulness on held-out examples is at "
        f"least {share(ENOUGH)}. The threshold is fixed in the program.",
    )
    for note in d.notes:
        yield (f"Note: {note}.",)


_LIMITS: tuple[Line, ...] = (
    ("Only what differs between inputs and counterfactuals is traced. What both share is needed, too, and stays "
     "invisible.",),
    ("The circuit is about this task, these templates and this intervention. Others can give another one.",),
    ("Only examples that the model does right were used: how it fails is not shown.",),
    ("Runs of circuits are states the model never reaches by itself.",),
    ("Other circuits may do as well. This is one, not the one.",),
)  # fmt: skip


def _facts(d: Discovery) -> Iterator[tuple[str, str]]:
    source = d.model.source
    yield "model", d.model.name
    if source is not None:
        yield "source", source.source
        yield "weights sha256", source.sha256
        yield "license", source.license
    yield "task", f"{d.halves.finding.name} ({d.halves.finding.provenance.source})"
    yield from ((name, str(value)) for name, value in d.settings.record().items())
    yield "versions", ", ".join(f"{name} {version}" for name, version in d.versions.items())
    yield "seconds", ", ".join(f"{name} {value:.1f}" for name, value in d.seconds.items())
