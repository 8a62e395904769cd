"""Reading attention: towers, tokens, and inputs that are no text."""

from __future__ import annotations

import pytest
import torch
from head_models import IDS, opened

from families import FAMILIES
from mechanome.core import BadInput, NotServed
from mechanome.heads import contributions, read_attention


def test_towers_have_their_own_tokens_and_queries() -> None:
    model = opened("t5")
    inputs = {"input_ids": IDS, "decoder_input_ids": IDS.flip(1)[:, :5]}
    reader = read_attention(model, inputs, tower="encoder", queries=[-1])
    assert reader.queries == (7,) and not reader.causal
    assert reader.tokens == tuple(str(i) for i in IDS[0].tolist())
    writer = read_attention(model, inputs, tower="decoder", queries="last")
    assert writer.queries == (4,) and writer.causal
    assert writer.tokens == tuple(str(i) for i in IDS[0].flip(0)[:5].tolist())
    # Equally long sides must not be mistaken for each other.
    same = read_attention(model, {"input_ids": IDS, "decoder_input_ids": IDS.flip(1)}, tower="decoder")
    assert same.tokens[0] == str(int(IDS[0, -1]))
    assert same.layers[0].pattern[0].triu(1).abs().max() == 0
    with pytest.raises(NotServed, match="tower"):
        read_attention(model, inputs)


def test_images_have_positions_for_tokens() -> None:
    model = opened("vit")
    pixels = FAMILIES["vit"].inputs(model.module, 0)["pixel_values"][:1]
    found = contributions(model, {"pixel_values": pixels}, queries=[0, -1])
    assert found.tokens == tuple(str(i) for i in range(10)) and found.queries == (0, 9)
    assert torch.allclose(found.values.sum(-1)[~found.clipped], torch.ones(()), atol=5e-3)
    every = contributions(model, {"pixel_values": pixels})
    assert torch.allclose(found.values, every.values[:, :, [0, 9]], atol=1e-4)


def test_padding_is_refused_in_every_tower() -> None:
    mask = torch.tensor([[1] * 6 + [0] * 2])
    padded = {"input_ids": IDS, "attention_mask": mask, "decoder_input_ids": IDS}
    with pytest.raises(BadInput, match="padding"):
        read_attention(opened("t5"), padded, tower="decoder")


def test_half_precision_is_read_in_single_precision() -> None:
    import mechanome as mn
    from families import build

    model = mn.load(build("llama").bfloat16(), check="off")
    found = contributions(model, IDS)
    assert found.values.dtype == torch.float32
    assert torch.allclose(found.values.sum(-1)[~found.clipped], torch.ones(()), atol=1e-3)
    double = mn.load(build("llama").double(), check="off")
    assert contributions(double, IDS).values.dtype == torch.float64
