"""Patching sweeps: the wavefront is the naive loop, and the naive loop is one hand-made run a cell."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from opened_models import TEXT, apart, batch_of, fresh, inputs_of, opened, rows_of, unpadded
from torch import Tensor

import mechanome as mn
from families import FAMILIES
from mechanome.core.errors import BadInput, BudgetTooSmall, NotFinite, NotServed, ShapeMismatch
from mechanome.engine import sweep_runner
from mechanome.engine.points import POINTS

METRIC = mn.LogitDiff(5, 7)
LENGTH = 7
ONE_TOWER = [n for n in TEXT if n != "own_transformer"]
PATCHABLE = [p.name for p in POINTS.values() if p.per_layer and p.writable]


def pair(name: str, where: int | None, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two prompts that differ at one position, or not at all."""
    clean = rows_of(name, 1, LENGTH, seed)
    other = clean.clone()
    if where is not None:
        other[0, where] = (clean[0, where] + 11) % 80 + 6
    return clean, other


def both(name: str, clean: Any, other: Any, point: str, **more: Any) -> tuple[mn.Sweep, mn.Sweep]:
    fast = mn.activation_patching(opened(name), clean, other, point, METRIC, quiet=True, **more)
    naive = mn.activation_patching(opened(name), clean, other, point, METRIC, quiet=True, method="naive", **more)
    return fast, naive


def close(fast: mn.Sweep, naive: mn.Sweep) -> None:
    scale = naive.values.nan_to_num().abs().max()
    assert fast.values.shape == naive.values.shape
    assert torch.equal(fast.values.isnan(), naive.values.isnan())
    assert (fast.values - naive.values).nan_to_num().abs().max() < 1e-5 * scale
    assert apart(fast.into, naive.into) < 1e-5


@pytest.mark.parametrize("name", ONE_TOWER)
@pytest.mark.parametrize("point", ["resid_pre", "z", "mlp_out"])
def test_the_wavefront_equals_the_naive_loop_in_every_family(name: str, point: str) -> None:
    served = [s for s in opened(name).sites if s.point == point]
    if not served:
        point, served = "mixer_out", [s for s in opened(name).sites if s.point == "mixer_out"]
    layers = [s.layer for s in served]
    fast, naive = both(name, *pair(name, 2), point, layers=layers)
    close(fast, naive)
    assert naive.method == "naive"
    if name == "bloom":  # its position bias is made for the rows that came in
        assert fast.method == "naive" and "plain loop" in fast.notes[0]
    else:
        assert fast.method == "wavefront" and not fast.notes
    assert naive.effects.abs().max() > 1e-3


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2", "gpt_neox", "falcon", "mixtral", "bert", "jamba"])
def test_every_point_it_serves(name: str) -> None:
    model = opened(name)
    for point in PATCHABLE:
        layers = [s.layer for s in model.sites if s.point == point and model.why_not_edit(s) is None]
        if not layers:
            continue
        fast, naive = both(name, *pair(name, 2), point, layers=layers)
        close(fast, naive)
        assert fast.method == "wavefront", point
        assert naive.effects.abs().max() > 1e-4, point


@pytest.mark.parametrize("point", ["k", "v", "k_pre", "q", "z", "pattern", "scores"])
@pytest.mark.parametrize("over", ["head", "pos", "layer"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_axes(name: str, over: str, point: str) -> None:
    fast, naive = both(name, *pair(name, 3), point, over=over)
    close(fast, naive)
    sizes = {"pos": LENGTH, "layer": 1, "head": 2 if POINTS[point].heads == "kv" else 4}
    assert fast.values.shape == (1, opened(name).n_layers, sizes[over])
    assert fast.axes == ("example", "layer", over)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral", "bert", "mamba"])
@pytest.mark.parametrize("where", [0, 3, LENGTH - 1, None])
@pytest.mark.parametrize("into", ["corrupted", "clean"])
def test_wherever_the_prompts_differ(name: str, where: int | None, into: str) -> None:
    for point in ("resid_pre", "mlp_out" if name != "mamba" else "mixer_out"):
        fast, naive = both(name, *pair(name, where), point, into=into)
        close(fast, naive)
        if where is None:
            assert fast.effects.abs().max() < 1e-6
            continue
        if point == "resid_pre":  # patching where they differ, before everything, is the other run
            assert torch.allclose(fast.values[0, 0, where], fast.source[0], atol=1e-4)
        if FAMILIES[name].kind != "encoder":
            assert fast.effects[..., :where].abs().max() < 1e-5 if where else True
        assert fast.effects[..., where].abs().max() > 1e-3


def test_the_naive_loop_is_one_hand_made_run_a_cell() -> None:
    model = opened("llama")
    clean, other = pair("llama", 2)
    donor = model.run(clean, capture=["z.*", "v.*"])
    found = mn.activation_patching(model, clean, other, "z", METRIC, over="pos", quiet=True, method="naive")
    heads = mn.activation_patching(model, clean, other, "v", METRIC, quiet=True, pos=[1, 2, 4])
    base = METRIC(model.run(other).logits[:, -1], torch.arange(1))
    assert apart(found.into, base) < 1e-5
    assert apart(found.source, METRIC(donor.logits[:, -1], torch.arange(1))) < 1e-5
    for layer in range(3):
        for pos in range(LENGTH):
            run = model.run(other, edits=mn.Patch(f"z.{layer}", donor, pos=pos))
            assert abs(METRIC(run.logits[:, -1], torch.arange(1)) - found.values[0, layer, pos]) < 1e-4
        for head in range(2):
            run = model.run(other, edits=mn.Patch(f"v.{layer}.kv{head}", donor, pos=[1, 2, 4]))
            assert abs(METRIC(run.logits[:, -1], torch.arange(1)) - heads.values[0, layer, head]) < 1e-4
    gap = float(found.source - found.into)
    assert torch.allclose(found.normalized(), found.effects / gap)


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_several_examples_of_different_lengths(name: str) -> None:
    pairs = [(a[0, :n].tolist(), b[0, :n].tolist()) for s, n in ((0, 7), (1, 4), (2, 6)) for a, b in [pair(name, 2, s)]]
    metric = mn.LogitDiff([5, 8, 9], [7, 7, 4])
    clean, other = [a for a, _ in pairs], [b for _, b in pairs]
    for pad in ("left", "right"):
        model = opened(name)
        fast = mn.activation_patching(
            model, model.encode(clean, pad=pad), model.encode(other, pad=pad), "resid_mid", metric, quiet=True
        )
        assert fast.values.shape == (3, 3, 7)
        for i, (a, b) in enumerate(pairs):
            own = mn.LogitDiff([5, 8, 9][i], [7, 7, 4][i])
            alone = mn.activation_patching(model, a, b, "resid_mid", own, quiet=True, method="naive")
            n = len(a)
            assert apart(fast.values[i, :, :n], alone.values[0]) < 1e-5
            assert fast.values[i, :, n:].isnan().all()


def test_towers_are_swept_over_their_own_positions() -> None:
    model, inputs = opened("t5"), inputs_of("t5")
    other = {k: v.clone() for k, v in inputs.items()}
    other["input_ids"][:, 1] = 50
    for tower, point, width in (("encoder", "resid_pre", 9), ("decoder", "resid_pre", 7), ("decoder", "cross_v", 9)):
        found = mn.activation_patching(model, inputs, other, point, METRIC, over="pos", tower=tower, quiet=True)
        assert found.method == "naive" and "several towers" in found.notes[0]
        assert found.values.shape[-1] == width
        for row in range(3):
            alone = mn.activation_patching(
                model, unpadded(inputs, row), unpadded(other, row), point, METRIC, over="pos", tower=tower, quiet=True
            )
            n = alone.values.shape[-1]
            assert apart(found.values[row, :, :n], alone.values[0]) < 1e-5, (tower, point, row)
        assert found.effects.nan_to_num().abs().max() > 1e-3


@pytest.mark.parametrize("name", ["vit", "wav2vec2", "whisper"])
def test_images_and_sounds(name: str) -> None:
    inputs = inputs_of(name)
    key = next(k for k in inputs if k in ("pixel_values", "input_values", "input_features"))
    other = inputs | {
        key: inputs[key] + 0.3 * torch.randn(inputs[key].shape, generator=torch.Generator().manual_seed(0))
    }
    if name == "wav2vec2":
        other[key] = other[key] * inputs["attention_mask"]
    tower = "decoder" if name == "whisper" else None
    for point in ("resid_pre", "z"):
        fast, naive = both(name, inputs, other, point, tower=tower)
        close(fast, naive)
    row = 1
    alone = mn.activation_patching(
        opened(name), unpadded(inputs, row), unpadded(other, row), "z", METRIC, tower=tower, quiet=True
    )
    assert apart(fast.values[row], alone.values[0]) < 1e-5


@pytest.mark.parametrize("name", ["llama", "bert", "gpt2"])
def test_ablations(name: str) -> None:
    model = opened(name)
    prompts = [rows_of(name, 1, n, seed=n)[0].tolist() for n in (7, 5)]
    mean = {layer: torch.randn(4, 8, generator=torch.Generator().manual_seed(layer)) for layer in range(3)}
    each = torch.randn(2, 7, 4, 8, generator=torch.Generator().manual_seed(9))
    for ablation, value in (
        ("zero", lambda site, i, n: torch.zeros(n, 4, 8)),
        (lambda site: mean[site.layer], lambda site, i, n: mean[site.layer].expand(n, 4, 8)),
        (lambda site: each, lambda site, i, n: each[i, :n]),
    ):
        fast, naive = both(name, prompts, ablation, "z")
        close(fast, naive)
        assert fast.source is None and fast.method == "wavefront"
        with pytest.raises(NotServed):
            fast.normalized()
        for i, prompt in enumerate(prompts):
            for head in (0, 3):
                site = mn.Site("z", 1, head)
                edit = mn.Edit(site, "set", value(site, i, len(prompt))[None, :, head])
                logits = model.run(prompt, edits=edit).logits[:, -1]
                assert abs(METRIC(logits, torch.arange(1)) - fast.values[i, 1, head]) < 1e-4
    with pytest.raises(ShapeMismatch, match="replacement"):
        mn.activation_patching(model, prompts, lambda site: torch.zeros(3, 4, 8), "z", METRIC, quiet=True)


def test_a_prefix_serves_sweeps() -> None:
    model, (clean, other) = opened("llama"), pair("llama", 4)
    prefix = model.prefix(clean[0, :3])
    whole = mn.activation_patching(model, clean, other, "resid_pre", METRIC, quiet=True)
    for method in ("auto", "naive"):
        found = mn.activation_patching(
            model, clean, other, "resid_pre", METRIC, prefix=prefix, quiet=True, method=method
        )
        assert apart(found.values, whole.values[..., 3:]) < 1e-5


def test_small_budgets_cut_the_work_and_smaller_ones_are_refused() -> None:
    clean, other = pair("llama", 0)
    model = opened("llama")
    whole = mn.activation_patching(model, clean, other, "resid_pre", METRIC, quiet=True)
    sizes: list[int] = []
    pieces = sweep_runner.memory.pieces

    def count(total: int, *rest: Any) -> int:
        sizes.append(pieces(total, *rest))
        return sizes[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sweep_runner.memory, "pieces", count)
        small = mn.activation_patching(model, clean, other, "resid_pre", METRIC, quiet=True, budget="80KB")
    assert 1 <= min(sizes) < 7
    assert apart(small.values, whole.values) < 1e-5
    with pytest.raises(BudgetTooSmall, match="at least"):
        mn.activation_patching(model, clean, other, "resid_pre", METRIC, quiet=True, budget=1000)


def test_blocks_before_an_edit_run_for_no_cell() -> None:
    model, (clean, other) = fresh("llama"), pair("llama", 3)
    rows: list[int] = []
    model.module.model.layers[0].mlp.register_forward_hook(lambda m, a, o: rows.append(o.shape[0] * o.shape[1]))
    mn.activation_patching(model, clean, other, "resid_post", METRIC, quiet=True)
    rows.clear()
    mn.activation_patching(model, clean, other, "resid_post", METRIC, quiet=True, layers=[2])
    assert rows == [LENGTH, LENGTH], "once in each of the two runs, for no cell"


def test_models_that_cannot_be_swept_fast_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    clean, other = pair("bloom", 2)
    with pytest.raises(NotServed, match="wavefront"):
        mn.activation_patching(fresh("bloom"), clean, other, "resid_pre", METRIC, method="wavefront", quiet=True)
    with pytest.raises(NotServed, match="several towers"):
        inputs = inputs_of("t5")
        mn.activation_patching(
            opened("t5"), inputs, inputs, "z", METRIC, tower="decoder", method="wavefront", quiet=True
        )


def test_a_wavefront_that_would_be_wrong_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (clean, other) = fresh("llama"), pair("llama", 2)
    naive = mn.activation_patching(model, clean, other, "mlp_out", METRIC, method="naive", quiet=True)
    right = sweep_runner.sweep_rows
    monkeypatch.setattr(sweep_runner, "sweep_rows", lambda *a, **k: right(*a, **k).flip(-1))
    found = mn.activation_patching(model, clean, other, "mlp_out", METRIC, quiet=True)
    assert found.method == "naive" and "change its numbers" in found.notes[0]
    assert apart(found.values, naive.values) < 1e-5


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"corrupted": [5, 6, 7]}, ShapeMismatch, "example 0: 7 clean and 3 corrupted"),
        ({"corrupted": [[5, 6, 7]] * 2}, ShapeMismatch, "pairs"),
        ({"point": "resid_pr"}, BadInput, "resid_pre"),
        ({"point": "logits"}, BadInput, "per layer"),
        ({"point": "head_out"}, BadInput, "per layer"),
        ({"over": "head"}, BadInput, "no heads"),
        ({"over": "heads"}, BadInput, "no such axis"),
        ({"into": "dirty"}, BadInput, "no such run"),
        ({"pos": []}, BadInput, "none is selected"),
        ({"point": "router"}, NotServed, "router"),
    ],
)
def test_refusals(change: dict[str, Any], error: type[Exception], match: str) -> None:
    clean, other = pair("llama", 2)
    arguments: dict[str, Any] = {"clean": clean, "corrupted": other, "point": "resid_pre", "metric": METRIC}
    with pytest.raises(error, match=match):
        mn.activation_patching(opened("llama"), **arguments | change, quiet=True)


def test_equal_runs_have_no_normalized_effects() -> None:
    clean, other = pair("llama", None)
    with pytest.raises(NotFinite):
        mn.activation_patching(opened("llama"), clean, other, "z", METRIC, quiet=True).normalized()


def test_sweeping_leaves_nothing_behind() -> None:
    for name in ("llama", "mamba", "bert"):
        model, batch = fresh(name), batch_of(name)
        before = model.run(batch).logits
        mn.activation_patching(model, *pair(name, 2), "resid_pre", METRIC, quiet=True)
        assert torch.equal(model.run(batch).logits, before)


def test_a_sweep_lists_its_largest_effects() -> None:
    clean, other = pair("llama", 2)
    heads = mn.activation_patching(opened("llama"), clean, other, "z", METRIC, quiet=True)
    rows = heads.table(3).records()
    flat = heads.effects[0].flatten()
    order = flat.abs().argsort(descending=True)[:3].tolist()
    n = heads.values.shape[-1]
    assert [row["site"] for row in rows] == [f"z.{i // n}.h{i % n}" for i in order]
    assert [row["effect"] for row in rows] == [float(flat[i]) for i in order]
    assert len(heads.table(None).rows) == flat.numel()
    assert rows[0]["site"] in repr(heads) and len(repr(heads)) < 200
    groups = mn.activation_patching(opened("llama"), clean, other, "v", METRIC, quiet=True)
    assert ".kv" in groups.table(1).records()[0]["site"]
    layers = mn.activation_patching(opened("llama"), clean, other, "mlp_out", METRIC, over="layer", quiet=True)
    assert layers.table(1).columns == ("site", "effect")


def test_positions_in_the_list_are_those_of_the_prompt() -> None:
    clean, other = pair("llama", 2)
    some = mn.activation_patching(opened("llama"), clean, other, "resid_pre", METRIC, pos=[2, 5], quiet=True)
    first = some.table(1).records()[0]
    layer, column = divmod(int(some.effects[0].abs().argmax()), 2)
    assert first["site"] == f"resid_pre.{layer}" and first["position"] == (2, 5)[column]
    assert first["token"] == repr(some.tokens[0][first["position"]])
    long, short = clean[0].tolist(), clean[0, :5].tolist()
    pairs = [long, short], [other[0].tolist(), other[0, :5].tolist()]
    two = mn.activation_patching(opened("llama"), *pairs, "resid_pre", METRIC, pos="last", quiet=True)
    row = two.table(1).records()[0]
    assert row["position"] is None and row["token"] is None and "mean of 2 examples" in two.table().title
    assert abs(row["effect"]) == pytest.approx(float(two.effects.mean(0).abs().max()), abs=1e-6)
