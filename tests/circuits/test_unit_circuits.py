"""`mechanome circuit --units`: neurons and singular units as parts of the circuit, measured, read and certified."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
import tiny
import torch
from circuit_models import opened
from rich.console import Console
from typer.testing import CliRunner

import circuit_tasks
import families
import mechanome as mn
from mechanome.circuits import Circuit, Graph, Select, certify, load_circuit, relp_rules, scores
from mechanome.circuits.finding import Discovery, carriers, discover
from mechanome.circuits.finding.carriers import Carriers, strongest
from mechanome.circuits.finding.certifiable import fewest_examples
from mechanome.circuits.finding.rows import drawable
from mechanome.circuits.finding.settings import Settings
from mechanome.circuits.finding.unit_graph import graph_of
from mechanome.circuits.finding.unit_readings import readings
from mechanome.circuits.finding.unit_words import finding, section
from mechanome.circuits.native import Vocabulary
from mechanome.cli import main
from mechanome.core import BadInput, BudgetTooSmall, NotServed, TooFewRows, UnknownName
from mechanome.engine import Basis, Edit, FromRun
from mechanome.tasks import Task
from report.markup import check

KINDS = ("neurons", "svd")


@cache
def busy() -> mn.Model:
    """A model in which every part writes."""
    writers = {(layer, head): 1.0 for layer in range(3) for head in range(4)}
    return mn.load(tiny.build(writers, floor=0.5).requires_grad_(False), tokenizer=tiny.tokenizer(), check="off")


@cache
def found(units: str, certify: bool = True) -> Discovery:
    task = circuit_tasks.task(busy())
    return discover(task, busy(), quiet=True, units=units, certify=certify, examples=34, sizes=(0.1, 0.5, 1.0))


def known(units: str) -> Carriers:
    made = found(units).carriers
    assert made is not None and made.units
    return made


def replaced(task: Task, units: str, chosen: list[tuple[int, int]]) -> torch.Tensor:
    """The metric of every example after some units of `(layer, number)` carry the counterfactual's values, by edits."""
    graph, values = graph_of(busy(), units), []
    for example in task:
        clean, other, metric = replace(task, examples=(example,)).batch(busy())
        layers = sorted({layer for layer, _ in chosen})
        donor = busy().run(other, capture=[f"mlp_act.{layer}" for layer in layers], logits=False)
        edits = []
        for layer in layers:
            numbers = [unit for at, unit in chosen if at == layer]
            basis = graph.layers[layer].units.basis
            assert isinstance(basis, Basis)
            edits.append(Edit(f"mlp_act.{layer}", "set", FromRun(donor), basis=_Only(basis, numbers)))
        logits = busy().run(clean, edits=edits, logits="last").logits
        values.append(metric(logits.reshape(1, -1), torch.tensor([0])))
    return torch.cat(values)


class _Only:
    """Some coordinates of a basis."""

    def __init__(self, basis: Basis, numbers: list[int]) -> None:
        self.basis, self.numbers = basis, numbers

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self.basis.encode(x)[..., self.numbers]

    def decode(self, c: torch.Tensor) -> torch.Tensor:
        whole = c.new_zeros(*c.shape[:-1], self.basis.encode(c.new_zeros(1, 16)).shape[-1])
        whole[..., self.numbers] = c
        return self.basis.decode(whole)


# What is measured --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", KINDS)
def test_units_are_parts_of_the_circuit_and_measured_on_held_out_examples(units: str) -> None:
    d, made = found(units), known(units)
    assert d.settings.level == "node" and d.graph == Graph.of(busy(), units=units)
    held, values = d.halves.held_out, d.ranked.scores.values
    inside = d.circuit.used & d.graph.kinds("unit")
    assert made.among == int(inside.sum()) and made.every == int(d.graph.kinds("unit").sum())
    assert made.examples == len(held) and len(made.units) == min(carriers.SHOWN, made.among)
    clean = d.measures.held_out.own.clean
    for unit in made.units[:3]:
        lost = replaced(held, units, [(unit.reading.layer, unit.reading.index)]) - clean
        assert unit.effect.value == pytest.approx(float(lost.mean()), abs=1e-4)
        at = d.graph.source_index(unit.reading.source)
        assert bool(inside[at]) and unit.score == pytest.approx(float(values[at]))
    total = float((d.measures.held_out.own.empty - clean).mean())
    assert made.units[0].share == pytest.approx(made.units[0].effect.value / total, abs=1e-5)
    sizes = [abs(unit.score) for unit in made.units]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize("units", KINDS)
def test_all_of_them_together_beside_others_and_every_one(units: str) -> None:
    d, made = found(units), known(units)
    own = d.measures.held_out.own
    places = [(unit.reading.layer, unit.reading.index) for unit in made.units]
    lost = (own.clean - replaced(d.halves.held_out, units, places)).mean() / (own.clean - own.empty).mean()
    assert made.together.value == pytest.approx(float(lost), abs=1e-4)
    assert made.together.interval.lo <= made.together.value <= made.together.interval.hi
    every = [(layer, n) for layer in range(3) for n in range(d.graph.layers[layer].units.count)]
    lost = (own.clean - replaced(d.halves.held_out, units, every)).mean() / (own.clean - own.empty).mean()
    assert made.whole.value == pytest.approx(float(lost), abs=1e-4)
    assert len(made.chance) == carriers.RANDOM_SETS


def test_random_sets_are_other_units_of_the_same_layers() -> None:
    graph = found("neurons").graph
    units = graph.kinds("unit").nonzero()[:, 0].tolist()
    chosen = [units[0], units[3], units[20]]
    layers = {i: group.layer for group in graph.writers for i in range(group.first, group.first + group.count)}
    sets = list(carriers._others(graph, chosen, 0))
    assert len(sets) == carriers.RANDOM_SETS and len({tuple(s) for s in sets}) > 1
    for drawn in sets:
        assert sorted(layers[i] for i in drawn) == sorted(layers[i] for i in chosen)
        assert not set(drawn) & set(chosen) and len(set(drawn)) == 3


def test_only_units_of_the_circuit_are_taken() -> None:
    graph = found("neurons").graph
    values = torch.arange(len(graph.sources)).float() * -1
    units = graph.kinds("unit").nonzero()[:, 0]
    chosen = torch.zeros(len(graph.sources), dtype=torch.bool)
    chosen[units[:3]] = chosen[0] = True
    assert strongest(graph, chosen, values) == units[:3].flip(0).tolist()
    assert strongest(graph, chosen, values, 1) == [int(units[2])]


def test_a_circuit_without_units_says_so() -> None:
    d = discover(circuit_tasks.task(busy()), busy(), quiet=True, units="neurons", size=2, examples=8, verify=0)
    assert d.carriers is not None and d.carriers.units == () and d.carriers.among == 0
    assert "None of the parts chosen is one of the 48 neurons" in " ".join(str(d).split()) and "48 neurons" in d.html()


# What they read and write ------------------------------------------------------------------------------------


def test_a_neuron_reads_tokens_by_its_gate_and_writes_its_row() -> None:
    graph, vocabulary = found("neurons").graph, Vocabulary.of(busy())
    module = busy().module
    texts = busy().encode([tiny.SENTENCE])
    entries = module.model.embed_tokens.weight - module.model.embed_tokens.weight.mean(0)
    names = ["mlp_act.2.n5", "mlp_act.0.n14", "mlp_act.2.n0"]
    for name, reading in zip(names, readings(graph, [graph.source_index(n) for n in names], texts)):
        layer, n = reading.layer, reading.index
        block = module.model.layers[layer]
        gate = block.mlp.gate_proj.weight[n] * block.post_attention_layernorm.weight
        best = (entries @ gate).topk(3)
        assert [token for token, _ in reading.detects[:3]] == list(vocabulary.tokens(best.indices.tolist()))
        assert reading.detects[0][1] == pytest.approx(float(best.values[0]), rel=1e-4)
        row = block.mlp.down_proj.weight[:, n]
        moved = vocabulary.promoted(row[None] / row.norm())[0]
        assert reading.turned == bool(moved[moved.abs().argmax()] < 0)
        assert reading.card.promotes[0][1] == pytest.approx(float(moved.abs().max()), rel=1e-4)
        assert reading.source == name and reading.card.determined and f"neuron {n}" in reading.card.name
        norms = block.mlp.down_proj.weight.norm(dim=0)
        assert reading.card.rank == int((norms > norms[n]).sum())
        acts = busy().run(texts, capture=f"mlp_act.{layer}")[f"mlp_act.{layer}"][0, 1:, n]
        most = float((-acts if reading.turned else acts).max())
        assert (reading.card.opens[0].gate if reading.card.opens else 0.0) == pytest.approx(max(most, 0.0), abs=1e-4)


def test_a_singular_unit_reads_neurons() -> None:
    graph = found("svd").graph
    out = busy().module.model.layers[1].mlp.down_proj.weight.T
    left, values, right = torch.linalg.svd(out, full_matrices=False)
    vocabulary = Vocabulary.of(busy())
    [reading] = readings(graph, [graph.source_index("mlp_act.1.u3")], busy().encode([tiny.SENTENCE]))
    promoted = vocabulary.promoted(right[[3]])[0]
    sign = float(promoted[promoted.abs().argmax()].sign())
    best = left[:, 3].abs().argmax()
    assert reading.detects[0][0] == f"n{int(best)}" and reading.card.strength == pytest.approx(
        float(values[3]), rel=1e-4
    )
    assert reading.detects[0][1] == pytest.approx(sign * float(left[best, 3]), abs=1e-4)
    assert (
        reading.card.rank == 3 and reading.card.promotes[0][0] == vocabulary.tokens([int(promoted.abs().argmax())])[0]
    )


def test_a_prompt_of_one_token_has_no_contexts() -> None:
    graph = found("neurons").graph
    [reading] = readings(graph, [graph.source_index("mlp_act.1.n3")], busy().encode([[3]]))
    assert reading.card.opens == () and reading.card.promotes


# The certificate ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", KINDS)
def test_every_unit_has_its_decision(units: str) -> None:
    d, made = found(units), known(units)
    assert d.certificate is not None
    assert [unit.certified for unit in made.units] == [d.certificate.decision(u.reading.source) for u in made.units]
    assert {unit.certified for unit in made.units} > {"in"}, "some are certified, not all"
    assert not any(unit.certified for unit in found(units, certify=False).carriers.units)


def test_as_few_examples_as_can_certify_anything() -> None:
    n = fewest_examples(10)
    each = torch.zeros(n, 10)
    each[:, 4] = 1.0
    assert certify(Select(1), each, quiet=True).decision(4) == "in"
    assert certify(Select(1), each[: n - 2], quiet=True).decision(4) == "abstain"
    assert fewest_examples(70_000) > n


# On pages ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("units", KINDS)
def test_page_terminal_and_record_tell_it(units: str) -> None:
    d, made = found(units), known(units)
    page = check(d.html("mechanome replay x"))
    text, unit = " ".join(page.text), made.units[0]
    for part in ("carry it", unit.reading.short, "detects", "promotes", "on at", "certified", finding(made)):
        assert part in text, part
    console = Console(width=80, file=StringIO())
    console.print(d)
    shown = console.file.getvalue()
    assert unit.reading.short in shown and "writes" in shown and "sources keep" in shown
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= 80
    record = json.loads(json.dumps(d.record()))["units"]
    assert record["kind"] == units and record["units"][0]["name"] == unit.reading.source
    assert record["units"][0]["effect"]["value"] == unit.effect.value
    assert record["units"][0]["promotes"][0]["score"] == unit.reading.card.promotes[0][1]


def test_a_marked_sign_and_optional_columns() -> None:
    made = known("neurons")
    turned = [unit for unit in made.units if unit.reading.turned]
    assert turned, "half of all neurons are turned"
    html = str(section(made, "x", "y").picture.html())
    assert html.count("(when negative)") == len(turned) and "certified" in html and "on paraphrases" not in html
    plain = replace(made, units=tuple(replace(u, certified="", elsewhere=0.5) for u in made.units))
    html = str(section(plain, "x", "y").picture.html())
    assert "certified" not in html and "on paraphrases" in html


def test_without_the_option_there_are_none() -> None:
    d = discover(circuit_tasks.task(tiny.lonely()), tiny.lonely(), quiet=True, sizes=(0.05, 1.0), examples=8)
    assert d.carriers is None and d.record()["units"] is None and "carry it" not in d.html()


def test_of_very_many_edges_only_the_strongest_sources_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    d = found("neurons")
    assert drawable(d) is d.circuit
    monkeypatch.setattr("mechanome.circuits.finding.rows._EDGES", 10)
    monkeypatch.setattr("mechanome.circuits.finding.rows._SOURCES", 4)
    few = drawable(d)
    sizes = torch.where(d.circuit.used, d.ranked.scores.values.abs(), -1.0)
    assert few <= d.circuit and 0 < len(few) < len(d.circuit)
    assert set(few.used.nonzero()[:, 0].tolist()) <= set(sizes.topk(4).indices.tolist())
    assert "Only its strongest sources are shown" in d.html()


# Ways and refusals -------------------------------------------------------------------------------------------


def test_relp_is_a_way() -> None:
    d = discover(circuit_tasks.task(busy()), busy(), quiet=True, units="neurons", method="relp", examples=6, verify=3)
    estimate = d.ranked.screened.estimate
    again = scores(d.graph, d.halves.finding, method="eap", level="node", rules=relp_rules(busy()), quiet=True)
    plain = scores(d.graph, d.halves.finding, method="eap", level="node", quiet=True)
    assert torch.allclose(estimate.values, again.values, atol=1e-5) and not torch.allclose(plain.values, again.values)
    assert estimate.method == "relp" and "RelP" in d.html() and int(d.ranked.screened.verified.sum()) == 3


BAD = {
    "name": ({"units": "neuron"}, UnknownName, "did you mean 'neurons'"),
    "exact": ({"units": "svd", "method": "exact"}, BadInput, "choose an estimate"),
    "search": ({"units": "svd", "method": "greedy", "size": 3}, BadInput, "choose an estimate"),
    "few examples": ({"certify": True, "examples": 12}, TooFewRows, "use at least 15 examples"),
    "one example": ({"certify": True, "examples": 1}, TooFewRows, "from 1 example"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_be_is_refused_before_a_model_is_opened(name: str) -> None:
    settings, error, said = BAD[name]
    with pytest.raises((error, BadInput) if error is UnknownName else error, match=said):
        discover("ioi", "no-such-model", quiet=True, **settings)


def test_levels_follow_from_units() -> None:
    assert Settings().level == "edge" and Settings(units="svd").level == "node"
    asked = Settings(units="svd", level="edge")
    assert asked.level == "edge" and Settings(**asked.record()) == asked


def test_edges_of_units_say_what_memory_they_need() -> None:
    asked = {"quiet": True, "units": "neurons", "examples": 6, "verify": 0}
    task = circuit_tasks.task(busy())
    with pytest.raises(BudgetTooSmall, match=r"edges, their scores and circuits need about .* 20.0 KB may be used"):
        discover(task, busy(), level="edge", budget="20KB", **asked)
    d = discover(task, busy(), level="edge", **asked)
    assert d.carriers is not None and d.settings.level == "edge"
    assert all(d.circuit.used[d.graph.source_index(unit.reading.source)] for unit in d.carriers.units)


def test_too_few_examples_that_the_model_does_right_are_refused() -> None:
    task = circuit_tasks.task(busy())
    with pytest.raises(TooFewRows, match=r"from 6 examples.* parts"):
        discover(task[:12], busy(), quiet=True, certify=True, units="neurons")


def test_a_model_without_mlps_is_refused() -> None:
    mamba = mn.load(families.build("mamba"), tokenizer=tiny.tokenizer(), check="off")
    with pytest.raises(NotServed, match="attention"):
        graph_of(mamba, "neurons")


def test_experts_stay_whole_and_a_model_of_nothing_else_is_refused() -> None:
    mixed = graph_of(opened("qwen3_moe"), "neurons")
    assert [layer.units is not None for layer in mixed.layers] == [False, True, False]
    with pytest.raises(NotServed, match=r"neurons of .* as units: .*leave out units"):
        graph_of(opened("mixtral"), "neurons")


# The command -------------------------------------------------------------------------------------------------


def test_the_command_writes_it_and_repeats_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    circuit_tasks.written(tmp_path)
    arguments = ["circuit", "nouns.jsonl", "--model", "model", "--examples", "34", "--sizes", "0.3,1", "--verify", "9"]
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"})
    done = runner.invoke(main.app, [*arguments, "--certify", "--units", "neurons", "--quiet"])
    assert done.exit_code == 0, done.stderr
    assert "neurons" in done.stdout and "Certified" in done.stdout
    [folder] = (tmp_path / "runs").iterdir()
    record = json.loads((folder / "discovery.json").read_text())
    graph = Graph.of(mn.load(tmp_path / "model"), units="neurons")
    kept = load_circuit(folder / "circuit.json", graph)
    names = [part["source"] for part in record["circuit"]["parts"]]
    assert record["settings"]["units"] == "neurons" and record["units"]["every"] == 48
    assert Circuit.of_nodes(graph, names).pruned() == kept
    again = runner.invoke(main.app, ["replay", str(folder)])
    assert again.exit_code == 0 and "largest difference from the recorded numbers is 0.0e+00" in again.stderr

    monkeypatch.setattr("mechanome.circuits.command._NAMED", 3)
    done = runner.invoke(main.app, [*arguments, "--units", "svd", "--out", "other"])
    assert done.exit_code == 0 and "no circuit.json" in done.stderr and "Circuit.of_nodes" in done.stderr
    [folder] = (tmp_path / "other").iterdir()
    assert not (folder / "circuit.json").exists() and (folder / "report.html").is_file()
