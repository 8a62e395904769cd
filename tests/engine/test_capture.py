"""Reading: it changes nothing, gives the same twice, names its axes, and holds the values the model went on with."""

from __future__ import annotations

import pytest
import torch
from opened_models import NAMED, OWN, apart, batch_of, fresh, opened, outputs, real_apart, rows_of, sites_of

import mechanome as mn
from mechanome.core.errors import BadInput, NotServed, UnknownSite
from mechanome.engine.points import POINTS


@pytest.mark.parametrize("name", NAMED)
def test_reading_everything_changes_nothing(name: str) -> None:
    model, batch = opened(name), batch_of(name)
    native = [s for s in sites_of(name) if not s.point.endswith(("scores", "pattern"))]
    before = outputs(model, batch)
    model.run(batch, capture=native)
    run = model.run(batch, capture=native)
    if run.logits is not None:
        assert torch.equal(run.logits, before)
        explicit = model.run(batch, capture=sites_of(name)).logits
        assert real_apart(model, batch, mn.Site("logits"), explicit, before) < 2e-6
    assert torch.equal(outputs(model, batch), before), "a pass leaves nothing behind"


@pytest.mark.parametrize("name", NAMED)
def test_twice_is_once_and_one_by_one_is_together(name: str) -> None:
    model, batch = opened(name), batch_of(name)
    sites = sites_of(name)
    together, again = model.run(batch, capture=sites), model.run(batch, capture=sites)
    assert list(together.sites) == sites
    for site in sites:
        assert torch.equal(together[site], again[site]), site
    some = sites[:: max(1, len(sites) // 12)]
    for site in some:
        alone = model.run(batch, capture=site)
        assert real_apart(model, batch, site, alone.captured[site], together.captured[site]) < 5e-6, site


@pytest.mark.parametrize("name", NAMED)
def test_axes_name_every_dimension(name: str) -> None:
    model, batch = opened(name), batch_of(name)
    run = model.run(batch, capture=sites_of(name))
    for site in run.sites:
        value, point = run[site], POINTS[site.point]
        assert run.axes(site) == point.axes
        if site.point != "logits":
            assert value.dim() == len(point.axes), site
        if site not in run.sites[::7]:
            continue
        alone = model.run(batch, capture=site)
        for axis in point.coordinates:
            part = mn.Site(site.point, site.layer, tower=site.tower, **{axis: 1})
            index = run.axes(site).index(axis if axis in point.axes else point.axes[-1])
            assert torch.equal(alone[part], alone[site].select(index, 1)), part
            assert run.axes(part) == tuple(a for i, a in enumerate(point.axes) if i != index)
            assert torch.equal(model.run(batch, capture=part)[part], alone[part])


@pytest.mark.parametrize("name", [n for n in NAMED if n not in ("mamba", "own_transformer")])
def test_the_stream_is_the_models_own_hidden_states(name: str) -> None:
    model, batch = opened(name), batch_of(name)
    core = model.module.get_base_model() if hasattr(model.module, "get_base_model") else model.module
    core.config.output_hidden_states = False
    with torch.no_grad():
        output = model.module(**model.arguments(batch), output_hidden_states=True)
    found = [k for k in output if k.endswith("hidden_states") and output[k] is not None]
    if not found:
        pytest.skip("this family returns no hidden states")
    towers = {"encoder_hidden_states": "encoder", "decoder_hidden_states": "decoder", "hidden_states": None}
    for key in found:
        tower = towers[key]
        for layer in range(len(model.architecture.tower(tower).blocks)):
            site = mn.Site("resid_pre", layer, tower=tower)
            assert torch.equal(model.run(batch, capture=site)[site], output[key][layer]), (key, layer)


def test_a_head_out_is_its_z_through_the_output_projection() -> None:
    for name in ("gpt2", "llama", "own_transformer"):
        model = opened(name)
        ids = rows_of(name)
        run = model.run(ids, capture=["head_out.1", "attn_out.1", "z.1"])
        assert run["head_out.1"].shape == (2, 8, 4, 32)
        assert torch.equal(run["head_out.1"][:, :, 2], run["head_out.1.h2"])
        tap = model.tap("z.1").module
        with torch.no_grad():
            bias = tap(torch.zeros(1, run["z.1"].flatten(-2).shape[-1]))
        assert apart(run["head_out.1"].sum(2) + bias, run["attn_out.1"]) < 1e-5
        assert "head_out.1" in run and "head_out.2" not in run


def test_what_is_captured_can_be_moved_and_keeps_its_graph_when_asked() -> None:
    model, ids = opened("gpt2"), rows_of("gpt2")
    assert model.run(ids, capture="z.1", to=torch.float64)["z.1"].dtype == torch.float64
    run = model.run(ids, capture="z.1", keep_graph=True)
    assert run["z.1"].requires_grad and run.logits.requires_grad
    weight = model.module.transformer.h[1].attn.c_attn.weight
    for loss in (run["z.1"].sum(), run.logits.sum()):
        assert torch.autograd.grad(loss, weight, retain_graph=True)[0].abs().max() > 0
    assert not model.run(ids, capture="z.1")["z.1"].requires_grad


def test_logits_as_asked() -> None:
    for name in ("gpt2", "bert", "own_transformer"):  # with and without logits_to_keep
        model, ids = opened(name), rows_of(name)
        whole = model.run(ids).logits
        assert apart(model.run(ids, logits="last").logits, whole[:, -1]) < 1e-6
        assert model.run(ids, logits=False, capture="resid_post.0").logits is None
        assert torch.equal(model.run(ids, logits="last", capture="logits")["logits"], whole)


def test_paths_read_any_module_on_both_sides_with_the_users_axes() -> None:
    model, ids = fresh("gpt2", axes={"path:transformer.h.1.mlp.c_fc": ("batch", "pos", "neuron")}), rows_of("gpt2")
    run = model.run(ids, capture=["path:transformer.h.1.mlp.c_fc", "path:transformer.h.1.mlp.c_proj:in", "mlp_act.1"])
    assert run.axes("path:transformer.h.1.mlp.c_fc") == ("batch", "pos", "neuron")
    assert run.axes("path:transformer.h.1.mlp.c_proj:in") == ("batch", "pos", "feature")
    assert torch.equal(run["path:transformer.h.1.mlp.c_proj:in"], run["mlp_act.1"])


def test_a_module_that_runs_several_times_is_stacked_by_path_and_refused_by_name() -> None:
    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = opened_inner()

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.inner(input_ids) + self.inner(input_ids.flip(1))

    def opened_inner() -> torch.nn.Module:
        return fresh("own_transformer").module

    layout = mn.Layout(**{**vars(OWN), "blocks": "inner.stack", "embed": "inner.tok", "ln_final": None,
                          "unembed": None})  # fmt: skip
    ids = rows_of("own_transformer")
    model = mn.load(Twice(), layout=layout, example=ids)
    assert "ran 2 times" in str(model.why_not("z.1"))
    run = model.run(ids, capture="path:inner.stack.1")
    assert run["path:inner.stack.1"].shape == (2, 2, 8, 32)
    single = mn.load(model.module.inner, layout=OWN, example=ids)
    assert torch.equal(run["path:inner.stack.1"][:, 1], single.run(ids.flip(1), capture="resid_post.1")["resid_post.1"])


def test_what_was_not_captured_is_refused_with_the_nearest() -> None:
    run = opened("gpt2").run(rows_of("gpt2"), capture=["z.1", "resid_post.2.n3"])
    for site in ("z.2", "z.1.h4", "resid_post.2", "head_out.2"):
        with pytest.raises(UnknownSite) as refusal:
            run[site]
        assert refusal.value.fix
    assert run["resid_post.2.n3"].shape == (2, 8)
    assert "z.1.h3" in run and "z.2" not in run
    assert "z.1" in repr(run)


def test_a_site_the_pass_never_reaches_is_refused() -> None:
    model = opened("whisper")
    features = batch_of("whisper").arguments
    with torch.no_grad():
        encoded = model.module.model.encoder(features["input_features"])
    inputs = {"encoder_outputs": (encoded[0],), "decoder_input_ids": features["decoder_input_ids"]}
    with pytest.raises(NotServed, match="never came there"):
        model.run(inputs, capture="encoder/z.1")
    assert model.run(inputs, capture="decoder/z.1")["decoder/z.1"].shape[0] == 3


def test_positions_that_do_not_exist_are_refused() -> None:
    model, ids = opened("gpt2"), rows_of("gpt2")
    for pos in (8, -9, [0, 8], True, [[0]]):
        with pytest.raises(BadInput):
            model.run(ids, capture="z.1", pos=pos)
