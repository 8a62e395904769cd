"""What `fit` is asked for, checked before anything is read: what is fitted, on what, and for how long."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from mechanome.activations import ActivationStream
from mechanome.core.errors import BadInput
from mechanome.dictionaries.architectures import Recipe
from mechanome.engine.asked import count, seed_of


def pairs(recipes: Recipe | Sequence[Recipe], seed: int | Sequence[int]) -> list[tuple[Recipe, int]]:
    """Every recipe with every seed.

    Raises:
        BadInput: no recipe or no seed, or something that is none.
    """
    seeds = [seed_of(s) for s in _several(seed)]
    every = list(_several(recipes))
    if not every or not seeds:
        raise BadInput("fit", "there is no recipe, or no seed", "give at least one of each")
    if wrong := [each for each in every if not isinstance(each, Recipe)]:
        raise BadInput(f"fit of {wrong[0]!r}", "it is no recipe", "give one such as TopK(4096, k=32)")
    return [(recipe, s) for recipe in every for s in seeds]


def check_stream(stream: Any) -> None:
    """Refuse what is no stream of activations.

    Raises:
        BadInput: rows without a position, or anything else.
    """
    if not isinstance(stream, ActivationStream):
        kind = type(stream).__name__
        raise BadInput("the stream", f"a {kind} is none", "wrap rows as ArrayActivations(x), or give store.stream()")


def length(stream: ActivationStream, size: int, steps: int | None, tokens: int | None) -> int:
    """How many steps a fit has, with batches of a size.

    Raises:
        BadInput: both or neither are given where one is needed, no step, or more than the stream has.
    """
    if steps is not None and tokens is not None:
        raise BadInput("fit", f"both steps={steps} and tokens={tokens}", "give one of them")
    epochs = getattr(stream, "epochs", None)
    epoch = None if stream.rows is None else math.ceil(stream.rows / size)
    if steps is None and tokens is None:
        if epoch is None:
            raise BadInput("fit", "nothing says how long, and the stream does not know", "give steps or tokens")
        return epoch * (epochs or 1)
    wanted = count("steps", steps) if tokens is None else math.ceil(count("tokens", tokens) / size)
    if epoch is not None and epochs is not None and wanted > epoch * epochs:
        # Rates and sparsity go by the share of the steps that is done, so a fit that stops early is another fit.
        why = f"the stream ends after {epoch * epochs}"
        raise BadInput(f"a fit of {wanted} steps", why, "ask for at most that, or give a stream of more epochs")
    return wanted


def _several(value: Any) -> Iterable[Any]:
    return value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
