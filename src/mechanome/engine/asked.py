"""Checks of plain arguments, one for each kind: a name out of a few, names, a count, a seed, token ids, a model.

Each returns the argument in its one canonical form, so that what comes after meets no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mechanome.core.errors import BadInput, nearest
from mechanome.engine.opened import Opened
from mechanome.engine.plain import whole


def count(what: str, value: Any) -> int:
    """A count.

    Raises:
        BadInput: not a whole number, or below 1.
    """
    found = whole(value)
    if found is None or found < 1:
        raise BadInput(f"{what}={value!r}", "it must be a positive whole number", "give one such as 32")
    return found


def seed_of(value: Any) -> int:
    """A seed that every generator in use takes.

    Raises:
        BadInput: not a whole number from 0 up to 2**32 - 1.
    """
    found = whole(value)
    if found is None or not 0 <= found < 2**32:
        raise BadInput(f"seed={value!r}", "it must be a whole number from 0, below 2**32", "use seed=0")
    return found


def seeded_generator(seed: Any) -> torch.Generator:
    """A random generator of its own, on the CPU, that starts from a seed.

    Raises:
        BadInput: as `seed_of`.
    """
    return torch.Generator().manual_seed(seed_of(seed))


def one_of(what: str, value: Any, valid: Iterable[str], why: str = "there is no such choice") -> str:
    """A name out of a few.

    Raises:
        BadInput: another one, with the nearest.
    """
    names = list(valid)
    if not isinstance(value, str) or value not in names:
        raise BadInput(f"{what}={value!r}", why, nearest(str(value), names))
    return value


def names(what: str, value: Any) -> tuple[str, ...]:
    """Names, or a single one.

    Raises:
        BadInput: something that is not text.
    """
    found = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [value]
    for name in found:
        if not isinstance(name, str):
            raise BadInput(
                f"{what}={value!r}", f"a name is text, not {type(name).__name__}", "give one name or several"
            )
    return tuple(found)


_IDS = "give one id, or one per example, such as model.single_token(' Paris')"


def ids_or_texts(model: Opened, value: Any) -> Any:
    """One token or several, where each text that is exactly one token of the model stands for its id.

    Raises:
        BadInput: a text of several tokens, or a model without a tokenizer.
    """
    if isinstance(value, str):
        return model.single_token(value)
    if isinstance(value, (list, tuple)):
        return [ids_or_texts(model, item) if isinstance(item, str) else item for item in value]
    return value


def token_ids(what: str, value: Any, fix: str = _IDS) -> Tensor:
    """Token ids, or a single one, as int64 `[n]` on the CPU; `fix` is what an error tells to do.

    Raises:
        BadInput: none, several axes, or anything that is no whole number of at least 0; for a text it says how to
            get its id.
    """
    if isinstance(value, str):
        raise BadInput(f"{what} {value!r}", "a text, and no tokenizer here", f"write model.single_token({value!r})")
    if isinstance(value, Tensor) or hasattr(value, "tolist"):
        value = value.tolist()
    found = value if whole(value) is None else [value]
    if not isinstance(found, Sequence) or isinstance(found, bytes):
        raise BadInput(f"{what} {value!r}", f"a token id is a whole number, not {type(value).__name__}", fix)
    if not found:
        raise BadInput(what, "it has no token", fix)
    ids = []
    for item in found:
        i = whole(item) if not isinstance(item, str) else int(token_ids(what, item))
        if i is None:
            raise BadInput(f"{what} {item!r}", f"a token id is a whole number, not {type(item).__name__}", fix)
        if i < 0:
            raise BadInput(f"{what} {i}", "token ids start at 0", fix)
        ids.append(i)
    return torch.tensor(ids, dtype=torch.long)


def one_each(what: str, ids: Tensor, examples: int) -> None:
    """Check that there is one id for all examples or one each.

    Raises:
        BadInput: another number of them.
    """
    if len(ids) not in (1, examples):
        raise BadInput(f"{len(ids)} ids of the {what}", f"there are {examples} examples", "give one id, or one each")


def in_vocabulary(what: str, ids: Tensor, size: int) -> None:
    """Check that ids exist.

    Raises:
        BadInput: an id of `size` or more.
    """
    if len(ids) and int(ids.max()) >= size:
        raise BadInput(f"{what} {int(ids.max())}", f"ids must be 0 to {size - 1}", "use the model's tokenizer")


def opened_model(model: Any) -> None:
    """Check that a model was opened.

    Raises:
        BadInput: a bare module, or no model.
    """
    if not isinstance(model, Opened):
        kind = "a bare module" if isinstance(model, nn.Module) else f"no model but {type(model).__name__}"
        raise BadInput("the model", f"it is {kind}", "open it with mn.load(module)")
