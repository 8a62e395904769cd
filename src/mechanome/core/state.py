"""Training state as data: any nest of tensors and plain values, split into named tensors and a JSON skeleton.

This is what makes checkpoints possible without pickle. :func:`flatten` replaces every tensor by a reference and every
value JSON cannot hold (tuples, infinities, dictionaries with number keys) by a marked form; :func:`unflatten` is its
exact inverse.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from mechanome.core.errors import BadInput, CorruptFile


def flatten(tree: Any, place: str = "state") -> tuple[dict[str, torch.Tensor], Any]:
    """Split a nest of dicts, lists, tuples, tensors, numpy arrays and plain values.

    Args:
        tree: such as the ``state_dict()`` of a model, an optimizer or a schedule.
        place: the name under which errors and tensors speak of it.

    Returns:
        tensors by name (``state/model/0.weight``), and the skeleton as JSON. Numpy arrays come back as arrays.

    Raises:
        BadInput: a value with no such form (a function, an object); the message names its place.
    """
    tensors: dict[str, torch.Tensor] = {}

    def store(tensor: torch.Tensor, place: str) -> str:
        while place in tensors:
            place += "'"
        tensors[place] = tensor
        return place

    def visit(value: Any, place: str) -> Any:
        if isinstance(value, torch.Tensor):
            return {"$tensor": store(value, place)}
        if isinstance(value, np.ndarray):
            return {"$array": store(torch.from_numpy(value), place)}
        if isinstance(value, np.generic):
            return visit(value.item(), place)
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else {"$float": repr(value)}
        if isinstance(value, list):
            return [visit(item, f"{place}/{i}") for i, item in enumerate(value)]
        if isinstance(value, tuple):
            return {"$tuple": [visit(item, f"{place}/{i}") for i, item in enumerate(value)]}
        if isinstance(value, Mapping):
            items = [(key, visit(item, f"{place}/{key}")) for key, item in value.items()]
            if all(isinstance(key, str) and not key.startswith("$") for key, _ in items):
                return dict(items)
            return {"$items": [[visit(key, place), item] for key, item in items]}
        raise BadInput(
            place, f"a {type(value).__name__} cannot be kept in a checkpoint", "leave it out of state_dict()"
        )

    return tensors, visit(tree, place)


def unflatten(tensors: Mapping[str, torch.Tensor], skeleton: Any) -> Any:
    """The nest that :func:`flatten` split.

    Raises:
        CorruptFile: the skeleton names a tensor that is not there, or carries an unknown mark.
    """
    if isinstance(skeleton, list):
        return [unflatten(tensors, item) for item in skeleton]
    if not isinstance(skeleton, dict):
        return skeleton
    mark = next(iter(skeleton), "")
    if not mark.startswith("$"):
        return {key: unflatten(tensors, item) for key, item in skeleton.items()}
    if mark not in _MARKS:
        raise CorruptFile("checkpoint", f"unknown mark {mark!r}", "use the mechanome version that wrote it")
    try:
        return _MARKS[mark](tensors, skeleton[mark])
    except KeyError as error:
        raise CorruptFile("checkpoint", f"tensor {error} is missing", "use an older checkpoint") from error


_MARKS: dict[str, Any] = {
    "$tensor": lambda tensors, name: tensors[name],
    "$array": lambda tensors, name: tensors[name].numpy(),
    "$float": lambda tensors, text: float(text),
    "$tuple": lambda tensors, items: tuple(unflatten(tensors, item) for item in items),
    "$items": lambda tensors, items: {unflatten(tensors, key): unflatten(tensors, item) for key, item in items},
}


def rng_state() -> dict[str, Any]:
    """The state of every global random generator: torch (each device), numpy, Python."""
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": np.random.get_state(legacy=False),
        "python": random.getstate(),
    }


def set_rng_state(state: Mapping[str, Any]) -> None:
    """Put every global random generator back to a state of :func:`rng_state`."""
    torch.set_rng_state(state["torch"].cpu())
    if torch.cuda.is_available() and state["cuda"]:
        torch.cuda.set_rng_state_all([device.cpu() for device in state["cuda"]])
    np.random.set_state(state["numpy"])
    random.setstate(state["python"])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed every global generator for a block, and put the caller's generators back afterwards.

    Args:
        seed: 0 to 2**32 - 1.
    """
    before = rng_state()
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)
    try:
        yield
    finally:
        set_rng_state(before)
