"""What a model says behind a site, for many values of the site: blocks before it run once, the rest for all values.

`Suffix` runs the model once and keeps the site's own values, the stream that the rest starts from, the last stream and
the loss of each token. Then every other value of the site (a reconstruction, zero, a mean) is one more copy of the rows
in one batch that starts at the site's block. What the model says as it is, is never computed again but for its head,
which turns the last stream into the logits that KL compares with; keeping those would take a hundred times the memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mechanome.core import BadInput, NotServed, ShapeMismatch
from mechanome.engine import Batch, Edit, Site
from mechanome.engine import memory as sizes
from mechanome.engine.asked import opened_model
from mechanome.engine.operations import Capture
from mechanome.engine.plan import Plan
from mechanome.engine.resume import Stub, install, record
from mechanome.engine.run import build_plan, execute
from mechanome.engine.site import parse
from mechanome.engine.taps import logits_of

if TYPE_CHECKING:
    from mechanome.engine import Model
    from mechanome.engine.inputs import Inputs


@dataclass(frozen=True)
class Losses:
    """What the model says at each position that has a next token; NaN elsewhere. Axes `[row, pos]`, float64.

    Args:
        ce: cross-entropy of the next token, nats.
        kl: from the model as it is to this one, nats.
        top1: 1 where both have the same most likely next token.
    """

    ce: Tensor
    kl: Tensor
    top1: Tensor


@dataclass(frozen=True)
class _Piece:
    """Some rows of the inputs, and what the model left at them."""

    rows: range
    batch: Batch
    values: Mapping[Site, Tensor]
    stream: Tensor
    last: Tensor
    like: Sequence[object]


class Suffix:
    """The model behind a site.

    Args:
        model: a causal language model.
        inputs: texts, chats or ids; rows of different length are padded.
        site: where values stand in.
        reads: further sites whose values are kept, such as the one that a transcoder reads.
        budget: memory for logits and copies of rows; rows are cut into pieces that fit.

    Attributes:
        ce: loss of the model as it is, `[row, pos]`, NaN where there is no next token.
        real: where tokens are, `[row, pos]`; False on padding.
        skipped: blocks that no variant runs.

    Raises:
        NotServed: several towers, a model that is not causal, no logits, a site that cannot be edited.
        UnknownSite: no such site.
    """

    def __init__(
        self,
        model: Model,
        inputs: Inputs,
        site: str | Site,
        *,
        reads: Sequence[str | Site] = (),
        budget: sizes.Budget = None,
    ) -> None:
        opened_model(model)
        self.model, self.site = model, _same_stream(model, parse(site))
        if why := model.why_not_edit(self.site):
            raise NotServed(f"losses behind {site}", why, "choose a site that can be edited")
        tower = model.architecture.tower(None)
        if not tower.causal:
            raise NotServed(f"losses of {model.name}", "its tokens see later ones", "use a causal language model")
        self.asked, self.skipped = parse(site), self._blocks()
        self.reads = (self.asked, *(parse(read) for read in reads))
        batch = model.encode(inputs)
        self.budget = sizes.parse_budget(budget, model.device)
        self.vocabulary = model.weight("W_U").value.shape[1]
        self.real = torch.zeros(batch.rows, batch.frame.width, dtype=torch.bool)
        for row, (start, length) in enumerate(zip(batch.frame.starts, batch.frame.lengths)):
            self.real[row, start : start + length] = True
        self.ce = torch.full(self.real.shape, torch.nan, dtype=torch.float64)
        step = sizes.pieces(batch.rows, self._each(2), self.budget, "row of text")
        starts = range(0, batch.rows, step)
        self._pieces = [self._first(batch, range(i, min(i + step, batch.rows))) for i in starts]

    def _blocks(self) -> int:
        depth = len(self.model.architecture.tower(None).blocks)
        if self.site.is_path or self.site.point == "embed":
            return 0  # where a module of the user's own stands is unknown, so nothing can be left out
        return depth if self.site.layer is None else self.site.layer

    def _each(self, copies: int) -> int:
        # Logits, their log-softmax and what KL makes of it; everything else is smaller.
        return 4 * copies * sizes.nbytes(self.real.shape[1], self.vocabulary)

    def _first(self, batch: Batch, rows: range) -> _Piece:
        """The model as it is."""
        part = batch.take(rows)
        model, captures = self.model, [Capture(site, copy=site.whole in self.model.volatile) for site in self.reads]
        plan = build_plan(model, captures)
        finish = record(model, model.architecture.tower(None), plan)
        with torch.no_grad():
            logits = _logits(model, execute(model, part, plan))
        recorded = finish()
        self.ce[list(rows)] = _cross_entropy(logits, part, self.real[list(rows)])
        values = {capture.site: capture.values[0] for capture in captures}
        if wrong := [site for site, x in values.items() if x.dim() != 3]:
            what = f"losses behind {wrong[0]}"
            raise NotServed(what, "it is no vector per token", "give one head of it, or a site that is")
        stream, last = recorded.stream(self.skipped), recorded.stream(len(recorded.outputs))
        return _Piece(rows, part, values, stream, last, [_shell(output) for output in recorded.outputs])

    def values(self, site: str | Site | None = None) -> Tensor:
        """What a site holds in the model as it is, `[token, d]`: real tokens, row by row; None for the site itself."""
        wanted = self.asked if site is None else parse(site)
        return torch.cat([piece.values[wanted][self.real[list(piece.rows)]] for piece in self._pieces])

    def losses(self, variants: Mapping[str, Tensor]) -> dict[str, Losses]:
        """What the model says with other values of the site.

        Args:
            variants: by name, `[token, d]` for the real tokens row by row (as `values` gives them), or `[d]` for all.

        Raises:
            ShapeMismatch: values of another shape. NotServed: weights that changed meanwhile.
        """
        whole = {name: self._whole(name, given) for name, given in variants.items()}
        found = {
            name: [torch.full(self.real.shape, torch.nan, dtype=torch.float64) for _ in range(3)] for name in whole
        }
        for piece in self._pieces:
            for names in self._batches(list(whole), len(piece.rows)):
                self._run(piece, names, whole, found)
        return {name: Losses(*parts) for name, parts in found.items()}

    def _batches(self, names: list[str], rows: int) -> list[list[str]]:
        """Variants that are run at once: as many copies as fit, beside one of the model as it is."""
        most = max(1, sizes.pieces(len(names) + 1, rows * self._each(1), self.budget, "variant") - 1)
        return [names[i : i + most] for i in range(0, len(names), most)]

    def _whole(self, name: str, given: Tensor) -> Tensor:
        tokens, d = int(self.real.sum()), self._pieces[0].values[self.asked].shape[-1]
        if given.shape not in ((d,), (tokens, d)):
            shapes = f"shape {list(given.shape)} at {self.asked}"
            raise ShapeMismatch(f"variant '{name}'", shapes, f"give [{tokens}, {d}] or [{d}]")
        whole = torch.zeros(*self.real.shape, d, dtype=given.dtype)
        whole[self.real] = given.cpu()
        return whole

    def _run(
        self, piece: _Piece, names: list[str], whole: Mapping[str, Tensor], found: Mapping[str, list[Tensor]]
    ) -> None:
        """Copies of a piece's rows, one a variant."""
        rows, n = list(piece.rows), len(piece.rows)
        real, own = self.real[rows], piece.values[self.asked]
        # Padding keeps its own values: whatever stands there must not become a number that is not finite.
        values = [torch.where(real[..., None].to(own.device), whole[name][rows].to(own), own) for name in names]
        batch = piece.batch.take([row for _ in names for row in range(n)])
        plan = build_plan(self.model, (), [Edit(self.site, "set", torch.cat(values))])
        self._skip(plan, piece.stream.repeat(len(names), 1, 1), piece.like[: self.skipped])
        as_it_is = Plan(root=self.model.module)
        self._skip(as_it_is, piece.last, piece.like)
        with torch.no_grad():
            logits = _logits(self.model, execute(self.model, batch, plan)).unflatten(0, (len(names), n))
            clean = _logits(self.model, execute(self.model, piece.batch, as_it_is)).float().log_softmax(-1)
        predicts = ~self.ce[rows].isnan()
        for name, scores in zip(names, logits):
            said = scores.float().log_softmax(-1)
            divergence = (clean.exp() * (clean - said)).sum(-1).double().cpu()
            same = (clean.argmax(-1) == said.argmax(-1)).double().cpu()
            found[name][0][rows] = _cross_entropy(scores, piece.batch, real)
            for part, value in ((1, divergence), (2, same)):
                found[name][part][rows] = torch.where(predicts, value, torch.nan)

    def _skip(self, plan: Plan, stream: Tensor, like: Sequence[object]) -> None:
        """Leave out as many blocks as there are structures of their outputs; what comes behind gets the stream."""
        for block, output in zip(self.model.architecture.tower(None).blocks, like):
            install(block.part.module)
            plan.blocks[block.part.module] = Stub(stream, output)


def _same_stream(model: Model, site: Site) -> Site:
    """The stream a block returns is what the next one receives, and starting there costs a block less."""
    if site.point != "resid_post" or site.layer is None or site.layer + 1 >= len(model.architecture.tower(None).blocks):
        return site
    return Site("resid_pre", site.layer + 1, neuron=site.neuron, tower=site.tower)


def _shell(output: object) -> object:
    """What a block returned without its numbers: its structure is needed, its tensors are not."""
    if isinstance(output, Tensor):
        return output.new_empty(0)
    if isinstance(output, (tuple, list)):
        return type(output)(x.new_empty(0) if isinstance(x, Tensor) and i == 0 else x for i, x in enumerate(output))
    return output


def _logits(model: Model, output: object) -> Tensor:
    logits = logits_of(output)
    if logits is None or logits.dim() != 3:
        raise NotServed(f"losses of {model.name}", "it has no logits at each position", "use a causal language model")
    return logits


def _cross_entropy(logits: Tensor, batch: Batch, real: Tensor) -> Tensor:
    """Loss of each next token, `[row, pos]` float64; NaN where the next position holds no token."""
    ids = batch.input_ids
    if ids.shape[1] < 2:
        raise BadInput("these inputs", "they have one token each, and nothing to predict", "give longer texts")
    scores = logits[:, :-1].float()
    said = (scores.logsumexp(-1) - scores.gather(-1, ids[:, 1:, None])[..., 0]).double().cpu()
    found = torch.full(real.shape, torch.nan, dtype=torch.float64)
    found[:, :-1] = torch.where(real[:, 1:] & real[:, :-1], said, torch.nan)
    return found
