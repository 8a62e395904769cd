"""Graphs: edge counts known from the literature, order and names of nodes, who feeds whom, and refusals."""

from __future__ import annotations

import pytest
import torch
import transformers
from circuit_models import opened

import mechanome as mn
from mechanome.circuits import Graph, Layer
from mechanome.core import BadInput, NotServed, UnknownName
from mechanome.engine import Site
from mechanome.engine.discovery import discover
from mechanome.engine.site import parse

SMOLLM2 = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576}
LLAMA_1B = {"num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 2048}


def from_config(config: transformers.PretrainedConfig) -> Graph:
    """Modules without weights."""
    with torch.device("meta"):
        return Graph.shaped_like(discover(transformers.AutoModelForCausalLM.from_config(config)))


def test_edge_counts_of_known_models_from_their_configs_alone() -> None:
    assert from_config(transformers.GPT2Config()).n_edges == 32_491
    llama = from_config(transformers.LlamaConfig(**LLAMA_1B))
    assert llama.ungrouped().n_edges == 386_713
    assert llama.n_edges < 386_713
    smol = from_config(transformers.LlamaConfig(**SMOLLM2))
    assert smol.n_edges == 70_651
    assert smol.shape == (301, 481)


@pytest.mark.parametrize("layers, heads, kv", [(1, 1, 1), (3, 4, 2), (5, 6, 6), (2, 8, 1)])
def test_the_count_is_the_formula_and_the_number_of_true_cells(layers: int, heads: int, kv: int) -> None:
    graph = Graph(tuple(Layer(heads, kv) for _ in range(layers)))
    by_formula = sum((heads + 2 * kv) * (1 + (heads + 1) * x) + 1 + (heads + 1) * x + heads for x in range(layers)) + (
        1 + layers * (heads + 1)
    )
    assert graph.n_edges == by_formula == int(graph.mask.sum())
    assert graph.shape == tuple(graph.mask.shape) == (1 + layers * (heads + 1), layers * (heads + 2 * kv + 1) + 1)


def test_order_and_names() -> None:
    graph = Graph((Layer(2, 1), Layer(2, 1)))
    assert graph.sources == ("resid_pre.0", "z.0.h0", "z.0.h1", "mlp_out.0", "z.1.h0", "z.1.h1", "mlp_out.1")
    assert graph.targets == (
        "q.0.h0", "q.0.h1", "k.0.kv0", "v.0.kv0", "mlp_in.0", "q.1.h0", "q.1.h1", "k.1.kv0", "v.1.kv0", "mlp_in.1",
        "logits",
    )  # fmt: skip
    into = {t: [s for s in graph.sources if bool(graph.mask[graph.source_index(s), j])]
            for j, t in enumerate(graph.targets)}  # fmt: skip
    assert into["q.0.h1"] == ["resid_pre.0"]
    assert into["mlp_in.0"] == ["resid_pre.0", "z.0.h0", "z.0.h1"]
    assert into["v.1.kv0"] == ["resid_pre.0", "z.0.h0", "z.0.h1", "mlp_out.0"]
    assert into["logits"] == list(graph.sources)


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "gptj", "bert", "gemma2", "mixtral"])
def test_names_of_nodes_are_sites_of_the_model(name: str) -> None:
    graph = Graph.of(opened(name))
    for node in (*graph.sources, *graph.targets):
        if not node.startswith("mlp_in"):
            assert opened(name).serves(parse(node)) and isinstance(parse(node), Site)


def test_a_parallel_block_has_no_edges_inside() -> None:
    for name in ("gpt_neox", "gptj"):
        graph = Graph.of(opened(name))
        assert graph.additive
        for layer in range(3):
            j = graph.target_index(f"mlp_in.{layer}")
            assert not any(bool(graph.mask[graph.source_index(f"z.{layer}.h{h}"), j]) for h in range(4))
        assert bool(graph.mask[graph.source_index("z.0.h1"), graph.target_index("mlp_in.1")])
        assert graph.n_edges == Graph.of(opened("gpt2")).n_edges - 3 * 4


def test_who_feeds_whom() -> None:
    graph = Graph.of(opened("llama"))  # 4 query heads, 2 key/value heads

    def fed(target: str) -> list[str]:
        return [graph.sources[i] for i in graph.feeds[graph.target_index(target)].nonzero()[:, 0].tolist()]

    assert fed("q.1.h3") == ["z.1.h3"]
    assert fed("k.1.kv1") == fed("v.1.kv1") == ["z.1.h2", "z.1.h3"]
    assert fed("mlp_in.2") == ["mlp_out.2"]
    assert fed("logits") == []
    assert not graph.feeds[:, 0].any(), "nothing feeds the embedding"


def test_edges_by_name() -> None:
    graph = Graph.of(opened("llama"))
    i, j = graph.index("z.0.h3->k.2.kv1")
    assert (graph.sources[i], graph.targets[j]) == ("z.0.h3", "k.2.kv1")
    assert graph.name(i, j) == "z.0.h3->k.2.kv1"
    for wrong in (
        "z.0.h3",
        "z.0.h9->logits",
        "z.2.h0->q.1.h0",
        "z.1.h0->q.1.h0",
        "mlp_out.0->mlp_in.0",
        "q.0.h0->logits",
    ):
        with pytest.raises(UnknownName):
            graph.index(wrong)


@pytest.mark.parametrize(
    "name, why", [("mamba", "without attention"), ("jamba", "without attention"), ("t5", "cross-attention"),
                  ("whisper", "cross-attention"), ("bloom", "attention registry"), ("convnet", "stream")],
)  # fmt: skip
def test_what_is_no_such_graph_is_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(NotServed, match=why):
        Graph.of(opened(name), "decoder" if name in ("t5", "whisper") else None)


class OnlyMLPs(torch.nn.Module):
    """A stream that two MLPs add to, and nothing that mixes tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tok, self.out = torch.nn.Embedding(20, 8), torch.nn.Linear(8, 20)
        self.stack = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(8, 8)) for _ in range(2))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tok(ids)
        for block in self.stack:
            x = x + block(x)
        return self.out(x)


def test_a_model_without_attention_is_refused() -> None:
    architecture = discover(OnlyMLPs(), mn.Layout("stack", {"mlp": "0"}, "tok", None, "out"))
    with pytest.raises(NotServed, match="none of its blocks has attention"):
        Graph.shaped_like(architecture)


def test_towers_are_asked_for_by_name() -> None:
    with pytest.raises(NotServed, match="several towers"):
        Graph.of(opened("clip"))
    with pytest.raises(NotServed, match="logits"):
        Graph.of(opened("clip"), "text")


def test_bad_shapes() -> None:
    with pytest.raises(BadInput, match="key/value"):
        Layer(4, 3)
    with pytest.raises(BadInput, match="without layers"):
        Graph(())
    with pytest.raises(BadInput, match="without a model"):
        Graph((Layer(2, 2),)).opened()


def test_styles_say_whether_edges_add() -> None:
    for name, additive in (("gpt2", True), ("gpt_neox", True), ("bert", False), ("gemma2", False), ("vit", True)):
        assert Graph.of(opened(name)).additive is additive
    assert "do not add" in repr(Graph.of(opened("bert")))
