"""The benchmarks' machinery: workers, pairing, agreement, growth, environments, result files."""

import json
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from benchmarks.harness import environments, growth, journal, results, serve
from benchmarks.harness.command import Bench
from benchmarks.harness.growth import Growth
from benchmarks.harness.journal import Journal
from benchmarks.harness.pairing import Row, Side, difference, measure
from benchmarks.harness.worker import Answer, Engine, Worker, WorkerFailed, Workers

SETTINGS = {"threads": 1, "clock": "wall", "layers": None}
ECHO = Engine("tests.benchmarks.echo_worker")


@pytest.fixture
def worker():
    made = Worker(ECHO, SETTINGS)
    yield made
    made.close()


class Instant:
    """Stands for workers: a request says how long it takes, so nothing here depends on the machine."""

    def __init__(self):
        self.asked = []

    def get(self, engine, model=None):
        self.engine, self.layers = engine, (model or {}).get("layers", 1)
        return self

    def ask(self, task, args, save=None):
        self.asked.append(self.engine)
        if save is not None:
            np.savez(save, values=np.array(args["values"], dtype=float))
        return Answer(args["seconds"] * self.layers, None if save is None else 100.0)


def side(engine, values, seconds=1.0, **more):
    return Side(engine, "any", {"values": values, "seconds": seconds}, **more)


def test_only_the_work_is_timed(tmp_path):
    now = 0.0

    def passes(seconds, result):
        nonlocal now
        now += seconds
        return result

    arranged = {"x": np.ones(2)}
    deferred = serve._timed(lambda: passes(3.0, lambda: passes(40.0, arranged)), lambda: now, str(tmp_path / "x.npz"))
    assert deferred["seconds"] == 3.0 and now == 43.0
    assert np.load(tmp_path / "x.npz")["x"].tolist() == [1.0, 1.0]
    assert serve._timed(lambda: passes(2.0, arranged), lambda: now, None) == {"seconds": 2.0, "peak_mb": None}


def test_a_note_is_said_beside_the_row(worker, tmp_path):
    answer = worker.ask("values", {"values": [1.0], "note": "half of them"}, tmp_path / "x.npz")
    assert answer.note == "half of them" and list(np.load(tmp_path / "x.npz")) == ["values"]
    row = Row("w", "p", side("a", [1.0]), side("b", [1.0]))
    assert replace(measure(row, Instant(), rounds=5), note=answer.note).record()["work"] == "w; half of them"


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


def test_workers_are_kept_by_model_and_changed_ones_can_be_closed():
    with Workers({"a": ECHO}, SETTINGS) as made:
        whole, cut = made.get("a"), made.get("a", {"layers": 3})
        assert made.get("a") is made.get("a", {}) is whole and made.get("a", {"layers": 3}) is cut is not whole
        made.close(changed_only=True)
        assert made.get("a") is whole and made.get("a", {"layers": 3}) is not cut


def test_versions_are_those_of_the_peers(monkeypatch):
    monkeypatch.setattr("benchmarks.harness.worker.python_of", lambda peer: Path(sys.executable))
    with Workers({"ours": ECHO, "theirs": Engine(ECHO.module, "somebody")}, SETTINGS) as made:
        made.get("ours")
        assert made.versions() == {}
        made.get("theirs")
        assert made.versions()["numpy"] == np.__version__
        assert made.versions()["numpy on torch"] == version("torch")


def test_measure_ratio_scale_and_agreement():
    row = Row("w", "p", side("a", [1.0, 2.0], 2.0), side("b", [1.0, 2.5], 3.0, scale=4.0))
    timing = measure(row, Instant(), seconds=0)
    assert timing.ours == (2.0,) * 5 and timing.theirs == (12.0,) * 5
    assert timing.spread == (6.0, 6.0)
    assert timing.record() == {
        "work": "w",
        "peer": "p",
        "ours_seconds": 2.0,
        "peer_seconds": 12.0,
        "ratio": 6.0,
        "ours_peak_mb": 100.0,
        "peer_peak_mb": 100.0,
        "agree": 0.2,
    }


def test_rounds_follow_the_time_and_few_are_said():
    def rounds(seconds, aim, most=15):
        row = Row("w", "p", side("a", [1.0], seconds), side("b", [1.0], seconds), rounds=most)
        timing = measure(row, Instant(), seconds=aim)
        return len(timing.ours), timing.record()["work"]

    assert rounds(1.0, 20.0) == (10, "w")
    assert rounds(1.0, 1000.0) == (15, "w")
    assert rounds(25.0, 1.0) == (5, "w")
    assert rounds(31.0, 1.0) == (3, "w; median of 3")


def test_rounds_alternate_who_goes_first():
    workers = Instant()
    measure(Row("w", "p", side("a", [1.0]), side("b", [1.0])), workers, rounds=4)
    assert workers.asked[2:] == ["a", "b", "b", "a", "a", "b", "b", "a"]


def test_rounds_take_turns_on_copies():
    asked = []

    class Noting(Instant):
        def ask(self, task, args, save=None):
            asked.append((args.get("copy"), save is not None))
            return super().ask(task, args, save)

    ours = replace(side("a", [1.0]), copies=3)
    measure(Row("work", "peer", ours, side("b", [1.0])), Noting(), rounds=5)
    copies = [copy for copy, _ in asked if copy is not None]
    assert copies == [0, 1, 2, 0, 1, 2, 0, 1], "each once untimed, then in turn"
    assert [copy for copy, kept in asked if kept] == [0, None]


def test_warm_and_check_replace_parts_of_the_request():
    theirs = side("b", [4.0], 9.0, warm={"seconds": 0.0}, check={"values": [3.0], "seconds": 0.5})
    timing = measure(Row("w", "p", side("a", [3.0]), theirs), Instant(), rounds=2)
    assert timing.agree == 0.0 and timing.theirs == (9.0, 9.0)


def test_a_journal_gives_back_rows_measured_under_the_same_conditions(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "_FOLDER", tmp_path / "journals")
    row, other = (Row("w", "p", side("a", [1.0]), side("b", [1.0], model=m)) for m in ({}, {"layers": 2}))
    timing = measure(row, Instant(), rounds=2)
    kept = Journal.open("x", {"threads": 1}, 0.5)
    assert kept.find(row) is None and len(kept) == 0
    kept.add(timing, {"torch": "1"})
    again = Journal.open("x", {"threads": 1}, 0.25)
    assert again.find(row) == timing and again.find(other) is None
    assert again.load == 0.5 and again.packages == {"torch": "1"}
    assert len(Journal.open("x", {"threads": 2}, 0.0)) == 0, "another number of threads"
    monkeypatch.setattr(journal, "_code", lambda folders: "changed")
    assert len(Journal.open("x", {"threads": 1}, 0.0)) == 0, "another engine"
    monkeypatch.undo()
    monkeypatch.setattr(journal, "_FOLDER", tmp_path / "journals")
    assert len(Journal.open("x", {"threads": 1}, 0.0, fresh=True)) == 0
    assert len(Journal.open("x", {"threads": 1}, 0.0)) == 0, "forgotten for good"


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


def test_growth_record():
    rows = {
        n: Row("w", "p", side("a", [1.0], model={"layers": n}), side("b", [1.0], model={"layers": n**2}))
        for n in (1, 2, 4)
    }
    timings = [measure(row, Instant(), rounds=1) for row in rows.values()]
    record = growth.record(Growth("layers", rows), timings)
    assert record["sizes"] == [1, 2, 4] and record["axis"] == "layers"
    assert record["ours_seconds"] == [1.0, 2.0, 4.0] and record["peer_seconds"] == [1.0, 4.0, 16.0]
    assert record["ours_exponent"] == 1.0 and record["peer_exponent"] == 2.0


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


def test_results_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(results, "_FOLDER", tmp_path)
    timing = measure(Row("some work", "a peer", side("a", [1.0]), side("b", [1.0])), Instant(), rounds=5)
    path = results.write("bench", [timing], [], {"peer": "4.3"}, {"threads": 7}, {})
    found = json.loads(path.read_text())
    assert path.name == "bench.json" and list(found) == ["machine", "versions", "rows", "growth"]
    assert found["rows"] == [timing.record()]
    assert found["machine"]["threads"] == 7 and found["versions"]["torch"] == version("torch")
    assert found["versions"]["peer"] == "4.3"
    wanted = [replace(timing, row=replace(timing.row, goal=g, most_mb=m)) for g, m in ((0.0, 50.0), (1e9, 200.0))]
    results.table(wanted, [])
    shown = capsys.readouterr().out
    assert "some work" in shown and "0 met, 50 MB MISSED" in shown and "1e+09 MISSED, 200 MB met" in shown


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """A benchmark of echoes: `bench(theirs)` has one row whose peer returns that."""
    monkeypatch.setattr(results, "_FOLDER", tmp_path)
    monkeypatch.setattr(journal, "_FOLDER", tmp_path / "journals")

    def made(theirs):
        def rows(value):
            yield Row("some work", "echo", *(Side("a", "values", {"values": [v]}) for v in (value, theirs)))

        def growths(value):
            yield Growth("layers", {n: next(rows(value)) for n in (1, 2)})

        return Bench("toy", "", {"a": ECHO}, lambda: (1.0, {"layers": None}), {"one": rows}, growths, ())

    return made


def test_a_whole_run_is_recorded(bench, tmp_path, capsys):
    assert bench(1.0).main(["--threads", "1", "--seconds", "0"]) == 0
    found = json.loads((tmp_path / "toy.json").read_text())
    assert [row["work"] for row in found["rows"]] == ["some work"] and found["growth"][0]["sizes"] == [1, 2]
    assert found["machine"]["threads"] == 1 and "partial" not in found["machine"]
    assert not (tmp_path / "journals" / "toy.jsonl").exists()


def test_a_partial_run_is_recorded_only_if_asked(bench, tmp_path, capsys):
    some = ["--threads", "1", "--rounds", "1", "--only", "one"]
    assert bench(1.0).main(some) == 0
    assert not (tmp_path / "toy.json").exists()
    assert bench(1.0).main([*some, "--record"]) == 0
    assert "1 rows were measured before" in capsys.readouterr().err
    found = json.loads((tmp_path / "toy.json").read_text())
    assert found["machine"]["partial"] and found["machine"]["groups"] == ["one"] and found["growth"] == []
    assert bench(1.0).main([*some, "--peer", "nobody"]) == 0


def test_a_partial_run_renews_rows_of_a_whole_one_made_under_the_same_conditions(bench, tmp_path, capsys):
    path, again = tmp_path / "toy.json", ["--threads", "1", "--only", "one", "--rounds", "5", "--record", "--fresh"]
    assert bench(1.0).main(["--threads", "1", "--seconds", "0"]) == 0
    whole = json.loads(path.read_text())
    other = {**whole["rows"][0], "work": "other work", "ratio": 7.0}
    path.write_text(json.dumps({**whole, "rows": [other, {**whole["rows"][0], "ratio": -1.0}]}))
    assert bench(1.0).main(again) == 0
    found = json.loads(path.read_text())
    assert found["rows"][0] == other and [row["work"] for row in found["rows"]] == ["other work", "some work"]
    assert found["rows"][1]["ratio"] > 0 and found["growth"] == whole["growth"]
    assert found["machine"].get("partial") is None
    path.write_text(json.dumps({**whole, "rows": [other], "machine": {**whole["machine"], "threads": 2}}))
    assert bench(1.0).main(again) == 0
    alone = json.loads(path.read_text())
    assert [row["work"] for row in alone["rows"]] == ["some work"] and alone["machine"]["partial"]


def test_different_numbers_are_not_recorded(bench, tmp_path, capsys):
    assert bench(1.5).main(["--threads", "1", "--seconds", "0"]) == 1
    assert "DIFFERENT NUMBERS" in capsys.readouterr().err
    assert not (tmp_path / "toy.json").exists()
