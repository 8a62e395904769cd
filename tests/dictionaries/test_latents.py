"""Latents as handles and as nodes of circuits: edits against a hook by hand, scores against gradients by hand."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import mechanome as mn
from families import build
from mechanome.circuits import Graph, scores
from mechanome.circuits.units import fingerprint
from mechanome.core import BadInput, NotServed
from mechanome.dictionaries import PolySAE, ReLU, TopK, Transcoder
from mechanome.dictionaries.features import Latent
from registry_models import need

ROWS = [[5, 9, 2, 7, 30, 11, 3], [8, 1, 4, 4, 19]]


@cache
def opened(name: str) -> mn.Model:
    return mn.load(build(name).requires_grad_(False), check="off")


@cache
def dictionary_of(name: str, site: str, kind: str = "topk") -> Any:
    d = opened(name).run(ROWS[:1], capture=[site])[site].shape[-1]
    torch.manual_seed(1)
    recipe = TopK(24, k=5) if kind == "topk" else ReLU(24)
    made = recipe.build(d, sites_in=(site,)).requires_grad_(False)
    made.b_dec.copy_(0.3 * torch.randn(d))  # a constant that belongs to no latent
    return made


def active(name: str, site: str, kind: str = "topk") -> int:
    """The latent that is active on most tokens, but not on all."""
    codes = dictionary_of(name, site, kind).encode(opened(name).run(ROWS[:1], capture=[site])[site])
    counts = codes.counts()
    return int(torch.where(counts < codes.rows, counts, 0).argmax())


def by_hand(name: str, site: str, row: list[int], change: Any) -> Tensor:
    """Logits of one row with the latent's values replaced by `change(values)`, by decoding both codes whole."""
    model, dictionary, latent = opened(name), dictionary_of(name, site), active(name, site)
    tap = model.tap(site)

    def hook(module: Any, args: Any, out: Any) -> Any:
        x = out if isinstance(out, Tensor) else out[0]
        z = dictionary.encode(x).dense()
        new = z.clone()
        new[:, latent] = change(z[:, latent])
        base = dictionary.norm_out.invert(z @ dictionary.W_dec + dictionary.b_dec)
        moved = dictionary.norm_out.invert(new @ dictionary.W_dec + dictionary.b_dec)
        x = x + (moved - base).view_as(x)
        return x if isinstance(out, Tensor) else (x, *out[1:])

    handle = tap.module.register_forward_hook(hook)
    try:
        with torch.no_grad():
            return model.module(input_ids=torch.tensor([row])).logits[0]
    finally:
        handle.remove()


CHANGES = {
    "set": (lambda h: h.set(2.0), lambda z: torch.full_like(z, 2.0 * 1.5)),
    "set a value": (lambda h: h.set(0.7, unit="value"), lambda z: torch.full_like(z, 0.7)),
    "scale": (lambda h: h.scale(3.0), lambda z: 3 * z),
    "clamp": (lambda h: h.clamp(0.1, 0.2), lambda z: z.clamp(0.15, 0.3)),
    "clamp below": (lambda h: h.clamp(hi=0.1, unit="value"), lambda z: z.clamp(max=0.1)),
    "ablate": (lambda h: h.ablate(), torch.zeros_like),
}


@pytest.mark.parametrize("site", ["resid_post.1", "mlp_out.1"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize("what", list(CHANGES))
def test_changes_equal_whole_codes_decoded_by_hand(name: str, site: str, what: str) -> None:
    handle = Latent(dictionary_of(name, site), active(name, site), maximum=1.5)
    edit, change = CHANGES[what]
    logits = opened(name).run(ROWS, edits=edit(handle)).logits
    plain = opened(name).run(ROWS).logits
    for i, row in enumerate(ROWS):
        expected = by_hand(name, site, row, change)
        assert torch.allclose(logits[i, : len(row)], expected, atol=1e-4 * float(expected.abs().max()))
    assert not torch.allclose(logits[0], plain[0], atol=1e-4)


def test_steering_adds_the_atom() -> None:
    model, dictionary = opened("llama"), dictionary_of("llama", "resid_post.1")
    handle = Latent(dictionary, [3, 5], maximum=[2.0, 4.0])
    atoms = dictionary.atoms()
    vector = 0.5 * (2.0 * atoms[3] + 4.0 * atoms[5])
    x = model.run(ROWS[:1], capture=["resid_post.1"])["resid_post.1"]
    moved = model.run(ROWS[:1], capture=["resid_post.1"], edits=handle.steer(0.5, pos=[1, 2]))["resid_post.1"]
    assert torch.allclose(moved[0, [1, 2]], x[0, [1, 2]] + vector, atol=1e-6)
    assert torch.equal(moved[0, [0, 3]], x[0, [0, 3]])
    raw = Latent(dictionary, 3).steer(-2.0, unit="value")
    assert torch.allclose(torch.as_tensor(raw.value), -2.0 * atoms[3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_strength_zero_changes_no_bit(dtype: torch.dtype) -> None:
    model = mn.load(build("llama").to(dtype), check="off")
    handle = Latent(dictionary_of("llama", "resid_post.1"), 3, maximum=2.0)
    plain, steered = (model.run(ROWS, ["resid_post.1"], edits=e) for e in ([], [handle.steer(0.0)]))
    assert torch.equal(plain.logits, steered.logits)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    a, b = (run["resid_post.1"].view(bits) for run in (plain, steered))
    assert torch.equal(a, b)
    zero = torch.tensor([-0.0, 0.0])
    assert torch.equal((zero + torch.as_tensor(handle.steer(0.0).value)[:2]).view(torch.int32), zero.view(torch.int32))


def test_the_error_and_other_latents_stay() -> None:
    model, dictionary = opened("llama"), dictionary_of("llama", "resid_post.1", "relu")
    latent = active("llama", "resid_post.1", "relu")
    site = "resid_post.1"
    x = model.run(ROWS[:1], capture=[site])[site]
    ablated = model.run(ROWS[:1], capture=[site], edits=Latent(dictionary, latent).ablate())[site]
    gone = dictionary.encode(x).pick([latent]).view(1, -1, 1) * dictionary.atoms()[latent]
    assert torch.allclose(ablated, x - gone, atol=1e-5)
    assert float(gone.abs().max()) > 0.01


@pytest.mark.parametrize("cache", [True, False])
def test_edits_mean_the_same_in_generation(cache: bool) -> None:
    model = opened("llama")
    handle = Latent(dictionary_of("llama", "resid_post.1"), active("llama", "resid_post.1"), maximum=2.0)
    for edit in (
        handle.steer(4.0),
        handle.set(6.0, phase="decode"),
        handle.ablate(pos=-1),
        handle.scale(5.0, steps=[1]),
    ):
        made = model.generate(ROWS, max_new_tokens=4, edits=edit, cache=cache, eos=None, do_sample=False)
        for i, row in enumerate(ROWS):
            alone = model.generate([row], max_new_tokens=4, edits=edit, cache=True, eos=None, do_sample=False)
            assert made.tokens[i] == alone.tokens[0]
            assert torch.allclose(made.logprobs[i], alone.logprobs[0], atol=1e-4)
    # The same as whole forward passes over what was generated, edited at the generated positions.
    edit = handle.set(6.0)
    made = model.generate(ROWS[:1], max_new_tokens=3, edits=edit, cache=cache, eos=None, do_sample=False)
    logits = model.run([ROWS[0] + made.tokens[0]], edits=edit).logits[0].log_softmax(-1)
    for step, token in enumerate(made.tokens[0]):
        assert float(logits[len(ROWS[0]) - 1 + step, token]) == pytest.approx(float(made.logprobs[0][step]), abs=1e-4)


def test_two_rows_can_be_steered_differently() -> None:
    model, handle = opened("llama"), Latent(dictionary_of("llama", "resid_post.1"), 3, maximum=2.0)
    both = model.run(ROWS, edits=[handle.steer(3.0, rows=[0]), handle.ablate(rows=[1])]).logits
    alone = [model.run([ROWS[0]], edits=handle.steer(3.0)), model.run([ROWS[1]], edits=handle.ablate())]
    for i, row in enumerate(ROWS):
        assert torch.allclose(both[i, : len(row)], alone[i].logits[0], atol=1e-5)


def test_handles_refuse() -> None:
    dictionary = dictionary_of("llama", "resid_post.1")
    with pytest.raises(BadInput, match="0 to 23"):
        Latent(dictionary, 24)
    with pytest.raises(BadInput, match="largest activation is not known"):
        Latent(dictionary, 3).steer(1.0)
    with pytest.raises(BadInput, match="one above 0"):
        Latent(dictionary, [3, 4], maximum=2.0)
    with pytest.raises(BadInput, match="one above 0"):
        Latent(dictionary, 3, maximum=0.0)
    with pytest.raises(BadInput, match="maxima differ"):
        Latent(dictionary, [3, 4], maximum=[1.0, 2.0]).clamp(0.0, 1.0)
    with pytest.raises(BadInput, match="give site="):
        Latent(TopK(8, k=2).build(4), 0)
    transcoder = Latent(Transcoder(TopK(8, k=2)).build(4, 4, sites_in=("ln2.1",), sites_out=("mlp_out.1",)), 0)
    assert str(transcoder.site) == "mlp_out.1"
    assert str(transcoder.steer(1.0, unit="value").site) == "mlp_out.1"
    with pytest.raises(NotServed, match=r"written at mlp_out\.1"):
        transcoder.ablate()
    pairs = Latent(PolySAE(8, k=2, ranks=(2, 2, 2)).build(4, sites_in=("resid_post.1",)), 0)
    with pytest.raises(NotServed, match="act in pairs"):
        pairs.scale(2.0)


# Nodes of circuits -----------------------------------------------------------------------------------------------

SITE = "mlp_out.1"
METRIC = mn.LogitDiff(5, 7)
CLEAN = torch.tensor([[5, 9, 2, 7, 30, 11], [8, 1, 4, 44, 19, 6]])
OTHER = torch.tensor([[5, 12, 2, 7, 30, 11], [8, 40, 4, 44, 19, 6]])


def latents_of(name: str) -> tuple[int, ...]:
    counts = dictionary_of(name, SITE).encode(opened(name).run(CLEAN, capture=[SITE])[SITE]).counts()
    return tuple(counts.topk(6).indices.tolist())


def graph_of(name: str, latents: Any = None) -> Graph:
    return Graph.of(opened(name), units={SITE: dictionary_of(name, SITE).basis(latents)})


def metric_with(name: str, masks: Tensor, latents: tuple[int, ...]) -> Tensor:
    """The metric of each row where latent i's part of the MLP's output is kept by `masks[i]`."""
    model, dictionary = opened(name), dictionary_of(name, SITE)

    def hook(module: Any, args: Any, out: Any) -> Any:
        c = dictionary.encode(out.detach()).pick(list(latents)).detach()
        return out + ((c * (masks - 1)) @ dictionary.atoms()[list(latents)]).view_as(out)

    handle = model.tap(SITE).module.register_forward_hook(hook)
    try:
        logits = model.module(input_ids=CLEAN).logits[:, -1]
    finally:
        handle.remove()
    return logits[:, 5] - logits[:, 7]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_attribution_of_latents_is_the_gradient_of_ablating_them(name: str) -> None:
    latents = latents_of(name)
    graph = graph_of(name, latents)
    found = scores(graph, (CLEAN, OTHER, METRIC), method="eap", level="node", intervention="zero", quiet=True)
    masks = torch.ones(len(latents), requires_grad=True)
    (slope,) = torch.autograd.grad(metric_with(name, masks, latents).mean(), masks)
    ours = torch.stack([found.values[graph.source_index(f"{SITE}.u{i}")] for i in range(len(latents))])
    assert torch.allclose(ours.float(), -slope, atol=1e-5 * float(slope.abs().max()))
    assert float(slope.abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_exact_effects_of_latents_are_those_of_ablating_them(name: str) -> None:
    latents = latents_of(name)[:3]
    graph, model = graph_of(name, latents), opened(name)
    found = scores(graph, (CLEAN, OTHER, METRIC), method="exact", level="node", intervention="zero", quiet=True)

    def metric(edits: Any) -> float:
        logits = model.run(CLEAN, edits=edits, logits="last").logits
        return float((logits[:, 5] - logits[:, 7]).mean())

    for i, latent in enumerate(latents):
        effect = metric(Latent(dictionary_of(name, SITE), latent).ablate()) - metric([])
        assert float(found.values[graph.source_index(f"{SITE}.u{i}")]) == pytest.approx(effect, abs=1e-4)


@pytest.mark.parametrize("chosen", [True, False], ids=["some", "all"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_latents_and_the_rest_add_up_to_the_mlp(name: str, chosen: bool) -> None:
    latents = latents_of(name) if chosen else None
    graph, whole = graph_of(name, latents), Graph.of(opened(name))
    assert int(graph.kinds("rest").sum()) == 1
    units = [i for i, s in enumerate(graph.sources) if s.startswith(f"{SITE}.")]
    assert len(units) == (len(latents) if latents else 24) + 1
    for level in ("node", "edge"):
        a, b = (scores(g, (CLEAN, OTHER, METRIC), method="eap", level=level, quiet=True) for g in (graph, whole))
        mlp = whole.source_index(SITE)
        if level == "node":
            assert torch.allclose(a.values[units].sum(), b.values[mlp], rtol=1e-4, atol=1e-6)
        else:
            reads = b.graph.mask[mlp]
            total = torch.nan_to_num(a.values)[units].sum(0)[reads]
            assert torch.allclose(total, b.values[mlp][reads], rtol=1e-4, atol=1e-5 * float(total.abs().max()))
    x = opened(name).run(CLEAN, capture=[SITE])[SITE]
    basis = dictionary_of(name, SITE).basis(latents)
    constant = basis.decode(torch.zeros(1, 1, len(units) - 1))
    parts = basis.encode(x)[..., None] * dictionary_of(name, SITE).atoms()[list(latents or range(24))]
    rest = x - basis.decode(basis.encode(x))
    assert torch.allclose(parts.sum(-2) + rest + constant, x, atol=1e-5)


def test_graphs_of_other_dictionaries_are_other_graphs() -> None:
    one = dictionary_of("llama", SITE)
    torch.manual_seed(9)
    other = TopK(24, k=5).build(one.spec.d_in, sites_in=(SITE,))
    fewer = TopK(24, k=3).build(one.spec.d_in, sites_in=(SITE,))
    fewer.load_state_dict(other.state_dict())
    names = {fingerprint(d.basis([1, 2])) for d in (one, other, fewer)}
    assert len(names) == 3
    assert fingerprint(one.basis([1, 2])) == fingerprint(one.basis([1, 2]))
    assert fingerprint(one.basis([1, 2])) != fingerprint(one.basis([2, 1]))


@pytest.mark.real_model
def test_steering_smollm2_moves_what_it_says() -> None:
    need("smollm2-135m-instruct")
    model = mn.load("smollm2-135m-instruct")
    site = "resid_post.20"
    torch.manual_seed(0)
    dictionary = TopK(64, k=4).build(576, sites_in=(site,))
    handle = Latent(dictionary, 3)
    prompt = "The weather today is"
    plain = model.generate(prompt, max_new_tokens=6, do_sample=False)
    none = model.generate(prompt, max_new_tokens=6, do_sample=False, edits=handle.steer(0.0, unit="value"))
    far = model.generate(prompt, max_new_tokens=6, do_sample=False, edits=handle.steer(800.0, unit="value"))
    assert none.tokens == plain.tokens and torch.equal(none.logprobs[0], plain.logprobs[0])
    assert far.tokens != plain.tokens


def test_a_dictionary_is_spliced_as_it_is() -> None:
    model = opened("llama")
    dictionary = dictionary_of("llama", "resid_post.1")
    run, kept, gone = (
        model.run(ROWS, ["resid_post.1"], edits=e)
        for e in ([], mn.Splice("resid_post.1", dictionary), mn.Splice("resid_post.1", dictionary, keep_error=False))
    )
    assert torch.allclose(kept["resid_post.1"], run["resid_post.1"], atol=1e-5)
    assert torch.allclose(gone["resid_post.1"], dictionary(run["resid_post.1"]), atol=1e-5)
    assert not torch.allclose(gone["resid_post.1"], run["resid_post.1"], atol=1e-2)
