"""A tiny input for any model, made from its config: what the self-test runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from mechanome.engine.inputs import Batch, encode

if TYPE_CHECKING:
    from mechanome.engine.model import Model


def example_batch(model: Model) -> Batch | None:
    """A tiny input made from the config: two rows of tokens, of different length, or one image or sound."""
    config = model.config
    if config is None:
        return None
    arguments: dict[str, Any] = {}
    generator = torch.Generator().manual_seed(0)
    if model.accepts("pixel_values"):
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", 224)
        height, width = size if isinstance(size, (tuple, list)) else (size, size)
        shape = (2, getattr(vision, "num_channels", 3), height, width)
        arguments["pixel_values"] = torch.randn(shape, generator=generator)
    if model.accepts("input_features"):
        frames = 2 * getattr(config, "max_source_positions", 1500)
        arguments["input_features"] = torch.randn(2, config.num_mel_bins, frames, generator=generator)
    if model.accepts("input_values") and not model.accepts("input_ids"):
        arguments["input_values"] = torch.randn(2, 3200, generator=generator)
    arguments = {k: v.to(model.device, model.dtype) for k, v in arguments.items()}
    vocab = getattr(getattr(config, "text_config", None) or config, "vocab_size", None)
    if vocab and (model.accepts("input_ids") or model.accepts("decoder_input_ids")):
        arguments |= _example_tokens(model, config, vocab, bool(arguments), generator)
    return model.encode(arguments) if arguments else None


def _example_tokens(model: Model, config: Any, vocab: int, other: bool, generator: torch.Generator) -> dict[str, Any]:
    special = {getattr(config, n, None) for n in ("pad_token_id", "eos_token_id", "bos_token_id", "mask_token_id")}
    usable = [t for t in range(min(vocab, 2000)) if t not in special][-200:]
    pick = torch.randint(len(usable), (2, 6), generator=generator)
    rows = [[usable[i] for i in row] for row in pick.tolist()]
    if getattr(config, "is_encoder_decoder", False):
        ids = torch.tensor(rows, device=model.device)
        return {"decoder_input_ids": ids[:, :4]} | ({} if other else {"input_ids": ids})
    end = getattr(getattr(config, "text_config", None) or config, "eos_token_id", None)
    if other and isinstance(end, int):  # CLIP reads the position of the end token
        rows = [[*row[:-1], end] for row in rows]
        return {"input_ids": torch.tensor(rows, device=model.device)}
    rows[1] = rows[1][:4]
    return dict(encode(rows, None, device=model.device).arguments)
