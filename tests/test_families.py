"""The tiny models are hard: features, positions, padding, heads and every parameter show in their output."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from families import FAMILIES, build, logits
from family_inputs import ROWS, real_positions

N_TOKENS = 9
WINDOWED = ["mistral", "qwen2", "gemma2", "gemma3", "phi3", "mixtral", "gpt_oss", "modernbert", "gpt_neo"]
GROUPED = ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "mixtral", "qwen3_moe", "gpt_oss", "jamba"]
PATTERNS = [name for name, family in FAMILIES.items() if family.has_attention and family.kind != "custom"]
POSITIONED = [name for name, family in FAMILIES.items() if family.kind in ("causal", "encoder") and name != "bloom"]
# Parameters that by construction cannot move the output: key biases add the same to every score of a row (unless they
# are rotated or normalized on the way), and these parts are trained or used elsewhere only.
DEAD = {
    "bert": r"\.key\.bias",
    "distilbert": r"k_lin\.bias",
    "esm": r"contact_head",
    "opt": r"k_proj\.bias",
    "vit": r"k_proj\.bias",
    "clip": r"k_proj\.bias",
    "wav2vec2": r"k_proj\.bias|masked_spec_embed",
    "own_transformer": r"attn\.k\.bias",
}


def forward(model: nn.Module, inputs: dict[str, Tensor], **more: Any) -> Tensor:
    """What the model says: logits, or for clip the states of its text tower, which its pooled logits mostly hide."""
    with torch.no_grad():
        output = model(**inputs, **more)
    return logits(output) if isinstance(output, Tensor) or "logits" in output else output.text_model_output[0]


def change(a: Tensor, b: Tensor, where: Tensor | None = None) -> float:
    """Largest difference relative to the largest value, over the chosen positions."""
    a, b = (a, b) if where is None else (a[where], b[where])
    return float((a - b).abs().max() / a.abs().max())


def inputs_of(name: str, model: nn.Module) -> dict[str, Tensor]:
    return FAMILIES[name].inputs(model, N_TOKENS)


@pytest.mark.parametrize("name", FAMILIES)
def test_builds_runs_and_distinguishes_rows_and_positions(name: str) -> None:
    model = build(name)
    inputs = inputs_of(name, model)
    out = forward(model, inputs)
    assert not model.training
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert out.isfinite().all()
    assert out.shape[0] == ROWS
    assert out.std(dim=0).mean() > 0.1 * out.std(), "rows say the same"
    if out.dim() == 3:
        assert out.std(dim=1).mean() > 0.1 * out.std(), "positions say the same"


@pytest.mark.parametrize("name", FAMILIES)
def test_copies_are_equal_and_independent(name: str) -> None:
    first, second = build(name), build(name)
    inputs = inputs_of(name, first)
    before = forward(second, inputs)
    assert torch.equal(forward(first, inputs), before)
    with torch.no_grad():
        for p in first.parameters():
            p.zero_()
    assert torch.equal(forward(second, inputs), before)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_parameter_matters(name: str) -> None:
    model = build(name).requires_grad_()
    torch.manual_seed(0)
    output = model(**inputs_of(name, model))
    (logits(output) * torch.randn_like(logits(output))).sum().backward()
    still = [
        key
        for key, p in model.named_parameters()
        if not re.search(DEAD.get(name, "^$"), key) and (p.grad is None or p.grad.abs().max() < 1e-4)
    ]
    assert still == []


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_is_left_at_its_neutral_value(name: str) -> None:
    for key, p in build(name).named_parameters():
        assert p.numel() == 1 or p.std() > 0.02, key


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.padded])
def test_the_mask_matters(name: str) -> None:
    model = build(name)
    inputs = inputs_of(name, model)
    real = real_positions(inputs)
    assert real is not None
    assert real.sum(1).unique().numel() == ROWS, "rows of unequal length"
    unmasked = {key: value for key, value in inputs.items() if not key.endswith("attention_mask")}
    # Padding on the right of a causal model is invisible to real positions; there the padded ones must show it.
    blind = FAMILIES[name].pad_side == "right" and FAMILIES[name].kind in ("causal", "ssm", "vision", "encoder_decoder")
    where = None if blind else real
    assert change(forward(model, inputs), forward(model, unmasked), where) > 0.05


@pytest.mark.parametrize("name", POSITIONED)
def test_positions_matter(name: str) -> None:
    model = build(name)
    inputs = inputs_of(name, model)
    count = torch.arange(N_TOKENS).expand(ROWS, -1)
    right, wrong = (forward(model, inputs, position_ids=ids) for ids in (count, count + count // 4))
    assert change(right, wrong, real_positions(inputs)) > 0.05


def patterns(model: Any, inputs: dict[str, Tensor]) -> list[Tensor]:
    """All attention patterns of a forward, each ``[row head query key]``."""
    model.set_attn_implementation("eager")
    with torch.no_grad():
        output = model(**inputs, output_attentions=True)
    parts = [output, *(output[key] for key in ("text_model_output", "vision_model_output") if key in output)]
    found = [part[key] for part in parts for key in part if key.endswith("attentions")]
    return [pattern for group in found for pattern in group]


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_are_peaked_and_heads_differ(name: str) -> None:
    model = build(name)
    for pattern in patterns(model, inputs_of(name, model)):
        choice = (pattern > 0).sum(-1) >= 3
        assert 0.33 < pattern.amax(-1)[choice].mean() < 0.97  # uniform rows of three or more keys would give less
        apart = torch.cdist(pattern.transpose(0, 1).flatten(1), pattern.transpose(0, 1).flatten(1), p=1)
        apart = apart / pattern[:, 0].sum() + torch.eye(len(apart))
        assert apart.min() > 0.15, "two heads attend alike"


def widen(model: Any) -> None:
    model.config.sliding_window = 1000
    for module in model.modules():
        if getattr(module, "attention_type", None) == "local" and hasattr(module, "bias"):
            module.bias = torch.ones_like(module.bias).tril()


def uncap_scores(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "attn_logit_softcapping"):
            module.attn_logit_softcapping = None


def uncap_logits(model: Any) -> None:
    model.config.final_logit_softcapping = None


def drop_sinks(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "sinks"):
            module.sinks.data.fill_(-1e9)


def common_scale(model: Any) -> None:
    for module in model.modules():
        if hasattr(module, "scaling"):
            module.scaling = module.head_dim**-0.5


FEATURES: list[tuple[str, Callable[[Any], None]]] = [
    *((name, widen) for name in WINDOWED),
    ("gemma2", uncap_scores),
    ("gemma2", uncap_logits),
    ("gemma2", common_scale),
    ("gemma3", common_scale),
    ("gpt_oss", drop_sinks),
]


@pytest.mark.parametrize(("name", "disable"), FEATURES, ids=lambda value: getattr(value, "__name__", value))
def test_features_bite(name: str, disable: Callable[[Any], None]) -> None:
    model, plain = build(name), build(name)
    inputs = inputs_of(name, model)
    disable(plain)
    assert change(forward(model, inputs), forward(plain, inputs), real_positions(inputs)) > 0.02


@pytest.mark.parametrize("name", GROUPED)
def test_heads_share_keys_and_values(name: str) -> None:
    config: Any = build(name).config
    assert config.num_key_value_heads < config.num_attention_heads


def test_head_widths_do_not_follow_from_the_model_width() -> None:
    configs: list[Any] = [build(name).config for name in GROUPED]
    odd = [c for c in configs if getattr(c, "head_dim", None) and c.head_dim * c.num_attention_heads != c.hidden_size]
    assert len(odd) >= 5
