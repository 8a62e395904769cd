"""Mean and resample ablation give what a loop over single prompts gives, and the sweep takes them."""

from __future__ import annotations

import pytest
import torch

import mechanome as mn
from families import build
from mechanome.attribution import mean_of, resample_from
from mechanome.core import BadInput, BudgetTooSmall, NotServed
from mechanome.engine import parse

POOL = [[11, 45, 23, 67, 31, 52], [71, 24, 13, 44], [85, 36, 12, 9, 55], [3, 90, 61, 8, 27, 33]]
EQUAL = [POOL[0], POOL[3], [19, 2, 77, 64, 58, 41]]
METRIC = mn.LogitDiff(11, 21)
POINTS = ["resid_pre", "attn_out", "mlp_out", "z", "k"]


@pytest.fixture(scope="module")
def model() -> mn.Model:
    return mn.load(build("llama"))


def by_hand(model: mn.Model, site: mn.Site) -> list[torch.Tensor]:
    return [model.run([row], capture=[site]).captured[site][0].double() for row in POOL]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("budget", [None, "4KB"])
def test_a_mean_is_that_of_a_loop_over_prompts(model: mn.Model, point: str, budget: str | None) -> None:
    site = mn.Site(point, 1)
    rows = by_hand(model, site)
    overall = mean_of(model, POOL, budget=budget)(site)
    assert torch.allclose(overall, torch.cat(rows).mean(0), atol=1e-6)
    by_position = mean_of(model, POOL, by_position=True, budget=budget)(site)
    assert by_position.shape[:2] == (1, 6)
    for position in range(6):
        expected = torch.stack([r[position] for r in rows if len(r) > position]).mean(0)
        assert torch.allclose(by_position[0, position], expected, atol=1e-6)


def test_padding_on_the_left_takes_no_part(model: mn.Model) -> None:
    site = mn.Site("mlp_out", 2)
    left = mean_of(model, model.encode(POOL, pad="left"), by_position=True)(site)
    assert torch.allclose(left, mean_of(model, POOL, by_position=True)(site), atol=1e-5)


def test_a_mean_follows_the_weights(model: mn.Model) -> None:
    mean, site = mean_of(model, POOL), mn.Site("mlp_out", 1)
    before = mean(site)
    with model.edited_weights({"W_out.1": 0.0}):
        assert not torch.allclose(mean(site), before)
        assert torch.equal(mean(site), mean_of(model, POOL)(site))
    assert torch.equal(mean(site), before)


@pytest.mark.parametrize("point", ["mlp_out", "z"])
@pytest.mark.parametrize("by_position", [False, True])
@pytest.mark.parametrize("method", ["wavefront", "naive"])
def test_a_mean_ablation_sweep_equals_single_edits(model: mn.Model, point: str, by_position: bool, method: str) -> None:
    mean = mean_of(model, POOL, by_position=by_position)
    swept = POOL[1:3]
    sweep = mn.activation_patching(model, swept, mean, point, METRIC, method=method, quiet=True)  # type: ignore[arg-type]
    for example, row in enumerate(swept):
        for layer in range(model.n_layers):
            cells = range(sweep.values.shape[2]) if point == "z" else range(len(row))
            for cell in cells:
                value = mean(mn.Site(point, layer)).float()
                if point == "z":
                    site, pos = mn.Site(point, layer, head=cell), None
                    value = value[:, : len(row), cell] if by_position else value[cell]
                else:
                    site, pos = mn.Site(point, layer), [cell]
                    value = value[:, cell] if by_position else value
                logits = model.run([row], edits=[mn.Ablate(site, value, pos=pos)], logits="last").logits
                assert logits is not None
                expected = METRIC(logits, torch.tensor([0]))[0]
                assert torch.allclose(sweep.values[example, layer, cell], expected, atol=1e-4)


@pytest.mark.parametrize("budget", [None, "12KB"])
def test_resampled_values_are_the_donor_s(model: mn.Model, budget: str | None) -> None:
    found = resample_from(model, POOL, seed=3, budget=budget)
    for site in (mn.Site("z", 0), mn.Site("resid_pre", 2)):
        values = found(site)
        for i, donor in enumerate(found.donors):
            n = len(POOL[i])
            assert donor != i and len(POOL[donor]) >= n
            assert torch.allclose(values[i, :n].double(), by_hand(model, site)[donor][:n], atol=1e-6)


def test_draws_depend_on_the_seed_alone(model: mn.Model) -> None:
    rows = [[i, 45, 23, 67] for i in range(12)]
    first = resample_from(model, rows, 1).donors
    assert first == resample_from(model, rows, 1).donors != resample_from(model, rows, 2).donors
    assert all(i != donor for i, donor in enumerate(first))
    assert len(set(first)) > 4


def test_a_resample_sweep_equals_patching_from_the_donor(model: mn.Model) -> None:
    resampled = resample_from(model, POOL, examples=EQUAL[2:])
    sweep = mn.activation_patching(model, EQUAL[2:], resampled, "z", METRIC, quiet=True)
    donor = model.run([POOL[resampled.donors[0]]], capture="z.*")
    for layer in range(model.n_layers):
        for head in range(sweep.values.shape[2]):
            logits = model.run(EQUAL[2:], edits=[mn.Patch(f"z.{layer}.h{head}", donor)], logits="last").logits
            assert logits is not None
            assert torch.allclose(sweep.values[0, layer, head], METRIC(logits, torch.tensor([0]))[0], atol=1e-4)


def test_refusals(model: mn.Model) -> None:
    with pytest.raises(BadInput, match="no other prompt of at least as many tokens"):
        resample_from(model, [*POOL, [1] * 9])
    with pytest.raises(BadInput, match="no other prompt"):
        resample_from(model, [POOL[0], POOL[0]])
    with pytest.raises(BadInput, match="seed"):
        resample_from(model, POOL, seed="x")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="open it with"):
        mean_of(build("llama"), POOL)
    with pytest.raises(NotServed, match="keys"):
        mn.activation_patching(model, POOL, mean_of(model, POOL), "pattern", METRIC, quiet=True)
    with pytest.raises(BudgetTooSmall, match="fewer examples"):
        mn.activation_patching(model, POOL, resample_from(model, POOL, budget="1KB"), "z", METRIC, quiet=True)
    with pytest.raises(BudgetTooSmall):
        mean_of(model, POOL, budget=10)(mn.Site("z", 0))


OWN_PART = {"mlp_out.1": slice(None), "z.1.h2": 2, "k.1.kv1": 1, "resid_pre.2.n5": slice(5, 6)}


@pytest.mark.parametrize("site", OWN_PART)
def test_a_mean_ablates_one_part_of_any_run(model: mn.Model, site: str) -> None:
    value = mean_of(model, POOL)(parse(site).whole)[OWN_PART[site]]
    by_hand = model.run(EQUAL, edits=mn.Ablate(site, value)).logits
    assert torch.equal(model.run(EQUAL, edits=mn.Ablate(site, mean_of(model, POOL))).logits, by_hand)
    assert not torch.allclose(by_hand, model.run(EQUAL).logits)


def test_another_prompts_values_ablate_each_row(model: mn.Model) -> None:
    other = resample_from(model, EQUAL)
    edited = model.run(EQUAL, edits=mn.Ablate("z.1.h2", other), capture="z.1")
    donors = model.run(EQUAL, capture="z.1")["z.1"][list(other.donors)]
    assert torch.allclose(edited["z.1"][:, :, 2], donors[:, :, 2])


def test_what_replaces_a_part_is_a_tensor() -> None:
    with pytest.raises(BadInput, match="mean_of"):
        mn.Ablate("z.1.h2", lambda site: 0.0)
