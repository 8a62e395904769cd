"""The circuit benchmark's workers in the project's own environment give the same numbers, and its pairs are pairs."""

import numpy as np
import pytest
import torch
from benchmarks.circuit_engines import hugging_face, mechanome
from benchmarks.circuit_engines.common import Layout
from benchmarks.circuits import pairs
from benchmarks.harness.pairing import difference
from transformers import GPT2Config, GPT2LMHeadModel

import mechanome as mn
from benchmarks import random_models
from mechanome import circuits

LAYERS, HEADS = 2, 3
LAYOUT = Layout(LAYERS, HEADS)
REQUEST = {"clean": [[5, 6, 7, 8], [5, 9, 3, 2]], "corrupted": [[5, 1, 4, 7], [5, 2, 8, 9]], "answer": 0, "foil": 1}


def make(folder, **config):
    config = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": 24, "vocab_size": 40, "n_positions": 16, **config}
    return random_models.gpt2(folder, **config)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random_models, "FOLDER", tmp_path_factory.mktemp("models"))
        patch.setattr(random_models, "_SPREAD", 0.3)
        yield make("tiny")


@pytest.fixture(scope="module")
def plain(folder):
    return GPT2LMHeadModel.from_pretrained(folder).eval()


@pytest.fixture(scope="module")
def model(folder):
    return mn.load(GPT2LMHeadModel.from_pretrained(folder).eval())


def arrays(work):
    found = work()
    return {k: np.asarray(v) for k, v in (found() if callable(found) else found).items() if k != "note"}


def scores(model, **how):
    return arrays(mechanome.scores(model, {**REQUEST, "how": how}))


def test_the_layout_is_the_graph(model):
    graph = circuits.Graph.of(model)
    assert LAYOUT.shape == graph.shape
    assert np.array_equal(LAYOUT.edges(), graph.mask.nonzero().numpy())
    names = {"q": "q.{}.h{}", "k": "k.{}.kv{}", "v": "v.{}.kv{}", "mlp": "mlp_in.{}", "logits": "logits"}
    assert graph.targets == tuple(names[kind].format(layer, head) for kind, layer, head in LAYOUT.targets())
    for place, (kind, layer, head) in enumerate(LAYOUT.targets()):
        assert LAYOUT.target(kind, layer, head) == place
    assert graph.sources[LAYOUT.source(1, 2)] == "z.1.h2" and graph.sources[LAYOUT.source(0)] == "mlp_out.0"
    assert graph.sources[LAYOUT.source(None)] == "resid_pre.0"
    unmeasured = LAYOUT.matrix()
    assert torch.equal(unmeasured.isnan(), graph.mask)


def test_the_plain_loop_is_exact(plain, model):
    edges = LAYOUT.edges().tolist()
    theirs = arrays(hugging_face.exact(plain, {**REQUEST, "edges": edges}))
    ours = scores(model, method="exact")
    assert difference(ours, theirs) < 1e-5
    assert np.abs(theirs["edge"]).max() > 1e-2 and (theirs["edge"] != 0).sum() > len(edges) / 2
    some = edges[3:9]
    part = arrays(hugging_face.exact(plain, {**REQUEST, "edges": some}))["edge"]
    assert np.isfinite(part[LAYOUT.edges()[:, 0], LAYOUT.edges()[:, 1]]).sum() == len(some)
    chosen = arrays(mechanome.scores(model, {**REQUEST, "edges": some, "how": {"method": "exact"}}))
    assert difference(chosen, {"edge": part}) < 1e-5


def test_mask_gradients_start_at_eap(model):
    """Where everything is patched, no source but the embedding differs from what is patched in."""
    both = arrays(mechanome.mask_gradients(model, {**REQUEST, "steps": 1}))["edge"]
    eap = scores(model, method="eap")["edge"]
    assert difference({"x": both[1:]}, {"x": eap[1:]}) < 1e-5
    assert difference({"x": both[:1]}, {"x": eap[:1]}) > 1e-2
    more = arrays(mechanome.mask_gradients(model, {**REQUEST, "steps": 2}))["edge"]
    assert difference({"x": more[1:]}, {"x": eap[1:]}) > 1e-2


def test_circuits_of_a_file_of_scores(model, tmp_path):
    ranking = tmp_path / "scores.npz"
    ranked = scores(model, method="eap")["edge"]
    np.savez(ranking, edge=ranked)
    edges = len(LAYOUT.edges())
    request = {**REQUEST, "ranking": str(ranking), "sizes": [5, 40, edges]}
    ways = {m: arrays(mechanome.evaluate(model, {**request, "method": m})) for m in ("auto", "dense", "sparse")}
    found = ways["auto"]
    assert found["circuit"].shape == (3, 2)
    assert difference(found, ways["dense"]) < 1e-5 and difference(found, ways["sparse"]) < 1e-5
    assert np.allclose(found["circuit"][2], found["clean"], atol=1e-5)
    graph = circuits.Graph.of(model)
    least = np.sort(np.abs(ranked[graph.mask]))[-5]
    circuit = circuits.Circuit(graph, torch.tensor(np.abs(ranked) >= least) & graph.mask)
    data = torch.tensor(REQUEST["clean"]), torch.tensor(REQUEST["corrupted"])
    own = circuits.execute(circuit, data, mn.LogitDiff(0, 1), quiet=True).values
    assert len(circuit) == 5 and np.allclose(found["circuit"][0], own[0], atol=1e-5)
    note = mechanome.evaluate(model, {**request, "method": "dense"})()()["note"]
    assert note == "3 dense"


def test_the_plain_forward_has_the_same_metric(model):
    plain = arrays(mechanome.plain_forward(model, REQUEST))
    assert difference(scores(model, method="eap-ig", steps=2), plain) < 1e-6
    assert plain["clean"].shape == (2,) and plain["clean"].std() > 1e-3


def test_pairs_agree_at_the_first_token_only():
    some, more = pairs(2, 15), pairs(8, 64)
    for name in ("clean", "corrupted"):
        assert [len(row) for row in some[name]] == [15, 15]
        assert some[name] == [row[:15] for row in more[name][:2]]
    same = np.array(more["clean"]) == np.array(more["corrupted"])
    assert same[:, 0].all() and not same[:, 1:].any(axis=1).all()
    assert same[:, 1:].mean() < 0.01


def test_a_random_model_is_made_once_and_every_part_of_it_matters(folder, plain, monkeypatch):
    monkeypatch.setattr(random_models, "FOLDER", folder.parent)
    monkeypatch.setattr(random_models, "GPT2LMHeadModel", lambda *a: pytest.fail("it was made again"))
    assert make("tiny") == folder
    assert plain.transformer.h[0].attn.c_attn.bias.std() > 0.1
    gain = plain.transformer.h[1].ln_2.weight
    assert abs(gain.mean() - 1) < 0.3 and gain.std() > 0.1
    cut = hugging_face.load({"folder": str(folder), "layers": 1, "heads": 6})
    assert isinstance(plain.config, GPT2Config) and (cut.config.n_layer, cut.config.n_head) == (1, 6)
    assert torch.equal(cut.transformer.h[0].mlp.c_fc.weight, plain.transformer.h[0].mlp.c_fc.weight)
