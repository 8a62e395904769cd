"""Units of MLPs against loops and hooks on the plain modules: GPT-2, gated, and with norms behind the parts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from circuit_models import METRIC, apart, opened
from torch import Tensor, nn

import mechanome as mn
from mechanome.attribution import direct_logit_attribution
from mechanome.circuits.native import (
    SPLITS,
    MLPUnits,
    Orthonormal,
    UnitContributions,
    WeightUnits,
    ablate_units,
    coupling,
    detector_effector_units,
    keep_units,
    sca,
)
from mechanome.core import (
    BadInput,
    CorruptFile,
    NotFinite,
    NotServed,
    ShapeMismatch,
    TooFewRows,
    UnknownName,
    UnknownSite,
)

IDS = torch.tensor([[11, 45, 23, 67, 31, 52], [71, 24, 9, 33, 80, 14]])
RAGGED = [[11, 45, 23, 67, 31, 52], [71, 24, 9, 33]]
MODELS = ["gpt2", "llama", "bert"]
CAUSAL = ["gpt2", "llama", "gpt_neox"]


def write(name: str, how: str = "svd") -> MLPUnits:
    return detector_effector_units(opened(name), how=how)


def down(name: str, layer: int) -> nn.Module:
    """The plain module behind the units."""
    return opened(name).tap(f"mlp_act.{layer}").module


def without(name: str, removed: list[tuple[int, int]], ids: Tensor, pos: int, kept: bool = False) -> Tensor:
    """Logits at a position with units taken out of the plain model by hooks, from its own weights alone."""
    model = opened(name)
    handles = []
    for layer in range(model.n_layers):
        weight = model.weight(f"W_out.{layer}").value.double()
        left = torch.linalg.svd(weight, full_matrices=False)[0].T
        own = [unit for at, unit in removed if at == layer]
        out = [unit for unit in range(len(left)) if (unit in own) != kept]

        def hook(module: nn.Module, args: tuple[Tensor, ...], p: Tensor = left[out]) -> tuple[Tensor, ...]:
            h = args[0].clone()
            h[:, pos] -= (h[:, pos].double() @ p.T @ p).to(h)
            return (h,)

        handles.append(down(name, layer).register_forward_pre_hook(hook))
    try:
        with torch.no_grad():
            return model.module(input_ids=ids).logits[:, pos]
    finally:
        for handle in handles:
            handle.remove()


# The decomposition ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", SPLITS)
def test_every_split_is_exact_with_orthonormal_detectors(how: str) -> None:
    weight = torch.randn(14, 9, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    units = SPLITS[how](weight, 3)
    assert apart(units.weight(), weight) < 1e-12 and units.error(weight) < 1e-12
    assert apart(units.left @ units.left.T, torch.eye(len(units), dtype=torch.float64)) < 1e-12
    assert torch.allclose(units.right.norm(dim=1), torch.ones(len(units), dtype=torch.float64))
    assert len(units) == (14 if how in ("neurons", "rotated") else 9)
    assert torch.equal(SPLITS[how](weight, 3).left, units.left)
    if how.startswith("rotated"):
        assert not torch.allclose(SPLITS[how](weight, 4).left, units.left)
    x = torch.randn(5, 14, dtype=torch.float64)
    assert apart(units.reads.encode(x) * units.values @ units.right, x @ weight) < 1e-12


def test_singular_values_signs_and_uniqueness() -> None:
    weight = torch.diag(torch.tensor([5.0, 3.0, 3.001, 1.0, 0.0]))
    units = WeightUnits.svd(weight)
    assert units.values.tolist() == pytest.approx([5, 3.001, 3, 1, 0], abs=1e-5)
    assert units.unique.tolist() == [True, False, False, True, False]
    assert bool((units.right.gather(1, units.right.abs().argmax(1, keepdim=True)) > 0).all())
    assert torch.equal(WeightUnits.svd(-weight).left[0], -units.left[0])
    assert units.take([3, 0]).values.tolist() == pytest.approx([1, 5])
    assert isinstance(units.writes, mn.Basis)


def test_the_product_of_two_factors_is_decomposed_without_being_made() -> None:
    a, b = torch.randn(20, 4, dtype=torch.float64), torch.randn(4, 15, dtype=torch.float64)
    units, whole = WeightUnits.svd_of_product(a, b), WeightUnits.svd(a @ b).take(range(4))
    assert apart(units.weight(), a @ b) < 1e-12 and apart(units.values, whole.values) < 1e-12
    assert apart(units.left, whole.left) < 1e-9 and apart(units.right, whole.right) < 1e-9
    with pytest.raises(ShapeMismatch, match="do not multiply"):
        WeightUnits.svd_of_product(a, b.T)


def test_weights_that_are_none_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="matrix"):
        WeightUnits.svd(torch.zeros(3))
    with pytest.raises(NotFinite):
        WeightUnits.svd(torch.full((3, 3), float("nan")))
    with pytest.raises(BadInput, match="not orthonormal"):
        Orthonormal(torch.ones(2, 3))
    with pytest.raises(ShapeMismatch, match="width 3"):
        Orthonormal(torch.eye(3)).encode(torch.zeros(2, 4))


@pytest.mark.parametrize("name", MODELS)
def test_the_units_of_an_mlp_sum_to_its_output(name: str) -> None:
    model, units = opened(name), write(name)
    run = model.run(IDS, capture=["mlp_act.*", "mlp_out.*"])
    assert units.layers == tuple(range(model.n_layers))
    for layer in units.layers:
        part, h = units[layer], run[f"mlp_act.{layer}"]
        total = torch.zeros_like(run[f"mlp_out.{layer}"])
        for i in range(len(part)):  # one unit after the other, as the paper writes it
            total = total + part.values[i] * (h @ part.left[i])[..., None] * part.right[i]
        assert apart(total + units.bias(layer), run[f"mlp_out.{layer}"]) < 1e-4
        assert apart(units.gates(layer, h), h @ part.left.T) < 1e-6
    assert all(row[2] < 1e-5 for row in units.fidelity().rows)


@pytest.mark.parametrize("name", [*MODELS, "gpt_neox"])
@pytest.mark.parametrize("side", ["read", "gate"])
def test_read_units_sum_to_what_neurons_see(name: str, side: str) -> None:
    model = opened(name)
    if side == "gate" and name != "llama":
        with pytest.raises(NotServed, match="gate"):
            detector_effector_units(model, side=side)
        return
    units = detector_effector_units(model, side=side)
    weight, point = ("W_in", "mlp_up") if side == "read" else ("W_gate", "mlp_gate")
    for layer in units.layers:
        run = model.run(IDS, capture=[units.site(layer), f"{point}.{layer}"])
        gates = units.gates(layer, run[units.site(layer)])
        seen = gates * units[layer].values @ units[layer].right
        assert apart(seen + units.bias(layer), run[f"{point}.{layer}"]) < 1e-4
        if name == "llama":  # the gain is in the weight, so that detectors are those of the normalized stream
            wide = model.weight(f"{weight}.{layer}").value * model.weight(f"g_ln2.{layer}").value[:, None]
            assert apart(units[layer].weight(), wide) < 1e-5
        if name == "gpt2":  # and nothing reads the mean that the norm takes off
            assert float(units[layer].left.sum(1)[units[layer].values > 1e-4].abs().max()) < 1e-3
    with pytest.raises(NotServed, match="norm stands before"):
        units.basis(0)


# Taking units out ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_units_are_taken_out_and_kept_as_hooks_do_it(name: str) -> None:
    model, units, chosen = opened(name), write(name), [(0, 3), (0, 7), (2, 1)]
    gone = model.run(IDS, edits=ablate_units(units, chosen, pos=4)).logits[:, 4]
    assert apart(gone, without(name, chosen, IDS, 4)) < 1e-4
    only = model.run(IDS, edits=keep_units(units, chosen, pos=4)).logits[:, 4]
    assert apart(only, without(name, chosen, IDS, 4, kept=True)) < 1e-4
    assert apart(gone, model.run(IDS).logits[:, 4]) > 1e-3
    everything = [(layer, unit) for layer, unit in units.each.tolist()]
    assert apart(model.run(IDS, edits=keep_units(units, everything)).logits, model.run(IDS).logits) == 0


def test_mean_gates_are_kept_in_their_place() -> None:
    model, units = opened("gpt2"), write("gpt2")
    mean = units.mean(IDS, pos=4)
    run = model.run(IDS, capture="mlp_act.1", pos=4)
    assert torch.allclose(mean[1], units.gates(1, run["mlp_act.1"]).double().mean(0))
    after = model.run(IDS, capture="mlp_act.1", edits=ablate_units(units, [(1, 2)], fill=mean, pos=4), pos=4)
    before = units.gates(1, run["mlp_act.1"])
    gates = units.gates(1, after["mlp_act.1"])
    assert torch.allclose(gates[:, 2].double(), mean[1][2].expand(2), atol=1e-5)
    assert torch.allclose(gates[:, 3:], before[:, 3:], atol=1e-5)
    with pytest.raises(ShapeMismatch, match="fill"):
        ablate_units(units, [(1, 2)], fill={1: torch.zeros(3)})
    with pytest.raises(BadInput, match="fill"):
        ablate_units(units, [(1, 2)], fill={})


# Contributions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["svd", "neurons", "rotated"])
@pytest.mark.parametrize("name", CAUSAL)
def test_direct_contributions_sum_to_the_direct_attribution_of_each_layer(name: str, how: str) -> None:
    model, units = opened(name), write(name, how)
    found = sca(units, RAGGED, METRIC)
    exact = direct_logit_attribution(model, RAGGED, METRIC.answer, METRIC.foil)
    for layer in units.layers:
        share = exact.shares[:, exact.parts.index(f"mlp_out.{layer}")]
        assert float((found.by_layer()[:, layer] - share).abs().max()) < 1e-4 * float(exact.total.abs().max() + 1)
    assert torch.allclose(found.metric, exact.total, atol=1e-4)
    one = sca(units, RAGGED, METRIC, chosen=[(1, 4)])
    row = units.each.tolist().index([1, 4])
    assert torch.equal(one.values[:, 0], found.values[:, row]) and one.each.tolist() == [[1, 4]]


def test_one_direct_contribution_is_its_formula() -> None:
    model, units = opened("gpt2"), write("gpt2")
    found = sca(units, IDS, METRIC, pos=3)
    run = model.run(IDS, capture=["mlp_act.1", "resid_post.2"], pos=3)
    x = run["resid_post.2"].double()
    rho = (x.var(-1, correction=0) + 1e-5).sqrt()
    direction = model.weight("W_U").value[:, METRIC.answer] - model.weight("W_U").value[:, METRIC.foil]
    w = (direction * model.weight("g_ln_final").value).double()
    part = units[1]
    a = run["mlp_act.1"].double() @ part.left[6].double()
    expected = part.values[6].double() * a * (part.right[6].double() @ (w - w.mean())) / rho
    assert torch.allclose(found.values[:, units.each.tolist().index([1, 6])], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_gradient_contributions_are_gates_times_their_gradient(name: str) -> None:
    model, units = opened(name), write(name)
    found = sca(units, IDS, METRIC, mode="gradient", pos=3)
    activation = model.run(IDS, capture="mlp_act.1")["mlp_act.1"].clone().requires_grad_()
    handle = down(name, 1).register_forward_pre_hook(lambda module, args: (activation,))
    try:
        logits = model.module(input_ids=IDS).logits[:, 3]
        (gradient,) = torch.autograd.grad((logits[:, METRIC.answer] - logits[:, METRIC.foil]).sum(), activation)
    finally:
        handle.remove()
    left = torch.linalg.svd(model.weight("W_out.1").value, full_matrices=False)[0].T
    expected = (activation.detach()[:, 3] @ left.T) * (gradient[:, 3] @ left.T)
    own = found.values[:, found.each[:, 0] == 1]
    assert apart(own.float(), expected) < 1e-3


@pytest.mark.parametrize("name", [*MODELS, "gpt_neox"])
def test_ablation_contributions_are_those_of_hooks(name: str) -> None:
    units, chosen = write(name), [(0, 3), (2, 1), (0, 5)]
    ids = IDS[:1]
    found = sca(units, ids, METRIC, mode="ablation", chosen=chosen, quiet=True)
    whole = opened(name).module(input_ids=ids).logits[:, -1]
    for i, (layer, unit) in enumerate(found.each.tolist()):
        gone = without(name, [(layer, unit)], ids, -1)
        expected = METRIC(whole, torch.zeros(1, dtype=torch.long)) - METRIC(gone, torch.zeros(1, dtype=torch.long))
        assert float(found.values[0, i]) == pytest.approx(float(expected[0].detach()), abs=1e-4)
    assert float(found.values.abs().max()) > 1e-3


def test_ablation_is_the_same_with_padding_elsewhere_and_without_a_prefix() -> None:
    units, chosen = write("llama"), [(0, 3), (1, 1), (2, 5)]
    together = sca(units, RAGGED, METRIC, mode="ablation", chosen=chosen, quiet=True)
    alone = [sca(units, [row], METRIC, mode="ablation", chosen=chosen, quiet=True).values for row in RAGGED]
    assert apart(together.values, torch.cat(alone)) < 1e-4
    placed = sca(units, IDS, METRIC, mode="ablation", chosen=chosen, pos=5, quiet=True)  # no prefix at an index
    assert apart(placed.values, sca(units, IDS, METRIC, mode="ablation", chosen=chosen, quiet=True).values) < 1e-3


def test_a_small_removal_is_what_the_gradient_says() -> None:
    """For a unit that writes little, first order is all there is."""
    model, units = opened("gpt2"), write("gpt2")
    estimate = sca(units, IDS[:1], METRIC, mode="gradient")
    run = model.run(IDS[:1], capture="mlp_act.*", pos="last")
    lengths = torch.cat([units.gates(i, run[f"mlp_act.{i}"])[0].abs() * units[i].values for i in units.layers])
    small = lengths.argsort()[:4].tolist()
    chosen = [(layer, unit) for layer, unit in units.each[small].tolist()]
    exact = sca(units, IDS[:1], METRIC, mode="ablation", chosen=chosen, quiet=True)
    rows = [estimate.each.tolist().index(unit) for unit in exact.each.tolist()]
    assert torch.allclose(exact.values[0], estimate.values[0, rows], rtol=0.05, atol=2e-5)
    assert float(exact.values.abs().max()) > 1e-4


def test_summaries_of_contributions() -> None:
    values = torch.tensor([[4.0, -1.0, 0.5, 0.0], [2.0, 1.0, -3.0, 0.0]], dtype=torch.float64)
    each = torch.tensor([[0, 0], [0, 1], [2, 0], [2, 1]])
    found = UnitContributions(values, each, torch.tensor([[1.0, 2.0], [3.0, 4.0]]), (0, 2), torch.zeros(2), "direct", 0)
    assert found.by_layer().tolist() == [[4.0, 2.5], [6.0, 1.0]]
    assert found.mean.tolist() == [3.0, 0.0, -1.25, 0.0] and found.size.tolist() == [3.0, 1.0, 1.75, 0.0]
    assert found.top(2) == [(0, 0), (0, 1)] and found.top(2, by=found.size) == [(0, 0), (2, 0)]
    assert found.covered([1, 2, 9])[0].tolist() == pytest.approx([4 / 5.5, 5 / 5.5, 1.0])
    assert found.consistency.tolist() == [1.0, 0.0, 0.5, 1.0]
    assert found.centred().values.mean(0).abs().max() == 0
    assert [row[:2] for row in found.table(2).rows] == [(0, 0), (2, 0)]
    with pytest.raises(TooFewRows):
        UnitContributions(values[:1], each, torch.zeros(1, 0), (0, 2), torch.zeros(1), "direct", 0).centred()
    with pytest.raises(BadInput, match="one a unit"):
        found.top(1, by=torch.zeros(2))


# Refusals and files --------------------------------------------------------------------------------------------------


def test_what_cannot_be_served_is_refused_with_a_reason() -> None:
    model, units = opened("gpt2"), write("gpt2")
    with pytest.raises(BadInput, match="side"):
        detector_effector_units(model, side="up")
    with pytest.raises(BadInput, match="how"):
        detector_effector_units(model, how="pca")
    with pytest.raises(UnknownSite, match="layer 9"):
        detector_effector_units(model, 9)
    with pytest.raises(NotServed, match="expert"):
        detector_effector_units(opened("mixtral"))
    with pytest.raises(UnknownName, match="layer 7"):
        units[7]
    with pytest.raises(UnknownName, match="unit 500"):
        ablate_units(units, [(0, 500)])
    with pytest.raises(BadInput, match="twice"):
        ablate_units(units, [(0, 1), (0, 1)])
    with pytest.raises(BadInput, match="mode"):
        sca(units, IDS, METRIC, mode="causal")
    with pytest.raises(NotServed, match="do not write"):
        sca(detector_effector_units(model, side="read"), IDS, METRIC)
    with pytest.raises(NotServed, match="linear in the logits"):
        sca(units, IDS, mn.LogProb(5))
    for name in ("bert", "gemma2"):
        with pytest.raises(NotServed, match="norms stand behind"):
            sca(write(name), IDS, METRIC)


def test_capped_logits_have_no_direct_contributions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opened("llama").text_config, "final_logit_softcapping", 30.0, raising=False)
    with pytest.raises(NotServed, match="capped"):
        sca(write("llama"), IDS, METRIC)


def test_units_are_kept_in_a_file(tmp_path: Path) -> None:
    units, file = write("gpt2"), tmp_path / "units.safetensors"
    units.save(file)
    again = MLPUnits.load(file, opened("gpt2"))
    assert torch.equal(again.each, units.each) and (again.side, again.how) == ("write", "svd")
    assert all(torch.equal(again[i].left, units[i].left) for i in units.layers)
    assert apart(sca(again, IDS, METRIC).values, sca(units, IDS, METRIC).values) < 1e-6
    with pytest.raises(BadInput, match="units of"):
        MLPUnits.load(file, opened("llama"))
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(CorruptFile):
        MLPUnits.load(file, opened("gpt2"))
    with pytest.raises(BadInput, match="no such file"):
        MLPUnits.load(tmp_path / "none", opened("gpt2"))


def test_coupling_is_the_correlation_of_gates() -> None:
    model = opened("llama")
    read, units = detector_effector_units(model, 1, side="read"), write("llama")
    text = [[3, 8, 12, 40, 7], [9, 22, 31, 5]]
    found = coupling(read, units, 1, text, k=4, quiet=True)
    gates = []
    for row in text:
        run = model.run([row], capture=[read.site(1), units.site(1)])
        gates.append([read.gates(1, run[read.site(1)][0])[:, 2], units.gates(1, run[units.site(1)][0])[:, 3]])
    first, second = (torch.cat([row[i] for row in gates]) for i in range(2))
    expected = torch.corrcoef(torch.stack([first, second]))[0, 1]
    assert float(found.values[2, 3]) == pytest.approx(float(expected), abs=1e-4) and found.tokens == 9
    assert found.values.shape == (4, 4) and len(found.table(3)) == 3
    with pytest.raises(BadInput, match="read and write"):
        coupling(units, read, 1, text)
    with pytest.raises(TooFewRows):
        coupling(read, units, 1, [[3, 8]], quiet=True)
