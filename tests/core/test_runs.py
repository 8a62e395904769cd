import json
import re

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mechanome.core import (
    BadInput,
    CorruptFile,
    NotFinite,
    RunConfig,
    RunFolder,
    UnknownName,
    read_json,
    replay,
    runs,
    verb,
    write_json,
)

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
ARGUMENTS = st.dictionaries(
    st.text(),
    st.recursive(SCALARS, lambda i: st.lists(i, max_size=3) | st.dictionaries(st.text(), i, max_size=3)),
    max_size=4,
)


@pytest.fixture
def called(monkeypatch):
    """A registered verb that records what it is called with."""
    monkeypatch.setattr(runs, "VERBS", {})
    calls = []

    @verb("explain")
    def explain(arguments):
        calls.append(arguments)
        return "explained"

    return calls


def test_a_run_replays_with_the_same_arguments(tmp_path, called):
    arguments = {"prompt": "The capital of France is", "layers": (1, 2), "strength": np.float32(0.5), "foil": None}
    run = RunFolder.create("explain", arguments, base=tmp_path / "runs", seed=7)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d-\d{6}-explain-[0-9a-f]{6}", run.path.name)
    expected = {"prompt": "The capital of France is", "layers": [1, 2], "strength": 0.5, "foil": None, "seed": 7}
    assert replay(run.path / "config.yaml") == "explained"
    assert replay(run.path) == "explained"
    assert called == [expected, expected]
    config = yaml.safe_load((run.path / "config.yaml").read_text())
    assert list(config) == ["format", "verb", "seed", "arguments", "versions"]
    assert {"mechanome", "torch", "transformers"} <= config["versions"].keys()


def test_a_verb_without_seed_gets_none(tmp_path, called):
    replay(RunFolder.create("explain", {}, base=tmp_path).path)
    assert called == [{}]


@given(arguments=ARGUMENTS)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_config_round_trip(tmp_path, arguments):
    config = RunConfig(verb="explain", seed=1, arguments=arguments, versions={"torch": "2"})
    config.write(tmp_path / "config.yaml")
    assert RunConfig.read(tmp_path / "config.yaml") == config


def test_arguments_that_cannot_be_written_make_no_folder(tmp_path):
    with pytest.raises(BadInput, match=r"arguments\.model: a object"):
        RunFolder.create("explain", {"model": object()}, base=tmp_path / "runs")
    with pytest.raises(NotFinite):
        RunFolder.create("explain", {"x": float("nan")}, base=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_metrics_are_flushed_and_the_later_row_stands(tmp_path):
    run = RunFolder.create("fit", {}, base=tmp_path)
    assert run.metrics() == []
    run.log(1, {"loss": 3.0})
    run.log(2, {"loss": 2.0})
    assert (run.path / "metrics.jsonl").read_text().count("\n") == 2
    run.log(2, {"loss": 1.5})
    assert run.metrics() == [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 1.5}]


def test_the_folder_says_how_the_run_went(tmp_path):
    run = RunFolder.create("explain", {}, base=tmp_path)
    assert read_json(run.path / "run.json")["status"] == "running"
    with run:
        assert run.write_report("<html>é</html>").read_text(encoding="utf-8") == "<html>é</html>"
    record = read_json(run.path / "run.json")
    assert (record["verb"], record["status"]) == ("explain", "done")
    assert record["seconds"] >= 0
    assert {"started", "machine", "versions"} <= record.keys()
    with pytest.raises(BadInput), RunFolder.create("explain", {}, base=tmp_path / "b") as failed:
        raise BadInput("prompt", "it is empty", "write one")
    record = read_json(failed.path / "run.json")
    assert (record["status"], record["error"]) == ("failed", "BadInput: prompt: it is empty. Fix: write one")
    with pytest.raises(KeyboardInterrupt), RunFolder.create("explain", {}, base=tmp_path / "c") as stopped:
        raise KeyboardInterrupt
    assert read_json(stopped.path / "run.json")["status"] == "interrupted"


def test_seconds_add_up_over_parts_of_a_run(tmp_path):
    with RunFolder.create("explain", {}, base=tmp_path) as run:
        pass
    record = read_json(run.path / "run.json")
    write_json(run.path / "run.json", {**record, "seconds": 1000.0})
    with RunFolder.reopen(run.path, run.config) as again:
        assert again.before == 1000.0
    assert 1000 <= read_json(run.path / "run.json")["seconds"] < 1100
    write_json(run.path / "run.json", {**record, "seconds": "long"})
    with pytest.raises(CorruptFile, match="not what a run leaves"):
        RunFolder.reopen(run.path, run.config)


def test_two_runs_in_one_second_have_two_folders(tmp_path):
    assert len({RunFolder.create("explain", {}, base=tmp_path).path for _ in range(20)}) == 20


def write(path, **changes):
    content = {"format": "mechanome-run", "verb": "explain", "seed": 1, "arguments": {}, "versions": {}} | changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))
    return path


def test_unknown_verbs_are_met_with_the_nearest(tmp_path, called):
    with pytest.raises(UnknownName, match="did you mean 'explain'"):
        replay(write(tmp_path / "c.yaml", verb="explian"))
    assert called == []


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"verb": ...}, "verb: Field required"),
        ({"format": "other"}, "format"),
        ({"arguments": [1]}, "arguments"),
        ({"seed": "one"}, "seed"),
        ({"extra": 1}, "extra"),
    ],
)
def test_wrong_fields_are_named(tmp_path, called, changes, match):
    with pytest.raises(CorruptFile, match=match):
        replay(write(tmp_path / "c.yaml", **changes))
    assert called == []


@pytest.mark.parametrize(
    "content", [b"", b"verb: [1", b"\xff\xfe\x00", b"- a\n- b", b"verb: !!python/object:os.system x"]
)
def test_damaged_files_are_refused(tmp_path, called, content):
    (tmp_path / "c.yaml").write_bytes(content)
    with pytest.raises(CorruptFile, match=r"c\.yaml"):
        replay(tmp_path / "c.yaml")


def test_missing_file(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        replay(tmp_path / "none.yaml")
    with pytest.raises(BadInput, match="no such file"):
        replay(tmp_path)


def test_other_versions_are_said_and_run_anyway(tmp_path, called, capsys):
    here = RunFolder.create("explain", {}, base=tmp_path).config.versions
    heard = []
    replay(write(tmp_path / "c.yaml", versions=here), heard.append)
    assert heard == []
    replay(write(tmp_path / "c.yaml", versions=here | {"torch": "1.0", "numpy": "0"}), heard.append)
    assert len(heard) == 1
    assert "torch 1.0" in heard[0]
    replay(write(tmp_path / "c.yaml", versions={}))
    assert "mechanome none" in capsys.readouterr().err
    assert len(called) == 3


def test_a_name_belongs_to_one_verb(called):
    with pytest.raises(BadInput, match="registered already"):
        verb("explain")(lambda arguments: None)
