"""The verb: a run folder that repeats itself, and nothing at all where something went wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny

from mechanome.core import BadInput, read_json, replay
from mechanome.explain import command
from mechanome.explain.apart import difference
from mechanome.explain.command import resume, run


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.save(tmp_path_factory.mktemp("model")))


def test_the_folder_holds_everything_and_repeats_itself(model: str, tmp_path: Path) -> None:
    first = run(tiny.SENTENCE, model=model, out=tmp_path / "runs", seed=4, quiet=True)
    assert {file.name for file in first.folder.iterdir()} == {
        "config.yaml", "explanation.json", "report.html", "run.json",
    }  # fmt: skip
    assert read_json(first.folder / "run.json")["status"] == "done"
    assert f"mechanome replay {first.folder}" in first.report.read_text(encoding="utf-8")
    recorded = read_json(first.folder / "explanation.json")
    assert recorded == first.record and recorded["seed"] == 4
    assert recorded["model"]["sha256"] and recorded["model"]["id"]

    again = replay(first.folder)
    assert again.folder != first.folder and again.folder.parent == first.folder.parent
    assert difference(recorded, again.record) == 0


@pytest.mark.parametrize("error", [BadInput("a", "b", "c"), KeyboardInterrupt(), RuntimeError("x")])
def test_nothing_is_left_when_it_fails(
    error: BaseException, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(command, "explain", fail)
    with pytest.raises(type(error)):
        run(tiny.SENTENCE, model=model, out=tmp_path / "runs", quiet=True)
    assert list(tmp_path.iterdir()) == []

    kept = tmp_path / "runs" / "older"
    kept.mkdir(parents=True)
    with pytest.raises(type(error)):
        run(tiny.SENTENCE, model=model, out=tmp_path / "runs", quiet=True)
    assert list((tmp_path / "runs").iterdir()) == [kept]


def test_a_failing_report_leaves_nothing(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> str:
        raise OSError("disk full")

    monkeypatch.setattr("mechanome.explain.explanation.Explanation.html", fail)
    with pytest.raises(OSError, match="disk full"):
        run(tiny.SENTENCE, model=model, out=tmp_path / "runs", quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_was_killed_goes_on_and_one_that_is_none_is_refused(model: str, tmp_path: Path) -> None:
    first = run(tiny.SENTENCE, model=model, counterfactuals=1, out=tmp_path, quiet=True)
    recorded = read_json(first.folder / first.file)
    for file in (first.file, "report.html"):
        (first.folder / file).unlink()
    again = resume(first.folder, quiet=True)
    assert again.folder == first.folder and again.report.is_file()
    assert difference(recorded, read_json(first.folder / first.file)) == 0
    with pytest.raises(BadInput, match="no such file"):
        resume(tmp_path / "nowhere")
    config = first.folder / "config.yaml"
    config.write_text(config.read_text().replace("verb: explain", "verb: harvest"))
    with pytest.raises(BadInput, match="it is a run of 'harvest'"):
        resume(first.folder)


@pytest.mark.parametrize(
    ("a", "b", "apart"),
    [
        ({"x": [1.0, 2.0]}, {"x": [1.0, 2.5]}, 0.2),
        ({"x": 0.1}, {"x": 0.3}, 0.2),
        ({"x": 1, "seconds": 5, "versions": {"a": "1"}}, {"x": 1, "seconds": 9, "versions": {"a": "2"}}, 0.0),
        ({"x": [{"y": 1, "seconds": 5}]}, {"x": [{"y": 1, "seconds": 9}]}, 0.0),
        ({"x": "a"}, {"x": "b"}, None),
        ({"x": [1.0]}, {"x": [1.0, 2.0]}, None),
        ({"x": None}, {"x": 1.0}, None),
        ({"x": 1}, {"y": 1}, None),
        ({"x": True}, {"x": False}, None),
    ],
)
def test_difference(a: dict[str, object], b: dict[str, object], apart: float | None) -> None:
    assert difference(a, b) == (apart if apart is None else pytest.approx(apart))
