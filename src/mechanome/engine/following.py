"""Follows a generation pass by pass: frames before each pass, captures during it, tokens after it.

A `Follow` is what ties an unmodified generation loop to a plan. The loop knows it as a stopping criterion, which
is called once per step with every id so far; the plan knows it as the operation that says where tokens are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import StoppingCriteria

from mechanome.engine.edits import Edit
from mechanome.engine.frame import Frame, Positions
from mechanome.engine.model import Model
from mechanome.engine.operations import Capture, frame_of, key_frame, take_positions
from mechanome.engine.plan import Bound, Call, Plan
from mechanome.engine.points import POINTS
from mechanome.engine.prompts import Prompt
from mechanome.engine.run import build_plan
from mechanome.engine.site import Site
from mechanome.engine.taps import install
from mechanome.engine.views import Plain
from mechanome.engine.worlds import Worlds


class Accumulator(Protocol):
    """Receives what each step captures, so that nothing is stored."""

    def update(self, site: Site, x: Tensor, /) -> object: ...


Reduce = Accumulator | Callable[[Site, int, Tensor], object]
OnToken = Callable[[int, int, int], object]


class Follow(StoppingCriteria):
    """One generation's bookkeeping.

    Args:
        copies: beams per row. sites, pos, reduce, to, on_token: see `generate`.
        ends: ids that end a row. stops: strings that do.

    Attributes:
        tokens, logprobs, finish: per row, as in `Generation`; finish is None while a row runs.
        once: sites that were captured whole, because they do not grow with the generation.
    """

    def __init__(
        self,
        model: Model,
        prompt: Prompt,
        copies: int,
        sites: Sequence[Site],
        pos: Positions,
        reduce: Reduce | None,
        to: Any,
        on_token: OnToken | None,
        ends: Sequence[int],
        stops: Sequence[str],
    ) -> None:
        rows = prompt.batch.rows
        self.model, self.prompt, self.copies, self.rows = model, prompt, copies, rows
        self.sites, self.pos, self.reduce, self.to, self.on_token = sites, pos, reduce, to, on_token
        self.ends, self.stops = frozenset(ends), stops
        # Every token of a stop string has at least a byte of it; the rest is slack for special tokens.
        self.window = max((len(s.encode()) for s in stops), default=0) + 4
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.logprobs: list[list[float]] = [[] for _ in range(rows)]
        self.finish: list[str | None] = [None] * rows
        self.once = {s for s in sites if s.point in ("cross_k", "cross_v") or not prompt.grows(s.tower)}
        self.kept: dict[Site, list[Tensor]] = {}
        self.scores: Tensor | None = None
        self.beams: list[Tensor] = []
        self.ancestry: Tensor | None = None

    def plan(self, edits: Sequence[Edit]) -> Plan:
        """The plan of this generation: edits per row, captures, and this object's own ears."""
        root, core = self.model.module, self.model.core
        plan = build_plan(self.model, [Capture(s, sink=partial(self._keep, s)) for s in self.sites], edits)
        if core is not root and root in plan.outputs:
            # The loop calls the model inside its wrapper, so what is asked of the wrapper's output moves there.
            plan.outputs.setdefault(core, []).extend(plan.outputs.pop(root))
        self.worlds = Worlds(plan, self.rows, self.copies)
        plan.root = core
        plan.begin.append(self._begin)
        plan.outputs.setdefault(core, []).append(Bound(Plain(), self._hear))
        install(core, "output")
        install(core, "begin")
        self.worlds.update(self.prompt.frames, self.rows)  # for an encoder, which runs before the first pass
        return plan

    def _begin(self, call: Call, kwargs: dict[str, Any]) -> None:
        names = ("decoder_input_ids", "input_ids", "inputs_embeds")
        ids: Tensor = next(kwargs[n] for n in names if kwargs.get(n) is not None)
        self.worlds.update(self.prompt.at(ids.shape[1], call.step), ids.shape[0])

    def _hear(self, x: Tensor, call: Call) -> None:
        self.scores = x[:, -1].detach().to(torch.float32, copy=True)
        if self.copies > 1:
            self.beams.append(self.scores.log_softmax(-1))

    # Captures ------------------------------------------------------------------------------------------------

    def _keep(self, site: Site, x: Tensor) -> None:
        call, step = self.worlds.calls[0], self.worlds.plan.call.step
        if step < 0:
            self.once.add(site)
        if site in self.once:
            if site not in self.kept and step <= 0:
                self._deliver(site, 0, self._prompts(x))
        elif self.pos is None:
            part = x[:, -1]
            if _has_keys(site):
                part = by_key(part, key_frame(site, x, call), self.copies)
            self._deliver(site, step, part)
        elif step == 0:
            x = self._prompts(x)
            part = take_positions(x, frame_of(site, x, call), self.pos)
            self._deliver(site, 0, by_key(part, key_frame(site, x, call)) if _has_keys(site) else part)

    def _prompts(self, x: Tensor) -> Tensor:
        return x[:: self.copies] if x.shape[0] == self.rows * self.copies else x

    def _deliver(self, site: Site, step: int, part: Tensor) -> None:
        if self.reduce is None:
            part = part.clone() if self.to is None else part.to(self.to, copy=True)
            self.kept.setdefault(site, []).append(part)
            return
        live = [r for r, why in enumerate(self.finish) if why is None]
        if not live:
            return
        part = part if len(live) == self.rows else part[torch.tensor(live, device=part.device)]
        part = part.clone() if self.to is None else part.to(self.to, copy=True)
        if site in self.once:
            self.kept[site] = []
        if hasattr(self.reduce, "update"):
            self.reduce.update(site, part)
        else:
            self.reduce(site, step, part)

    def collected(self) -> dict[Site, Tensor]:
        """Per site `[row, step, ...]`, NaN behind a row's last step; what was captured once as it is."""
        if self.reduce is not None:
            return {}
        whole = self.once if self.pos is None else self.kept.keys()
        return {s: parts[0] if s in whole else self._steps(parts) for s, parts in self.kept.items()}

    def _steps(self, parts: list[Tensor]) -> Tensor:
        lengths = torch.tensor([len(t) for t in self.tokens], device=parts[0].device)
        parts = parts[: int(lengths.max())]
        if self.ancestry is not None:
            index = self.ancestry.clamp(min=0).to(parts[0].device)
            parts = [part[index[:, step]] for step, part in enumerate(parts)]
        width = parts[-1].shape[-1]
        grown = [torch.nn.functional.pad(p, (0, width - p.shape[-1]), value=float("nan")) for p in parts]
        x = torch.stack(grown, dim=1)
        over = torch.arange(len(parts), device=x.device) >= lengths[:, None]
        x[over] = float("nan")
        return x

    # Tokens --------------------------------------------------------------------------------------------------

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        if self.copies > 1:
            step = len(self.beams)
            done = [self._stopped(ids) for ids in input_ids[:, -step:].tolist()] if self.stops else False
            return torch.tensor(done, device=input_ids.device).expand(input_ids.shape[0])
        assert self.scores is not None
        newest = input_ids[:, -1]
        logprobs = self.scores.log_softmax(-1).gather(1, newest[:, None].to(self.scores.device))[:, 0].tolist()
        for row, token in enumerate(newest.tolist()):
            if self.finish[row] is None:
                self._add(row, token, logprobs[row])
        return torch.tensor([why is not None for why in self.finish], device=input_ids.device)

    def _add(self, row: int, token: int, logprob: float) -> None:
        tokens = self.tokens[row]
        tokens.append(token)
        self.logprobs[row].append(logprob)
        self.finish[row] = self._end(tokens)
        if self.on_token is not None:
            self.on_token(row, len(tokens) - 1, token)

    def _end(self, tokens: list[int]) -> str | None:
        return "eos" if tokens[-1] in self.ends else "stop" if self._stopped(tokens) else None

    def _stopped(self, tokens: list[int]) -> bool:
        if not self.stops:
            return False
        text = self.model.tokenizer.decode(tokens[-self.window :], clean_up_tokenization_spaces=False)
        return any(s in text for s in self.stops)

    def settle(self, sequences: Tensor, ancestry: Tensor) -> None:
        """Take over what a beam search chose.

        Args:
            sequences: new ids `[row, step]`. ancestry: the batch row that predicted each of them, -1 behind the end.
        """
        self.ancestry = ancestry
        for row, (ids, rows) in enumerate(zip(sequences.tolist(), ancestry.tolist())):
            for step, parent in enumerate(rows):
                if parent >= 0:
                    self._add(row, ids[step], float(self.beams[step][parent, ids[step]]))


def _has_keys(site: Site) -> bool:
    return not site.is_path and "key" in POINTS[site.point].axes


def by_key(x: Tensor, frame: Frame, copies: int = 1) -> Tensor:
    """Keys `[row, ..., key]` from columns to real-token positions, NaN where a row has none or it is out of sight."""
    width = max(frame.lengths) + frame.grown
    out = x.new_full((*x.shape[:-1], width), float("nan"))
    for row in range(x.shape[0]):
        start, length = frame.starts[row // copies], frame.lengths[row // copies] + frame.grown
        shift = start - frame.offset
        first = max(0, -shift)
        out[row, ..., first:length] = x[row, ..., first + shift : length + shift]
    return out
