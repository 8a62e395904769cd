"""Skip what cannot change: stubs for blocks before an edit, and an encoded prefix for tokens before it.

A stubbed block does not run; it returns a stored stream, in the structure the block itself returned before. The
model's own forward is called all the same, so embeddings, masks, rotary positions and the head stay its code.
Stubs are installed once per block and consult the active plan, as taps do, so threads never see each other's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from mechanome.core.errors import BadInput, NotServed
from mechanome.engine.architecture import Tower
from mechanome.engine.edits import Edit
from mechanome.engine.frame import Positions
from mechanome.engine.inputs import Batch
from mechanome.engine.plan import Plan, activate, active
from mechanome.engine.taps import hidden, replaced

if TYPE_CHECKING:
    from mechanome.engine.model import Model

_CACHE_NAMES = ("cache", "past_key_values", "past_key_value", "layer_past", "cache_params")


_installing = Lock()


class _BlockForward:
    """A block's forward that first asks the plan; survives deepcopy with its module."""

    def __init__(self, module: nn.Module, original: Callable[..., Any]) -> None:
        self.module, self.original = module, original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        plan = active()
        replacement = plan.blocks.get(self.module) if plan is not None else None
        if replacement is None:
            return self.original(*args, **kwargs)
        return replacement(self.original, args, kwargs)


def install(module: nn.Module) -> None:
    """Let plans replace a block's forward. Wraps whatever forward the instance has (accelerate sets one too)."""
    with _installing:
        if not isinstance(module.__dict__.get("forward"), _BlockForward):
            module.forward = _BlockForward(module, module.forward)


def is_wrapped(module: nn.Module) -> bool:
    """Whether a block's own forward is still what runs, behind our wrapper."""
    wrapped = vars(module).get("forward")
    return isinstance(wrapped, _BlockForward) and getattr(wrapped.original, "__self__", None) is module


@dataclass(frozen=True)
class Stub:
    """Return a stored stream instead of running the block.

    Args:
        value: the stream `[batch, pos, d_model]`.
        like: what the block returned when it ran, for the structure and any further elements.
    """

    value: Tensor
    like: Any

    def __call__(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        named = [kwargs[name] for name in _CACHE_NAMES if kwargs.get(name) is not None]
        caches = [value for value in (*args, *kwargs.values()) if isinstance(value, Cache)]
        for cache in (*named, *caches):
            if not getattr(cache, "read_only", False):
                raise NotServed(
                    "resuming with a live key/value cache",
                    "a skipped block would leave its keys and values out of the cache",
                    "run without a cache, or with a Prefix",
                )
        like = copy.copy(self.like) if not isinstance(self.like, Tensor) else self.like
        return replaced(like, self.value)


@dataclass(frozen=True)
class Recorded:
    """What a base run left behind to resume from.

    Attributes:
        outputs: per block, its raw output.
        first: the stream that enters block 0.
        start: the position of the first column (not 0 where a prefix was resumed from).
        version: the model's `weights_state` at that time.
    """

    tower: Tower
    outputs: tuple[Any, ...]
    first: Tensor
    version: tuple[int, int]
    start: int = 0

    def stream(self, layer: int) -> Tensor:
        """The stream entering block `layer`, `[batch, pos, d_model]`."""
        if layer == 0:
            return self.first
        value = hidden(self.outputs[layer - 1])
        assert value is not None
        return value

    def stub(self, plan: Plan, layer: int, start: int = 0) -> None:
        """Make `plan` skip the blocks before `layer`, for the positions from `start` on."""
        for index in range(layer):
            block = self.tower.blocks[index].part.module
            install(block)
            value = hidden(self.outputs[index])
            assert value is not None
            plan.blocks[block] = Stub(value[:, start - self.start :], self.outputs[index])


def record(model: Model, tower: Tower, plan: Plan, start: int = 0) -> Callable[[], Recorded]:
    """Let a plan record what resuming needs; call the result after the forward pass.

    Args:
        start: the position of the pass's first column.
    """
    outputs: list[Any] = [None] * len(tower.blocks)
    first: list[Tensor] = []

    def recorder(index: int) -> Callable[..., Any]:
        def replacement(original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if index == 0:
                first.append(args[0] if args else kwargs["hidden_states"])
            outputs[index] = original(*args, **kwargs)
            return outputs[index]

        return replacement

    for i, block in enumerate(tower.blocks):
        install(block.part.module)
        plan.blocks[block.part.module] = recorder(i)

    def finish() -> Recorded:
        if not first or any(o is None for o in outputs):
            raise NotServed(f"resuming {model.name}", "some blocks did not run", "use method='naive'")
        return Recorded(tower, tuple(outputs), first[0], model.weights_state(), start)

    return finish


def _frozen(layer: DynamicLayer, length: int) -> DynamicLayer:
    """A read-only copy of one cache layer, cut to `length` tokens, that serves any number of rows."""
    frozen = copy.copy(layer)
    frozen.keys = layer.keys[..., :length, :]
    frozen.values = layer.values[..., :length, :]
    frozen.__class__ = _ReadOnlyLayer
    return frozen


class _ReadOnlyLayer(DynamicLayer):
    """Returns stored and new keys and values together, and stores nothing."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        rows = key_states.shape[0]
        keys, values = (t.expand(rows, -1, -1, -1) if t.shape[0] == 1 else t for t in (self.keys, self.values))
        return torch.cat([keys, key_states], dim=-2), torch.cat([values, value_states], dim=-2)


class ReadOnlyCache(DynamicCache):
    """A cache that a forward pass may read but never changes."""

    read_only = True

    def __init__(self, layers: Sequence[DynamicLayer]) -> None:
        super().__init__()
        self.layers = list(layers)
        self.layer_class_to_replicate = None


@dataclass(frozen=True)
class Prefix:
    """Tokens encoded once, accepted by run, grad and patching in place of running them again.

    Attributes:
        tokens: their ids.
        cache: keys and values of every layer (all positions, also where a window hides some).
        version: the model's `weights_state` when it was made.
    """

    tokens: tuple[int, ...]
    cache: DynamicCache = field(repr=False)
    version: tuple[int, int]

    def __len__(self) -> int:
        return len(self.tokens)

    def cut(self, length: int) -> ReadOnlyCache:
        """The first `length` tokens as a cache that serves any number of rows and is never changed."""
        return ReadOnlyCache([_frozen(layer, length) for layer in self.cache.layers])

    def thaw(self) -> DynamicCache:
        """A cache that can grow; growing it leaves the prefix as it is."""
        grown = DynamicCache()
        grown.layers = [copy.copy(layer) for layer in self.cache.layers]
        return grown

    def rest(self, model: Model, batch: Batch) -> Batch:
        """A batch without the tokens of this prefix, with positions still counted from the start.

        Raises:
            BadInput: a row that does not start with the prefix, or ends with it. NotServed: edited weights.
        """
        if self.version != model.weights_state():
            raise NotServed(
                "this prefix", "it was made with another model, or with other weights", "encode it again: model.prefix"
            )
        n = len(self)
        ids = batch.input_ids
        start = torch.tensor(self.tokens, device=ids.device)
        if any(batch.frame.starts) or min(batch.frame.lengths) <= n or not bool((ids[:, :n] == start).all()):
            raise BadInput("these inputs", f"not every row starts with the {n} prefix tokens and goes on", "check them")
        arguments = {**batch.arguments, "input_ids": ids[:, n:]}
        frame = batch.frame.at(n, ids.shape[1] - n)
        return replace(batch, arguments=arguments, frame=frame)

    def refuse_earlier(self, batch: Batch, edits: Iterable[Edit], pos: Positions) -> None:
        """Refuse edits and captures of positions that are already encoded.

        Raises:
            NotServed: with the first position that can be reached.
        """
        n = len(self)
        for edit in edits:
            if any(p < n for row in range(batch.rows) for p in batch.frame.positions(edit.where.pos, row)):
                raise NotServed(f"{edit}", "it reaches into the encoded prefix", f"restrict it: edit.at(pos='{n}:')")
        if pos is not None and any(p < n for row in range(batch.rows) for p in batch.frame.positions(pos, row)):
            raise NotServed(f"a capture at {pos!r}", "it is in the encoded prefix", f"use positions from {n} on")


def can_prefix(model: Model) -> str | None:
    """Why this model cannot resume from a prefix, or None if it can."""
    towers = model.architecture.towers
    if len(towers) != 1 or not towers[0].causal:
        return "its tokens see later ones, or it has several towers"
    if any("mixer" in block.roles for block in towers[0].blocks):
        return "its state-space layers have no key/value cache"
    if not model.accepts("cache"):
        return "its forward takes no cache"
    return None


def encode_prefix(model: Model, batch: Batch) -> Prefix:
    """Run tokens once and keep their keys and values.

    Args:
        batch: one unpadded row.

    Raises:
        NotServed: a model without a key/value cache. BadInput: several rows or padding.
    """
    why = can_prefix(model)
    if why:
        raise NotServed(f"a prefix for {model.name}", why, "run the whole prompt")
    if batch.rows != 1 or batch.frame.padded or batch.frame.offset:
        raise BadInput("a prefix", "it must be one prompt without padding", "pass a single text")
    cache = DynamicCache()
    with torch.no_grad(), activate(None):
        model.module(**{**model.arguments(batch), "cache": cache, "use_cache": True, **model.keep_logits(1)})
    return Prefix(tuple(batch.input_ids[0].tolist()), cache, model.weights_state())


def shared_prefix(model: Model, row: Batch, length: int) -> Prefix | None:
    """The first tokens of a row, encoded for its many variants; None for none, or for a model that cannot resume.

    Args:
        row: one row of token ids. length: how many of its tokens.
    """
    if length < 1 or can_prefix(model) is not None:
        return None
    return encode_prefix(model, model.encode(row.input_ids[:, :length], bos="none"))
