"""Paper 05's study: its parts on small models and known numbers, and a smoke run on the real one."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import mechanome as mn
from families import build
from mechanome.circuits.native import detector_effector_units, sca
from mechanome.core import silence
from mechanome.studies import STUDIES, run
from mechanome.studies.papers.nana import BASES, Settings, dictionary, measuring, pictures, removing
from mechanome.studies.papers.nana.prompts import TASKS, part
from registry_models import need

SIZE = Settings(prompts=4, candidates=4, removed=4, draws=2, sampled=9, ablated=1, kept=(2, 6), top=5, directions=8)
PROMPTS = {
    "ids": [[11, 45, 23, 67], [71, 24, 9, 33, 80], [12, 46, 24, 68], [5, 14, 23, 32]],
    "answer": [5, 6, 7, 8],
    "foil": [15, 16, 17, 18],
}


@cache
def model() -> mn.Model:
    return mn.load(build("llama"), check="off")


def test_a_cell_measures_what_it_says() -> None:
    units = detector_effector_units(model())
    found = removing.cell(units, PROMPTS, 0, SIZE)
    own, held = part(model(), PROMPTS, 0, 2), part(model(), PROMPTS, 2, 4)
    rows = torch.arange(2)
    whole = held[1](model().run(held[0], logits="last").logits, rows).double()
    assert torch.allclose(found["whole"], whole) and found["output"].max() < 1e-4 > found["attribution"].max()
    chosen = sca(units, *own).top(4)
    edits = [
        mn.Scale(units.site(layer), _off(units, layer, unit), units.basis(layer), pos="last") for layer, unit in chosen
    ]
    without = held[1](model().run(held[0], edits=edits, logits="last").logits, rows).double()
    assert torch.allclose(found["top"], without, atol=1e-4) and not torch.allclose(without, whole, atol=1e-3)
    assert found["kept"].shape == (4,) and found["sizes"] == [2, 6]
    assert -1 <= found["ranks-gradient"] <= 1 and found["matched"] > 0


def _off(units: Any, layer: int, unit: int) -> torch.Tensor:
    factor = torch.ones(len(units[layer]))
    factor[unit] = 0.0
    return factor


def test_random_units_have_outputs_as_long() -> None:
    units = detector_effector_units(model())
    length = removing._lengths(units, part(model(), PROMPTS, 0, 4)[0])
    chosen = sorted(length, key=lambda u: -length[u])[3:8]
    found = removing._matched(units, chosen, length, 1)
    assert len(set(found)) == 5 and not set(found) & set(chosen)
    assert removing._matched(units, chosen, length, 1) == found != removing._matched(units, chosen, length, 2)
    strongest = removing._strongest(units, 3)
    assert all(unit < 3 for _, unit in strongest)


def stored(n: int = 4) -> measuring.Stored:
    cells, shares = [], []
    for task in list(TASKS) * 2:
        whole = torch.linspace(4, 5, n, dtype=torch.float64)
        drops = {"top": 2.0, "gradient": 2.0, "random": 0.1, "sigma": 1.0, "neurons": 1.0}
        rows = {name: whole - drop for name, drop in drops.items()}
        kept = torch.stack([0.2 * whole, 0.9 * whole], 1).flatten()
        error = torch.full((n,), 1e-6, dtype=torch.float64)
        ranks = {"ranks-gradient": 0.9, "ranks-direct": 0.3}
        cells.append({"whole": whole, **rows, "kept": kept, "sizes": [2, 6], "output": error, "attribution": error,
                      "matched": 1.0, "task": task, **ranks})  # fmt: skip
        held = {"svd": 0.6, "neurons": 0.7, "rotated": 0.2, "rotated-within": 0.3}
        base = {name: torch.full((n,), v, dtype=torch.float64) for name, v in held.items()}
        shares.append({name: {"plain": x + torch.arange(n) / 100, "centred": x / 2} for name, x in base.items()})
    reading = {
        "units": torch.tensor([[0, 1], [2, 3]]), "share": torch.tensor([0.1, 0.05]),
        "alike-own": torch.tensor([0.9, 0.5]), "alike-random": torch.tensor([0.1, 0.2, 0.6, 0.0]),
        "peaked-own": torch.tensor([3.0, 1.0]), "peaked-random": torch.tensor([2.0, 2.0, 0.0, 2.0]),
        "tokens": [["a", "b"], ["c", "d"]],
    }  # fmt: skip
    cost = {"svd": 20.0, "sca": 10.0, "layers": 30, "fvu": 0.29, "steps": 80, "seconds": 60.0, "reached": True}
    counts = dict.fromkeys(TASKS, 8)
    return measuring.Stored(cells, shares, [reading, reading], [cost, {**cost, "seconds": 70.0}], counts, counts)


def test_claims_are_measured_as_they_say() -> None:
    found = stored()
    effects = {**measuring._removals(found.removals), **measuring._shares(found.shares)}
    effects |= {**measuring._reading(found.reading), **measuring._costs(found.costs)}
    assert set(effects) == set(STUDIES["nana"].ids)
    estimate = {name: effect.interval.estimate for name, effect in effects.items() if effect.interval}
    assert estimate["beats-random"] == pytest.approx(2.0 - 0.5) and estimate["beats-sigma"] == pytest.approx(0.5)
    assert estimate["concentrated"] == pytest.approx(0.4) and estimate["over-neurons"] == pytest.approx(-0.1)
    assert estimate["centred-concentrated"] == pytest.approx(0.2)
    assert estimate["coherent"] == pytest.approx((1.0 + 0.75) / 2) and effects["coherent"].interval.level == 0.99
    assert estimate["peaked"] == pytest.approx((1.0 + 0.25) / 2) and effects["coherent"].interval.n == 2
    assert estimate["cheaper"] == pytest.approx(65.0) and "2 of 2" in effects["cheaper"].note
    assert estimate["kept-recovered"] == pytest.approx(0.9) and estimate["gradient-ranks"] == pytest.approx(0.9)
    assert "capitals 2.00" in effects["beats-random"].note
    shown = pictures.sections(found, SIZE)
    assert all(section.picture.html() for section in shown) and len(shown) == 4


def test_the_dictionary_learns_sparse_data() -> None:
    generator = torch.Generator().manual_seed(0)
    data = torch.relu(torch.randn(1500, 90, generator=generator) - 1.2) @ torch.randn(90, 128, generator=generator)
    found = dictionary.trained(data, seed=0, steps=60)
    assert found["fvu"] < 0.5 and found["steps"] <= 60 and found["seconds"] > 0
    assert found["reached"] == (found["fvu"] <= 0.3)
    short = dictionary.trained(data, seed=0, steps=1)
    assert short["steps"] == 1 and short["fvu"] > found["fvu"]


@pytest.mark.real_model
def test_the_study_runs_on_the_real_model(tmp_path: Path) -> None:
    study = STUDIES["nana"]
    need(*study.scales["smoke"].models.values())
    with silence():
        done = run(study, "smoke", out=tmp_path)
    found: dict[str, Any] = {f.claim.id: f for f in done.found.findings}
    assert len(found) == len(study.claims) and {str(f.verdict) for f in found.values()} == {"not-judged"}
    assert found["exact-output"].effect < 1e-4 and found["exact-shares"].effect < 1e-4
    assert 0 < found["coherent"].effect <= 1 and done.report.stat().st_size > 10_000
    assert set(BASES) <= {r.quantity.id.removeprefix("share-") for r in done.found.reported}
