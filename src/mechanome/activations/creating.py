"""A store from rows that are there already: arrays, or a stream that ends, such as one of generated tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechanome.activations.activations import Activations
from mechanome.activations.arrays import ArrayActivations
from mechanome.activations.shards import dtype_name
from mechanome.activations.statistics import write_statistics
from mechanome.activations.store import STATS, ActivationStore
from mechanome.activations.stream import ActivationStream
from mechanome.activations.writing import ORDERS, Writer, clean, disk_errors
from mechanome.core.errors import BadInput, NotFinite
from mechanome.core.files import atomic_dir
from mechanome.core.files import sha256 as file_sha256
from mechanome.engine.asked import count, one_of, seed_of


def create(
    path: str | os.PathLike[str],
    source: Activations | ActivationStream,
    *,
    dtype: str | torch.dtype = "bf16",
    order: str = "shuffled",
    shard_rows: int = 65_536,
    seed: int = 0,
    recipe: Mapping[str, Any] | None = None,
) -> ActivationStore:
    """Write a store, whole or not at all.

    Args:
        path: its folder, which must not be there yet.
        source: rows, or a stream that ends (`epochs=1`). All labels are kept.
        dtype, order, shard_rows, seed: as in `harvest`.
        recipe: what the rows were made from, as JSON, to be kept along.

    Raises:
        BadInput: a folder that is there, an endless stream, no rows, a full disk. NotFinite: NaN or infinity in a row.
    """
    one_of("order", order, ORDERS)
    kept, shard_rows, seed = dtype_name(dtype), count("shard_rows", shard_rows), seed_of(seed)
    if Path(path).exists():
        raise BadInput(str(path), "it is there already", "name a new folder, or open it with ActivationStore.open")
    if isinstance(source, Activations):
        source = ArrayActivations(source, epochs=1, shuffle=False)
    if not isinstance(source, ActivationStream):
        raise BadInput("the source", f"a {type(source).__name__} has no rows", "give Activations, or a stream of them")
    if getattr(source, "epochs", 1) is None:
        raise BadInput("the stream", "it never ends", "make it with epochs=1")
    with disk_errors(Path(path), "free some space; nothing was left there"), atomic_dir(path) as folder:
        made = _filled(folder, source, kept, order, shard_rows, seed, dict(recipe or {}))
    return replace(made, path=Path(path))


def _filled(
    folder: Path, source: ActivationStream, dtype: str, order: str, shard_rows: int, seed: int, recipe: dict[str, Any]
) -> ActivationStore:
    writer, at = None, 0
    for rows in source:
        if writer is None:
            kinds = {name: x.dtype for name, x in rows.labels.items()}
            writer = Writer(folder, rows.widths, dtype, order, source.rows or 64 * shard_rows, shard_rows, seed, kinds)
        for site, x in rows.values.items():
            if not bool(torch.isfinite(x).all()):
                row = at + int((~torch.isfinite(x).all(1)).nonzero()[0])
                raise NotFinite(f"'{site}' of row {row}", "it holds NaN or infinity", "leave such rows out")
        writer.add(rows, np.arange(at, at + rows.rows), 0)
        at += rows.rows
    if writer is None:
        raise BadInput("the stream", "it has no rows", "give one that has")
    shards = tuple(writer.finish())
    digest = sha256("".join(h for shard in shards for h in shard.sha256.values()).encode()).hexdigest()
    store = ActivationStore(folder, {"id": digest, **recipe}, dict(writer.widths), dtype, order, shards, complete=True)
    parts = {site: (shard.open(folder, site)["activation"] for shard in shards) for site in store.sites}
    write_statistics(folder / STATS, parts)
    store = replace(store, stats_sha256=file_sha256(folder / STATS))
    store.write()
    clean(folder)
    return store
