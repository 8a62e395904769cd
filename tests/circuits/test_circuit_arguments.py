"""What circuits are given: whatever cannot be is refused in one clause, whatever can be works the same everywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import tiny
import torch
from circuit_models import METRIC, apart, opened, pair

import mechanome as mn
from circuit_tasks import task
from families import build
from mechanome.circuits import (
    Circuit,
    CircuitPicture,
    Executed,
    Graph,
    Intervention,
    Resamples,
    ScoredQuery,
    Scores,
    acdc,
    circuit_error,
    execute,
    iou,
    learned_mask,
    metrics_table,
    minimality,
    query_circuits,
    save_circuit,
    scores,
    search,
    size_curve,
    sizes_in_edges,
    stability_report,
    top_n,
)
from mechanome.circuits.finding import discover, halves
from mechanome.circuits.finding.settings import Settings
from mechanome.circuits.screening import top
from mechanome.core import BadInput, BudgetTooSmall, MechanomeError, NotServed, ShapeMismatch, TooFewRows

PAIR = pair(2)


@cache
def graph() -> Graph:
    return Graph.of(opened("llama"))


@cache
def few() -> Circuit:
    return top(scores(graph(), PAIR, METRIC, method="eap", quiet=True), 12)


@cache
def estimates() -> Scores:
    return scores(graph(), PAIR, METRIC, method="eap", quiet=True)


@cache
def ran(logits: bool = False) -> Executed:
    return execute([few(), Circuit.full(graph())], PAIR, METRIC, logits=logits, quiet=True)


# Pairs that do not differ --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dense", "sparse", "auto"])
def test_where_no_input_differs_every_circuit_is_the_model(method: str) -> None:
    circuits = [Circuit.empty(graph()), few(), Circuit.full(graph())]
    done = execute(circuits, (PAIR[0], PAIR[0]), METRIC, method=method, logits=True, quiet=True)
    assert torch.allclose(done.values, done.clean.expand(3, -1), atol=1e-5) and torch.equal(done.clean, ran().clean)
    assert done.divergence.max() < 1e-6 and done.agrees.all()


@pytest.mark.parametrize("intervention", ["patch", "noise"])
def test_a_pair_that_does_not_differ_changes_no_other(intervention: str) -> None:
    clean, other = PAIR
    mixed = torch.cat([clean[:1], clean[:1], clean[1:]]), torch.cat([clean[:1], other[:1], other[1:]])
    settings: dict[str, Any] = {"intervention": intervention, "quiet": True}
    together = execute([few()], mixed, METRIC, **settings)
    assert together.values[0, 0] == pytest.approx(float(together.clean[0]), abs=1e-5)
    if intervention == "patch":  # noise depends on the number of the example
        alone = [execute([few()], [x[i : i + 1] for x in mixed], METRIC, **settings).values for i in range(3)]
        assert apart(torch.cat(alone, 1), together.values) < 1e-5
        found = acdc(graph(), mixed, METRIC, threshold=0.5, start=few(), budget="200KB", quiet=True)
        assert found.circuit == acdc(graph(), mixed, METRIC, threshold=0.5, start=few(), quiet=True).circuit


def test_numbers_do_not_depend_on_the_default_type() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        done = execute([few(), Circuit.full(graph())], PAIR, METRIC, logits=True, quiet=True)
    finally:
        torch.set_default_dtype(torch.float32)
    assert done.logits is not None and done.values.dtype == done.logits.dtype == torch.float32
    assert torch.equal(done.values, ran().values)


# Examples ------------------------------------------------------------------------------------------------------


def test_an_example_that_is_given_twice_is_used_once() -> None:
    nouns = task(tiny.lonely())
    few = nouns.examples[:6]
    repeated = replace(nouns, examples=(*few, *(replace(e, groups={}) for e in few[:4]), *nouns.examples[6:8]))
    given = halves(tiny.lonely(), repeated, 100)
    assert given.dropped == {"it repeats another example": 4} and (given.tried, given.used) == (12, 8)
    assert all(e in given.task.examples for e in nouns.examples[:8])
    with pytest.raises(TooFewRows, match="16 dropped: it repeats another example"):
        halves(tiny.lonely(), replace(nouns, examples=few[:1] * 17), 8)


def test_a_circuit_without_any_path_has_a_page() -> None:
    shared: dict[str, Any] = {"sizes": (0.02, 1.0), "examples": 12, "quiet": True}
    d = discover(task(tiny.lonely()), tiny.lonely(), size=1, verify=4, **shared)
    assert len(d.circuit) == 0 and d.overlap is None and d.record()["screening"]["overlap_with_estimate_alone"] is None
    assert "NOT FAITHFUL" in str(d) and "Is the estimate right?" in d.html()


# Budgets -------------------------------------------------------------------------------------------------------

BUDGETED: dict[str, Callable[[str], Any]] = {
    "scores": lambda budget: scores(graph(), PAIR, METRIC, budget=budget, quiet=True),
    "exact": lambda budget: scores(graph(), PAIR, METRIC, method="exact", only=few(), budget=budget, quiet=True),
    "run": lambda budget: execute(few(), PAIR, METRIC, budget=budget, quiet=True),
}


@pytest.mark.parametrize("name", BUDGETED)
def test_a_budget_that_is_named_as_enough_is_enough(name: str) -> None:
    with pytest.raises(BudgetTooSmall, match=r"a budget of 40\.0 KB") as refused:
        BUDGETED[name]("40KB")
    BUDGETED[name](refused.value.fix.removeprefix("give at least "))


# Seeds ---------------------------------------------------------------------------------------------------------

SEEDED: dict[str, Callable[[Any], Any]] = {
    "settings": lambda seed: Settings(seed=seed),
    "noise": lambda seed: Intervention("noise", seed=seed),
    "order": lambda seed: acdc(
        graph(), PAIR, METRIC, threshold=1.0, start=few(), order="random", seed=seed, quiet=True
    ),
    "masks": lambda seed: learned_mask(graph(), PAIR, METRIC, size=5, steps=1, seed=seed, quiet=True),
    "resamples": lambda seed: Resamples.of(4, seed=seed),
    "removal": lambda seed: minimality(few(), PAIR, METRIC, sets=2, size=2, seed=seed, quiet=True),
    "controls": lambda seed: query_circuits(
        graph(), [x[:1] for x in PAIR], METRIC, method="gaussian", budgets=[3], score="eap", seed=seed, quiet=True
    ),
}


@pytest.mark.parametrize("name", SEEDED)
@pytest.mark.parametrize(
    "seed", ["x", 0.5, True, -1, 2**32, None], ids=["text", "half", "yes", "minus", "huge", "none"]
)
def test_a_seed_is_a_whole_number_that_every_generator_takes(name: str, seed: Any) -> None:
    with pytest.raises(BadInput, match=r"seed=.*whole number from 0.*Fix: use seed=0"):
        SEEDED[name](seed)


# Things of another kind ----------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "a model as graph": (lambda: scores(opened("llama"), PAIR, METRIC), r"Fix: give Graph\.of"),
    "a module as model": (lambda: Graph.of(build("llama")), r"Fix: open it with mn\.load"),
    "no model": (lambda: Graph.of(None), "NoneType"),
    "a number as circuits": (lambda: execute(3, PAIR, METRIC), "3 is none"),
    "names as circuits": (lambda: execute(["z.0.h0->logits"], PAIR, METRIC), "is none"),
    "nothing as intervention": (lambda: execute(few(), PAIR, METRIC, intervention=None), "intervention=None"),
    "a number as intervention": (lambda: scores(graph(), PAIR, METRIC, intervention=3), "intervention=3"),
    "noise of no size": (lambda: Intervention("noise", amplitude=float("nan")), "amplitude=nan"),
    "a number as edge": (lambda: Circuit.of(graph(), [3]), "edge 3"),
    "no members": (lambda: iou(few(), few(), of="heads"), "of='heads'"),
    "a share that is no number": (lambda: sizes_in_edges(graph(), [float("nan")]), "a share of nan"),
    "a share above all": (lambda: sizes_in_edges(graph(), [0.1, 1.5]), r"a share of 1\.5"),
    "a curve of shares below 0": (lambda: size_curve(ran(), [-0.1, 0.5]), r"a share of -0\.1"),
    "a curve of texts": (lambda: size_curve(ran(), ["a", "b"]), "'a' is not a real number"),
    "a size of the curve": (lambda: Settings(sizes=(0.1, float("nan"), 1.0)), "shares above 0"),
    "other complements": (lambda: metrics_table(ran(), ran()), "not those of the circuits"),
    "answers beyond": (lambda: circuit_error(ran(True), torch.tensor([5, 10_000])), "10000"),
    "an objective of numbers": (
        lambda: acdc(graph(), PAIR, METRIC, threshold=1.0, start=few(), objective=lambda said: 3, quiet=True),
        "it returns int",
    ),
    "a text as start": (lambda: acdc(graph(), PAIR, METRIC, threshold=1.0, start="x"), "start=.*no Circuit but str"),
    "scores as start": (
        lambda: learned_mask(graph(), PAIR, METRIC, size=5, start=estimates()),
        "start=.*no Circuit but Scores.*give a Circuit of the same graph",
    ),
    "numbers to guess by": (
        lambda: acdc(graph(), PAIR, METRIC, threshold=1.0, scores=estimates().values),
        "scores=.*no Scores but Tensor",
    ),
    "numbers as scores": (
        lambda: search(graph(), None, size=5, scores=estimates().values),
        "scores=.*no Scores but Tensor.*give a Scores",
    ),
    "a number as scores": (lambda: top_n(3, 5), "scores: it is no Scores but int"),
    "scores of sources to guess by": (
        lambda: acdc(
            graph(), PAIR, METRIC, threshold=1.0, scores=scores(graph(), PAIR, METRIC, level="node", quiet=True)
        ),
        "of sources, not of edges",
    ),
    "a matrix as only": (
        lambda: scores(graph(), PAIR, METRIC, method="exact", only=few().edges),
        "only=.*no Circuit but Tensor",
    ),
    "an estimate of a few": (lambda: scores(graph(), PAIR, METRIC, only=few()), "use it with method='exact'"),
    "a number as another loss": (
        lambda: learned_mask(graph(), PAIR, METRIC, size=5, extra=3),
        r"extra=.*no function but int.*give extra\(moment\)",
    ),
    "another loss of texts": (
        lambda: learned_mask(graph(), PAIR, METRIC, size=5, steps=1, extra=lambda moment: "x", quiet=True),
        "extra=.*returned str for 1 circuits",
    ),
    "another loss per edge": (
        lambda: learned_mask(
            graph(), PAIR, METRIC, size=5, steps=1, extra=lambda moment: moment.logits.abs(), quiet=True
        ),
        r"extra=.*returned a tensor of shape \[1, ",
    ),
    "a table by numbers": (lambda: few().table(estimates().values), "scores=.*no Scores but Tensor"),
    "a picture by numbers": (lambda: CircuitPicture(few(), estimates().values), "scores=.*no Scores but Tensor"),
    "a picture of edges": (lambda: CircuitPicture(few().edges), "no Circuit but Tensor"),
    "a file of scores": (lambda: save_circuit(few(), "unwritten.json", scores=estimates()), "no Tensor but Scores"),
    "a query of numbers": (
        lambda: replace(ScoredQuery.of(graph(), [x[:1] for x in PAIR], METRIC, score="eap", quiet=True), scores=[1.0]),
        "scores=.*no Scores but float",
    ),
    "steps without end": (
        lambda: scores(graph(), PAIR, METRIC, steps=10**9),
        "steps=1000000000.*forward and a backward pass.*Fix: give at most 10000",
    ),
    "steps of a query without end": (
        lambda: query_circuits(graph(), [x[:1] for x in PAIR], METRIC, budgets=[3], steps=10_001),
        "steps=10001",
    ),
    "a method of numbers": (lambda: stability_report(lambda rows: 3, inputs=4, samples=4, quiet=True), "returned int"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_something_else_is_refused_with_what_to_give(name: str) -> None:
    call, said = REFUSED[name]
    with pytest.raises(MechanomeError, match=said):
        call()


WITH_DATA: dict[str, Callable[[Graph], Any]] = {
    "run": lambda g: execute(Circuit.full(g), PAIR, METRIC, quiet=True),
    "scores": lambda g: scores(g, PAIR, METRIC, quiet=True),
    "acdc": lambda g: acdc(g, PAIR, METRIC, threshold=1.0, quiet=True),
    "masks": lambda g: learned_mask(g, PAIR, METRIC, size=5, steps=1, quiet=True),
    "query": lambda g: query_circuits(g, [x[:1] for x in PAIR], METRIC, budgets=[3], score="eap", quiet=True),
}


@pytest.mark.parametrize("name", WITH_DATA)
def test_a_model_that_went_back_to_train_mode_is_refused(name: str) -> None:
    module = build("gpt2")
    own = Graph.of(mn.load(module, check="off"))
    dropout = module.transformer.h[1].mlp.dropout
    dropout.p = 0.1
    for part, said in ((module, "it"), (dropout, r"its part 'transformer.h.1.mlp.dropout'")):
        part.train()
        with pytest.raises(BadInput, match=rf"the model: {said}.* in train mode.*Fix: call model\.module\.eval\(\)"):
            WITH_DATA[name](own)
        module.eval()
    module.transformer.h[1].ln_1.train()  # a part that draws nothing, as one that was put in place of another
    WITH_DATA[name](own)


def test_no_answers_are_no_choice() -> None:
    with pytest.raises(ShapeMismatch, match=r"answers of shape \[0\]"):
        circuit_error(ran(True), torch.tensor([], dtype=torch.long))


def test_models_without_a_graph_say_why_and_tell_one_thing_to_do() -> None:
    said = {}
    for family in ("clip", "t5", "whisper", "deepseek_v3", "bloom", "mamba"):
        with pytest.raises(NotServed) as refused:
            Graph.of(opened(family))
        said[family] = str(refused.value)
    assert "Fix: give tower= one of: text, vision" in said["clip"]
    assert "cross-attention" in said["t5"] and "cross-attention" in said["whisper"]
    assert "key projection" in said["deepseek_v3"] and "without attention" in said["mamba"]
    assert all(text.count("Fix: ") == 1 for text in said.values())


def test_scores_are_of_what_was_asked_for() -> None:
    """The control of this file: what is not refused is scored."""
    found = scores(graph(), PAIR, METRIC, method="eap", intervention=Intervention("zero"), quiet=True)
    assert isinstance(found, Scores) and isinstance(opened("llama"), mn.Model) and found.intervention == "zero"
