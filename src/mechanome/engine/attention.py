"""One attention function for every family: unmodified models call it, and it asks the plan what to do.

It is registered with `AttentionInterface` *and* `AttentionMaskInterface` under a key per native backend
(`mechanome_sdpa`, `mechanome_eager`): without the second registration Transformers would build no mask and
attention would silently become bidirectional. Where the plan asks nothing of a module the native backend
runs; only a module whose scores or pattern are read or edited leaves the fast path.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

from mechanome.core.errors import NotServed
from mechanome.engine.plan import Plan, active

PREFIX = "mechanome_"
BACKENDS = ("sdpa", "eager", "flash_attention_2", "flash_attention_3", "flash_attention_4", "flex_attention")

# Keyword arguments that models pass to attention: those that change the numbers are used below; those that do
# not are listed, so that a new one is noticed instead of ignored.
_USED = frozenset({"dropout", "scaling", "softcap", "s_aux", "position_bias", "is_causal", "sliding_window"})
_HARMLESS = frozenset(
    {
        "cache", "cache_position", "deterministic", "head_mask", "labels", "layer_idx", "logits_to_keep",
        "num_items_in_batch", "output_attentions", "output_hidden_states", "output_router_logits",
        "past_key_values", "position_embeddings", "position_ids", "return_dict", "target_dtype", "use_cache",
        "cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "token_type_ids",
    }
)  # fmt: skip
SCORE_SLOTS = frozenset({"scores", "pattern"})


def key_for(backend: str) -> str:
    """The registry key that adds taps to a native backend; registers it on first use.

    Raises:
        NotServed: a backend that is not known.
    """
    if backend.startswith(PREFIX):
        return backend
    if backend not in BACKENDS:
        raise NotServed(f"attention backend '{backend}'", "it is not known", "load with attn_implementation='sdpa'")
    key = PREFIX + backend
    if key not in ALL_ATTENTION_FUNCTIONS:
        AttentionInterface.register(key, _tapped(backend))
        AttentionMaskInterface.register(key, ALL_MASK_ATTENTION_FUNCTIONS[backend])
    return key


def native(key: str) -> str:
    """The native backend behind a key."""
    return key.removeprefix(PREFIX)


def _tapped(backend: str) -> Any:
    def attention(
        module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        plan = active()
        bounds = plan.attention.get(module) if plan is not None else None
        if plan is None or bounds is None:
            return _native(backend, module, query, key, value, attention_mask, **kwargs)
        for slot in ("q", "k", "v"):
            if slot in bounds:
                raw = {"q": query, "k": key, "v": value}[slot]
                new = plan.apply(bounds[slot], raw)
                query, key, value = (
                    (new, key, value) if slot == "q" else (query, new, value) if slot == "k" else (query, key, new)
                )
        if not SCORE_SLOTS & bounds.keys():
            return _native(backend, module, query, key, value, attention_mask, **kwargs)
        return explicit_attention(module, query, key, value, attention_mask, plan, bounds, **kwargs)

    return attention


def _native(backend: str, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
    if backend != "eager":
        return ALL_ATTENTION_FUNCTIONS[backend](module, *args, **kwargs)
    # Eager functions are not registered: each modeling file has its own, because families differ there.
    own = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if own is None:
        return explicit_attention(module, *args, **kwargs)
    return own(module, *args, **kwargs)


def explicit_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    plan: Plan | None = None,
    bounds: dict[str, list[Any]] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention with its scores and probabilities in the open.

    Args:
        module: the calling attention module.
        query: `batch head query d_head`. key, value: `batch kv key d_head`, key/value heads not repeated.
        attention_mask: None (causal if the module is), bool or additive float `batch 1|head query key`.
        plan, bounds: operations for the slots `scores` and `pattern` (axes `batch head query key`).

    Returns:
        mixed values `batch query head d_head`, and the pattern `batch head query key`.

    Raises:
        NotServed: an argument that could change the numbers and is not known here.
    """
    unknown = [k for k, v in kwargs.items() if k not in _USED | _HARMLESS and v is not None and v is not False]
    if unknown:
        raise NotServed(
            f"scores and pattern of {type(module).__name__}",
            f"attention receives '{unknown[0]}', which the explicit path does not know",
            "use q, k, v and z",
        )
    groups = query.shape[1] // key.shape[1]
    keys = key.repeat_interleave(groups, dim=1) if groups > 1 else key
    values = value.repeat_interleave(groups, dim=1) if groups > 1 else value
    scaling = kwargs.get("scaling")
    scores = torch.matmul(query, keys.transpose(2, 3)) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if (softcap := kwargs.get("softcap")) is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if (bias := kwargs.get("position_bias")) is not None:
        scores = scores + bias[..., -scores.shape[-2] :, -scores.shape[-1] :]
    scores = _masked(scores, attention_mask, module, kwargs.get("is_causal"))
    alone: Tensor | None = None
    if plan is not None and bounds and "scores" in bounds:
        scores = plan.apply(bounds["scores"], scores)
        # A query all of whose keys were knocked out attends to nothing; a softmax would turn to what the mask hides.
        lowest = torch.finfo(scores.dtype).min / 2
        alone = (scores.amax(-1, keepdim=True) <= lowest) & (scores == float("-inf")).any(-1, keepdim=True)
        scores = scores.masked_fill(alone, lowest)
    precision = torch.float64 if scores.dtype == torch.float64 else torch.float32
    sinks = kwargs.get("s_aux")
    if sinks is not None:
        column = sinks.reshape(1, -1, 1, 1).expand(scores.shape[0], -1, scores.shape[2], -1)
        # As the models with sinks do it, in their own precision, so that half precision gives the same experts.
        combined = torch.cat([scores, column.to(scores.dtype)], -1)
        pattern = torch.softmax(combined - combined.amax(-1, keepdim=True), -1)[..., :-1]
    else:
        pattern = torch.softmax(scores, dim=-1, dtype=precision)
    pattern = pattern.to(query.dtype)
    if alone is not None and sinks is None:
        pattern = pattern.masked_fill(alone, 0.0)
    if plan is not None and bounds and "pattern" in bounds:
        pattern = plan.apply(bounds["pattern"], pattern)
    dropped = nn.functional.dropout(pattern, p=kwargs.get("dropout") or 0.0, training=module.training)
    return torch.matmul(dropped, values).transpose(1, 2).contiguous(), pattern


def _masked(scores: Tensor, mask: Any, module: nn.Module, is_causal: bool | None) -> Tensor:
    lowest = torch.finfo(scores.dtype).min
    if mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        queries, keys = scores.shape[-2:]
        if not causal or queries == 1:
            return scores
        ahead = torch.ones(queries, keys, dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill(ahead, lowest)
    if not isinstance(mask, Tensor) or mask.dim() != 4:
        raise NotServed(
            f"scores and pattern of {type(module).__name__}",
            "this attention backend has no mask per query and key",
            "load the model with attn_implementation='sdpa'",
        )
    mask = mask[..., : scores.shape[-1]]
    if mask.dtype == torch.bool:
        return scores.masked_fill(~mask, lowest)
    return (scores + mask).clamp(min=lowest)


def install(root: nn.Module) -> dict[int, str]:
    """Switch every registry-using config inside a model to its tapped key.

    Returns:
        the native backend per config, by `id`, for those that were switched.
    """
    switched: dict[int, str] = {}
    for module in root.modules():
        config = getattr(module, "config", None)
        check = getattr(module, "_can_set_attn_implementation", None)
        if config is None or check is None or id(config) in switched or not check():
            continue
        backend = getattr(config, "_attn_implementation", None)
        if backend is None or native(backend) not in BACKENDS:
            continue
        config._attn_implementation_internal = key_for(backend)
        switched[id(config)] = native(backend)
    return switched
