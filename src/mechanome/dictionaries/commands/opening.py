"""Dictionaries and activations from paths as they are typed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mechanome.activations import ActivationStore
from mechanome.core import BadInput
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.formats import read

DICTIONARIES = "dictionaries"
"""Where a fit's run folder holds what was fitted."""


def dictionaries(paths: Sequence[str | Path], site: str | None = None) -> dict[str, Dictionary]:
    """Dictionaries by short names.

    Args:
        paths: files or folders of any format, or run folders of `fit`, which stand for all they hold.
        site: where they read, for files that do not say.

    Raises:
        BadInput: nothing there. CorruptFile, ShapeMismatch, NotFinite, NotServed: as `formats.read`.
    """
    found: dict[str, Path] = {}
    for path in map(Path, paths):
        inside = path / DICTIONARIES
        for each in sorted(inside.iterdir()) if inside.is_dir() else [path]:
            name = each.name if each.name not in found else str(each)
            if found.setdefault(name, each) is not each:
                raise BadInput(str(each), "it was given twice", "give each dictionary once")
    if not found:
        raise BadInput(
            "dictionaries", "none was found", "give folders of dictionaries, or run folders of mechanome fit"
        )
    return {name: read(path, site=site) for name, path in found.items()}


def store(path: str | Path) -> ActivationStore:
    """A complete store of activations.

    Raises:
        BadInput: none there, or one whose harvest was stopped. CorruptFile: damaged.
    """
    found = ActivationStore.open(path)
    if not found.complete:
        raise BadInput(str(path), "its harvest was stopped before the end", "type the same mechanome harvest again")
    return found
