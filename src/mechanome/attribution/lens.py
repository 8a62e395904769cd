"""Logit lens: what the model would predict if it stopped at a site.

A stream is put in place of the last block's output, and the model's own last norm and unembedding do the rest. So the
last row is the model's prediction itself. Earlier rows are a reading, not a fact: the model never stops there, and
early layers need not use the last one's coordinates. A tuned lens (`fit_tuned_lens`) translates them first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from mechanome.attribution.readout import Readout
from mechanome.attribution.tuned_lens import TunedLens
from mechanome.core import BadInput, ShapeMismatch, Table
from mechanome.engine import Model, Site
from mechanome.engine.asked import in_vocabulary, opened_model, token_ids
from mechanome.engine.frame import Positions
from mechanome.engine.inputs import Inputs

Translate = Callable[[Site, Tensor], Tensor]
"""From a site's stream `[..., d_model]` to the last one's coordinates: the identity for the logit lens."""

_ROWS_AT_ONCE = 256


@dataclass(frozen=True)
class Lens:
    """Predictions read at sites.

    Attributes:
        sites: where the stream was read, in order.
        logits: `[site, row, vocab]`, or `[site, row, pos, vocab]` for several positions.
        tokens: for tables: the text of a token id.
        id: the id of a text of one token.
        name: of the lens, for tables.
    """

    sites: tuple[Site, ...]
    logits: Tensor = field(repr=False)
    tokens: Callable[[int], str] = field(repr=False)
    id: Callable[[str], int] = field(repr=False)
    name: str = "logit lens"

    @property
    def log_probs(self) -> Tensor:
        """Log-probabilities in nats, axes as `logits`."""
        return self.logits.float().log_softmax(-1)

    def of(self, token: int | str) -> Tensor:
        """Log-probability of one token, an id or its text such as " Paris", `[site, row ...]`."""
        return self.log_probs[..., self._token(token)]

    def rank(self, token: int | str) -> Tensor:
        """Rank of one token (1 is the top), an id or its text, `[site, row ...]`."""
        id = self._token(token)
        return (self.logits > self.logits[..., id : id + 1]).sum(-1) + 1

    def _token(self, token: int | str) -> int:
        ids = token_ids("token", self.id(token) if isinstance(token, str) else token)
        in_vocabulary("token", ids, self.logits.shape[-1])
        return int(ids[0])

    def table(self, row: int = 0, k: int = 3) -> Table:
        """The likeliest tokens at each site, for one row at a single position.

        Raises:
            BadInput: several positions were read.
        """
        if self.logits.dim() != 3:
            raise BadInput("a lens table", "several positions were read", "read one, such as pos='last'")
        probs, ids = self.log_probs[:, row].exp().topk(k, dim=-1)
        rows = [
            (str(site), ", ".join(f"{self.tokens(int(i))!r} {float(p):.2f}" for p, i in zip(ps, chosen)))
            for site, ps, chosen in zip(self.sites, probs, ids)
        ]
        return Table(("site", "likeliest next tokens"), rows, f"{self.name} (a reading, not what the model does)")

    def _repr_html_(self) -> str:
        return self.table().html()


def logit_lens(
    model: Model,
    inputs: Inputs,
    sites: str | Site | Iterable[str | Site] = ("resid_pre.0", "resid_post.*"),
    *,
    pos: Positions = "last",
    translate: Translate | None = None,
) -> Lens:
    """Read the stream at sites as next-token predictions.

    Args:
        sites: any sites of the residual stream's width.
        pos: at which positions.
        translate: a map into the last layer's coordinates, such as a `TunedLens`.

    Raises:
        BadInput: no site, or a tuned lens of another model. ShapeMismatch: a site that is not of the stream's width.
        NotServed: a model whose logits are not made from its last block's output.
    """
    opened_model(model)
    if isinstance(translate, TunedLens):
        translate.check(model)
    chosen = model.expand(sites)
    if not chosen:
        raise BadInput("a lens", "it reads no site", "name some, such as 'resid_post.*'")
    readout = Readout.of(model)
    run = model.run(inputs, capture=chosen, pos=pos, logits=False)
    read = [run[s] if translate is None else translate(s, run[s]) for s in chosen]
    for site, stream in zip(chosen, read):
        if stream.shape != read[0].shape or stream.shape[-1] != readout.width:
            raise ShapeMismatch(
                f"a lens at {site}",
                f"it is {list(stream.shape)}, the stream is {readout.width} wide",
                "name stream sites",
            )
    streams = torch.stack(read)
    with torch.no_grad():
        flat = streams.reshape(-1, readout.width)
        logits = torch.cat([readout(part) for part in flat.split(_ROWS_AT_ONCE)]).reshape(*streams.shape[:-1], -1)
    text = (lambda i: model.tokenizer.decode([i])) if model.tokenizer is not None else str
    name = "logit lens" if translate is None else "tuned lens"
    return Lens(tuple(chosen), logits, text, model.single_token, name)
