"""The benchmarks' machinery: workers, pairing, agreement, growth, environments, result files."""

import json
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from benchmarks.harness import environments, growth, results
from benchmarks.harness.growth import Growth
from benchmarks.harness.pairing import Row, Side, difference, measure
from benchmarks.harness.worker import Engine, Worker, WorkerFailed, Workers

SETTINGS = {"threads": 1, "clock": "wall", "layers": None}
ECHO = Engine("tests.benchmarks.echo_worker")


@pytest.fixture
def worker():
    made = Worker(ECHO, SETTINGS)
    yield made
    made.close()


@pytest.fixture
def workers():
    with Workers({"a": ECHO, "b": ECHO}, SETTINGS) as made:
        yield made


def test_worker_times_only_the_work(worker):
    answer = worker.ask("values", {"values": [1], "prepare": 0.4, "sleep": 0.02})
    assert 0.02 <= answer.seconds < 0.3
    assert worker.ask("deferred", {"values": [1]}).seconds < 0.2


def test_results_come_back_and_prints_do_not_disturb(worker, tmp_path):
    answer = worker.ask("values", {"values": [1.5, 2]}, tmp_path / "x.npz")
    assert np.load(tmp_path / "x.npz")["values"].tolist() == [1.5, 2.0]
    assert answer.peak_mb > 1
    assert worker.ask("values", {"values": [1]}).peak_mb is None


def test_peak_memory_is_that_of_one_call(worker, tmp_path):
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux can forget a high-water mark")
    low = worker.ask("allocate", {"mb": 1}, tmp_path / "x.npz").peak_mb
    high = worker.ask("allocate", {"mb": 200}, tmp_path / "x.npz").peak_mb
    again = worker.ask("allocate", {"mb": 1}, tmp_path / "x.npz").peak_mb
    assert 150 < high - low < 260
    assert abs(again - low) < 40


def test_a_failing_task_tells_why_and_the_worker_lives_on(worker):
    with pytest.raises(WorkerFailed, match="on purpose"):
        worker.ask("fail", {})
    assert worker.ask("values", {"values": [1]}).seconds >= 0


def test_a_dead_worker_tells_what_it_said(worker):
    with pytest.raises(WorkerFailed, match="gone"):
        worker.ask("die", {})


def test_workers_are_kept_by_model_and_cut_ones_can_be_closed(workers):
    whole, cut = workers.get("a"), workers.get("a", 3)
    assert workers.get("a") is whole and cut is not whole
    workers.close(cut_only=True)
    assert workers.get("a") is whole and workers.get("a", 3) is not cut


def test_versions_are_those_of_the_peers(monkeypatch):
    monkeypatch.setattr("benchmarks.harness.worker.python_of", lambda peer: Path(sys.executable))
    with Workers({"ours": ECHO, "theirs": Engine(ECHO.module, "somebody")}, SETTINGS) as made:
        made.get("ours")
        assert made.versions() == {}
        made.get("theirs")
        assert made.versions()["numpy"] == np.__version__
        assert made.versions()["numpy on torch"] == version("torch")


def test_measure_ratio_scale_and_agreement(workers):
    ours = Side("a", "values", {"values": [1.0, 2.0], "sleep": 0.02})
    theirs = Side("b", "values", {"values": [1.0, 2.5], "sleep": 0.06}, scale=2.0)
    timing = measure(Row("w", "p", ours, theirs, rounds=5), workers, seconds=0)
    assert len(timing.ours) == len(timing.theirs) == 5
    assert 3 < timing.ratio < 8
    assert timing.agree == pytest.approx(0.2)
    low, high = timing.spread
    assert low <= high
    assert list(timing.record()) == [
        "work",
        "peer",
        "ours_seconds",
        "peer_seconds",
        "ratio",
        "ours_peak_mb",
        "peer_peak_mb",
        "agree",
    ]
    assert timing.record()["work"] == "w"


def test_rounds_alternate_who_goes_first(workers, monkeypatch):
    order = []
    ask = Side.ask
    monkeypatch.setattr(Side, "ask", lambda self, *a, **k: order.append(self.engine) or ask(self, *a, **k))
    side = {name: Side(name, "values", {"values": [1.0]}) for name in "ab"}
    timing = measure(Row("w", "p", side["a"], side["b"]), workers, rounds=4)
    assert order[2:] == ["a", "b", "b", "a", "a", "b", "b", "a"]
    assert timing.record()["work"] == "w; median of 4"


def test_warm_and_check_replace_parts_of_the_request(workers):
    ours = Side("a", "values", {"values": [3.0]})
    theirs = Side("b", "values", {"values": [4.0], "sleep": 0.3}, warm={"sleep": 0.0}, check={"values": [3.0]})
    assert measure(Row("w", "p", ours, theirs), workers, rounds=1).agree == 0.0


def test_difference():
    nan = float("nan")
    a = {"x": np.array([1.0, nan, 10.0]), "only": np.zeros(1)}
    assert difference(a, {"x": np.array([1.1, 5.0, 10.0])}) == pytest.approx(0.01)
    assert difference(a, {"x": np.array([1.0, 5.0, nan])}) == 0.0
    with pytest.raises(ValueError, match="nothing to compare"):
        difference(a, {"y": np.zeros(1)})
    with pytest.raises(ValueError, match="shapes"):
        difference(a, {"x": np.zeros(2)})
    with pytest.raises(ValueError, match="no entry"):
        difference(a, {"x": np.array([nan, 1.0, nan])})


def test_exponent_of_known_laws():
    assert growth.exponent([2, 4, 8], [12, 48, 192]) == pytest.approx(2.0)
    assert growth.exponent([1, 10], [5, 5]) == pytest.approx(0.0)
    with pytest.raises(ValueError, match="two sizes"):
        growth.exponent([3, 3], [1, 2])


def test_growth_record(workers):
    def row(n):
        return Row("w", "p", *(Side(e, "values", {"values": [1.0], "sleep": 0.02 * n}, layers=n) for e in "ab"))

    grown = Growth("layers", {n: row(n) for n in (1, 4)})
    record = growth.record(grown, [measure(r, workers, rounds=1) for r in grown.rows.values()])
    assert record["sizes"] == [1, 4] and record["axis"] == "layers"
    assert record["ours_exponent"] == pytest.approx(1.0, abs=0.3)


def test_environment_is_built_once_and_again_when_requirements_change(tmp_path, monkeypatch):
    monkeypatch.delenv(environments.OVERRIDE, raising=False)
    folder = tmp_path / "benchmarks"
    (folder / "requirements").mkdir(parents=True)
    (folder / "requirements" / "peer.txt").write_text("a==1\n")
    built = []

    def create(path, with_pip):
        assert not path.exists()
        (path / "bin").mkdir(parents=True)
        (path / "bin" / "python").touch()
        built.append(path.name)

    monkeypatch.setattr(environments, "ROOT", tmp_path)
    monkeypatch.setattr(environments.venv, "create", create)
    monkeypatch.setattr(environments.subprocess, "run", lambda *a, **k: None)
    python = environments.python_of("peer")
    assert python == folder / ".venvs" / "peer" / "bin" / "python"
    environments.python_of("peer")
    assert built == ["peer"]
    (folder / "requirements" / "peer.txt").write_text("a==2\n")
    environments.python_of("peer")
    assert built == ["peer", "peer"]
    (python.parents[1] / "requirements.sha256").unlink()
    environments.python_of("peer")
    assert len(built) == 3
    with pytest.raises(FileNotFoundError):
        environments.python_of("nobody")


def test_environment_made_by_hand_is_used_as_it_is(tmp_path, monkeypatch):
    python = tmp_path / "nnsight" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    monkeypatch.setenv(environments.OVERRIDE, str(tmp_path))
    monkeypatch.setattr(environments.venv, "create", lambda *a, **k: pytest.fail("it was rebuilt"))
    assert environments.python_of("nnsight") == python


def test_results_file(tmp_path, monkeypatch, workers, capsys):
    monkeypatch.setattr(results, "_FOLDER", tmp_path)
    side = {name: Side(name, "values", {"values": [1.0]}) for name in "ab"}
    timing = measure(Row("some work", "a peer", side["a"], side["b"]), workers, rounds=5)
    path = results.write("bench", [timing], [], workers.versions(), {"threads": 7})
    found = json.loads(path.read_text())
    assert path.name == "bench.json" and list(found) == ["machine", "versions", "rows", "growth"]
    assert found["rows"] == [timing.record()]
    assert found["machine"]["threads"] == 7 and found["versions"]["torch"] == version("torch")
    wanted = [replace(timing, row=replace(timing.row, goal=g)) for g in (0.0, 1e9)]
    results.table(wanted, [])
    shown = capsys.readouterr().out
    assert "some work" in shown and "0 met" in shown and "1e+09 MISSED" in shown
