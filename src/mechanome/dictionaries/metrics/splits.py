"""Parts of the rows that a metric is also computed on: roles, special tokens, the first position.

The first token of many models carries an activation far larger than all others, and special tokens are few; a mean over
all rows hides both. Splits overlap, and each is an own data set: its FVU is about its own mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mechanome.core import BadInput, UnknownName, nearest

if TYPE_CHECKING:
    from mechanome.activations import Activations

Split = Callable[["Activations"], Tensor]
"""From labelled rows to those that belong to the split, `[row]` of booleans."""

By = str | Mapping[str, Split] | None

EVERY = "all"
"""The split of all rows, which is always there."""


def splits(by: By, special: Iterable[int] = ()) -> dict[str, Split]:
    """The splits that a metric is computed on, by name; all rows first.

    Args:
        by: None for all rows only; "role" for who a token belongs to (label "role"); "token class" for special tokens,
            ordinary ones and the first position, and special tokens beside the first position; or own splits by name.
        special: ids of special tokens (`tokenizer.all_special_ids`), beside what a chat template wrote.

    Raises:
        UnknownName: no such choice.
    """
    found: dict[str, Split] = {EVERY: lambda rows: torch.ones(rows.rows, dtype=torch.bool)}
    if by is None:
        return found
    if isinstance(by, Mapping):
        return found | dict(by)
    if by not in BY:
        raise UnknownName(f"by={by!r}", "there is no such split", nearest(str(by), BY))
    return found | BY[by](tuple(special))


def chosen(rows: Activations, name: str, split: Split) -> Tensor:
    """Which rows belong to a split.

    Raises:
        BadInput: a split that does not give one boolean a row.
    """
    mask = split(rows)
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool or mask.shape != (rows.rows,):
        raise BadInput(f"split '{name}'", "it does not give one boolean a row", "return a tensor [row] of booleans")
    return mask.cpu()


def _label(rows: Activations, name: str) -> Tensor:
    if name not in rows.labels:
        what, fix = f"splits by {name}", "harvest them from text or chats, which know it"
        raise BadInput(what, f"these activations have the labels {', '.join(rows.labels) or 'none'}", fix)
    return rows.labels[name]


def _roles(_: tuple[int, ...]) -> dict[str, Split]:
    from mechanome.activations.activations import ROLES

    def of(index: int) -> Split:
        return lambda rows: _label(rows, "role") == index

    return {name: of(i) for i, name in enumerate(ROLES)}


def _classes(special: tuple[int, ...]) -> dict[str, Split]:
    from mechanome.activations.activations import ROLES

    ids = torch.tensor(special, dtype=torch.int64)

    def is_special(rows: Activations) -> Tensor:
        token = torch.isin(_label(rows, "token").long(), ids.to(_label(rows, "token").device))
        role = rows.labels.get("role")
        if role is None and not special:
            why = "these rows have no label role, and no ids of special tokens are known"
            raise BadInput("splits by token class", why, "give the tokenizer or the model")
        return token if role is None else token | (role == ROLES.index("template"))

    def is_first(rows: Activations) -> Tensor:
        return _label(rows, "pos") == 0

    return {
        "first": is_first,
        "not first": lambda rows: ~is_first(rows),
        "special": is_special,
        "special, not first": lambda rows: is_special(rows) & ~is_first(rows),
        "ordinary": lambda rows: ~is_special(rows),
    }


BY: dict[str, Callable[[tuple[int, ...]], dict[str, Split]]] = {"role": _roles, "token class": _classes}
"""Named choices of splits."""
