"""Read the activations of sequences: forward passes that stop once every site was seen.

The first pass is a whole one, as `model.run` makes it: it shows that each site is reached once, how wide it is, and
which tensors the model changes afterwards. Later passes end at the deepest site, so blocks behind it and the head cost
nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from math import prod

import numpy as np
import torch
from torch import Tensor

from mechanome.activations.activations import Activations
from mechanome.activations.passes import passes
from mechanome.activations.precision import chosen, precision
from mechanome.activations.sequences import Sequences
from mechanome.core.errors import BadInput, NotFinite, NotServed
from mechanome.engine.asked import count, opened_model
from mechanome.engine.inputs import Batch
from mechanome.engine.memory import nbytes
from mechanome.engine.model import Model
from mechanome.engine.operations import Capture
from mechanome.engine.points import POINTS
from mechanome.engine.run import build_plan, execute
from mechanome.engine.site import Site

AT_ONCE = {"cpu": 2048}
"""Tokens of a forward pass, unless told otherwise: few enough on a CPU that what is computed stays near it."""
_AT_ONCE_ELSEWHERE = 16_384


_IN_FLIGHT = 8
"""Tensors of one block that live at the same time: the stream, projections, their outputs."""
_Pieces = Sequence[Sequence[np.ndarray]]
"""Per row of a pass, the tokens of each sequence in it."""


class _Seen(Exception):
    """Every site was captured: nothing behind them is needed."""


class Reader:
    """Reads sites of a model over sequences of tokens.

    Args:
        model: an opened model. sites: names and globs.
        data: the sequences. context: most tokens of a row that several sequences share ("isolated").
        compute: see `precision.COMPUTE`.
        at_once: most tokens of a forward pass; None is 2048 on a CPU, 16384 elsewhere.

    Raises:
        UnknownSite, NotServed: a site that is not there, has no row per token, or is reached more than once.
        BadInput: sequences longer than the model's context. NotServed: a packing this model cannot have.
    """

    def __init__(
        self,
        model: Model,
        sites: str | Site | Iterable[str | Site],
        data: Sequences,
        *,
        context: int = 256,
        compute: str = "auto",
        at_once: int | None = None,
    ) -> None:
        opened_model(model)
        self.model, self.data, self.compute = model, data, chosen(compute, model)
        self._sites = model.expand(sites)
        if not self._sites:
            raise BadInput("sites", "there are none", "name one, such as 'resid_post.5'")
        self.sites = tuple(map(str, self._sites))
        usual = AT_ONCE.get(model.device.type, _AT_ONCE_ELSEWHERE)
        self.at_once = usual if at_once is None else count("rows_at_once", at_once)
        self._shared = min(context, model.context or context) if data.packing == "isolated" else 0
        self._pads = _pads(model)
        longest = int(data.lengths.max())
        if model.context is not None and longest > model.context:
            raise BadInput(
                f"context={longest}", f"the model's is {model.context}", f"give context={model.context} or less"
            )
        for site in self._sites:
            _check_axes(model, site)
        self.widths = {site: x.shape[1] for site, x in self._first_pass().items()}
        if self._shared:
            self._check_isolation()

    @property
    def token_bytes(self) -> int:
        """About what a token takes during a forward pass, captures included (an estimate)."""
        features = self.model.report.features if self.model.report is not None else {}
        axes = ("scores", "pattern", "logits")
        widest = max((prod(v) for k, v in features.items() if k.rpartition("/")[2] not in axes), default=0)
        widths = self.widths.values()
        return (_IN_FLIGHT * max(widest, 4 * max(widths)) + sum(widths)) * nbytes(1, dtype=self.model.dtype)

    def read(self, wanted: np.ndarray) -> Activations:
        """All rows of some sequences.

        Args:
            wanted: numbers of sequences, each at most once.

        Returns:
            rows in the order of `wanted` and of positions; values as the model computed them.

        Raises:
            NotFinite: NaN or infinity; the message names the site, sequence and position.
        """
        wanted = np.asarray(wanted, np.int64)
        # The longest first, so that what does not fit into memory is seen at once.
        groups = passes(wanted, self.data.lengths, shared=self._shared, at_once=self.at_once, pads=self._pads)
        found = [self._pass([[self.data[seq] for seq in row] for row in group.rows]) for group in groups]
        seen = np.array([seq for group in groups for row in group.rows for seq in row])
        place = np.empty(len(self.data), np.int64)
        place[seen] = np.arange(len(seen))
        lengths = self.data.lengths[seen]
        starts = lengths.cumsum() - lengths
        order = np.concatenate([np.arange(starts[k], starts[k] + lengths[k]) for k in place[wanted]])
        index = torch.from_numpy(order)
        values = {site: torch.cat([part[site] for part in found])[index] for site in self.sites}
        seq, pos = self.data.places(wanted)
        for site, x in values.items():
            _check_finite(site, x, seq, pos)
        return Activations(values, self.data.labels(seq, pos))

    def _pass(self, rows: _Pieces, compute: str | None = None) -> dict[str, Tensor]:
        """Per site, the rows of one pass `[row, d]`, in the order of its sequences."""
        batch, index = self._batch(rows)
        captured: dict[Site, Tensor] = {}
        captures = []
        for site in self._sites:

            def keep(x: Tensor, site: Site = site) -> None:
                captured[site] = x
                if len(captured) == len(self._sites):
                    raise _Seen

            captures.append(Capture(site, sink=keep, copy=site.whole in self.model.volatile))
        plan = build_plan(self.model, captures)
        with torch.no_grad(), precision(compute or self.compute, self.model), suppress(_Seen):
            execute(self.model, batch, plan, **self.model.keep_logits(1))
        return {str(site): _rows(captured[site], index) for site in self._sites}

    def _first_pass(self) -> dict[str, Tensor]:
        """A whole forward pass over a few tokens of the data."""
        batch, index = self._batch([[self.data[0][:8]]])
        with precision(self.compute, self.model):
            run = self.model.run(batch, capture=self._sites, logits=False)
        found = {}
        for site in self._sites:
            x = run.captured[site]
            if x.dim() < 2 or x.shape[:2] != (1, len(index)):
                raise NotServed(f"site '{site}' of shape {list(x.shape)}", "it has no row per token", "use another")
            found[str(site)] = _rows(x, index)
        return found

    def _batch(self, pieces: _Pieces) -> tuple[Batch, Tensor]:
        """The inputs of a pass, and where its real tokens are in the flattened rows."""
        rows = [np.concatenate(row) for row in pieces]
        width = max(map(len, rows))
        index = torch.from_numpy(np.concatenate([np.arange(len(row)) + i * width for i, row in enumerate(rows)]))
        if not self._shared:
            return self.model.encode([row.tolist() for row in rows], bos="none"), index
        # Positions that start anew make Transformers keep sequences apart; each padded place is one of its own.
        ids, positions = np.zeros((2, len(rows), width), np.int64)
        for i, row in enumerate(rows):
            ids[i, : len(row)] = row
            positions[i, : len(row)] = np.concatenate([np.arange(len(piece)) for piece in pieces[i]])
        inputs = {"input_ids": torch.from_numpy(ids), "position_ids": torch.from_numpy(positions)}
        return self.model.encode(inputs), index

    def _check_isolation(self) -> None:
        """Two short sequences in one row must come out as each alone.

        Raises:
            NotServed: this model lets them see each other.
        """
        longest = np.argsort(-self.data.lengths, kind="stable")[:2]
        pieces = [self.data[int(seq)][:8] for seq in longest]
        if not self.model.accepts("position_ids"):
            raise _not_isolated(self.model)
        together = self._pass([pieces], "model")
        alone = [self._pass([[piece]], "model") for piece in pieces]
        limit = 1e-3 if self.model.dtype in (torch.float32, torch.float64) else 0.1
        for site, x in together.items():
            expected = torch.cat([part[site] for part in alone]).float()
            if float((x.float() - expected).norm() / expected.norm().clamp_min(1e-30)) > limit:
                raise _not_isolated(self.model)


def _not_isolated(model: Model) -> NotServed:
    return NotServed(
        f"packing='isolated' for {type(model.core).__name__}",
        "texts in one row see each other in this model",
        "use packing='sequence', which has the same activations",
    )


def _pads(model: Model) -> bool:
    """Whether padding on the right changes nothing, as far as the self-test knows."""
    error = model.report.padding_error if model.report is not None else None
    return error is None or error <= (1e-3 if model.dtype in (torch.float32, torch.float64) else 0.1)


def _check_axes(model: Model, site: Site) -> None:
    if site.is_path:
        return
    axes = POINTS[site.point].axes
    if site.point == "logits":
        raise NotServed(f"site '{site}'", "passes end before the head", "use the final resid_post, or model.run")
    if site.point == "head_out":
        raise NotServed(f"site '{site}'", "it is derived from z and W_O", "use z")
    if axes[1] != "pos" or "src" in axes:
        raise NotServed(f"site '{site}'", "it has no row per token", "use a site of the residual stream or of heads")


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """`[batch, pos, feature...]` to the rows of real tokens, `[row, d]`."""
    return x.reshape(x.shape[0] * x.shape[1], -1)[index.to(x.device)].cpu()


def _check_finite(site: str, x: Tensor, seq: np.ndarray, pos: np.ndarray) -> None:
    bad = ~torch.isfinite(x.sum(1, dtype=torch.float32))
    if bool(bad.any()) and bool((bad := ~torch.isfinite(x).all(1)).any()):
        row = int(bad.nonzero()[0])
        raise NotFinite(
            f"'{site}' of sequence {seq[row]}, position {pos[row]}",
            f"{int(bad.sum())} of {len(x)} rows hold NaN or infinity",
            "use compute='model', load the model in float32, or leave this text out",
        )
