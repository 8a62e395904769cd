"""`mechanome harvest`, `fit`, `eval` and `features`: from text to cards, or one message and the right code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from typer.testing import CliRunner, Result

import circuit_tasks
from mechanome.cli import dictionaries, main
from mechanome.core import RunConfig
from mechanome.dictionaries import Dictionary
from mechanome.dictionaries.commands import fitting
from mechanome.dictionaries.formats import read

WORDS = "the cat saw a dog near the old tree and ran home"


def call(*arguments: Any) -> Result:
    return CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"}).invoke(main.app, [*map(str, arguments)])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Activations of a small model, by the command."""
    folder = tmp_path_factory.mktemp("harvest")
    circuit_tasks.written(folder)
    lines = [" ".join(WORDS.split()[i % 5 :] + WORDS.split()[: i % 3]) for i in range(60)]
    (folder / "notes.txt").write_text("\n\n".join(lines))
    done = call("harvest", "--site", "resid_post.1", "--model", folder / "model", "--data", folder / "notes.txt",
                "--context", 16, "--keep-sinks", "--to", folder / "acts", "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    return Path(json.loads(done.stdout)["store"])


@pytest.fixture(scope="module")
def fitted(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of two dictionaries."""
    out = tmp_path_factory.mktemp("fit")
    done = call("fit", "topk", "--acts", store, "--width", 24, "--k", "2,4", "--batch", 32, "--every", 4, "--lr", 0.01,
                "--epochs", 3, "--out", out, "--json")  # fmt: skip
    assert done.exit_code == 0, done.output
    return Path(json.loads(done.stdout)["folder"])


def test_names_that_can_be_typed_are_those_there_are() -> None:
    from mechanome.activations.sequences import PACKINGS
    from mechanome.activations.writing import ORDERS
    from mechanome.dictionaries.metrics import BY
    from mechanome.dictionaries.scores import PRECISIONS

    assert set(get_args(dictionaries.Packing)) == set(PACKINGS)
    assert set(get_args(dictionaries.Order)) == set(ORDERS)
    assert set(get_args(dictionaries.Select)) == set(PRECISIONS)
    assert set(get_args(dictionaries.By)) == set(BY)


@pytest.mark.parametrize("verb", ["harvest", "fit", "eval", "features"])
def test_help_fits_a_screen(verb: str) -> None:
    done = call(verb, "--help")
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) <= 45 and max(map(len, done.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("typed", "meant"), [("12", 12), ("3k", 3000), ("1.5M", 1_500_000), ("1e3", 1000), (None, None)]
)
def test_amounts_are_read_as_typed(typed: str | None, meant: int | None) -> None:
    assert dictionaries.amount(typed, "--tokens") == meant


def test_the_same_harvest_is_found_again(store: Path) -> None:
    folder = store.parent.parent
    before = {file: file.stat().st_mtime_ns for file in store.rglob("*.safetensors")}
    done = call("harvest", "--site", "resid_post.1", "--model", folder / "model", "--data", folder / "notes.txt",
                "--context", 16, "--keep-sinks", "--to", folder / "acts")  # fmt: skip
    assert done.exit_code == 0 and store.name in done.stdout
    assert f"mechanome fit topk --acts {store} --width" in " ".join(done.stdout.split())
    assert before == {file: file.stat().st_mtime_ns for file in store.rglob("*.safetensors")}


def test_a_fit_leaves_dictionaries_and_how_it_went(fitted: Path) -> None:
    record = json.loads((fitted / "fit.json").read_text())
    assert {"topk-24-k2-s0", "topk-24-k4-s0"} == set(record["dictionaries"])
    for name, said in record["dictionaries"].items():
        dictionary = read(fitted / said["folder"])
        assert isinstance(dictionary, Dictionary) and dictionary.spec.sites_in == ("resid_post.1",), name
    logged = [json.loads(line) for line in (fitted / "metrics.jsonl").read_text().splitlines()]
    assert {"step", "topk-24-k2-s0/fvu", "rows_per_second"} <= set(logged[-1])
    page = (fitted / "report.html").read_text()
    assert page.startswith("<!") and '"showlegend":true' in page  # lines have names
    assert list((fitted / "checkpoint").glob("step-*.safetensors"))


def test_a_stopped_fit_goes_on_to_the_same_bits(store: Path, fitted: Path, tmp_path: Path, monkeypatch: Any) -> None:
    from mechanome.dictionaries.fitting.session import Session

    step, done = Session.step, 0

    def stopping(self: Session, batch: Any) -> Any:
        nonlocal done
        done += 1
        if done == 7:
            raise KeyboardInterrupt
        return step(self, batch)

    monkeypatch.setattr(Session, "step", stopping)
    stopped = call("fit", "topk", "--acts", store, "--width", 24, "--k", "2,4", "--batch", 32, "--every", 4,
                   "--lr", 0.01, "--epochs", 3, "--out", tmp_path)  # fmt: skip
    assert stopped.exit_code == 130 and "--resume" in stopped.stderr
    (folder,) = tmp_path.iterdir()
    monkeypatch.setattr(Session, "step", step)
    went_on = call("fit", "--resume", folder, "--json")
    assert went_on.exit_code == 0, went_on.output
    for name in ("topk-24-k2-s0", "topk-24-k4-s0"):
        one, other = (read(each / "dictionaries" / name).state_dict() for each in (fitted, folder))
        assert all(torch.equal(one[key], other[key]) for key in one)


def test_a_fit_that_cannot_begin_leaves_nothing(store: Path, tmp_path: Path) -> None:
    done = call("fit", "topk", "--acts", store, "--width", 24, "--k", 99, "--out", tmp_path / "runs")
    assert done.exit_code == 2 and "99" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (("fit", "topk"), "--acts"),
        (("fit", "topl", "--acts", "STORE"), "topk"),
        (("fit", "transcoder", "--acts", "STORE"), "--around transcoder"),
        (("fit", "topk", "--acts", "STORE", "--site-out", "resid_post.1"), "--site"),
        (("fit", "topk", "--acts", "STORE", "--around", "skip_transcoder"), "--site-out"),
        (("fit", "topk", "--acts", "STORE", "--set", "aux_q=1"), "aux_k"),
        (("fit", "topk", "--acts", "STORE", "--set", "aux_k"), "name=value"),
        (("fit", "relu", "--acts", "STORE", "--k", "3"), "l1"),
        (("fit", "topk", "--acts", "STORE", "--k", "two"), "16,32"),
        (("fit", "topk", "--acts", "STORE", "--site", "resid_post.7"), "resid_post.1"),
        (("fit", "topk", "--acts", "STORE", "--tokens", "many"), "1M"),
        (("fit", "topk", "--acts", "."), "harvest"),
        (("eval", "nowhere", "--acts", "STORE"), "nowhere"),
        (("features", "FITTED", "--acts", "STORE"), "2 dictionaries"),
        (("features", "FITTED", "--acts", "STORE"), "/dictionaries/topk-24-k2-s0 or"),
        (("features", "FITTED/dictionaries/topk-24-k2-s0", "--acts", "STORE", "--latents", "24"), "0 to 23"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, tuple) else x,
)
def test_mistakes_are_answered(
    store: Path, fitted: Path, tmp_path: Path, monkeypatch: Any, typed: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(*(word.replace("STORE", str(store)).replace("FITTED", str(fitted)) for word in typed))
    assert done.exit_code == 2, done.output
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "runs").exists()


def test_a_harvest_of_two_sites_is_followed_by_a_transcoder(store: Path, tmp_path: Path) -> None:
    folder = store.parent.parent
    done = call("harvest", "--site", "resid_pre.1", "--site", "mlp_out.1", "--model", folder / "model", "--data",
                folder / "notes.txt", "--context", 16, "--keep-sinks", "--to", tmp_path / "acts")  # fmt: skip
    assert done.exit_code == 0, done.output
    typed = done.stdout.rsplit("mechanome", 1)[1].split()
    assert {"--site-out", "mlp_out.1"} <= set(typed)
    fit = call(*typed, "--width", 24, "--k", 2, "--out", tmp_path / "runs")
    assert fit.exit_code == 0 and "transcoder-24-k2-s0" in fit.stdout, fit.output  # its name is not cut
    (folder,) = (tmp_path / "runs").iterdir()
    page = (folder / "report.html").read_text()
    assert page.count(">0.005226<") == 2  # the rate, 2e-4 sqrt(16384 / 24), in the table as among the numbers


@pytest.mark.parametrize(
    ("rows", "tokens", "batch"),
    [
        (10, None, 64),
        (20_000, None, 64),
        (200_000, None, 512),
        (200_000, 50_000, 128),
        (200_000, 1_000_000, 512),
        (10_000_000, None, 4096),
    ],
)
def test_a_fit_takes_steps_enough_from_few_rows(rows: int, tokens: int | None, batch: int) -> None:
    assert fitting._batch(rows, tokens) == batch


def test_a_fit_says_what_is_next_and_what_is_doubtful(store: Path, tmp_path: Path) -> None:
    done = call("fit", "topk", "--acts", store, "--width", 24, "--k", 2, "--lr", 50, "--out", tmp_path)
    assert done.exit_code == 0, done.output
    (folder,) = tmp_path.iterdir()
    assert RunConfig.read(folder / "config.yaml").arguments["options"]["batch"] == 64
    said = " ".join(done.stdout.split())
    assert f"mechanome features {folder}/dictionaries/topk-24-k2-s0 --acts {store}" in said
    assert "steps is short" in said and "than by the mean of all rows" in said
    assert "doubtful" in (folder / "report.html").read_text()


def test_an_evaluation_measures_all_of_a_run(store: Path, fitted: Path, tmp_path: Path) -> None:
    done = call("eval", fitted, "--acts", store, "--ce", 4, "--out", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    found = {(row["dict_id"], row["metric"]): row["value"] for row in record["results"] if row["split"] == "all"}
    assert found["topk-24-k2-s0", "l0"] <= 2 and found["topk-24-k4-s0", "fvu"] < found["topk-24-k2-s0", "fvu"]
    assert any(row["metric"] == "ce_recovered_mean" for row in record["results"])
    folder = Path(record["folder"])
    assert {"results.csv", "results.jsonl", "eval.json", "report.html"} <= {file.name for file in folder.iterdir()}


def test_features_show_what_was_asked(store: Path, fitted: Path, tmp_path: Path) -> None:
    one = fitted / "dictionaries" / "topk-24-k4-s0"
    chosen = call("features", one, "--acts", store, "--latents", "3,5", "--out", tmp_path, "--json")
    assert chosen.exit_code == 0, chosen.output
    assert [card["latent"] for card in json.loads(chosen.stdout)["cards"]] == [3, 5]
    some = call("features", one, "--acts", store, "--no-effects", "--out", tmp_path, "--json")
    cards = json.loads(some.stdout)["cards"]
    assert cards and not any(card["dead"] for card in cards)


@pytest.mark.parametrize("verb", ["fit", "eval", "features"])
def test_every_run_can_be_repeated(store: Path, fitted: Path, tmp_path: Path, verb: str) -> None:
    one = fitted / "dictionaries" / "topk-24-k2-s0"
    arguments = {
        "fit": ["fit", "topk", "--acts", store, "--width", 8, "--k", 2, "--batch", 64, "--every", 99],
        "eval": ["eval", one, "--acts", store, "--rows", 200],
        "features": ["features", one, "--acts", store, "--latents", 1, "--no-effects"],
    }[verb]
    first = call(*arguments, "--out", tmp_path, "--json")
    assert first.exit_code == 0, first.output
    folder = Path(json.loads(first.stdout)["folder"])
    assert RunConfig.read(folder / "config.yaml").verb == verb
    again = call("replay", folder)
    assert again.exit_code == 0, again.output
    assert "repeated" in again.stderr
