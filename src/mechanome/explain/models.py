"""Which models can be asked, as far as their name tells, before anything is opened."""

from __future__ import annotations

from pathlib import Path

from mechanome.core.errors import NotServed
from mechanome.engine.registry.catalog import catalog, find
from mechanome.engine.registry.naming import named_by

LANGUAGE_MODEL = "causal-lm"
"""The registry's kind of models that predict the next token."""


def check_named(model: str | Path) -> None:
    """Refuse a name that opens no model, or none that continues a text.

    Raises:
        UnknownModel: nothing of this name.
        NotServed: a registry model that is no language model.
    """
    if named_by(model) != "registry" or (kind := find(str(model)).kind) == LANGUAGE_MODEL:
        return
    able = ", ".join(entry.id for entry in catalog() if entry.kind == LANGUAGE_MODEL)
    raise NotServed(
        f"explaining {model}",
        f"it is no language model that predicts the next token (its kind is {kind})",
        f"use a causal language model, such as {able}",
    )
