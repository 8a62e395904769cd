"""The circuit of a prompt: found where it is known, measured as it is run, told everywhere, and never at any price."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import tiny
from typer.testing import CliRunner

import families
import mechanome as mn
from mechanome.circuits import Circuit, execute, ndf
from mechanome.cli.main import app
from mechanome.core import BadInput, BudgetTooSmall, MechanomeError, NotFinite, read_json
from mechanome.explain import Explanation, PromptCircuit, circuit_words, pipeline
from mechanome.explain import circuit as circuit_module
from mechanome.explain.apart import difference
from mechanome.explain.circuit import ENOUGH, Sample
from mechanome.explain.command import resume, run, run_many
from mechanome.explain.document import document
from mechanome.explain.many import Settings, explain_many
from mechanome.explain.question import Question
from mechanome.report import text
from mechanome.tasks import Example, Task

OTHERS = ["the dog sat on the", "the cow ran on the", {"prompt": "cat sat on the", "counterfactual": "dog sat on the"}]


@cache
def busy() -> mn.Model:
    writers = {(layer, head): 1.0 for layer in range(3) for head in range(4)}
    return mn.load(tiny.build(writers, floor=0.5), tokenizer=tiny.tokenizer(), check="off")


@pytest.fixture(scope="module")
def found() -> Explanation:
    return mn.explain(tiny.SENTENCE, busy(), counterfactuals=1, paraphrases=OTHERS, quiet=True)


@pytest.fixture(scope="module")
def alone() -> Explanation:
    return mn.explain(tiny.SENTENCE, busy(), counterfactuals=1, quiet=True)


def kept(circuit: Circuit, question: Question) -> float:
    [share] = ndf(execute(circuit, (question.clean, question.corrupted), question.metric, quiet=True))
    assert share.value is not None
    return share.value


def test_the_only_head_that_writes_is_the_circuit() -> None:
    c = mn.explain(tiny.SENTENCE, tiny.lonely(), counterfactuals=1, quiet=True).circuit
    assert c is not None and c.enough and c.ndf >= ENOUGH and float(c.found.ndf[-1]) == pytest.approx(1, abs=1e-3)
    assert set(c.circuit.nodes) == {"resid_pre.0", "z.1.h3"}
    assert {edge.partition("->")[0] for edge in c.circuit if edge.endswith("logits")} == {"z.1.h3"}
    assert "looks at" in c.tips["z.1.h3"] and c.tips["z.1.h3"].startswith("alone it restores 100 %")


def test_every_size_is_measured_by_running_it(alone: Explanation) -> None:
    c, q = alone.circuit, alone.question
    assert c is not None and list(c.found.budgets) == sorted(c.found.budgets) and len(c.found.budgets) >= 5
    for n, circuit, value in zip(c.found.budgets, c.found.circuits, c.found.ndf.tolist()):
        assert len(circuit) == n and value == pytest.approx(kept(circuit, q), abs=1e-5)
    assert c.found.total_effect == pytest.approx(q.gap, abs=1e-3)
    assert kept(c.circuit, q) == pytest.approx(c.ndf, abs=1e-5), "edges on no path change nothing"
    assert c.enough is (max(c.found.ndf.tolist()) >= ENOUGH) and c.samples == () and c.elsewhere is None
    assert c.alone == tuple(c.found.ndf.tolist()) and not any(map(c.proposer, range(len(c.found.budgets))))


def test_paraphrases_can_only_help_and_are_measured(found: Explanation, alone: Explanation) -> None:
    c, single = found.circuit, alone.circuit
    assert c is not None and single is not None and c.alone == pytest.approx(single.alone, abs=1e-6)
    assert all(best >= own for best, own in zip(c.found.ndf.tolist(), c.alone))
    assert [sample.prompt for sample in c.samples] == [*OTHERS[:2], "cat sat on the"]
    assert c.samples[2].counterfactual == "dog sat on the"
    for sample in c.samples:
        asked = mn.explain(
            sample.prompt, busy(), counterfactual=sample.counterfactual, answer=sample.answer, foil=sample.foil,
            counterfactuals=1, circuit=False, quiet=True,
        )  # fmt: skip
        assert asked.circuit is None and asked.left_out == ()
        assert sample.ndf == pytest.approx(kept(c.circuit, asked.question), abs=1e-5)


def test_the_paraphrase_that_gave_the_circuit_is_no_test_of_it(found: Explanation) -> None:
    c = found.circuit
    assert c is not None
    samples = tuple(replace(s, ndf=x) for s, x in zip(c.samples, (0.9, 0.5, 0.1)))
    own = replace(c, samples=samples, found=replace(c.found, winner=(0,) * len(c.found.budgets)))
    first = replace(own, found=replace(c.found, winner=(1,) * len(c.found.budgets)))
    assert own.elsewhere == pytest.approx(0.5) and first.elsewhere == pytest.approx(0.3)
    assert first.proposer(0) == OTHERS[0] and own.proposer(0) == ""
    assert "that of 'the dog sat on the' gave this circuit" in circuit_words.rankings(first)
    assert "the prompt's own gave this circuit. On the other paraphrases" in circuit_words.rankings(own)
    assert replace(first, samples=samples[:1]).elsewhere is None


def curve(c: PromptCircuit, *values: float) -> PromptCircuit:
    """The same with other values of NDF."""
    rest = len(c.found.budgets) - len(values)
    made = c.found.ndf.clone()
    made[:] = made.new_tensor([*values, *[values[-1]] * rest])
    return replace(c, found=replace(c.found, ndf=made))


def test_the_smallest_that_is_enough_is_shown_and_dips_are_told(alone: Explanation) -> None:
    assert alone.circuit is not None
    c, sizes = alone.circuit, alone.circuit.found.budgets
    rising = curve(c, 0.1, 0.85, 0.9)
    assert rising.place == 1 and rising.size == sizes[1] and rising.dips == () and rising.ndf == pytest.approx(0.85)
    assert circuit_words.finding(rising).startswith(f"{sizes[1]} of {c.found.graph.n_edges:,} edges")
    assert "are enough: NDF 0.85" in circuit_words.finding(rising) and circuit_words.dips(rising) == ""
    falling = curve(c, 0.1, 0.85, 0.6, 0.9)
    assert (
        falling.place == 1 and falling.dips == (sizes[2],) and f"with {sizes[2]} edges" in circuit_words.dips(falling)
    )
    never = curve(c, 0.1, 0.7, 0.3)
    assert not never.enough and never.place == 1 and never.dips == ()
    assert circuit_words.finding(never).startswith("None of the circuits") and "NDF 0.70" in circuit_words.finding(
        never
    )
    titles = [s.title for s in document(replace(alone, circuit=never)).sections]
    assert "The nearest of these circuits" in titles and "The smallest of these circuits" not in titles


@pytest.mark.parametrize(("value", "said"), [(0.00071, "0.07 %"), (0.0123, "1.2 %"), (0.71, "71 %"), (0.999, "100 %")])
def test_a_share_of_edges_in_words(value: float, said: str) -> None:
    assert circuit_words.share(value) == said


def test_what_makes_no_question_is_left_out_with_its_reason() -> None:
    model = busy()
    given = [tiny.SENTENCE, "", {"prompt": "the dog sat on the", "id": "dog"}, {"prompt": "the dog sat on the"}]
    e = mn.explain(tiny.SENTENCE, model, counterfactuals=1, paraphrases=given, quiet=True)
    assert e.circuit is not None and [s.prompt for s in e.circuit.samples] == ["the dog sat on the"]
    said = "\n".join(e.circuit.notes)
    assert "paraphrase 1" not in said, "the prompt itself"
    assert "paraphrase 2 ('') left out: the prompt: it is empty" in said and "Fix" not in said
    assert "paraphrase 4 ('the dog sat on the') left out: it is the same as another" in said
    assert all(note in e.notes and note in " ".join(str(e).split()) for note in e.circuit.notes)
    assert "paraphrase 2" in e.html()
    same = {"prompt": "the cat", "answer": " fox", "foil": " fox"}
    none = mn.explain(tiny.SENTENCE, model, counterfactuals=1, paraphrases=["", same], quiet=True).circuit
    assert none is not None and none.samples == () and none.found.method == "single" and len(none.notes) == 2


def test_a_task_and_a_file_are_paraphrases_too(found: Explanation, tmp_path: Path) -> None:
    file = tmp_path / "others.jsonl"
    lines = [line if isinstance(line, dict) else {"prompt": line} for line in OTHERS]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    examples = [Example(line["prompt"], counterfactual=line.get("counterfactual")) for line in lines]
    for given in (file, Task("animals", tuple(examples))):
        c = mn.explain(tiny.SENTENCE, busy(), counterfactuals=1, paraphrases=given, quiet=True).circuit
        assert c is not None and found.circuit is not None and c.record() == found.circuit.record()


def test_a_mistake_in_paraphrases_is_told_before_a_model_is_opened(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("\n")
    for wrong in (tmp_path / "empty.txt", [{"text": "x"}], "a text", tmp_path / "none.txt"):
        with pytest.raises(MechanomeError):
            mn.explain("x", "no-such-model-is-opened", paraphrases=wrong)
    with pytest.raises(BadInput, match="not asked for"):
        mn.explain("x", "no-such-model-is-opened", circuit=False, paraphrases=["y"])
    with pytest.raises(BadInput, match="yes or no"):
        mn.explain("x", "no-such-model-is-opened", circuit="maybe")


def test_a_model_without_such_a_graph_is_explained_without_a_circuit() -> None:
    model = mn.load(families.build("jamba"), tokenizer=tiny.tokenizer(), check="off")
    e = mn.explain(tiny.SENTENCE, model, counterfactuals=1, quiet=True)
    [why] = [reason for reason in e.left_out if reason.startswith("circuit left out: ")]
    assert e.circuit is None and e.record()["circuit"] is None and why in " ".join(str(e).split())
    assert why[:40] in e.html() and not any("circuit" in s.title for s in document(e).sections)


@pytest.mark.parametrize("error", [NotFinite("scores", "some are NaN", "x"), BudgetTooSmall("1 KB", "too little", "x")])
def test_what_only_the_circuit_cannot_do_costs_nothing_else(
    error: MechanomeError, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> PromptCircuit:
        raise error

    monkeypatch.setattr(pipeline, "prompt_circuit", fail)
    e = mn.explain(tiny.SENTENCE, tiny.lonely(), counterfactuals=1, quiet=True)
    assert e.explained and e.circuit is None and f"circuit left out: {error.why}" in e.left_out


def test_a_long_prompt_has_fewer_sizes_and_paraphrases_or_none(
    alone: Explanation, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert alone.circuit is not None
    every, length = alone.circuit.found.budgets, alone.question.length
    monkeypatch.setattr(circuit_module, "FEWEST_SIZES", 2)
    monkeypatch.setattr(circuit_module, "TOKENS", 4 * length)
    e = mn.explain(tiny.SENTENCE, busy(), counterfactuals=1, paraphrases=OTHERS, quiet=True)
    assert e.circuit is not None and len(e.circuit.samples) == 1, "two rankings of two sizes"
    assert set(e.circuit.found.budgets) < set(every) and len(e.circuit.found.budgets) == 2
    assert e.circuit.found.budgets[-1] == every[-1]
    assert any("2 sizes of circuits were tried instead of" in note for note in e.circuit.notes)
    assert any("no more than 1 of 3 paraphrases were tried" in note for note in e.circuit.notes)
    monkeypatch.setattr(circuit_module, "TOKENS", length)
    e = mn.explain(tiny.SENTENCE, busy(), counterfactuals=1, quiet=True)
    assert e.circuit is None and any("take too long" in why for why in e.left_out)


def test_the_page_shows_the_curve_and_the_circuit(found: Explanation) -> None:
    c = found.circuit
    assert c is not None
    page = document(found)
    first, second = page.sections[-2:]
    assert first.title.startswith("How few edges are enough") and text(first.finding).startswith(
        circuit_words.finding(c)
    )
    assert [row[:3] for row in first.picture.table().rows] == [
        (n, circuit.share, value) for n, circuit, value in zip(c.found.budgets, c.found.circuits, c.found.ndf.tolist())
    ]
    listed = second.picture.table()
    assert [f"{a}->{b}" for a, b, _ in listed.rows] == c.record()["circuit"]["names"][: len(listed.rows)]
    assert [lost for *_, lost in listed.rows] == [-x for x in c.record()["circuit"]["scores"][: len(listed.rows)]]
    source, target, lost = listed.rows[0]
    path = next(p for p in str(second.picture.html()).split("<path")[1:] if f"{source}-&gt;{target}:" in p)
    assert ("--for-rgb" in path) == (lost > 0), "green: the preference would be lower without it"
    html = found.html()
    assert "alone it restores" in html and "<svg" in html and "NDF over the number of edges" in html
    assert "the edges of the circuit are ranked by one" in text(page.measured[0])
    assert "ranked by one" not in text(document(replace(found, circuit=None)).measured[0])
    assert "<b>" not in replace_prompt(found, "<b>").html()


def replace_prompt(e: Explanation, prompt: str) -> Explanation:
    assert e.circuit is not None
    sample = Sample(prompt, prompt, prompt, prompt, 0.5)
    samples, winner = (sample,) * len(e.circuit.samples), (1,) * len(e.circuit.found.budgets)
    return replace(e, circuit=replace(e.circuit, samples=samples, found=replace(e.circuit.found, winner=winner)))


def test_the_terminal_has_one_short_section(found: Explanation) -> None:
    c, lines = found.circuit, str(found).splitlines()
    assert c is not None and max(map(len, lines)) <= 100
    at = next(n for n, line in enumerate(lines) if "The circuit of this prompt" in line)
    curve = next(n for n, line in enumerate(lines) if line.split()[:1] == ["edges"])
    assert at < curve <= at + 3 and lines[curve].split()[1:] == [f"{n:,}" for n in c.found.budgets]
    assert lines[curve + 1].split() == ["NDF", *(f"{x:.2f}" for x in c.found.ndf.tolist())]
    assert circuit_words.finding(c) in " ".join(str(found).split())
    assert "The circuit of this prompt" not in str(replace(found, circuit=None))


def test_no_paraphrases_is_said(alone: Explanation) -> None:
    said = "own ranking of edges was tried; --paraphrases FILE"
    assert said in " ".join(str(alone).split()) and said in alone.html()


def test_the_record_has_the_curve_and_every_edge(found: Explanation) -> None:
    c = found.circuit
    assert c is not None
    record = json.loads(found.to_json())["circuit"]
    assert record == c.record() and len(record["circuit"]["names"]) == len(c.circuit) == record["circuit"]["on_paths"]
    assert Circuit.of(c.found.graph, record["circuit"]["names"]) == c.circuit
    assert [row["edges"] for row in record["curve"]] == list(c.found.budgets)
    assert record["paraphrases"][0]["prompt"] == OTHERS[0] and record["circuit"]["edges"] == c.size


def test_the_fork_of_longer_answers_is_where_the_circuit_is_measured() -> None:
    e = mn.explain(
        "the cat sat", busy(), answer=" on the mat", foil=" on the hat", counterfactual="the dog ran",
        counterfactuals=1, quiet=True,
    )  # fmt: skip
    assert e.circuit is not None and len(e.question.shared) == 2
    assert e.circuit.found.clean == pytest.approx(e.question.high, abs=1e-3)
    assert e.circuit.found.empty == pytest.approx(e.question.low, abs=1e-3)


def test_a_chat_has_a_circuit_and_paraphrases_that_are_chats() -> None:
    tokenizer = copy.deepcopy(tiny.tokenizer())
    tokenizer.chat_template = "the{% for m in messages %}<s>{{ m['content'] }}{% endfor %} on the"
    model = mn.load(busy().module, tokenizer=tokenizer, check="off")
    chats = [[{"role": "user", "content": content}] for content in (" cat sat", " dog sat", " cow ran")]
    other = {"prompt": chats[1], "counterfactual": chats[2]}
    e = mn.explain(chats[0], model, counterfactuals=1, paraphrases=[other], quiet=True)
    assert e.circuit is not None and [s.prompt for s in e.circuit.samples] == [" dog sat"]
    assert e.circuit.found.clean == pytest.approx(e.question.high, abs=1e-3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.save(tmp_path_factory.mktemp("model")))


def test_a_run_with_paraphrases_repeats_itself_without_their_file(folder: str, tmp_path: Path) -> None:
    file = tmp_path / "others.txt"
    file.write_text("the dog sat on the\n")
    options = ["--model", folder, "--counterfactuals", "1", "--out", str(tmp_path / "runs"), "--quiet"]
    done = CliRunner().invoke(app, ["explain", tiny.SENTENCE, "--paraphrases", str(file), *options])
    assert done.exit_code == 0, done.stderr
    file.unlink()
    [made] = (tmp_path / "runs").iterdir()
    recorded = read_json(made / "explanation.json")
    assert [sample["prompt"] for sample in recorded["circuit"]["paraphrases"]] == ["the dog sat on the"]
    again = CliRunner().invoke(app, ["replay", str(made), "--json"])
    assert again.exit_code == 0 and difference(recorded, json.loads(again.stdout) | {}) is None, (
        "a folder is named, too"
    )
    repeated = json.loads(again.stdout)
    repeated.pop("folder")
    assert difference(recorded, repeated) == 0
    (made / "explanation.json").unlink()
    assert difference(recorded, resume(made, quiet=True).record) == 0


def test_no_circuit_is_found_where_none_is_asked_for(folder: str, tmp_path: Path) -> None:
    options = {"model": folder, "counterfactuals": 1, "quiet": True}
    assert run(tiny.SENTENCE, **options, circuit=False, out=tmp_path / "none").record["circuit"] is None
    for circuit in (False, True):
        many = run_many([tiny.SENTENCE], **options, circuit=circuit, out=tmp_path / f"many{circuit}")
        record = read_json(many.folder / "explanations" / "1.json")
        assert (record["circuit"] is not None) is circuit
        assert ("How few edges are enough" in (many.folder / "pages" / "1.html").read_text(encoding="utf-8")) is circuit
    config = many.folder / "config.yaml"
    config.write_text(config.read_text().replace("circuit: true", "circuit: false"))
    with pytest.raises(BadInput, match="was changed after that prompt was done"):
        resume(many.folder, quiet=True)
    seen: list[Explanation] = []
    keep = lambda item, e: seen.append(e) or ""  # noqa: E731
    explain_many([tiny.SENTENCE], tiny.lonely(), counterfactuals=1, circuit=True, quiet=True, keep=keep)
    explain_many([tiny.SENTENCE], tiny.lonely(), counterfactuals=1, quiet=True, keep=keep)
    assert [e.circuit is not None for e in seen] == [True, False] and not Settings().circuit


def test_two_models_have_circuits_where_they_are_asked_for(folder: str, tmp_path: Path) -> None:
    both = run_many(
        [tiny.SENTENCE], model=folder, against=folder, counterfactuals=1, circuit=True, out=tmp_path, quiet=True
    )
    records = [read_json(both.folder / "explanations" / f"{name}1.json")["circuit"] for name in ("", "tuned-")]
    assert all(record is not None and record["curve"] for record in records)
    assert len({record["edges_in_graph"] for record in records}) == 1


WRONG = {
    "many": (["--prompts", "x.txt"], "one prompt in one model"),
    "against": (["x", "--against", "smollm2-135m-instruct"], "one prompt in one model"),
    "none": (["x", "--no-circuit"], "one prompt in one model"),
    "resume": (["--resume", "runs"], "not beside --resume"),
}


@pytest.mark.parametrize("name", WRONG)
def test_paraphrases_that_would_be_ignored_are_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("x\n")
    arguments, said = WRONG[name]
    done = CliRunner().invoke(app, ["explain", *arguments, "--paraphrases", "x.txt"], env={"COLUMNS": "200"})
    assert done.exit_code == 2 and said in done.stderr and [f.name for f in tmp_path.iterdir()] == ["x.txt"]
