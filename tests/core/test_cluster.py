"""Fanning out: in order, with the same results here and in workers, and with nothing left running."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import fanned_out
import pytest
import torch

from local_ray import local_ray  # noqa: F401
from mechanome.core.cluster import fan_out
from mechanome.core.errors import BadInput, NotFinite, NotServed


def called(function, items, **options):
    with fan_out(function, items, **options) as results:
        return list(results)


@pytest.fixture(params=["here", "ray"])
def cluster(request):
    return None if request.param == "here" else request.getfixturevalue("local_ray")


def test_workers_give_what_this_process_gives_in_order(local_ray):  # noqa: F811
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    here = called(fanned_out.drawn, range(5), seed=3, threads=1)
    assert torch.equal(before, torch.get_rng_state()) and threads == torch.get_num_threads()
    there = called(fanned_out.drawn, range(5), seed=3, cluster=local_ray)
    assert [item for item, _, _ in there] == list(range(5)) and {n for _, _, n in there + here} == {1}
    assert all(torch.equal(one, other) for (_, one, _), (_, other, _) in zip(here, there, strict=True))
    draws = torch.stack([draw for _, draw, _ in here])
    assert len(draws.unique(dim=0)) == 5
    assert not torch.equal(draws, torch.stack([d for _, d, _ in called(fanned_out.drawn, range(5), seed=4)]))


def test_the_first_item_that_fails_is_named(cluster):
    names, seen = [f"fit {i}" for i in range(4)], []
    with (
        pytest.raises(NotFinite) as caught,
        fan_out(fanned_out.failing, range(4), names=names, cluster=cluster) as all_,
    ):
        seen.extend(all_)
    assert str(caught.value) == "fit 2: the loss: it is NaN at 2. Fix: lower the rate" and seen == [0, 1]


def test_other_errors_stay_what_they_are_and_names_can_be_left_out():
    with pytest.raises(ZeroDivisionError) as caught:
        called(fanned_out.failing, [4], names=["fit 4"])
    assert "fit 4" in caught.value.__notes__[0]
    with pytest.raises(NotFinite, match=r"^the loss: "):
        called(fanned_out.failing, [2])


def test_nothing_to_do(cluster):
    assert called(fanned_out.drawn, [], cluster=cluster) == []


def test_here_results_are_made_when_they_are_asked_for():
    made = []
    with fan_out(made.append, range(3)) as results:
        next(results)
        assert made == [0]


def test_a_lost_worker_is_said(local_ray):  # noqa: F811
    with pytest.raises(NotServed, match="worker was lost"):
        called(fanned_out.killed, range(2), cluster=local_ray)


def test_more_threads_than_processors_are_refused(local_ray):  # noqa: F811
    with pytest.raises(NotServed, match="has 2 processors for tasks of 3 threads"):
        called(fanned_out.drawn, range(2), cluster=local_ray, threads=3)


def test_what_cannot_be_sent_is_refused(local_ray):  # noqa: F811
    with socket.socket() as held, pytest.raises(NotServed, match="cannot be sent"):
        called(lambda item: held, [1], cluster=local_ray)


def test_without_ray_the_fix_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(NotServed, match=r"python -m pip install 'mechanome\[cluster\]'"):
        called(fanned_out.failing, [1], cluster="local")


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:1", "ray://127.0.0.1:1"])
def test_an_address_where_nobody_answers_is_refused(monkeypatch, address):
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'mechanome[cluster]'")
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(BadInput, match="no ray answers"):
        called(fanned_out.failing, [1], cluster=address)


def refuse(address, **options):
    """As ray does at once for a word that is no address; a port that is closed must be seen before it tries."""
    assert address == "nowhere"
    raise ValueError(f"Invalid address format: {address}")


def test_ctrl_c_ends_everything(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'mechanome[cluster]'")
    script = Path(fanned_out.__file__)
    program = subprocess.Popen([sys.executable, script, tmp_path], stderr=subprocess.PIPE, start_new_session=True)
    try:
        wait(lambda: len(list(tmp_path.iterdir())) == min(2, os.cpu_count()))
        program.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in program.communicate(timeout=60)[1] and program.returncode
    finally:
        program.kill()
    workers = [int(file.name) for file in tmp_path.iterdir()]
    wait(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def wait(done):
    until = time.monotonic() + 90
    while not done():
        assert time.monotonic() < until
        time.sleep(0.1)
