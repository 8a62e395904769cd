"""From words as they are typed to recipes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import yaml

from mechanome.core import BadInput, UnknownName, nearest
from mechanome.dictionaries.architectures import ARCHITECTURES, Recipe
from mechanome.dictionaries.architectures.wrapped import Wrapped

PLAIN = tuple(name for name, kind in ARCHITECTURES.items() if not issubclass(kind, Wrapped))
"""Architectures that decide about codes."""

WRAPPERS = tuple(name for name, kind in ARCHITECTURES.items() if issubclass(kind, Wrapped))
"""Architectures around another."""


def recipes(
    architecture: str,
    width: int,
    k: Sequence[int] = (),
    around: str | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[Recipe]:
    """One recipe for each number of active latents, or one where none is given.

    Args:
        architecture: one of `PLAIN`.
        width: how many latents.
        k: how many are active, for architectures that say so.
        around: one of `WRAPPERS`, for what reads one site and writes another.
        settings: other fields of the recipe.

    Raises:
        UnknownName: an architecture, or a field that it does not have. BadInput: values that it refuses, k where it has
            none, an architecture that stands around another.
    """
    if architecture not in PLAIN:
        if architecture in WRAPPERS:
            fix = f"name what decides about codes, such as topk, and give around, --around {architecture}"
            raise BadInput(f"architecture '{architecture}'", "it stands around another one", fix)
        raise UnknownName(f"architecture '{architecture}'", "it is none", nearest(architecture, PLAIN))
    if around is not None and around not in WRAPPERS:
        raise UnknownName(f"architecture '{around}' around another", "it is none", nearest(around, WRAPPERS))
    kind = ARCHITECTURES[architecture]
    known = {f.name for f in fields(kind) if f.init} - {"width", "k"}
    given = dict(settings or {})
    for name in given:
        if name not in known:
            raise UnknownName(f"setting '{name}'", f"'{architecture}' has no such setting", nearest(name, known))
    if k and "k" not in {f.name for f in fields(kind)}:
        why = f"'{architecture}' does not say how many latents are active"
        raise BadInput(f"k = {', '.join(map(str, k))}", why, f"leave it out; settings: {', '.join(sorted(known))}")
    if len(set(k)) < len(k):
        raise BadInput(f"k = {', '.join(map(str, k))}", "each fits once", "give different ones")
    made = [kind(width, **given, **active) for active in ([{"k": each} for each in k] or [{}])]
    return made if around is None else [ARCHITECTURES[around](inner=each) for each in made]  # type: ignore[call-arg]


def typed(settings: Sequence[str]) -> dict[str, Any]:
    """Settings as they are typed, `name=value`, values as YAML reads them; lists become tuples.

    Raises:
        BadInput: no such pair, or a value that is no number, word or list.
    """
    found: dict[str, Any] = {}
    for text in settings:
        name, equals, value = text.partition("=")
        try:
            read = yaml.safe_load(value)
        except yaml.YAMLError:
            read = {}
        if not equals or not name or isinstance(read, dict):
            raise BadInput(f"setting {text!r}", "it is not name=value", "write it like l1=5 or groups=[256, 1024]")
        found[name.strip().replace("-", "_")] = tuple(read) if isinstance(read, list) else read
    return found
