"""`mechanome circuit --certify`: the certificate of the circuit it finds, on the page, in the record and in a file."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
import tiny
import torch
from typer.testing import CliRunner

import circuit_tasks
from mechanome.circuits import Graph, Select, certify, load_certificate
from mechanome.circuits.finding import Discovery, discover
from mechanome.circuits.finding.settings import Settings
from mechanome.cli import main
from mechanome.core import BadInput
from mechanome.engine import load


@cache
def found(level: str = "edge") -> Discovery:
    task = circuit_tasks.task(tiny.lonely())
    return discover(task, tiny.lonely(), quiet=True, certify=True, level=level, sizes=(0.05, 0.2, 1.0), examples=36)


@pytest.mark.parametrize("level", ["edge", "node"])
def test_the_chosen_size_is_certified_on_the_half_that_finds(level: str) -> None:
    d = found(level)
    proof, size = d.certificate, d.measures.chosen.size
    assert proof is not None and proof.examples == len(d.halves.finding) and int(proof.found.sum()) == size
    assert d.ranked.scores is not None
    again = certify(Select(size), d.ranked.scores, seed=d.settings.seed, quiet=True)
    assert torch.equal(again.agree, proof.agree)
    sure = [name for name, kept in zip(proof.names, proof.certified_in.tolist()) if kept]
    assert any(name.startswith("z.1.h3") for name in sure), "the one head that matters hangs on no single example"


def test_page_story_and_record_tell_it() -> None:
    d = found()
    assert d.certificate is not None
    inside = int(d.certificate.certified_in.sum())
    assert f"Certified: {inside} of the {d.measures.chosen.size} parts" in str(d).replace("\n      ", " ")
    html = d.html()
    assert "Which parts are certified" in html and "radius" in html
    record = d.record()["certificate"]
    assert record["in"] == inside == len(record["parts"]) and record["radius"] == 1
    assert all(part["above"] > 0.95 for part in record["parts"])


def test_without_the_flag_there_is_none() -> None:
    d = discover(circuit_tasks.task(tiny.lonely()), tiny.lonely(), quiet=True, sizes=(0.05, 1.0), examples=12)
    assert d.certificate is None and d.record()["certificate"] is None and "Which parts are certified" not in d.html()


def test_the_command_writes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    circuit_tasks.written(tmp_path)
    arguments = ["circuit", "nouns.jsonl", "--model", "model", "--examples", "36", "--sizes", "0.05,1", "--certify"]
    done = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"}).invoke(main.app, [*arguments, "--quiet"])
    assert done.exit_code == 0, done.stderr
    assert "Certified:" in done.stdout
    [folder] = (tmp_path / "runs").iterdir()
    kept = load_certificate(folder / "certificate.json", Graph.of(load(tmp_path / "model")))
    record = json.loads((folder / "discovery.json").read_text())
    assert kept.counts()["in"] == record["certificate"]["in"] and record["settings"]["certify"] is True


def test_a_search_is_refused_with_the_way_to_do_it() -> None:
    with pytest.raises(BadInput, match=r"mechanome\.circuits\.certify"):
        Settings(method="greedy", size=3, certify=True)
    assert Settings(**Settings(certify=True).record()).certify
