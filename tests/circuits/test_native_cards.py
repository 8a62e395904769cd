"""What units are read as: tokens, contexts, cards; against plain arithmetic, and as a page."""

from __future__ import annotations

import pytest
import torch
from circuit_models import apart, opened

import mechanome as mn
from families import build
from mechanome.circuits.native import Vocabulary, contexts, detector_effector_units, kurtosis, unit_cards
from mechanome.core import BadInput, NotServed, ShapeMismatch, UnknownName
from registry_models import need

TEXT = [[3, 8, 12, 40, 7, 51], [9, 22, 31, 5], [60, 61, 62, 63, 64, 65]]


def test_promoted_tokens_are_centred_folded_logits() -> None:
    model = opened("gpt2")
    vocabulary = Vocabulary.of(model)
    direction = torch.randn(2, model.weight("W_U").value.shape[0])
    logits = (direction * model.weight("g_ln_final").value) @ model.weight("W_U").value
    assert apart(vocabulary.promoted(direction), logits - logits.mean(1, keepdim=True)) < 1e-5
    entries = model.weight("W_E").value
    assert apart(vocabulary.along(direction), direction @ (entries - entries.mean(0)).T) < 1e-5
    assert vocabulary.estimate == "" and "left out" in Vocabulary.of(opened("bert")).estimate
    with pytest.raises(ShapeMismatch, match="wide"):
        vocabulary.promoted(torch.zeros(3))
    with pytest.raises(NotServed):
        Vocabulary.of(mn.load(build("bert").bert, check="off"))


def test_coherence_and_kurtosis() -> None:
    vocabulary = Vocabulary.of(opened("llama"))
    scores = torch.randn(3, vocabulary.writes.shape[1], generator=torch.Generator().manual_seed(0))
    assert vocabulary.reads is not None
    best = vocabulary.reads[scores[1].topk(4).indices]
    cosines = torch.nn.functional.cosine_similarity(best[:, None], best[None], dim=-1)
    expected = float((cosines.sum() - 4) / 12)
    assert float(vocabulary.coherence(scores, 4)[1]) == pytest.approx(expected, abs=1e-5)
    flat, peaked = torch.linspace(-1, 1, 999), torch.zeros(999)
    peaked[0] = 1.0
    found = kurtosis(torch.stack([flat, peaked]))
    assert float(found[0]) == pytest.approx(-1.2, abs=0.01) and float(found[1]) > 900


def test_contexts_are_the_strongest_places_of_each_row() -> None:
    model = opened("llama")
    units = detector_effector_units(model, 1)
    opens, closes = contexts(units, 1, [4], TEXT, k=2, quiet=True)[0]
    gates = [units.gates(1, model.run([row], capture="mlp_act.1")["mlp_act.1"][0])[:, 4] for row in TEXT]
    best = sorted((float(g[1:].max()) for g in gates), reverse=True)[:2]
    assert [c.gate for c in opens] == pytest.approx([g for g in best if g > 0], abs=1e-5)
    worst = sorted(float(g[1:].min()) for g in gates)[:2]
    assert [c.gate for c in closes] == pytest.approx([g for g in worst if g < 0], abs=1e-5)
    for context in (*opens, *closes):
        assert context.gates[context.at] == context.gate and f"[{context.tokens[context.at]}]" in context.text
    assert len(contexts(units, 1, [4], TEXT, k=9, quiet=True)[0][0]) <= len(TEXT), "at most one place a row"
    with pytest.raises(BadInput, match="longer than 1"):
        contexts(units, 1, [4], [[3]], quiet=True)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_a_card_turns_its_unit_and_says_what_it_does(name: str) -> None:
    units = detector_effector_units(opened(name), 1)
    vocabulary = Vocabulary.of(opened(name))
    for card in unit_cards(units, 1, [0, 5, 6], TEXT, k=3, quiet=True):
        index = int(card.name.split()[1])
        scores = vocabulary.promoted(units[1].right[[index]])[0]
        turned = scores * scores[scores.abs().argmax()].sign()
        assert card.promotes[0][1] == pytest.approx(float(scores.abs().max()), abs=1e-5)
        assert card.suppresses[0][1] == pytest.approx(float(turned.min()), abs=1e-5)
        assert card.promotes[0][0] == vocabulary.tokens([int(turned.argmax())])[0]
        assert card.rank == index and card.strength == pytest.approx(float(units[1].values[index]))
        assert all(c.gate > 0 for c in card.opens) and all(c.gate < 0 for c in card.closes)
        gates = contexts(units, 1, [index], TEXT, 3, quiet=True)[0]
        sign = 1 if turned.equal(scores) else -1
        assert [sign * c.gate for c in card.opens] == [c.gate for c in gates[0 if sign > 0 else 1]]
        assert [sign * c.gate for c in card.closes] == [c.gate for c in gates[1 if sign > 0 else 0]]
        text, page = card.table().text(), card.html()
        assert f"unit {index} of layer 1" in text and "promotes" in text
        assert ("on at" in text) == bool(card.opens) and ("reversed at" in text) == bool(card.closes)
        assert f"unit {index} of layer 1" in page and "does not show" in page.lower()
        assert bool(card.notes) == (name == "bert")


def test_cards_of_read_units_and_without_text() -> None:
    units = detector_effector_units(opened("llama"), 1, side="read")
    card = unit_cards(units, 1, [2])[0]
    scores = Vocabulary.of(opened("llama")).along(units[1].left[[2]])[0]
    assert card.promotes[0][1] == pytest.approx(float(scores.abs().max()), abs=1e-5)
    assert card.opens == () and "detects" in card.table().text() and "Contexts" not in card.html()
    with pytest.raises(UnknownName, match="unit 999"):
        unit_cards(units, 1, [999])


@pytest.mark.real_model
def test_a_card_of_a_real_unit_has_words() -> None:
    need("smollm2-135m-instruct")
    model = mn.load("smollm2-135m-instruct")
    units = detector_effector_units(model, 20)
    text = ["The capital of France is Paris, and the capital of Spain is Madrid.", "Keys and locks are made of metal."]
    card = unit_cards(units, 20, [0], text, k=4, quiet=True)[0]
    assert len(card.promotes) == 4 and (card.opens or card.closes) and card.promotes[0][0] in card.html()
