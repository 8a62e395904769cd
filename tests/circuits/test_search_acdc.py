"""ACDC against a plain loop, resumed runs against whole ones, and speculation against the sequential version."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from circuit_models import METRIC, opened, pair
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import mechanome as mn
from mechanome.circuits import Circuit, Graph, acdc, execute, scores, search, top_n
from mechanome.circuits.execution import Prepared
from mechanome.circuits.search.decisions import Decisions, edges_in_order
from mechanome.circuits.search.found import Found
from mechanome.circuits.search.guessing import Guesser
from mechanome.circuits.search.objectives import OBJECTIVES
from mechanome.circuits.search.running import Runner
from mechanome.core import BadInput, NotFinite, ShapeMismatch

FAMILIES = ["gpt2", "llama", "gpt_neox", "bert", "gemma2", "qwen3"]
"""Serial blocks, grouped heads, parallel blocks, norms after each part, norms on both sides, normed queries."""


@cache
def graph_of(name: str) -> Graph:
    if name != "gpt2, four layers":
        return Graph.of(opened(name))
    torch.manual_seed(0)
    config = GPT2Config(n_layer=4, n_head=4, n_embd=48, vocab_size=120, n_positions=32, initializer_range=0.35)
    return Graph.of(mn.load(GPT2LMHeadModel(config).eval()))


def found_by(name: str, threshold: float, **settings: Any) -> tuple[Found, Decisions]:
    found = acdc(graph_of(name), pair(2), METRIC, threshold=threshold, quiet=True, **settings)
    assert isinstance(found.history, Decisions)
    return found, found.history


def plain_loop(graph: Graph, data: Any, threshold: float, objective: str, start: Circuit | None = None) -> list[tuple]:
    """ACDC as it is written down: every circuit is run whole."""

    def value(circuit: Circuit) -> float:
        run = execute(circuit, data, METRIC, method="dense", quiet=True)
        each = {
            "kl": run.divergence[0],
            "deviation": (run.values[0] - run.clean).abs(),
            "metric": -run.values[0],
        }[objective]
        return float(each.double().mean())

    circuit = Circuit.full(graph) if start is None else start
    now, decided = value(circuit), []
    for j in reversed(range(len(graph.targets))):
        for i in reversed(range(len(graph.sources))):
            if not circuit.edges[i, j]:
                continue
            without = circuit - Circuit.of(graph, [graph.name(i, j)])
            then = value(without)
            assert abs(then - now - threshold) > 1e-5, "too close to tell the two versions apart"
            kept = then - now >= threshold
            circuit, now = (circuit, now) if kept else (without, then)
            decided.append((i, j, kept))
    return decided


def decided(history: Decisions) -> list[tuple]:
    return [(d.edge.source, d.edge.target, d.kept) for d in history.made]


@pytest.mark.parametrize("name, objective", [("llama", "deviation"), ("bert", "metric")])
def test_each_edge_in_turn_against_a_plain_loop(name: str, objective: str) -> None:
    found, history = found_by(name, 0.0137, objective=objective, speculate=False, prune=False)
    expected = plain_loop(graph_of(name), pair(2), 0.0137, objective)
    assert decided(history) == expected
    kept = [e[:2] for e in expected if e[2]]
    assert sorted(map(tuple, found.circuit.edges.nonzero().tolist())) == sorted(kept)
    assert 5 < len(kept) < graph_of(name).n_edges - 5, "both decisions are made"
    idle = sum(d.change is None for d in history.made)
    assert idle > 0 and found.evaluations == history.circuits == len(history.made) - idle == history.run


@pytest.mark.parametrize("speculate", [False, True])
def test_from_a_smaller_start(speculate: bool) -> None:
    graph, data = graph_of("gpt2"), pair(2)
    start = top_n(scores(graph, data, METRIC, method="eap", quiet=True), 60).circuit
    found, history = found_by("gpt2", 0.0137, start=start, speculate=speculate, prune=False)
    assert decided(history) == plain_loop(graph, data, 0.0137, "kl", start)
    assert found.circuit <= start and 0 < len(found.circuit) < len(start)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_circuit_is_run_from_where_it_differs(name: str) -> None:
    graph, data = graph_of(name), pair(2)
    runner = Runner.of(graph, data, METRIC, OBJECTIVES["kl"], intervention="patch")
    generator = torch.Generator().manual_seed(0)
    for group in graph.readers[:: max(1, len(graph.readers) // 5)]:
        edges = graph.mask.repeat(3, 1, 1)
        for row, share in zip(edges, (0.1, 0.5, 0.9)):
            later = torch.rand(graph.shape, generator=generator) < share
            row[:, group.first :] &= later[:, group.first :]
        whole = execute([Circuit(graph, e) for e in edges], data, METRIC, method="dense", quiet=True)
        expected = whole.divergence.double().mean(1)
        assert torch.allclose(torch.tensor(runner.values(edges, group.after)).double(), expected, rtol=1e-4, atol=1e-5)
        assert torch.allclose(torch.tensor(runner.values(edges, 0)).double(), expected, rtol=1e-4, atol=1e-5)
        assert expected.max() > 1e-2


@pytest.mark.parametrize("kind", ["zero", "mean", "noise"])
def test_other_interventions_run_from_there_too(kind: str) -> None:
    graph, data = graph_of("llama"), pair(2)
    runner = Runner.of(graph, data, METRIC, OBJECTIVES["deviation"], intervention=kind)
    edges = graph.mask.clone()
    edges[:, graph.readers[-4].first :] &= torch.rand(graph.shape)[:, graph.readers[-4].first :] < 0.4
    whole = execute(Circuit(graph, edges), data, METRIC, intervention=kind, method="dense", quiet=True)
    expected = float((whole.values[0] - whole.clean).abs().mean())
    assert runner.values(edges[None], graph.readers[-4].after)[0] == pytest.approx(expected, rel=1e-4)
    assert expected > 1e-2


def test_nothing_before_the_edge_is_run() -> None:
    graph, layers = graph_of("llama"), opened("llama").module.model.layers
    runner = Runner.of(graph, pair(2), METRIC, OBJECTIVES["kl"], intervention="patch")
    last = next(g for g in graph.readers if g.kind == "q" and g.layer == 2)
    edges = graph.mask.clone()
    edges[0, last.first] = False
    ran: list[str] = []
    handles = [
        module.register_forward_hook(lambda m, x, y, at=f"{part}.{i}": ran.append(at))
        for i, layer in enumerate(layers)
        for part, module in (("attention", layer.self_attn.o_proj), ("mlp", layer.mlp.up_proj))
    ]
    try:
        (value,) = runner.values(edges[None], last.after)
    finally:
        for handle in handles:
            handle.remove()
    assert value > 0 and set(ran) == {"mlp.2"}, "heads have spoken before their output map, which is not needed"


@pytest.mark.parametrize(
    "name, threshold",
    [(name, 0.0137) for name in FAMILIES] + [("gpt2, four layers", 0.03)] + [("llama", 0.0003)],
)
def test_speculation_decides_the_same(name: str, threshold: float) -> None:
    one, alone = found_by(name, threshold, speculate=False)
    other, together = found_by(name, threshold, speculate=True)
    assert decided(together) == decided(alone) and other.circuit == one.circuit
    assert together.acceptance is not None and 0.5 < together.acceptance <= 1
    assert together.rounds < alone.rounds == alone.run and alone.acceptance is None
    assert together.guesses == together.run == alone.run
    assert together.circuits >= together.run + together.alone
    assert "guesses right" in repr(together) and str(together.rounds) in other.notes[0]


@pytest.mark.parametrize("settings", [{"order": "random", "seed": 3}, {"objective": "metric"}, {"at_most": 3},
                                      {"objective": "deviation", "order": "random"}, {"at_most": 1},
                                      {"intervention": "zero"}, {"budget": "2MB"}], ids=str)  # fmt: skip
def test_speculation_decides_the_same_in_other_ways(settings: dict[str, Any]) -> None:
    one, alone = found_by("llama", 0.02, speculate=False, **{k: v for k, v in settings.items() if k != "at_most"})
    other, together = found_by("llama", 0.02, speculate=True, **settings)
    assert decided(together) == decided(alone) and other.circuit == one.circuit


@pytest.mark.parametrize("wrong", ["upside down", "all the same", "unknown"])
def test_bad_guesses_cost_time_and_change_nothing(wrong: str) -> None:
    graph = graph_of("llama")
    given = scores(graph, pair(2), METRIC, method="eap", quiet=True)
    values = {
        "upside down": (given.values.abs().max() - given.values.abs()) * graph.mask,
        "all the same": graph.mask.float(),
        "unknown": torch.full(graph.shape, float("nan")).where(graph.mask, 0),
    }[wrong]
    bad = type(given)(graph, values, "edge", "eap", "patch", True, given.clean)
    alone = found_by("llama", 0.02, speculate=False)[1]
    together = found_by("llama", 0.02, scores=bad)[1]
    assert decided(together) == decided(alone)
    good = found_by("llama", 0.02)[1]
    assert together.acceptance is not None and good.acceptance is not None
    assert together.acceptance <= good.acceptance


@pytest.mark.parametrize("near, noise", [(0.003, 0.0), (0.01, 1e-5), (0.05, 1e-3), (0.2, 0.0)])
def test_a_change_at_the_threshold_is_decided_as_if_alone(near: float, noise: float, monkeypatch: Any) -> None:
    """The threshold is one of the changes, to the last bit, and batches round more than they really do."""
    changes = [d.change for d in found_by("llama", near, speculate=False)[1].made if d.change is not None]
    # No other change lies between the two, so up to this edge all is decided as before.
    threshold = min(changes, key=lambda change: abs(change - near))
    plain, calls = Runner.values, iter(range(10**9))

    def rounded(self: Runner, edges: Tensor, known: int = 0) -> list[float]:
        values = plain(self, edges, known)
        return values if len(values) == 1 else [v + noise * (-1) ** next(calls) for v in values]

    one, alone = found_by("llama", threshold, speculate=False)
    assert any(d.change == threshold and d.kept for d in alone.made)
    monkeypatch.setattr(Runner, "values", rounded)
    other, together = found_by("llama", threshold)
    assert decided(together) == decided(alone) and other.circuit == one.circuit
    assert any(d.change == threshold and d.kept for d in together.made)
    assert together.alone > 0 and together.rounding >= 7.9 * noise


def test_orders() -> None:
    graph = graph_of("gpt2")
    backward = edges_in_order(graph, graph.mask, "backward", 0)
    assert [graph.targets[e.target] for e in backward[:16]] == ["logits"] * 16
    assert [e.source for e in backward[:16]] == list(range(15, -1, -1))
    shuffled = [edges_in_order(graph, graph.mask, "random", seed) for seed in (0, 0, 1)]
    assert shuffled[0] == shuffled[1] != shuffled[2] and set(shuffled[0]) == set(backward)
    places = [[e.known for e in edges] for edges in (backward, shuffled[2])]
    assert places[0] == places[1] == sorted(places[0], reverse=True), "never forward"


def test_guesses_learn_what_is_large() -> None:
    guesser = Guesser(torch.arange(10.0)[:, None])
    assert not guesser.stays(9, 0) and guesser.length(64) == 6
    for source in range(10):
        guesser.learn(source, 0, source >= 6 or source == 2, True)
    guesser.fit()
    assert [guesser.stays(i, 0) for i in range(10)] == [False] * 6 + [True] * 4
    for _ in range(500):
        guesser.learn(0, 0, False, True)
    assert guesser.length(64) == 64 and guesser.length(5) == 5
    for _ in range(500):
        guesser.learn(9, 0, False, False)
    assert guesser.length(64) == 1
    guesser.fit()
    assert not guesser.stays(9, 0)


def test_history_is_told() -> None:
    found, history = found_by("llama", 0.02)
    rows = history.table(None).rows
    assert len(rows) == graph_of("llama").n_edges and {row[2] for row in rows} == {"kept", "removed"}
    assert rows[0][0] == "mlp_out.2->logits" and found.method == "acdc" and found.scores is not None
    assert (
        search(graph_of("llama"), pair(2), METRIC, method="acdc", threshold=0.02, quiet=True).circuit == found.circuit
    )


@pytest.mark.parametrize(
    "more, error, why",
    [
        ({"threshold": 0}, BadInput, "positive"),
        ({"threshold": -0.1}, BadInput, "positive"),
        ({"threshold": float("inf")}, BadInput, "finite"),
        ({"threshold": None}, BadInput, "real number"),
        ({"objective": "KL"}, BadInput, "kl"),
        ({"objective": 3}, BadInput, "function"),
        ({"objective": lambda said: said.divergence.mean(1)}, ShapeMismatch, "one each"),
        ({"objective": lambda said: said.divergence / 0}, NotFinite, "objective"),
        ({"order": "forward"}, BadInput, "backward"),
        ({"at_most": 0}, BadInput, "positive"),
        ({"start": Circuit.empty(graph_of("llama"))}, BadInput, "no edges"),
        ({"start": Circuit.full(graph_of("gpt2"))}, BadInput, "different graphs"),
        ({"metric": lambda logits, rows: logits[:, 0] * float("nan")}, NotFinite, "NaN"),
        ({"data": (pair(2)[0], None)}, BadInput, "needs a corrupted"),
    ],
)
def test_refusals_of_acdc(more: dict[str, Any], error: type[Exception], why: str) -> None:
    given = {"data": pair(2), "metric": METRIC, "threshold": 0.1, "quiet": True, **more}
    with pytest.raises(error, match=why):
        acdc(graph_of("llama"), given.pop("data"), given.pop("metric"), **given)


def test_soft_masks_of_a_runner_are_those_of_prepared() -> None:
    graph, data = graph_of("llama"), pair(3)
    runner = Runner.of(graph, data, METRIC, OBJECTIVES["kl"], intervention="patch", batch=2, seed=1)
    assert sorted(row for part in runner.parts for row in part.rows) == [0, 1, 2]
    masks = torch.rand(2, *graph.shape, generator=torch.Generator().manual_seed(0))
    ready = Prepared.of(graph, data, METRIC)
    for part in runner.parts:
        said = runner.soft(part, masks)
        assert torch.allclose(said.logits, ready.logits(masks, list(part.rows)), atol=1e-5)
        assert said.values.shape == (2, len(part.rows)) and bool((said.divergence > 0).all())
