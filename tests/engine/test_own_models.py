"""Networks that know nothing of transformers: path sites for any module, a layout for a full set of names."""

from __future__ import annotations

import pytest
import torch
from opened_models import OWN, apart, fresh, inputs_of, opened, rows_of
from torch import Tensor

import mechanome as mn
from families import FAMILIES, build
from mechanome.core.errors import BadInput, NotServed, UnknownSite

METRIC = mn.LogitDiff(5, 7)
LAYERS = [f"path:layers.{i}" for i in range(3)]
AXES = dict.fromkeys(LAYERS, ("batch", "time", "unit")) | {"path:head:in": ("batch", "time", "unit")}


def lstm() -> mn.Model:
    module = build("lstm")
    return mn.load(module, axes=AXES, example=FAMILIES["lstm"].inputs(module, 9))


def test_an_lstm_through_paths() -> None:
    model, inputs = lstm(), inputs_of("lstm")
    run = model.run(inputs, capture=[*LAYERS, "path:layers.1:in", "path:head:in", "path:embedding"])
    assert run.axes("path:layers.1") == ("batch", "time", "unit")
    assert run.axes("path:embedding") == ("batch", "pos", "feature")
    module = model.module
    with torch.no_grad():
        x = module.embedding(inputs["tokens"])
        assert torch.equal(run["path:embedding"], x)
        for i, layer in enumerate(module.layers):
            if i == 1:
                assert torch.equal(run["path:layers.1:in"], x)
            y = layer(x)[0]
            assert torch.equal(run[f"path:layers.{i}"], y)
            x = x + y
        assert torch.equal(run["path:head:in"], module.norm(x))


def test_an_lstm_is_edited_and_differentiated_at_its_paths() -> None:
    model, inputs = lstm(), inputs_of("lstm")
    before = model.run(inputs).logits
    after = model.run(inputs, edits=mn.Ablate("path:layers.1", pos=4, rows=[1])).logits
    assert torch.equal(after[[0, 2]], before[[0, 2]]) and torch.equal(after[1, :4], before[1, :4])
    assert apart(after[1, 4:], before[1, 4:]) > 1e-3
    donor = model.run(inputs, capture="path:layers.1")
    held = model.run(inputs, edits=mn.Patch("path:layers.1", donor)).logits
    assert apart(held, before) < 1e-6
    swapped = model.run(
        inputs, capture="path:layers.1", edits=mn.Patch("path:layers.1", donor, rows=[0], from_rows=[2])
    )
    assert torch.equal(swapped["path:layers.1"][0], donor["path:layers.1"][2])
    found = model.grad(METRIC, inputs, "path:layers.1")["path:layers.1"]
    direction = found / found.norm()
    moved = [
        METRIC(model.run(inputs, edits=mn.Add("path:layers.1", direction * step)).logits[:, -1], torch.arange(3)).sum()
        for step in (1e-2, -1e-2)
    ]
    assert abs((moved[0] - moved[1]) / 2e-2 / found.norm() - 1) < 1e-2


def test_what_an_lstm_cannot_serve_is_refused() -> None:
    model = lstm()
    with pytest.raises(NotServed, match="describe it by a Layout"):
        model.run(inputs_of("lstm"), capture="resid_post.1")
    with pytest.raises(UnknownSite, match=r"layers\.0"):
        model.run(inputs_of("lstm"), capture="path:layers.3")
    assert [str(s) for s in model.sites] == ["logits"]


def test_an_lstm_under_a_layout_has_a_stream_that_is_not_additive() -> None:
    module = build("lstm")
    layout = mn.Layout("layers", {}, "embedding", "norm", "head", causal=True, additive=False)
    model = mn.load(module, layout=layout, example=FAMILIES["lstm"].inputs(module, 9))
    run = model.run(inputs_of("lstm"), capture=["resid_pre.1", "resid_post.1", "ln_final", "embed"])
    assert torch.equal(run["resid_post.1"], lstm().run(inputs_of("lstm"), capture="path:layers.1")["path:layers.1"])
    assert run["ln_final"].shape == run["embed"].shape == (3, 9, 32)
    assert not model.serves("z.1") and not model.serves("mlp_out.1") and model.report.additive == {}


def test_a_convolutional_network_under_a_layout() -> None:
    model, inputs = opened("convnet"), inputs_of("convnet")
    run = model.run(inputs, capture=["resid_pre.*", "resid_post.*", "path:blocks.1"])
    raw = run["path:blocks.1"]
    assert run.axes("path:blocks.1") == ("batch", "channel", "height", "width")
    assert run.axes("resid_post.1") == ("batch", "pos", "d_model")
    assert torch.equal(run["resid_post.1"], raw.flatten(2).transpose(1, 2)), "positions are pixels, features channels"
    assert torch.equal(run["resid_post.1"], run["resid_pre.2"])
    edited = model.run(inputs, capture="path:blocks.1", edits=mn.Add("resid_post.1.n3", 1.0, pos=5, rows=[2]))
    expected = raw.clone()
    expected[2, 3, 5 // raw.shape[3], 5 % raw.shape[3]] += 1
    assert apart(edited["path:blocks.1"], expected) < 1e-6
    before = model.run(inputs).logits
    assert torch.equal(edited.logits[:2], before[:2]) and apart(edited.logits[2], before[2]) > 1e-4
    channel = model.run(inputs, edits=mn.Ablate("resid_post.1.n3")).logits
    assert apart(channel, before) > 1e-4
    gradient = model.grad(METRIC, inputs, "resid_pre.2")["resid_pre.2"]
    assert gradient.shape == run["resid_pre.2"].shape and gradient.abs().max() > 0


def test_sweeping_a_convolutional_network_takes_the_plain_loop() -> None:
    model, inputs = opened("convnet"), inputs_of("convnet")
    other = {"pixel_values": inputs["pixel_values"].flip(0)}
    found = mn.activation_patching(model, inputs, other, "resid_pre", METRIC, layers=[2], over="layer", quiet=True)
    assert found.method == "naive" and "feature map" in found.notes[0]
    assert apart(found.values[:, 0, 0], found.source) < 1e-4


def test_a_custom_transformer_fully() -> None:
    """Every value against its own modules, called by hand."""
    model, ids = opened("own_transformer"), rows_of("own_transformer")
    module = model.module
    run = model.run(ids, capture=["*"])
    block = module.stack[1]
    with torch.no_grad():
        x = run["resid_pre.1"]
        assert torch.equal(run["ln1.1"], block.pre_attn(x))
        assert apart(run["q_pre.1"].flatten(2), block.attn.q(run["ln1.1"])) < 1e-6
        assert run["k_pre.1"].shape == (2, 8, 2, 12)
        visible = torch.ones(8, 8).tril().bool()
        q, k, v = (
            f(run["ln1.1"]).unflatten(-1, (-1, 12)).transpose(1, 2) for f in (block.attn.q, block.attn.k, block.attn.v)
        )
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        pattern = (q @ k.transpose(-1, -2) / 12**0.5).masked_fill(~visible, float("-inf")).softmax(-1)
        assert apart(run["z.1"].transpose(1, 2), pattern @ v) < 1e-5
        assert apart(run["attn_out.1"], block.attn.o(run["z.1"].flatten(2))) < 1e-6
        assert apart(run["resid_mid.1"], x + run["attn_out.1"]) < 1e-6
        assert apart(run["ln2.1"], block.pre_ff(run["resid_mid.1"])) < 1e-6
        assert apart(run["mlp_up.1"], block.ff[0](run["ln2.1"])) < 1e-6
        assert apart(run["mlp_act.1"], block.ff[1](run["mlp_up.1"])) < 1e-6
        assert apart(run["mlp_out.1"], block.ff[2](run["mlp_act.1"])) < 1e-6
        assert apart(run["resid_post.1"], run["resid_mid.1"] + run["mlp_out.1"]) < 1e-6
        assert torch.equal(run["ln_final"], module.out_norm(run["resid_post.2"]))
        assert torch.equal(run["embed"], module.tok(ids))
        assert apart(run.logits, module.unembed(run["ln_final"])) < 1e-6
    head = model.run(ids, capture="z.1", edits=mn.Ablate("z.1.h3", pos="last"))["z.1"]
    expected = run["z.1"].clone()
    expected[:, -1, 3] = 0
    assert torch.equal(head, expected)


class Inline(torch.nn.Module):
    """Attention written into the block: no module is the attention, yet its projections have names."""

    def __init__(self) -> None:
        super().__init__()
        self.n1, self.n2 = torch.nn.LayerNorm(24), torch.nn.LayerNorm(24)
        self.to_q, self.to_k, self.to_v, self.to_out = (torch.nn.Linear(24, 24) for _ in range(4))
        self.up, self.down = torch.nn.Linear(24, 48), torch.nn.Linear(48, 24)

    def forward(self, x: Tensor) -> Tensor:
        h = self.n1(x)
        q, k, v = (f(h).unflatten(-1, (3, 8)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.to_out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(self.up(self.n2(x)).relu())


def test_attention_written_into_the_block() -> None:
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Embedding(90, 24), torch.nn.Sequential(Inline(), Inline()))
    roles = {
        "ln1": "n1", "q_proj": "to_q", "k_proj": "to_k", "v_proj": "to_v", "o_proj": "to_out", "attn_out": "to_out",
        "ln2": "n2", "up_proj": "up", "down_proj": "down", "mlp_out": "down",
    }  # fmt: skip
    ids = {"input": rows_of("gpt2")}
    model = mn.load(module, layout=mn.Layout("1", roles, "0", n_heads=3, causal=True), example=ids)
    points = {s.point for s in model.sites}
    assert points == {
        "embed", "resid_pre", "ln1", "q_pre", "k_pre", "z", "head_out", "attn_out", "resid_mid", "ln2", "mlp_up",
        "mlp_act", "mlp_out", "resid_post", "logits",
    }  # fmt: skip
    run = model.run(ids, capture=["z.1", "attn_out.1", "mlp_act.1"])
    with torch.no_grad():
        assert apart(run["attn_out.1"], module[1][1].to_out(run["z.1"].flatten(2))) < 1e-6
    assert "has no attention" in str(model.why_not("pattern.1"))


def test_sweeps_of_a_custom_transformer_are_wavefronts() -> None:
    model, clean = opened("own_transformer"), rows_of("own_transformer", 1, 8)
    other = clean.clone()
    other[0, 3] = 11
    for point in ("resid_pre", "z", "mlp_act", "resid_mid", "k_pre"):
        fast = mn.activation_patching(model, clean, other, point, METRIC, quiet=True)
        naive = mn.activation_patching(model, clean, other, point, METRIC, quiet=True, method="naive")
        assert fast.method == "wavefront" and apart(fast.values, naive.values) < 1e-5


def test_it_is_loaded_without_an_example_but_not_tested() -> None:
    model = mn.load(build("own_transformer"), layout=OWN)
    assert model.report.passes == 0
    ids = rows_of("own_transformer")
    assert torch.equal(model.run(ids, capture="z.1")["z.1"], opened("own_transformer").run(ids, capture="z.1")["z.1"])


def test_outputs_that_are_no_tensor_are_refused_by_side() -> None:
    class Pair(torch.nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"a": x}

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair, self.lin = Pair(), torch.nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.lin(self.pair(x)["a"])

    model = mn.load(Net(), check="off")
    inputs = {"x": torch.randn(2, 3, 4)}
    with pytest.raises(NotServed, match="not a tensor"):
        model.run(inputs, capture="path:pair")
    assert model.run(inputs, capture="path:pair:in")["path:pair:in"].shape == (2, 3, 4)
    assert model.run(inputs, edits=mn.Ablate("path:lin:in")).logits.std(0).max() < 1e-6


def test_a_module_called_several_times_is_edited_by_its_calls() -> None:
    class Loop(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = torch.nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = self.cell(x).tanh()
            return x

    torch.manual_seed(0)
    model, inputs = mn.load(Loop(), check="off"), {"x": torch.randn(2, 3, 4)}
    plain = model.run(inputs, capture="path:cell")
    assert plain["path:cell"].shape == (2, 3, 3, 4)
    edit = mn.Edit("path:cell", "set", 0.0, mn.Where(steps=[1]))
    found = model.run(inputs, capture="path:cell", edits=edit)["path:cell"]
    assert torch.equal(found[:, 0], plain["path:cell"][:, 0]) and found[:, 1].abs().max() == 0
    assert apart(found[:, 2], plain["path:cell"][:, 2]) > 1e-3
    with pytest.raises(NotServed, match="3 times"):
        model.grad(lambda x, rows: x.sum(1), inputs, "path:cell")


def test_inputs_need_a_tensor() -> None:
    with pytest.raises(BadInput, match="no tensor"):
        fresh("own_transformer").run({"attention_mask": 3})
