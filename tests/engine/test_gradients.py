"""Gradients against finite differences, factors against autograd, and flags that are always restored."""

from __future__ import annotations

import pytest
import torch
from opened_models import NAMED, apart, batch_of, double, double_batch, fresh, opened, rows_of
from torch import Tensor, nn

import mechanome as mn
from mechanome.core.errors import BadInput, NotFinite, NotServed, UnknownName

SCORED = [n for n in NAMED if n != "clip"]
METRIC = mn.LogitDiff(5, 7)
EPSILON = 1e-3  # several norms compute in float32 inside a float64 model


def sites_of(name: str) -> list[mn.Site]:
    """Every point that can be differentiated at, in its second layer where it has one."""
    found: dict[tuple[str, str | None], mn.Site] = {}
    model = opened(name)
    for site in model.sites:
        if model.why_not_edit(site) is None and (site.layer in (None, 1) or (site.point, site.tower) not in found):
            found[site.point, site.tower] = site
    return list(found.values())


def along(model: mn.Model, batch: object, site: mn.Site, direction: Tensor) -> float:
    """The metric's derivative along a direction, by central differences."""

    def at(step: float) -> float:
        moved = model.run(batch, edits=mn.Edit(site, "add", direction * step), logits="last").logits
        return float(METRIC(moved.flatten(1) if moved.dim() == 2 else moved[:, -1], torch.arange(1)))

    return (at(EPSILON) - at(-EPSILON)) / (2 * EPSILON)


@pytest.mark.parametrize("name", SCORED)
def test_sites_agree_with_finite_differences(name: str) -> None:
    model, batch, generator = double(name), double_batch(name), torch.Generator().manual_seed(0)
    found = model.grad(METRIC, batch, sites_of(name))
    wrong = {}
    for site, gradient in found.sites.items():
        size = gradient.norm()
        if site.point != "logits":
            assert size > 1e-8, f"{site} has no gradient"
        noise = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
        noise = noise * (gradient != 0)  # what a mask hides has no gradient and no step
        direction = gradient / size + 0.3 * noise / noise.norm()
        exact = float((gradient * direction).sum())
        error = abs(along(model, batch, site, direction) - exact) / float(size)
        if error > 2e-3:
            wrong[str(site)] = error
    assert not wrong


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "gemma2", "mixtral", "bert", "vit", "t5", "mamba", "own_transformer"]
)
def test_parameters_agree_with_finite_differences(name: str) -> None:
    model, batch = double(name), double_batch(name)
    table = dict(model.module.named_parameters())
    names = [n for i, n in enumerate(table) if i % 5 == 0]
    found = model.grad(METRIC, batch, params=names)
    assert list(found.params) == names

    def metric() -> float:
        logits = model.run(batch, logits="last").logits
        return float(METRIC(logits, torch.arange(1)))

    for key, gradient in found.params.items():
        size = float(gradient.norm())
        if size < 1e-6:
            continue
        with torch.no_grad():
            values = []
            for step in (EPSILON, -EPSILON):
                table[key] += gradient / size * step
                values.append(metric())
                table[key] -= gradient / size * step
        assert abs((values[0] - values[1]) / (2 * EPSILON) / size - 1) < 5e-3, key


def test_values_and_gradients_come_from_the_same_pass_and_heads_can_be_asked_for() -> None:
    model, ids = opened("llama"), rows_of("llama")
    found = model.grad(METRIC, ids, ["z.*", "resid_post.1", "pattern.1"])
    run = model.run(ids, capture=["z.*", "resid_post.1"])
    assert apart(found.run["z.1"], run["z.1"]) < 1e-5
    assert torch.equal(found["z.1.h2"], found["z.1"][:, :, 2])
    assert found["pattern.1"].shape == (2, 4, 8, 8)
    assert torch.equal(model.grad(METRIC, ids, "z.1.h2")["z.1.h2"], model.grad(METRIC, ids, "z.1")["z.1"][:, :, 2])
    assert apart(found.metric, METRIC(run.logits[:, -1], torch.arange(2))) < 1e-4
    single = [model.grad(METRIC, ids[i : i + 1], "z.1")["z.1"][0] for i in range(2)]
    assert apart(found["z.1"], torch.stack(single)) < 1e-4, "rows do not mix"


def test_a_gradient_at_one_site_does_not_pass_through_another() -> None:
    """Each site is opened after its edits: the gradient is that of what the model goes on with."""
    model, batch = double("llama"), double_batch("llama")
    alone = model.grad(METRIC, batch, "resid_pre.0")["resid_pre.0"]
    both = model.grad(METRIC, batch, ["resid_pre.0", "resid_pre.1", "z.0"])
    assert apart(both["resid_pre.0"], alone) < 1e-6


@pytest.mark.parametrize("name", NAMED)
def test_each_site_alone_gives_the_same_as_all_together(name: str) -> None:
    if name == "clip":
        pytest.skip("it has no logits")
    model, batch = double(name), double_batch(name)
    together = model.grad(METRIC, batch, sites_of(name))
    for site in together.sites:
        assert apart(model.grad(METRIC, batch, site)[site], together[site]) < 1e-5, site


def test_edits_are_part_of_what_is_differentiated() -> None:
    model, batch = double("llama"), double_batch("llama")
    edit = mn.Scale("resid_post.0", 0.0)
    assert model.grad(METRIC, batch, "resid_pre.0", edits=edit)["resid_pre.0"].abs().max() == 0
    scaled = model.grad(METRIC, batch, "mlp_out.2", edits=mn.Scale("logits", 3.0))["mlp_out.2"]
    assert apart(scaled, 3 * model.grad(METRIC, batch, "mlp_out.2")["mlp_out.2"]) < 1e-6


def test_the_metric_reads_where_it_is_told() -> None:
    model, ids = opened("llama"), rows_of("llama")
    found = model.grad(METRIC, ids, "resid_pre.1", at=3)
    assert found["resid_pre.1"][:, 4:].abs().max() == 0
    assert apart(found.metric, METRIC(model.run(ids).logits[:, 3], torch.arange(2))) < 1e-4
    padded = model.encode([ids[0].tolist(), ids[1, :5].tolist()])
    short = model.grad(METRIC, ids[1:, :5], "resid_pre.1")["resid_pre.1"]
    assert apart(model.grad(METRIC, padded, "resid_pre.1")["resid_pre.1"][1, :5], short[0]) < 1e-4


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_only_the_logits_that_the_metric_reads_are_made(name: str) -> None:
    model, ids = opened(name), rows_of(name).tolist()
    unembed = model.architecture.unembed
    assert unembed is not None
    made: list[int] = []
    handle = unembed.module.register_forward_hook(lambda module, args, out: made.append(out.shape[1]))
    try:
        model.grad(METRIC, ids, "z.1")
        model.grad(METRIC, [ids[0], ids[1][:6]], "z.1")
        model.grad(METRIC, ids, "z.1", at=2)
        model.grad(METRIC, ids, "logits")
        model.grad(METRIC, ids, ["z.1", f"path:{unembed.path}"])
    finally:
        handle.remove()
    assert made == [1, 3, 6, 8, 8]


def test_values_at_path_sites_are_kept_beside_their_gradients() -> None:
    model, ids = opened("llama"), rows_of("llama")
    site = "path:model.layers.1.post_attention_layernorm:in"
    found = model.grad(METRIC, ids, [site, "z.1"])
    assert apart(found.run[site], model.run(ids, capture="resid_mid.1")["resid_mid.1"]) < 1e-5
    assert found[site].shape == found.run[site].shape


LINEAR = {
    "llama": ["model.layers.1.mlp.down_proj", "model.layers.0.self_attn.q_proj"],
    "gpt2": ["transformer.h.1.mlp.c_fc", "transformer.h.0.attn.c_attn"],
    "bert": ["bert.encoder.layer.1.attention.self.key"],
    "opt": ["model.decoder.layers.1.fc1"],
    "vit": ["vit.layers.1.mlp.fc1", "classifier"],
    "own_transformer": ["stack.1.ff.2"],
}


@pytest.mark.parametrize("name", LINEAR)
def test_factors_rebuild_the_parameter_gradient(name: str) -> None:
    model, batch = opened(name), batch_of(name)
    for module in LINEAR[name]:
        weight = f"{module}.weight"
        factors = model.grad(METRIC, batch, modules=[module]).factors[module]
        exact = model.grad(METRIC, batch, params=[weight]).params[weight]
        each = model.grad(METRIC, batch, params=[weight], per_example=True).params[weight]
        turn = isinstance(model.module.get_submodule(module), nn.Linear)  # the other kind stores [in, out]
        assert exact.abs().max() > 0
        assert apart(factors.gradient().T if turn else factors.gradient(), exact) < 1e-4
        rows = factors.gradient(per_example=True)
        assert apart(rows.transpose(1, 2) if turn else rows, each) < 1e-4
        assert apart(each.sum(0), exact) < 1e-4


def test_per_example_gradients_use_each_examples_own_answer() -> None:
    model, ids = opened("llama"), rows_of("llama")
    metric, name = mn.Logit([5, 9]), "model.layers.1.mlp.down_proj.weight"
    found = model.grad(metric, ids, params=[name], per_example=True).params[name]
    for row, answer in enumerate([5, 9]):
        alone = model.grad(mn.Logit(answer), ids[row : row + 1], params=[name]).params[name]
        assert apart(found[row], alone) < 1e-4


def test_edits_with_one_value_per_row_serve_per_example_gradients() -> None:
    model, ids, name = opened("llama"), rows_of("llama"), "model.layers.2.mlp.down_proj.weight"
    edit = mn.Add("resid_post.0", torch.randn(2, 32, generator=torch.Generator().manual_seed(0)))
    each = model.grad(METRIC, ids, params=[name], per_example=True, edits=edit).params[name]
    assert apart(each.sum(0), model.grad(METRIC, ids, params=[name], edits=edit).params[name]) < 1e-4
    only = mn.Scale("resid_post.0", 0.5, rows=[1])
    each = model.grad(METRIC, ids, params=[name], per_example=True, edits=only).params[name]
    assert apart(each.sum(0), model.grad(METRIC, ids, params=[name], edits=only).params[name]) < 1e-4


def test_flags_are_restored_after_success_and_after_exceptions() -> None:
    model, ids = fresh("gpt2"), rows_of("gpt2")
    flags = [i % 3 == 0 for i, _ in enumerate(model.module.parameters())]
    for p, flag in zip(model.module.parameters(), flags):
        p.requires_grad_(flag)

    def check() -> None:
        assert [p.requires_grad for p in model.module.parameters()] == flags
        assert all(p.grad is None for p in model.module.parameters())

    model.grad(METRIC, ids, "z.1")
    check()
    model.grad(METRIC, ids, params=["transformer.wte.weight"])
    check()
    for broken in (
        lambda: model.grad(lambda x, rows: x.sum(), ids, "z.1"),
        lambda: model.grad(lambda x, rows: x[:, 0] / 0, ids, "z.1"),
        lambda: model.grad(METRIC, ids, "z.1", edits=mn.Custom("z.1", lambda x: 1 / 0)),
        lambda: model.grad(METRIC, ids, "z.1", rules=["detach_nrom"]),
        lambda: model.grad(METRIC, ids),
    ):
        with pytest.raises((BadInput, NotFinite, ZeroDivisionError, UnknownName)):
            broken()
        check()
    assert torch.is_grad_enabled()


def test_refusals() -> None:
    model, ids = opened("gpt2"), rows_of("gpt2")
    with pytest.raises(UnknownName, match="mlp"):
        model.grad(METRIC, ids, params=["transformer.h.1.mlp.weight"])
    with pytest.raises(UnknownName, match="c_fc"):
        model.grad(METRIC, ids, modules=["transformer.h.1.mlp.c_fx"])
    with pytest.raises(NotServed, match="not linear"):
        model.grad(METRIC, ids, modules=["transformer.h.1.ln_1"])
    with pytest.raises(NotServed, match="no logits"):
        opened("clip").grad(METRIC, batch_of("clip"), "vision/z.1")
    with pytest.raises(NotServed, match="derived"):
        model.grad(METRIC, ids, "head_out.1")


def test_checkpointed_blocks_are_refused_in_training_and_exact_in_evaluation() -> None:
    model, ids = fresh("llama"), rows_of("llama")
    exact = model.grad(METRIC, ids, "z.1", edits=mn.Scale("z.1", 0.5))["z.1"]
    model.module.gradient_checkpointing_enable()
    assert apart(model.grad(METRIC, ids, "z.1", edits=mn.Scale("z.1", 0.5))["z.1"], exact) < 1e-6
    model.module.train()
    with pytest.raises(NotServed, match="checkpointing"):
        model.grad(METRIC, ids, "z.1", edits=mn.Scale("z.1", 0.5))
    model.module.eval()


def test_metrics_by_hand() -> None:
    logits = torch.tensor([[1.0, 2.0, 4.0], [0.0, 3.0, -1.0]])
    rows = torch.arange(2)
    assert mn.Logit(1)(logits, rows).tolist() == [2.0, 3.0]
    assert mn.Logit([2, 0])(logits, rows).tolist() == [4.0, 0.0]
    assert mn.Logit([2, 0])(logits[1:], torch.tensor([1])).tolist() == [0.0]
    assert mn.LogitDiff(2, [0, 1])(logits, rows).tolist() == [3.0, -4.0]
    assert torch.allclose(mn.LogProb(2)(logits, rows), logits.log_softmax(-1)[:, 2])
    with pytest.raises(BadInput, match="same token"):
        mn.LogitDiff(3, 3)
    with pytest.raises(BadInput):
        mn.Logit([])(logits, rows)
