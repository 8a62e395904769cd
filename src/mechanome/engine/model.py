"""`Model`: an opened network. The one object users hold; its methods are thin and live in their own files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mechanome.core.errors import BadInput
from mechanome.engine import gradients, memory, plain, preflight, resume, run
from mechanome.engine.edits import Edit, flatten
from mechanome.engine.frame import Positions
from mechanome.engine.gradients import Gradients
from mechanome.engine.inputs import Inputs, Spans
from mechanome.engine.metrics import Metric
from mechanome.engine.opened import Opened
from mechanome.engine.resume import Prefix
from mechanome.engine.run import Run
from mechanome.engine.site import Site

if TYPE_CHECKING:
    from mechanome.engine.generation import Generation
    from mechanome.engine.scoring import OptionScores
    from mechanome.engine.weights import Weight


class Model(Opened):
    """A network that can be read, edited and differentiated at named sites. Made by `mechanome.load`."""

    def run(
        self,
        inputs: Inputs,
        capture: str | Site | Iterable[str | Site] = (),
        edits: Edit | Iterable[Edit | Iterable[Edit]] = (),
        pos: Positions = None,
        *,
        logits: bool | str = True,
        keep_graph: bool = False,
        to: Any = None,
        spans: Spans = (),
        prefix: Prefix | None = None,
        budget: memory.Budget = None,
    ) -> Run:
        """Run the model once, with edits, and keep what was asked for.

        Args:
            inputs: text, a chat, ids, a mapping of tensors, or a `Batch`.
            capture: sites and globs to keep.
            edits: what to change.
            pos: keep only these positions (real tokens; see `Frame.positions`).
            logits: True for all, "last" for the last prompt token's `[batch, vocab]`, False for none.
            keep_graph: keep captures and logits attached to the autograd graph.
            to: device or dtype that captures are moved to at once.
            spans: labels for positions, one mapping per prompt.
            prefix: tokens that were encoded before (`model.prefix`) and that every prompt starts with.
            budget: memory, such as "2GB"; rows are run in pieces where they do not fit at once, which `run.notes` says.

        Returns:
            a `Run`: `run.logits`, `run["z.5"]`, `run.axes("z.5")`.
        """
        if logits not in (True, False, "last"):
            raise BadInput(f"logits={logits!r}", "there is no such choice", "use True, 'last' or False")
        batch, sites, changes = self.encode(inputs, spans=spans), self.expand(capture), flatten(edits)
        pos = plain.positions(pos)
        size = preflight.rows_at_once(self, batch, sites, changes, pos, logits, budget)
        options = {"logits": logits, "keep_graph": keep_graph, "to": to, "prefix": prefix}
        if size >= batch.rows:
            return run.run(self, batch, sites, changes, pos, **options)
        pieces = [range(i, min(i + size, batch.rows)) for i in range(0, batch.rows, size)]
        return run.joined(batch, [run.run(self, batch.take(rows), sites, changes, pos, **options) for rows in pieces])

    def prefix(self, inputs: Inputs) -> Prefix:
        """Encode the tokens that many prompts share once.

        Args:
            inputs: one prompt. Its tokens must be exactly the first tokens of the prompts it is used for.

        Raises:
            NotServed: a model without a key/value cache.
        """
        return resume.encode_prefix(self, self.encode(inputs))

    def grad(
        self,
        metric: Metric,
        inputs: Inputs,
        sites: str | Site | Iterable[str | Site] = (),
        *,
        params: str | Sequence[str] = (),
        modules: str | Sequence[str] = (),
        per_example: bool = False,
        edits: Edit | Iterable[Edit | Iterable[Edit]] = (),
        rules: str | Sequence[str] = (),
        at: Positions = "last",
        prefix: Prefix | None = None,
    ) -> Gradients:
        """Gradients of a metric of the logits at one position.

        Args:
            metric: `metric(logits [rows, vocab], rows) -> [rows]`.
            inputs: as in `run`.
            sites: where gradients are taken; weights are frozen meanwhile.
            params: names of parameters to differentiate by. modules: linear modules whose per-example factors
                (activation, delta) are wanted.
            per_example: one parameter gradient per example.
            edits: what to change in the forward pass.
            rules: backward rules (see `mechanome.engine.rules`).
            at: the position whose logits the metric reads.
            prefix: tokens that were encoded before; gradients do not reach into them.

        Returns:
            a `Gradients`: `g["z.5"]`, `g.run["z.5"]`, `g.params[name]`, `g.factors[path].gradient()`.
        """
        if torch.is_inference_mode_enabled():
            raise BadInput("a gradient", "torch.inference_mode() forbids it", "call grad outside of it")
        return gradients.grad(
            self,
            metric,
            self.encode(inputs),
            sites,
            params=params,
            modules=modules,
            per_example=per_example,
            edits=flatten(edits),
            rules=rules,
            at=at,
            prefix=prefix,
        )

    def generate(self, inputs: Inputs, **options: Any) -> Generation:
        """Continue prompts with the model's own loop, under edits and with captures.

        Options are those of `mechanome.engine.generation.generate`: `max_new_tokens`, `edits`, `capture`, `reduce`,
        `temperature`, `seed`, `num_beams`, `stop` ...
        """
        from mechanome.engine.generation import generate

        return generate(self, inputs, **options)

    def logprob(self, prompts: Inputs, continuations: Any, **options: Any) -> Tensor:
        """Log-probability `[row]` of each continuation after its prompt, of any number of tokens.

        Takes the options of `mechanome.engine.scoring.logprob`: `edits`, `per_token`, `spans`, `budget`.
        """
        from mechanome.engine.scoring import logprob

        return logprob(self, prompts, continuations, **options)

    def score_options(self, prompts: Inputs, options: Sequence[Any], **settings: Any) -> OptionScores:
        """Score every option after every prompt; see `mechanome.engine.scoring.score_options`."""
        from mechanome.engine.scoring import score_options

        return score_options(self, prompts, options, **settings)

    def weight(self, name: str, tower: str | None = None) -> Weight:
        """A weight by name, always as in `x @ W`: `W_Q.5.h3`, `W_out.7`, `W_U` ... (see `mechanome.engine.weights`).

        Returns:
            a `Weight`: `.value`, and the `.parameter` and `.selection` it comes from.
        """
        from mechanome.engine.weights import weight

        return weight(self, name, tower)

    def edited_weights(self, edits: Mapping[str, Any], tower: str | None = None) -> AbstractContextManager[None]:
        """Change named weights inside a `with` block; afterwards every bit is as before."""
        from mechanome.engine.weights import edited_weights

        return edited_weights(self, edits, tower)
