"""`mechanome explain --units` and `--certify`: units of one prompt, and what hangs on no single prompt."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import tiny
import torch
from transformers import LlamaForCausalLM
from typer.testing import CliRunner

import families
import mechanome as mn
from mechanome.circuits import Select, certify, scores
from mechanome.circuits.effects import Components, Effects
from mechanome.circuits.finding.certifiable import fewest_examples
from mechanome.cli.main import app
from mechanome.core import BadInput, NotServed, TooFewRows
from mechanome.engine import Edit, FromRun
from mechanome.explain import Explanation, circuit_words
from mechanome.explain.asked import FEWEST_PROMPTS
from mechanome.explain.circuit import STEPS, triple
from mechanome.explain.question import Question

NOUNS = {"cat": "dog", "dog": "cow", "cow": "hen", "hen": "fox", "fox": "cat"}
OTHERS = [
    {"prompt": f"the {a} {verb} on the", "counterfactual": f"the {b} {verb} on the"}
    for verb in ("ran", "sat")
    for a, b in NOUNS.items()
][:9]


def build() -> LlamaForCausalLM:
    """A model in which every part writes."""
    writers = {(layer, head): 1.0 for layer in range(3) for head in range(4)}
    return tiny.build(writers, floor=0.5).requires_grad_(False)


@cache
def busy() -> mn.Model:
    return mn.load(build(), tokenizer=tiny.tokenizer(), check="off")


@cache
def found() -> Explanation:
    asked = {"counterfactual": "the cow sat on the", "counterfactuals": 1, "quiet": True}
    return mn.explain(tiny.SENTENCE, busy(), units="neurons", certify=True, paraphrases=OTHERS, **asked)


def lost(question: Question, units: list[tuple[int, int]]) -> float:
    """The share of the gap that is lost where neurons carry the counterfactual's values, by plain edits."""
    sites = [f"mlp_act.{layer}.n{n}" for layer, n in units]
    donor = busy().run(question.corrupted, capture=list({f"mlp_act.{layer}" for layer, _ in units}), logits=False)
    logits = (
        busy().run(question.clean, edits=[Edit(site, "set", FromRun(donor)) for site in sites], logits="last").logits
    )
    return float(1 - question.restored(logits.reshape(1, -1))[0])


def test_neurons_are_measured_on_the_prompt_and_on_its_paraphrases() -> None:
    e = found()
    assert e.units is not None and e.circuit is not None
    made, others = e.units.carriers, e.circuit.questions
    assert made.kind == "neurons" and made.among == made.every == 48 and made.examples == 1
    assert e.units.paraphrases == len(others) >= FEWEST_PROMPTS
    for unit in made.units[:3]:
        place = [(unit.reading.layer, unit.reading.index)]
        assert unit.share == pytest.approx(lost(e.question, place), abs=1e-4)
        assert unit.elsewhere == pytest.approx(sum(lost(q, place) for q in others) / len(others), abs=1e-4)
    places = [(unit.reading.layer, unit.reading.index) for unit in made.units]
    assert made.together.value == pytest.approx(lost(e.question, places), abs=1e-4)


def test_they_are_the_strongest_estimates_on_the_prompt() -> None:
    e = found()
    made, graph = e.units.carriers, e.units.certificate.components.graph
    each = [scores(graph, triple(q), level="node", steps=STEPS, quiet=True) for q in (e.question, *e.circuit.questions)]
    kinds = graph.kinds("unit")
    strong = each[0].values.abs().where(kinds, torch.tensor(-1.0)).topk(len(made.units)).indices.tolist()
    assert [unit.reading.source for unit in made.units] == [graph.sources[i] for i in strong]
    values = torch.stack([one.values[kinds] for one in each])
    again = certify(Select(len(made.units)), Effects(values, Components(kinds, graph)), seed=e.seed, quiet=True)
    assert torch.equal(again.agree, e.units.certificate.agree)
    assert [unit.certified for unit in made.units] == [again.decision(unit.reading.source) for unit in made.units]


def test_the_circuit_is_certified_over_the_prompt_and_its_paraphrases() -> None:
    e = found()
    c, proof = e.circuit, e.circuit.certificate
    assert proof is not None and proof.examples == 1 + len(c.questions) and int(proof.found.sum()) == c.size
    graph = c.circuit.graph
    each = [scores(graph, triple(q), steps=STEPS, quiet=True).values[graph.mask] for q in (e.question, *c.questions)]
    again = certify(Select(c.size), Effects(torch.stack(each), Components(graph.mask, graph)), seed=e.seed, quiet=True)
    assert torch.equal(again.agree, proof.agree)
    some = torch.zeros_like(proof.guess)
    some[c.circuit.edges[graph.mask].nonzero()[:3, 0]] = True  # and one edge that is not in the circuit
    some[(~c.circuit.edges[graph.mask]).nonzero()[0]] = True
    sure = replace(proof, guess=some, agree=torch.full_like(proof.agree, proof.level.n))
    said = circuit_words.certified(replace(c, certificate=sure))
    assert f": 3 of the circuit's {len(c.circuit):,} edges" in said and f"over {proof.examples} prompts" in said
    nothing = replace(proof, agree=torch.zeros_like(proof.agree))
    assert circuit_words.certified(replace(c, certificate=nothing)).startswith("None of the circuit's")


def test_pages_and_record_tell_it() -> None:
    e = found()
    text, html, record = " ".join(str(e).split()), e.html(), json.loads(e.to_json())
    unit = e.units.carriers.units[0]
    for part in (unit.reading.short, "The neurons that carry it", circuit_words.certified(e.circuit)):
        assert part in text, part
    for part in (unit.reading.short, "Which neurons carry it", "on paraphrases", "hang on no single prompt"):
        assert part in html, part
    assert html.count("hang on no single prompt") >= 2, "of edges and of neurons"
    assert record["units"]["units"][0]["share_elsewhere"] == unit.elsewhere
    assert record["units"]["certificate"]["in"] == e.units.certificate.counts()["in"]
    assert record["circuit"]["certificate"]["in"] == e.circuit.certificate.counts()["in"]


def test_without_the_options_nothing_is_added() -> None:
    e = mn.explain(tiny.SENTENCE, tiny.lonely(), counterfactuals=1, quiet=True)
    assert e.units is None and e.circuit.certificate is None and e.record()["units"] is None
    assert not {"neurons", "svd"} & set(e.seconds) and "carry it" not in e.html() and "certified" not in str(e).lower()


def test_singular_units_need_no_circuit() -> None:
    e = mn.explain(tiny.SENTENCE, busy(), counterfactuals=1, circuit=False, units="svd", quiet=True)
    assert e.circuit is None and e.units.carriers.kind == "svd" and e.units.certificate is None
    assert e.units.carriers.units[0].elsewhere is None and "singular units that carry it" in " ".join(str(e).split())


REFUSED = {
    "no paraphrases": ({"certify": True}, TooFewRows, "a certificate from 1 prompt: .*--paraphrases FILE"),
    "too few": ({"certify": True, "paraphrases": OTHERS[:3]}, TooFewRows, "from 4 prompts"),
    "no circuit": ({"certify": True, "circuit": False}, BadInput, "about the circuit"),
    "no flag": ({"certify": 1}, BadInput, "yes or no"),
    "no such units": ({"units": "neuron"}, BadInput, "did you mean 'neurons'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_before_a_model_is_opened(name: str) -> None:
    asked, error, said = REFUSED[name]
    with pytest.raises(error, match=said):
        mn.explain("x", "no-such-model", quiet=True, **asked)


def test_as_many_prompts_as_can_certify_anything() -> None:
    assert fewest_examples(10) == FEWEST_PROMPTS


def test_paraphrases_that_cannot_be_used_do_not_count() -> None:
    same = [{**OTHERS[1], "id": str(n)} for n in range(8)]
    with pytest.raises(TooFewRows, match=r"from 2 examples.*--paraphrases.*same as another"):
        mn.explain(tiny.SENTENCE, busy(), counterfactuals=1, certify=True, paraphrases=same, quiet=True)


def test_a_model_without_mlps_is_refused_before_anything_is_measured() -> None:
    mamba = mn.load(families.build("mamba"), tokenizer=tiny.tokenizer(), check="off")
    with pytest.raises(NotServed, match=r"neurons of .*attention.*leave out units"):
        mn.explain(tiny.SENTENCE, mamba, units="neurons", quiet=True)


WRONG = {
    "many": ["--prompts", "x.txt", "--units", "svd"],
    "two models": ["x", "--against", "y", "--certify"],
    "resume": ["--resume", "runs", "--units", "svd"],
    "name": ["x", "--units", "neuron"],
}


@pytest.mark.parametrize("name", WRONG)
def test_the_command_refuses_what_would_be_ignored(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("x\n")
    done = CliRunner().invoke(app, ["explain", *WRONG[name]], env={"COLUMNS": "200"})
    assert done.exit_code == 2 and ("--units" in done.stderr or "--certify" in done.stderr), done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["x.txt"]


def test_a_run_repeats_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    build().save_pretrained(tmp_path / "model")
    tiny.tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "others.jsonl").write_text("".join(json.dumps(line) + "\n" for line in OTHERS))
    arguments = ["explain", tiny.SENTENCE, "--model", "model", "--counterfactuals", "1", "--counterfactual"]
    arguments += ["the cow sat on the", "--units", "neurons", "--certify", "--paraphrases", "others.jsonl"]
    runner = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"})
    done = runner.invoke(app, arguments)
    assert done.exit_code == 0, done.stderr
    body = done.stdout.split("\nreport")[0]
    assert "neurons that carry it" in body and max(len(line.rstrip()) for line in body.splitlines()) <= 80
    [folder] = (tmp_path / "runs").iterdir()
    again = runner.invoke(app, ["replay", str(folder)])
    assert again.exit_code == 0 and "largest difference from the recorded numbers is 0.0e+00" in again.stderr
