"""Contribution weights of real architectures: what is explained is what attention writes, whatever the family."""

from __future__ import annotations

import pytest
import torch
from head_models import BOTH_WAYS, CAUSAL, IDS, apart, opened

import mechanome as mn
from families import build
from mechanome.core import BadInput, NotServed, TooFewRows, UnknownName
from mechanome.heads import contribution, contributions, contributions_of, read_attention
from mechanome.heads.aggregates import mean_over_queries


@pytest.mark.parametrize("name", CAUSAL + BOTH_WAYS)
def test_shares_are_those_of_what_each_head_writes(name: str) -> None:
    """Rebuilt from the engine's own head outputs: the parts are the pattern times v W_O, the target is z W_O."""
    model = opened(name)
    found = contributions(model, IDS)
    for i, layer in enumerate(found.layers):
        run = model.run(IDS, capture=[f"head_out.{layer}", f"v.{layer}", f"pattern.{layer}"])
        target, pattern = run[f"head_out.{layer}"][0].transpose(0, 1), run[f"pattern.{layer}"][0]
        weight = model.weight(f"W_O.{layer}").value
        for head in range(pattern.shape[0]):
            kv = head // (pattern.shape[0] // run[f"v.{layer}"].shape[2])
            parts = pattern[head][..., None] * (run[f"v.{layer}"][0, :, kv] @ weight[head])
            expected = torch.einsum("qkd,qd->qk", parts, target[head]) / target[head].square().sum(-1, keepdim=True)
            whole = ~found.clipped[i, head]
            assert apart(found.values[i, head][whole], expected[whole]) < 2e-3
    total = found.values.sum(-1)
    assert torch.allclose(total[~found.clipped], torch.ones(()), atol=5e-3)
    assert found.axes == ("layer", "head", "query", "key")


@pytest.mark.parametrize("name", CAUSAL)
def test_the_layer_form_explains_what_the_layer_adds(name: str) -> None:
    model = opened(name)
    layer_form, joint = contributions(model, IDS, "layer"), contributions(model, IDS, "joint")
    assert layer_form.axes == ("layer", "query", "key")
    assert torch.allclose(joint.values.sum(1), layer_form.values, atol=1e-4)
    assert torch.allclose(joint.values.sum(-1), joint.importance, atol=1e-4)
    reading = read_attention(model, IDS, stream=True)
    for part in reading.layers:
        if part.normed_after:
            continue
        run = model.run(IDS, capture=f"attn_out.{part.layer}")
        values = part.values.repeat_interleave(part.pattern.shape[0] // part.values.shape[0], 0)
        written = torch.einsum("hqk,hkd,hdm->qm", part.pattern, values, part.output_weight)
        bias = model.weight(f"b_O.{part.layer}").value if _biased(model, part.layer) else 0.0
        assert apart(written + bias, run[f"attn_out.{part.layer}"][0]) < 1e-5


def _biased(model: mn.Model, layer: int) -> bool:
    try:
        return bool(model.weight(f"b_O.{layer}").value.abs().sum() > 0)
    except NotServed:
        return False


@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "gpt_neox"])
def test_with_the_residual_stream_everything_sums_to_one(name: str) -> None:
    found = contributions(opened(name), IDS, "layer", "residual")
    assert found.stream is not None
    assert torch.allclose(found.values.sum(-1) + found.stream, torch.ones(()), atol=1e-3)
    assert (found.values.sum(-1) - 1).abs().max() > 0.1
    # In the first layer, by hand: <x, x + o> / ||x + o||^2.
    reading = read_attention(opened(name), IDS, stream=True).layers[0]
    assert reading.stream is not None
    values = reading.values.repeat_interleave(reading.pattern.shape[0] // reading.values.shape[0], 0)
    target = reading.stream + torch.einsum("hqk,hkd,hdm->qm", reading.pattern, values, reading.output_weight)
    assert torch.allclose(found.stream[0], (reading.stream * target).sum(-1) / target.square().sum(-1), atol=1e-4)


def test_value_width_of_latent_attention_is_its_own() -> None:
    reading = read_attention(opened("deepseek_v3"), IDS)
    assert reading.layers[0].values.shape == (4, 8, 10)
    assert reading.layers[0].output_weight.shape == (4, 10, 32)


def test_grouped_heads_read_their_own_values() -> None:
    model = opened("llama")
    reading = read_attention(model, IDS)
    assert reading.layers[0].values.shape[0] == 2
    assert reading.layers[0].pattern.shape[0] == 4


def test_fewer_queries_are_rows_of_all() -> None:
    model = opened("mistral")
    every = contributions(model, IDS)
    some = contributions(model, IDS, queries=[2, -1])
    assert some.queries == (2, 7)
    assert torch.allclose(some.values, every.values[:, :, [2, 7]], atol=1e-5)
    assert torch.allclose(some.of(-1), every.of(7), atol=1e-5)
    with pytest.raises(BadInput, match="not read"):
        some.of(3)
    with pytest.raises(BadInput, match="8 tokens"):
        every.of(8)


def test_some_layers_alone() -> None:
    model = opened("gpt2")
    alone, every = contributions(model, IDS, layers=[2]), contributions(model, IDS)
    assert alone.layers == (2,)
    assert torch.allclose(alone.values[0], every.values[2], atol=1e-5)


def test_value_space_is_the_formula_before_the_output_map() -> None:
    model = opened("llama")
    found = contributions(model, IDS, "layer", space="value")
    part = read_attention(model, IDS).layers[1]
    assert torch.allclose(found.values[1], contribution(part.pattern, part.values, form="layer").values, atol=1e-5)
    assert apart(found.values, contributions(model, IDS, "layer").values) > 0.05
    assert torch.allclose(found.importance, contributions(model, IDS).importance, atol=1e-5)


def test_means_over_layers_and_heads() -> None:
    found = contributions(opened("llama"), IDS)
    row = found.values[:, :, -1]
    assert torch.allclose(found.of(-1), row.mean((0, 1)))
    assert torch.allclose(found.of(-1, "absolute"), row.abs().mean((0, 1)))
    assert torch.allclose(found.of(-1, "normalized"), (row / row.abs().sum(-1, keepdim=True)).mean((0, 1)))
    assert found.of(-1).sum() == pytest.approx(1.0, abs=1e-3)
    assert found.of(-1, "absolute").sum() > 1
    with pytest.raises(UnknownName, match="signed"):
        found.of(-1, "signd")  # type: ignore[arg-type]


def test_the_first_query_is_left_out_of_means_in_causal_models() -> None:
    shares = torch.tensor([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.5, 0.2, 0.3]])
    causal = mean_over_queries(shares, (0, 1, 2), causal=True)
    assert torch.allclose(causal, torch.tensor([0.375, 0.475, 0.3]))
    assert torch.allclose(mean_over_queries(shares, (0, 1, 2), causal=False), shares.mean(0))
    with pytest.raises(TooFewRows, match="first position"):
        mean_over_queries(shares[:1], (0,), causal=True)
    found = contributions(opened("llama"), IDS)
    assert torch.allclose(found.over_queries()[..., 0], found.values[:, :, 1:, 0].mean(-1), atol=1e-6)
    both = contributions(opened("bert"), IDS)
    assert torch.allclose(both.over_queries(), both.values.mean(2), atol=1e-6)


def test_clipped_cells_are_counted_without_the_first_query() -> None:
    found = contributions(opened("llama"), IDS, eps=0.9)
    assert found.clipped[:, :, 1:].any()
    assert not found.clipped[:, :, 0].any()  # one part cannot cancel
    assert found.clipped_share == pytest.approx(float(found.clipped[:, :, 1:].float().mean()))


def test_what_is_not_a_sum_is_refused() -> None:
    with pytest.raises(NotServed, match="norm stands between"):
        contributions(opened("gemma2"), IDS, target="residual")
    with pytest.raises(BadInput, match="after W_O"):
        contributions(opened("llama"), IDS, target="residual", space="value")
    with pytest.raises(BadInput, match="stream=True"):
        contributions_of(read_attention(opened("llama"), IDS), target="residual")
    with pytest.raises(UnknownName, match="residual"):
        contributions(opened("llama"), IDS, target="resid")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="one prompt at a time"):
        contributions(opened("llama"), IDS.repeat(2, 1))
    with pytest.raises(BadInput, match="padding"):
        mask = torch.tensor([[1] * 6 + [0] * 2])
        contributions(opened("llama"), {"input_ids": IDS, "attention_mask": mask})
    with pytest.raises(NotServed):
        contributions(opened("mamba"), IDS)
    with pytest.raises(NotServed):
        contributions(opened("jamba"), IDS, layers=[0, 1])
    assert contributions(opened("jamba"), IDS).layers == (1, 3)
    with pytest.raises(NotServed):
        contributions(opened("bloom"), IDS)


def test_a_gate_before_the_output_projection_is_noticed() -> None:
    module = build("llama")
    module.model.layers[1].self_attn.o_proj.register_forward_pre_hook(lambda _, args: (args[0] * args[0].sigmoid(),))
    model = mn.load(module, check="off")
    with pytest.raises(NotServed, match="layer 1"):
        contributions(model, IDS)
    contributions(model, IDS, layers=[0, 2])


def test_the_table_names_tokens() -> None:
    table = contributions(opened("llama"), IDS).table()
    assert table.columns == ("position", "token", "signed", "absolute", "normalized")
    assert [row[1] for row in table.rows] == [str(int(i)) for i in IDS[0]]
    assert sum(row[2] for row in table.rows) == pytest.approx(1.0, abs=1e-3)


def test_it_is_shown_in_one_line() -> None:
    shown = repr(contributions(opened("llama"), IDS))
    assert shown.startswith("Contributions(") and "8 query, 8 key" in shown and "head form" in shown
    assert len(shown) < 120 and "\n" not in shown
