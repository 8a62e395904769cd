"""The long table: one pass for many dictionaries, splits, files, fronts at matched sparsity."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import mechanome as mn
from families import build
from mechanome.activations import Activations
from mechanome.activations.activations import ROLES
from mechanome.core import BadInput, CorruptFile, Table, TooFewRows, UnknownName
from mechanome.dictionaries import TopK
from mechanome.dictionaries.metrics import (
    COLUMNS,
    DEFINITIONS,
    Measure,
    definition,
    definitions_table,
    evaluate,
    fvu,
    pareto,
    read_results,
    splits,
    write_results,
)
from mechanome.dictionaries.metrics.pareto_picture import pareto_page
from mechanome.dictionaries.metrics.results import Source, results_table

SITE = "resid_post.1"


def rows_of(n: int = 240, d: int = 16, seed: int = 0) -> Activations:
    g = torch.Generator().manual_seed(seed)
    pos = torch.arange(n) % 12
    x = torch.randn(n, d, generator=g) + 3
    x[pos == 0] *= 20
    role = torch.where(pos < 2, ROLES.index("template"), ROLES.index("user")).to(torch.int8)
    labels = {"seq": torch.arange(n) // 12, "pos": pos, "token": torch.randint(0, 9, (n,), generator=g), "role": role}
    return Activations({SITE: x}, labels)


def dictionary_of(seed: int = 0, k: int = 3, d: int = 16, width: int = 24) -> Any:
    torch.manual_seed(seed)
    return TopK(width, k=k).build(d, sites_in=(SITE,), provenance={"seed": seed})


def batches_of(rows: Activations, size: int) -> Iterator[Activations]:
    for i in range(0, rows.rows, size):
        yield rows.take(slice(i, i + size))


def cells(table: Table, **wanted: Any) -> dict[str, Any]:
    found = [r for r in table.records() if all(r[k] == v for k, v in wanted.items())]
    return {r["metric"]: r for r in found}


def test_numbers_are_those_of_the_plain_formulas() -> None:
    rows, dictionary = rows_of(), dictionary_of()
    table = evaluate(dictionary, [rows], run="r", method="fit")
    assert table.columns == COLUMNS
    found = cells(table, split="all")
    made = dictionary(rows.x).detach()
    assert found["fvu"]["value"] == pytest.approx(fvu(rows.x, made), rel=1e-9)
    assert found["mse"]["value"] == pytest.approx(float((rows.x - made).square().mean()), rel=1e-5)
    assert found["log2_mse"]["value"] == pytest.approx(math.log2(found["mse"]["value"]))
    codes = dictionary.encode(rows.x).dense()
    assert found["l0"]["value"] == pytest.approx(float((codes != 0).sum(1).double().mean()))
    assert found["dead"]["value"] == pytest.approx(float((codes == 0).all(0).double().mean()))
    assert found["fvu"]["definition"] == str(definition("fvu.v1"))
    assert found["fvu"]["ci_lo"] < found["fvu"]["value"] < found["fvu"]["ci_hi"]
    assert (found["fvu"]["n"], found["fvu"]["arch"], found["fvu"]["site"]) == (240, "topk", SITE)
    assert found["fvu"]["seconds"] > 0 and found["fvu"]["peak_mb"] > 0


@pytest.mark.parametrize("size", [7, 50, 240])
def test_batch_size_changes_no_number(size: int) -> None:
    rows, dictionary = rows_of(), dictionary_of()
    whole, parts = (evaluate(dictionary, data, by="role") for data in ([rows], batches_of(rows, size)))
    for a, b in zip(whole.records(), parts.records()):
        assert a["metric"] == b["metric"] and a["value"] == pytest.approx(b["value"], rel=1e-6)


def test_many_dictionaries_in_one_pass_equal_each_alone() -> None:
    rows = rows_of()
    many = {f"s{s}": dictionary_of(s) for s in range(3)}
    together = evaluate(many, batches_of(rows, 100))
    for s, (name, dictionary) in enumerate(many.items()):
        alone, mine = cells(evaluate(dictionary, [rows])), cells(together, dict_id=name)
        assert mine["fvu"]["value"] == pytest.approx(alone["fvu"]["value"], rel=1e-9)
        assert mine["fvu"]["seed"] == s


def test_splits_are_data_sets_of_their_own() -> None:
    rows, dictionary = rows_of(), dictionary_of()
    table = evaluate(dictionary, [rows], by="token class")
    pos, made = rows.labels["pos"], dictionary(rows.x).detach()
    special = rows.labels["role"] == ROLES.index("template")
    masks = {
        "all": pos >= 0, "first": pos == 0, "not first": pos > 0, "special": special,
        "special, not first": special & (pos > 0), "ordinary": ~special,
    }  # fmt: skip
    assert {r["split"] for r in table.records()} == set(masks)
    for name, mask in masks.items():
        found = cells(table, split=name)
        assert found["fvu"]["value"] == pytest.approx(fvu(rows.x[mask], made[mask]), rel=1e-6)
        assert found["mse"]["value"] == pytest.approx(float((rows.x - made)[mask].square().mean()), rel=1e-5)
        assert found["mse"]["n"] == int(mask.sum())
    assert cells(table, split="first")["mse"]["value"] > 50 * cells(table, split="not first")["mse"]["value"]


def test_special_ids_count_where_no_role_is_known() -> None:
    rows = rows_of()
    bare = Activations(rows.values, {k: v for k, v in rows.labels.items() if k != "role"})
    chosen = splits("token class", special=[3, 4])["special"](bare)
    assert torch.equal(chosen, (rows.labels["token"] == 3) | (rows.labels["token"] == 4))

    class Tokenizer:
        all_special_ids = (3, 4)

    found = cells(evaluate(dictionary_of(), [bare], by="token class", tokenizer=Tokenizer()), split="special")
    assert found["mse"]["n"] == int(chosen.sum())
    with pytest.raises(BadInput, match="give the tokenizer"):
        evaluate(dictionary_of(), [bare], by="token class")


def test_own_splits_and_roles() -> None:
    rows, dictionary = rows_of(), dictionary_of()
    table = evaluate(dictionary, [rows], by={"loud": lambda r: r.x.norm(dim=1) > 100})
    assert {r["split"] for r in table.records()} == {"all", "loud"}
    roles = {r["split"] for r in evaluate(dictionary, [rows], by="role").records()}
    assert roles == {"all", "template", "user"}, "roles without rows are left out"
    with pytest.raises(UnknownName, match="token class"):
        evaluate(dictionary, [rows], by="token clas")
    with pytest.raises(BadInput, match="one boolean a row"):
        evaluate(dictionary, [rows], by={"x": lambda r: r.x})
    with pytest.raises(BadInput, match="labels"):
        evaluate(dictionary, [Activations({SITE: rows.x})], by="role")


def test_rows_and_endless_streams() -> None:
    rows, dictionary = rows_of(), dictionary_of()

    class Endless:
        epochs = None

        def __iter__(self) -> Iterator[Activations]:
            while True:
                yield rows

    assert cells(evaluate(dictionary, Endless(), rows=300))["fvu"]["n"] == 300
    with pytest.raises(BadInput, match="no end"):
        evaluate(dictionary, Endless())
    with pytest.raises(TooFewRows, match="no rows"):
        evaluate(dictionary, [])
    with pytest.raises(BadInput, match="there are none"):
        evaluate({}, [rows])
    with pytest.raises(BadInput, match="model and texts"):
        evaluate(dictionary, [rows], texts=["a"])


def test_losses_and_planted_features_join_the_table() -> None:
    model = mn.load(build("llama"), check="off")
    ids = torch.randint(4, 60, (6, 9), generator=torch.Generator().manual_seed(0)).tolist()
    x = model.run(ids, capture=[SITE])[SITE].flatten(0, 1)
    dictionary = dictionary_of(d=x.shape[1])
    features = dictionary.atoms()[:7]
    table = evaluate(dictionary, [Activations({SITE: x})], model, ids, features=features, legacy=True, first="keep")
    losses = cells(table, split="all, first position kept")
    assert losses["ce_recovered_zero"]["n"] == 6 * 8
    assert losses["ce_clean"]["value"] < losses["ce_zero"]["value"] * 2
    planted = cells(table, split="planted")
    assert planted["planted_mcc"]["value"] == pytest.approx(1.0)
    assert planted["planted_recall"]["value"] == 1.0
    assert cells(table)["fvu.saebench-0.6"]["value"] is not None


@pytest.mark.parametrize("ending", [".jsonl", ".csv"])
def test_files_give_the_same_table_back(tmp_path: Path, ending: str) -> None:
    rows = rows_of()
    constant = Activations({SITE: torch.ones(20, 16)})
    table = evaluate(dictionary_of(), [rows], by="role")
    undefined = evaluate(dictionary_of(), [constant])
    assert cells(undefined)["fvu"]["value"] is None, "a constant has no variance to explain"
    both = Table(COLUMNS, [*table.rows, *undefined.rows])
    write_results(both, tmp_path / f"t{ending}")
    assert read_results(tmp_path / f"t{ending}").rows == both.rows


def test_files_refuse(tmp_path: Path) -> None:
    table = evaluate(dictionary_of(), [rows_of()])
    with pytest.raises(BadInput, match=r"\.jsonl or \.csv"):
        write_results(table, tmp_path / "t.xlsx")
    with pytest.raises(BadInput, match="lacks"):
        write_results(Table(["a"], [[1]]), tmp_path / "t.csv")
    assert not list(tmp_path.iterdir())
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    with pytest.raises(CorruptFile, match="columns"):
        read_results(tmp_path / "bad.csv")
    write_results(table, tmp_path / "t.csv")
    (tmp_path / "t.csv").write_text((tmp_path / "t.csv").read_text().replace(",240,", ",many,"))
    with pytest.raises(CorruptFile, match="n is 'many'"):
        read_results(tmp_path / "t.csv")


def long(*dots: tuple[str, str, float, float]) -> Table:
    found = []
    for arch, name, x, y in dots:
        source = Source("", "", arch, SITE, name, 0)
        found.append(source.result("all", Measure(definition("l0.v1"), x, n=1)))
        found.append(source.result("all", Measure(definition("fvu.v1"), y, y - 0.01, y + 0.01, n=1)))
    return results_table(found)


def test_front_by_hand() -> None:
    table = long(
        ("a", "a1", 10, 0.5), ("a", "a2", 40, 0.2), ("a", "a3", 45, 0.3), ("b", "b1", 20, 0.3), ("b", "b2", 80, 0.19)
    )
    found = pareto(table)
    best = {d.dict_id for front in found.fronts for d in front.dots if d.best}
    assert best == {"a1", "a2", "b1", "b2"}
    matched = {row[0]: row[1:] for row in found.matched([10, 20, 40, 100]).rows}
    assert matched[10] == (0.5, None)
    # Half way from 10 to 40 and from 20 to 80 on a logarithmic scale.
    assert matched[20][0] == pytest.approx(0.35) and matched[20][1] == pytest.approx(0.3)
    assert matched[40] == (pytest.approx(0.2), pytest.approx(0.245))
    assert matched[100] == (None, None)
    assert len(found.table()) == 5


def test_fronts_refuse() -> None:
    table = long(("a", "a1", 10, 0.5))
    with pytest.raises(BadInput, match="no dictionary has both"):
        pareto(table, y="cosine")
    with pytest.raises(BadInput, match="twice"):
        pareto([table, table])
    with pytest.raises(BadInput, match="neither more nor less"):
        pareto(table, y="l0")


def test_the_chart_is_one_offline_page() -> None:
    page = pareto_page(pareto(long(("a<b", "a1", 10, 0.5), ("a<b", "a2", 40, 0.2), ("b", "b1", 20, 0.3)))).html()
    assert "<!DOCTYPE html>" in page and "fvu by l0" in page
    assert ' src="' not in page and "@import" not in page
    assert "a<b" not in page.split("<script")[0], "names are escaped"
    assert len(page) < 5e6


def test_definitions_are_named_once_and_versioned() -> None:
    assert len(definitions_table()) == len(DEFINITIONS)
    own = [d for d in DEFINITIONS.values() if not d.legacy]
    assert all(d.name == f"{d.metric}.v1" for d in own)
    with pytest.raises(UnknownName, match=r"fvu\.v1"):
        definition("fvu.v9")
