"""Losses behind a site equal those of the plain model with a hook, whatever the site, and no block runs in vain."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

import mechanome as mn
from families import build
from mechanome.core import BadInput, NotServed, ShapeMismatch
from mechanome.dictionaries import TopK, Transcoder
from mechanome.dictionaries.metrics import Suffix, ce_recovered
from registry_models import need

ROWS = [[5, 9, 2, 7, 30, 11, 3], [8, 1, 4, 4, 19], [40, 6, 13, 2, 8, 21]]
SITES = ["resid_pre.0", "resid_post.0", "resid_post.1", "resid_post.2", "mlp_out.1", "attn_out.2"]


@cache
def opened(name: str) -> mn.Model:
    return mn.load(build(name), check="off")


def dictionary_of(model: mn.Model, site: str, width: int = 40, k: int = 4, seed: int = 0) -> Any:
    d = model.run(ROWS[:1], capture=[site])[site].shape[-1]
    torch.manual_seed(seed)
    return TopK(width, k=k).build(d, sites_in=(site,))


def plain_losses(model: mn.Model, site: str, row: list[int], replace: Any) -> tuple[Tensor, Tensor]:
    """Loss of each next token and the log-probabilities: the model's own forward, a hook, one unpadded row."""
    tap = model.tap(site)
    assert tap.side in ("input", "output")

    def changed(value: Any) -> Any:
        first = value if isinstance(value, Tensor) else value[0]
        new = replace(first)
        return new if isinstance(value, Tensor) else (new, *value[1:])

    if replace is None:
        handle = None
    elif tap.side == "output":
        handle = tap.module.register_forward_hook(lambda m, args, out: changed(out))
    else:
        handle = tap.module.register_forward_pre_hook(lambda m, args: changed(args))
    try:
        with torch.no_grad():
            logits = model.module(input_ids=torch.tensor([row])).logits[0]
    finally:
        if handle is not None:
            handle.remove()
    said = logits.double().log_softmax(-1)[:-1]
    return cross_entropy(logits[:-1].double(), torch.tensor(row[1:]), reduction="none"), said


@pytest.mark.parametrize("name", ["gpt2", "llama", "gemma2"])
@pytest.mark.parametrize(
    "site", ["resid_pre.0", "resid_post.0", "resid_post.1", "resid_post.2", "mlp_out.1", "attn_out.2"]
)
def test_equals_the_plain_model_with_a_hook(name: str, site: str) -> None:
    model = opened(name)
    dictionary = dictionary_of(model, site)
    found = ce_recovered(model, {"d": dictionary}, ROWS)
    values = torch.cat([model.run([row], capture=[site])[site][0] for row in ROWS])
    mean = values.mean(0)
    variants = {
        "d": lambda x: dictionary(x),
        "zero": torch.zeros_like,
        "mean": lambda x: mean.expand_as(x),
    }
    for i, row in enumerate(ROWS):
        clean, as_it_is = plain_losses(model, site, row, None)
        assert found.clean[i] == pytest.approx(float(clean.sum()), rel=1e-5)
        assert found.tokens[i] == len(row) - 1
        for variant, replace in variants.items():
            loss, said = plain_losses(model, site, row, replace)
            assert found.ce[variant][i] == pytest.approx(float(loss.sum()), rel=1e-4)
            divergence = kl_div(said, as_it_is, log_target=True, reduction="sum")
            assert found.kl[variant][i] == pytest.approx(float(divergence), rel=1e-3, abs=1e-5)
            assert found.top1[variant][i] == int((said.argmax(-1) == as_it_is.argmax(-1)).sum())


def test_numbers_are_ratios_of_sums_over_tokens() -> None:
    model = opened("llama")
    found = ce_recovered(model, {"d": dictionary_of(model, "resid_post.0")}, ROWS)
    values = {m.definition.name: m for m in found.measures("d")}
    clean, recon, zero, mean = (x.sum() for x in (found.clean, found.ce["d"], found.ce["zero"], found.ce["mean"]))
    assert values["ce_clean.v1"].value == pytest.approx(clean / 15)
    assert values["ce_recovered_zero.v1"].value == pytest.approx((zero - recon) / (zero - clean))
    assert values["ce_recovered_mean.v1"].value == pytest.approx((mean - recon) / (mean - clean))
    assert values["delta_loss.v1"].value == pytest.approx((recon - clean) / clean)
    assert values["kl.v1"].value == pytest.approx(found.kl["d"].sum() / 15)
    assert values["kl.v1"].n == 15
    assert all(m.lo <= m.value <= m.hi for m in values.values() if m.lo is not None)


def test_a_perfect_copy_recovers_all_and_zero_nothing() -> None:
    model = opened("llama")
    suffix = Suffix(model, ROWS, "resid_post.1")
    own = suffix.values()
    found = suffix.losses({"own": own, "zero": torch.zeros_like(own)})
    seen = ~suffix.ce.isnan()
    assert torch.allclose(found["own"].ce[seen], suffix.ce[seen], atol=1e-6)
    assert float(found["own"].kl[seen].abs().max()) < 1e-6
    assert bool((found["own"].top1[seen] == 1).all())
    assert float(found["zero"].kl[seen].mean()) > 0.01


def test_blocks_before_the_site_run_once_for_all_variants() -> None:
    model = opened("llama")
    suffix = Suffix(model, ROWS, "resid_post.1")
    assert suffix.skipped == 2
    calls = [0] * model.n_layers
    handles = [
        block.part.module.register_forward_hook(lambda m, a, o, i=i: calls.__setitem__(i, calls[i] + 1))
        for i, block in enumerate(model.architecture.tower(None).blocks)
    ]
    inner = [0] * model.n_layers
    attend = [
        block.roles["attention"].module.register_forward_hook(lambda m, a, o, i=i: inner.__setitem__(i, inner[i] + 1))
        for i, block in enumerate(model.architecture.tower(None).blocks)
    ]
    suffix.losses({str(i): torch.zeros(suffix.values().shape[-1]) + i for i in range(4)})
    for handle in handles + attend:
        handle.remove()
    assert inner == [0, 0, 1], "one pass, through the last block only"


def test_pieces_and_single_passes_agree() -> None:
    model = opened("llama")
    dictionary = dictionary_of(model, "mlp_out.1")
    width = max(map(len, ROWS))
    one_row = 4 * 2 * width * model.weight("W_U").value.shape[1] * 4
    whole, cut = (ce_recovered(model, {"d": dictionary}, ROWS, budget=b) for b in ("1GB", one_row))
    for name in whole.ce:
        assert np.allclose(whole.ce[name], cut.ce[name], rtol=1e-5)
        assert np.allclose(whole.kl[name], cut.kl[name], rtol=1e-3, atol=1e-6)


def test_several_dictionaries_in_one_pass_equal_each_alone() -> None:
    model = opened("gpt2")
    many = {str(seed): dictionary_of(model, "resid_post.1", seed=seed) for seed in range(3)}
    together = ce_recovered(model, many, ROWS)
    assert together.names == ("0", "1", "2")
    for name, dictionary in many.items():
        alone = ce_recovered(model, {name: dictionary}, ROWS)
        assert np.allclose(alone.ce[name], together.ce[name], rtol=1e-5)
    assert len(together.table()) == 3


def test_the_first_position_can_be_kept() -> None:
    model = opened("llama")
    dictionary = dictionary_of(model, "resid_post.0")
    kept = ce_recovered(model, dictionary, ROWS, first="keep")

    def but_first(x: Tensor) -> Tensor:
        return torch.cat([x[:, :1], dictionary(x)[:, 1:]], dim=1)

    for i, row in enumerate(ROWS):
        loss, _ = plain_losses(model, "resid_post.0", row, but_first)
        assert kept.ce["dictionary"][i] == pytest.approx(float(loss.sum()), rel=1e-4)
    assert not np.allclose(kept.ce["dictionary"], ce_recovered(model, dictionary, ROWS).ce["dictionary"])


def test_a_transcoder_reads_one_site_and_stands_in_at_another() -> None:
    model = opened("llama")
    torch.manual_seed(0)
    d = model.run(ROWS[:1], capture=["mlp_out.1"])["mlp_out.1"].shape[-1]
    transcoder = Transcoder(TopK(40, k=4)).build(d, d, sites_in=("ln2.1",), sites_out=("mlp_out.1",))
    found = ce_recovered(model, transcoder, ROWS)
    for i, row in enumerate(ROWS):
        read = model.run([row], capture=["ln2.1"])["ln2.1"]
        loss, _ = plain_losses(model, "mlp_out.1", row, lambda x, read=read: transcoder(read))
        assert found.ce["dictionary"][i] == pytest.approx(float(loss.sum()), rel=1e-4)


def test_refusals() -> None:
    model = opened("llama")
    good = dictionary_of(model, "resid_post.0")
    with pytest.raises(BadInput, match="there is no such choice"):
        ce_recovered(model, good, ROWS, first="drop")
    with pytest.raises(BadInput, match="baseline"):
        ce_recovered(model, {"zero": good}, ROWS)
    with pytest.raises(BadInput, match="different sites"):
        ce_recovered(model, {"a": good, "b": dictionary_of(model, "resid_post.1")}, ROWS)
    with pytest.raises(BadInput, match="nothing to predict"):
        ce_recovered(model, good, [[5], [6]])
    with pytest.raises(NotServed, match="no vector per token"):
        Suffix(model, ROWS, "z.1")
    with pytest.raises(ShapeMismatch, match="variant 'x'"):
        Suffix(model, ROWS, "resid_post.0").losses({"x": torch.zeros(3)})
    with pytest.raises(NotServed, match="see later ones"):
        Suffix(opened("bert"), ROWS, "resid_post.0")


@pytest.mark.real_model
def test_smollm2_equals_the_hook() -> None:
    need("smollm2-135m-instruct")
    model = mn.load("smollm2-135m-instruct")
    site, texts = "resid_post.15", ["The capital of France is Paris, and", "One two three four five six seven eight"]
    dictionary = dictionary_of(model, site, width=1152, k=64)
    found = ce_recovered(model, dictionary, texts)
    assert found.skipped == 16
    batch = model.encode(texts)
    for i, (start, n) in enumerate(zip(batch.frame.starts, batch.frame.lengths)):
        row = batch.input_ids[i, start : start + n].tolist()
        for variant, replace in (("dictionary", dictionary), ("zero", torch.zeros_like), ("clean", None)):
            loss, _ = plain_losses(model, site, row, replace)
            mine = found.clean if variant == "clean" else found.ce[variant]
            assert mine[i] == pytest.approx(float(loss.sum()), rel=1e-4)
