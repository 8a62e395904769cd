"""Every served point of every family: an edit moves the output, its own value does not, it reaches what it names."""

from __future__ import annotations

import pytest
import torch
from opened_models import LANGUAGE, NAMED, apart, batch_of, opened, outputs, real_apart, rows_of
from torch import Tensor

import mechanome as mn
from families import FAMILIES
from mechanome.core.errors import NotServed
from mechanome.engine.points import POINTS

CELLS = [(n, t) for n in NAMED for t in (FAMILIES[n].towers or (None,))]
MASKED = ("scores", "pattern", "cross_scores", "cross_pattern")


def first_layers(name: str, tower: str | None) -> list[mn.Site]:
    """One site of every writable point: in its first layer, but never layer 0, where streams are inputs."""
    model, found = opened(name), {}
    for site in reversed(model.sites):
        if site.tower == tower and model.why_not_edit(site) is None and (site.layer != 0 or site.point not in found):
            found[site.point] = site
    return list(found.values())


def bend(x: Tensor) -> Tensor:
    return x * torch.linspace(0.4, 1.3, x.shape[-1])


@pytest.mark.parametrize(("name", "tower"), CELLS)
def test_an_edit_moves_the_output_and_its_own_value_does_not(name: str, tower: str | None) -> None:
    model, batch = opened(name), batch_of(name).take([0])  # its longest row has no padding
    before = outputs(model, batch)
    for site in first_layers(name, tower):
        value = model.run(batch, capture=site).captured[site]
        moved = outputs(model, batch, mn.Custom(site, bend))
        assert apart(moved, before) > 1e-5, f"{site} does not move the output"
        held = outputs(model, batch, mn.Edit(site, "set", value))
        assert apart(held, before) < 2e-6, f"{site} set to its own value moves the output"


@pytest.mark.parametrize(("name", "tower"), CELLS)
def test_what_is_written_is_what_is_read_and_the_model_goes_on_with_it(name: str, tower: str | None) -> None:
    model, batch = opened(name), batch_of(name).take([0])
    for site in first_layers(name, tower):
        value = bend(model.run(batch, capture=site).captured[site])
        run = model.run(batch, edits=mn.Edit(site, "set", value), capture=site)
        assert real_apart(model, batch, site, run.captured[site], value) < 2e-6, site


@pytest.mark.parametrize(("name", "tower"), CELLS)
def test_a_coordinate_of_a_row_is_edited_alone(name: str, tower: str | None) -> None:
    """Reading back the edited site: only the named row, position and head (or neuron, or expert) differ."""
    model, batch = opened(name), batch_of(name)
    for site in first_layers(name, tower):
        before = model.run(batch, capture=site).captured[site]
        for axis in POINTS[site.point].coordinates:
            one = mn.Site(site.point, site.layer, tower=site.tower, **{axis: 1})
            edit = mn.Add(one, 0.7, rows=[0], pos=0 if before.shape[1] == 1 else 1)
            after = model.run(batch, capture=site, edits=edit).captured[site]
            expected = before.clone()
            place = (0, 0 if before.shape[1] == 1 else 1, *((1,) if axis in ("head", "kv") else (..., 1)))
            expected[place] += 0.7
            assert apart(after[0], expected[0]) < 2e-6, one
            others = before[1:].clone(), after[1:].clone()
            if site.point in MASKED:  # padded queries hold what the backend likes
                others = tuple(x.nan_to_num().clamp(-1e4, 1e4) for x in others)  # type: ignore[assignment]
            assert apart(others[1], others[0]) < 2e-6, f"{one} reached other rows"
            assert not torch.equal(after[0], before[0])


@pytest.mark.parametrize("name", [n for n in LANGUAGE if n != "mixtral"])
def test_an_edit_at_a_position_leaves_earlier_logits_and_other_rows_alone(name: str) -> None:
    model, ids = opened(name), rows_of(name, 2, 8)
    before = model.run(ids).logits
    for site in first_layers(name, None):
        if site.point == "logits":
            continue
        edit = mn.Custom(site, bend, pos=5, rows=[1])
        after = model.run(ids, edits=edit).logits
        assert torch.allclose(after[0], before[0], atol=2e-5), f"{site} reached another row"
        assert torch.allclose(after[1, :5], before[1, :5], atol=2e-5), f"{site} reached earlier positions"
        assert not torch.allclose(after[1, 5:], before[1, 5:], atol=1e-5), site


@pytest.mark.parametrize("name", NAMED)
def test_refused_points_say_why_and_raise(name: str) -> None:
    model, batch = opened(name), batch_of(name)
    served = set(model.sites)
    for tower in model.architecture.towers:
        for point in POINTS.values():
            layers: range | list[None] = range(len(tower.blocks)) if point.per_layer else [None]
            for layer in layers:
                site = mn.Site(point.name, layer, tower=None if point.name == "logits" else tower.name)
                why = model.why_not(site)
                assert (why is None) == (site in served)
                if why is None:
                    assert model.tap(site) is not None
                    continue
                assert "Fix: " in why and len(why.split(": ")[1]) > 10
                for request in ({"capture": site}, {"edits": mn.Edit(site, "set", 0.0)}):
                    with pytest.raises(NotServed):
                        model.run(batch, **request)
                with pytest.raises(NotServed):
                    model.grad(lambda x, rows: x.sum(-1), batch, site)


@pytest.mark.parametrize("name", NAMED)
def test_read_only_points_can_be_read_but_not_edited(name: str) -> None:
    model, batch = opened(name), batch_of(name)
    locked = [s for s in model.sites if model.why_not_edit(s) is not None]
    assert {s.point for s in locked} <= {"head_out", "router"}
    for site in locked:
        assert site in model.run(batch, capture=site)
        with pytest.raises(NotServed):
            model.run(batch, edits=mn.Edit(site, "set", 0.0))
        with pytest.raises(NotServed):
            model.grad(lambda x, rows: x.sum(-1), batch, site)


RESIDUAL = [(n, t) for n, t in CELLS if any(s.point == "resid_mid" and s.tower == t for s in opened(n).sites)]


@pytest.mark.parametrize(("name", "tower"), RESIDUAL)
def test_writing_resid_mid_is_exact(name: str, tower: str | None) -> None:
    """The MLP sees what was written, and so does the skip connection around it."""
    model, batch = opened(name), batch_of(name).take([0])
    post_norm = model.architecture.tower(tower).blocks[1].style == "post"
    mid, ln2, out, post = (mn.Site(p, 1, tower=tower) for p in ("resid_mid", "ln2", "mlp_out", "resid_post"))
    value = torch.randn(model.run(batch, capture=mid).captured[mid].shape, generator=torch.Generator().manual_seed(0))
    run = model.run(batch, edits=mn.Edit(mid, "set", value), capture=[mid, ln2, out, post])
    assert apart(run[mid], value) < 2e-6
    block = model.architecture.tower(tower).blocks[1]
    norm = block.roles["ln2"].module
    with torch.no_grad():
        if post_norm:
            assert apart(run[post], norm(value + run[out])) < 1e-5
        else:
            assert apart(run[ln2], norm(value)) < 1e-5
            assert apart(run[post], value + run[out].reshape(value.shape)) < 1e-5
    one = model.run(batch, edits=mn.Edit(mid, "set", value[:, 2], where=mn.Where(pos=2)), capture=mid)
    assert apart(one[mid][:, 2], value[:, 2]) < 2e-6
    alone = model.run(batch, capture=mid)
    keep = [i for i in range(value.shape[1]) if i != 2]
    assert apart(one[mid][:, keep], alone[mid][:, keep]) < 2e-6
