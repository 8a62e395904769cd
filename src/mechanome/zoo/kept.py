"""Weights of small models in the user cache: trained once for all settings they depend on, read afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from mechanome.core import lock, read_tensors, write_tensors
from mechanome.engine.registry.cache import Cache

FORMAT = "zoo-weights"


def kept_weights(name: str, settings: Mapping[str, Any], make: Callable[[], Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Weights from the cache, or made and kept there.

    Args:
        name: of the model, part of the file's name.
        settings: everything the weights depend on, as plain data. The version of torch is added.
        make: trains the model and returns its state.

    Raises:
        CorruptFile: the kept file is damaged; delete it to train again.
    """
    whole = {**settings, "torch": torch.__version__}
    digest = sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]
    folder = Cache.current().root / "zoo"
    file = folder / f"{name}-{digest}.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder / f"{name}-{digest}.lock"):  # two processes would train the same thing
        if not file.exists():
            write_tensors(file, dict(make()), format=FORMAT, meta=whole)
        return read_tensors(file, format=FORMAT, finite=True).tensors
