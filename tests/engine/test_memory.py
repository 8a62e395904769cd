"""Budgets, runs in pieces, and number formats: what is too large is refused before it starts."""

from __future__ import annotations

import pytest
import torch
from opened_models import apart, fresh, inputs_of, opened, rows_of, unpadded

import mechanome as mn
from families import build
from mechanome.core.errors import BadInput, BudgetTooSmall
from mechanome.engine import memory

METRIC = mn.LogitDiff(5, 7)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1234, 1234), ("1234", 1234), ("2KB", 2000), ("2 kb", 2000), ("1.5MB", 1_500_000), ("2GB", 2 * 10**9),
        ("1KiB", 1024), ("512MiB", 512 * 2**20), ("0.5gib", 2**29), (" 7 B ", 7),
    ],
)  # fmt: skip
def test_budgets_in_words(text: int | str, size: int) -> None:
    assert memory.parse_budget(text) == size


@pytest.mark.parametrize("text", ["", "GB", "2TB", "2 G B", "-3", "1e9", "two", "2KiBs", 0, -5])
def test_what_is_no_budget_is_refused(text: int | str) -> None:
    with pytest.raises(BadInput, match="budget"):
        memory.parse_budget(text)


def test_no_budget_is_a_quarter_of_what_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda device="cpu": 4000)
    assert memory.parse_budget(None) == 1000
    monkeypatch.undo()
    assert 2**20 < memory.available() < 2**50


def test_pieces_and_sizes() -> None:
    assert memory.pieces(10, 100, 350, "row") == 3
    assert memory.pieces(2, 100, 10**9, "row") == 2
    assert memory.pieces(0, 100, 200, "row") == 1
    assert memory.pieces(10, 100, 350, "row", kept=150) == 2
    with pytest.raises(BudgetTooSmall, match=r"one row needs about 1\.0 KB, beside 49 B.*give at least 1\.1 KB"):
        memory.pieces(10, 1000, 1048, "row", kept=49)
    with pytest.raises(BudgetTooSmall, match=r"one row needs about 100 B\. Fix: give at least 100 B"):
        memory.pieces(10, 100, 99, "row")
    assert [memory.show(n) for n in (12, 1500, 2_500_000, 3.2e9)] == ["12 B", "1.5 KB", "2.5 MB", "3.2 GB"]
    assert memory.nbytes(2, 3, dtype=torch.float16) == 12 and memory.nbytes(5) == 20


@pytest.mark.parametrize("name", ["llama", "gpt2", "bert"])
def test_rows_run_in_pieces_give_the_same(name: str) -> None:
    model, ids = opened(name), rows_of(name, 6, 8)
    sites = ["z.1", "resid_post.2"]
    whole = model.run(ids, capture=sites)
    kept = sum(whole[s].numel() for s in sites) * 4 + whole.logits.numel() * 4
    small = model.run(ids, capture=sites, budget=kept + 40_000)
    assert "pieces" in small.notes[0] and not whole.notes
    assert apart(small.logits, whole.logits) < 1e-6
    for site in sites:
        assert apart(small[site], whole[site]) < 1e-6
    edit = mn.Scale("z.1", 0.5, pos="last")
    again = model.run(ids, edits=edit, budget=kept + 40_000)
    assert apart(again.logits, model.run(ids, edits=edit).logits) < 1e-6


def test_what_cannot_fit_is_refused_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = fresh("llama"), rows_of("llama", 6, 8)
    monkeypatch.setattr(type(model.module), "forward", lambda *a, **k: pytest.fail("it started"))
    for request in (
        {"capture": "*", "budget": 10_000}, {"budget": 100, "logits": False},
        {"edits": mn.Ablate("z.1", "resample"), "budget": 60_000}, {"edits": mn.Patch("z.1", 0), "budget": 60_000},
        {"edits": mn.Add("z.1", torch.zeros(6, 4, 8)), "budget": 60_000},
    ):  # fmt: skip
        with pytest.raises(BudgetTooSmall) as refusal:
            model.run(ids, **request)
        assert refusal.value.fix


@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "gemma2", "mixtral", "bert", "t5", "vit", "mamba", "gpt_oss", "clip"]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(name: str, dtype: torch.dtype) -> None:
    model = mn.load(build(name), dtype=dtype)
    assert model.dtype == dtype and not model.report.read_only.keys() - {f"router.{i}" for i in range(9)}
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in unpadded(inputs_of(name), 0).items()}
    exact, tower = opened(name), {"t5": "decoder", "clip": "vision"}.get(name)
    points = [p for p in ("resid_pre", "z", "pattern", "mlp_out") if exact.serves(mn.Site(p, 1, tower=tower))]
    sites = [mn.Site(p, 1, tower=tower) for p in points]
    run, full = model.run(inputs, capture=sites), exact.run(unpadded(inputs_of(name), 0), capture=sites)
    streams = torch.float32 if name == "mamba" else dtype  # mamba keeps its stream in float32
    for site in sites:
        assert run[site].dtype == (streams if site.point == "resid_pre" else dtype), site
        assert apart(run[site].float(), full[site]) < 0.25, site
    vector = torch.randn(run[sites[0]].shape[-1])  # float32: values follow the site's type
    edited = model.run(inputs, edits=mn.Add(sites[0], vector), capture=sites[0])
    assert edited[sites[0]].dtype == streams
    assert apart(edited[sites[0]].float(), run[sites[0]].float() + vector) < 0.02
    donor = exact.run(unpadded(inputs_of(name), 0), capture=sites[0])
    patched = model.run(inputs, edits=mn.Patch(sites[0], donor), capture=sites[0])
    assert torch.equal(patched[sites[0]], donor[sites[0]].to(streams))
    if model.serves("logits"):
        assert model.grad(METRIC, inputs, sites[0])[sites[0]].dtype == streams


def test_half_precision_sweeps_and_bases() -> None:
    model, clean = mn.load(build("llama"), dtype="bfloat16"), rows_of("llama", 1, 8)
    other = clean.clone()
    other[0, 3] = 11
    found = mn.activation_patching(model, clean, other, "resid_pre", METRIC, quiet=True)
    exact = mn.activation_patching(opened("llama"), clean, other, "resid_pre", METRIC, quiet=True)
    assert found.values.dtype == torch.float32 and apart(found.values, exact.values) < 0.2
    cut = model.run(clean, capture="z.1", edits=mn.ProjectOut("z.1.h2", torch.randn(8)))
    assert cut["z.1"].dtype == torch.bfloat16
    with pytest.raises(BadInput, match="floating-point"):
        mn.load(build("llama"), dtype="int8")
