"""Many prompts: checked before anything runs, one result each, the same after a kill, and counted correctly."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
from typer.testing import CliRunner

import mechanome as mn
from mechanome.cli.main import app
from mechanome.core import BadInput, MechanomeError, UnknownName, binomial, bootstrap, read_json, replay, write_json
from mechanome.explain import many as many_module
from mechanome.explain.apart import difference
from mechanome.explain.command import resume, run_many
from mechanome.explain.items import Item, items
from mechanome.explain.many import Explanations, explain_many
from mechanome.explain.outcome import Outcome
from mechanome.explain.result import Measured, Result, Verdict
from mechanome.explain.summary import story
from mechanome.report import text
from mechanome.tasks import Example, Task

OTHER = "the dog sat on the"
ASKED = [tiny.SENTENCE, "", {"prompt": OTHER, "id": "dog"}, {"prompt": tiny.SENTENCE, "answer": " fox", "foil": " fox"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.save(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def done(model: str, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_many(ASKED, model=model, counterfactuals=1, out=tmp_path_factory.mktemp("runs"), quiet=True)


def test_a_refused_prompt_is_a_result(done: Outcome) -> None:
    found = done.found
    assert isinstance(found, Explanations) and len(found) == 4
    assert [result.item.id for result in found] == ["1", "2", "dog", "4"]
    assert [result.verdict for result in found] == ["explained", "refused", "explained", "refused"]
    assert "it is empty" in found.results[1].reason and "it is the answer" in found.results[3].reason
    assert found.results[1].measured is None and done.code() == 0 and done.code(strict=True) == 1
    assert found.counts == {"explained": 2, "not explained": 0, "refused": 2, "failed": 0}
    assert found.shares["explained"] == binomial(2, 4)


def test_the_folder_holds_a_page_and_a_record_of_each(done: Outcome) -> None:
    names = {str(file.relative_to(done.folder)) for file in done.folder.rglob("*") if file.is_file()}
    each = {f"{kind}/{n}.{end}" for kind, end in (("pages", "html"), ("explanations", "json")) for n in "13"}
    assert names == {"config.yaml", "metrics.jsonl", "run.json", "explanations.json", "report.html"} | each
    page = done.report.read_text(encoding="utf-8")
    assert 'href="pages/1.html"' in page and 'href="pages/2.html"' not in page and "it is empty" in page
    assert 'href="../report.html"' in (done.folder / "pages" / "3.html").read_text(encoding="utf-8")
    record = read_json(done.folder / "explanations" / "3.json")
    assert record["question"]["prompt"] == OTHER
    assert (done.folder / "pages" / "3.html").read_text(encoding="utf-8").count(f"mechanome replay {done.folder}") >= 1
    assert [row["step"] for row in map(json.loads, (done.folder / "metrics.jsonl").open())] == [0, 1, 2, 3]


def test_each_is_what_explain_says_of_it(done: Outcome, model: str) -> None:
    alone = mn.explain(OTHER, model, counterfactuals=1, quiet=True)
    kept = done.found.results[2].measured
    assert kept == Measured.of(alone)
    assert kept.effects["z.1.h3"] == pytest.approx(1, abs=0.05) and kept.named[0] == "z.1.h3"
    assert len(kept.effects) == 3 * 4 + 3 and kept.shape == {"z": (3, 4), "mlp_out": (3, 1)}


def test_what_recurs_is_averaged_over_all_that_were_measured(done: Outcome) -> None:
    [head, *_] = done.found.recurring()
    values = [m.effects["z.1.h3"] for m in done.found.measured]
    assert head.site == "z.1.h3" and head.name == "head 1.3" and head.named == 2
    assert head.effect == bootstrap(values, seed=0) and head.effect.n == 2


def made(
    named: tuple[str, ...], effects: dict[str, float], verdict: Verdict = "explained", **changed: object
) -> Result:
    numbers = Measured(" a", " b", "c", " a", 0.5, 2.0, 0.0, effects, {"z": (1, 2)}, 0.9, 0.9, named)
    return Result(Item(str(len(effects)), "x"), verdict, "", 1.0, replace(numbers, **changed))


def test_prompts_that_are_not_explained_are_counted_apart() -> None:
    first, second = {"z.0.h0": 0.9}, {"z.0.h0": 0.9, "z.0.h1": 0.5}
    failed = [made(("z.0.h1",), second, "not explained")] * 3
    e = Explanations((made(("z.0.h0",), first), made(("z.0.h0",), first), *failed), "m", 0)
    assert [(part.site, part.named, part.explained) for part in e.recurring()] == [("z.0.h0", 2, 2), ("z.0.h1", 3, 0)]
    said = " ".join(text(line) for line in story(e))
    assert "Head 0.0 recurs most: 2 of 2 explained prompts, and 0 of 3 not explained name it" in said
    assert e.record()["recurring"][1]["explained"] == 0 and e.record()["recurring"][1]["named"] == 3
    sheet = next(s.picture for s in e.document().sections if s.title == "Parts that recur")
    assert sheet.rows[1][1:3] == ["0 of 2", "3 of 3"], "explained, not explained"
    none = " ".join(text(line) for line in story(Explanations(tuple(failed), "m", 0)))
    assert "No part is named by more than one explained prompt. Head 0.1 recurs most where" in none
    assert "3 of 3 not explained name it" in none


def test_a_mean_of_few_prompts_has_no_interval() -> None:
    few = Explanations((made(("z.0.h0",), {"z.0.h0": 0.9}),) * 4, "m", 0)
    enough = Explanations((*few.results, *few.results[:1]), "m", 0)
    said = [" ".join(text(line) for line in story(e)) for e in (few, enough)]
    assert "restores 90 % of" in said[0] and "restores 90 % [90, 90] of" in said[1] and "(n = 4)" in said[0]


def test_the_summary_says_what_was_asked_and_what_is_said_without_the_parts() -> None:
    asked = made(("z.0.h0",), {"z.0.h0": 0.9}, says=" the", without=" the")
    other = made(("z.0.h0",), {"z.0.h0": 0.9}, without=" b", stability="2 of 2")
    e = Explanations((asked, other, made((), {}, "not explained", stability="1 of 2")), "m", 0, ("made small",))
    said = " ".join(str(e).split())
    assert "asked: ' a'; the model says ' the': head 0.0" in said and "explained ' a': head 0.0" in said
    assert "says something else in 1 of 2 explained prompts; in the others the answer is weakened" in said
    rows = next(s.picture for s in e.document().sections if s.title == "Every prompt").rows
    assert [row[5] for row in rows] == ["\u2013", "2 of 2", "(1 of 2)"]
    assert rows[1][4] == "'\u00a0b'" and "made small" in said and "made small" in e.document().kicker
    assert text(Explanations((asked,), "m", 0).document().title) == "1 prompt"


def test_a_part_that_is_not_named_still_counts_in_the_mean() -> None:
    one = made(("z.0.h0", "z.0.h1"), {"z.0.h0": 0.9, "z.0.h1": 0.5})
    two = made(("z.0.h0",), {"z.0.h0": 0.7, "z.0.h1": 0.1})
    three = made(("z.0.h1",), {"z.0.h1": 0.3})
    found = {part.site: part for part in Explanations((one, two, three), "m", 0).recurring()}
    assert found["z.0.h0"].named == 2 and found["z.0.h0"].effect.n == 2
    assert found["z.0.h1"].effect.estimate == pytest.approx(0.3) and found["z.0.h1"].effect.n == 3
    assert Explanations((one,), "m", 0).recurring() == ()


def test_an_error_of_ours_is_a_row_and_code_1(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    explain = many_module.explain

    def fail(prompt: str, *args: object, **options: object) -> object:
        if prompt == OTHER:
            raise ZeroDivisionError("why")
        return explain(prompt, *args, **options)

    monkeypatch.setattr(many_module, "explain", fail)
    outcome = run_many(ASKED, model=model, counterfactuals=1, out=tmp_path, quiet=True)
    assert outcome.found.results[2].verdict == "failed" and "ZeroDivisionError: why" in outcome.found.results[2].reason
    assert outcome.code() == 1


def test_all_refused_is_code_2(model: str, tmp_path: Path) -> None:
    assert run_many(["", ""], model=model, out=tmp_path, quiet=True).code() == 2


def test_a_run_of_many_repeats_itself(done: Outcome) -> None:
    again = replay(done.folder)
    assert again.folder != done.folder
    assert difference(read_json(done.folder / "explanations.json"), again.record) == 0


def test_a_killed_run_goes_on_and_ends_the_same(done: Outcome, model: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    lines = [asked if isinstance(asked, dict) else {"prompt": asked} for asked in ASKED]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    code = (
        "import sys, time\nfrom mechanome.explain import many\nfrom mechanome.cli.main import main\n"
        "explain = many.explain\n"
        "def slow(prompt, *args, **options):\n"
        "    if prompt == 'the dog sat on the':\n        time.sleep(600)\n"
        "    return explain(prompt, *args, **options)\n"
        "many.explain = slow\nmain(sys.argv[1:])"
    )
    options = ["--counterfactuals", "1", "--model", model, "--out", str(tmp_path / "runs"), "--quiet"]
    process = subprocess.Popen([sys.executable, "-c", code, "explain", "--prompts", str(file), *options])
    try:
        deadline = time.monotonic() + 120
        while not any(f.read_text().count("\n") == 2 for f in tmp_path.glob("runs/*/metrics.jsonl")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    [folder] = (tmp_path / "runs").iterdir()
    (folder / "pages" / ".3.html.abc.tmp").write_text("half")
    assert read_json(folder / "run.json")["status"] == "running"
    said = CliRunner().invoke(app, ["explain", "--prompts", str(file), "--resume", str(folder), "--json"])
    assert said.exit_code == 0, said.stderr
    recorded = read_json(done.folder / "explanations.json")
    assert difference(recorded, read_json(folder / "explanations.json")) == 0
    assert read_json(folder / "run.json")["status"] == "done" and not list(folder.rglob(".*.tmp"))
    with pytest.raises(BadInput, match="other prompts"):
        resume(folder, ["something else"])


def test_ctrl_c_keeps_what_is_done_and_says_how_to_go_on(
    done: Outcome, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    explain = many_module.explain

    def stop(prompt: str, *args: object, **options: object) -> object:
        if prompt == OTHER:
            raise KeyboardInterrupt
        return explain(prompt, *args, **options)

    monkeypatch.setattr(many_module, "explain", stop)
    file = tmp_path / "prompts.txt"
    file.write_text(f"{tiny.SENTENCE}\n\n{OTHER}\n")
    out = tmp_path / "runs"
    arguments = ["explain", "--prompts", str(file), "--model", model, "--counterfactuals", "1", "--out", str(out)]
    said = CliRunner().invoke(app, arguments)
    [folder] = out.iterdir()
    assert said.exit_code == 130 and f"1 done and kept; go on with `mechanome explain --resume {folder}`" in said.stderr
    assert read_json(folder / "run.json")["status"] == "interrupted" and not (folder / "report.html").exists()
    monkeypatch.undo()
    spent = read_json(folder / "run.json")
    write_json(folder / "run.json", {**spent, "seconds": spent["seconds"] + 1000})
    assert [r.verdict for r in resume(folder, quiet=True).found] == ["explained", "explained"]
    assert read_json(folder / "run.json")["seconds"] > spent["seconds"] + 1000, "seconds add up"
    assert resume(folder, quiet=True).report.is_file(), "a finished run is not done again"


def test_nothing_is_left_where_nothing_was_done(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> object:
        raise KeyboardInterrupt

    monkeypatch.setattr(many_module, "explain", stop)
    with pytest.raises(KeyboardInterrupt):
        run_many(ASKED, model=model, out=tmp_path / "runs", quiet=True)
    assert not (tmp_path / "runs").exists()


BAD = {
    "not JSON": ('{"prompt": "a"}\n{"prompt"', "line 2", "not JSON"),
    "deep": ('{"prompt": ' + "[" * 100_000, "line 1", "not JSON"),
    "no object": ('\n["a"]', "line 2", "not an object"),
    "no prompt": ('{"id": "a"}', "line 1", "it has no prompt"),
    "number": ('{"prompt": 3}', "line 1", "neither a text nor a list"),
    "answer": ('{"prompt": "a", "answer": 3}', "line 1: answer", "is no text"),
    "message": ('{"prompt": [{"role": "user", "text": "a"}]}', "line 1: prompt, message 1", "role and content"),
    "content": ('{"prompt": [{"role": "user", "content": 1}]}', "message 1", "must be texts"),
    "twice": ('{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}', "line 2", "line 1 has it, too"),
    "surrogate": ('{"prompt": "\\ud800"}', "line 1", "half of a character"),
    "nothing": ("\n\n", "prompts.jsonl", "holds no prompt"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_line_is_named_before_anything_runs(name: str, tmp_path: Path) -> None:
    content, place, why = BAD[name]
    file = tmp_path / "prompts.jsonl"
    file.write_text(content)
    with pytest.raises(BadInput) as caught:
        run_many(file, model="no-such-model-is-opened", out=tmp_path / "runs")
    assert place in str(caught.value) and why in str(caught.value) and caught.value.fix
    assert not (tmp_path / "runs").exists()


def test_a_typo_names_the_nearest_key(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "a"}\n{"promt": "b"}\n')
    with pytest.raises(UnknownName, match=r"line 2: key 'promt'.*did you mean 'prompt'"):
        items(file)


def test_files_and_lists_give_the_same(tmp_path: Path) -> None:
    text, lines = tmp_path / "a.txt", tmp_path / "a.jsonl"
    text.write_bytes("one\r\n\ntwo\u2028x\n".encode())
    lines.write_text('{"prompt": "one"}\n\n{"prompt": "two\\u2028x"}\n')
    assert items(text) == items(lines) == items(["one", "two\u2028x"])
    assert items(["x"])[0].as_chat().prompt == [{"role": "user", "content": "x"}]
    for wrong in ("a text", tmp_path / "a.csv"):
        (tmp_path / "a.csv").write_text("one")
        with pytest.raises(BadInput):
            items(wrong)


def test_settings_are_refused_before_a_model_is_opened(tmp_path: Path) -> None:
    for wrong in ({"budget": "many"}, {"counterfactuals": 0}, {"seed": -1}):
        with pytest.raises(BadInput):
            explain_many(["a"], "no-such-model-is-opened", **wrong)
        with pytest.raises(BadInput):
            run_many(["a"], model="no-such-model-is-opened", out=tmp_path / "runs", **wrong)
    assert not (tmp_path / "runs").exists()


def test_python_gets_every_explanation_once(model: str) -> None:
    seen = []
    found = explain_many(
        ASKED, model, counterfactuals=1, quiet=True, keep=lambda item, e: seen.append((item.id, e)) or ""
    )
    assert [id for id, _ in seen] == ["1", "dog"] and isinstance(seen[0][1], mn.Explanation)
    assert (
        found.table().records()[0]["verdict"] == "explained" and json.loads(found.to_json())["counts"]["refused"] == 2
    )
    assert "2 of 4 explained" in found.html() and "head 1.3" in str(found) and "<iframe" in found._repr_html_()


def test_a_task_is_explained_example_by_example() -> None:
    model = tiny.lonely()
    other = mn.explain(tiny.SENTENCE, model, counterfactuals=1, quiet=True).question.counterfactual
    task = Task("animals", (Example(tiny.SENTENCE), Example(tiny.SENTENCE, counterfactual=other)))
    fields = [{"prompt": tiny.SENTENCE}, {"prompt": tiny.SENTENCE, "counterfactual": other}]
    many, listed = (explain_many(asked, model, counterfactuals=1, quiet=True) for asked in (task, fields))
    assert [r.measured for r in many] == [r.measured for r in listed] and many.results[1].item.counterfactual == other
    assert items([task[1]]) == items(task[1:]) == items(fields[1:])
    with pytest.raises(BadInput, match="answer"):
        items(Task("ids", (Example("x", answer=[5]),)))


def test_an_example_brings_what_is_not_given_beside_it() -> None:
    model = tiny.lonely()
    auto = mn.explain(tiny.SENTENCE, model, counterfactuals=1, quiet=True).question
    example = Example(tiny.SENTENCE, answer=auto.answer.text, foil=auto.foil.text, counterfactual=auto.counterfactual)
    found = mn.explain(example, model, counterfactuals=1, quiet=True).question
    assert found.counterfactual == auto.counterfactual and not any("automatic" in choice for choice in found.choices)
    assert (found.answer.text.strip(), found.foil.text.strip()) == (auto.answer.text.strip(), auto.foil.text.strip())
    beside = (
        ("answer", auto.foil.text, "it is the answer"),
        ("foil", auto.answer.text, "it is the answer"),
        ("counterfactual", "the cat", "3 tokens for a prompt of 6"),
    )
    for option, value, said in beside:
        with pytest.raises(MechanomeError, match=said):
            mn.explain(example, model, quiet=True, **{option: value})


def test_every_long_stage_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[tuple[str, bool]] = []

    @contextmanager
    def stage(what: str, quiet: bool) -> Iterator[None]:
        heard.append((what, quiet))
        yield

    monkeypatch.setattr("mechanome.explain.pipeline.stage", stage)
    found = mn.explain(tiny.SENTENCE, tiny.lonely(), counterfactuals=1)
    long = {
        "choose answer, foil and counterfactual",
        "hide each token",
        "every head",
        "verify",
        "other counterfactuals",
    }
    assert {(what, False) for what in long} <= set(heard) and [what for what, _ in heard] == list(found.seconds)
    heard.clear()
    mn.explain(tiny.SENTENCE, tiny.lonely(), counterfactuals=1, quiet=True)
    assert heard and all(quiet for _, quiet in heard)
