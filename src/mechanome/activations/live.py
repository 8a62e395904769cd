"""`ModelActivations`: a model runs over texts while something is trained on what it computes; nothing is stored."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from mechanome.activations.activations import Activations
from mechanome.activations.drop import Drop
from mechanome.activations.mixing import Mixed
from mechanome.activations.permutation import Permutation
from mechanome.activations.policy import chunks, kept_rows, median_norms
from mechanome.activations.reader import Reader
from mechanome.activations.recipe import named_texts
from mechanome.activations.sequences import sequences
from mechanome.engine.asked import opened_model
from mechanome.engine.inputs import Bos
from mechanome.engine.model import Model
from mechanome.engine.site import Site


class ModelActivations(Mixed):
    """Activations as a model makes them, sequence by sequence, mixed in a bounded buffer.

    Every epoch runs the model over all sequences again. To train several times on the same rows, `harvest` them once.

    Args:
        model, texts, sites, tokens, context, packing, bos, drop, compute: as in `harvest`.
        batch: rows in a batch; the last of an epoch may be smaller.
        mix: rows of the mixing buffer; sequences come in random order and rows are mixed over two thirds of it at a
            time. 0 gives rows in the order of the text.
        dtype: of the values given out.
        rows_at_once: most tokens of a forward pass; None is 2048 on a CPU, 16384 elsewhere.
        seed: of every order. epochs: how many passes; None goes on for ever.

    Raises:
        As `harvest`. A row with NaN raises NotFinite when it comes.
    """

    def __init__(
        self,
        model: Model,
        texts: Any,
        sites: str | Site | Iterable[str | Site],
        *,
        batch: int = 4096,
        tokens: int | None = None,
        context: int = 256,
        packing: str = "packed",
        mix: int = 65_536,
        bos: Bos = "auto",
        drop: Drop | None = None,
        dtype: torch.dtype = torch.float32,
        compute: str = "auto",
        rows_at_once: int | None = None,
        seed: int = 0,
        epochs: int | None = None,
    ) -> None:
        opened_model(model)
        items, _ = named_texts(texts)
        first = model.bos if bos == "auto" else bos
        data = sequences(items, model.tokenizer, packing=packing, context=context, tokens=tokens, bos=first, quiet=True)
        self.drop = Drop.of(drop)
        self.reader = Reader(model, sites, data, context=context, compute=compute, at_once=rows_at_once)
        identity = {
            "data": data.sha256, "sites": list(self.reader.sites), "compute": self.reader.compute, "context": context,
            "drop": self.drop.record(), "at_once": self.reader.at_once,
        }  # fmt: skip
        super().__init__(mix, batch, seed, epochs, identity, dtype)
        self.medians = median_norms(self.reader) if self.drop.sinks else {}
        self._planned: tuple[int, list[np.ndarray]] | None = None

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites."""
        return self.reader.sites

    @property
    def widths(self) -> dict[str, int]:
        """Per site, d."""
        return self.reader.widths

    @property
    def rows(self) -> int | None:
        """Rows of an epoch; None where norms decide what is dropped."""
        if self.drop.sinks:
            return None
        data = self.reader.data
        return int(self.drop.by_place(data, *data.places(np.arange(len(data)))).sum())

    def pieces(self, epoch: int) -> int:
        """Pieces of an epoch: sequences that are run together."""
        return len(self._plan(epoch))

    def piece(self, epoch: int, k: int) -> Activations:
        """The kept rows of a piece."""
        return kept_rows(self.reader, self._plan(epoch)[k], self.drop, self.medians)[0]

    def _plan(self, epoch: int) -> list[np.ndarray]:
        """The sequences of each piece of an epoch."""
        if self._planned is None or self._planned[0] != epoch:
            data, every = self.reader.data, np.arange(len(self.reader.data))
            order = Permutation(len(data), self.seed, epoch)(every) if self.mix else every
            size = self.piece_rows if self.mix else self.reader.at_once
            self._planned = epoch, [order[part] for part in chunks(data.lengths[order], size)]
        return self._planned[1]
