"""Requests in every spelling mean one thing, and requests that mean nothing are refused where they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from opened_models import apart, opened, rows_of

import mechanome as mn
from mechanome.core.errors import BadInput, MechanomeError, NotFinite, ShapeMismatch, UnknownSite
from mechanome.engine import parse
from mechanome.engine.edits import flatten

IDS = rows_of("llama", 3, 8)
D = torch.randn(32, generator=torch.Generator().manual_seed(1))


def read(edits: object, site: str = "resid_post.1") -> torch.Tensor:
    return opened("llama").run(IDS, capture=site, edits=edits).captured[parse(site)]  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def donor() -> mn.Run:
    return opened("llama").run(rows_of("llama", 3, 8, seed=5), capture=["resid_post.1", "z.1"])


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ([1, 2], (1, 2)), ((1, 2), (1, 2)), (range(1, 3), (1, 2)), (iter([1, 2]), (1, 2)), ({2, 1}, (1, 2)),
        (np.array([1, 2]), (1, 2)), (torch.tensor([1, 2]), (1, 2)), ([np.int64(1), torch.tensor(2)], (1, 2)),
    ],
)  # fmt: skip
def test_integers_of_any_make_are_kept_as_tuples(given: Any, kept: tuple[int, ...]) -> None:
    given = list(given) if hasattr(given, "__next__") else given
    for name in ("pos", "rows", "steps", "keys"):
        assert getattr(mn.Where(**{name: given}), name) == kept
    assert mn.FromRows(given, given) == mn.FromRows(kept, kept)


@pytest.mark.parametrize("one", [2, np.int64(2), torch.tensor(2), np.array(2)])
def test_a_single_integer_is_one_position_or_row(one: Any) -> None:
    where = mn.Where(pos=one, rows=one, steps=one)
    assert (where.pos, where.rows, where.steps) == (2, (2,), (2,))
    assert mn.Patch("z.1", one).value == mn.FromRows((2,))


def test_positions_per_row_are_kept_as_tuples() -> None:
    for given in ([[1], [2, 3], []], (torch.tensor([1]), np.array([2, 3]), range(0))):
        assert mn.Where(pos=given).pos == ((1,), (2, 3), ())  # type: ignore[arg-type]
    assert mn.Where(pos=torch.tensor([[1], [2]])).pos == ((1,), (2,))  # type: ignore[arg-type]
    assert mn.Where(pos=slice(np.int64(1), None)).pos == slice(1, None)


def test_an_iterator_means_the_same_at_every_run() -> None:
    edit = mn.Add("resid_post.1", D, pos=iter([1, 3]), rows=iter([0, 2]))
    expected = read(mn.Add("resid_post.1", D, pos=[1, 3], rows=[0, 2]))
    assert torch.equal(read(edit), expected) and torch.equal(read(edit), expected)
    ask = [opened("llama").run(IDS, capture="z.1", pos=pos)["z.1"] for pos in (iter([1, 3]), [1, 3])]
    assert torch.equal(*ask)


@pytest.mark.parametrize("name", ["pos", "rows", "steps", "keys"])
@pytest.mark.parametrize(
    "bad", [1.5, [1.5], True, [True, False], [None], ["last"], torch.tensor([1.0]), torch.tensor([True]), {"a": 1}, [],
            np.array([]), b"12", object(), [[1], 2]]
)  # fmt: skip
def test_what_is_no_integer_chooses_nothing(name: str, bad: Any) -> None:
    with pytest.raises(BadInput):
        mn.Where(**{name: bad})


@pytest.mark.parametrize("where", [
    {"pos": [[], []]}, {"rows": "0"}, {"rows": [[0]]}, {"steps": [-1]}, {"pos": slice(0.5, None)},
    {"pos": slice(None, None, 0)},
])  # fmt: skip
def test_other_places_that_choose_nothing(where: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        mn.Where(**where)


def test_donor_positions_count_without_positions_too(donor: mn.Run) -> None:
    given = donor["resid_post.1"]
    expected = given[:, 2:3].expand(-1, 8, -1)
    for pos in (None, "all"):
        assert torch.equal(read(mn.Patch("resid_post.1", donor, pos=pos, from_pos=[2] * 8)), expected)
    before = read(())
    edit = mn.Patch("resid_post.1", 1, from_pos=[7, 6, 5, 4, 3, 2, 1, 0])
    assert torch.equal(read(edit), before[1].flip(0).expand(3, -1, -1))


@pytest.mark.parametrize(
    ("pos", "from_pos"),
    [([1, 2], [1, 2, 3]), ("last", "0:4"), (None, [2] * 9), (0, "prompt"), ([1, 2], 1), (None, [2] * 7)],
)
def test_donor_positions_are_as_many(donor: mn.Run, pos: Any, from_pos: Any) -> None:
    with pytest.raises(ShapeMismatch, match=r"as many|equally many"):
        read(mn.Patch("resid_post.1", donor, pos=pos, from_pos=from_pos))


@pytest.mark.parametrize(
    ("source", "more"),
    [
        (0, {"from_rows": [1]}), (D, {"from_pos": 1}), (D, {"from_rows": 1}), (D.numpy(), {"from_pos": 1}),
        (mn.FromRows(0), {"from_pos": 1}), (mn.FromRows(0), {"from_rows": 1}),
    ],
)  # fmt: skip
def test_what_a_source_cannot_take_is_refused_not_dropped(source: Any, more: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match="leave from_"):
        mn.Patch("resid_post.1", source, **more)


def test_donor_rows_are_named_with_their_range(donor: mn.Run) -> None:
    for edit in (
        mn.Patch("z.1", 7), mn.Patch("z.1", donor, rows=[0], from_rows=[-1]), mn.Patch("z.1", donor, from_rows=5),
    ):  # fmt: skip
        with pytest.raises(ShapeMismatch, match=r"donor row (7|-1|5) .*3 rows.*use 0 to 2"):
            read(edit, "z.1")
    part = opened("llama").run(IDS, capture="z.1.h0")
    with pytest.raises(UnknownSite, match=r"capture the whole site z\.1"):
        read(mn.Patch("z.1.h0", part), "z.1")


@pytest.mark.parametrize(
    "value", [np.float32(0.5), np.array(0.5), np.array(0.5, dtype=np.float64), torch.tensor(0.5), 0.5]
)
def test_numbers_of_any_make(value: Any) -> None:
    before = read(())
    assert apart(read(mn.Scale("resid_post.1", value)), before * 0.5) < 1e-6
    assert apart(read(mn.Add("resid_post.1", value)), before + 0.5) < 1e-6
    assert apart(read(mn.Ablate("resid_post.1", value)), torch.full_like(before, 0.5)) == 0
    assert apart(read(mn.Clamp("resid_post.1", lo=value)), before.clamp(min=0.5)) == 0


def test_arrays_are_values_of_their_own() -> None:
    array = D.numpy().copy()
    edits = [mn.Patch("resid_post.1", array), mn.Add("resid_post.1", array[::-1])]
    array[:] = 0
    assert apart(read(edits), (D + D.flip(0)).expand(3, 8, -1)) < 1e-6


@pytest.mark.parametrize("make", [
    lambda v: mn.Patch("z.1", v), lambda v: mn.Ablate("z.1", v), lambda v: mn.Add("z.1", v),
    lambda v: mn.Scale("z.1", v), lambda v: mn.Edit(parse("z.1"), "set", v),
])  # fmt: skip
@pytest.mark.parametrize("bad", [
    "1", None, True, np.bool_(True), 1j, np.complex64(1j), [0.5], (0, 1), {}, object(), torch.Tensor, mn.Run,
    torch.tensor([1j]), np.array(["a"]), np.array([1j]), torch.zeros(8, device="meta"),
], ids=lambda v: type(v).__name__)  # fmt: skip
def test_values_of_a_wrong_kind(make: Callable[[Any], object], bad: Any) -> None:
    with pytest.raises(BadInput):
        make(bad)


def test_nan_is_never_written_but_may_end_ragged_rows() -> None:
    nan, inf = float("nan"), float("inf")
    for value in (nan, torch.tensor(nan), torch.full((32,), nan), torch.cat([D[:-1], torch.tensor([nan])])):
        for make in (mn.Add, mn.Scale, mn.Ablate):
            with pytest.raises(NotFinite, match=r"resid_post\.1"):
                make("resid_post.1", value)
    half = torch.zeros(3, 8, 32)
    half[1, 2, :5] = nan
    with pytest.raises(NotFinite):
        mn.Patch("resid_post.1", half)
    with pytest.raises(NotFinite, match="infinity"):
        mn.Add("resid_post.1", inf)
    for site in ("scores.1", "logits", "router.1", "path:model.layers.1"):
        mn.Ablate(site, -inf)
    where = [[1, 2], [3], [4, 5]]
    taken = opened("llama").run(IDS, capture="resid_post.1", pos=where)["resid_post.1"]
    assert taken[1, 1].isnan().all()
    assert torch.equal(read(mn.Patch("resid_post.1", taken, pos=where)), read(()))
    with pytest.raises(NotFinite, match="is edited"):
        read(mn.Patch("resid_post.1", taken, pos=[1, 2]))


@pytest.mark.parametrize("returned", [
    None, 0.5, (D,), D.numpy(), lambda x: x.to("meta"), lambda x: x.to(torch.complex64), lambda x: x[..., :3],
], ids=lambda v: type(v).__name__)  # fmt: skip
def test_a_custom_function_returns_what_it_received(returned: Any) -> None:
    function = returned if callable(returned) else lambda x: returned
    with pytest.raises((BadInput, ShapeMismatch), match=r"custom edit of resid_post\.1.*return real numbers of shape"):
        read(mn.Custom("resid_post.1", function))


class Wrong:
    """A basis whose decode forgets the width."""

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def decode(self, c: torch.Tensor) -> torch.Tensor:
        return c[..., :2]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: mn.Edit(parse("z.1"), "custom"), "needs a function"),
        (lambda: mn.Custom("z.1", 5), "needs a function"),
        (lambda: mn.Edit(parse("z.1"), "set", 0.0, function=abs), "takes no function"),
        (lambda: mn.Edit(parse("z.1"), "custom", 1.0, function=abs), "a function only"),
        (lambda: mn.Edit(parse("z.1"), "custom", basis=mn.Directions(D), function=abs), "basis has no part"),
        (lambda: mn.Scale("z.1", 1.0, basis=5), "no encode and decode"),
        (lambda: mn.Scale("z.1", 1.0, basis=mn.Directions), "the class Directions"),
        (lambda: mn.Splice("z.1", None), "no encode and decode"),
        (lambda: mn.Splice("z.1", 5, keep_error=False), "no encode and decode"),
        (lambda: mn.Clamp("z.1", "0"), "not a real number"),
        (lambda: mn.Clamp("z.1", 1.0, 0.0), "above hi"),
        (lambda: mn.Clamp("z.1", float("nan")), "NaN"),
        (lambda: mn.Edit(parse("z.1"), "clamp", (0, 1, 2)), "a pair"),
        (lambda: mn.Add("z.1", 1.0, scale="2"), "scale of Add"),
        (lambda: mn.FromRows(None), "names none"),
        (lambda: mn.FromRun(D), "not a run"),
        (lambda: mn.Ablate("z.1", "resample", seed=-1), "seed"),
        (lambda: mn.AttentionKnockout("1", 0, 1), "layers"),
        (lambda: mn.AttentionKnockout([], 0, 1), "layers"),
        (lambda: mn.AttentionKnockout(1, 0, 1, heads=[]), "heads"),
        (lambda: mn.AttentionKnockout(1, [], 1), "keys"),
        (lambda: flatten(5), "not Edits"),  # type: ignore[arg-type]
        (lambda: flatten("z.1"), "not Edits"),  # type: ignore[arg-type]
        (lambda: read(mn.ProjectOut("resid_post.1", D[:31])), "d = 32"),
        (lambda: read(mn.Scale("resid_post.1", 0.0, basis=mn.Subspace(D[:31]))), "d = 32"),
        (lambda: read(mn.Scale("resid_post.1", 0.0, basis=mn.Neurons([1], 31))), "d = 32"),
        (lambda: read(mn.Scale("resid_post.1", 0.0, basis=Wrong())), "basis Wrong at resid_post.1"),
        (lambda: mn.Directions("x"), "directions"),
        (lambda: mn.Directions(torch.tensor([1j])), "complex"),
        (lambda: mn.Neurons([0.5], 3), "neurons"),
        (lambda: mn.Neurons([0], None), "width"),
    ],
)  # fmt: skip
def test_refusals(make: Callable[[], object], error: str) -> None:
    with pytest.raises(MechanomeError, match=error):
        make()


def test_one_head_or_layer_needs_no_list() -> None:
    assert [str(e.site) for e in mn.AttentionKnockout(np.int64(1), 0, 1, heads=2)] == ["scores.1.h2"]
