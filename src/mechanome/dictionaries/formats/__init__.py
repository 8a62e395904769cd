"""Dictionaries of other tools, and our own folder: one file a format, one row in the table.

`read` finds the format by itself; `write` builds a folder that the tool loads. What a format cannot say is refused, not
lost; `check` asks whether activations are those a dictionary was made for.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from mechanome.core.errors import BadInput, NotServed, UnknownName, nearest
from mechanome.core.files import atomic_dir
from mechanome.core.tables import Table
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.formats import (
    circuit_tracer,
    dictionary_learning,
    gemma_scope,
    gemma_scope_2,
    llama_scope,
    llamascopium,
    ours,
    qwen_scope,
    saelens,
    sparsify,
)
from mechanome.dictionaries.formats.fits import Fit, check
from mechanome.dictionaries.formats.format import Format
from mechanome.dictionaries.formats.hooks import Told
from mechanome.engine.site import Site

__all__ = ["FORMATS", "Fit", "Format", "check", "detect", "formats_table", "read", "write"]

FORMATS: dict[str, Format] = {
    "mechanome": Format("Mechanome folder, which SAELens loads too", ours.detect, ours.read, ours.write),
    "saelens": Format("SAELens 6 folder", saelens.detect, saelens.read, saelens.write),
    "dictionary_learning": Format(
        "dictionary_learning folder", dictionary_learning.detect, dictionary_learning.read, dictionary_learning.write
    ),
    "sparsify": Format("sparsify folder", sparsify.detect, sparsify.read, sparsify.write),
    "circuit_tracer": Format(
        "circuit-tracer transcoders of all layers", circuit_tracer.detect, circuit_tracer.read, circuit_tracer.write
    ),
    "gemma_scope": Format("Gemma Scope 1", gemma_scope.detect, gemma_scope.read),
    "gemma_scope_2": Format("Gemma Scope 2", gemma_scope_2.detect, gemma_scope_2.read),
    "llama_scope": Format("Llama Scope 1", llama_scope.detect, llama_scope.read),
    "llamascopium": Format("llamascopium 2 and Llama-Scope-R1", llamascopium.detect, llamascopium.read),
    "qwen_scope": Format("Qwen Scope", qwen_scope.detect, qwen_scope.read),
}
"""In the order in which `detect` asks: our folder also looks like one of SAELens."""


def detect(path: str | Path) -> str:
    """The name of a file's or folder's format.

    Raises:
        BadInput: nothing is there, or it is none of the formats known.
    """
    place = Path(path)
    if not place.exists():
        raise BadInput(str(path), "no such folder or file", "check the path")
    for name, known in FORMATS.items():
        if known.detect(place):
            return name
    raise BadInput(str(path), "it is none of the formats known", f"name one of {', '.join(FORMATS)}, or check the path")


def read(
    path: str | Path,
    format: str | None = None,
    *,
    site: str | Site | None = None,
    site_out: str | Site | None = None,
    activations: Tensor | None = None,
    target: Tensor | None = None,
) -> Dictionary:
    """A dictionary from a file or folder of any format.

    Args:
        path: the file or folder.
        format: a name of `FORMATS`; None looks.
        site: where it reads, for files that do not say or to overrule them.
        site_out: where it writes, for transcoders.
        activations: some rows `[..., d_in]` to check it against, as :func:`check` does; None does not.
        target: what it should write `[..., d_out]`, for transcoders that are checked.

    Returns:
        the dictionary, in `eval()` mode, with codes and reconstructions as the tool that wrote it computes them.

    Raises:
        BadInput: nothing there, an unknown format, a site that nobody knows, activations that do not fit.
        CorruptFile, ShapeMismatch, NotFinite: damaged, with code inside, or tensors that do not fit together.
        UnknownName: no such format. NotServed: something the file holds is not served.
    """
    place = Path(path)
    name = detect(place) if format is None else format
    if name not in FORMATS:
        raise UnknownName(f"format '{name}'", "it does not exist", nearest(name, FORMATS))
    if not place.exists():
        raise BadInput(str(path), "no such folder or file", "check the path")
    dictionary = FORMATS[name].read(place, Told(site, site_out))
    if activations is not None:
        check(dictionary, activations, target)
    return dictionary


def write(dictionary: Dictionary, path: str | Path, format: str = "mechanome") -> None:
    """Write a dictionary's folder, whole or not at all.

    Args:
        dictionary: any.
        path: the folder, which must not be there yet.
        format: a name of `FORMATS` that is written.

    Raises:
        BadInput: something is there already.
        UnknownName: no such format.
        NotServed: the format is only read, or cannot hold this dictionary; nothing is written.
    """
    if format not in FORMATS:
        raise UnknownName(f"format '{format}'", "it does not exist", nearest(format, FORMATS))
    fill = FORMATS[format].write
    if fill is None:
        written = [name for name, known in FORMATS.items() if known.write is not None]
        raise NotServed(f"writing '{format}'", "it is only read", f"write one of {', '.join(written)}")
    if Path(path).exists():
        raise BadInput(str(path), "it exists already", "name another folder, or remove it first")
    with atomic_dir(path) as folder:
        fill(dictionary, folder)


def formats_table() -> Table:
    """The formats: `format, title, read, written`."""
    rows = [
        {"format": name, "title": known.title, "read": True, "written": known.write is not None}
        for name, known in FORMATS.items()
    ]
    return Table.of(rows)
