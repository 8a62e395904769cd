"""Graphs with units in place of MLPs: nodes and names, what is cut and what is refused, files, tables and pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from circuit_models import METRIC, opened, pair
from torch import Tensor, nn
from unit_models import Latents, bases, graph_of, mlps, neurons_of, whole_graph_of

from mechanome.circuits import (
    Circuit,
    CircuitPicture,
    Graph,
    Layer,
    Units,
    load_circuit,
    save_circuit,
    save_eap_ig,
    scores,
)
from mechanome.core import BadInput, CorruptFile, NotServed, ShapeMismatch, UnknownName, UnknownSite
from mechanome.engine import Directions, Neurons, SingularVectors
from mechanome.engine.site import parse


def test_units_are_sources_in_place_of_the_mlp() -> None:
    graph = graph_of("llama")
    assert graph.sources == (
        "resid_pre.0", *(f"z.0.h{h}" for h in range(4)),
        "mlp_act.0.n3", "mlp_act.0.n8", "mlp_act.0.n20", "mlp_act.0.rest", *(f"z.1.h{h}" for h in range(4)),
        *(f"mlp_out.1.u{i}" for i in range(5)), "mlp_out.1.rest", *(f"z.2.h{h}" for h in range(4)),
        *(f"mlp_act.2.u{i}" for i in range(4)), "mlp_act.2.rest",
    )  # fmt: skip
    assert graph.targets == whole_graph_of("llama").targets, "readers stay"
    assert graph.n_edges == int(graph.mask.sum())
    j = graph.target_index("mlp_in.1")
    fed = [graph.sources[i] for i in graph.feeds[j].nonzero()[:, 0].tolist()]
    assert fed == [*(f"mlp_out.1.u{i}" for i in range(5)), "mlp_out.1.rest"]
    before = [s for s, edge in zip(graph.sources, graph.mask[:, j].tolist()) if edge]
    assert before == list(graph.sources[: graph.source_index("mlp_out.1.u0")])
    assert [s for s, unit in zip(graph.sources, graph.kinds("unit").tolist()) if unit] == [
        s for s in graph.sources if ".u" in s or ".n" in s
    ]
    assert int(graph.kinds("head", "rest").sum()) == 12 + 3
    assert "12 of them units" in repr(graph)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "bert", "gemma2"])
def test_all_neurons_are_sites_and_leave_no_rest(name: str) -> None:
    graph, model = neurons_of(name), opened(name)
    neurons = [s for s, unit in zip(graph.sources, graph.kinds("unit").tolist()) if unit]
    width = model.weight("W_out.0").value.shape[0]
    assert len(neurons) == width * len(graph.layers) and not graph.kinds("rest", "mlp").any()
    assert all(model.serves(parse(n)) for n in neurons[:: width // 3])
    assert len(set(graph.sources)) == len(graph.sources)
    svd = neurons_of(name, "svd")
    assert int(svd.kinds("unit").sum()) == 32 * len(graph.layers) and not svd.kinds("rest").any()


def test_sizes_of_smollm2_from_its_shape_alone() -> None:
    cut = Units("mlp_act", 1536, False, range(1536), "")
    graph = Graph(tuple(Layer(9, 3, units=cut) for _ in range(30)))
    assert graph.shape == (1 + 30 * (9 + 1536), 481) == (46_351, 481)
    assert graph.n_edges == int(graph.mask.sum())
    assert graph.sources[-1] == "mlp_act.29.n1535" and graph.source_index("mlp_act.3.n7") == 1 + 3 * 1545 + 9 + 7


def test_a_dictionary_without_error_needs_no_rest() -> None:
    model, width = opened("gpt2"), 32
    whole = Directions(torch.randn(width, width, generator=torch.Generator().manual_seed(0)))
    assert not Graph.of(model, units={"mlp_out.1": whole}).kinds("rest").any()
    assert Graph.of(model, units={"mlp_out.1": Directions(whole.vectors[:-1])}).kinds("rest").any()


def test_other_mlps_stay_whole() -> None:
    graph = Graph.of(opened("gpt2"), units={"mlp_act.1": "neurons", "mlp_act.2": "svd"})
    assert "mlp_out.0" in graph.sources and "mlp_out.1" not in graph.sources
    assert graph == whole_graph_of("gpt2").with_units({"mlp_act.1": "neurons", "mlp_act.2": "svd"})
    assert graph != whole_graph_of("gpt2")


class Bent:
    """A decoder that is no sum over units."""

    def encode(self, x: Tensor) -> Tensor:
        return x[..., :4]

    def decode(self, c: Tensor) -> Tensor:
        return torch.cat([c, c * c.abs(), torch.zeros(*c.shape[:-1], 24)], -1)


class Scalar:
    def encode(self, x: Tensor) -> Tensor:
        return x.sum(-1)

    def decode(self, c: Tensor) -> Tensor:
        return c[..., None].expand(*c.shape, 32)


class Broken:
    def encode(self, x: Tensor) -> Tensor:
        return x @ torch.ones(7, 3)

    def decode(self, c: Tensor) -> Tensor:
        return c


@pytest.mark.parametrize(
    "units, error, why",
    [
        ("neuron", BadInput, "neurons"),
        ({}, BadInput, "no choice"),
        (["mlp_act.1"], BadInput, "no choice"),
        ({"mlp_act.1": "neuron"}, BadInput, "neurons"),
        ({"mlp_out.1": "svd"}, BadInput, "mlp_act.1"),
        ({"resid_post.1": Neurons([1], 32)}, BadInput, "use mlp_act or mlp_out"),
        ({"mlp_act.1.n3": Neurons([1], 32)}, BadInput, "use mlp_act or mlp_out"),
        ({"vision/mlp_act.1": "neurons"}, BadInput, "use mlp_act or mlp_out"),
        ({"mlp_act.9": "neurons"}, UnknownSite, "no MLP"),
        ({"mlp_act.x": "neurons"}, UnknownSite, "x"),
        ({"mlp_act.1": "svd", "mlp_out.1": Neurons([1], 32)}, BadInput, "already cut"),
        ({"mlp_out.1": Neurons([1], 31)}, ShapeMismatch, "32"),
        ({"mlp_out.1": Neurons}, BadInput, "encode and decode"),
        ({"mlp_out.1": torch.eye(32)}, BadInput, "encode and decode"),
        ({"mlp_out.1": Bent()}, NotServed, "no sum over units"),
        ({"mlp_out.1": Scalar()}, ShapeMismatch, "decode it back"),
        ({"mlp_out.1": Broken()}, BadInput, "fails on 32"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_refused(units: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        Graph.of(opened("gpt2"), units=units)


def test_experts_have_no_neurons_but_their_sum_has_coordinates() -> None:
    with pytest.raises(NotServed, match="mlp_act"):
        Graph.of(opened("mixtral"), units="neurons")
    assert Graph.of(opened("mixtral"), units={"mlp_out.1": Latents(32, 4)}).kinds("unit").sum() == 4
    with pytest.raises(BadInput, match="without a model"):
        Graph((Layer(2, 2),)).with_units("neurons")
    with pytest.raises(BadInput, match="none"):
        Layer(2, 2, mlp=False, units=Units("mlp_act", 2, False, None, ""))


def test_a_fingerprint_is_of_what_a_basis_holds() -> None:
    weight = mlps("gpt2")[0].out

    def marks(*some: Any) -> list[str]:
        graphs = [Graph.of(opened("gpt2"), units={site: basis}) for site, basis in some]
        return [g.layers[0].units.fingerprint for g in graphs if g.layers[0].units]

    same = marks(("mlp_out.0", Latents(32, 4)), ("mlp_out.0", Latents(32, 4)))
    others = marks(
        ("mlp_out.0", Latents(32, 4, seed=1)), ("mlp_act.0", SingularVectors(weight)),
        ("mlp_act.0", SingularVectors(weight * 1.5)), ("mlp_act.0", SingularVectors(weight, k=3)),
        ("mlp_act.0", Neurons([1], 128)), ("mlp_act.0", Neurons([2], 128)),
    )  # fmt: skip
    assert same[0] == same[1] and len({same[0], *others}) == 1 + len(others)

    class Thresholded(Latents):
        def __init__(self, threshold: float) -> None:
            super().__init__(32, 4)
            self.threshold = threshold
            self.norm = nn.LayerNorm(32)

    first, again, other = marks(*(("mlp_out.0", Thresholded(t)) for t in (0.1, 0.1, 0.2)))
    assert first == again != other


def test_circuits_of_units_in_files(tmp_path: Path) -> None:
    for graph in (graph_of("llama"), neurons_of("llama"), neurons_of("llama", "svd")):
        chosen = torch.rand(graph.shape, generator=torch.Generator().manual_seed(0)) < 0.2
        circuit = Circuit(graph, graph.mask & chosen)
        save_circuit(circuit, tmp_path / "c.json")
        alone = load_circuit(tmp_path / "c.json")
        assert alone == circuit == load_circuit(tmp_path / "c.json", graph) and alone.graph.sources == graph.sources
    other = Graph.of(opened("llama"), units=bases("llama") | {"mlp_out.1": Latents(32, 5, seed=3)})
    save_circuit(Circuit.full(graph_of("llama")), tmp_path / "c.json")
    with pytest.raises(BadInput, match="another graph"):
        load_circuit(tmp_path / "c.json", other)
    whole = json.loads((tmp_path / "c.json").read_text())
    for key, value in (("point", "z"), ("neurons", [1]), ("count", "many"), ("basis", ...)):
        damaged = json.loads(json.dumps(whole))
        record = damaged["layers"][0][4]
        record.pop(key) if value is ... else record.update({key: value})
        (tmp_path / "bad.json").write_text(json.dumps(damaged))
        with pytest.raises(CorruptFile):
            load_circuit(tmp_path / "bad.json")
    with pytest.raises(BadInput, match="cut into units"):
        save_eap_ig(Circuit.full(neurons_of("llama")), tmp_path / "g.json")


def test_sets_tables_and_pictures_of_units() -> None:
    graph = graph_of("gpt2")
    chain = ["resid_pre.0->mlp_in.0", "mlp_act.0.n8->v.1.kv2", "z.1.h2->mlp_in.1", "mlp_out.1.u4->logits"]
    circuit = Circuit.of(graph, chain)
    assert circuit.pruned() == circuit and circuit.nodes[1] == "mlp_act.0.n8"
    assert (Circuit.full(graph) - ~circuit) == circuit
    nodes = Circuit.of_nodes(graph, ["resid_pre.0", "mlp_act.0.n8", "mlp_out.1.rest"])
    assert "mlp_act.0.n8->mlp_in.1" in nodes and "resid_pre.0->mlp_in.0" in nodes
    assert "resid_pre.0->mlp_in.2" not in nodes
    found = scores(graph, pair(2), METRIC, method="eap")
    assert circuit.table(found).rows[0][0] in circuit.nodes
    drawing = str(CircuitPicture(circuit, found).html())
    assert "mlp_out.1.u4" in drawing and drawing.count("<path") >= 4
    assert [drawing.count(f"<title>units of MLP {layer}</title>") for layer in range(2)] == [1, 1], "one box each"
    with pytest.raises(UnknownName, match=r"mlp_act\.0\.n8"):
        graph.source_index("mlp_act.0.n9")
