"""One dictionary being fitted: its weights, its optimizer, its clocks, and the step that changes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mechanome.dictionaries.architectures import Recipe, TopK
from mechanome.dictionaries.autoencoder import SparseAutoencoder
from mechanome.dictionaries.crew import Crew
from mechanome.dictionaries.dead_latents import auxiliary_loss
from mechanome.dictionaries.fitting.moments import Moments
from mechanome.dictionaries.fitting.revival import revive
from mechanome.dictionaries.fitting.schedule import Schedule
from mechanome.dictionaries.scores import Scorer
from mechanome.dictionaries.selectors import BatchTopKSelector, TopKSelector
from mechanome.dictionaries.trace import Trace

WINDOWS = 20
"""BatchTopK's running threshold is, at most, about that of the last one in so many parts of the fit."""


class Trainee:
    """A dictionary in a fit; a `FitState`.

    Args:
        model: what is fitted, in place.
        recipe: what it is made from.
        rate: peak learning rate.
        schedule: shares of it.
        scorer: how latents are chosen; may be shared with others.
        crew: the processes that fit it together.
        revive_every: steps between revivals of dead latents; None for none.
        clip: largest norm of all gradients together; None for any.
    """

    def __init__(
        self,
        model: SparseAutoencoder,
        recipe: Recipe,
        rate: float,
        schedule: Schedule,
        scorer: Scorer,
        crew: Crew,
        revive_every: int | None = None,
        clip: float | None = None,
    ) -> None:
        self.model, self.form, self.schedule, self.scorer, self.crew = model, recipe.form, schedule, scorer, crew
        self.revive_every, self.clip = revive_every, clip
        faster = recipe.rates(model)
        weights = dict(model.named_parameters())
        ordinary = [p for name, p in weights.items() if name not in faster]
        groups = [{"params": ordinary, "share": 1.0}]
        groups += [{"params": [weights[name]], "share": share} for name, share in faster.items()]
        self.rate = rate
        self.optimizer = torch.optim.Adam(groups, lr=rate, fused=True)
        self.moments = Moments(model.spec.d_out, model.b_enc.device)
        self.last_fired = torch.zeros(model.spec.width, dtype=torch.int64, device=model.b_enc.device)
        self.steps = self.rows = 0
        if isinstance(model.selector, BatchTopKSelector):
            model.selector.crew = crew
            # In a short fit the usual average would still be that of weights that have long changed.
            model.selector.momentum = min(1.0, max(model.selector.momentum, WINDOWS / schedule.steps))

    @property
    def dead(self) -> Tensor:
        """Latents that no row has used for long `[dead]`."""
        return (self.rows - self.last_fired > self.form.dead_after).nonzero().squeeze(1)

    def step(self, x: Tensor, target: Tensor) -> dict[str, Tensor | float]:
        """Learn from normalized rows `x [row, d_in]` and `target [row, d_out]`, the whole batch.

        Returns:
            `loss`; `fvu` of the batch, by the variance about the mean of all rows so far; `l0`; `dead`, as a share;
            penalties by name.
        """
        self._set_pace()
        rows = len(x)
        self.moments.update(target)
        mine = self.crew.share(rows)
        trace = Trace.of(self.model, x[mine], target[mine], self.scorer, rows, self.crew)
        terms = {"reconstruction": trace.reconstruction_loss(), **self.form.penalties(trace), **self._auxiliary(trace)}
        loss = torch.stack(list(terms.values())).sum()
        loss.backward()
        self._learn()
        l0 = self._watch(trace)
        with torch.no_grad():
            error = trace.mean(trace.error.square().sum())
        if self.revive_every is not None and self.steps % self.revive_every == 0 and len(self.dead):
            revive(self.model, self.optimizer, self.dead, trace.x, trace.error, self.crew)
            self.last_fired[self.dead] = self.rows
        fvu = error / self.moments.variance if self.moments.variance else error
        return {"loss": loss.detach(), "fvu": fvu, "l0": l0, "dead": len(self.dead) / len(self.last_fired)}

    def state_dict(self) -> dict[str, Any]:
        """All that the next step depends on."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "moments": self.moments.state_dict(),
            "last_fired": self.last_fired,
            "steps": self.steps,
            "rows": self.rows,
        }

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take a :meth:`state_dict` back."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.moments.load_state_dict(state["moments"])
        self.last_fired.copy_(state["last_fired"])
        self.steps, self.rows = state["steps"], state["rows"]

    def _set_pace(self) -> None:
        factor = self.schedule(self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * factor * group["share"]
        selector = self.model.selector
        if isinstance(self.form, TopK) and isinstance(selector, TopKSelector | BatchTopKSelector):
            selector.k = self.form.k_at(self.steps / self.schedule.steps)

    def _auxiliary(self, trace: Trace) -> dict[str, Tensor]:
        form = self.form
        if not isinstance(form, TopK) or not form.aux_weight or self.steps % form.aux_every:
            return {}
        k = self.model.spec.d_out // 2 if form.aux_k is None else form.aux_k
        dead = self.dead
        if not k or not len(dead):
            return {}
        return {"auxiliary": form.aux_weight * auxiliary_loss(trace, dead, k)}

    def _learn(self) -> None:
        self.crew.add_up(p.grad for p in self.model.parameters() if p.grad is not None)
        self.model.decoder.before_step()
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.model.decoder.after_step()
        self.model.selector.after_step()

    def _watch(self, trace: Trace) -> Tensor:
        """Note which latents fired; returns their mean number in a row."""
        self.steps, self.rows = self.steps + 1, self.rows + trace.rows
        active = trace.codes.indices[trace.codes.values.detach() != 0]
        if self.crew.alone:
            self.last_fired.index_fill_(0, active, self.rows)
        else:
            fired = torch.zeros_like(self.last_fired).index_fill_(0, active, 1)
            self.last_fired[self.crew.total(fired) > 0] = self.rows
        return trace.mean(torch.tensor(float(len(active)), device=active.device))
