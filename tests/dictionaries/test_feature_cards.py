"""Feature cards against a search of all rows by hand, in whatever order rows come; the page; what is refused."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import browser
import mechanome as mn
from families import build
from mechanome.activations import Activations, ArrayActivations
from mechanome.core import BadInput, UnknownName
from mechanome.dictionaries import TopK
from mechanome.dictionaries.features import FeatureCards, logit_effects, page, similar
from mechanome.dictionaries.features.card import Example

SITE, D, WIDTH = "resid_post.1", 16, 40
TEXTS, LENGTH = 30, 20


@cache
def rows_of() -> Activations:
    g = torch.Generator().manual_seed(0)
    n = TEXTS * LENGTH
    seq, pos = torch.arange(n) // LENGTH, torch.arange(n) % LENGTH
    token = torch.randint(5, 50, (n,), generator=g)
    x = torch.randn(n, D, generator=g) + torch.randn(50, D, generator=g)[token]
    return Activations({SITE: x}, {"seq": seq, "pos": pos, "token": token})


@cache
def dictionary_of() -> Any:
    torch.manual_seed(0)
    made = TopK(WIDTH, k=4).build(D, sites_in=(SITE,))
    with torch.no_grad():
        made.b_enc[7] = -1e4  # a dead latent
    return made


def shuffled() -> list[Activations]:
    rows = rows_of()
    order = torch.randperm(rows.rows, generator=torch.Generator().manual_seed(3))
    return [rows.take(part) for part in order.split(77)]


def in_order() -> list[Activations]:
    return [rows_of().take(slice(i, i + 100)) for i in range(0, rows_of().rows, 100)]


@cache
def cards() -> FeatureCards:
    return FeatureCards.of(dictionary_of(), shuffled(), top=3, drawn=4, before=5, after=2)


def test_the_strongest_contexts_are_those_of_a_full_search() -> None:
    codes = dictionary_of().encode(rows_of().x).dense().detach()
    for card in cards():
        z = codes[:, card.latent].view(TEXTS, LENGTH)
        assert card.fired == int((z > 0).sum()) and card.density == pytest.approx(card.fired / 600)
        best = z.max(1)
        order = best.values.argsort(descending=True)
        expected = [(int(t), int(best.indices[t])) for t in order[:3] if best.values[t] > 0]
        strongest = [e for e in card.examples if not e.drawn]
        assert [(e.seq, e.pos) for e in strongest] == expected
        for e in card.examples:
            lo, hi = max(0, e.pos - 5), min(LENGTH, e.pos + 3)
            assert e.tokens == tuple(str(int(t)) for t in rows_of().labels["token"].view(TEXTS, LENGTH)[e.seq, lo:hi])
            assert e.values == pytest.approx(z[e.seq, lo:hi].tolist())
            assert e.at == e.pos - lo and e.value == e.values[e.at]
        if not card.dead:
            assert card.maximum == pytest.approx(float(z.max()))


def test_order_and_batches_of_rows_change_nothing() -> None:
    other = FeatureCards.of(dictionary_of(), in_order(), top=3, drawn=4, before=5, after=2)
    assert json.dumps(other.record()) == json.dumps(cards().record())
    stream = ArrayActivations(rows_of().values, rows_of().labels, batch=64, epochs=1, seed=5)
    again = FeatureCards.of(dictionary_of(), stream, top=3, drawn=4, before=5, after=2)
    assert json.dumps(again.record()) == json.dumps(cards().record())


def test_drawn_contexts_are_an_even_sample() -> None:
    many = FeatureCards.of(dictionary_of(), in_order(), latents=[3], top=1, drawn=4, before=0, after=0)[3]
    z = dictionary_of().encode(rows_of().x).dense()[:, 3].detach()
    fired = z[z > 0]
    means = []
    for seed in range(60):
        card = FeatureCards.of(dictionary_of(), in_order(), latents=[3], top=1, drawn=4, before=0, after=0, seed=seed)[
            3
        ]
        means += [e.value for e in card.examples if e.drawn]
    assert len({e.pos + 100 * e.seq for e in many.examples if e.drawn}) == 4
    error = float(fired.std()) / len(means) ** 0.5
    assert abs(sum(means) / len(means) - float(fired.mean())) < 4 * error


def test_quantiles_are_near_the_true_ones() -> None:
    codes = dictionary_of().encode(rows_of().x).dense().detach()
    for card in cards():
        z = codes[:, card.latent]
        fired = z[z > 0]
        for e in card.examples:
            true = float((fired < e.value - 1e-6).double().mean())
            # Bins of a quarter of an octave: the error is at most half of what lies in the bin.
            inside = float(((fired > e.value / 1.26) & (fired < e.value * 1.26)).double().mean())
            assert abs(e.quantile - true) <= inside / 2 + 0.5 / len(fired) + 1e-9


def test_dead_latents_say_so() -> None:
    assert 7 in cards().dead
    card = cards()[7]
    assert card.dead and card.examples == () and card.maximum == 0.0
    assert card.record()["dead"] is True
    with pytest.raises(BadInput, match="fired on none"):
        cards().latent(7)
    assert "dead: it fired on none" in cards().page().html()


def test_similar_latents_by_hand() -> None:
    atoms = torch.tensor([[1.0, 0], [0, 2], [3, 3], [-1, 0.1]])
    (first, cosines), *_ = similar(atoms, torch.tensor([0, 1]), 2)
    assert first.tolist() == [2, 1]
    assert cosines.tolist() == pytest.approx([2**-0.5, 0.0])
    assert [len(i) for i, _ in similar(atoms, torch.arange(4), 9)] == [3] * 4
    expected = torch.nn.functional.normalize(dictionary_of().atoms().detach(), dim=1)
    best = (expected @ expected.T).fill_diagonal_(-2).max(1)
    for card in cards():
        assert card.similar[0][0] == int(best.indices[card.latent])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_logit_effects_are_those_of_the_model_itself(name: str) -> None:
    """A small step along an atom moves the logits so, when the norm's scale is held."""
    model = mn.load(build(name), check="off")
    last = f"resid_post.{model.n_layers - 1}"
    d = model.weight("W_U").value.shape[0]
    atom = torch.randn(1, d, generator=torch.Generator().manual_seed(0))
    _, up_by, _, down_by = next(logit_effects(model, atom, k=3))
    norm = model.tap("ln_final").module
    ids = [[5, 9, 11]]
    x = model.run(ids, capture=[last])[last][0, -1]
    # Orthogonal to the (centred) stream, so that the norm's scale does not move to first order.
    base = x - x.mean() if isinstance(norm, torch.nn.LayerNorm) else x
    flat = atom[0] - atom.mean() if isinstance(norm, torch.nn.LayerNorm) else atom[0]
    step = 1e-3 * (flat - (flat @ base) / (base @ base) * base)
    side = next(logit_effects(model, step[None] * 1e3, k=d))
    moved = model.run(ids, edits=mn.Add(last, step), logits="last").logits - model.run(ids, logits="last").logits
    moved = moved[0] - moved.mean()
    effects = torch.zeros_like(moved)
    effects[side[0]], effects[side[2]] = side[1], side[3]
    chosen = torch.cat([side[0], side[2]])
    slope = (moved[chosen] @ effects[chosen]) / (effects[chosen] @ effects[chosen])
    assert slope > 0
    assert torch.allclose(moved[chosen], slope * effects[chosen], atol=0.02 * float(moved.abs().max()))
    assert up_by.tolist() == sorted(up_by.tolist(), reverse=True) and down_by.tolist() == sorted(down_by.tolist())
    assert up_by[0] > 0 > down_by[0]
    # A norm that takes the mean off cannot see a constant; one that does not, can.
    constant = next(logit_effects(model, atom + 3.0, k=3))[1]
    assert torch.allclose(constant, up_by, rtol=1e-3) == isinstance(norm, torch.nn.LayerNorm)


def test_effects_are_refused_where_a_norm_stands_between() -> None:
    gemma = mn.load(build("gemma2"), check="off")
    d = gemma.weight("W_U").value.shape[0]
    torch.manual_seed(0)
    for site, served in (("resid_post.1", True), ("mlp_out.1", False), ("mlp_act.1", False)):
        dictionary = TopK(8, k=2).build(d, sites_in=(site,))
        rows = Activations({site: torch.randn(20, d)}, {k: torch.arange(20) for k in ("seq", "pos", "token")})
        found = FeatureCards.of(dictionary, [rows], gemma, latents=[0, 1])
        assert bool(found.cards[0].promoted) == served == (not found.note)


def test_a_card_is_a_handle() -> None:
    latent = cards().latent(3)
    assert latent.maximum == (cards()[3].maximum,) and latent.latents == (3,)
    with pytest.raises(UnknownName, match="no card"):
        FeatureCards.of(dictionary_of(), in_order(), latents=[1])[2]


def test_files_and_size(tmp_path: Path) -> None:
    found = cards()
    found.save(tmp_path / "cards.json")
    assert json.loads((tmp_path / "cards.json").read_text())["cards"][3]["latent"] == 3
    found.save(tmp_path / "cards.html", most=10)
    page = (tmp_path / "cards.html").read_text()
    assert page.startswith("<!DOCTYPE html>") and ' src="' not in page and "@import" not in page
    assert f"{len(found)} cards made, 10 on this page" in page
    with pytest.raises(BadInput, match=r"\.html or \.json"):
        found.save(tmp_path / "cards.pdf")
    assert len(found.table()) == WIDTH


def test_sixty_full_cards_stay_below_five_megabytes() -> None:
    torch.manual_seed(0)
    dictionary = TopK(200, k=20).build(D, sites_in=(SITE,))
    page = FeatureCards.of(dictionary, in_order()).page().html()
    assert len(page.encode()) < 5e6
    assert "60 on this page" in page


def test_the_page_opens_offline(tmp_path: Path) -> None:
    cards().save(tmp_path / "cards.html", most=5)
    seen = browser.opened(tmp_path / "cards.html", tmp_path / "profile")
    assert "js-plotly-plot" in seen, "the chart is drawn"
    assert seen.count('<div class="choice-panel" hidden="">') == 4, "one card is shown, the others wait"


def test_tokens_are_escaped() -> None:
    class Tokenizer:
        def decode(self, ids: list[int], **_: Any) -> str:
            return "<script>alert(1)</script>"

    page = FeatureCards.of(dictionary_of(), in_order(), latents=[3], tokenizer=Tokenizer()).page().html()
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page


def test_dropped_rows_are_gaps() -> None:
    rows = rows_of()
    keep = (rows.labels["pos"] != 4) & (rows.labels["pos"] != 0)
    found = FeatureCards.of(dictionary_of(), [rows.take(keep)], top=3, drawn=4, before=5, after=2)
    examples = [e for card in found for e in card.examples]
    assert any("\u2026" in e.tokens for e in examples)
    for e in examples:
        assert e.tokens[e.at] == str(int(rows.labels["token"].view(TEXTS, LENGTH)[e.seq, e.pos]))
        assert all(v == 0.0 for v, t in zip(e.values, e.tokens) if t == "\u2026")


def test_a_limit_of_rows_leaves_no_gaps() -> None:
    found = FeatureCards.of(dictionary_of(), shuffled(), top=3, drawn=4, before=5, after=2, rows=200)
    assert found.rows == 200 and sum(card.fired for card in found) == 4 * 200
    assert all("\u2026" not in e.tokens for card in found for e in card.examples)
    endless = ArrayActivations(rows_of().values, rows_of().labels, batch=64, seed=5)
    assert FeatureCards.of(dictionary_of(), endless, latents=[1], rows=200).rows == 200


def test_refusals() -> None:
    with pytest.raises(BadInput, match="read once only"):
        FeatureCards.of(dictionary_of(), iter(in_order()))
    with pytest.raises(BadInput, match="no label seq"):
        FeatureCards.of(dictionary_of(), [Activations(rows_of().values)])
    with pytest.raises(BadInput, match="there are 0 to 39"):
        FeatureCards.of(dictionary_of(), in_order(), latents=[40])
    with pytest.raises(BadInput, match="no rows"):
        FeatureCards.of(dictionary_of(), [])
    with pytest.raises(BadInput, match="needs a card"):
        cards().page(0)


def test_the_line_of_a_latent_shows_its_strongest_token() -> None:
    words = tuple(f"w{i}" for i in range(30))
    example = Example(False, 2.0, 0.9, 0, 25, words, tuple(2.0 * (i == 25) for i in range(30)), 25)
    near, whole = page._context(example, 2.0, near=True), page._context(example, 2.0)
    assert list(near.tokens) == [f"w{i}" for i in range(20, 29)] and near.values[5] == 1.0
    assert len(whole.tokens) == 30
