"""The batches that the tiny models read: three rows of unequal length, seeded, padded where a family knows padding."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from custom_modules import VOCAB

PAD, BOS, EOS, MASK = range(4)  # never drawn as ordinary tokens
ROWS = 3
FRAMES, FRAME = 12, 8  # waveforms: frames in the input, samples in a frame
Inputs = Callable[[nn.Module, int], dict[str, Tensor]]
Side = Literal["left", "right"]


def real_positions(inputs: Mapping[str, Tensor]) -> Tensor | None:
    """Which positions of the logits hold content, ``[row pos]``; ``None`` where the inputs hold no padding."""
    mask = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
    if mask is None:
        return None
    return mask[:, FRAME - 1 :: FRAME].bool() if "input_values" in inputs else mask.bool()


def _ids(name: str, n_tokens: int) -> Tensor:
    """Seeded ordinary token ids ``[row pos]``."""
    gen = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randint(MASK + 1, VOCAB, (ROWS, n_tokens), generator=gen)


def _pad(ids: Tensor, side: Side, pads: tuple[int, ...] = (0, 2, 3)) -> tuple[Tensor, Tensor]:
    """Puts ``pads[row]`` padding ids on one side of each row; returns ids and mask ``[row pos]``."""
    place = torch.arange(ids.shape[1]).expand_as(ids)
    mask = (place if side == "left" else place.flip(1)) >= torch.tensor(pads)[:, None]
    return torch.where(mask, ids, PAD), mask.long()


def text(name: str, side: Side) -> Inputs:
    def inputs(model: nn.Module, n_tokens: int) -> dict[str, Tensor]:
        ids, mask = _pad(_ids(name, n_tokens), side)
        return {"input_ids": ids, "attention_mask": mask}

    return inputs


def _target(n_tokens: int) -> dict[str, Tensor]:
    ids, mask = _pad(_ids("target", n_tokens), "right", (0, 1, 2))
    return {"decoder_input_ids": ids, "decoder_attention_mask": mask}


def seq2seq(model: nn.Module, n_tokens: int) -> dict[str, Tensor]:
    return text("source", "right")(model, n_tokens) | _target(n_tokens - 2)


def speech_to_text(model: nn.Module, n_tokens: int) -> dict[str, Tensor]:
    config: Any = model.config
    shape = (ROWS, config.num_mel_bins, 2 * config.max_source_positions)
    return {"input_features": torch.randn(shape, generator=torch.Generator().manual_seed(1))} | _target(n_tokens)


def pixels(model: nn.Module, n_tokens: int) -> dict[str, Tensor]:
    gen = torch.Generator().manual_seed(2)
    patches = torch.randn(ROWS, 3, 3, 3, generator=gen).repeat_interleave(4, 2).repeat_interleave(4, 3)  # nine colors
    return {"pixel_values": patches + 0.5 * torch.randn(patches.shape, generator=gen)}


def image_text(model: nn.Module, n_tokens: int) -> dict[str, Tensor]:
    inputs = text("caption", "right")(model, n_tokens)
    inputs["input_ids"][torch.arange(ROWS), inputs["attention_mask"].sum(1) - 1] = EOS  # the pooled position
    return inputs | pixels(model, n_tokens)


def waveform(model: nn.Module, n_tokens: int) -> dict[str, Tensor]:
    wave = 4 * torch.randn(ROWS, FRAMES * FRAME, generator=torch.Generator().manual_seed(3))
    _, mask = _pad(torch.ones_like(wave).long(), "right", (0, 2 * FRAME, 3 * FRAME))
    return {"input_values": wave * mask, "attention_mask": mask}


def tokens(model: nn.Module, n_tokens: int) -> dict[str, Tensor]:
    return {"tokens": _ids("tokens", n_tokens)}
