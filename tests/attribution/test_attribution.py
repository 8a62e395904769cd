"""Direct attribution sums to the logit difference; lenses end in the prediction; integrated gradients are complete."""

from __future__ import annotations

import pytest
import tiny
import torch

import mechanome as mn
from families import build
from mechanome.attribution import direct_logit_attribution, integrated_gradients, logit_lens
from mechanome.attribution.integrated_gradients import nodes
from mechanome.core import BadInput, NotServed
from mechanome.heads import token_importance

IDS = torch.tensor([[11, 45, 23, 67, 31, 52], [71, 24, 13, 44, 85, 36]])
ADDITIVE = ["gpt2", "llama", "qwen3", "gemma2", "gemma3", "gpt_neox", "gptj", "opt", "phi3", "mixtral", "gpt_oss"]
ADDITIVE += ["deepseek_v3", "mamba", "jamba", "falcon", "bloom"]


@pytest.fixture(scope="module", params=ADDITIVE)
def model(request: pytest.FixtureRequest) -> mn.Model:
    return mn.load(build(request.param))


def test_shares_sum_to_the_logit_difference(model: mn.Model) -> None:
    found = direct_logit_attribution(model, IDS, [11, 12], [21, 22])
    assert torch.allclose(found.shares.sum(1), found.total, atol=1e-5)
    assert found.shares.shape == (2, len(found.parts))
    assert len(set(found.parts)) == len(found.parts)
    logits = model.run(IDS).logits
    assert logits is not None
    if model.text_config.to_dict().get("final_logit_softcapping") is None:
        expected = logits[[0, 1], -1, [11, 12]] - logits[[0, 1], -1, [21, 22]]
        assert torch.allclose(found.total.float(), expected, atol=1e-5)
    else:
        assert "soft-cap" in " ".join(found.notes)


def test_a_head_s_share_is_what_leaves_when_its_direct_path_is_cut() -> None:
    """In the last block nothing reads a head but the head itself reaches the logits (with the norm held)."""
    model = mn.load(build("llama"))
    layer = model.n_layers - 1
    found = direct_logit_attribution(model, IDS, 11)
    run = model.run(IDS, capture=[f"head_out.{layer}", f"resid_post.{layer}", "ln_final"])
    gain = model.weight("g_ln_final").value
    x = run[f"resid_post.{layer}"][:, -1]
    scale = run["ln_final"][:, -1] / (x * gain)
    by_hand = (run[f"head_out.{layer}"][:, -1, 2] * scale * gain) @ model.weight("W_U").value[:, 11]
    share = found.shares[:, found.parts.index(f"z.{layer}.h2")]
    assert torch.allclose(share.float(), by_hand, atol=1e-5)


@pytest.mark.parametrize("name", ["bert", "esm", "modernbert"])
def test_what_is_not_a_sum_is_refused(name: str) -> None:
    with pytest.raises(NotServed, match="activation_patching"):
        direct_logit_attribution(mn.load(build(name)), IDS, 11, 21)


def test_the_last_row_of_a_lens_is_the_prediction(model: mn.Model) -> None:
    lens = logit_lens(model, IDS)
    logits = model.run(IDS, logits="last").logits
    assert logits is not None
    assert torch.allclose(lens.logits[-1], logits, atol=2e-5)
    assert lens.logits.shape[0] == model.n_layers + 1
    assert not torch.allclose(lens.logits[0], logits, atol=1e-2)
    top = int(logits[0].argmax())
    assert int(lens.rank(top)[-1, 0]) == 1
    assert torch.allclose(lens.of(top)[-1, 0], logits[0].log_softmax(-1)[top], atol=1e-5)


def test_a_lens_at_every_position_and_with_a_translation() -> None:
    model = mn.load(build("llama"))
    whole = logit_lens(model, IDS, "resid_post.2", pos=None)
    logits = model.run(IDS).logits
    assert logits is not None
    assert torch.allclose(whole.logits[0], logits, atol=1e-5)
    shifted = logit_lens(model, IDS, "resid_post.1", translate=lambda site, x: x + 1.0)
    plain = logit_lens(model, IDS, "resid_post.1")
    assert not torch.allclose(shifted.logits, plain.logits)
    with pytest.raises(BadInput, match="several positions"):
        whole.table()


def test_integrated_gradients_are_complete_and_exact_where_the_metric_is_linear() -> None:
    model = mn.load(build("llama"))
    metric = mn.LogitDiff(11, 21)
    found = integrated_gradients(model, metric, IDS, "resid_pre.1", IDS.flip(0), steps=64)
    assert float(found.error.max()) < 2e-2
    coarse = integrated_gradients(model, metric, IDS, "resid_pre.1", IDS.flip(0), steps=2)
    assert float(coarse.error.max()) > float(found.error.max())
    linear = integrated_gradients(model, metric, IDS, "ln_final", steps=1)
    assert float(linear.error.max()) < 1e-5
    u = model.weight("W_U").value
    by_hand = model.run(IDS, capture="ln_final")["ln_final"][:, -1] * (u[:, 11] - u[:, 21])
    assert torch.allclose(linear.shares[:, -1].float(), by_hand, atol=1e-5)
    assert torch.equal(linear.shares[:, :-1], torch.zeros_like(linear.shares[:, :-1]))


def test_integrated_gradients_from_another_prompt_ignore_what_does_not_differ() -> None:
    model = mn.load(build("gpt2"))
    other = IDS.clone()
    other[:, 2] = 59
    found = integrated_gradients(model, mn.LogitDiff(11, 21), IDS, "resid_pre.0", other, steps=32)
    by_position = found.by_position()
    assert float(by_position[:, [0, 1, 3, 4, 5]].abs().max()) == 0.0
    assert torch.allclose(by_position.sum(1), found.change, rtol=0.1)


@pytest.mark.parametrize(("rule", "exact_degree"), [("midpoint", 1), ("trapezoid", 1), ("left", 0), ("right", 0)])
def test_quadrature_is_exact_up_to_its_degree(rule: str, exact_degree: int) -> None:
    points, weights = nodes(rule, 5)
    for degree in range(3):
        error = abs(float((weights * points**degree).sum()) - 1 / (degree + 1))
        assert (error < 1e-12) == (degree <= exact_degree)


def test_unknown_quadrature_is_named() -> None:
    with pytest.raises(BadInput, match="midpoint"):
        nodes("midpont", 4)


def test_a_text_of_one_token_stands_for_its_id() -> None:
    model = tiny.lonely()
    cat, dog = model.single_token(" cat"), model.single_token(" dog")
    found = direct_logit_attribution(model, tiny.SENTENCE, " cat", [" dog"])
    assert torch.equal(found.shares, direct_logit_attribution(model, tiny.SENTENCE, cat, dog).shares)
    lens = logit_lens(model, tiny.SENTENCE)
    assert torch.equal(lens.of(" cat"), lens.of(cat)) and torch.equal(lens.rank(" dog"), lens.rank(dog))
    for ask in (lens.of, lambda text: direct_logit_attribution(model, tiny.SENTENCE, text)):
        with pytest.raises(BadInput, match="it is 2 tokens"):
            ask(" cat dog")
    by_text, by_id = (token_importance(model, tiny.SENTENCE, "gradient_x_input", answer=a) for a in (" cat", cat))
    assert torch.equal(by_text["gradient_x_input"].values, by_id["gradient_x_input"].values)
    assert by_text["gradient_x_input"].answer == cat
