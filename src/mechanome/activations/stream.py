"""Streams of activations: batches with a position that can be left and found again.

Every stream here is made of segments: pieces that a source can make at any time from their number (the rows of a shard,
of some sequences of text, of an array). A position is an epoch, a segment and a row in it, so `seek` costs one segment,
whatever came before, and is exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch

from mechanome.activations.activations import Activations
from mechanome.core.errors import BadInput, CorruptFile
from mechanome.core.streams import Stream
from mechanome.engine.asked import count, seed_of
from mechanome.engine.plain import whole


@runtime_checkable
class ActivationStream(Stream, Protocol):
    """Batches of `Activations`, with a position (see `mechanome.core.Stream`).

    Attributes:
        sites: names. widths: per site, d. rows: rows of an epoch; None where they are not known before it ends.
    """

    @property
    def sites(self) -> tuple[str, ...]: ...

    @property
    def widths(self) -> dict[str, int]: ...

    @property
    def rows(self) -> int | None: ...

    def __iter__(self) -> Iterator[Activations]: ...


class Segmented(ABC):
    """A stream made of segments; what every source shares.

    A source gives `sites`, `widths`, `rows`, `segments(epoch)` and `segment(epoch, k)`, which must return the same rows
    whenever it is asked. Batches go on across segments; only the last batch of an epoch may be smaller.

    Args:
        batch: rows in a batch.
        seed: of every order the source draws.
        epochs: how many passes; None goes on for ever.
        identity: what else a position depends on, as JSON; `seek` refuses a position of another identity.
        dtype: of the values given out; None leaves them as they are.
    """

    def __init__(
        self,
        batch: int,
        seed: int,
        epochs: int | None,
        identity: Mapping[str, Any],
        dtype: torch.dtype | None = None,
    ) -> None:
        self.batch, self.seed = count("batch", batch), seed_of(seed)
        self.epochs = None if epochs is None else count("epochs", epochs)
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise BadInput(f"dtype={dtype!r}", "activations are real numbers", "give torch.float32, say")
        self.dtype = dtype
        self._identity = {"batch": self.batch, "seed": self.seed, **identity}
        self._epoch = self._segment = self._row = 0

    @abstractmethod
    def segments(self, epoch: int) -> int:
        """How many segments an epoch has."""

    @abstractmethod
    def segment(self, epoch: int, k: int) -> Activations:
        """The rows of a segment, in the order they are given out."""

    def __iter__(self) -> Iterator[Activations]:
        while self.epochs is None or self._epoch < self.epochs:
            yield from self._epoch_batches()

    def _epoch_batches(self) -> Iterator[Activations]:
        """The rest of this epoch. The position is moved before a batch is given out, so `state()` names the next."""
        epoch, parts, held = self._epoch, [], 0
        seen = (self._segment, self._row) != (0, 0)
        for k in range(self._segment, self.segments(epoch)):
            whole, start = self.segment(epoch, k), self._row
            while start < whole.rows:
                stop = min(start + self.batch - held, whole.rows)
                parts.append(whole.take(slice(start, stop)))
                held, start = held + stop - start, stop
                if held == self.batch:
                    self._segment, self._row = k, start
                    yield Activations.cat(parts).to(self.dtype)
                    parts, held, seen = [], 0, True
                    if (self._epoch, self._segment, self._row) != (epoch, k, start):
                        return  # someone sought another position meanwhile
            self._row = 0
        self._epoch, self._segment, self._row = epoch + 1, 0, 0
        if parts:
            yield Activations.cat(parts).to(self.dtype)
        elif not seen and epoch == 0:
            raise BadInput("an activation stream", "it has no rows", "check the texts, the sites and what is dropped")

    def state(self) -> dict[str, Any]:
        """Position of the next batch, with what the order was made from; JSON."""
        return {**self._identity, "epoch": self._epoch, "segment": self._segment, "row": self._row}

    def seek(self, state: Mapping[str, Any]) -> None:
        """Go to a position of `state`.

        Raises:
            CorruptFile: it is no position. BadInput: it is one of a stream made otherwise.
        """
        if not isinstance(state, Mapping) or state.keys() != self.state().keys():
            holds = sorted(state) if isinstance(state, Mapping) else type(state).__name__
            raise CorruptFile("stream position", f"it holds {holds}", "use a position of the same stream")
        for name, mine in self._identity.items():
            if state[name] != mine:
                raise BadInput("stream position", f"{name} was {state[name]}, now {mine}", "use the same settings")
        place = [whole(state[name]) for name in ("epoch", "segment", "row")]
        if any(part is None or part < 0 for part in place):
            raise CorruptFile("stream position", f"it is at {dict(state)}", "use a position of the same stream")
        self._epoch, self._segment, self._row = place  # type: ignore[assignment]  # none is None
