"""`ActivationStore`: activations of a model on disk, addressed by what they were made from.

    acts/3f9a.../ store.json            the recipe, sites, shards with their SHA-256, and whether it is complete
                  tokens.safetensors    the tokens of every sequence, and who wrote them
                  resid_post.15/00000.safetensors   "activation" [row, d], "seq", "pos"
                  stats.safetensors     per site: mean, second moments, norms

Rows lie in random order (or, on request, in the order of the text), so reading on from any place is a random sample.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechanome.activations.activations import Activations
from mechanome.activations.permutation import Permutation
from mechanome.activations.sequences import Sequences
from mechanome.activations.shards import Shard
from mechanome.activations.statistics import SiteStatistics, read_statistics
from mechanome.activations.stream import Segmented
from mechanome.core.errors import BadInput, CorruptFile, UnknownSite, nearest
from mechanome.core.files import existing, sha256
from mechanome.core.formats import read_json, write_json
from mechanome.core.progress import track
from mechanome.engine.plain import is_integral

FORMAT, VERSION = "activation-store", 1
_PARTS = {"version": int, "recipe": dict, "widths": dict, "shards": list}
STORE, TOKENS, STATS = "store.json", "tokens.safetensors", "stats.safetensors"


@dataclass(frozen=True, eq=False)
class ActivationStore:
    """A folder of activations. Made by `harvest`, or opened from its path.

    Attributes:
        path: the folder.
        recipe: what the rows were made from: model, data, sites, precision, policies, seed.
        widths: per site, d.
        dtype: "bf16", "fp16" or "fp32".
        order: "shuffled" or "sequence".
        shards: the rows, in pieces.
        dropped: how many rows the policy left out. medians: per site, the norm that rows were compared with.
        at_once: tokens of a forward pass. stats_sha256: of the file of statistics; empty before the end.
        complete: whether the harvest has ended; if not, harvest again with the same arguments.
    """

    path: Path
    recipe: Mapping[str, Any] = field(repr=False)
    widths: dict[str, int]
    dtype: str
    order: str
    shards: tuple[Shard, ...] = field(default=(), repr=False)
    dropped: int = 0
    medians: Mapping[str, float] = field(default_factory=dict, repr=False)
    at_once: int = 0
    stats_sha256: str = ""
    complete: bool = False
    _checked: dict[tuple[str, int], dict[str, Tensor]] = field(default_factory=dict, repr=False)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> ActivationStore:
        """Open a folder.

        Raises:
            BadInput: no store lies there; the message names those that lie in it.
            CorruptFile: its description is damaged, or of a newer version.
        """
        folder = Path(path)
        if not (folder / STORE).is_file():
            inside = sorted(str(file.parent) for file in folder.glob(f"*/{STORE}"))
            fix = f"open one of {', '.join(inside)}" if inside else "make one with harvest"
            raise BadInput(str(path), "it is no activation store", fix)
        record = read_json(folder / STORE)
        if not isinstance(record, dict) or record.pop("format", None) != FORMAT:
            raise CorruptFile(str(folder / STORE), "it does not describe an activation store", "harvest again")
        odd = [name for name, kind in _PARTS.items() if not isinstance(record.get(name), kind)]
        if odd or "id" not in record["recipe"]:
            why = f"it misses parts ({', '.join(odd) or 'the id of its recipe'})"
            raise CorruptFile(str(folder / STORE), why, "harvest again")
        if record.pop("version") > VERSION:
            raise CorruptFile(str(folder / STORE), "a newer mechanome wrote it", "update mechanome")
        try:
            shards = tuple(Shard(i, each["rows"], each["sha256"]) for i, each in enumerate(record.pop("shards")))
            return cls(folder, shards=shards, **record)
        except (TypeError, KeyError, AttributeError) as error:
            raise CorruptFile(str(folder / STORE), f"it misses parts ({error})", "harvest again") from error

    @classmethod
    def create(cls, path: str | os.PathLike[str], source: Any, **options: Any) -> ActivationStore:
        """Store rows that are there already; see `mechanome.activations.creating.create`."""
        from mechanome.activations.creating import create

        return create(path, source, **options)

    def write(self) -> None:
        """Write `store.json`."""
        names = ("recipe", "widths", "dtype", "order", "dropped", "medians", "at_once", "stats_sha256", "complete")
        kept = {name: getattr(self, name) for name in names}
        shards = [shard.record() for shard in self.shards]
        write_json(self.path / STORE, {"format": FORMAT, "version": VERSION, **kept, "shards": shards})

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites."""
        return tuple(self.widths)

    @property
    def rows(self) -> int:
        """How many there are; 0 while the store is not complete."""
        return sum(shard.rows for shard in self.shards)

    def __len__(self) -> int:
        return self.rows

    @cached_property
    def sequences(self) -> Sequences:
        """The tokens that the rows belong to.

        Raises:
            BadInput: a store that was made from rows. CorruptFile: damaged.
        """
        if not self.has_tokens:
            raise BadInput(str(self.path), "it was made from rows, without tokens", "read the labels of its rows")
        return Sequences.read(self.path / TOKENS)

    @property
    def has_tokens(self) -> bool:
        """Whether the tokens of the rows are known: in every store that `harvest` made."""
        return "data" in self.recipe

    @cached_property
    def _statistics(self) -> dict[str, SiteStatistics]:
        self._refuse_incomplete()
        self._check_statistics()
        return read_statistics(self.path / STATS)

    def stats(self, site: Any = None) -> SiteStatistics:
        """Statistics of a site over all rows; of the only one, if there is one.

        Raises:
            UnknownSite, BadInput: not a site of this store, or there are several.
        """
        return self._statistics[self._site(site)]

    def verify(self, quiet: bool = False) -> None:
        """Compare every file with its SHA-256.

        Raises:
            CorruptFile: the first that is missing or was changed.
        """
        self._refuse_incomplete()
        if self.has_tokens and self.sequences.sha256 != self.recipe["data"]:
            raise CorruptFile(str(self.path / TOKENS), "these are other tokens", "harvest with resume=False")
        self._check_statistics()
        every = [(shard, site) for shard in self.shards for site in self.sites]
        for shard, site in track(every, "Verifying", quiet=quiet):
            shard.check(self.path, site)

    def rows_of(self, indices: Any, sites: Iterable[Any] | None = None) -> Activations:
        """Some rows, by their number in the stored order.

        Args:
            indices: int `[row]`. sites: all by default.

        Returns:
            values in the store's dtype, with labels "seq", "pos", "token", "doc" and "role", or those it was made with.

        Raises:
            BadInput: no such row. CorruptFile: a shard whose content was changed.
        """
        self._refuse_incomplete()
        names = self._sites(sites)
        try:
            asked = torch.as_tensor(indices)
        except (TypeError, ValueError, RuntimeError) as error:
            raise BadInput(f"rows {indices!r}", f"they are no numbers ({error})", "give whole numbers") from error
        if asked.numel() and not is_integral(asked):
            raise BadInput("rows", f"{asked.dtype} counts none", "give whole numbers, counted from 0")
        wanted = np.asarray(asked, np.int64).reshape(-1)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < self.rows:
            raise BadInput(f"rows {wanted.min()} to {wanted.max()}", f"there are {self.rows}", "count from 0")
        ends = np.cumsum([shard.rows for shard in self.shards])
        number = np.searchsorted(ends, wanted, side="right")
        order = np.argsort(number, kind="stable")
        parts = []
        for k in np.unique(number):
            inside = wanted[order][number[order] == k] - (int(ends[k]) - self.shards[k].rows)
            parts.append(self.part(int(k), torch.from_numpy(inside), names))
        if not parts:
            parts = [self.part(0, torch.zeros(0, dtype=torch.int64), names)]
        return Activations.cat(parts).take(torch.from_numpy(np.argsort(order, kind="stable")))

    def part(self, number: int, rows: Tensor | slice, sites: tuple[str, ...]) -> Activations:
        """Some rows of one shard, whose content is checked when it is first opened."""
        opened = {site: self._open(number, site) for site in sites}
        values = {site: found["activation"][rows] for site, found in opened.items()}
        kept = {name: x[rows] for name, x in opened[sites[0]].items() if name != "activation"}
        if not self.has_tokens:
            return Activations(values, kept)
        return Activations(values, self.sequences.labels(*(kept[name].long().numpy() for name in ("seq", "pos"))))

    def stream(
        self,
        batch: int = 4096,
        seed: int = 0,
        epochs: int | None = None,
        sites: Iterable[Any] | None = None,
        shuffle: bool = True,
        dtype: torch.dtype = torch.float32,
    ) -> StoreStream:
        """Batches of rows.

        Args:
            batch: rows; the last of an epoch may be smaller. seed: of the order. epochs: None goes on for ever.
            sites: all by default. shuffle: False keeps the stored order. dtype: of the values given out.
        """
        return StoreStream(self, batch, seed, epochs, self._sites(sites), shuffle, dtype)

    def _open(self, number: int, site: str) -> dict[str, Tensor]:
        if (site, number) not in self._checked:
            shard = self.shards[number]
            shard.check(self.path, site)
            self._checked[site, number] = shard.open(self.path, site)
        return self._checked[site, number]

    def _check_statistics(self) -> None:
        file = existing(self.path / STATS)
        if sha256(file) != self.stats_sha256:
            raise CorruptFile(str(file), "it was changed: its SHA-256 differs", "harvest with resume=False")

    def _refuse_incomplete(self) -> None:
        if not self.complete:
            raise BadInput(str(self.path), "its harvest has not ended", "harvest again: it goes on where it stopped")

    def _site(self, site: Any) -> str:
        if site is None and len(self.widths) == 1:
            return self.sites[0]
        if site is None:
            raise BadInput("the site", f"there are several: {', '.join(self.sites)}", "name one")
        if str(site) not in self.widths:
            raise UnknownSite(f"site '{site}'", "this store does not have it", nearest(str(site), self.sites))
        return str(site)

    def _sites(self, sites: Iterable[Any] | None) -> tuple[str, ...]:
        if sites is None:
            return self.sites
        found = tuple(map(self._site, [sites] if isinstance(sites, str) or not isinstance(sites, Iterable) else sites))
        if not found:
            raise BadInput("sites", "there are none", f"name some of {', '.join(self.sites)}, or leave them out")
        return found

    def __repr__(self) -> str:
        sites = ", ".join(f"{site} [{self.rows}, {d}]" for site, d in self.widths.items())
        state = self.order if self.complete else "incomplete"
        return f"ActivationStore({self.path}: {sites}; {self.dtype}, {state})"


class StoreStream(Segmented):
    """A store as a stream. A shuffled store is read a shard after the other, in an order drawn anew for each epoch."""

    def __init__(
        self,
        store: ActivationStore,
        batch: int,
        seed: int,
        epochs: int | None,
        sites: tuple[str, ...],
        shuffle: bool,
        dtype: torch.dtype,
    ) -> None:
        store._refuse_incomplete()
        self.store, self.shuffle, self._names = store, shuffle, sites
        super().__init__(batch, seed, epochs, {"store": store.recipe["id"], "shuffle": shuffle}, dtype)
        # Rows of a store in sequence order must be drawn from everywhere, not from one shard at a time.
        self._everywhere = shuffle and store.order == "sequence"

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites."""
        return self._names

    @property
    def widths(self) -> dict[str, int]:
        """Per site, d."""
        return {site: self.store.widths[site] for site in self._names}

    @property
    def rows(self) -> int:
        """Rows of an epoch."""
        return self.store.rows

    def segments(self, epoch: int) -> int:
        """Shards; batches, where rows are drawn from everywhere."""
        return -(-self.rows // self.batch) if self._everywhere else len(self.store.shards)

    def segment(self, epoch: int, k: int) -> Activations:
        """The rows of a shard, in the order of this epoch."""
        if self._everywhere:
            numbers = np.arange(k * self.batch, min((k + 1) * self.batch, self.rows))
            return self.store.rows_of(Permutation(self.rows, self.seed, epoch)(numbers), self._names)
        if not self.shuffle:
            return self.store.part(k, slice(None), self._names)
        number = int(Permutation(len(self.store.shards), self.seed, epoch)(np.array([k]))[0])
        rows = self.store.shards[number].rows
        order = Permutation(rows, self.seed, epoch, number)(np.arange(rows))
        return self.store.part(number, torch.from_numpy(order), self._names)
