"""The contexts that latents fire in: the strongest, and some drawn evenly from all, with the tokens around them.

Two looks at the data. The first keeps, for each latent, the rows of largest activation (one a text) and a number of
rows drawn evenly from all on which it fires: strongest rows alone make every latent look clearer than it is. The second
look reads only the rows around those, to show the latent's activation on each token of its context. So the data may be
as long as you like and in any order: memory holds the examples and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from mechanome.activations.accumulators import Density, TopExamples
from mechanome.core import BadInput, Stream
from mechanome.dictionaries.codes import SparseCodes
from mechanome.dictionaries.metrics.evaluate import batches, joined

if TYPE_CHECKING:
    from mechanome.activations import Activations
    from mechanome.dictionaries.dictionary import Dictionary

_POSITIONS = 1 << 24
"""A row is found again by `seq * _POSITIONS + pos`."""
_LABELS = ("seq", "pos", "token")


@dataclass(frozen=True)
class Context:
    """One row on which a latent fires, with the tokens around it.

    Args:
        drawn: whether it was drawn evenly from all such rows; else it is one of the strongest.
        value: the activation there.
        seq, pos: where it is.
        tokens: ids of the context; None where the data have no row (dropped tokens).
        values: the latent's activation on each.
        at: the place of the row among them.
    """

    drawn: bool
    value: float
    seq: int
    pos: int
    tokens: tuple[int | None, ...]
    values: tuple[float, ...]
    at: int


@dataclass(frozen=True)
class Found:
    """What both looks found.

    Args:
        contexts: per chosen latent, the strongest first, then those drawn, by activation.
        density: how often, and how strongly, every latent of the dictionary is active.
        rows: how many rows were seen.
    """

    contexts: tuple[tuple[Context, ...], ...]
    density: Density
    rows: int


def look(
    dictionary: Dictionary,
    data: Iterable[Activations] | Any,
    latents: Sequence[int],
    *,
    top: int,
    drawn: int,
    before: int,
    after: int,
    rows: int | None = None,
    seed: int = 0,
) -> Found:
    """Find the contexts of some latents.

    Args:
        dictionary: whose latents. data: a store, a stream or a list of batches; it is read twice.
        latents: which.
        top, drawn: contexts each of the strongest and of those drawn.
        before, after: tokens around each.
        rows: read so many; None for one epoch.
        seed: of the draw.

    Raises:
        BadInput: data that can be read once only or have no labels "seq", "pos" and "token", or no rows.
    """
    open_again = _again(data)
    strongest, even, density = TopExamples(top), TopExamples(drawn), Density(bits=2)
    seen = 0
    for batch in open_again(rows):
        ids, seq = _ids(batch)
        codes = _encoded(dictionary, batch)
        density.update(codes)
        codes = _only(codes, latents)
        strongest.update(codes, ids, seq)
        even.update(_lots(codes, ids, seed), ids)
        seen += batch.rows
    if not seen:
        raise BadInput("feature cards", "the data have no rows", "give a stream or store with rows")
    peaks = [(kept, kept.ids.numpy()) for kept in (strongest, even)]
    windows = _Windows(np.concatenate([ids for _, ids in peaks], axis=1), before, after)
    # Neighbors of the rows that were read may be anywhere in the data.
    for batch in open_again(rows if _endless(data) else None):
        windows.update(dictionary, batch, latents)
    contexts = tuple(tuple(_contexts(windows, unit, top)) for unit in range(len(latents)))
    return Found(contexts, density, seen)


def _again(data: Any) -> Callable[[int | None], Iterator[Activations]]:
    """Data as something that can be read from its start, up to so many rows, whenever it is called."""
    if hasattr(data, "stream") or isinstance(data, Sequence):
        return lambda rows: batches(data, rows)
    if not isinstance(data, Stream):
        raise BadInput("the data of feature cards", "they can be read once only", "give a stream, a store or a list")
    start = data.state()

    def reopened(rows: int | None) -> Iterator[Activations]:
        data.seek(start)
        return batches(data, rows)

    return reopened


def _endless(data: Any) -> bool:
    return getattr(data, "epochs", 1) is None


def _ids(batch: Activations) -> tuple[Tensor, Tensor]:
    missing = [name for name in _LABELS if name not in batch.labels]
    if missing:
        raise BadInput("feature cards", f"the rows have no label {missing[0]}", "harvest them from text or chats")
    seq, pos = batch.labels["seq"].long().cpu(), batch.labels["pos"].long().cpu()
    return seq * _POSITIONS + pos, seq


def _encoded(dictionary: Dictionary, batch: Activations) -> SparseCodes:
    with torch.no_grad():
        return dictionary.encode(joined(batch, dictionary.spec.sites_in, dictionary)).to("cpu")


def _only(codes: SparseCodes, latents: Sequence[int]) -> SparseCodes:
    """The code of some latents, numbered in their order."""
    return codes if list(latents) == list(range(codes.width)) else SparseCodes.of_dense(codes.pick(list(latents)))


def _lots(codes: SparseCodes, ids: Tensor, seed: int) -> SparseCodes:
    """A lot for each active entry, in (0, 1], that depends on row and latent alone, whatever the order of rows."""
    unit = codes.indices.numpy().astype(np.uint64)
    row = ids.numpy().astype(np.uint64)[codes.pattern.rows.numpy()]
    with np.errstate(over="ignore"):
        x = row * np.uint64(0x9E3779B97F4A7C15) + unit * np.uint64(0xD1B54A32D192ED03) + np.uint64(seed)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)  # the finalizer of SplitMix64
        x ^= x >> np.uint64(31)
    lots = ((x >> np.uint64(11)).astype(np.float64) + 1) * 2.0**-53
    values = torch.where(codes.values > 0, torch.from_numpy(lots), 0.0)
    return SparseCodes(codes.indices, values, codes.offsets, codes.width)


class _Windows:
    """Tokens and activations around some rows, filled in whatever order rows come.

    Args:
        peaks: ids of rows `[unit, place]`, -1 for none. before, after: tokens around each.
    """

    def __init__(self, peaks: np.ndarray, before: int, after: int) -> None:
        self.peaks = peaks
        self.offsets = np.arange(-before, after + 1)
        around = peaks[:, :, None] + self.offsets
        pos = peaks[:, :, None] % _POSITIONS + self.offsets
        self.inside = (peaks[:, :, None] >= 0) & (pos >= 0) & (pos < _POSITIONS)
        self.rows = np.unique(around[self.inside])
        self.tokens = np.full(len(self.rows), -1, dtype=np.int64)
        self.place = np.searchsorted(self.rows, np.where(self.inside, around, 0)).clip(max=max(len(self.rows) - 1, 0))
        unit = np.broadcast_to(np.arange(len(peaks))[:, None, None], self.place.shape)
        self.key = unit * len(self.rows) + self.place
        self.pairs = np.unique(self.key[self.inside])
        self.values = np.zeros(len(self.pairs))

    def update(self, dictionary: Dictionary, batch: Activations, latents: Sequence[int]) -> None:
        """Fill in what a batch knows; only rows that stand around an example are encoded."""
        ids = _ids(batch)[0].numpy()
        place = np.searchsorted(self.rows, ids).clip(max=max(len(self.rows) - 1, 0))
        wanted = self.rows[place] == ids if len(self.rows) else np.zeros(len(ids), dtype=bool)
        if not wanted.any():
            return
        place, kept = place[wanted], batch.take(torch.from_numpy(wanted))
        self.tokens[place] = kept.labels["token"].long().cpu().numpy()
        codes = _only(_encoded(dictionary, kept), latents)
        key = codes.indices.numpy() * len(self.rows) + place[codes.pattern.rows.numpy()]
        at = np.searchsorted(self.pairs, key).clip(max=len(self.pairs) - 1)
        hit = self.pairs[at] == key
        self.values[at[hit]] = codes.values.double().numpy()[hit]

    def of(self, unit: int, place: int, drawn: bool) -> Context:
        """One example."""
        inside, places = self.inside[unit, place], self.place[unit, place]
        tokens = [int(t) if ok else -1 for t, ok in zip(self.tokens[places], inside)]
        known = [i for i, token in enumerate(tokens) if token >= 0]
        values = self.values[np.searchsorted(self.pairs, self.key[unit, place]).clip(max=len(self.pairs) - 1)]
        first, last = known[0], known[-1] + 1
        peak = int(self.peaks[unit, place])
        centre = int(-self.offsets[0])
        return Context(
            drawn,
            float(values[centre]),
            peak // _POSITIONS,
            peak % _POSITIONS,
            tuple(token if token >= 0 else None for token in tokens[first:last]),
            tuple(float(v) if t >= 0 else 0.0 for v, t in zip(values[first:last], tokens[first:last])),
            centre - first,
        )


def _contexts(windows: _Windows, unit: int, top: int) -> Iterator[Context]:
    found = [
        windows.of(unit, place, place >= top)
        for place in range(windows.peaks.shape[1])
        if windows.peaks[unit, place] >= 0
    ]
    yield from sorted(found, key=lambda c: (c.drawn, -c.value, c.seq, c.pos))
