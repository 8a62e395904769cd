"""`Model`: an opened network. The one object users hold; its methods are thin and live in their own files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from mechanome.core.errors import BadInput
from mechanome.engine import gradients, memory, preflight, resume, run
from mechanome.engine.edits import Edit
from mechanome.engine.frame import Positions
from mechanome.engine.gradients import Gradients
from mechanome.engine.inputs import Inputs, Spans
from mechanome.engine.metrics import Metric
from mechanome.engine.opened import Opened
from mechanome.engine.resume import Prefix
from mechanome.engine.run import Run
from mechanome.engine.site import Site


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
        batch, sites, changes = self.encode(inputs, spans=spans), self.expand(capture), flatten(edits)
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
        params: Sequence[str] = (),
        modules: Sequence[str] = (),
        per_example: bool = False,
        edits: Edit | Iterable[Edit | Iterable[Edit]] = (),
        rules: Sequence[str] = (),
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
        return gradients.grad(
            self,
            metric,
            self.encode(inputs),
            self.expand(sites),
            params=params,
            modules=modules,
            per_example=per_example,
            edits=flatten(edits),
            rules=rules,
            at=at,
            prefix=prefix,
        )

    def weight(self, name: str, tower: str | None = None) -> Tensor:
        """A weight, always as in `x @ W`: `W_Q.5.h3`, `W_out.7`, `W_U` ...; see `mechanome.engine.weights`."""
        from mechanome.engine import weights

        return weights.weight(self, name, tower).value


def flatten(edits: Edit | Iterable[Edit | Iterable[Edit]] | None) -> list[Edit]:
    """Edits given singly, in a list, or in nested lists (as `AttentionKnockout` returns) as one list.

    Raises:
        BadInput: something that is not an edit.
    """
    if edits is None:
        return []
    if isinstance(edits, Edit):
        return [edits]
    flat: list[Edit] = []
    for item in edits:
        if isinstance(item, Edit):
            flat.append(item)
        elif isinstance(item, Iterable) and not isinstance(item, (str, Tensor)):
            flat += flatten(item)
        else:
            raise BadInput(f"edit {item!r}", "it is not an Edit", "use Patch, Ablate, Add ... from mechanome")
    return flat
