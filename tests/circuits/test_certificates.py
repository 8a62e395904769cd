"""Certificates: the theorem checked by listing every mask and every neighbor, votes, decisions, controls, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mechanome.circuits import Circuit, Graph, Layer, Scores, Select
from mechanome.circuits.certification import (
    Certificate,
    Scored,
    certificate_section,
    certify,
    discovery,
    load_certificate,
    neighborhood,
    random_abstention,
    same_size,
    save_certificate,
    share_of_masks,
)
from mechanome.circuits.effects import Components, Effects
from mechanome.circuits.layerwise import SelectEach
from mechanome.circuits.selecting import largest
from mechanome.core import BadInput, CorruptFile, NotFinite, ShapeMismatch, TooFewRows, UnknownName

GRAPH = Graph((Layer(2, 1), Layer(2, 1)))


def drawn(examples: int, components: int, seed: int = 0, signal: float = 1.0) -> torch.Tensor:
    """Normal scores whose means differ between components, `[example, component]`."""
    generator = torch.Generator().manual_seed(seed)
    means = signal * torch.randn(components, generator=generator)
    return means + torch.randn(examples, components, generator=generator)


def known(*means: float) -> torch.Tensor:
    """40 examples of components with these means; the third and fourth are up and down in turn, against each other."""
    scores = torch.tensor([means], dtype=torch.float32).repeat(40, 1)
    turn = 0.1 * (-1.0) ** torch.arange(40)
    scores[:, 2] += turn
    scores[:, 3] -= turn
    return scores


def of_edges(each: torch.Tensor) -> Scores:
    """Scores of the graph's edges, kept per example."""
    zero = torch.zeros(len(each))
    return Scores(GRAPH, each.mean(0), "edge", "exact", "patch", False, zero, zero, each)


# The theorem ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_one_edit_never_turns_a_certified_majority_around(seed: int) -> None:
    """All 256 masks of 8 examples, and of every dataset that one deletion, insertion or substitution makes of it."""
    scored = Scored(Effects.of(drawn(20, 30, seed)), Select(8))
    near = neighborhood(scored, range(8), range(8, 20), 0.6)
    certified = near.certified(0.95)
    assert near.datasets == 8 + 12 + 8 * 12
    assert 3 <= int(certified.sum()) <= 27
    assert int(near.flips[certified].sum()) == 0
    assert int(near.flips[~certified].sum()) > 0, "without a certificate majorities do turn around"


def test_what_random_masks_certify_never_turns_around() -> None:
    scores = drawn(20, 30, 4)
    near = neighborhood(Scored(Effects.of(scores), Select(8)), range(8), range(8, 20), 0.6)
    found = certify(Select(8), scores[:8], quiet=True)
    assert int((found.certified_in | found.certified_out).sum()) > 3
    assert int(near.flips[~found.abstained].sum()) == 0
    assert bool((near.certified(0.95) | found.abstained).all()), "nothing is certified whose share is below tau"


def test_no_neighbors_share_falls_below_the_bound_of_the_proof() -> None:
    scored = Scored(Effects.of(drawn(12, 10, 1)), Select(3))
    share, p_del = share_of_masks(scored, range(8), 0.6), 0.6
    for other in ([*range(7)], [*range(9)], [*range(7), 10]):
        assert bool((share_of_masks(scored, other, p_del) >= share - 1 + p_del - 1e-12).all())


def test_the_share_of_masks_counts_an_empty_one_as_finding_nothing() -> None:
    scores = torch.tensor([[5.0, 1.0], [5.0, 1.0], [5.0, 1.0]])
    assert share_of_masks(Scored(Effects.of(scores), Select(1)), range(3), 0.6).tolist() == pytest.approx(
        [1 - 0.216, 0]
    )
    with pytest.raises(BadInput, match=r"2\^17"):
        share_of_masks(Scored(Effects.of(drawn(17, 4)), Select(1)), range(17), 0.6)


# Votes -----------------------------------------------------------------------------------------------------------


def test_votes_estimate_the_share_of_masks() -> None:
    scores = drawn(9, 20, 2)
    exact = share_of_masks(Scored(Effects.of(scores), Select(5)), range(9), 0.6)
    found = certify(Select(5), scores, n=4000, quiet=True)
    assert (found.votes - exact).abs().max() < 0.035
    settled = (exact - 0.5).abs() > 0.2
    assert torch.equal(found.guess[settled], exact[settled] > 0.5)
    assert torch.equal(found.found, Select(5).sets(scores.double().mean(0, keepdim=True), found.components)[0])


def test_masks_of_the_guess_are_not_counted_and_seeds_matter() -> None:
    scores = drawn(10, 12)
    one, same, other = (certify(Select(4), scores, seed=s, n=300, quiet=True) for s in (0, 0, 1))
    assert torch.equal(one.agree, same.agree) and not torch.equal(one.agree, other.agree)
    fewer = certify(Select(4), scores, seed=0, n=300, n0=1, quiet=True)
    assert not torch.equal(one.votes, fewer.votes), "fresh masks come after those of the guess"


def test_a_wrong_guess_leads_to_no_certificate() -> None:
    found = Certificate(
        Components(torch.ones(2, dtype=torch.bool)), certify(Select(1), drawn(20, 3), quiet=True).level, 20,
        torch.tensor([True, False]), torch.tensor([False, False]), torch.tensor([10, 1000]), "scores",
    )  # fmt: skip
    assert found.votes.tolist() == [0.99, 0.0] and found.decisions == ("abstain", "out")
    assert found.radius.tolist() == [0, 1]


def test_decisions_follow_the_scores() -> None:
    found = certify(Select(3), known(5, 4, 1, 1, 0, 0), quiet=True)
    assert found.decisions == ("in", "in", "abstain", "abstain", "out", "out")
    assert found.counts() == {"in": 2, "out": 2, "abstain": 2} and found.effective == pytest.approx(2 / 6)
    assert found.radius[[0, 1, 4, 5]].tolist() == [1] * 4 and found.radius[2] == 0
    assert found.decision(0) == "in" and found.decision(-1) == "out"
    with pytest.raises(UnknownName, match="0 to 5"):
        found.decision(6)
    with pytest.raises(UnknownName, match="none of this name"):
        found.decision("z.0.h0")


def test_the_order_of_examples_decides_nothing() -> None:
    # In floating point (0.1 + 0.2) + 0.3 is not (0.3 + 0.2) + 0.1, and a tie would be broken by rounding.
    scores = torch.tensor([[0.1, 0.3, 0.2], [0.2, 0.2, 0.1], [0.3, 0.1, 0.3]], dtype=torch.float64)
    assert float(scores[:, 0].sum()) != 0.6 or float(scores[:, 1].sum()) != 0.6
    whole = torch.ones(1, 3, dtype=torch.bool)
    means = Scored(Effects.of(scores), Select(1)).means(whole)[0]
    assert means[0] == means[1] == means[2]
    large = drawn(200, 50, 6).double() * torch.logspace(-6, 6, 50, dtype=torch.float64)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    kept = torch.rand(30, 200, generator=torch.Generator().manual_seed(1)) < 0.4
    a = Scored(Effects.of(large), Select(5)).means(kept)
    b = Scored(Effects.of(large[order]), Select(5)).means(kept[:, order])
    assert torch.equal(a, b)
    assert torch.allclose(a, kept.double() @ large / kept.sum(1, keepdim=True), rtol=1e-9, atol=1e-6)
    assert torch.equal(Scored(Effects.of(torch.zeros(3, 4)), Select(1)).means(whole), torch.zeros(1, 4).double())


def test_masks_that_are_judged_in_pieces_are_judged_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_CELLS", 70)
    scored = Scored(Effects.of(drawn(10, 7)), Select(2))
    kept = torch.rand(150, 10, generator=torch.Generator().manual_seed(0)) < 0.3
    assert torch.equal(scored.sets(kept), torch.cat([scored.sets(row[None]) for row in kept]))


def test_the_largest_are_those_of_a_stable_sort() -> None:
    rank = torch.randint(0, 6, (200, 15), generator=torch.Generator().manual_seed(0)).double()
    for size in (1, 4, 14, 15):
        order = rank.argsort(dim=1, descending=True, stable=True)[:, :size]
        assert torch.equal(largest(rank, size), torch.zeros_like(rank, dtype=torch.bool).scatter(1, order, True))


@pytest.mark.parametrize("correction", ["bonferroni", "holm", "none"])
def test_corrections_certify_more_the_less_they_promise(correction: str) -> None:
    scores = drawn(30, 60, 5)
    certified = {c: int((~certify(Select(15), scores, correction=c, n=400, quiet=True).abstained).sum())
                 for c in ("bonferroni", "holm", "none")}  # fmt: skip
    assert certified["bonferroni"] <= certified["holm"] <= certified["none"]
    assert certified[correction] > 0


# Circuits --------------------------------------------------------------------------------------------------------


def test_edges_become_the_certified_circuit() -> None:
    each = 0.01 * drawn(30, GRAPH.mask.numel()).reshape(30, *GRAPH.shape)
    wanted = ["resid_pre.0->q.0.h0", "z.0.h1->mlp_in.1", "mlp_out.1->logits"]
    for edge in wanted:
        each[(slice(None), *GRAPH.index(edge))] += 3
    each[:, ~GRAPH.mask] = 0
    found = certify(Select(3), of_edges(each), quiet=True)
    assert sorted(found.circuit()) == sorted(wanted)
    assert found.decision("z.0.h1->mlp_in.1") == "in" and found.decision("z.0.h0->mlp_in.1") == "out"
    assert found.counts()["in"] == 3 and len(found.names) == GRAPH.n_edges


def test_nodes_become_the_edges_between_certified_ones() -> None:
    each = 0.01 * drawn(30, GRAPH.shape[0])
    each[:, [0, 2, 3]] += 3
    zero = torch.zeros(30)
    scores = Scores(GRAPH, each.mean(0), "node", "eap", "patch", True, zero, zero, each)
    found = certify(3, scores, quiet=True)
    assert found.circuit() == Circuit.of_nodes(GRAPH, [GRAPH.sources[i] for i in (0, 2, 3)])


def test_bare_numbers_have_no_circuit() -> None:
    found = certify(2, drawn(20, 5), quiet=True)
    assert found.names == ["0", "1", "2", "3", "4"]
    with pytest.raises(BadInput, match=r"use \.certified_in"):
        found.circuit()


def test_a_share_of_each_layer_is_certified() -> None:
    groups = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    scores = 0.01 * drawn(20, 8) + torch.tensor([1.0, 0, 0, 0.5, 100, 0, 0, 50])
    found = certify(SelectEach(0.5, groups), scores, quiet=True)
    assert found.certified_in.tolist() == [True, False, False, True, True, False, False, True]
    with pytest.raises(ShapeMismatch, match="8 groups"):
        certify(SelectEach(0.5, groups), drawn(20, 9), quiet=True)


# Controls --------------------------------------------------------------------------------------------------------


def test_controls_have_the_size_of_the_certified_circuit() -> None:
    groups = torch.tensor([0] * 10 + [1] * 20)
    scores = drawn(25, 30, 7)
    found = certify(SelectEach(0.5, groups), scores, quiet=True)
    mean = scores.mean(0)
    for within in (None, groups):
        plain, random = same_size(found, mean, "highest", within), random_abstention(found, 5, 1, within)
        assert int(plain.sum()) == int(found.certified_in.sum()) > 0
        assert bool((random.sum(1) == plain.sum()).all()) and bool((random <= found.found).all())
        assert len({tuple(row) for row in random.tolist()}) > 1
    assert int(same_size(found, mean, "highest", groups)[:10].sum()) == int(found.certified_in[:10].sum())
    strongest = mean[same_size(found, mean, "highest")].min()
    assert bool((mean[~same_size(found, mean, "highest")] <= strongest).all())
    with pytest.raises(ShapeMismatch, match="30 components"):
        same_size(found, mean[:4])
    with pytest.raises(ShapeMismatch, match="one for each"):
        random_abstention(found, groups=groups[:4])
    with pytest.raises(BadInput, match="by="):
        same_size(found, mean, "top")  # type: ignore[arg-type]


# Refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("discover", "dataset", "error", "message"),
    [
        (Select(2), torch.full((5, 4), float("nan")), NotFinite, "NaN"),
        (Select(9), drawn(5, 4), BadInput, "leaves nothing out"),
        (Select(2), drawn(1, 4), TooFewRows, "1 example to delete"),
        (Select(2), [1, 2, 3], ShapeMismatch, "one row per input"),
        ("topk", drawn(5, 4), BadInput, "no function of examples and no rule"),
        (lambda rows: [True], Effects.of(drawn(5, 4)), BadInput, "a function takes examples"),
    ],
    ids=["nan", "all", "one-example", "no-scores", "no-method", "scores-for-a-function"],
)
def test_what_cannot_be_certified_is_refused(discover: Any, dataset: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        certify(discover, dataset, quiet=True)


def test_too_few_masks_are_refused_before_anything_runs() -> None:
    calls: list[int] = []

    def find(rows: list[int]) -> list[bool]:
        calls.append(len(rows))
        return [True] * 10

    with pytest.raises(BadInput, match="use n of at least 180"):
        certify(find, range(20), n=100, quiet=True)
    assert len(calls) == 1


def test_few_examples_are_noted() -> None:
    assert "leaves 3.2 of 8 examples" in certify(2, drawn(8, 5), quiet=True).notes[0]
    assert certify(2, drawn(13, 5), quiet=True).notes == ()


# To people and files ---------------------------------------------------------------------------------------------


def test_the_table_lists_what_is_in_first_and_a_radius_of_none_is_no_number() -> None:
    found = certify(Select(3), known(0, 5, 1, 1, 4, 0), quiet=True)
    records = found.table(None).records()
    assert [r["decision"] for r in records] == ["in", "in", "abstain", "abstain", "out", "out"]
    assert [r["component"] for r in records[:2]] == ["1", "4"] and records[2]["radius"] is None
    assert len(found.table(2)) == 2 and "<table" in found._repr_html_()
    assert repr(found).startswith("Certificate: 2 in, 2 out, 2 abstain of 6 components, radius 1")
    assert "confidence 0.999 of all components together (Bonferroni)" in found.statement
    section = certificate_section(found, 4)
    assert "2 are certified to be in" in "".join(map(str, section.finding))
    html = section.picture.html()
    assert html.count("<tr") == 5 and "none" in html
    assert len(section.picture.table()) == 4  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["edges", "numbers"])
def test_files_give_the_same_certificate_back(kind: str, tmp_path: Path) -> None:
    each = drawn(20, GRAPH.mask.numel(), 2).reshape(20, *GRAPH.shape)
    found = certify(Select(5), of_edges(each * GRAPH.mask) if kind == "edges" else each[:, 0], n=400,
                    correction="holm", seed=3, quiet=True)  # fmt: skip
    save_certificate(found, tmp_path / "c.json")
    back = load_certificate(tmp_path / "c.json", found.components.graph)
    assert back.table(None).rows == found.table(None).rows and back.level == found.level
    assert back.statement == found.statement and torch.equal(back.components.where, found.components.where)
    assert back.components.graph == found.components.graph
    if kind == "edges":
        assert back.circuit() == found.circuit()
        with pytest.raises(BadInput, match="another graph"):
            load_certificate(tmp_path / "c.json", Graph((Layer(4, 2),)))


@pytest.mark.parametrize(
    "damage",
    [
        {"format": "circuit"},
        {"version": 2},
        {"agree": "1"},
        {"agree": "2000 2000 2000 2000 2000"},
        {"agree": "1000 1000 1000 1000 x"},
        {"guess": "00x00"},
        {"shape": [3]},
        {"names": ["a"]},
        {"level": {"tau": 2}},
        {"found": None},
        {"layers": [[2, 1, True, "pre"]]},
    ],
    ids=lambda damage: next(iter(damage)) + str(len(str(damage))),
)
def test_damaged_files_are_refused(damage: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    save_certificate(certify(2, drawn(20, 5), quiet=True), file)
    file.write_text(json.dumps({**json.loads(file.read_text()), **damage}))
    with pytest.raises(CorruptFile):
        load_certificate(file)
