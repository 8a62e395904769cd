"""Architectures: one small file a recipe, one line in the table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mechanome.core.errors import CorruptFile, UnknownName, nearest
from mechanome.dictionaries.architectures.batch_top_k import BatchTopK
from mechanome.dictionaries.architectures.gated import Gated
from mechanome.dictionaries.architectures.imported import AbsTopK, GroupMax, RowNormalized, WeightedTopK
from mechanome.dictionaries.architectures.jump_relu import JumpReLU
from mechanome.dictionaries.architectures.matryoshka import Matryoshka
from mechanome.dictionaries.architectures.poly import PolySAE
from mechanome.dictionaries.architectures.recipe import Recipe
from mechanome.dictionaries.architectures.relu import ReLU
from mechanome.dictionaries.architectures.top_k import TopK
from mechanome.dictionaries.architectures.wrapped import Crosscoder, SkipTranscoder, Transcoder
from mechanome.dictionaries.spec import DictionarySpec

__all__ = [
    "ARCHITECTURES",
    "AbsTopK",
    "BatchTopK",
    "Crosscoder",
    "Gated",
    "GroupMax",
    "JumpReLU",
    "Matryoshka",
    "PolySAE",
    "ReLU",
    "Recipe",
    "RowNormalized",
    "SkipTranscoder",
    "TopK",
    "Transcoder",
    "WeightedTopK",
    "recipe_of",
]

ARCHITECTURES: dict[str, type[Recipe]] = {
    recipe.architecture: recipe
    for recipe in (
        ReLU,
        TopK,
        BatchTopK,
        JumpReLU,
        Gated,
        Matryoshka,
        PolySAE,
        Transcoder,
        SkipTranscoder,
        Crosscoder,
        AbsTopK,
        GroupMax,
        WeightedTopK,
        RowNormalized,
    )
}


def recipe_of(spec: DictionarySpec) -> Recipe:
    """The recipe that a spec was made from.

    Raises:
        UnknownName: an architecture that does not exist.
        CorruptFile: settings that are not of this architecture.
    """
    return _recipe(spec.architecture, spec.settings)


def _recipe(architecture: str, settings: Mapping[str, Any]) -> Recipe:
    if architecture not in ARCHITECTURES:
        raise UnknownName(f"architecture {architecture!r}", "it does not exist", nearest(architecture, ARCHITECTURES))
    plain: dict[str, Any] = {
        name: _inner(value) if isinstance(value, Mapping) else value for name, value in settings.items()
    }
    try:
        return ARCHITECTURES[architecture](**plain)
    except TypeError as error:
        raise CorruptFile(f"settings of {architecture!r}", str(error), "write the dictionary again") from error


def _inner(settings: Mapping[str, Any]) -> Recipe:
    rest = {name: value for name, value in settings.items() if name != "architecture"}
    return _recipe(settings.get("architecture", ""), rest)
