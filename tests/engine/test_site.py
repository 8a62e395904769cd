"""Sites: the string form is strict and injective, globs choose from what is served, refusals name the nearest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opened_models import opened

import mechanome as mn
from mechanome.core.errors import UnknownSite
from mechanome.engine.points import POINTS, TOWERS
from mechanome.engine.site import Site, expand, parse


@st.composite
def sites(draw: st.DrawFn) -> Site:
    point = POINTS[draw(st.sampled_from(sorted(POINTS)))]
    names = [n for n in point.coordinates if draw(st.booleans())]
    coordinates = {n: draw(st.integers(0, 10**6)) for n in names}
    layer = draw(st.integers(0, 500)) if point.per_layer else None
    return Site(point.name, layer, tower=draw(st.sampled_from([None, *TOWERS])), **coordinates)


@given(sites())
def test_text_and_site_are_one_to_one(site: Site) -> None:
    assert parse(str(site)) == site
    assert parse(site) is site
    assert str(site.whole) == str(parse(str(site.whole)))
    assert not site.whole.selector


@given(sites(), sites())
def test_different_sites_have_different_texts(a: Site, b: Site) -> None:
    assert (str(a) == str(b)) == (a == b)


@given(st.text(alphabet="zqresid_pmlkvhn.0123456789/e:*- ", max_size=16))
def test_whatever_parses_prints_the_same(text: str) -> None:
    try:
        site = parse(text)
    except UnknownSite:
        return
    assert str(site) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "z", "z.", "z.x", "z.5.", "z.05", "z.-1", "z.5.h", "z.5.h03", "z.5.h3.h3", "z.5.kv1", "z.5.h3.n2", "z.5.3",
        "z.5.H3", " z.5", "z.5 ", "Z.5", "k.5.h1", "resid_pre", "resid_pre.5.h1", "resid_pre.5@last", "logits.3",
        "embed.0", "vision/", "/z.5", "video/z.5", "vision/text/z.5", "z.h3.5", "mlp_act.7.n-1", "router.2.n1", "path:",
        "path::in", "zz.5", "head_in.5", "blocks.5.attn.hook_z",
    ],
)  # fmt: skip
def test_what_is_not_a_site_is_refused(text: str) -> None:
    with pytest.raises(UnknownSite) as refusal:
        parse(text)
    assert refusal.value.fix


@pytest.mark.parametrize("coordinates", [{"layer": 1}, {"head": 0}, {"tower": "vision"}])
def test_a_path_takes_no_coordinates(coordinates: dict[str, int | str]) -> None:
    with pytest.raises(UnknownSite, match="takes no"):
        Site("path:transformer.h.0", **coordinates)  # type: ignore[arg-type]


def test_paths_name_a_module_and_a_side() -> None:
    site = parse("path:model.layers.5.mlp:in")
    assert (site.module_path, site.is_input, str(site)) == ("model.layers.5.mlp", True, "path:model.layers.5.mlp:in")
    assert not parse("path:model.layers.5.mlp").is_input


def test_negative_coordinates_are_refused() -> None:
    for bad in ({"layer": -1}, {"layer": 1, "head": -1}):
        with pytest.raises(UnknownSite, match="negative"):
            Site("z", **bad)


SERVED = [Site(p, layer) for layer in range(12) for p in ("resid_pre", "z", "k")] + [Site("logits")]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("z.*", [f"z.{i}" for i in range(12)]),
        ("*.5", ["resid_pre.5", "z.5", "k.5"]),
        ("z.3-5", ["z.3", "z.4", "z.5"]),
        ("*.10-11", ["resid_pre.10", "z.10", "k.10", "resid_pre.11", "z.11", "k.11"]),
        ("z.*.h3", [f"z.{i}.h3" for i in range(12)]),
        ("k.0-1.kv1", ["k.0.kv1", "k.1.kv1"]),
        ("z.[13]", ["z.1", "z.3"]),
        (["z.1", "z.0-1", "logits", "z.1"], ["z.1", "z.0", "logits"]),
        ([], []),
    ],
)
def test_globs(pattern: str | list[str], found: list[str]) -> None:
    assert [str(s) for s in expand(pattern, SERVED)] == found


def test_a_glob_that_matches_nothing_names_the_nearest() -> None:
    with pytest.raises(UnknownSite, match="resid_pre"):
        expand("resid_prr.*", SERVED)


def test_unknown_points_layers_heads_and_modules_name_what_exists() -> None:
    model = opened("llama")  # 3 layers, 4 heads over 2 key/value heads
    for text, hint in (
        ("resid_mdi.1", "resid_mid"),
        ("z.3", "layers 0 to 2"),
        ("z.1.h4", "heads 0 to 3"),
        ("v.1.kv2", "heads 0 to 1"),
        ("path:model.layers.0.mpl", "model.layers.0.mlp"),
    ):
        with pytest.raises(UnknownSite) as refusal:
            model.run([5, 6, 7], capture=text)
        assert hint in refusal.value.fix
        with pytest.raises(UnknownSite):
            model.run([5, 6, 7], edits=mn.Ablate(text))


def test_neurons_and_experts_that_do_not_exist_are_refused() -> None:
    for name, text in (("llama", "mlp_act.0.n48"), ("llama", "resid_pre.0.n32"), ("mixtral", "router.0.e4")):
        with pytest.raises(UnknownSite, match="does not exist"):
            opened(name).run([5, 6, 7], capture=text)
    with pytest.raises(UnknownSite, match="does not exist"):
        opened("llama").run([5, 6, 7], edits=mn.Ablate("mlp_act.0.n48"))


def test_towers_must_be_named_where_there_are_several_and_only_there() -> None:
    assert opened("clip").serves("vision/z.1.h2")
    assert "prefix the site" in str(opened("clip").why_not("z.1"))
    assert "no such tower" in str(opened("gpt2").why_not("vision/z.1"))
