"""In which precision a model computes while its activations are read.

bfloat16 runs through autocast: matrix products are in bfloat16, the residual stream and norms stay as they are, and the
model itself is not touched. On a CPU with bfloat16 instructions that is more than twice as fast; float16 never is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from mechanome.engine.asked import one_of
from mechanome.engine.opened import Opened

COMPUTE = ("auto", "bf16", "model")
"""bf16: autocast. model: as the model was loaded. auto: bf16 for a float32 model where the processor is fast at it."""


def chosen(compute: str, model: Opened) -> str:
    """What "auto" means for this model on this machine: "bf16" or "model".

    Raises:
        BadInput: no such choice.
    """
    one_of("compute", compute, COMPUTE)
    if compute != "auto":
        return compute
    return "bf16" if model.dtype == torch.float32 and _fast(model.device) else "model"


def _fast(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported()
    flags = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return device.type == "cpu" and any(getattr(torch.cpu, flag, bool)() for flag in flags)


def precision(compute: str, model: Opened) -> AbstractContextManager[object]:
    """The context in which a forward pass computes so."""
    return torch.autocast(model.device.type, torch.bfloat16) if compute == "bf16" else nullcontext()
