"""Circuits: the algebra of sets, pruning against a walk by hand, files both ways, tables and the picture."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
from circuit_models import opened

from mechanome.circuits import (
    Circuit,
    CircuitPicture,
    Graph,
    Layer,
    Scores,
    load_circuit,
    load_eap_ig,
    save_circuit,
    save_eap_ig,
    stack,
)
from mechanome.core import BadInput, CorruptFile, ShapeMismatch, UnknownName

GRAPH = Graph((Layer(4, 2), Layer(4, 2), Layer(4, 2)))


def random_circuit(seed: int, share: float = 0.2, graph: Graph = GRAPH) -> Circuit:
    generator = torch.Generator().manual_seed(seed)
    return Circuit(graph, graph.mask & (torch.rand(graph.shape, generator=generator) < share))


def scored(graph: Graph, seed: int = 0) -> Scores:
    values = torch.randn(graph.shape, generator=torch.Generator().manual_seed(seed)) * graph.mask
    return Scores(graph, values, "edge", "eap", "patch", True, torch.ones(2), torch.zeros(2))


def test_the_algebra_of_sets() -> None:
    a, b = random_circuit(1), random_circuit(2)
    names, others = set(a), set(b)
    assert len(a) == len(names) and 0 < len(names & others) < min(len(a), len(b))
    for found, expected in (
        (a | b, names | others),
        (a & b, names & others),
        (a - b, names - others),
        (a ^ b, names ^ others),
    ):
        assert set(found) == expected
    assert set(~a) == set(Circuit.full(GRAPH)) - names and ~~a == a
    assert len(Circuit.full(GRAPH)) == GRAPH.n_edges and len(Circuit.empty(GRAPH)) == 0 and not Circuit.empty(GRAPH)
    assert a & b <= a and not a <= b and a <= a | b
    assert Circuit.of(GRAPH, names) == a and hash(Circuit.of(GRAPH, names)) == hash(a) and a != b
    assert next(iter(names)) in a and a.share == len(a) / GRAPH.n_edges
    assert stack([a, b]).shape == (2, *GRAPH.shape) and torch.equal(stack([a, b])[1], b.edges)


def test_what_is_no_circuit() -> None:
    with pytest.raises(BadInput, match="no booleans"):
        Circuit(GRAPH, torch.ones(GRAPH.shape))
    with pytest.raises(ShapeMismatch):
        Circuit(GRAPH, torch.ones(3, 3, dtype=torch.bool))
    with pytest.raises(BadInput, match="no such edge"):
        Circuit(GRAPH, torch.ones(GRAPH.shape, dtype=torch.bool))
    with pytest.raises(UnknownName):
        Circuit.of(GRAPH, ["z.9.h0->logits"])
    with pytest.raises(BadInput, match="different graphs"):
        random_circuit(1) | random_circuit(1, graph=Graph((Layer(4, 4),)))
    with pytest.raises(BadInput, match="none"):
        stack([])


def on_a_path(circuit: Circuit) -> set[str]:
    """Edges on a path from the embedding to the logits, by walking from each edge both ways."""
    graph, edges = circuit.graph, [tuple(e.split("->")) for e in circuit]
    feeds = {
        t: {graph.sources[s] for s in graph.feeds[j].nonzero()[:, 0].tolist()} for j, t in enumerate(graph.targets)
    }

    def from_root(source: str) -> bool:
        return source == graph.sources[0] or any(from_root(s) for s, t in edges if source in feeds[t])

    def to_logits(target: str) -> bool:
        return target == "logits" or any(to_logits(t) for s, t in edges if s in feeds[target])

    return {f"{s}->{t}" for s, t in edges if from_root(s) and to_logits(t)}


@pytest.mark.parametrize("seed", range(6))
def test_pruning_keeps_what_lies_on_a_path(seed: int) -> None:
    circuit = random_circuit(seed, 0.06)
    pruned = circuit.pruned()
    assert set(pruned) == on_a_path(circuit)
    assert len(pruned) < len(circuit) and pruned.pruned() == pruned and pruned.connected == bool(len(pruned))


def test_pruning_by_hand() -> None:
    path = ["resid_pre.0->v.0.kv0", "z.0.h1->mlp_in.1", "mlp_out.1->logits"]  # key/value head 0 serves heads 0 and 1
    dangling = ["z.0.h2->logits", "resid_pre.0->q.2.h0", "z.1.h0->mlp_in.1"]
    assert set(Circuit.of(GRAPH, path + dangling).pruned()) == set(path)
    assert len(Circuit.of(GRAPH, path[1:]).pruned()) == 0
    assert Circuit.full(GRAPH).pruned() == Circuit.full(GRAPH)


def test_a_circuit_of_nodes_has_the_edges_among_them() -> None:
    circuit = Circuit.of_nodes(GRAPH, ["resid_pre.0", "z.0.h1", "mlp_out.2"])
    assert set(circuit) == {
        "resid_pre.0->q.0.h1", "resid_pre.0->k.0.kv0", "resid_pre.0->v.0.kv0", "resid_pre.0->mlp_in.2",
        "resid_pre.0->logits", "z.0.h1->mlp_in.2", "z.0.h1->logits", "mlp_out.2->logits",
    }  # fmt: skip
    assert circuit.nodes == ("resid_pre.0", "z.0.h1", "mlp_out.2")
    every = torch.ones(len(GRAPH.sources), dtype=torch.bool)
    assert Circuit.of_nodes(GRAPH, every) == Circuit.full(GRAPH)


def test_a_circuit_file_comes_back_equal(tmp_path: Path) -> None:
    circuit = random_circuit(3)
    save_circuit(circuit, tmp_path / "c.json", scores=scored(GRAPH).values)
    assert load_circuit(tmp_path / "c.json") == circuit == load_circuit(tmp_path / "c.json", GRAPH)
    with pytest.raises(BadInput, match="another graph"):
        load_circuit(tmp_path / "c.json", Graph((Layer(2, 2),)))
    whole = (tmp_path / "c.json").read_text()
    damaged = (whole[:200], whole.replace('"circuit"', '"circus"'), whole.replace('"version": 1', '"version": 2'),
               whole.replace("logits", "lodgits"), whole.replace('"layers"', '"lairs"'))  # fmt: skip
    for text in damaged:
        (tmp_path / "bad.json").write_text(text)
        with pytest.raises(CorruptFile):
            load_circuit(tmp_path / "bad.json")


@pytest.mark.parametrize(
    "damage",
    [
        lambda f: f["layers"][0].__setitem__(3, "sideways"),
        lambda f: f["layers"][0].__setitem__(2, "no"),
        lambda f: f["layers"][0].__setitem__(0, 3),
        lambda f: f["edges"].append(f["edges"][0]),
        lambda f: f.update(edges="resid_pre.0->logits"),
        lambda f: f.update(edges=dict.fromkeys(f["edges"])),
    ],
    ids=["style", "mlp", "heads", "twice", "text", "object"],
)
def test_a_circuit_file_with_other_content_is_refused(tmp_path: Path, damage: Callable[[dict[str, Any]], Any]) -> None:
    save_circuit(random_circuit(3), tmp_path / "c.json")
    found = json.loads((tmp_path / "c.json").read_text())
    damage(found)
    (tmp_path / "c.json").write_text(json.dumps(found))
    with pytest.raises(CorruptFile, match="does not fit together") as refused:
        load_circuit(tmp_path / "c.json")
    assert str(refused.value).count("Fix: ") == 1


def test_scores_of_another_shape_are_not_written(tmp_path: Path) -> None:
    for write in (save_circuit, save_eap_ig):
        with pytest.raises(ShapeMismatch, match=r"scores of shape \[3, 3\]"):
            write(random_circuit(3, graph=Graph.of(opened("llama"))), tmp_path / "c.json", scores=torch.zeros(3, 3))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("style", ["pre", "parallel"])
@pytest.mark.parametrize("kv", [4, 2])
def test_graphs_of_eap_ig_both_ways(tmp_path: Path, kv: int, style: str) -> None:
    graph = Graph(tuple(Layer(4, kv, style=style) for _ in range(3)))
    circuit, scores = random_circuit(5, graph=graph), scored(graph).values
    save_eap_ig(circuit, tmp_path / "g.json", scores=scores, d_model=32)
    again, values = load_eap_ig(tmp_path / "g.json", graph)
    assert again == circuit and torch.allclose(values, scores, atol=1e-6)
    found = json.loads((tmp_path / "g.json").read_text())
    assert found["cfg"] == {"n_layers": 3, "n_heads": 4, "parallel_attn_mlp": style == "parallel", "d_model": 32}
    assert set(found["nodes"]) == {"input", "logits"} | {f"m{x}" for x in range(3)} | {
        f"a{x}.h{h}" for x in range(3) for h in range(4)
    }
    assert len(found["edges"]) == graph.ungrouped().n_edges
    assert {"input->a0.h0<q>", "a0.h3->m1", "m1->a2.h1<v>", "input->logits"} <= set(found["edges"])


def test_a_graph_of_eap_ig_says_yes_or_no(tmp_path: Path) -> None:
    save_eap_ig(random_circuit(6), tmp_path / "g.json", d_model=32)
    found = json.loads((tmp_path / "g.json").read_text())
    found["edges"]["input->logits"]["in_graph"] = "false"
    (tmp_path / "g.json").write_text(json.dumps(found))
    with pytest.raises(CorruptFile, match="in_graph is 'false'"):
        load_eap_ig(tmp_path / "g.json", GRAPH)


def test_heads_of_a_group_that_disagree_are_refused_unless_told(tmp_path: Path) -> None:
    circuit = random_circuit(6)
    save_eap_ig(circuit, tmp_path / "g.json", d_model=32)
    found = json.loads((tmp_path / "g.json").read_text())
    edge = found["edges"]["input->a1.h2<k>"]
    edge["in_graph"] = not edge["in_graph"]
    (tmp_path / "g.json").write_text(json.dumps(found))
    with pytest.raises(BadInput, match="1 of the 2 heads"):
        load_eap_ig(tmp_path / "g.json", GRAPH)
    name = "resid_pre.0->k.1.kv1"
    assert name in load_eap_ig(tmp_path / "g.json", GRAPH, merge="any")[0]
    assert name not in load_eap_ig(tmp_path / "g.json", GRAPH, merge="all")[0]
    del found["edges"]["input->m0"]
    (tmp_path / "g.json").write_text(json.dumps(found))
    with pytest.raises(CorruptFile, match="input->m0"):
        load_eap_ig(tmp_path / "g.json", GRAPH, merge="any")
    with pytest.raises(BadInput, match="does not fit"):
        load_eap_ig(tmp_path / "g.json", Graph((Layer(2, 2),)))
    with pytest.raises(BadInput, match="differ"):
        save_eap_ig(Circuit.full(Graph((Layer(2, 2), Layer(4, 4)))), tmp_path / "x.json", d_model=8)
    with pytest.raises(BadInput, match="d_model"):
        save_eap_ig(circuit, tmp_path / "x.json")
    assert not (tmp_path / "x.json").exists()


def test_the_width_of_the_stream_comes_from_the_model(tmp_path: Path) -> None:
    for name in ("gpt2", "llama"):
        save_eap_ig(Circuit.full(Graph.of(opened(name))), tmp_path / "g.json")
        assert json.loads((tmp_path / "g.json").read_text())["cfg"]["d_model"] == 32


def test_tables_put_the_largest_score_first() -> None:
    circuit, scores = random_circuit(3), scored(GRAPH)
    table = circuit.table(scores, k=5)
    sizes = [abs(row[2]) for row in table.rows]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == pytest.approx(float((scores.values * circuit.edges).abs().max()))
    assert "estimate" in table.columns[2] and "first 5" in table.title
    assert len(circuit.table(k=None)) == len(circuit)
    best = scores.table(1).rows[0]
    assert abs(best[2]) == pytest.approx(float(scores.values.abs().max())) and best[3] == pytest.approx(-best[2])


TIP = re.compile(r'<path [^>]*data-tip="([^"]*)"')
HUE = re.compile(r'<path [^>]*stroke="rgb\(var\(--(for|against)-rgb')


def test_the_picture_draws_the_strongest_edges_and_says_what_it_leaves_out() -> None:
    circuit, scores = random_circuit(3), scored(GRAPH)
    picture = CircuitPicture(circuit, scores, most=10, tips={"z.0.h1": "looks <back>"})
    html = str(picture.html())
    strongest = circuit.table(scores, k=10)
    for source, target, _ in strongest.rows:
        assert f"{source}-&gt;{target}:" in html
    drawn = dict(zip(map(unescape, TIP.findall(html)), HUE.findall(html)))
    hues = {f"{a}->{b}": "for" if value < 0 else "against" for a, b, value in strongest.rows}
    assert {edge.split(": ")[0]: hue for edge, hue in drawn.items()} == hues, "green: the metric falls without it"
    assert f"{len(circuit) - 10} weaker edges" in html and html.count("<svg") == 1
    assert "<back>" not in html and len(picture.table()) == len(circuit)
    boxes = picture.nodes()
    assert boxes["logits"].y < min(n.y for name, n in boxes.items() if name != "logits")
    layers = {int(name.split(".")[1]): n.y for name, n in boxes.items() if name.startswith("z")}
    assert [layers[x] for x in sorted(layers)] == sorted(layers.values(), reverse=True), "later layers above"
    assert "weaker" not in str(CircuitPicture(circuit, most=10_000).html())
    assert "<path" not in str(CircuitPicture(Circuit.empty(GRAPH)).html())


@pytest.mark.parametrize(
    "part", [{"clean": (2, 3)}, {"corrupted": (7,)}, {"each": (5, *GRAPH.shape)}], ids=["clean", "corrupted", "each"]
)
def test_scores_of_other_examples_are_refused(tmp_path: Path, part: dict[str, tuple[int, ...]]) -> None:
    replace(scored(GRAPH), **{name: torch.zeros(shape) for name, shape in part.items()}).save(
        tmp_path / "s.safetensors"
    )
    with pytest.raises(CorruptFile, match=f"{next(iter(part))} of shape"):
        Scores.load(tmp_path / "s.safetensors", GRAPH)


def test_scores_come_back_from_their_file(tmp_path: Path) -> None:
    scores = scored(GRAPH)
    scores.save(tmp_path / "s.safetensors")
    again = Scores.load(tmp_path / "s.safetensors", GRAPH)
    assert torch.equal(again.values, scores.values) and again.method == "eap" and again.estimate
    assert again.each is None and torch.equal(again.corrupted, scores.corrupted)
    with pytest.raises(ShapeMismatch):
        Scores.load(tmp_path / "s.safetensors", Graph((Layer(2, 2),)))
    nodes = Scores(GRAPH, torch.zeros(len(GRAPH.sources)), "node", "exact", "zero", False, torch.ones(1))
    with pytest.raises(BadInput, match="sources"):
        nodes.edge_values()
    assert nodes.names() == list(GRAPH.sources)
