"""A study that is killed goes on from its finished parts, and ends as if nothing had happened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import known
import pytest
import torch

from mechanome.core import BadInput, RunFolder, lock, read_json, replay, silence
from mechanome.studies import Measured, Outcome, context, parts, run
from mechanome.studies.running import VERB


def timeless(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if "seconds" not in key}


def calls(path: Path) -> list[str]:
    return path.read_text().split()


def stopping(tmp_path: Path, **more: Any) -> dict[str, Any]:
    return {"settings": {"calls": str(tmp_path / "calls"), "stop_at": 1, **more}, "out": tmp_path / "runs"}


def killed(tmp_path: Path) -> None:
    """Run the study in another process that is killed, without a chance to clean up, while it computes seed 1."""
    code = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[1])\n"
        "import known\nfrom mechanome.studies import run\n"
        "real = known.torch.randn\n"
        "def randn(*a, **k):\n"
        "    if open(sys.argv[2]).read().split()[-1:] == ['1']: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return real(*a, **k)\n"
        "known.torch.randn = randn\n"
        "run(known.study(), settings={'calls': sys.argv[2]}, out=sys.argv[3], quiet=True)"
    )
    place = [str(Path(__file__).parent), str(tmp_path / "calls"), str(tmp_path / "runs")]
    done = subprocess.run([sys.executable, "-c", code, *place], capture_output=True, text=True, timeout=120)
    assert done.returncode == -9, done.stderr


def test_a_killed_run_ends_as_an_uninterrupted_one(tmp_path: Path) -> None:
    killed(tmp_path)
    [folder] = (tmp_path / "runs").iterdir()
    assert read_json(folder / "run.json")["status"] == "running" and not (folder / "result.json").exists()
    with silence():
        done = run(known.study(), settings={"calls": str(tmp_path / "calls")}, out=tmp_path / "runs")
    assert done.folder == folder and calls(tmp_path / "calls") == ["0", "1", "1", "2"]
    whole = run(known.study(), settings={"calls": str(tmp_path / "other")}, out=tmp_path / "others", quiet=True)
    assert timeless(done.record) == timeless(whole.record)
    rows = [{row["part"] for row in RunFolder(d.folder, None, "").metrics()} for d in (done, whole)]
    assert rows[0] == rows[1] == {"draw 0", "draw 1", "draw 2"}
    assert read_json(folder / "run.json")["status"] == "done"


def test_an_interrupted_run_says_what_it_keeps(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as stop:
        run(known.study(), **stopping(tmp_path), quiet=True)
    [folder] = (tmp_path / "runs").iterdir()
    assert str(folder) in stop.value.__notes__[0] and read_json(folder / "run.json")["status"] == "interrupted"
    (tmp_path / "calls.go").touch()
    assert run(known.study(), **stopping(tmp_path), quiet=True).folder == folder
    assert calls(tmp_path / "calls") == ["0", "1", "1", "2"]
    assert run(known.study(), **stopping(tmp_path), quiet=True).folder != folder  # a finished run is not touched


def test_another_plan_or_a_busy_folder_starts_anew(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(known.study(), **stopping(tmp_path), quiet=True)
    [folder] = (tmp_path / "runs").iterdir()
    (tmp_path / "calls.go").touch()
    assert run(known.study(), seeds=2, **stopping(tmp_path), quiet=True).folder != folder
    with lock(folder / ".lock"):
        assert run(known.study(), **stopping(tmp_path), quiet=True).folder != folder


def test_parts_of_other_code_are_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(known.study(), **stopping(tmp_path), quiet=True)
    (tmp_path / "calls.go").touch()
    monkeypatch.setattr("mechanome.studies.running.code_hash", lambda: "other")
    run(known.study(), **stopping(tmp_path), quiet=True)
    assert calls(tmp_path / "calls") == ["0", "1", "0", "1", "2"]


def test_nothing_is_left_where_nothing_was_finished(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(known.study(), **stopping(tmp_path, stop_at=0), quiet=True)
    assert not (tmp_path / "runs").exists()
    (tmp_path / "runs").mkdir()
    with pytest.raises(KeyboardInterrupt):
        run(known.study(), **stopping(tmp_path, stop_at=0), quiet=True)
    assert not list((tmp_path / "runs").iterdir())


def test_a_part_does_not_depend_on_what_ran_before(tmp_path: Path) -> None:
    store = parts.PartStore(tmp_path, "code")
    alone = store.get("b", lambda: torch.rand(3)).value
    other = parts.PartStore(tmp_path / "other", "code")
    torch.manual_seed(5)
    first = other.get("a", lambda: torch.rand(3)).value
    assert torch.equal(other.get("b", lambda: torch.rand(3)).value, alone) and not torch.equal(first, alone)
    again = store.get("b", lambda: pytest.fail("it is there already"))
    assert torch.equal(again.value, alone) and not again.fresh


def test_a_part_keeps_every_kind_of_value(tmp_path: Path) -> None:
    value = {"t": torch.arange(3), "n": 1.5, "none": None, "inf": float("inf"), "nest": [(1, "a"), {2: True}]}
    kept = parts.PartStore(tmp_path, "code").get("x", lambda: value).value
    assert torch.equal(kept.pop("t"), torch.arange(3)) and kept == {k: v for k, v in value.items() if k != "t"}
    assert parts.PartStore(tmp_path, "code").get("empty", dict).value == {}


def test_names_of_parts_are_distinct(tmp_path: Path) -> None:
    def measure(context: context.Context) -> Measured:
        context.part("once", lambda: 1)
        context.part("once", lambda: 2)
        raise AssertionError

    with pytest.raises(BadInput, match="there is one of that name"):
        run(known.study(measure=measure), out=tmp_path, quiet=True)


def test_replay_repeats_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mechanome.studies.running.STUDIES", {"known-answer": known.study()})
    first = run("known-answer", seeds=[2, 100], settings={"draws": 7}, out=tmp_path, quiet=True)
    with silence():
        again = replay(first.folder)
    assert isinstance(again, Outcome) and again.folder != first.folder and VERB in again.folder.name
    assert timeless(again.record) == timeless(first.record)
