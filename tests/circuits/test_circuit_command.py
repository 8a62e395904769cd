"""`discover` and its run folder: on a model whose circuit is known, it is found, and measured on other examples."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
import tiny
import torch
from rich.console import Console

from browser import opened as in_browser
from circuit_tasks import task
from mechanome.circuits import METHODS, Circuit, execute, faithfulness
from mechanome.circuits.finding import Discovery, discover, halves
from mechanome.circuits.finding.attention import LAST, looks
from mechanome.circuits.finding.measuring import ENOUGH, keeps, misses
from mechanome.circuits.finding.plots import AgreementPicture, CurvePicture
from mechanome.circuits.finding.rows import rows, strongest_heads, table
from mechanome.circuits.finding.settings import Settings
from mechanome.circuits.finding.story import reach
from mechanome.circuits.measured import Measured
from mechanome.circuits.picture import CircuitPicture
from mechanome.circuits.screening import top
from mechanome.core import BadInput, Interval, TooFewRows, UnknownName
from mechanome.report.palette import LIGHT
from mechanome.tasks import Task
from report.markup import check

SIZES = (0.02, 0.05, 0.2, 1.0)


@cache
def nouns() -> Task:
    return task(tiny.lonely())


LIMITS = {"acdc": {"threshold": 0.01}, "greedy": {"size": 8}}
"""Of searches."""


@cache
def found(method: str = "eap-ig", level: str = "edge", stability: bool = False) -> Discovery:
    settings = {"method": method, "level": level, "stability": stability, "sizes": SIZES, "examples": 16}
    return discover(nouns(), tiny.lonely(), quiet=True, **settings, **LIMITS.get(method, {}))


# The examples ------------------------------------------------------------------------------------------------


def test_no_example_both_finds_and_measures() -> None:
    given = halves(tiny.lonely(), nouns(), 12, seed=3)
    finding, held = ({e.inputs + str(e.counterfactual) for e in half} for half in (given.finding, given.held_out))
    assert len(finding) == len(held) == 6 and not finding & held and given.used == 12
    assert given.right >= 12 and given.tried >= 12 and given.task.examples == (*given.finding, *given.held_out)
    again, other = (halves(tiny.lonely(), nouns(), 12, seed=seed) for seed in (3, 4))
    assert again.finding == given.finding and other.finding != given.finding


def test_what_the_model_does_wrong_is_left_out_and_counted() -> None:
    wrong = [replace(e, answer=e.foil, foil=e.answer) for e in nouns().examples[:3]]
    uneven = [replace(e, counterfactual="the cat", spans={}) for e in nouns().examples[3:5]]
    mixed = replace(nouns(), examples=(*wrong, *uneven, *nouns().examples[5:13]))
    given = halves(tiny.lonely(), mixed, 100)
    assert given.dropped == {"the model prefers the foil": 3, "the counterfactual has another token length": 2}
    assert (given.tried, given.right, given.used) == (13, 8, 8)


def test_too_few_examples_are_refused_with_the_reason() -> None:
    uneven = replace(nouns(), examples=tuple(replace(e, counterfactual="the cat", spans={}) for e in nouns()))
    with pytest.raises(TooFewRows, match=r"another token length.*Fix: give counterfactuals of as many tokens"):
        halves(tiny.lonely(), uneven, 8)
    with pytest.raises(TooFewRows, match="ask for more"):
        halves(tiny.lonely(), nouns(), 3)
    with pytest.raises(TooFewRows, match="prefers the foil"):
        halves(
            tiny.lonely(),
            replace(nouns(), examples=tuple(replace(e, answer=e.foil, foil=e.answer) for e in nouns())),
            8,
        )


# The circuit -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [*METHODS, *LIMITS])
def test_every_way_finds_the_one_head_that_matters(method: str) -> None:
    d = found(method)
    assert d.verdict == "faithful" and "z.1.h3->logits" in d.circuit
    assert d.faithfulness.value is not None and abs(d.faithfulness.value - 1) < 0.05
    assert rows(d)[0].source in ("z.1.h3", "resid_pre.0")
    rest = d.without["faithfulness of the rest"].value
    assert rest is not None and abs(rest) < 0.05


def test_the_held_out_half_is_what_is_measured() -> None:
    d = found()
    again = execute(d.circuit, d.halves.held_out, quiet=True)
    assert torch.allclose(again.values, d.measures.held_out.own.values, atol=1e-5)
    assert d.faithfulness.value == pytest.approx(faithfulness(again)[0].value, abs=1e-5)
    rest = execute(~d.circuit, d.halves.held_out, quiet=True)
    assert torch.allclose(rest.values, d.measures.complement.values, atol=1e-5)
    other = execute(d.circuit, d.halves.finding, quiet=True)
    assert torch.allclose(other.values, d.measures.finding.own.values, atol=1e-5)


def test_the_smallest_size_that_is_enough_is_chosen() -> None:
    d = found()
    curve = d.measures.finding.curve
    assert curve is not None and d.ranked.scores is not None and curve.sizes == SIZES
    enough = [m for m in curve.faithfulness if keeps(m)]
    first = curve.faithfulness.index(enough[0])
    assert d.measures.chosen.share == SIZES[first] and d.measures.chosen.size == int(SIZES[first] * d.graph.n_edges)
    assert d.circuit == top(d.ranked.scores, d.measures.chosen.size).pruned()
    given = discover(nouns(), tiny.lonely(), quiet=True, size=3, sizes=SIZES, examples=8)
    assert given.measures.chosen.size == 3 and given.circuit == top(given.ranked.scores, 3).pruned()


def test_sources_make_a_circuit_too() -> None:
    d = found(level="node")
    assert d.verdict == "faithful" and strongest_heads(d, 1) == ["1.3"] and "z.1.h3" in d.heads
    assert d.circuit <= Circuit.of_nodes(d.graph, d.circuit.nodes)
    assert rows(d)[0].target is None and d.measures.held_out.curve is not None


def test_a_search_has_one_circuit_and_no_curve() -> None:
    d = found("greedy")
    assert d.measures.held_out.curve is None and d.ranked.screened is None and d.overlap is None
    assert "greedy" in d.html() and Console(width=80).render_lines(d)


@pytest.mark.parametrize(
    "lo, value, hi, verdict",
    [(0.8, 0.9, 1.0, "faithful"), (0.7, 0.9, 1.0, "undecided"), (0.1, 0.5, 0.79, "not faithful")],
)
def test_the_verdict_takes_the_whole_interval(lo: float, value: float, hi: float, verdict: str) -> None:
    m = Measured("faithfulness", value, Interval(value, lo, hi, 8))
    assert (keeps(m), misses(m)) == (verdict == "faithful", verdict == "not faithful") and ENOUGH == 0.8
    d = replace(found())
    d.__dict__["faithfulness"] = m
    assert d.verdict == verdict


def test_where_nothing_changes_there_is_nothing_to_explain() -> None:
    d = replace(found())
    d.__dict__["faithfulness"] = Measured("faithfulness", None, note="the intervention changes nothing")
    assert d.verdict == "no effect" and "Nothing to explain" in d.html()


# How far to trust it -----------------------------------------------------------------------------------------


def test_estimates_and_exact_effects_stand_side_by_side() -> None:
    d = found()
    s = d.ranked.screened
    assert s is not None and s.exact is not None and d.overlap is not None and d.overlap.value is not None
    for row in rows(d):
        assert row.target is not None
        at = d.graph.index(f"{row.source}->{row.target}")
        assert row.estimate == pytest.approx(float(s.estimate.values[at]))
        assert row.exact is None or row.exact == pytest.approx(float(s.exact.values[at]))
        assert row.share == pytest.approx(row.value / d.ranked.scores.total_effect)
    sizes = [abs(row.value) for row in rows(d)]
    assert sizes == sorted(sizes, reverse=True) and len(table(d)) == len(d.circuit)
    assert strongest_heads(d, 1) == ["1.3"]


@pytest.mark.parametrize("method", ["eap-ig", "greedy"])
def test_stability_resamples_the_finding_half(method: str) -> None:
    d = found(method, stability=True)
    card = d.stability
    assert card is not None and card.inputs == len(d.halves.finding)
    point = card.points[0]
    assert 0 <= point.chance < point.jaccard.estimate <= 1
    if method == "eap-ig":
        assert str(d.measures.chosen.size) in [p.named for p in card.points]
    assert "Would other examples give the same circuit?" in d.html()


def test_where_heads_look_is_the_mean_of_their_patterns() -> None:
    d = found()
    seen = looks(d.graph, d.halves.finding, ["z.1.h3", "mlp_out.0"])
    sums: Counter[tuple[str, str]] = Counter()
    for example in d.halves.finding:
        tokens = tiny.lonely().str_tokens(example.inputs)
        pattern = tiny.lonely().run(example.inputs, capture="pattern.1")["pattern.1"][0, 3]
        noun, last = tokens.index(f" {example.inputs.split()[1]}"), len(tokens) - 1
        named = {**{p: f"'{token}'" for p, token in enumerate(tokens)}, noun: "noun", last: LAST}
        for query in (noun, last):
            for key in range(1, query + 1):
                sums[named[query], named[key]] += float(pattern[query, key])
    best = max(sums, key=sums.__getitem__)
    assert list(seen) == ["z.1.h3"] and (seen["z.1.h3"].query, seen["z.1.h3"].key) == best
    assert seen["z.1.h3"].weight == pytest.approx(sums[best] / len(d.halves.finding), abs=1e-5)
    assert str(seen["z.1.h3"]).startswith(f"from {best[0]} it looks at {best[1]} (")


# The page ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["eap-ig", "exact", "greedy", "node", "stability"])
def test_the_page_is_whole_html_and_the_terminal_is_narrow(case: str) -> None:
    d = found(level="node") if case == "node" else found(stability=True) if case == "stability" else found(case)
    page = check(d.html("mechanome replay x"))
    text = " ".join(page.text)
    for part in ("What this does not show", "How this was measured", "mechanome replay x", "nouns", "held out"):
        assert part in text
    console = Console(width=80, file=StringIO())
    console.print(d)
    shown = console.file.getvalue()
    assert "FAITHFUL ON NEW EXAMPLES" in shown and "1.3" in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80


def test_the_curve_shows_both_halves_and_the_circuit() -> None:
    d = found()
    found_on, held = d.measures.finding.curve, d.measures.held_out.curve
    assert found_on is not None and held is not None
    picture = CurvePicture(found_on, held, d.circuit.share, d.faithfulness, ENOUGH)
    first, second, own = picture.figure().data
    assert list(second.y) == [m.value for m in held.faithfulness] and list(second.x) == list(SIZES)
    assert list(first.y) == [m.value for m in found_on.faithfulness]
    smallest = held.faithfulness[0]
    assert second.error_y.array[0] == pytest.approx(smallest.interval.hi - smallest.value)
    assert own.x[0] == d.circuit.share and own.y[0] == d.faithfulness.value
    assert len(picture.table()) == len(SIZES)


def test_a_reader_sees_what_is_asked_and_in_which_units() -> None:
    d = found()
    first = d.halves.finding[0]
    text, shown = " ".join(check(d.html()).text), " ".join(str(d).split())
    for part in (first.inputs, first.counterfactual, first.answer.strip(), first.foil.strip(), "logits on inputs"):
        assert part in text and part in shown
    assert "Effects in logits" in shown


def test_a_circuit_of_sources_shows_the_edges_between_strong_ones() -> None:
    d = found(level="node")
    sizes, last = d.ranked.scores.values.abs(), d.graph.targets.index("logits")
    every = ~Circuit.empty(d.graph)
    picture = CircuitPicture(every, d.ranked.scores, most=len(every) // 4)
    drawn = {i for i, j, _ in picture.drawn if j == last}
    others = set(every.edges[:, last].nonzero()[:, 0].tolist()) - drawn
    assert drawn and others and sizes[sorted(drawn)].min() >= sizes[sorted(others)].max()
    assert "edges of weaker sources are not drawn" in str(picture.html())
    text = " ".join(check(d.html()).text)
    assert "all were measured" in text and "a source whose sign" in text and "small estimate stays unseen" not in text


def test_the_empty_circuit_has_no_place_on_a_logarithmic_scale() -> None:
    d = found()
    curves = d.measures.finding.curve, d.measures.held_out.curve
    found_on, held = (replace(curve, sizes=(0.0, *curve.sizes[1:])) for curve in curves if curve is not None)
    figure = CurvePicture(found_on, held, d.circuit.share, d.faithfulness, ENOUGH).figure()
    assert all(min(trace.x) > 0 for trace in figure.data) and list(figure.layout.xaxis.tickvals) == list(SIZES[1:])


def test_a_search_says_that_what_guided_it_are_estimates() -> None:
    assert "none was measured" in found("greedy").html() and "estimated effect" in found("greedy").html()
    assert "none was measured" not in found().html() and "none was measured" not in found("exact").html()


def test_areas_say_how_far_their_curve_goes() -> None:
    curve = found().measures.held_out.curve
    assert curve is not None and reach(curve) == "up to all edges" in str(found()).replace("\n", " ")
    assert "up to 20\u202f% of all edges (not comparable" in reach(replace(curve, sizes=(0.1, 0.2)))


def test_a_wrong_sign_is_set_off() -> None:
    agree, apart = AgreementPicture(["a", "b"], [0.5, 0.2], [0.4, -0.1], "edge", "eap", "logits").figure().data
    assert (agree.marker.color, list(agree.x)) == (LIGHT["for"], [0.5])
    assert (apart.marker.color, list(apart.y)) == (LIGHT["against"], [-0.1])


def test_the_page_opens_offline(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(found(stability=True).html())
    shown = in_browser(page, tmp_path / "profile")
    assert "Faithful on new examples" in shown and "svg-container" in shown


# Settings ----------------------------------------------------------------------------------------------------


BAD = {
    "method": ({"method": "eapig"}, "did you mean 'eap-ig'"),
    "level": ({"level": "head"}, "level='head'"),
    "level of a search": ({"method": "greedy", "size": 3, "level": "node"}, "greedy finds edges"),
    "search without limit": ({"method": "greedy"}, "such as 200 or threshold"),
    "threshold of scores": ({"threshold": 0.1}, "eap-ig does not take it"),
    "threshold": ({"method": "greedy", "threshold": -1.0}, "threshold"),
    "verify of a search": ({"method": "greedy", "size": 3, "verify": 5}, "no estimate to verify"),
    "size": ({"size": 0}, "size=0"),
    "sizes": ({"sizes": [0.1]}, "two or more shares"),
    "sizes beyond all": ({"sizes": [0.1, 2]}, "two or more shares"),
    "intervention": ({"intervention": "path"}, "did you mean 'patch'"),
    "metric": ({"metric": "logits"}, "did you mean 'logit_diff'"),
    "examples": ({"examples": 0}, "examples=0"),
    "seed": ({"seed": -1}, "seed=-1"),
    "budget": ({"budget": "much"}, "it is not a size"),
}


@pytest.mark.parametrize("name", BAD)
def test_settings_are_checked_at_once(name: str) -> None:
    settings, said = BAD[name]
    with pytest.raises(BadInput, match=said):
        Settings(**settings)


def test_settings_come_back_from_their_record() -> None:
    asked = Settings(size=5, sizes=(1.0, 0.1), seed=3)
    assert Settings(**asked.record()) == asked and asked.sizes == (0.1, 1.0)


@pytest.mark.parametrize("name, value", [("size", 10**6), ("verify", 10**6)])
def test_numbers_beyond_the_graph_are_refused(name: str, value: int) -> None:
    with pytest.raises(BadInput, match=rf"{name} 1,000,000: the graph has .* edges"):
        discover(nouns(), tiny.lonely(), quiet=True, **{name: value})


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(UnknownName, match="did you mean 'ioi'"):
        discover("io", tiny.lonely(), quiet=True)
