"""Write a store so that rows lie in random order, in bounded memory, and a killed process loses at most one chunk.

The shuffle of Rao and Sandelius: rows come in chunks; each goes to a random bucket, a file that only grows; at the end
each bucket is put into random order in memory, and the buckets one after another, cut into shards of equal size, are a
uniformly random order of all rows. Bucket and order are hashes of a row's number, so they depend on neither chunks nor
on what is dropped.

After each chunk, `progress.json` says how long every bucket is; after each shard, which shards there are. It is
replaced at one instant, so whoever goes on cuts the buckets to those lengths and continues with the next chunk, and
ends with the same bytes. In sequence order the buckets are filled one after another instead.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechanome.activations.activations import Activations
from mechanome.activations.permutation import hashed
from mechanome.activations.shards import DTYPES, Shard, write_shard
from mechanome.core.errors import BadInput, CorruptFile
from mechanome.core.files import folder
from mechanome.core.formats import read_json, write_json

ORDERS = ("shuffled", "sequence")
PLACE = {"seq": torch.int64, "pos": torch.int32}
"""The labels of rows whose tokens are kept: everything else follows from them."""
SCRATCH, PROGRESS = "unsorted", "progress.json"
_BUCKET, _ORDER = 1, 2


@dataclass
class Progress:
    """How far a store is.

    Args:
        chunks: chunks whose rows are in the buckets. lengths: rows in each bucket. dropped: rows left out so far.
        shards: those that are whole.
    """

    lengths: list[int]
    chunks: int = 0
    dropped: int = 0
    shards: list[Shard] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return {**vars(self), "shards": [shard.record() for shard in self.shards]}


@dataclass
class Writer:
    """Takes rows in chunks and leaves shards; each call that raises leaves a store that can be continued.

    Args:
        store: its folder. widths: per site, d. dtype: a name of `DTYPES`. order: "shuffled" or "sequence".
        total: about how many rows will come. shard_rows: rows of a shard; the last one may have fewer.
        seed: of the order. labels: per label that is kept with the rows, its dtype.
    """

    store: Path
    widths: Mapping[str, int]
    dtype: str
    order: str
    total: int
    shard_rows: int
    seed: int
    labels: Mapping[str, torch.dtype] = field(default_factory=lambda: PLACE)
    progress: Progress = field(init=False)

    def __post_init__(self) -> None:
        size = DTYPES[self.dtype].itemsize
        fields = [(site, np.uint8, (d * size,)) for site, d in self.widths.items()]
        kinds = [(f"label {name}", torch.zeros(0, dtype=kind).numpy().dtype) for name, kind in self.labels.items()]
        self._record = np.dtype([*fields, *kinds, ("row", np.int64)])
        folder(self.store / SCRATCH)
        for leftover in self.store.rglob(".*.tmp"):
            leftover.unlink()
        self.progress = self._found()
        self._cut()

    def add(self, rows: Activations, at: np.ndarray, dropped: int) -> None:
        """Take in the next chunk.

        Args:
            rows: with all labels. at: a number of its own for each row, growing in the order of the text, `[row]`.
            dropped: rows of the chunk that were left out.
        """
        records = np.empty(rows.rows, self._record)
        for site in self.widths:
            kept = rows[site].to(DTYPES[self.dtype]).contiguous()
            records[site] = kept.view(torch.uint8).numpy().reshape(records[site].shape)
        for name in self.labels:
            records[f"label {name}"] = rows.labels[name].numpy()
        records["row"] = at
        bucket = self._bucket(at)
        order = np.argsort(bucket, kind="stable")
        found, starts = np.unique(bucket[order], return_index=True)
        lengths = [*self.progress.lengths, *[0] * (int(bucket.max(initial=0)) + 1 - len(self.progress.lengths))]
        for number, start, stop in zip(found, starts, [*starts[1:], len(order)]):
            with self._file(number).open("ab") as handle:
                handle.write(records[order[start:stop]].tobytes())
                handle.flush()
                os.fsync(handle.fileno())
            lengths[number] += int(stop - start)
        self._commit(lengths=lengths, chunks=self.progress.chunks + 1, dropped=self.progress.dropped + dropped)

    def finish(self, on_shard: Callable[[int], None] = lambda rows: None) -> Iterator[Shard]:
        """Turn buckets into shards, those that are there left out; buckets go as soon as nothing needs them.

        Args:
            on_shard: called with the rows of each shard that is there.
        """
        ends = np.cumsum(self.progress.lengths)
        total = int(ends[-1])
        held: dict[int, np.ndarray] = {}
        for number, start in enumerate(range(0, total, self.shard_rows)):
            stop = min(start + self.shard_rows, total)
            first, last = (int(np.searchsorted(ends, row, side="right")) for row in (start, stop - 1))
            if number == len(self.progress.shards):
                parts = []
                for bucket in range(first, last + 1):
                    if bucket not in held:
                        held[bucket] = self._ordered(bucket)
                    begin = int(ends[bucket]) - len(held[bucket])
                    parts.append(held[bucket][max(start - begin, 0) : stop - begin])
                shard = write_shard(self.store, number, self._activations(np.concatenate(parts)), self.dtype)
                self._commit(shards=[*self.progress.shards, shard])
            for bucket in range(first, last + 1):
                if ends[bucket] <= stop:
                    held.pop(bucket, None)
                    self._file(bucket).unlink(missing_ok=True)
            on_shard(stop - start)
            yield self.progress.shards[number]

    def _found(self) -> Progress:
        count = max(1, -(-self.total // self.shard_rows))
        if not (self.store / PROGRESS).is_file():
            return Progress([0] * count)
        record = read_json(self.store / PROGRESS)
        try:
            shards = [Shard(i, each["rows"], each["sha256"]) for i, each in enumerate(record.pop("shards"))]
            return Progress(**record, shards=shards)
        except (TypeError, KeyError, AttributeError) as error:
            raise CorruptFile(str(self.store / PROGRESS), f"no progress of a store ({error})", _AGAIN) from error

    def _cut(self) -> None:
        """Bring every bucket to the length that was committed: what is behind it was never whole."""
        done = sum(shard.rows for shard in self.progress.shards)
        for number, (length, end) in enumerate(zip(self.progress.lengths, np.cumsum(self.progress.lengths))):
            file, wanted = self._file(number), length * self._record.itemsize
            size = file.stat().st_size if file.exists() else 0
            if size < wanted and end > done:
                raise CorruptFile(str(file), f"it has {size} bytes, {wanted} were written", _AGAIN)
            if size > wanted:
                os.truncate(file, wanted)

    def _commit(self, **changes: Any) -> None:
        after = Progress(**{**vars(self.progress), **changes})
        write_json(self.store / PROGRESS, after.record())
        self.progress = after

    def _bucket(self, at: np.ndarray) -> np.ndarray:
        if self.order == "sequence":
            return at // self.shard_rows
        return (hashed(at, self.seed, _BUCKET) % np.uint64(len(self.progress.lengths))).astype(np.int64)

    def _ordered(self, bucket: int) -> np.ndarray:
        if not self.progress.lengths[bucket]:
            return np.zeros(0, self._record)
        records = np.fromfile(self._file(bucket), self._record)
        if self.order == "sequence":
            return records
        return records[np.argsort(hashed(records["row"], self.seed, _ORDER), kind="stable")]

    def _activations(self, records: np.ndarray) -> Activations:
        dtype = DTYPES[self.dtype]
        # Copies in any case: a single row counts as contiguous whatever its strides, and tensors take no odd ones.
        values = {site: torch.from_numpy(records[site].copy()).view(dtype) for site in self.widths}
        labels = {name: torch.from_numpy(records[f"label {name}"].copy()) for name in self.labels}
        return Activations(values, labels)

    def _file(self, bucket: int) -> Path:
        return self.store / SCRATCH / f"{int(bucket):05d}.rows"


_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EFBIG, errno.ENAMETOOLONG)

_AGAIN = "harvest with resume=False to begin anew"


@contextmanager
def disk_errors(store: Path, fix: str) -> Iterator[None]:
    """Say what a disk that takes no more, or nothing, means for a store.

    Raises:
        BadInput: the disk is full, the folder may not be written to, or a file may not grow so large.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise BadInput(str(store), "the disk is full", fix) from error
        if error.errno in _REFUSED:
            why = f"it cannot be written ({error.strerror})"
            raise BadInput(str(error.filename or store), why, "mend that, or name another folder") from error
        raise


def clean(store: Path) -> None:
    """Remove what only writing needed."""
    shutil.rmtree(store / SCRATCH, ignore_errors=True)
    (store / PROGRESS).unlink(missing_ok=True)


def row_bytes(widths: Mapping[str, int], dtype: str) -> int:
    """What a row of all sites takes while it is written."""
    return sum(widths.values()) * DTYPES[dtype].itemsize + 20
