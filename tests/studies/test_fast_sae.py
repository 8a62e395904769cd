"""Paper 50's study: its data, its statistics on numbers with a known answer, and a smoke run on a real model."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from mechanome.activations import ROLES, Activations, ArrayActivations
from mechanome.core import Interval, silence
from mechanome.engine import load
from mechanome.studies import STUDIES, run
from mechanome.studies.papers.fast_sae import MAIN, PATHS, SPLITS, Settings, measuring, paths, pictures
from registry_models import need

SIZE = Settings(tokens=1024, steps=4, at=(0, 4), batches=2, dialogues=3, losses=2, width=16, k=2, batch=128)
TEMPLATE, USER = ROLES.index("template"), ROLES.index("user")


def rows_of(sequences: list[list[int]], role: list[list[int]] | None = None, d: int = 4) -> Activations:
    n = sum(map(len, sequences))
    labels = {
        "seq": torch.tensor([i for i, s in enumerate(sequences) for _ in s]),
        "pos": torch.tensor([i for s in sequences for i in range(len(s))]),
        "token": torch.tensor([token for s in sequences for token in s]),
    }
    if role is not None:
        labels["role"] = torch.tensor([r for s in role for r in s], dtype=torch.int8)
    return Activations({"resid_post.10": torch.randn(n, d, generator=torch.Generator().manual_seed(0))}, labels)


def one(factor: float, lossless: float = 0.0) -> dict[str, Any]:
    """A seed in which FAST misses a quarter, and isolated as much, of what blocks miss, and prose 8 times as much."""
    missed = {"prose": 8.0, "blocks": 1.0, "whole": 0.5, "fast": 0.25, "isolated": 0.25}
    dialogues = np.array([1.0, 2.0, 3.0])
    state = {"aligned": 0.5, "gsnr": 0.1, "gsnr-mean": 0.2, "silent": 0.0}
    gradients = [
        {"path": path, "step": step, "prose": state, "blocks": state, "fast": {**state, "aligned": 0.5 + 0.1 * factor}}
        for path in measuring.STATES
        for step in (0, 4)
    ]
    return {
        "error": {path: dict.fromkeys(SPLITS, factor * m * dialogues) for path, m in missed.items()},
        "scatter": dict.fromkeys(SPLITS, factor * 4 * dialogues),
        "cells": dict.fromkeys(SPLITS, factor * dialogues),
        "blocks": {path: m * dialogues for path, m in {"fast": 2.0, "blocks": 1.0}.items()},
        "loss": {
            "tokens": np.array([10.0, 10.0]),
            "clean": np.array([2.0, 4.0]),
            **{path: np.array([2.0, 4.0]) * (1 + rise) for path, rise in
               (("prose", 1.0), ("blocks", 0.1), ("fast", -0.04 + lossless))},
        },
        "live": dict.fromkeys(PATHS, 12),
        "isolated": torch.tensor([1e-6, 3e-6, 2e-6]),
        "moved": {"blocks": torch.tensor([0.2, 0.4]), "whole": torch.tensor([0.1, 0.3])},
        "ages": {path: torch.full((len(measuring.AGES) + 1,), 0.3) for path in ("blocks", "whole")},
        "gradients": gradients,
        "told": {"left_out": 1, "shared": 5},
    }  # fmt: skip


FOUND = [one(1.0), one(2.0)]


def value(effects: dict[str, Any], id: str) -> float:
    return float(effects[id].interval.estimate)


def test_errors_are_ratios_of_sums() -> None:
    effects = measuring._errors(FOUND)
    assert value(effects, "fast-error") == pytest.approx(-2) and value(effects, "blocks-error") == pytest.approx(-3)
    assert value(effects, "leak-error") == pytest.approx(1) and value(effects, "cut-error") == pytest.approx(1)
    assert value(effects, "isolated-error") == 0 and value(effects, "in-blocks") == pytest.approx(1)
    assert effects["fast-error"].interval.n == 6 and "by seed -2.000, -2.000" in effects["fast-error"].note
    alone = measuring._alone(FOUND)
    assert value(alone, "log2-special-prose") == pytest.approx(3) and value(alone, "explained-fast") == 1 - 0.0625
    assert alone["log2-first-fast"].interval.n == 2, "all dialogues of a seed have the same first activation"
    rest = measuring._from_one(Interval(0.25, 0.125, 0.5, 3))
    assert (rest.lo, rest.estimate, rest.hi, rest.n) == (0.5, 0.75, 0.875, 3)


def test_the_size_of_the_delta_loss_counts_not_its_sign() -> None:
    effects = measuring._losses(FOUND)
    assert value(effects, "delta-fast") == pytest.approx(-0.04) and value(effects, "delta-blocks") == pytest.approx(0.1)
    assert value(effects, "loss") == pytest.approx(0.04 - 0.1)
    worse = measuring._losses([one(1.0, 0.4), one(1.0, 0.4)])
    assert value(worse, "loss") == pytest.approx(0.36 - 0.1)


def test_gradients_and_context_are_averaged_over_states_then_seeds() -> None:
    gradients, context = measuring._gradients(FOUND), measuring._context(FOUND)
    assert value(gradients, "alignment") == pytest.approx(0.15) and gradients["alignment"].interval.n == 2
    assert "fast 0: 0.150" in gradients["alignment"].note and value(gradients, "gsnr-fast") == pytest.approx(0.1)
    assert value(context, "isolated-same") == pytest.approx(3e-6) and value(context, "moved-whole") == pytest.approx(
        0.2
    )


def test_every_claim_and_quantity_is_measured_and_pictured() -> None:
    parts = (measuring._errors, measuring._alone, measuring._losses, measuring._context, measuring._gradients)
    assert sorted(id for part in parts for id in part(FOUND)) == sorted(STUDIES["fast-sae"].ids)
    assert len(pictures.sections(FOUND, SIZE)) == 4


def test_states_lie_on_the_way_of_training() -> None:
    rows = rows_of([[0] * 512], d=6)
    none, some, all_ = (measuring._fitted(rows, 0, SIZE, steps) for steps in (0, 2, 4))
    again = measuring.fit(
        measuring.TopK(16, k=2, aux_k=0), ArrayActivations(rows, batch=128, seed=0), steps=4, lr=1e-3, warmup=0.0,
        decay=0.0, log_every=2, quiet=True,
    ).dictionary  # fmt: skip
    assert torch.equal(all_.W_enc, again.W_enc) and torch.equal(none.norm.scale, all_.norm.scale)
    assert torch.equal(none.W_enc, none.W_dec), "untrained, encoder and decoder are the same directions"
    far = [(d.W_enc - none.W_enc).abs().max() for d in (some, all_)]
    assert 0 < far[0] < 2.1e-3 < far[1] < 4.2e-3, "Adam at a level rate goes at most 1e-3 a step"


def test_blocks_of_whole_dialogues_cut_none() -> None:
    sequences = [[1, 2, 3], [4, 5], [6, 7, 8, 9], [1]]
    assert paths.joined(rows_of(sequences), 5) == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 1]]
    assert paths.joined(rows_of(sequences), 4) == [[1, 2, 3], [4, 5], [6, 7, 8, 9], [1]]
    assert paths.token_rows(rows_of(sequences)) == sequences
    assert paths._shared([[1, 2, 3], [1, 2, 4]]) == 2 and paths._shared([[1], [1, 2]]) == 1


def test_splits_tell_special_tokens_from_words_of_the_system_prompt() -> None:
    names = {"system": 7, "user": 8, "assistant": 9}
    tokenizer = SimpleNamespace(all_special_ids=[1, 2])
    model = SimpleNamespace(tokenizer=type("Words", (), {
        "all_special_ids": tokenizer.all_special_ids,
        "__call__": lambda self, text, add_special_tokens: {"input_ids": [names[text]]},
    })())  # fmt: skip
    tokens = [[1, 7, 50, 2, 1, 8, 60, 8, 2]]
    role = [[TEMPLATE, TEMPLATE, TEMPLATE, TEMPLATE, TEMPLATE, TEMPLATE, USER, USER, TEMPLATE]]
    found = paths.splits(model, rows_of(tokens, role), 4)  # type: ignore[arg-type]
    where = {name: mask.nonzero().flatten().tolist() for name, mask in found.items()}
    assert set(where) == set(SPLITS) and where["all"] == list(range(9)) and where["first"] == [0]
    assert where["special"] == [1, 3, 4, 5, 8], "not the template's own words, nor a user's word that names a role"
    assert where["own"] == [4, 5, 6, 7, 8] and where["own-special"] == [4, 5, 8] and where["rest"] == list(range(1, 9))


def test_distances_by_dialogue_and_age() -> None:
    rows = rows_of([[1, 2], [1]])
    moved = Activations({"resid_post.10": 1.5 * rows.x}, rows.labels)
    apart = measuring._distance(moved, rows)
    assert torch.allclose(apart, torch.full((3,), 0.5, dtype=torch.float64))
    values = torch.tensor([1.0, 3.0, 7.0])
    assert measuring._by(values, rows.labels["seq"], "mean").tolist() == [2, 7]
    assert measuring._by(values, rows.labels["seq"], "amax").tolist() == [3, 7]
    ages = measuring._by_age(values, rows.labels["pos"])
    assert ages[:2].tolist() == [4, 3] and bool(ages[2:].isnan().all())


@pytest.mark.real_model
def test_paths_have_the_same_tokens_and_held_out_dialogues_are_new() -> None:
    need("smollm2-135m-instruct")
    model = load("smollm2-135m-instruct")
    with silence():
        rows, held = paths.training(model, 100, SIZE), paths.held_out(model, 100, SIZE)
    assert {name: each.rows for name, each in rows.items()} == dict.fromkeys(PATHS, SIZE.tokens)
    for name in ("blocks", "isolated", "whole"):
        assert torch.equal(rows[name].labels["token"], rows["fast"].labels["token"])
    alone = float(measuring._distance(rows["isolated"], rows["fast"]).mean())
    assert alone < 0.02 < 0.05 < float(measuring._distance(rows["whole"], rows["fast"]).mean())
    assert float(measuring._distance(held.isolated, held.alone).max()) < 1e-4
    assert float(measuring._distance(held.blocks, held.alone).mean()) > 0.05
    trained = {tuple(tokens) for tokens in paths.token_rows(rows["fast"])}
    assert not trained & {tuple(tokens) for tokens in paths.token_rows(held.alone)} and held.shared > 10


@pytest.mark.real_model
def test_the_study_runs_on_a_real_model(tmp_path: Path) -> None:
    study = STUDIES["fast-sae"]
    need(study.scales["smoke"].models["chat"])
    with silence():
        done = run(study, "smoke", out=tmp_path)
    found = {f.claim.id: f for f in done.found.findings}
    assert {str(f.verdict) for f in found.values()} == {"not-judged"} and len(found) == len(study.claims)
    assert all(f.effect is not None for f in found.values()) and (found["isolated-same"].effect or 1) < 1e-4
    shown = {r.quantity.id: r.interval.estimate for r in done.found.reported if r.interval is not None}
    assert len(shown) == len(study.reported) and shown["log2-all-prose"] > shown["log2-all-fast"]
    assert 0.05 < shown["moved-whole"] < 1 and all(0 < shown[f"aligned-{path}"] <= 1 for path in MAIN)
    assert "held out" in done.found.remarks[0] and done.report.stat().st_size > 10_000
    assert json.dumps(done.found.record())
