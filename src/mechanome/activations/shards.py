"""Shards: the files of a store that hold rows, one per site and number, each checked against its SHA-256 when opened.

A shard is mapped into memory, so that some rows of it cost no more than they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mechanome.activations.activations import Activations
from mechanome.core.errors import BadInput, CorruptFile, NotFinite
from mechanome.core.files import sha256
from mechanome.core.tensor_files import write_tensors

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
"""Names of the floating-point types a store can have."""

FORMAT = "activation-shard"

_AGAIN = "harvest with resume=False: a shard holds rows of all texts, so it cannot be made alone"


def folder_of(site: str) -> str:
    """The name of a site's folder: its own, without what a file system does not take."""
    return re.sub(r"[^\w.\-]", "_", site)


@dataclass(frozen=True)
class Shard:
    """The rows of one number.

    Args:
        number: which. rows: how many. sha256: per site, of its file.
    """

    number: int
    rows: int
    sha256: Mapping[str, str]

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {"rows": self.rows, "sha256": dict(self.sha256)}

    def file(self, store: Path, site: str) -> Path:
        """Where the rows of a site lie."""
        return _file(store, site, self.number)

    def check(self, store: Path, site: str) -> None:
        """Compare a file with the hash it had when it was written.

        Raises:
            CorruptFile: it is not there, or was changed.
        """
        file = self.file(store, site)
        if not file.is_file():
            raise CorruptFile(str(file), "it is missing", _AGAIN)
        found = sha256(file)
        if found != self.sha256[site]:
            why = f"its SHA-256 is {found[:12]}…, not {self.sha256[site][:12]}…"
            raise CorruptFile(str(file), why, _AGAIN)

    def open(self, store: Path, site: str) -> dict[str, Tensor]:
        """ "activation" `[row, d]`, and "seq", "pos" `[row]`, mapped.

        Raises:
            CorruptFile: not a whole shard of this site.
        """
        file = self.file(store, site)
        try:
            with safe_open(file, framework="pt") as reader:
                return {name: reader.get_tensor(name) for name in reader.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise CorruptFile(str(file), f"not a whole shard ({error})", _AGAIN) from error


def write_shard(store: Path, number: int, rows: Activations, dtype: str) -> Shard:
    """Write rows as a shard: one file per site, each whole or absent.

    Raises:
        NotFinite: a value that the dtype cannot hold; nothing of that site is written.
    """
    hashes = {}
    labels = {name: x.contiguous() for name, x in rows.labels.items()}
    for site, x in rows.values.items():
        kept = x.to(DTYPES[dtype]).contiguous()
        if dtype == "fp16" and not bool(torch.isfinite(kept).all()):
            raise NotFinite(f"'{site}' as fp16", "it has values above 65504", "use dtype='bf16'")
        file = _file(store, site, number)
        write_tensors(file, {"activation": kept, **labels}, format=FORMAT, meta={"site": site})
        hashes[site] = sha256(file)
    return Shard(number, rows.rows, hashes)


def dtype_name(dtype: str | torch.dtype) -> str:
    """The name of a dtype a store can have.

    Raises:
        BadInput: another one.
    """
    names = {value: name for name, value in DTYPES.items()}
    found = names.get(dtype) if isinstance(dtype, torch.dtype) else dtype
    if found not in DTYPES:
        raise BadInput(f"dtype={dtype!r}", "a store cannot have it", f"use one of {', '.join(DTYPES)}")
    return str(found)


def _file(store: Path, site: str, number: int) -> Path:
    return store / folder_of(site) / f"{number:05d}.safetensors"
