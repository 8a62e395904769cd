"""Padding and batching never change an answer: logits and every capture of real tokens stay the same."""

from __future__ import annotations

import pytest
import torch
from opened_models import (
    NAMED,
    TEXT,
    apart,
    batch_of,
    inputs_of,
    opened,
    outputs,
    real_parts,
    rows_of,
    sites_of,
    unpadded,
)
from torch import Tensor

import mechanome as mn
from families import FAMILIES
from mechanome.core.errors import BadInput, NotServed

TOLERANCE = 1e-5
PADDED = [n for n in NAMED if FAMILIES[n].padded and n != "own_transformer"]
LENGTHS = (9, 5, 7)


def worst(model: mn.Model, run: mn.Run, row: int, alone: mn.Run) -> dict[str, float]:
    """Per site, how far a row of a batch is from the same row alone."""
    found = {}
    for site in run.sites:
        a = real_parts(model, run.batch, site, run.captured[site])[row]
        b = real_parts(model, alone.batch, site, alone.captured[site])[0]
        if site.point.endswith("scores"):  # what a mask hides is the lowest number, or that plus something
            a, b = a.clamp(min=-1e4), b.clamp(min=-1e4)
        found[str(site)] = apart(a, b)
    return found


@pytest.mark.parametrize("name", PADDED)
def test_padded_rows_equal_rows_alone_at_every_point(name: str) -> None:
    model, inputs = opened(name), inputs_of(name)
    sites = sites_of(name)
    run = model.run(inputs, capture=sites)
    for row in range(3):
        alone = model.run(unpadded(inputs, row), capture=sites)
        far = {k: v for k, v in worst(model, run, row, alone).items() if v > TOLERANCE}
        assert not far
        if run.logits is not None:
            part = real_parts(model, run.batch, mn.Site("logits"), run.logits)[row]
            assert apart(part, alone.logits[0]) < TOLERANCE


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", TEXT)
def test_either_side(name: str, side: str) -> None:
    model = opened(name)
    prompts = [row[:n].tolist() for row, n in zip(rows_of(name, 3, 9), LENGTHS)]
    if side == "left" and name == "mamba":  # its projections have biases, so padding is not neutral
        with pytest.raises(NotServed, match="padding on the left changes"):
            model.run(model.encode(prompts, pad=side))
        return
    sites = model.expand("resid_post.*")
    run = model.run(model.encode(prompts, pad=side), capture=sites)
    for row, prompt in enumerate(prompts):
        alone = model.run(prompt, capture=sites)
        assert not {k: v for k, v in worst(model, run, row, alone).items() if v > TOLERANCE}
        assert apart(real_parts(model, run.batch, mn.Site("logits"), run.logits)[row], alone.logits[0]) < TOLERANCE


@pytest.mark.parametrize("name", NAMED)
def test_a_batch_equals_its_rows(name: str) -> None:
    model, batch = opened(name), batch_of(name)
    sites = sites_of(name)
    run = model.run(batch, capture=sites)
    for row in range(batch.rows):
        alone = model.run(batch.take([row]), capture=sites)
        assert not {k: v for k, v in worst(model, run, row, alone).items() if v > TOLERANCE}


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert", "jamba"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_positions_count_real_tokens(name: str, side: str) -> None:
    model = opened(name)
    prompts = [row[:n].tolist() for row, n in zip(rows_of(name, 3, 9), LENGTHS)]
    if (name, side) == ("jamba", "left"):
        assert opened(name).report.padding_error < TOLERANCE
    batch = model.encode(prompts, pad=side)
    alone = [model.run(p, capture="resid_post.1") for p in prompts]

    def expected(columns: list[list[int]]) -> list[Tensor]:
        return [run["resid_post.1"][0, c] for run, c in zip(alone, columns)]

    for pos, columns in (
        ("last", [[8], [4], [6]]), (0, [[0]] * 3), (-2, [[7], [3], [5]]), ([1, -1], [[1, 8], [1, 4], [1, 6]]),
        ("2:4", [[2, 3]] * 3), (slice(-2, None), [[7, 8], [3, 4], [5, 6]]), ([[4, 0], [0, 1], [6, 2]],) * 2,
    ):  # fmt: skip
        run = model.run(batch, capture="resid_post.1", pos=pos)
        value = run["resid_post.1"]
        if isinstance(pos, (int, str)) and pos != "2:4":
            assert run.axes("resid_post.1") == ("batch", "d_model")
            value = value[:, None]
        for row, part in enumerate(expected(columns)):
            assert apart(value[row], part) < TOLERANCE, pos
    assert apart(model.run(batch, logits="last").logits, torch.cat([r.logits[:, -1] for r in alone])) < TOLERANCE


def test_ragged_positions_are_padded_with_nan() -> None:
    model = opened("llama")
    spans = [{"subject": [1, 2, 3]}, {"subject": [4]}]
    run = model.run(rows_of("llama"), capture=["resid_post.1", "z.1"], pos="subject", spans=spans)
    value, whole = run["resid_post.1"], model.run(rows_of("llama"), capture="resid_post.1")["resid_post.1"]
    assert value.shape == (2, 3, 32)
    assert torch.equal(value[0], whole[0, 1:4])
    assert torch.equal(value[1, 0], whole[1, 4])
    assert value[1, 1:].isnan().all() and not value[0].isnan().any()
    assert run["z.1.h2"].shape == (2, 3, 8)


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("point", ["resid_post", "z", "pattern"])
def test_edits_of_padded_rows_equal_edits_of_rows_alone(name: str, point: str) -> None:
    model, inputs = opened(name), inputs_of(name)
    sites = [s for s in model.sites if s.point == point][:2]
    if not sites:
        pytest.skip("not served")
    edits = [mn.Scale(s, 0.3, pos=[0, "last"][i]) for i, s in enumerate(sites)]
    together = outputs(model, model.encode(inputs), edits)
    for row in range(3):
        alone = outputs(model, model.encode(unpadded(inputs, row)), edits)
        if model.serves("logits"):
            part = real_parts(model, model.encode(inputs), mn.Site("logits"), together)[row]
            assert apart(part, alone[0]) < TOLERANCE
            assert apart(outputs(model, model.encode(inputs)), together) > 1e-4


def test_positions_of_waveforms_are_frames() -> None:
    model, inputs = opened("wav2vec2"), inputs_of("wav2vec2")
    assert batch_of("wav2vec2").frame.lengths == (12, 10, 9)
    run = model.run(inputs, capture="resid_post.1", pos="last", logits="last")
    for row in range(3):
        alone = model.run(unpadded(inputs, row), capture="resid_post.1")
        assert apart(run["resid_post.1"][row], alone["resid_post.1"][0, -1]) < TOLERANCE
        assert apart(run.logits[row], alone.logits[0, -1]) < TOLERANCE
    left = inputs | {"attention_mask": inputs["attention_mask"].flip(1)}
    with pytest.raises(BadInput, match="padded on the left"):
        model.run(left)
