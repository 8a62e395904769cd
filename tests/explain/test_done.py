"""Resuming a run whose folder is not as it was: no number is taken for another question, and damage is named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
import torch

from mechanome.core import BadInput, CorruptFile, MechanomeError, lock, read_json, replay
from mechanome.explain.command import resume, run, run_many

OTHER = "the dog sat on the"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.save(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    return run_many([tiny.SENTENCE, OTHER], model=str(model), counterfactuals=1, out=out, quiet=True).folder


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "copy"))


def edit(name: str, old: str, new: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        before = (folder / name).read_text()
        assert old in before
        (folder / name).write_text(before.replace(old, new))

    return change


def lines(*rows: str) -> Callable[[Path], None]:
    """The first row as it is, then others."""

    def change(folder: Path) -> None:
        first = (folder / "metrics.jsonl").read_text().splitlines()[0]
        (folder / "metrics.jsonl").write_text("\n".join([first, *rows, ""]))

    return change


def drop_last(folder: Path) -> None:
    lines()(folder)


DAMAGE: dict[str, tuple[Callable[[Path], None], type[MechanomeError], str]] = {
    "prompt": (edit("config.yaml", "the dog", "the hen"), BadInput, "'2' was changed after that prompt was done"),
    "seed": (edit("config.yaml", "seed: 0", "seed: 1"), BadInput, "'1' was changed"),
    "counterfactuals": (edit("config.yaml", "counterfactuals: 1", "counterfactuals: 2"), BadInput, "'1' was changed"),
    "settings": (edit("config.yaml", "counterfactuals: 1", "counterfactuals: x"), BadInput, "a whole number"),
    "missing": (edit("config.yaml", "budget:", "budgt:"), CorruptFile, "'budget', 'budgt'"),
    "no result": (lines('{"step": 1}'), CorruptFile, "step 1 is no result"),
    "no step": (lines('{"stop": 1}'), CorruptFile, "step"),
    "verdict": (edit("metrics.jsonl", '"explained"', '"great"'), CorruptFile, "no verdict is 'great'"),
    "numbers": (edit("metrics.jsonl", '"high"', '"hihg"'), CorruptFile, "step 0 is no result"),
    "state": (lambda folder: (folder / "run.json").write_text("[]"), CorruptFile, "run.json"),
    "start": (lambda folder: (folder / "run.json").write_text("{}"), CorruptFile, "run.json"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named_and_nothing_is_written(name: str, folder: Path) -> None:
    change, error, why = DAMAGE[name]
    change(folder)
    before = (folder / "metrics.jsonl").read_bytes(), (folder / "explanations.json").read_bytes()
    with pytest.raises(error) as caught:
        resume(folder, quiet=True)
    assert why in str(caught.value) and caught.value.fix
    assert before == ((folder / "metrics.jsonl").read_bytes(), (folder / "explanations.json").read_bytes())


def test_other_weights_under_the_same_name_are_refused(model: Path, folder: Path, tmp_path: Path) -> None:
    kept = shutil.copytree(model, tmp_path / "kept")
    drop_last(folder)
    module = tiny.build({(1, 3): 2.0}, floor=1e-3)
    with torch.no_grad():
        module.lm_head.weight *= 1.5
    module.save_pretrained(model)
    try:
        with pytest.raises(BadInput, match=r"weights of .* changed"):
            resume(folder, quiet=True)
    finally:
        shutil.copytree(kept, model, dirs_exist_ok=True)
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 1
    assert len(resume(folder, quiet=True).found) == 2


def test_what_is_known_of_the_weights_is_kept(folder: Path) -> None:
    edit("metrics.jsonl", '"notes": []', '"notes": ["dequantized"]')(folder)
    found = resume(folder, quiet=True)
    assert found.found.notes == ("dequantized",) and "dequantized" in found.report.read_text(encoding="utf-8")


def test_a_page_that_is_gone_is_made_again(finished: Path, folder: Path) -> None:
    (folder / "pages" / "1.html").unlink()
    resume(folder, quiet=True)
    assert (folder / "pages" / "1.html").is_file()
    said, now = (read_json(f / "explanations.json")["results"][0]["measured"] for f in (finished, folder))
    assert said == now


def test_a_folder_is_worked_in_by_one_process(folder: Path) -> None:
    drop_last(folder)
    with lock(folder / "config.yaml"), pytest.raises(BadInput, match="another process"):
        resume(folder, quiet=True)
    assert len(resume(folder, quiet=True).found) == 2


def test_replay_of_damaged_settings_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    edit("config.yaml", "counterfactuals: 1", "counterfactuals: x")(folder)
    config = (folder / "config.yaml").read_text()
    old = next(line for line in config.splitlines() if line.strip().startswith("out:"))
    (folder / "config.yaml").write_text(config.replace(old, f"  out: {tmp_path / 'again'}"))
    with pytest.raises(BadInput, match="whole number"):
        replay(folder)
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("name", ["file", "file/below", "x" * 300, "a\0b"])
def test_a_folder_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(BadInput, match="no run folder can be made"):
        run(tiny.SENTENCE, model="no-such-model-is-opened", out=tmp_path / name, quiet=True)
    assert [path.name for path in tmp_path.iterdir()] == ["file"] and (tmp_path / "file").read_text() == "mine"


def test_a_row_says_what_it_answers(finished: Path) -> None:
    rows = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert len({row["asked"] for row in rows}) == 2 and len({row["weights"] for row in rows}) == 1
