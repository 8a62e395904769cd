"""Two models on the same prompts: what was taken away from one must be found, and what cannot be compared said."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch
from typer.testing import CliRunner

import mechanome as mn
from mechanome.cli.main import app
from mechanome.core import bootstrap, paired_bootstrap, read_json
from mechanome.explain import Item, Measured, ModelComparison, Pairing, Result, comparison
from mechanome.explain.apart import difference
from mechanome.explain.command import resume
from mechanome.explain.comparison import again
from mechanome.explain.comparison_page import document, names, story
from mechanome.explain.fixed import settled
from mechanome.explain.many import Explanations
from mechanome.report import text

WRITERS = {(1, 3): 2.0, (1, 2): 3.0}
PROMPTS = [tiny.SENTENCE, "the dog sat on the", "the hen sat on the", ""]


def saved(folder: Path, gone: tuple[int, int] | None = None, layers: int = 3) -> str:
    """A tiny model in which two heads write; `gone` loses its output projection, as a fine-tuned copy might."""
    module = tiny.build(WRITERS, floor=1e-3, layers=layers)
    if gone is not None:
        with torch.no_grad():
            layer, head = gone
            module.model.layers[layer].self_attn.o_proj.weight[:, 8 * head : 8 * head + 8] = 0
    module.save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return saved(tmp_path_factory.mktemp("base")), saved(tmp_path_factory.mktemp("tuned"), (1, 2))


@pytest.fixture(scope="module")
def found(models: tuple[str, str]) -> ModelComparison:
    return mn.explain.compare(*models, PROMPTS, counterfactuals=1, quiet=True)


def test_the_head_that_was_taken_away_is_found(found: ModelComparison) -> None:
    lost = min(found.changes(), key=lambda change: change.change)  # the other head gains: the norm scales it up
    assert lost.site == "z.1.h2" and lost.name == "head 1.2"
    assert lost.base > 0.5 and abs(lost.tuned) < 1e-4 and lost.change < 0
    assert lost.interval is None and lost.n == len(found.comparable) >= 2, "too few prompts for an interval"
    page = found.html()
    assert "Head 1.2 lost most" in page and ">Changed</p>" in page
    assert "head 1.2" in str(found)


def test_both_were_asked_the_same(found: ModelComparison) -> None:
    for pair in found.pairs:
        if pair.both is not None:
            a, b = pair.both
            assert (a.answer, a.foil, a.counterfactual) == (b.answer, b.foil, b.counterfactual)
            assert pair.record()["preference_change"] == b.high - a.high
    assert found.pairs[-1].why_not.startswith("first: the prompt: it is empty")
    assert found.pairs[-1].overlap is None and found.pairs[-1].same_prediction is None


def test_a_model_against_itself_is_unchanged(models: tuple[str, str]) -> None:
    same = mn.explain.compare(models[0], models[0], PROMPTS[:2], counterfactuals=1, quiet=True)
    assert all(pair.same_prediction for pair in same.pairs if pair.both)
    assert all(change.change == pytest.approx(0, abs=1e-5) for change in same.changes())
    assert all(pair.overlap == 1 and pair.correlation == pytest.approx(1) for pair in same.pairs)
    assert ">Little changed</p>" in same.html() and "Little changed." in str(same)


def test_other_shapes_are_not_compared_part_by_part(models: tuple[str, str], tmp_path: Path) -> None:
    found = mn.explain.compare(models[0], saved(tmp_path, layers=2), PROMPTS[:1], counterfactuals=1, quiet=True)
    [pair] = found.pairs
    assert not found.changes() and pair.overlap is None and pair.correlation is None
    if pair.both is not None:
        assert "z 3×4" in found.obstacle and "z 2×4" in found.obstacle
    assert found.obstacle and found.obstacle in str(found).replace("\n", " ")


def numbers(effects: dict[str, float], high: float, named: tuple[str, ...], **changed: object) -> Measured:
    made = Measured(" a", " b", "c", " a", 0.5, high, 0.0, effects, {"z": (1, 3)}, 0.9, 0.9, named)
    return replace(made, **changed)


def paired(id: str, base: Measured | None, tuned: Measured | None) -> tuple[Result, Result]:
    sides = (
        Result(Item(id, "x"), "refused", "no", 1.0) if m is None else Result(Item(id, "x"), "explained", "", 1.0, m)
        for m in (base, tuned)
    )
    return tuple(sides)


def test_the_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Effects are shares times gaps; overlap, rank correlation and intervals by hand."""
    a = paired("1", numbers({"z.0.h0": 0.5, "z.0.h1": 0.2, "z.0.h2": 0.0}, 4.0, ("z.0.h0", "z.0.h1")),
               numbers({"z.0.h0": 0.5, "z.0.h1": 0.6, "z.0.h2": 0.1}, 2.0, ("z.0.h1",), says=" b"))  # fmt: skip
    b = paired("2", numbers({"z.0.h0": 0.3, "z.0.h1": 0.1}, 2.0, ("z.0.h0",)),
               numbers({"z.0.h0": 0.1, "z.0.h2": 0.1}, 1.0, ("z.0.h0",)))  # fmt: skip
    c = paired("3", numbers({"z.0.h0": 0.3}, 2.0, ()), None)
    monkeypatch.setattr(comparison, "FEWEST", 2)
    found = ModelComparison(*(Explanations(side, "m", 0) for side in zip(a, b, c)))
    first = {change.site: change for change in found.changes()}
    assert first["z.0.h0"].base == pytest.approx((2.0 + 0.6) / 2)
    assert first["z.0.h0"].tuned == pytest.approx((1.0 + 0.1) / 2)
    assert first["z.0.h0"].interval == paired_bootstrap([0.5 * 2, 0.1], [0.5 * 4, 0.3 * 2], seed=0)
    assert first["z.0.h1"].n == 1 and first["z.0.h1"].interval is None
    assert first["z.0.h1"].change == pytest.approx(0.6 * 2 - 0.2 * 4)
    assert [pair.overlap for pair in found.pairs] == [0.5, 1.0, None]
    assert found.pairs[0].correlation == pytest.approx(0.5) and found.pairs[1].correlation is None
    assert [pair.same_prediction for pair in found.pairs] == [False, True, None]
    quantities = found.quantities()
    assert quantities["same prediction (share)"].estimate == 0.5
    preference = quantities["preference, second minus first (logits)"]
    assert preference.interval == paired_bootstrap([2.0, 1.0], [4.0, 2.0], seed=0)
    assert preference.estimate == pytest.approx(-1.5) and preference.n == 2
    assert quantities["overlap of named parts (share)"].interval == bootstrap([0.5, 1.0], seed=0)
    monkeypatch.setattr(comparison, "FEWEST", 3)
    few = found.quantities()["overlap of named parts (share)"]
    assert (few.estimate, few.n, few.interval) == (0.75, 2, None)
    assert all(change.interval is None for change in found.changes())
    assert "Overlap of named parts (share): 0.75, over 2 prompts." in "\n".join(text(line) for line in story(found))


def comparison_of(*pairs: tuple[Result, Result], first: str = "m", second: str = "n") -> ModelComparison:
    base, tuned = zip(*pairs)
    return ModelComparison(Explanations(base, first, 0), Explanations(tuned, second, 0))


def test_echoes_are_ranked_apart() -> None:
    base = numbers({"mlp_out.0": 1.0, "z.0.h0": 0.5}, 4.0, ("z.0.h0",), echoes=("mlp_out.0",))
    tuned = numbers({"mlp_out.0": 1.0, "z.0.h0": 0.5}, 1.0, ("z.0.h0",))
    found = comparison_of(paired("1", base, tuned))
    assert [(change.site, change.echo) for change in found.changes()] == [("z.0.h0", False), ("mlp_out.0", True)]
    assert [change.site for change in found.changes(1)] == ["z.0.h0", "mlp_out.0"]
    page = document(found)
    sheet = next(s.picture for s in page.sections if s.title.startswith("Parts that"))
    assert sheet.rows[1][0] == "MLP 0 (echo of the input)" and sheet.muted == [1]
    said = "\n".join(text(line) for line in (page.verdict[2], *page.story))
    assert "Head 0.0 changes most: from 2.00 to 0.50 logits" in said and "MLP 0" not in said


def test_the_headline_is_no_good_news_where_preference_or_parts_moved() -> None:
    alike = numbers({"z.0.h0": 0.5}, 4.0, ("z.0.h0",))
    for tuned, word in (
        (numbers({"z.0.h0": 0.5}, 3.8, ()), "Little changed"),
        (numbers({"z.0.h0": 0.5}, 2.0, ()), "Changed"),
        (numbers({"z.0.h0": 0.1}, 4.0, ()), "Changed"),
        (numbers({"z.0.h0": 0.5}, 4.0, (), says=" b"), "Changed"),
    ):
        said, good, why = document(comparison_of(paired("1", alike, tuned))).verdict
        assert (said, good) == (word, word == "Little changed")
        assert f"goes from 4.00 to {tuned.high:.2f} logits: a change of" in text(why)
        assert "Head 0.0 changes most" in text(why) and "over 1 prompts" not in text(why)


def test_models_are_called_by_what_tells_them_apart() -> None:
    pair = paired("1", numbers({}, 1.0, ()), numbers({}, 1.0, ()))
    assert names(comparison_of(pair, first="/a/b/base/", second="/a/b/tuned")) == ("base", "tuned")
    assert names(comparison_of(pair, first="/a/x/model", second="/a/y/model")) == ("x/model", "y/model")
    assert names(comparison_of(pair, first="m", second="m")) == ("m", "m")
    page = document(comparison_of(pair, first="/a/b/one", second="/a/b/two"))
    assert text(page.title) == "two against one" and "1 prompt, asked" in text(page.subtitle)
    assert "/a/b/one" in dict(page.facts).values() and not {"base", "tuned"} & {
        n for n, _ in page.sections[0].picture.columns
    }


def test_an_answer_read_as_another_token_is_not_compared() -> None:
    pair = Pairing(*paired("1", numbers({}, 1.0, ()), numbers({}, 1.0, (), answer="a")))
    assert pair.both is None and "asked for other tokens" in pair.why_not


def test_what_another_reading_explained_is_not_taken_for_the_answer(models: tuple[str, str]) -> None:
    """The base's question is measured as it is, even where the tuned model would read or refuse it otherwise."""
    model = mn.load(models[1])
    item = Item("1", tiny.SENTENCE, "cat", " 7", "the dog sat on the")
    other = Result(item, "explained", "", 1.0, numbers({}, 1.0, (), answer=" cat", foil=" 7"), "pages/1.html")
    found = settled(other, model, None)
    assert found.verdict == "refused" and "another question" in found.reason
    assert (found.measured.answer, found.measured.foil) == ("cat", " 7") and found.measured.named == ()
    logits = model.run(tiny.SENTENCE).logits[0, -1]
    ids = [tiny.tokenizer().convert_tokens_to_ids(text) for text in ("cat", " 7")]
    assert found.measured.high == pytest.approx(float(logits[ids[0]] - logits[ids[1]]), abs=1e-4)
    right = Result(item, "explained", "", 1.0, numbers({}, 1.0, (), answer="cat", foil=" 7"))
    assert settled(right, model, None) is right
    longer = Result(replace(item, counterfactual="the cat"), "refused", "no", 1.0)
    assert settled(longer, model, None).measured is None and settled(longer, model, None).reason == "no"


def test_every_choice_is_fixed_for_the_second_model() -> None:
    asked = again(paired("1", numbers({}, 1.0, ()), None)[0])
    assert asked == Item("1", "x", " a", " b", "c")
    assert again(Result(Item("1", "x"), "refused", "no", 1.0)) == Item("1", "x")


def test_the_command_keeps_both_goes_on_and_repeats(models: tuple[str, str], tmp_path: Path) -> None:
    base, tuned = models
    options = ["--model", base, "--against", tuned, "--counterfactuals", "1", "--out", str(tmp_path), "--json"]
    said = CliRunner().invoke(app, ["explain", tiny.SENTENCE, *options])
    assert said.exit_code == 0, said.stderr
    record = json.loads(said.stdout)
    folder = Path(record.pop("folder"))
    lost = min(record["changes"], key=lambda change: change["tuned"] - change["base"])
    assert lost["site"] == "z.1.h2" and lost["interval"] is None
    assert {f.name for f in (folder / "pages").iterdir()} == {"1.html", "tuned-1.html"}
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert 'href="pages/1.html"' in page and 'href="pages/tuned-1.html"' in page

    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    assert [json.loads(line)["step"] for line in lines] == [0, 1]
    (folder / "metrics.jsonl").write_text(lines[0] + lines[1][:40])
    assert difference(record, resume(folder, quiet=True).record) == 0
    repeated = CliRunner().invoke(app, ["replay", str(folder)])
    assert "largest difference from the recorded numbers is 0.0e+00" in repeated.stderr
    assert difference(record, read_json(folder / "comparison.json")) == 0
