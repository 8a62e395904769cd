"""The self-test at load: what it finds is true, what is broken is refused by name, results are cached."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from opened_models import NAMED, OWN, apart, batch_of, fresh, opened, outputs, rows_of
from torch import Tensor, nn
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer

import mechanome as mn
from families import FAMILIES, build
from mechanome.core.errors import BadInput, NotServed, ShapeMismatch
from mechanome.engine import selftest
from mechanome.engine.selftest import self_test

IDS = rows_of("own_transformer")


def own(**change: object) -> mn.Model:
    """The custom transformer under a layout with mistakes."""
    roles = {**OWN.roles, **change.pop("roles", {})}  # type: ignore[dict-item]
    return mn.load(build("own_transformer"), layout=replace(OWN, roles=roles, **change), example=IDS)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NAMED)
def test_its_numbers(name: str) -> None:
    report = opened(name).report
    assert report is not None
    assert report.backend_error < 2e-6
    post_norm = name in ("bert", "distilbert", "wav2vec2")
    assert all((v > 0.1) if post_norm else (v < 1e-6) for v in report.additive.values())
    assert set(report.additive) == {t or "" for t in (FAMILIES[name].towers or (None,))}
    if report.padding_error is not None:
        assert report.padding_error < 1e-6
        assert (report.left_padding_error > 0.01) if name == "mamba" else (report.left_padding_error < 1e-6)
    assert set(report.refused) <= {"logits"}
    for key, sizes in report.features.items():
        point, tower = key.rpartition("/")[2], key.rpartition("/")[0] or None
        site = next(s for s in opened(name).sites if s.point == point and s.tower == tower)
        value = opened(name).run(batch_of(name), capture=site).captured[site]
        assert list(value.shape[2:-1]) == sizes[:-1], key
        assert value.shape[-1] == sizes[-1] or point.endswith(("scores", "pattern"))


@pytest.mark.parametrize(
    ("roles", "refused"),
    [
        ({"mlp_out": "pre_ff"}, {"mlp_out"}),
        ({"attn_out": "pre_attn"}, {"attn_out", "z", "head_out"}),
        ({"o_proj": "attn.v"}, {"z", "head_out"}),
        ({"ln2": "pre_attn"}, {"resid_mid"}),
    ],
)
def test_a_layout_that_names_the_wrong_module_is_found_out(roles: dict[str, str], refused: set[str]) -> None:
    model = own(roles=roles)
    assert {s.rpartition(".")[0] for s in model.report.refused} == refused
    for point in refused:
        assert "it" in str(model.why_not(f"{point}.1"))
        with pytest.raises(NotServed):
            model.run(IDS, capture=f"{point}.1")
        with pytest.raises(NotServed):
            model.run(IDS, edits=mn.Edit(f"{point}.1", "set", 0.0))
        assert not [s for s in model.sites if s.point == point]
    assert model.serves("resid_pre.1") and model.serves("mlp_act.1")


def test_a_layout_with_the_wrong_place_of_norms_is_found_out() -> None:
    model = own(style="post")
    assert {s.rpartition(".")[0] for s in model.report.refused} == {"attn_out", "resid_mid", "mlp_out"}


def test_layouts_that_cannot_be_are_refused_at_once() -> None:
    for change, match in (
        ({"roles": {"mpl": "ff"}}, "did you mean 'mlp'"), ({"roles": {"mlp": "fff"}}, "no child 'fff'"),
        ({"blocks": "stak"}, "no list of modules"), ({"embed": "tokk"}, "no module"), ({"blocks": "tok"}, "no list"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=match):
            own(**change)
    with pytest.raises(ShapeMismatch, match="5 heads"):
        own(n_heads=5)


def test_a_module_that_never_runs_or_runs_twice_is_refused() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.unused, self.lin = nn.LayerNorm(8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.lin(self.lin(self.norm(x)))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Odd(), Odd()])

        def forward(self, x: Tensor) -> Tensor:
            for block in self.blocks:
                x = block(x)
            return x

    torch.manual_seed(0)
    layout = mn.Layout("blocks", {"ln1": "norm", "mixer": "unused", "mlp_out": "lin"})
    model = mn.load(Net(), layout=layout, example={"x": torch.randn(2, 5, 8)})
    assert "never ran" in str(model.why_not("mixer_out.0"))
    assert "ran 2 times" in str(model.why_not("mlp_out.1"))
    assert model.serves("resid_post.1") and model.serves("ln1.0")


def test_a_model_that_ignores_its_registry_is_refused_for_attention_points() -> None:
    """It declares the registry but computes attention itself: the calls are counted, not believed."""

    class Own(LlamaForCausalLM):
        pass

    model = build("llama")
    model.__class__ = Own

    def alone(self: nn.Module, hidden_states: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, None]:
        heads = self.q_proj(hidden_states)
        return self.o_proj(heads.softmax(-1) * heads), None

    for layer in model.model.layers:
        layer.self_attn.forward = alone.__get__(layer.self_attn)
    opened_model = mn.load(model, example=IDS)
    for point in ("q", "k", "v", "scores", "pattern"):
        assert "never ran" in str(opened_model.why_not(f"{point}.1"))
    assert opened_model.serves("z.1") and opened_model.serves("q_pre.1")


def test_padding_that_is_not_ignored_is_refused() -> None:
    class Deaf(nn.Module):
        """Its attention sees everything, padding too."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = build("own_transformer")

        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            return self.inner(input_ids) + self.inner(input_ids).mean(1, keepdim=True)

    prompts = [[5, 6, 7, 8], [9, 10]]
    model = mn.load(Deaf(), example=prompts)
    assert model.report.padding_error > 1e-2 and model.report.left_padding_error > 1e-2
    for pad in ("left", "right"):
        with pytest.raises(NotServed, match=f"padding on the {pad} changes"):
            model.run(model.encode(prompts, pad=pad))
    assert model.run([prompts[0]]).logits.shape == (1, 4, 97)


def test_routers_are_read_only_and_volatile_sites_are_copied() -> None:
    for name in ("mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3", "jamba"):
        model = opened(name)
        assert {s.rpartition(".")[0] for s in model.report.read_only} == {"router"}
        assert "does not change the output" in str(model.why_not_edit(next(iter(model.report.read_only))))
    model = opened("falcon")
    assert set(model.report.volatile) == {f"mlp_out.{i}" for i in range(3)}
    run = model.run(IDS, capture=["resid_pre.1", "attn_out.1", "mlp_out.1", "resid_post.1"])
    assert apart(run["resid_pre.1"] + run["attn_out.1"] + run["mlp_out.1"], run["resid_post.1"]) < 1e-6
    late = fresh("falcon", check="off")
    assert torch.equal(late.run(IDS, capture="mlp_out.1")["mlp_out.1"], run["mlp_out.1"]), "found out on first use"
    assert {str(s) for s in late.volatile} == {"mlp_out.1"}


def test_clip_has_no_logits_but_both_towers() -> None:
    model = opened("clip")
    assert "no logits" in str(model.why_not("logits"))
    run = model.run(batch_of("clip"), capture=["text/z.1", "vision/z.1"])
    assert run.logits is None and run["vision/z.1"].shape == (3, 10, 4, 12) and run["text/z.1"].shape == (3, 9, 4, 8)


def test_light_and_off() -> None:
    light, full = self_test(fresh("llama", check="off"), "light"), opened("llama").report
    assert light.passes < full.passes or full.passes == 0
    assert light.features == self_test(fresh("llama", check="off"), "full").features and not light.read_only
    assert fresh("llama", check="off").report is None
    with pytest.raises(BadInput, match="self-test"):
        mn.load(build("llama"), check="half")  # type: ignore[arg-type]


def test_reading_that_changes_the_output_is_refused_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nervous(LlamaDecoderLayer):
        def forward(self, hidden_states: Tensor, **kwargs: object) -> Tensor:
            watched = any(len(m._forward_hooks) for m in self.mlp.modules())
            out = super().forward(hidden_states, **kwargs)
            return out * 1.5 if watched else out

    module = build("llama")
    for layer in module.model.layers:
        layer.__class__ = Nervous
    with pytest.raises(NotServed, match="changes its output"):
        mn.load(module)


def test_reports_are_cached_by_what_they_depend_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_cache_file", lambda model, check: tmp_path / "report.json")
    first = self_test(fresh("jamba", check="off"))
    again = self_test(fresh("jamba", check="off"))
    assert first.passes > 5 and again.passes == 0
    assert asdict(again) == {**asdict(first), "passes": 0}
    for damage in (b"{", b'{"refused": 3, "other": 1}', b""):
        (tmp_path / "report.json").write_bytes(damage)
        assert self_test(fresh("jamba", check="off")).passes == first.passes


def test_the_cache_key_knows_what_matters(tmp_path: Path) -> None:
    key = selftest._cache_file
    base = key(fresh("llama", check="off"), "full")
    assert base == key(fresh("llama", check="off"), "full")
    others = [
        key(fresh("llama", check="off"), "light"),
        key(fresh("llama", check="off", dtype="bfloat16"), "full"),
        key(fresh("qwen2", check="off"), "full"),
        key(mn.load(with_eager(), check="off"), "full"),
    ]
    assert len({base, *others}) == 5
    assert key(own(), "full") is None, "a layout's report is the user's own"


def with_eager() -> nn.Module:
    module = build("llama")
    module.set_attn_implementation("eager")
    return module


@pytest.mark.parametrize("name", ["llama", "t5", "falcon"])
def test_the_self_test_leaves_the_model_as_it_was(name: str) -> None:
    module = build(name)
    example = FAMILIES[name].inputs(module, 9)
    state = {k: v.clone() for k, v in module.state_dict().items()}
    flags = [p.requires_grad for p in module.parameters()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules()]
    model = mn.load(module, example=example)
    module.train()
    self_test(model, example=example)
    left = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in module.modules()]
    assert left == [hooks[0] + 1, *hooks[1:]], "only the whole model's own hook stays"
    assert all(m.training for m in module.modules()), "tested without dropout, then put back"
    assert [p.requires_grad for p in module.parameters()] == flags
    assert all(torch.equal(v, state[k]) for k, v in module.state_dict().items())
    module.eval()
    assert torch.equal(outputs(model, batch_of(name)), outputs(opened(name), batch_of(name)))
