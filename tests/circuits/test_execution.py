"""Circuits that are run, against a transformer written out by hand in which every edge has a mask."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from circuit_models import METRIC, apart, images, opened, pair, random_circuits
from masked_forward import FAMILIES, Parts, Values, forward, masked
from torch import Tensor

import mechanome as mn
from families import FAMILIES as FAMILIES_OF_MODELS
from mechanome.circuits import Circuit, Graph, Intervention, scores
from mechanome.circuits.execution import Prepared, execute
from mechanome.circuits.live_edges import Live, live_edges
from mechanome.circuits.sparse_execution import run_sparse
from mechanome.core import BadInput, BudgetTooSmall, NotFinite, ShapeMismatch

BY_HAND = [*FAMILIES, "qwen3"]
"""Layer norms with biases, grouped heads, parallel blocks, norms after each part, norms of queries and keys."""
OTHERS = ["gptj", "gemma2", "mixtral", "esm", "gpt_oss", "vit", "opt", "distilbert"]
PADDED = [*OTHERS, "mistral", "qwen2", "gemma3", "phi3", "qwen3_moe", "modernbert", "wav2vec2"]
"""Every other family that has a graph, on the rows of different lengths that come with it."""
WAYS = ["dense", "sparse"]


def qwen3(model: Any) -> Parts:
    """As llama, with a norm on each query and key."""
    parts = FAMILIES["llama"](model)
    for block, layer in zip(parts.blocks, model.model.layers):
        a = layer.self_attn
        block.q = [lambda x, f=f, a=a: a.q_norm(f(x)) for f in block.q]
        block.k = [lambda x, f=f, a=a: a.k_norm(f(x)) for f in block.k]
    return parts


@cache
def graph_of(name: str) -> Graph:
    return Graph.of(opened(name))


@cache
def parts_of(name: str) -> Parts:
    module = opened(name).module
    return qwen3(module) if name == "qwen3" else FAMILIES[name](module)


def values_of(name: str, ids: Tensor) -> Values:
    return forward(parts_of(name), ids)[1]


def by_hand(name: str, mask: Tensor, clean: Tensor, patched: Values) -> Tensor:
    """Logits of one row whose edges are kept as the mask `[source, target]` says, `[vocab]`."""
    return masked(graph_of(name), parts_of(name), mask, clean, patched)


def data_of(name: str, rows: int = 2) -> tuple[Any, Any]:
    return images() if name == "vit" else pair(rows)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", BY_HAND)
def test_every_target_reads_its_own_masked_sum(name: str, way: str) -> None:
    (clean, other), graph = pair(2), graph_of(name)
    circuits = random_circuits(graph, 0.02, 0.1, 0.3, 0.6, 0.95)
    found = execute(circuits, (clean, other), METRIC, method=way, logits=True, quiet=True)
    patched = [values_of(name, o[None]) for o in other]
    expected = torch.stack(
        [torch.stack([by_hand(name, c.edges.float(), x[None], p) for x, p in zip(clean, patched)]) for c in circuits]
    )
    assert found.logits is not None and apart(found.logits, expected) < 1e-5
    assert apart(found.values, torch.stack([METRIC(e, torch.arange(2)) for e in expected])) < 3e-5
    assert found.methods == (way,) * 5 and found.intervention == "patch"
    assert expected.std(0).min() > 1e-3, "the circuits would be told apart"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*BY_HAND, *OTHERS])
def test_the_full_circuit_is_the_model_and_the_empty_one_the_other_input(name: str, way: str) -> None:
    graph, (clean, other), model = graph_of(name), data_of(name), opened(name)
    found = execute(
        [Circuit.full(graph), Circuit.empty(graph)], (clean, other), METRIC, method=way, logits=True, quiet=True
    )
    assert found.logits is not None
    for logits, inputs in zip(found.logits, (clean, other)):
        run = model.run(inputs, logits="last").logits
        assert run is not None and apart(logits, run) < 1e-5
    assert apart(found.values, torch.stack([found.clean, found.empty])) < 1e-5
    assert found.divergence[0].max() < 1e-6 < found.divergence[1].min() and bool(found.agrees[0].all())


@pytest.mark.parametrize("name", [*BY_HAND, *PADDED])
def test_both_ways_agree_and_the_full_circuit_is_the_model(name: str) -> None:
    graph, model = graph_of(name), opened(name)
    clean = dict(FAMILIES_OF_MODELS[name].inputs(model.module, 9))
    main = next(k for k in ("input_ids", "pixel_values", "input_values") if k in clean)
    ids = clean[main]
    other = ids.flip(0) if ids.is_floating_point() else torch.where(torch.arange(9) % 4 == 3, (ids + 11) % 70 + 6, ids)
    data = clean, {**clean, main: other}
    circuits = [*random_circuits(graph, 0.03, 0.08, 0.2, 0.5, 0.9), Circuit.of_nodes(graph, graph.sources[::2])]
    dense, sparse = (
        execute([*circuits, Circuit.full(graph)], data, first_two, method=way, logits=True, quiet=True) for way in WAYS
    )
    assert dense.logits is not None and sparse.logits is not None
    assert apart(sparse.logits, dense.logits) < 1e-5 and dense.logits.std(0).max() > 1e-2
    assert apart(sparse.divergence, dense.divergence) < 1e-4
    run = model.run(clean, logits="last").logits
    assert run is not None and apart(dense.logits[-1], run) < 1e-5


def first_two(logits: Tensor, rows: Tensor) -> Tensor:
    """A metric for models of few classes."""
    return logits[:, 0] - logits[:, 1]


@pytest.mark.parametrize("name", [*BY_HAND, *OTHERS])
def test_all_but_one_edge_is_this_edge_patched(name: str) -> None:
    """Against exact scores, which resume the model behind the edge."""
    graph, data = graph_of(name), data_of(name, 1)
    data = tuple({k: v[:1] for k, v in d.items()} for d in data) if name == "vit" else data  # type: ignore
    edges = [graph.name(*i) for i in graph.mask.nonzero()[3::17].tolist()]
    one = [Circuit.of(graph, [edge]) for edge in edges]
    exact = scores(graph, data, METRIC, method="exact", only=Circuit.of(graph, edges), quiet=True)
    expected = torch.stack([exact.values[c.edges][0] for c in one])
    found = execute([~c for c in one], data, METRIC, method="dense", quiet=True)
    assert apart(found.values[:, 0] - found.clean, expected) < 1e-4 and expected.abs().max() > 1e-3


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "gemma2"])
def test_a_circuit_of_nodes_is_the_model_with_the_other_nodes_replaced(name: str, way: str) -> None:
    (clean, other), graph, model = pair(2), graph_of(name), opened(name)
    chosen = [s for i, s in enumerate(graph.sources) if i % 3]
    donor = model.run(other, capture=["resid_pre.0", "z.*", "mlp_out.*"])
    run = model.run(clean, edits=[mn.Patch(s, donor) for s in graph.sources if s not in chosen], logits="last")
    found = execute(Circuit.of_nodes(graph, chosen), (clean, other), METRIC, method=way, logits=True, quiet=True)
    assert found.logits is not None and run.logits is not None
    assert apart(found.logits[0], run.logits) < 1e-5


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["zero", "mean", "positional-mean", "noise"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "bert"])
def test_other_interventions(name: str, kind: str, way: str) -> None:
    (clean, other), graph = pair(3, where=2), graph_of(name)
    each = [values_of(name, c[None]) for c in clean]
    if kind == "noise":
        patched = []
        for row, values in enumerate(each):
            x = values["resid_pre.0"]
            generator = torch.Generator().manual_seed(7 * 1_000_003 + row)
            noise = torch.zeros_like(x)
            noise[:, 2] = (torch.randn(x.shape[1:], generator=generator) * 0.5 * x[0, 2].std())[2]
            patched.append(forward(parts_of(name), clean[:1], embedded=x + noise)[1])
    elif kind == "zero":
        patched = [{k: torch.zeros_like(v) for k, v in values.items()} for values in each]
    else:
        means = {k: torch.cat([values[k] for values in each]).mean(0, keepdim=True) for k in each[0]}
        if kind == "mean":
            means = {k: v.mean(1, keepdim=True).expand_as(v) for k, v in means.items()}
        patched = [means] * 3
    circuits = [*random_circuits(graph, 0.05, 0.4), Circuit.empty(graph)]
    settings: dict[str, Any] = {"intervention": Intervention(kind, amplitude=0.5, seed=7), "method": way, "quiet": True}
    found = execute(circuits, (clean, other), METRIC, logits=True, **settings)
    assert found.logits is not None and found.intervention == kind
    for c, logits in zip(circuits, found.logits):
        expected = torch.stack([by_hand(name, c.edges.float(), x[None], p) for x, p in zip(clean, patched)])
        assert apart(logits, expected) < 3e-5


@pytest.mark.parametrize("name", BY_HAND)
def test_soft_masks_and_their_gradients(name: str) -> None:
    (clean, other), graph = pair(2), graph_of(name)
    masks = torch.rand(3, *graph.shape, generator=torch.Generator().manual_seed(1)) * graph.mask
    ready = Prepared.of(graph, (clean, other), METRIC)
    given = masks.clone().requires_grad_(True)
    logits = ready.logits(given)
    ready.measured(logits, range(2)).sum().backward()
    byhand = masks.clone().requires_grad_(True)
    patched = [values_of(name, o[None]) for o in other]
    expected = torch.stack(
        [torch.stack([by_hand(name, m, x[None], p) for x, p in zip(clean, patched)]) for m in byhand]
    )
    torch.stack([METRIC(e, torch.arange(2)) for e in expected]).sum().backward()
    assert apart(logits.detach(), expected.detach()) < 1e-5
    assert given.grad is not None and byhand.grad is not None and apart(given.grad, byhand.grad) < 3e-5
    assert byhand.grad[:, graph.mask].ne(0).float().mean() > 0.9
    assert not any(p.requires_grad or p.grad is not None for p in opened(name).module.parameters())


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "bert", "gemma2"])
def test_masks_of_sources_are_masks_of_their_edges(name: str) -> None:
    graph = graph_of(name)
    masks = torch.rand(2, graph.shape[0], generator=torch.Generator().manual_seed(2)).requires_grad_(True)
    ready = Prepared.of(graph, pair(2), METRIC)
    few, many = ready.logits(masks), ready.logits(masks[:, :, None].expand(-1, -1, graph.shape[1]))
    assert apart(few.detach(), many.detach()) < 1e-5
    slopes = [torch.autograd.grad(x[..., 5].sum(), masks)[0] for x in (few, many)]
    assert apart(*slopes) < 1e-5


@pytest.mark.parametrize("name", ["gpt2", "gemma2"])
def test_a_graph_that_is_kept_is_gone_through_twice(name: str) -> None:
    graph = graph_of(name)
    masks = (torch.rand(2, *graph.shape, generator=torch.Generator().manual_seed(3)) * graph.mask).requires_grad_(True)
    logits = Prepared.of(graph, pair(2), METRIC).logits(masks)
    one, other, both = (
        torch.autograd.grad(loss.sum(), masks, retain_graph=True)[0]
        for loss in (logits[..., 5], logits[0], logits[..., 5].sum() + logits[0].sum())
    )
    assert apart(one + other, both) < 1e-5 and one.abs().max() > 1e-3


def test_soft_masks_leave_flags_as_they_were() -> None:
    model = mn.load(opened("gpt2").module)
    parameter = next(model.module.parameters())
    parameter.requires_grad_(True)
    graph = Graph.of(model)
    mask = graph.mask[None].float().requires_grad_(True)
    Prepared.of(graph, pair(1), METRIC).logits(mask).sum().backward()
    assert parameter.requires_grad and parameter.grad is None and mask.grad is not None
    parameter.requires_grad_(False)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt_neox", "bert"])
def test_padding_and_batching_change_nothing(name: str, way: str) -> None:
    clean, other = pair(3, 8, where=2)
    rows = [(clean[i, :n].tolist(), other[i, :n].tolist()) for i, n in enumerate((8, 5, 7))]
    graph, circuits = graph_of(name), random_circuits(graph_of(name), 0.05, 0.3, 0.8)
    settings: dict[str, Any] = {"method": way, "logits": True, "quiet": True}
    together = execute(circuits, ([c for c, _ in rows], [o for _, o in rows]), METRIC, **settings)
    assert together.logits is not None
    for k, circuit in enumerate(circuits):
        for i, (c, o) in enumerate(rows):
            alone = execute(circuit, ([c], [o]), METRIC, **settings)
            assert alone.logits is not None and apart(together.logits[k, i], alone.logits[0, 0]) < 1e-5
            assert float(together.clean[i]) == pytest.approx(float(alone.clean[0]), abs=1e-4)
    if name == "bert":
        return
    left = [graph.opened().encode([row[k] for row in rows], pad="left") for k in (0, 1)]
    assert apart(execute(circuits, left, METRIC, **settings).values, together.values) < 3e-5


def test_a_small_budget_only_cuts_the_work() -> None:
    graph, answers = graph_of("llama"), mn.LogitDiff([5, 6, 7, 8, 9], [15, 16, 17, 18, 19])
    circuits = random_circuits(graph, 0.9, 0.02, 0.4, 0.1, 0.7)
    whole = execute(circuits, pair(5), answers, quiet=True)
    for intervention in ("patch", "mean", "noise"):
        settings: dict[str, Any] = {"intervention": intervention, "quiet": True}
        whole = execute(circuits, pair(5), answers, **settings)
        pieces = execute(circuits, pair(5), answers, budget="500KB", **settings)
        assert apart(pieces.values, whole.values) < 1e-5 and apart(pieces.clean, whole.clean) < 1e-5
        assert torch.equal(pieces.agrees, whole.agrees)
        assert "500.0 KB of memory" in pieces.notes[0] and whole.notes == ()
    with pytest.raises(BudgetTooSmall):
        execute(circuits, pair(5), answers, budget="1KB")


def test_a_call_that_is_cut_to_a_budget_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    graph = graph_of("llama")
    circuits = random_circuits(graph, 0.9, 0.8, 0.7)
    execute(circuits, pair(2), METRIC)
    assert capsys.readouterr().err == ""
    for budget in ("150KB", "250KB"):  # cut into examples; examples together, cut into circuits
        found = execute(circuits, pair(2), METRIC, budget=budget)
        said = " ".join(capsys.readouterr().err.split())
        assert said.startswith("note: cut into") and found.notes[0] in said
    execute(circuits, pair(2), METRIC, budget="150KB", quiet=True)
    assert capsys.readouterr().err == ""


def test_the_cheaper_way_is_chosen_and_named() -> None:
    graph = graph_of("gpt2")
    circuits = [Circuit.full(graph), Circuit.of(graph, ["resid_pre.0->v.1.kv2", "z.1.h2->logits"])]
    found = execute(circuits, pair(2), METRIC, quiet=True)
    assert found.methods == ("dense", "sparse")
    assert apart(found.values, execute(circuits, pair(2), METRIC, method="dense", quiet=True).values) < 1e-5
    assert [row[0] for row in found.table().rows] == [graph.n_edges, 2] and "sparse" in str(found.table().rows)


def test_sparse_runs_nothing_that_cannot_differ() -> None:
    graph, layers = graph_of("llama"), opened("llama").module.model.layers
    circuits = [
        Circuit.of(graph, ["resid_pre.0->v.1.kv1", "z.1.h3->logits", "mlp_out.0->logits"]),
        Circuit.of(graph, ["resid_pre.0->mlp_in.1", "mlp_out.1->logits", "resid_pre.0->q.0.h0"]),
        Circuit.of(graph, ["resid_pre.0->mlp_in.1", "mlp_out.1->v.2.kv0", "z.2.h0->logits"]),
        Circuit.empty(graph),
    ]
    ran: list[tuple[str, int]] = []
    handles = [
        module.register_forward_hook(lambda m, x, y, at=f"{part}.{i}": ran.append((at, y.shape[0] * y.shape[1])))
        for i, layer in enumerate(layers)
        for part, module in (("attention", layer.self_attn.v_proj), ("mlp", layer.mlp.up_proj))
    ]
    try:
        base = Prepared.of(graph, pair(2, 6, where=1), METRIC).base([0, 1])[0]
        ran.clear()
        run_sparse(base, Live(graph, live_edges(graph, torch.stack([c.edges for c in circuits]), True)))
    finally:
        for handle in handles:
            handle.remove()
    # Two examples of six tokens. One circuit's MLP matters at both last tokens, the other's wherever inputs differ.
    assert ran == [("attention.1", 12), ("mlp.1", 2 + 2 * 5), ("attention.2", 12)]


def test_sources_that_matter_at_the_last_token_alone() -> None:
    graph = graph_of("gpt2")
    edges = ["mlp_out.0->q.1.h0", "mlp_out.0->q.1.h1", "z.1.h0->logits", "z.1.h1->logits"]
    late = Live(graph, Circuit.of(graph, edges).edges[None]).late[0]
    assert late[graph.source_index("mlp_out.0")] and late[graph.source_index("z.1.h1")]
    through_key = Circuit.of(graph, [*edges, "z.1.h1->k.2.kv0"]).edges[None]
    late = Live(graph, through_key).late[0]
    assert not late[graph.source_index("mlp_out.0")] and not late[graph.source_index("z.1.h1")]
    assert late[graph.source_index("z.1.h0")]


def test_live_edges_are_those_on_a_path() -> None:
    for name in ("gpt2", "llama", "gpt_neox"):
        graph, circuits = graph_of(name), random_circuits(graph_of(name), 0.01, 0.03, 0.1, 0.5)
        found = live_edges(graph, torch.stack([c.edges for c in circuits]), True)
        assert [Circuit(graph, f) for f in found] == [c.pruned() for c in circuits]
    for edge in ("z.0.h0->logits", "mlp_out.0->logits", "resid_pre.0->q.0.h0"):
        assert not live_edges(graph, Circuit.of(graph, [edge]).edges[None], True).any()
    unrooted = live_edges(graph, Circuit.of(graph, ["z.0.h1->logits", "z.0.h0->q.1.h1"]).edges[None], False)
    assert list(Circuit(graph, unrooted[0])) == ["z.0.h1->logits"]


def test_what_cannot_be_run_is_refused() -> None:
    graph, data = graph_of("gpt2"), pair(2)
    full = Circuit.full(graph)
    with pytest.raises(BadInput, match="there are none"):
        execute([], data, METRIC)
    with pytest.raises(BadInput, match="different graphs"):
        execute([full, Circuit.full(graph_of("llama"))], data, METRIC)
    with pytest.raises(BadInput, match="no such way"):
        execute(full, data, METRIC, method="fast")
    with pytest.raises(BadInput, match="needs a corrupted input"):
        execute(full, (data[0], None), METRIC)
    with pytest.raises(ShapeMismatch, match="clean and"):
        execute(full, (data[0], data[1][:, :-1]), METRIC)
    with pytest.raises(BadInput, match="made from shapes"):
        execute(Circuit.full(Graph(graph.layers)), data, METRIC)
    with pytest.raises(ShapeMismatch, match="masks of shape"):
        Prepared.of(graph, data, METRIC).logits(torch.ones(1, 3, 4))
    broken = mn.load(opened("gpt2").module)
    weight = broken.module.transformer.h[1].mlp.c_proj.weight
    kept = weight.data.clone()
    try:
        weight.data[0, 0] = float("nan")
        with pytest.raises(NotFinite):
            execute(full, data, METRIC, quiet=True)
    finally:
        weight.data = kept
