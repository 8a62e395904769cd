"""`GeneratedActivations`: the states of a model while it writes, one row per generated token."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from typing import Any

import torch

from mechanome.activations.activations import Activations
from mechanome.activations.mixing import Mixed
from mechanome.activations.recipe import named_texts
from mechanome.core.errors import BadInput, NotFinite
from mechanome.engine.asked import count, opened_model
from mechanome.engine.model import Model
from mechanome.engine.site import Site

_OURS = ("capture", "pos", "reduce", "seed", "to", "num_beams", "on_token")

_WHY, _FIX = "NaN or infinity among its states", "load the model in float32, or leave these prompts out"


class GeneratedActivations(Mixed):
    """Activations of generated tokens, by the rule of steps: the state of step s predicts generated token s.

    Rows are labeled "seq" and "doc" (which prompt), "step", "pos" (of the state, in real tokens), "token" (that the
    state is of: step 0 is the last token of the prompt) and "next" (the token it predicted), int64.

    Args:
        model: an opened model. prompts: whatever `texts` opens, or rows of token ids. sites: names and globs.
        max_new_tokens: at most so many per prompt.
        batch: rows in a batch; the last of an epoch may be smaller.
        mix: rows of the mixing buffer, as in `ModelActivations`; 0 gives rows prompt by prompt, in the order of steps.
        rows_at_once: prompts that are continued together.
        dtype: of the values given out.
        seed: of every order, and of the tokens that are drawn, where they are: prompt i of epoch e has its own seed.
        epochs: how many passes; None goes on for ever.
        options: further ones of `model.generate`: `temperature`, `edits`, `stop` ...

    Raises:
        BadInput: an option that this stream sets itself. NotFinite: a state with NaN, when it comes.
    """

    def __init__(
        self,
        model: Model,
        prompts: Any,
        sites: str | Site | Iterable[str | Site],
        *,
        max_new_tokens: int = 32,
        batch: int = 4096,
        mix: int = 65_536,
        rows_at_once: int = 16,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        epochs: int | None = None,
        **options: Any,
    ) -> None:
        opened_model(model)
        if taken := sorted(set(options) & set(_OURS)):
            raise BadInput(f"{taken[0]}=", "a stream of generated tokens sets it itself", "leave it out")
        self.model, self._sites, self.options = model, model.expand(sites), options
        self.new, self.at_once = count("max_new_tokens", max_new_tokens), count("rows_at_once", rows_at_once)
        self.prompts = [row.tolist() if isinstance(row, torch.Tensor) else row for row in named_texts(prompts)[0]]
        settings = {name: value for name, value in options.items() if name != "edits"}
        identity = {
            "prompts": sha256(json.dumps(self.prompts).encode()).hexdigest(), "sites": list(self.sites),
            "max_new_tokens": self.new, "rows_at_once": self.at_once,
            "options": sha256(repr(sorted(settings.items())).encode()).hexdigest(),
        }  # fmt: skip
        super().__init__(mix, batch, seed, epochs, identity, dtype)
        probe = self._continued(self.prompts[:1], [0], 1, 0)
        self._widths = probe.widths

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites."""
        return tuple(map(str, self._sites))

    @property
    def widths(self) -> dict[str, int]:
        """Per site, d."""
        return self._widths

    @property
    def rows(self) -> None:
        """Not known before an epoch ends: a prompt's continuation may end early."""
        return

    def pieces(self, epoch: int) -> int:
        """Groups of prompts."""
        return -(-len(self.prompts) // self._group)

    def piece(self, epoch: int, k: int) -> Activations:
        """The states of a group of prompts, prompt by prompt."""
        numbers = range(k * self._group, min((k + 1) * self._group, len(self.prompts)))
        parts = [
            self._continued([self.prompts[i] for i in some], list(some), self.new, epoch)
            for some in (numbers[i : i + self.at_once] for i in range(0, len(numbers), self.at_once))
        ]
        return Activations.cat(parts)

    @property
    def _group(self) -> int:
        """Prompts of a piece."""
        return max(1, self.piece_rows // self.new) if self.mix else self.at_once

    def _continued(self, prompts: list[Any], numbers: list[int], new: int, epoch: int) -> Activations:
        start = self.seed + epoch * len(self.prompts)
        found = self.model.generate(
            prompts, max_new_tokens=new, capture=self._sites, seed=[start + i for i in numbers], **self.options
        )
        frame, ids = found.batch.frame, found.batch.input_ids
        steps = [len(tokens) for tokens in found.tokens]
        real = torch.arange(max(steps)) < torch.tensor(steps)[:, None]
        values = {}
        for site in self._sites:
            x = found[site]
            if x.shape[:2] != real.shape:
                raise BadInput(f"site '{site}'", "it has no row per generated token", "use a site of the decoder")
            values[str(site)] = x.flatten(2)[real.to(x.device)].cpu()
            if not bool(torch.isfinite(values[str(site)]).all()):
                raise NotFinite(f"'{site}' while prompts {numbers[0]} to {numbers[-1]} were continued", _WHY, _FIX)
        last = [int(ids[r, s + n - 1]) for r, (s, n) in enumerate(zip(frame.starts, frame.lengths))]
        rows = list(zip(numbers, frame.lengths, last, found.tokens))
        columns = {
            "seq": [i for i, _, _, tokens in rows for _ in tokens],
            "doc": [i for i, _, _, tokens in rows for _ in tokens],
            "step": [s for *_, tokens in rows for s in range(len(tokens))],
            "pos": [n - 1 + s for _, n, _, tokens in rows for s in range(len(tokens))],
            "token": [t for _, _, end, tokens in rows for t in [end, *tokens][: len(tokens)]],
            "next": [t for *_, tokens in rows for t in tokens],
        }
        return Activations(values, {name: torch.tensor(column) for name, column in columns.items()})
