"""How the next token is chosen: settings of the model's own `generate`, a sampler with its own random numbers.

Settings are three tables: those passed on, those refused because they break the rule that one forward pass of
the model predicts one token, and those that shape a sampling distribution.
"""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import (
    EpsilonLogitsWarper,
    GenerationConfig,
    GenerationMixin,
    LogitsProcessor,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from mechanome.core.errors import BadInput, NotServed, UnknownName, nearest
from mechanome.engine.asked import count
from mechanome.engine.model import Model
from mechanome.engine.plain import integers, number, whole

Eos = Literal["auto"] | int | Sequence[int] | None

PASSED = frozenset(
    {
        "bad_words_ids", "early_stopping", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty",
        "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id", "length_penalty",
        "min_length", "min_new_tokens", "no_repeat_ngram_size", "remove_invalid_values", "renormalize_logits",
        "repetition_penalty", "sequence_bias", "suppress_tokens", "begin_suppress_tokens",
    }
)  # fmt: skip

_DRAFTS = ("it drafts several tokens a pass, so a step is no longer one state", "leave it out: results are the same")
_MODES = ("its loop does not predict one token from one state of one pass", "use greedy, sampling or beam search")
REFUSED: Mapping[str, tuple[str, str]] = {
    "assistant_model": _DRAFTS,
    "assistant_early_exit": _DRAFTS,
    "prompt_lookup_num_tokens": _DRAFTS,
    "use_mtp": _DRAFTS,
    "penalty_alpha": _MODES,
    "dola_layers": _MODES,
    "num_beam_groups": _MODES,
    "diversity_penalty": _MODES,
    "constraints": _MODES,
    "force_words_ids": _MODES,
    "custom_generate": _MODES,
    "low_memory": _MODES,
    "guidance_scale": ("it runs the model twice a token", "leave it out, or combine two results yourself"),
    "watermarking_config": ("it biases scores after the choice is made", "leave it out"),
    "prefill_chunk_size": ("it cuts the prompt into several passes", "leave it out"),
    "token_healing": ("it rewrites the prompt", "leave it out"),
    "num_return_sequences": ("rows are prompts", "repeat the prompt, one seed each"),
    "cache_implementation": ("keys would lie in slots that are not positions", "leave it out: the cache is dynamic"),
    "past_key_values": ("states it holds were never seen by the edits", "pass the whole prompt"),
    "cache_params": ("states it holds were never seen by the edits", "pass the whole prompt"),
    "streamer": ("it knows one row only", "use on_token"),
    "stopping_criteria": ("rows would end for a reason that is not reported", "use stop= and eos="),
    "logits_processor": ("log-probabilities would not say what was chosen from", "use an edit of 'logits'"),
    "max_length": ("it counts padding", "use max_new_tokens"),
}
_HARMLESS: Mapping[str, Any] = {
    "num_return_sequences": 1,
    "num_beam_groups": 1,
    "guidance_scale": 1.0,
    "diversity_penalty": 0.0,
    "token_healing": False,
    "low_memory": False,
    "use_mtp": False,
    "max_length": 20,
}
_DYNAMIC = (None, "dynamic", "hybrid")  # 'hybrid' is an old name that Transformers itself reads as dynamic

WARPERS: Mapping[str, Callable[[Any], LogitsProcessor]] = {
    "temperature": lambda v: TemperatureLogitsWarper(float(number(v, "temperature"))),
    "top_k": lambda v: TopKLogitsWarper(count("top_k", v)),
    "top_p": lambda v: TopPLogitsWarper(float(number(v, "top_p"))),
    "min_p": lambda v: MinPLogitsWarper(float(number(v, "min_p"))),
    "typical_p": lambda v: TypicalLogitsWarper(float(number(v, "typical_p"))),
    "epsilon_cutoff": lambda v: EpsilonLogitsWarper(float(number(v, "epsilon_cutoff"))),
}
_NEUTRAL: Mapping[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "typical_p": 1.0, "epsilon_cutoff": 0.0}

_SEEDS = "give one seed, or one per row"

# Classes with a `generate` of their own that wraps the common loop, which alone obeys the step rule.
_WRAPPED = frozenset({"WhisperForConditionalGeneration"})


def loop_of(model: Model) -> Any:
    """The model's own generation loop, as a function of the loop's arguments.

    Raises:
        NotServed: a module without one, or with one that does not follow the step rule.
    """
    owner = model.core
    if not isinstance(owner, GenerationMixin):
        raise NotServed(
            f"generation with {type(owner).__name__}",
            "it is not a Transformers model with a generation loop",
            "call run in a loop, appending a token each time",
        )
    if any(getattr(c, "is_prompt_learning", False) for c in getattr(model.module, "peft_config", {}).values()):
        raise NotServed("generation with prompt learning", "its virtual tokens are no positions", "use a LoRA adapter")
    if type(owner).generate is not GenerationMixin.generate and type(owner).__name__ not in _WRAPPED:
        raise NotServed(
            f"generation with {type(owner).__name__}",
            "its own generate does not say which state predicts which token",
            "call run in a loop, appending a token each time",
        )
    return lambda **arguments: GenerationMixin.generate(owner, **arguments)


def configure(
    model: Model, settings: Mapping[str, Any], *, max_new_tokens: int, num_beams: int, eos: tuple[int, ...], cache: bool
) -> tuple[GenerationConfig, tuple[str, ...]]:
    """The configuration of one generation, and what of it came from the model's own configuration.

    Raises:
        NotServed: a setting, given or the model's own, that breaks the step rule. UnknownName: no such setting.
    """
    own: GenerationConfig = model.core.generation_config
    for name in settings:
        if name in REFUSED:
            raise NotServed(f"'{name}' in generation", *REFUSED[name])
        if name not in PASSED:
            raise UnknownName(
                f"setting '{name}'", "generation has none of this name", nearest(name, PASSED | set(WARPERS))
            )
    for name in REFUSED:
        value = getattr(own, name, None)
        fine = name in ("cache_implementation", "max_length") or value is None or value == _HARMLESS.get(name)
        if not fine:
            raise NotServed(f"'{name}' in the model's generation_config", *REFUSED[name])
    config = copy.deepcopy(own)
    # None would be filled in again from the model's own configuration, so what is off gets its neutral value.
    quiet = {"do_sample": False, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "typical_p": 1.0, "min_p": None}
    pad = next((p for p in (own.pad_token_id, getattr(model.tokenizer, "pad_token_id", None)) if isinstance(p, int)), 0)
    config.update(
        **quiet,
        **settings,
        max_new_tokens=max_new_tokens,
        num_beams=num_beams,
        num_return_sequences=1,
        use_cache=cache,
        return_dict_in_generate=True,
        pad_token_id=pad,
        # An id that no token has: rows end at no token at all.
        eos_token_id=list(eos) or [_vocabulary(model)],
    )
    if own.cache_implementation not in _DYNAMIC:
        config.cache_implementation = "dynamic"
    inherited = {n: getattr(own, n, None) for n in sorted(PASSED - set(settings))}
    neutral = {"repetition_penalty": 1.0, "length_penalty": 1.0, "min_length": 0, "no_repeat_ngram_size": 0}
    notes = tuple(
        f"{name}={value} from the model's generation_config"
        for name, value in inherited.items()
        if value is not None and value is not False and value != neutral.get(name)
    )
    return config, notes


def _vocabulary(model: Model) -> int:
    config = model.config
    return int((getattr(config, "text_config", None) or config).vocab_size)


def end_tokens(model: Model, eos: Eos) -> tuple[int, ...]:
    """The ids that end a row: given ones, none, or what the model or its tokenizer say."""
    if eos == "auto":
        sources = (getattr(model.core, "generation_config", None), model.config, model.tokenizer)
        eos = next((v for v in (getattr(s, "eos_token_id", None) for s in sources) if v is not None), None)
    if eos is None:
        return ()
    return (int(eos),) if isinstance(eos, int) else tuple(int(i) for i in eos)


class Draw(LogitsProcessor):
    """Draws each row's token from its own random numbers, and leaves only that token possible.

    Neither the global random state nor another thread or row can change what a row draws.

    Args:
        warpers: shape the distribution, in order. seeds: one per row.
    """

    def __init__(self, warpers: Sequence[LogitsProcessor], seeds: Sequence[int]) -> None:
        self.warpers = warpers
        self.generators = [torch.Generator().manual_seed(s) for s in seeds]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        for warper in self.warpers:
            scores = warper(input_ids, scores)
        wide = torch.float32 if scores.device.type == "mps" else torch.float64
        total = scores.to(wide).softmax(-1).cumsum(-1)
        uniform = torch.cat([torch.rand(1, generator=g, dtype=torch.float64) for g in self.generators])
        # The first token whose cumulative probability exceeds the draw; impossible tokens never do.
        target = uniform.to(total)[:, None] * total[:, -1:]
        chosen = torch.searchsorted(total, target, right=True).clamp(max=scores.shape[-1] - 1)
        return torch.full_like(scores, float("-inf")).scatter(1, chosen, 0.0)


def sampler(
    model: Model, shape: Mapping[str, Any], do_sample: bool | None, seed: int | Sequence[int] | None, rows: int
) -> tuple[Draw | None, tuple[int, ...]]:
    """The sampler and its seeds, or None for the most likely token.

    Args:
        shape: values of `WARPERS`, None where not given.
        do_sample: None samples exactly if something of `shape` is given.
        seed: row r uses `seed + r`, or its own of a list; None draws a fresh one.

    Raises:
        BadInput: contradictory or impossible settings.
    """
    given = {k: v for k, v in shape.items() if v is not None}
    if do_sample is None:
        do_sample = bool(given)
    if not do_sample:
        if given:
            raise BadInput(f"{next(iter(given))} with do_sample=False", "nothing is drawn", "set do_sample=True")
        return None, ()
    for name, value in given.items():
        number(value, name)  # before True passes for 1.0, which changes nothing
    if given.get("temperature", 1.0) <= 0:
        raise BadInput(f"temperature {given['temperature']}", "it must be positive", "leave it out for greedy decoding")
    own = model.core.generation_config
    values = {k: given.get(k, getattr(own, k, None)) for k in WARPERS}
    try:
        warpers = [WARPERS[k](v) for k, v in values.items() if v is not None and v != _NEUTRAL.get(k)]
    except ValueError as error:
        raise BadInput("sampling settings", str(error), "see their documentation") from error
    first = secrets.randbits(48) if seed is None else whole(seed)
    seeds = tuple(first + r for r in range(rows)) if first is not None else integers(seed, "seed", _SEEDS)
    if len(seeds) != rows:
        raise BadInput(f"{len(seeds)} seeds", f"there are {rows} rows", _SEEDS)
    return Draw(warpers, seeds), seeds
