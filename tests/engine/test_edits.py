"""Edits against hand computation: operations, donors, positions, masks; and what they refuse."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from opened_models import apart, batch_of, fresh, opened, rows_of
from torch import Tensor

import mechanome as mn
from mechanome.core.errors import BadInput, NotServed, ShapeMismatch, UnknownName, UnknownSite
from mechanome.engine import parse

IDS = rows_of("llama", 3, 8)


def read(edits: object, site: str = "resid_post.1", ids: object = IDS, name: str = "llama") -> Tensor:
    """A site after edits, whole: `batch pos feature...`."""
    return opened(name).run(ids, capture=site, edits=edits).captured[parse(site)]  # type: ignore[arg-type]


D = torch.randn(32, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (mn.Add("resid_post.1", D, 2.0), lambda x: x + 2 * D),
        (mn.Add("resid_post.1", 0.5), lambda x: x + 0.5),
        (mn.Scale("resid_post.1", -3.0), lambda x: x * -3),
        (mn.Scale("resid_post.1", D), lambda x: x * D),
        (mn.Clamp("resid_post.1", -0.1, 0.2), lambda x: x.clamp(-0.1, 0.2)),
        (mn.Clamp("resid_post.1", lo=0.0), lambda x: x.clamp(min=0)),
        (mn.Clamp("resid_post.1"), lambda x: x),
        (mn.Ablate("resid_post.1"), lambda x: x * 0),
        (mn.Ablate("resid_post.1", D), lambda x: D.expand_as(x)),
        (mn.Ablate("resid_post.1", 0.25), lambda x: torch.full_like(x, 0.25)),
        (mn.ProjectOut("resid_post.1", D), lambda x: x - (x @ D)[..., None] * D / D.dot(D)),
        (mn.Custom("resid_post.1", lambda x: x.flip(-1)), lambda x: x.flip(-1)),
    ],
)
def test_operations_everywhere_and_at_cells(edit: mn.Edit, expected: Callable[[Tensor], Tensor]) -> None:
    before = read(())
    assert apart(read(edit), expected(before)) < 1e-5
    after = before.clone()
    after[[0, 2], 3] = expected(before[[0, 2], 3])
    after[[0, 2], 5] = expected(before[[0, 2], 5])
    assert apart(read(edit.at(pos=[3, 5], rows=[0, 2])), after) < 1e-5


def test_values_per_row_and_per_position() -> None:
    before = read(())
    rows, cells = torch.randn(3, 32), torch.randn(3, 8, 32)
    assert apart(read(mn.Add("resid_post.1", rows)), before + rows[:, None]) < 1e-6
    assert apart(read(mn.Add("resid_post.1", cells)), before + cells) < 1e-6
    after = before.clone()
    after[2, 4:6] += rows[2]
    assert apart(read(mn.Add("resid_post.1", rows, pos="4:6", rows=[2])), after) < 1e-6
    after = before.clone()
    after[1, 6], after[1, 2] = cells[1, 0], cells[1, 1]  # the first and second of the positions asked for
    assert apart(read(mn.Patch("resid_post.1", cells[:, :2], pos=[6, 2], rows=[1])), after) < 1e-6
    heads = torch.randn(3, 8)
    after = read((), "z.1")
    after[:, :, 2] += heads[:, None]
    assert apart(read(mn.Add("z.1.h2", heads), "z.1"), after) < 1e-6


@pytest.mark.parametrize("shape", [(31,), (2, 32), (3, 7, 32), (3, 8, 2, 32)])
def test_values_that_do_not_fit_are_refused(shape: tuple[int, ...]) -> None:
    for where in ({}, {"pos": [0, 7]}):
        with pytest.raises(ShapeMismatch):
            read(mn.Add("resid_post.1", torch.zeros(shape), **where))


def test_donors_from_rows() -> None:
    before = read((), "z.1")
    after = before.clone()
    after[1, :, 2], after[2, :, 2] = before[0, :, 2], before[0, :, 2]
    assert apart(read(mn.Patch("z.1.h2", 0), "z.1"), after) < 1e-6
    swapped = mn.Edit(parse("z.1"), "set", mn.FromRows([1, 0, 2]))
    assert torch.equal(read(swapped, "z.1"), before[[1, 0, 2]])
    moved = before.clone()
    moved[2, 5], moved[2, 6] = before[1, 0], before[1, 3]
    assert torch.equal(read(mn.Patch("z.1", 1, pos=[5, 6], from_pos=[0, 3], rows=[2]), "z.1"), moved)
    each = before.clone()
    each[0], each[2] = before[1], before[0]
    edit = mn.Edit(parse("z.1"), "set", mn.FromRows([1, 0]), mn.Where(rows=[0, 2]))
    assert torch.equal(read(edit, "z.1"), each), "one donor per edited row"


def test_donors_from_runs() -> None:
    model = opened("llama")
    other = model.run(rows_of("llama", 3, 8, seed=5), capture=["z.1", "k.1", "pattern.1"])
    for site in ("z.1", "k.1", "pattern.1"):
        assert torch.equal(read(mn.Patch(site, other), site), other.captured[parse(site)])
    after = read((), "k.1")
    after[:, 7, 1] = other["k.1"][:, 2, 1]
    assert apart(read(mn.Patch("k.1.kv1", other, pos="last", from_pos=2), "k.1"), after) < 1e-6
    one = model.run(rows_of("llama", 1, 8, seed=6), capture="z.1")
    assert torch.equal(read(mn.Patch("z.1", one), "z.1"), one["z.1"].expand(3, -1, -1, -1)), "a lone donor serves all"
    after = read((), "z.1")
    after[1] = other["z.1"][2]
    assert torch.equal(read(mn.Patch("z.1", other, rows=[1], from_rows=[2]), "z.1"), after)
    added = mn.Edit(parse("z.1"), "add", mn.FromRun(other))
    assert apart(read(added, "z.1"), read((), "z.1") + other["z.1"]) < 1e-6


def test_donors_pair_by_real_position_whatever_the_padding() -> None:
    model = opened("llama")
    prompts = [IDS[0].tolist(), IDS[1, :5].tolist()]
    others = [rows_of("llama", 1, 8, seed=7)[0].tolist(), rows_of("llama", 1, 5, seed=8)[0].tolist()]
    expected = [model.run(o, capture="z.1")["z.1"][0] for o in others]
    for mine in ("left", "right"):
        for theirs in ("left", "right"):
            donor = model.run(model.encode(others, pad=theirs), capture=["z.1", "pattern.1"])
            batch = model.encode(prompts, pad=mine)
            after = model.run(batch, capture="z.1", edits=mn.Patch("z.1", donor)).captured[parse("z.1")]
            for row, (start, n) in enumerate(zip(batch.frame.starts, batch.frame.lengths)):
                assert apart(after[row, start : start + n], expected[row]) < 1e-5, (mine, theirs)
            if mine != theirs:
                with pytest.raises(ShapeMismatch, match="padded on another side"):
                    model.run(batch, edits=mn.Patch("pattern.1", donor))


def test_spans_of_different_lengths_and_places() -> None:
    model = opened("llama")
    spans = [{"subject": [1, 2], "verb": [5]}, {"subject": [3, 4], "verb": [0]}, {"subject": [6, 7], "verb": [2]}]
    donor = model.run(rows_of("llama", 3, 8, seed=5), capture="resid_post.1", spans=spans)
    edit = mn.Patch("resid_post.1", donor, pos="subject", from_pos="subject")
    other = [{"subject": [0, 1]}, {"subject": [5]}, {"subject": [2, 4]}]
    run = model.run(IDS, capture="resid_post.1", edits=edit, spans=other)
    after = read(())
    after[0, [0, 1]], after[1, 5], after[2, [2, 4]] = (
        donor["resid_post.1"][0, [1, 2]], donor["resid_post.1"][1, 3], donor["resid_post.1"][2, [6, 7]],
    )  # fmt: skip
    assert torch.equal(run["resid_post.1"], after)
    with pytest.raises(ShapeMismatch, match="more than it is given"):
        model.run(IDS, edits=mn.Patch("resid_post.1", donor, pos="subject", from_pos="verb"), spans=other)
    with pytest.raises(UnknownName, match="no span"):
        model.run(IDS, edits=mn.Ablate("z.1", pos="object"), spans=other)


def test_resampling_draws_each_row_from_another_and_repeats_with_its_seed() -> None:
    before = read((), "z.1")
    draws = set()
    for seed in range(8):
        after = read(mn.Ablate("z.1", "resample", seed=seed), "z.1")
        assert torch.equal(after, read(mn.Ablate("z.1", "resample", seed=seed), "z.1"))
        source = [next(i for i in range(3) if torch.equal(after[row], before[i])) for row in range(3)]
        assert all(row != i for row, i in enumerate(source)) and sorted(source) == [0, 1, 2]
        draws.add(tuple(source))
    assert len(draws) == 2, "both derangements of three rows occur"
    with pytest.raises(NotServed, match="one row"):
        read(mn.Ablate("z.1", "resample"), ids=IDS[:1])


def test_freezing_to_a_run_brings_its_answer_back() -> None:
    model = opened("llama")
    clean = model.run(IDS, capture=["attn_out.*", "mlp_out.*", "embed"])
    other = rows_of("llama", 3, 8, seed=9)
    assert apart(model.run(other).logits, clean.logits) > 0.1
    assert apart(model.run(other, edits=mn.FreezeTo(clean)).logits, clean.logits) < 1e-5
    some = mn.FreezeTo(clean, ["mlp_out.1"], pos="last")
    assert [str(e.site) for e in some] == ["mlp_out.1"] and some[0].where.pos == "last"


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "t5", "gpt_oss", "bert"])
def test_knocking_out_attention(name: str) -> None:
    model, batch = opened(name), batch_of(name).take([0])
    tower = "decoder" if name == "t5" else None
    pattern = mn.Site("pattern", 1, tower=tower)
    before = model.run(batch, capture=pattern)[pattern]
    cut = mn.AttentionKnockout(1, src=[0, 1], dst="last", heads=[2], tower=tower)
    after = model.run(batch, capture=pattern, edits=cut)[pattern]
    last = batch.frame.lengths[0] - 1
    expected = before.clone()
    row = before[0, 2, last].clone()
    kept = 1 - row[:2].sum()
    row[:2] = 0
    if name == "gpt_oss":  # the sink keeps its weight against each key's
        sink = 1 - before[0, 2, last].sum()
        expected[0, 2, last] = row / (row.sum() + sink)
    else:
        expected[0, 2, last] = row / kept
    assert apart(after, expected) < 1e-5
    zeroed = mn.AttentionKnockout([1], src=[0, 1], dst="last", heads=[2], renormalize=False, tower=tower)
    after = model.run(batch, capture=pattern, edits=zeroed)[pattern]
    expected[0, 2, last] = row
    assert apart(after, expected) < 1e-6


@pytest.mark.parametrize("name", ["llama", "gpt2", "phi3", "gemma2"])
def test_a_query_without_keys_attends_to_nothing_never_to_the_future(name: str) -> None:
    model = opened(name)
    ids = rows_of(name, 1, 6)
    cut = mn.AttentionKnockout(1, src=0, dst="all")  # the first token sees only itself
    run = model.run(ids, capture=["pattern.1", "z.1"], edits=cut)
    assert run["pattern.1"][0, :, 0].abs().max() == 0
    assert run["z.1"][0, 0].abs().max() == 0
    assert torch.allclose(run["pattern.1"][0, :, 1:].sum(-1), torch.ones(()), atol=1e-5)
    assert run.logits.isfinite().all()
    grad = model.grad(mn.Logit(5), ids, "resid_pre.1", edits=cut)["resid_pre.1"]
    assert grad.isfinite().all() and grad.abs().max() > 0


@pytest.mark.parametrize(
    "edit", [mn.Ablate("scores.1"), mn.Clamp("scores.1", lo=-1.0), mn.Add("scores.1", 1e38), mn.Scale("scores.1", 0.0)]
)
def test_writing_scores_never_shows_a_query_what_its_mask_hides(edit: mn.Edit) -> None:
    pattern = read(edit, "pattern.1", name="mistral").transpose(1, 2)  # a window of 4
    visible = torch.ones(8, 8).tril().bool() & torch.ones(8, 8).triu(-3).bool()
    assert pattern[..., ~visible].abs().max() == 0
    assert torch.allclose(pattern.sum(-1), torch.ones(()), atol=1e-5)


def test_keys_restrict_scores_and_patterns_only() -> None:
    before = read((), "pattern.1")  # batch query head key
    after = before.clone()
    after[:, 6, 1, [2, 3]] = 0.125
    edit = mn.Edit(parse("pattern.1.h1"), "set", 0.125, mn.Where(pos=6, keys="2:4"))
    assert torch.equal(read(edit, "pattern.1"), after)
    with pytest.raises(BadInput, match="key axis"):
        mn.Edit(parse("z.1"), "set", 0.0, mn.Where(keys=[0]))


def test_edits_apply_in_order_and_gradients_and_captures_see_the_result() -> None:
    first, second = mn.Add("resid_post.1", 1.0), mn.Scale("resid_post.1", 2.0)
    before = read(())
    assert apart(read([first, second]), (before + 1) * 2) < 1e-6
    assert apart(read([second, [first]]), before * 2 + 1) < 1e-6


def test_a_custom_edit_must_keep_its_shape_and_may_fail_without_a_trace() -> None:
    model = opened("llama")
    before = model.run(IDS).logits
    with pytest.raises(ShapeMismatch, match="it returned"):
        read(mn.Custom("z.1", lambda x: x[..., :2]))

    def fail(x: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read(mn.Custom("z.1", fail))
    assert torch.equal(model.run(IDS).logits, before)


def test_a_custom_edit_may_run_modules_of_the_model_itself() -> None:
    model = opened("llama")
    norm = model.module.model.layers[1].input_layernorm

    def again(x: Tensor) -> Tensor:
        return norm(x)

    expected = norm(model.run(IDS, capture="ln1.1")["ln1.1"])
    assert torch.equal(read(mn.Custom("ln1.1", again), "ln1.1"), expected)


def test_the_callers_tensors_are_never_changed() -> None:
    model = fresh("falcon", check="off")  # it adds to what its MLP returns, in place
    mean = torch.randn(32)
    value, kept = torch.randn(3, 8, 32), {}
    kept = {"mean": mean.clone(), "value": value.clone()}
    run = model.run(IDS, capture="mlp_out.1")
    donated = run["mlp_out.1"].clone()
    for edit in (
        mn.Ablate("mlp_out.1", mean), mn.Patch("mlp_out.1", value), mn.Custom("mlp_out.1", lambda x: value),
        mn.Patch("mlp_out.1", run), mn.Patch("mlp_out.1", 0), mn.Ablate("mlp_out.1"),
    ):  # fmt: skip
        model.run(IDS, edits=edit)
    assert torch.equal(mean, kept["mean"]) and torch.equal(value, kept["value"])
    assert torch.equal(run["mlp_out.1"], donated)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: mn.Edit("z.1", "sett", 0.0), "did you mean 'set'"),
        (lambda: mn.Edit("z.1", "set"), "needs a value"),
        (lambda: mn.Edit("z.1", "clamp", 1.0), "a pair"),
        (lambda: mn.Ablate("z.1", "zeros"), "did you mean 'zero'"),
        (lambda: mn.Where(phase="decoding"), "no such phase"),
        (lambda: opened("llama").run(IDS, edits=[0.5]), "not an Edit"),
        (lambda: read(mn.Ablate("z.1", rows=[3])), "has 3 rows"),
        (lambda: read(mn.Ablate("z.1", pos=8)), "has 8 tokens"),
        (lambda: read(mn.Edit("z.1", "set", mn.FromRows([0, 1]))), "2 donors for 3 rows"),
        (lambda: read(mn.Edit("z.1", "set", mn.FromRows([3]))), "donor"),
    ],
)
def test_refusals(make: Callable[[], object], error: str) -> None:
    with pytest.raises((BadInput, ShapeMismatch), match=error):
        make()


def test_donor_runs_must_hold_the_site_everywhere() -> None:
    model = opened("llama")
    with pytest.raises(BadInput, match="only some positions"):
        read(mn.Patch("z.1", model.run(IDS, capture="z.1", pos="last")))
    with pytest.raises(UnknownSite, match="did not capture"):
        read(mn.Patch("z.1", model.run(IDS, capture="z.2")))
    with pytest.raises(ShapeMismatch):
        read(mn.Patch("z.1", model.run(IDS[:2], capture="z.1")))
    with pytest.raises(ShapeMismatch, match="no position"):
        read(mn.Patch("z.1", model.run(IDS[:, :5], capture="z.1")))
    with pytest.raises(ShapeMismatch, match="features"):
        read(mn.Patch("pattern.1", model.run(IDS[:, :5], capture="pattern.1"), pos=2))
