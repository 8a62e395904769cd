"""Other counterfactuals: the same parts are found again where they are the mechanism, and it is said where not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import tiny

import mechanome as mn
from mechanome.core import BadInput
from mechanome.explain import Explanation, counterfactual, effects, stability
from mechanome.explain.pair import Pair
from mechanome.explain.question import against
from mechanome.explain.stability import Comparison, Effect, Stability

RIGHT, WRONG = mn.Site("z", 1, head=3), mn.Site("z", 1, head=0)


@pytest.fixture(scope="module", autouse=True)
def any_swap() -> Iterator[None]:
    """Every token of the vocabulary may be swapped for another: the random embedding knows no kinds."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(counterfactual, "SIMILAR", -1.0)
        yield


@pytest.fixture(scope="module")
def found(any_swap: None) -> Explanation:
    return mn.explain(tiny.SENTENCE, tiny.lonely(), quiet=True)


def test_the_only_head_that_writes_is_found_again(found: Explanation) -> None:
    comparisons = found.stability.comparisons
    assert len(comparisons) == 2 == found.stability.stable
    texts = {found.question.counterfactual, *(c.counterfactual for c in comparisons)}
    assert len(texts) == 3, "each counterfactual is another one"
    assert [c.swap for c in comparisons] == list(found.question.further[:2])
    for c in comparisons:
        assert (c.lost, c.back) == (pytest.approx(1, abs=1e-4), pytest.approx(1, abs=1e-4)) and c.carries
        assert c.own == c.again == (RIGHT,) and c.jaccard == 1
        assert [(e.name, e.site) for e in c.effects] == [("head 1.3", RIGHT)]
        assert c.effects[0].restores == pytest.approx(1, abs=1e-4) == c.effects[0].breaks
        assert c.gap > 0.5 and c.foil != found.question.answer
    assert "stable in 2 of 2 further counterfactuals" in found.stability.conclusion
    assert "100 % of the named parts are found again" in found.stability.conclusion


def test_shares_and_effects_are_the_plain_edits() -> None:
    busy = {(layer, head): 1.0 for layer in range(3) for head in range(4)}
    model = mn.load(tiny.build(busy), tokenizer=tiny.tokenizer(), check="off")
    e = mn.explain(tiny.SENTENCE, model, counterfactuals=2, quiet=True)
    [c] = e.stability.comparisons
    question = e.question.subject
    other = question.prompt.swapped(model, c.swap.position, c.swap.new.id)
    asked = against(model, question, other)
    assert (c.counterfactual, c.foil, c.gap) == (other.text, asked.foil, pytest.approx(asked.gap))
    sites = [effect.site for effect in c.effects]
    assert sites == [part.site for part in e.components if not part.echo]
    runs = Pair(model, asked, *(model.run(b, capture=["z.*", "mlp_out.*"]) for b in (asked.clean, asked.corrupted)))
    loans = [[(s, None) for s in sites], *([(s, None)] for s in sites)]
    back = asked.restored(runs.restored(loans, "")).tolist()
    lost = (1 - asked.restored(runs.removed(loans, ""))).tolist()
    assert [c.back, *(x.restores for x in c.effects)] == pytest.approx(back, abs=1e-4)
    assert [c.lost, *(x.breaks for x in c.effects)] == pytest.approx(lost, abs=1e-4)
    assert c.correlation is not None and -1 <= c.correlation.lo <= c.correlation.estimate <= c.correlation.hi <= 1
    assert set(c.again) == set(c.own) & set(sites)
    assert c.jaccard == pytest.approx(len(c.again) / len(set(c.own) | set(sites)))


def test_the_wrong_parts_are_not_found_again(found: Explanation) -> None:
    swap = found.question.further[0]
    other = stability._other(tiny.lonely(), found.question, swap)
    assert other is not None
    c = stability._compare(tiny.lonely(), other, swap, found.parts, [WRONG], effects.TOKENS, None, True)
    assert not c.carries and c.lost == pytest.approx(0, abs=1e-4) == c.back
    assert c.own == (RIGHT,) and c.again == () and c.jaccard == 0
    said = Stability((c,)).conclusion
    assert "stable in 0 of 1" in said and "the named parts do not carry it" in said and "0 % of the named" in said


@pytest.mark.parametrize(("lost", "back", "carries"), [(0.5, 0.5, True), (0.4, 0.9, False), (0.9, 0.4, False)])
def test_both_shares_decide(found: Explanation, lost: float, back: float, carries: bool) -> None:
    c = found.stability.comparisons[0]
    made = Comparison(c.counterfactual, c.swap, c.foil, c.gap, lost, back, (Effect(RIGHT, 1, 1),), (RIGHT,), None)
    assert made.carries is carries


def test_a_given_counterfactual_is_compared_with_automatic_ones(found: Explanation) -> None:
    e = mn.explain(tiny.SENTENCE, tiny.lonely(), counterfactual=found.question.counterfactual, quiet=True)
    assert e.question.swap is None and len(e.stability.comparisons) == 2
    assert e.question.counterfactual not in [c.counterfactual for c in e.stability.comparisons]


def test_a_foil_that_was_given_stays(found: Explanation) -> None:
    foil = next(f" {word}" for word in tiny.WORDS if f" {word}" != found.question.answer.text)
    e = mn.explain(tiny.SENTENCE, tiny.lonely(), foil=foil, counterfactuals=2, quiet=True)
    assert [c.foil.text for c in e.stability.comparisons] == [foil] and e.question.foil.text == foil


def test_where_there_is_no_other_it_is_said(found: Explanation, monkeypatch: pytest.MonkeyPatch) -> None:
    q, named = found.question, found.components
    one = stability.stability(tiny.lonely(), q, found.parts, named, 0)
    assert one.conclusion == "stability was not tested: only one counterfactual was asked for"

    def nothing(*_: Any) -> Any:
        raise BadInput("an automatic counterfactual", "no token has an alternative", "")

    given = mn.explain(tiny.SENTENCE, tiny.lonely(), counterfactual=q.counterfactual, counterfactuals=1, quiet=True)
    monkeypatch.setattr("mechanome.explain.subject.swaps", nothing)
    none = stability.stability(tiny.lonely(), given.question, found.parts, named, 2)
    assert not none.comparisons and "no token has an alternative" in none.conclusion


def test_a_long_prompt_is_compared_with_fewer_and_in_fewer_layers(
    found: Explanation, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, model = found.question, tiny.lonely()
    monkeypatch.setattr(stability, "TOKENS", 1)
    monkeypatch.setattr(effects, "FEWEST_LAYERS", 1)
    short = stability.stability(model, q, found.parts, found.components, 2, quiet=True)
    assert len(short.comparisons) == 1 and short.stable == 1 and short.comparisons[0].own == (RIGHT,)
    assert "No more were compared: a long prompt" in short.conclusion
    most = stability.stability(model, q, found.parts, found.components, len(q.further) + 1, quiet=True)
    assert len(most.comparisons) == 1
    monkeypatch.setattr(stability, "TOKENS", effects.TOKENS)
    every = stability.stability(model, q, found.parts, found.components, len(q.further) + 1, quiet=True)
    assert len(every.comparisons) == len(q.further) and "no further swap" in every.conclusion


def test_the_verdict_is_the_verifications(found: Explanation) -> None:
    assert found.explained is found.verification.passed


def test_the_record_holds_it(found: Explanation) -> None:
    record = found.record()["stability"]
    assert record["stable"] == record["compared"] == 2 and record["conclusion"] == found.stability.conclusion
    first, c = record["comparisons"][0], found.stability.comparisons[0]
    assert (first["remove"], first["keep"], first["gap"]) == (c.lost, c.back, c.gap)
    assert first["components"][0]["name"] == "head 1.3" and first["found_again"] == ["head 1.3"]
    assert first["swap"]["new"] == vars(c.swap.new) and first["foil"] == vars(c.foil)
