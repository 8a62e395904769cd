"""The committed matrix of families and points is what the models say now, and serves what was measured as possible."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from opened_models import NAMED, opened

import mechanome as mn
from families import FAMILIES
from mechanome.engine.points import POINTS

ROOT = Path(__file__).resolve().parents[2]
ATTENTION = ("q", "k", "v", "scores", "pattern", "z")
# Transformers' attention registry serves these, in every layer that attends, cross-attention included.
MEASURED = [
    "gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt_neox", "gptj", "opt", "phi3", "mixtral",
    "qwen3_moe", "gpt_oss", "deepseek_v3", "bert", "distilbert", "modernbert", "esm", "vit", "clip", "whisper", "t5",
    "wav2vec2", "jamba",
]  # fmt: skip


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("family_matrix", ROOT / "scripts" / "family_matrix.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_models_say() -> None:
    page = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    assert page == script().render({name: opened(name) for name in FAMILIES}), "run make docs"


def test_the_page_has_every_family_tower_and_point_and_no_footnote_dangles() -> None:
    page = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
    rows = {line.split("|")[1].strip(): line.split("|")[2:-1] for line in page.splitlines() if line.startswith("| ")}
    towers = {f"{n}, {t}" if t else n for n in FAMILIES for t in (FAMILIES[n].towers or (None,))}
    assert set(rows) == {"family", *towers}
    assert [c.strip() for c in rows["family"]] == list(POINTS)
    used = {n for name, cells in rows.items() if name != "family" for n in re.findall(r"\d+", " ".join(cells))}
    listed = re.findall(r"^(\d+)\. \S.{8,}\.$", page, re.M)
    assert set(listed) == used and len(listed) == len(used)


@pytest.mark.parametrize("name", MEASURED)
def test_what_was_measured_as_possible_is_served(name: str) -> None:
    model = opened(name)
    assert len(MEASURED) == 25
    for tower in model.architecture.towers:
        for layer, block in enumerate(tower.blocks):
            for role, prefix in (("attention", ""), ("cross", "cross_")):
                if role not in block.roles:
                    continue
                for point in ATTENTION:
                    site = mn.Site(prefix + point, layer, tower=tower.name)
                    assert model.why_not_edit(site) is None, site
    kinds = {(t.name, role) for t in model.architecture.towers for b in t.blocks for role in b.roles}
    if name in ("whisper", "t5"):
        assert {("encoder", "attention"), ("decoder", "attention"), ("decoder", "cross")} <= kinds
    if name == "clip":
        assert {("text", "attention"), ("vision", "attention")} <= kinds
    if name == "jamba":
        assert [bool(b.roles.get("attention")) for b in model.architecture.towers[0].blocks] == [False, True] * 2


@pytest.mark.parametrize("name", NAMED)
def test_a_refusal_offers_only_what_is_served(name: str) -> None:
    model = opened(name)
    for tower in model.architecture.towers:
        for layer in range(len(tower.blocks)):
            for point in POINTS.values():
                why = model.why_not(mn.Site(point.name, layer if point.per_layer else None, tower=tower.name))
                if why is None or point.name == "logits":
                    continue
                offered = re.findall(r"[\w/.]+", why.split("Fix: use ")[1].replace(" or ", " ").replace(",", " "))
                assert offered
                for text in offered:
                    site = mn.engine.parse(text) if "." in text else mn.Site(text, layer, tower=tower.name)
                    assert model.serves(site), (why, site)
