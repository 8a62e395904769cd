"""Steering in two threads at once equals steering alone; an exception leaves the model as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from opened_models import batch_of, fresh, opened, outputs, rows_of
from torch import Tensor

import mechanome as mn
from mechanome.engine.plan import Plan, activate, active

METRIC = mn.LogitDiff(5, 7)
TIMES = 25


def jobs(name: str) -> list[Callable[[mn.Model], Tensor]]:
    """Different requests of one model: steering, patterns, a sweep, nothing."""
    ids, other = rows_of(name), rows_of(name, 1, 8, seed=3)
    changed = other.clone()
    changed[0, 4] = 21
    return [
        lambda m: m.run(ids, edits=mn.Scale("z.1", 0.1)).logits,
        lambda m: m.run(ids, edits=[mn.Add("resid_post.0", 0.7, pos=2), mn.Ablate("z.1.h2")], capture="z.1")["z.1"],
        lambda m: m.run(ids, capture="pattern.1" if m.serves("pattern.1") else "mlp_act.1").logits,
        lambda m: mn.activation_patching(m, other, changed, "resid_pre", METRIC, quiet=True).values,
        lambda m: m.run(ids).logits,
    ]


@pytest.mark.parametrize("name", ["llama", "falcon", "gpt2"])
def test_threads_do_not_see_each_other(name: str) -> None:
    work = jobs(name)
    alone = [job(opened(name)) for job in work]
    model = fresh(name)  # its taps are installed while others run
    start = threading.Barrier(len(work))

    def repeat(index: int) -> int:
        start.wait()
        return sum(torch.equal(work[index](model), alone[index]) for _ in range(TIMES))

    with ThreadPoolExecutor(len(work)) as pool:
        assert list(pool.map(repeat, range(len(work)))) == [TIMES] * len(work)
    assert active() is None


def test_gradients_in_threads_equal_gradients_alone_and_flags_stay() -> None:
    ids = rows_of("llama")
    work = [
        lambda m: m.grad(METRIC, ids, "resid_pre.1")["resid_pre.1"],
        lambda m: m.grad(METRIC, ids, "z.0", edits=mn.Scale("z.1", 0.1))["z.0"],
        lambda m: m.grad(METRIC, ids, params=["lm_head.weight"]).params["lm_head.weight"],
        lambda m: m.run(ids, edits=mn.Scale("z.1", 0.1)).logits,
    ]
    alone = [job(opened("llama")) for job in work]
    model = fresh("llama")
    flags = [p.requires_grad_(i % 3 != 0).requires_grad for i, p in enumerate(model.module.parameters())]

    def repeat(index: int) -> float:
        return max(float((work[index](model) - alone[index]).abs().max()) for _ in range(TIMES))

    with ThreadPoolExecutor(8) as pool:
        assert max(pool.map(repeat, [0, 1, 2, 3] * 2)) < 1e-5
    assert [p.requires_grad for p in model.module.parameters()] == flags


def test_rows_of_one_batch_are_steered_differently() -> None:
    model, ids = opened("llama"), rows_of("llama", 3, 8)
    edits = [mn.Scale("z.1", 0.2, rows=[0]), mn.Add("resid_post.1", 1.0, rows=[1])]
    together = model.run(ids, edits=edits).logits
    alone = [model.run(ids[i : i + 1], edits=[e.at(rows=None)]).logits[0] for i, e in enumerate(edits)]
    for i, expected in enumerate([*alone, model.run(ids[2:]).logits[0]]):
        assert torch.allclose(together[i], expected, atol=1e-5)


class Failure(Exception):
    pass


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5", "falcon", "jamba", "clip", "own_transformer"])
def test_an_exception_inside_an_edit_leaves_the_model_as_it_was(name: str) -> None:
    model, batch = fresh(name), batch_of(name)
    before = outputs(model, batch)
    hooks = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.module.modules())
    sites = [s for s in model.sites if s.layer == 1 and model.why_not_edit(s) is None]
    reached = []

    def fail(x: Tensor) -> Tensor:
        reached.append(x)
        raise Failure

    for site in sites:
        with pytest.raises(Failure):
            model.run(batch, edits=mn.Custom(site, fail))
        assert active() is None
    assert len(reached) == len(sites)
    assert torch.equal(outputs(model, batch), before)
    grown = sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.module.modules())
    for site in sites:
        with pytest.raises(Failure):
            model.run(batch, edits=mn.Custom(site, fail))
    assert grown == sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.module.modules())
    assert grown >= hooks, "hooks are installed once"


def test_exceptions_in_sweeps_and_gradients_unwind_too() -> None:
    model, ids = fresh("llama"), rows_of("llama")
    before = model.run(ids).logits

    def broken(logits: Tensor, rows: Tensor) -> Tensor:
        raise Failure

    for call in (
        lambda: model.grad(broken, ids, "z.1"),
        lambda: mn.activation_patching(model, ids, ids, "z", broken, quiet=True),
    ):
        with pytest.raises(Failure):
            call()
        assert active() is None
        assert torch.is_grad_enabled()
    assert torch.equal(model.run(ids).logits, before)
    assert all(p.requires_grad for p in model.module.parameters())


def test_plans_nest_and_unwind() -> None:
    outer, inner = Plan(), Plan()
    with activate(outer):
        with pytest.raises(Failure), activate(inner):
            assert active() is inner
            raise Failure
        assert active() is outer
        seen = []
        thread = threading.Thread(target=lambda: seen.append(active()))
        thread.start()
        thread.join()
        assert seen == [None], "another thread starts without a plan"
    assert active() is None


def test_a_run_inside_a_custom_edit_is_its_own() -> None:
    model, ids = opened("llama"), rows_of("llama")
    donor: list[Tensor] = []

    def patch(x: Tensor) -> Tensor:
        donor.append(model.run(ids.flip(1), capture="z.1")["z.1"])
        return donor[0]

    run = model.run(ids, capture="z.1", edits=mn.Custom("z.1", patch))
    assert torch.equal(run["z.1"], donor[0])
    assert torch.equal(run.logits, model.run(ids, edits=mn.Patch("z.1", donor[0])).logits)
