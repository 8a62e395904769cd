"""Models whose mechanism is known: the explanation must find it, and must say so where there is none to find."""

from __future__ import annotations

import json

import pytest
import tiny
import torch

import families
import mechanome as mn
from mechanome.core import BadInput, NotFinite, TooFewRows, bootstrap
from mechanome.explain import Explanation, Grid, components, counterfactual, effects, pair, verification
from mechanome.explain.counterfactual import log_odds, swaps
from mechanome.explain.hiding import hide
from mechanome.explain.lens import lens
from mechanome.explain.question import Question, ask
from mechanome.explain.tokens import Prediction


@pytest.fixture(scope="module")
def found() -> Explanation:
    return mn.explain(tiny.SENTENCE, tiny.lonely(), quiet=True)


@pytest.fixture(scope="module")
def question(found: Explanation) -> Question:
    return found.question


def test_the_only_head_that_writes_is_the_explanation(found: Explanation) -> None:
    [part] = found.components
    assert part.name == "head 1.3" and str(part.site) == "z.1.h3"
    assert part.restores == pytest.approx(1, abs=1e-5) and part.breaks == pytest.approx(1, abs=1e-5)
    assert part.position == found.question.length - 1
    assert sum(w for _, w in part.attended) <= 1 + 1e-5
    assert found.explained and found.verdict == "explained" and not found.verification.failures
    assert found.verification.removed.share == pytest.approx(1, abs=1e-5)
    assert found.verification.kept.share == pytest.approx(1, abs=1e-5)
    assert max(found.verification.removed.random) < 1e-5, "other parts write nothing"
    assert len(found.verification.removed.random) == verification.SETS


def test_the_answer_moves_where_that_head_reads_it(found: Explanation) -> None:
    swapped, last = found.question.differing[0], found.question.length - 1
    carried = found.flow.shares.round().int().tolist()
    at = {layer: [p for p, share in enumerate(row) if share] for layer, row in zip(found.flow.layers, carried)}
    assert at == {0: [swapped], 1: [swapped], 2: [last]}


def test_a_crowd_is_not_explained() -> None:
    e = mn.explain(tiny.SENTENCE, tiny.crowd(), quiet=True)
    assert not e.explained and e.verdict == "not explained"
    assert any("at least 50 % is needed" in why for why in e.verification.failures)
    page = e.html()
    assert "Not explained" in page and 'class="verdict bad"' in page and 'class="verdict good"' not in page


def test_the_wrong_parts_are_not_an_explanation(found: Explanation) -> None:
    question = found.question
    model = tiny.lonely()
    sites = [site.whole for site in components.every_site(found.parts)]
    runs = pair.Pair.of(model, question, sites, quiet=True)
    wrong = components.Component(mn.Site("z", 0, head=1), 0, 0, 0, 0)
    result = verification.verify(runs, found.parts, [wrong])
    assert not result.passed and len(result.failures) == 2


def trial(share: float, random: float) -> verification.Trial:
    return verification.Trial(share, 0.5, (random,) * 50, bootstrap([random] * 50), Prediction((), ()))


@pytest.mark.parametrize(
    ("removed", "kept", "passes"),
    [
        ((0.9, 0.1), (0.8, 0.1), True),
        ((0.4, 0.1), (0.8, 0.1), False),  # too little is lost
        ((0.9, 0.1), (0.4, 0.1), False),  # too little comes back
        ((0.9, 0.95), (0.8, 0.1), False),  # random parts do as much
        ((0.9, 0.1), (0.8, 0.8), False),
        ((0.9, 0.3), (0.8, 0.1), False),  # random parts do nearly as much
        ((0.9, 0.1), (0.8, 0.3), False),
    ],
)
def test_both_tests_decide(removed: tuple[float, float], kept: tuple[float, float], passes: bool) -> None:
    result = verification.Verification(trial(*removed), trial(*kept), 3, 15)
    assert result.passed is passes
    assert bool(result.failures) is not passes
    other = verification.Verification(trial(*removed), trial(*kept), 3, 15, said="' fox'")
    assert not other.passed and "' fox'" in other.failures[0]


def test_an_answer_the_model_does_not_give_is_not_explained(question: Question) -> None:
    change = question.clean_logits - question.corrupted_logits
    spaced = [i for i in change.argsort(descending=True).tolist() if 19 < i < 36]  # words with a leading space
    answer, foil = (tiny.tokenizer().decode([spaced[i]]) for i in (0, -1))
    e = mn.explain(
        tiny.SENTENCE,
        tiny.lonely(),
        answer=answer,
        foil=foil,
        counterfactual=question.counterfactual,
        quiet=True,
    )
    assert e.question.answer.text == answer != e.prediction.tokens[0].text and not e.explained
    assert str(e.prediction.tokens[0]) in e.verification.failures[0]


def test_named_parts_leave_as_many_to_compare_with(found: Explanation) -> None:
    grid = Grid("z", "head", (0, 1), torch.linspace(0.3, 1, 8).reshape(2, 4), "wavefront")
    sites = components.every_site([grid])
    named = components._named(sites, dict.fromkeys(sites, 1.0), [grid])
    assert len(named) == 3
    drawn = verification._random_sets(sites, named, 30, seed=0)
    assert all(len(set(group)) == 3 and not set(group) & set(named) for group in drawn)
    assert drawn == verification._random_sets(sites, named, 30, seed=0)
    assert drawn != verification._random_sets(sites, named, 30, seed=1)


def test_echoes_are_not_others_to_compare_with(found: Explanation) -> None:
    grids = [
        Grid("z", "head", (0, 1), torch.linspace(0.3, 1, 8).reshape(2, 4), "wavefront"),
        Grid("mlp_out", "layer", (0, 1), torch.ones(2, 1), "wavefront"),
    ]
    sites = components.every_site(grids)
    echoes = [sites[0], sites[1], sites[2], mn.Site("mlp_out", 0)]
    order = [site for site in sites if site not in echoes]
    named = components._named(order, dict.fromkeys(sites, 1.0), grids, echoes)
    assert len(named) == 2, "of five heads; the only MLP that is no echo has nothing to be compared with"
    others = [site for site in sites if site not in echoes]
    assert verification._random_sets(others, named, 5, seed=0)


def test_a_model_without_parts_to_compare_is_refused() -> None:
    model = mn.load(tiny.build({(0, 0): 2.0}, layers=1, heads=1), tokenizer=tiny.tokenizer(), check="off")
    with pytest.raises(TooFewRows, match="others of its kind"):
        mn.explain(tiny.SENTENCE, model, answer=" rug", foil=" hat", counterfactual="the dog ran on hat", quiet=True)


@pytest.mark.parametrize("given", [None, "the dog sat on the"])
def test_a_broken_model_is_no_lack_of_counterfactuals(given: str | None) -> None:
    module = tiny.build({(1, 3): 2.0})
    with torch.no_grad():
        module.model.layers[1].mlp.up_proj.weight[0, 0] = float("nan")
    with pytest.raises(NotFinite, match="check the weights"):
        mn.explain(
            tiny.SENTENCE, mn.load(module, tokenizer=tiny.tokenizer(), check="off"), counterfactual=given, quiet=True
        )


def test_a_list_that_was_cut_says_so(found: Explanation, monkeypatch: pytest.MonkeyPatch) -> None:
    assert found.cut == 0 and not any("cut" in note for note in found.notes)
    busy = {(layer, head): 1.0 for layer in range(3) for head in range(4)}
    model = mn.load(tiny.build(busy), tokenizer=tiny.tokenizer(), check="off")
    for name, value in {"TOP": 2, "LEAST": 0.0}.items():
        monkeypatch.setattr(components, name, value)
    e = mn.explain(tiny.SENTENCE, model, counterfactuals=1, quiet=True)
    named = [part for part in e.components if not part.echo]
    assert len(named) == 2 and e.cut > 0 and e.record()["components_cut"] == e.cut
    assert any(note.startswith(f"the list of parts was cut: {e.cut} more part") for note in e.notes)


def test_an_echo_of_the_input_is_kept_out_of_the_test() -> None:
    """The only writer is in block 0: replacing it is as good as swapping the token, so it explains nothing."""
    model = mn.load(tiny.build({(0, 2): 2.0}), tokenizer=tiny.tokenizer(), check="off")
    e = mn.explain(tiny.SENTENCE, model, quiet=True)
    [echo, *rest] = e.components
    assert echo.name == "head 0.2" and echo.echo and not any(part.echo for part in rest)
    assert e.verification.tested == len(rest) and not e.explained


def test_every_effect_is_the_plain_edit(found: Explanation) -> None:
    model, q = tiny.lonely(), found.question
    donor = model.run(q.clean, capture=["z.*", "resid_pre.*"])
    for edit, share in [
        (mn.Patch("z.1.h3", donor), found.parts[0].shares[1, 3]),
        (mn.Patch("z.0.h3", donor), found.parts[0].shares[0, 3]),
        (mn.Patch("resid_pre.2", donor, pos=q.length - 1), found.flow.shares[2, -1]),
        (mn.Patch("resid_pre.1", donor, pos=q.differing[0]), found.flow.shares[1, q.differing[0]]),
    ]:
        logits = model.run(q.corrupted, edits=edit, logits="last").logits
        assert float(q.restored(logits)[0]) == pytest.approx(float(share), abs=1e-5)


def test_variants_do_not_depend_on_the_prefix(question: Question) -> None:
    sites = [mn.Site("z", layer) for layer in range(3)]
    runs = pair.Pair.of(tiny.lonely(), question, sites, quiet=True)
    assert runs.prefix is not None and len(runs.prefix) == question.differing[0] > 1
    whole = pair.Pair(runs.model, question, runs.clean, runs.corrupted, None, True)
    loans = [[(mn.Site("z", 1, head=3), None)], [(mn.Site("z", 1, head=3), [question.length - 1])], []]
    torch.testing.assert_close(runs.restored(loans, ""), whole.restored(loans, ""), atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(runs.removed(loans, ""), whole.removed(loans, ""), atol=1e-4, rtol=1e-5)
    assert float(question.restored(runs.restored(loans, ""))[0]) == pytest.approx(1, abs=1e-5)


def test_a_long_prompt_is_measured_in_part_and_says_so(question: Question, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.lonely()
    full = effects.flow(model, question, quiet=True), effects.parts(model, question, "z", "head", quiet=True)
    assert all(grid.complete and not grid.notes for grid in full)
    for name, value in {"FEWEST_LAYERS": 1, "FEWEST_POSITIONS": 1, "TOKENS": 1}.items():
        monkeypatch.setattr(effects, name, value)
    stream, heads = effects.flow(model, question, quiet=True), effects.parts(model, question, "z", "head", quiet=True)
    assert stream.notes and heads.notes and not heads.complete and not stream.complete and len(stream.layers) == 1
    for whole, part in zip(full, (stream, heads)):
        same = torch.stack([row for layer, row in zip(whole.layers, whole.shares) if layer in part.layers])
        measured = ~part.shares.isnan()
        torch.testing.assert_close(part.shares[measured], same[measured], atol=1e-5, rtol=1e-5)
    assert bool((~heads.shares[1].isnan()).all()), "the layer that matters is the one measured"


def test_a_long_prompt_tries_positions_that_differ_only(question: Question, monkeypatch: pytest.MonkeyPatch) -> None:
    grids = [effects.parts(tiny.lonely(), question, "z", "head", quiet=True)]
    sites = components.every_site(grids)
    runs = pair.Pair.of(tiny.lonely(), question, [site.whole for site in sites], True)
    exact = components._places(runs, sites)
    monkeypatch.setattr(components, "TOKENS", 1)
    few = components._places(runs, sites)
    assert question.differing[0] > 0 and all(place >= question.differing[0] for place, _ in few.values())
    writer = mn.Site("z", 1, head=3)
    assert few[writer] == pytest.approx(exact[writer]), "the one that writes is found by its estimate"


def test_lens_ends_with_the_models_own_prediction(question: Question) -> None:
    reading = lens(tiny.lonely(), question)
    own = question.clean_logits.log_softmax(-1)
    assert float(reading.answer[-1]) == pytest.approx(float(own[question.answer.id]), abs=1e-5)
    assert float(reading.foil[-1]) == pytest.approx(float(own[question.foil.id]), abs=1e-5)
    assert reading.answer_rank[-1] == 1 and reading.top[-1] == question.answer
    torch.testing.assert_close(reading.answer[1], reading.answer[0]), "block 0 writes nothing"
    assert reading.settled == 2, "after block 1, the third reading"


def test_hiding_is_the_plain_knockout(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = {(layer, head): 1.0 for layer in range(3) for head in range(4)}
    model = mn.load(tiny.build(busy), tokenizer=tiny.tokenizer(), check="off")
    q = ask(model, tiny.SENTENCE, None, None, None)
    n = q.length
    hidden = hide(model, q)
    assert hidden.groups == tuple((p,) for p in range(n - 1)) and hidden.at(n - 1) is None
    for p in range(n - 1):
        edits = mn.AttentionKnockout(range(3), src=[p], dst=list(range(p + 1, n)))
        logits = model.run(q.clean, edits=edits, logits="last").logits
        assert hidden.at(p) == pytest.approx(float(q.preference(logits)[0]) - q.high, abs=1e-3)
    monkeypatch.setattr("mechanome.explain.hiding.TOKENS", 2 * n)
    together = hide(model, q)
    assert together.groups == ((0, 1, 2), (3, 4)) and together.at(1) == together.at(2) != hidden.at(2)


def test_a_swap_is_one_token_of_the_same_kind(question: Question) -> None:
    model = tiny.lonely()
    logits = model.run(question.clean).logits[0].float()
    ranked = swaps(model, question.clean, logits, log_odds(question.answer.id))
    assert ranked and ranked == sorted(ranked, key=lambda s: (not s.flips, -s.worth))
    ids = question.clean.input_ids
    for swap in ranked:
        assert 0 < swap.position < question.length - 1
        assert swap.old.text[0].isspace() == swap.new.text[0].isspace() and swap.old.id != swap.new.id
        changed = question.clean.input_ids.clone()
        changed[0, swap.position] = swap.new.id
        after = model.run(changed, logits="last").logits
        score = log_odds(question.answer.id)
        assert swap.loss == pytest.approx(float(score(logits[-1:])[0] - score(after)[0]), abs=1e-3)
        assert swap.loss >= 2 and swap.flips is (int(after.argmax()) != int(logits[-1].argmax()))
        texts = [model.run(x).logits[0, :-1].log_softmax(-1).gather(1, x[0, 1:, None]).sum() for x in (changed, ids)]
        assert swap.plausibility == pytest.approx(float(texts[0] - texts[1]), abs=1e-3)


def test_two_rounds_find_the_best_swap(question: Question, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny.lonely()
    logits = model.run(question.clean).logits[0].float()
    score, tried = log_odds(question.answer.id), []
    measure = counterfactual._measure

    def counted(model: mn.Model, prompt: mn.Batch, logits: torch.Tensor, trials: list, score: object) -> list:
        tried.extend(trials)
        return measure(model, prompt, logits, trials, score)

    monkeypatch.setattr(counterfactual, "_measure", counted)
    monkeypatch.setattr(counterfactual, "SIMILAR", -1.0)
    best = max(swap.loss for swap in swaps(model, question.clean, logits, score))
    every, places = list(tried), {position for position, _ in tried}
    assert len(every) == len(set(every)) > 3 * len(places)

    tried.clear()
    monkeypatch.setattr(counterfactual, "TOKENS", 0)
    monkeypatch.setattr(counterfactual, "FOLLOWED", 1)
    found = swaps(model, question.clean, logits, score)
    assert {position for position, _ in tried} == places and len(tried) < len(every)
    followed = {position for position, _ in tried if sum(p == position for p, _ in tried) > 1}
    assert len(followed) == 1 and found[0].position in followed
    assert max(swap.loss for swap in found) > best / 2

    tried.clear()
    monkeypatch.setattr(counterfactual, "SCANNED", 2)
    swaps(model, question.clean, logits, score)
    assert {position for position, _ in tried} == {question.length - 1, question.length - 2}


def test_the_last_token_is_swapped_only_if_nothing_else_helps(
    question: Question, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny.lonely()
    logits = model.run(question.clean).logits[0].float()
    last = counterfactual.Swap(question.length - 1, question.answer, question.foil, 9.0, 0.0)
    for others, best in (([2.5, 3.0], 3.0), ([1.0], 9.0)):
        inner = [counterfactual.Swap(2, question.answer, question.foil, loss, 0.0) for loss in others]
        found = iter(([last, *inner], []))
        monkeypatch.setattr(counterfactual, "_measure", lambda *_, rounds=found: next(rounds))
        assert swaps(model, question.clean, logits, log_odds(0))[0].loss == best


def test_nothing_moves_a_model_without_writers() -> None:
    silent = mn.load(tiny.build({}), tokenizer=tiny.tokenizer(), check="off")
    with pytest.raises(BadInput, match="--counterfactual"):
        ask(silent, "the cat sat on x", None, None, None)


def test_the_record_is_json_and_complete(found: Explanation) -> None:
    record = json.loads(found.to_json())
    assert record == found.record()
    assert record["verdict"] == "explained" and record["components"][0]["name"] == "head 1.3"
    assert record["question"]["answer"]["text"] == found.question.answer.text
    assert len(record["parts"]) == 2 and len(record["lens"]) == 4
    assert set(record["seconds"]) >= {"verify", "every head", "every MLP", "residual stream"}
    assert all(choice in record["question"]["choices"] for choice in found.question.choices)


def test_the_story_says_what_was_measured(found: Explanation) -> None:
    from mechanome.explain import headline, story
    from mechanome.report import text

    said = "\n".join(text(line) for line in (headline.verdict(found), *story.story(found)))
    assert "One of the model's 15 parts carries" in said and "head 1.3" in said and "100 %" in said
    swap = found.question.swap
    assert swap is not None and f"Swap {swap.old.text} for {swap.new.text}" in said
    assert "up to layer 1, then at" in said
    page = str(found)
    assert (
        "EXPLAINED" in page and "head 1.3" in page and "keep only" in page and max(map(len, page.splitlines())) <= 100
    )
    assert found._repr_html_().startswith("<iframe")


@pytest.mark.parametrize(
    ("family", "points", "left_out"),
    [
        ("gemma2", ["z", "mlp_out"], ""),
        ("jamba", ["z", "mlp_out", "mixer_out"], "JambaMambaDecoderLayer has no attention"),
    ],
)
def test_other_families(family: str, points: list[str], left_out: str) -> None:
    """Soft-caps, windows, and layers without attention: every part is there, and what is left out is said."""
    model = mn.load(families.build(family), tokenizer=tiny.tokenizer(), check="off")
    e = mn.explain(tiny.SENTENCE, model, quiet=True)
    assert [grid.point for grid in e.parts] == points and all(grid.complete for grid in e.parts)
    assert (e.hidden is None) is bool(left_out) and left_out in " ".join(e.left_out) and "Fix" not in str(e.left_out)
    assert e.lens is not None and e.lens.answer_rank[-1] == 1, "the lens goes through the model's own soft-cap"
    own = e.question.clean_logits.log_softmax(-1)[e.question.answer.id]
    assert float(e.lens.answer[-1]) == pytest.approx(float(own), abs=1e-4)
    assert e.verdict.capitalize() in e.html()
