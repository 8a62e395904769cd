"""What was asked for and could not happen is refused, whoever changed the model meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import mechanome as mn
from families import build
from mechanome.core import BadInput, NotServed
from mechanome.engine import selftest

IDS = torch.tensor([[5, 6, 7, 8, 9]])
METRIC = mn.LogitDiff(30, 31)


@pytest.fixture
def model() -> mn.Model:
    return mn.load(build("llama"), check="off")


def test_attention_switched_after_loading_is_noticed_by_every_call(model: mn.Model) -> None:
    model.module.set_attn_implementation("sdpa")
    for call in (
        lambda: model.run(IDS, edits=mn.AttentionKnockout([0, 1], 0, -1)),
        lambda: model.run(IDS, edits=[mn.Ablate("q.1")]),
        lambda: model.run(IDS, capture="pattern.1"),
        lambda: model.generate(IDS, max_new_tokens=2, edits=[mn.Ablate("v.0")]),
        lambda: model.logprob(IDS, [[30]], edits=[mn.Ablate("v.0")]),
        lambda: model.grad(METRIC, IDS, "q.0"),
        lambda: model.grad(METRIC, IDS, "resid_pre.0", rules=["detach_pattern"]),
        lambda: mn.activation_patching(model, IDS, IDS.flip(1), "q", METRIC, quiet=True),
    ):
        with pytest.raises(NotServed, match="never came there"):
            call()
    again = mn.load(model.module, check="off")
    changed = again.run(IDS, edits=[mn.Ablate("q.1")]).logits
    assert not torch.equal(changed, again.run(IDS).logits)


def test_an_edit_of_a_module_that_left_the_model_is_refused(model: mn.Model) -> None:
    model.module.model.layers[1].mlp = nn.Identity()
    with pytest.raises(NotServed, match=r"an edit of mlp_act\.1"):
        model.run(IDS, edits=[mn.Ablate("mlp_act.1")])
    with pytest.raises(NotServed, match=r"path:model\.layers"):
        model.run(IDS, edits=[mn.Ablate("path:model.layers")])


def test_a_prefix_knows_its_weights_and_its_model(model: mn.Model) -> None:
    prefix = model.prefix([[5, 6]])
    model.run(IDS, prefix=prefix)
    twin = mn.load(build("llama"), check="off")
    with pytest.raises(NotServed, match="other weights"):
        twin.run(IDS, prefix=prefix)
    with torch.no_grad():
        model.module.model.layers[0].self_attn.v_proj.weight.mul_(0.3)
    with pytest.raises(NotServed, match="other weights"):
        model.run(IDS, prefix=prefix)


def test_a_module_in_train_mode_is_opened_in_eval_mode() -> None:
    module = build("gpt2")
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.5
    model = mn.load(module.train())
    assert not model.module.training
    assert torch.equal(model.run(IDS).logits, model.run(IDS).logits)


def test_inference_mode_is_served_and_gradients_in_it_are_refused(model: mn.Model) -> None:
    plain = model.run(IDS, capture="resid_post.1")["resid_post.1"]
    with torch.inference_mode():
        assert torch.equal(model.run(IDS, capture="resid_post.1")["resid_post.1"], plain)
        falcon = mn.load(build("falcon"), check="off")
        inside = falcon.run(IDS, capture="mlp_out.0")["mlp_out.0"]
        with pytest.raises(BadInput, match="inference_mode"):
            model.grad(METRIC, IDS, "z.0")
    assert torch.allclose(inside, falcon.run(IDS, capture="mlp_out.0")["mlp_out.0"])


@pytest.mark.parametrize("name", ["t5", "whisper", "clip", "vit", "wav2vec2"])
def test_token_ids_alone_are_refused_where_the_model_takes_more(name: str) -> None:
    with pytest.raises(BadInput, match="its forward takes"):
        mn.load(build(name), check="off").run([[5, 6, 7]])


@pytest.mark.parametrize("choice", ["first", "LAST", None, 2])
def test_logits_is_one_of_three(model: mn.Model, choice: object) -> None:
    with pytest.raises(BadInput, match="'last'"):
        model.run(IDS, logits=choice)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["banana", "xpu:7"])
def test_a_device_that_is_not_there_is_named(device: str) -> None:
    with pytest.raises(BadInput, match=device):
        mn.load(build("llama"), device=device)


def test_a_model_without_logits_says_so() -> None:
    model = mn.load(build("bert").bert)
    assert model.run(IDS, capture="z.0").logits is None
    assert "logits" in str(model.why_not("logits"))
    with pytest.raises(NotServed):
        model.grad(METRIC, IDS, "z.0")


def test_a_cache_that_cannot_be_used_does_not_stop_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("MECHANOME_CACHE", str(file))
    assert mn.load(build("llama")).report is not None
    with pytest.raises(BadInput, match="MECHANOME_CACHE"):
        mn.load("minilm-l6")


def test_a_damaged_self_test_result_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "report.json"
    monkeypatch.setattr(selftest, "_cache_file", lambda model, check: kept)
    assert passes() > 0
    assert passes() == 0
    kept.write_text('{"refused": 1}')
    assert passes() > 0


def passes() -> int:
    """Forward passes that the self-test of a fresh model takes."""
    report = mn.load(build("llama")).report
    assert report is not None
    return report.passes
