"""What a model makes of a stream: its own last norm, unembedding and soft-cap, whatever they are, and nothing else.

The model's own forward runs on a prompt of one token, with every block skipped and the given streams in place of the
last block's output. So the readout is the model's own code, costs no block, and gradients flow through it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mechanome.core import NotServed, ShapeMismatch
from mechanome.engine import Batch, Model
from mechanome.engine.plan import Plan
from mechanome.engine.resume import Recorded, Stub, record
from mechanome.engine.run import execute
from mechanome.engine.taps import hidden, logits_of

# How far the readout of the last stream may be from the logits: rounding of other matrix shapes.
_AGREE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.5}


@dataclass(frozen=True)
class Readout:
    """From last-layer streams to logits: `readout(stream [row, d_model]) -> [row, vocab]`. Made by `Readout.of`."""

    model: Model
    carrier: Batch
    recorded: Recorded

    @classmethod
    def of(cls, model: Model) -> Readout:
        """The readout of a language model with one tower.

        Raises:
            NotServed: several towers, no logits, or a last block whose output is not what the logits are made from.
        """
        what, fix = f"a lens on {model.name}", "use a causal or masked language model"
        depth = model.n_layers
        if model.config is not None and not model.accepts("input_ids"):
            raise NotServed(what, "it reads no token ids", fix)
        first = next((i for i in _first_tokens(model) if isinstance(i, int)), 0)
        carrier = model.encode([[first]], bos="none")
        plan = Plan(root=model.module)
        finish = record(model, model.architecture.tower(None), plan)
        with torch.no_grad():
            logits = logits_of(execute(model, carrier, plan))
        recorded = finish()
        if logits is None or logits.dim() != 3:
            raise NotServed(what, "it has no logits at each position", fix)
        found = cls(model, carrier, recorded)
        twice = found(recorded.stream(depth)[0].expand(2, -1))
        error = float((twice - logits[0]).abs().max() / logits.abs().max()) if len(twice) == 2 else float("inf")
        if not error <= _AGREE[model.dtype]:
            raise NotServed(what, f"its logits are not made from its last block's output alone ({error:.1g} off)", fix)
        return found

    @property
    def width(self) -> int:
        """The stream's width."""
        return self.recorded.first.shape[-1]

    def __call__(self, stream: Tensor) -> Tensor:
        """Logits `[row, vocab]` of last-layer streams `[row, d_model]`, on the graph of the streams if they have one.

        Raises:
            ShapeMismatch: streams of another shape.
        """
        if stream.dim() != 2 or stream.shape[1] != self.width:
            raise ShapeMismatch(
                f"a stream of shape {list(stream.shape)}", f"the model's is {self.width} wide", "give [row, d_model]"
            )
        plan, blocks = Plan(root=self.model.module), self.recorded.tower.blocks
        self.recorded.stub(plan, len(blocks))
        last, like = blocks[-1].part.module, self.recorded.outputs[-1]
        plan.blocks[last] = Stub(stream[:, None].to(hidden(like)), like)
        with torch.set_grad_enabled(torch.is_grad_enabled() and stream.requires_grad):
            logits = logits_of(execute(self.model, self.carrier, plan))
        assert logits is not None
        return logits[:, 0]


def _first_tokens(model: Model) -> list[object]:
    return [getattr(model.tokenizer, "bos_token_id", None), getattr(model.text_config, "bos_token_id", None)]
