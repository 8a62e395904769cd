"""Tokens that many variants of a prompt share are run once, where the model can resume from them."""

from __future__ import annotations

from mechanome.engine import Batch, Model, Prefix
from mechanome.engine.resume import can_prefix


def shared_prefix(model: Model, prompt: Batch, length: int) -> Prefix | None:
    """The first `length` tokens of a prompt, encoded; None for none, or for a model that cannot resume."""
    if length < 1 or can_prefix(model) is not None:
        return None
    return model.prefix(model.encode(prompt.input_ids[:, :length], bos="none"))
