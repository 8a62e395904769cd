"""Teacher forcing: prompts and given answers through the model, and the log-probability of each answer token.

Two ways to the same numbers: prompt and answer of each row in one pass, or each prompt once with a cache and its
answers on copies of it. Rows are cut into pieces that fit a budget, and only logits that are read are computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, NotServed
from mechanome.engine.edits import Edit
from mechanome.engine.frame import Frame
from mechanome.engine.inputs import Batch
from mechanome.engine.memory import Budget, nbytes, parse_budget, pieces
from mechanome.engine.model import Model
from mechanome.engine.prompts import padding_is_neutral, prepare
from mechanome.engine.run import build_plan, execute
from mechanome.engine.worlds import Worlds, mixes_rows


def token_logprobs(
    model: Model, batch: Batch, answers: list[list[int]], edits: list[Edit], copies: int, budget: Budget
) -> Tensor:
    """Log-probability of each token of each answer.

    Args:
        batch: the prompts. answers: ids, `copies` in a row for each prompt. edits: written for the prompts' rows.

    Returns:
        fp64 `[row * copies, token]` on the CPU, rows in order, NaN behind an answer's end.

    Raises:
        BadInput, NotServed, BudgetTooSmall: see `mechanome.engine.scoring.logprob`.
    """
    _fits(model, batch, answers, copies)
    limit = parse_budget(budget, model.device)
    together = any(map(mixes_rows, edits))
    need = [_bytes(model, batch.frame.lengths[r], answers[r * copies : (r + 1) * copies]) for r in range(batch.rows)]
    if together:
        pieces(1, len(need) * max(need), limit, "batch whose edits tie rows together")
        size = batch.rows
    else:
        size = pieces(batch.rows, max(need), limit, "prompt with its answers")
    # Prompts of like length go together: less padding, fewer logits.
    order = sorted(range(batch.rows), key=lambda r: batch.frame.lengths[r]) if size < batch.rows else range(batch.rows)
    out = torch.full((len(answers), max(map(len, answers))), float("nan"), dtype=torch.float64)
    score = _shared if copies > 1 and _can_share(model, batch) else _whole
    for rows in _chunks(list(order), size):
        own = [r * copies + c for r in rows for c in range(copies)]
        part = batch if len(rows) == batch.rows else batch.take(rows)
        with torch.no_grad():
            values = score(model, part, [answers[i] for i in own], edits, copies)
        out[torch.tensor(own), : values.shape[1]] = values.double().cpu()
    return out


def _chunks(rows: list[int], size: int) -> Iterator[list[int]]:
    yield from (rows[i : i + size] for i in range(0, len(rows), size))


def _bytes(model: Model, prompt: int, answers: list[list[int]]) -> int:
    """A generous estimate for one prompt: logits that are kept (three times over) and one layer's activations."""
    config: Any = getattr(model.config, "text_config", None) or model.config
    width = prompt + max(map(len, answers))
    kept = max(map(len, answers)) if model.accepts("logits_to_keep") else width
    vocabulary, d_model = getattr(config, "vocab_size", 2**17), getattr(config, "hidden_size", None) or 2**10
    return len(answers) * (3 * nbytes(kept, int(vocabulary)) + 24 * nbytes(width, int(d_model)))


def _fits(model: Model, batch: Batch, answers: list[list[int]], copies: int) -> None:
    behind_encoder = getattr(model.config, "is_encoder_decoder", False)
    context = getattr(model.config, "max_target_positions", None) or model.context
    for i, answer in enumerate(answers):
        total = len(answer) + (0 if behind_encoder else batch.frame.lengths[i // copies])
        if context is not None and total > context:
            raise BadInput(f"row {i} of {total} tokens", f"the model's context is {context}", "shorten it")


def _whole(model: Model, batch: Batch, answers: list[list[int]], edits: list[Edit], copies: int) -> Tensor:
    """Prompt and answer of each row in one pass, padded on the right, where padding is neutral for every model."""
    if getattr(model.config, "is_encoder_decoder", False):
        prompt = prepare(model, batch)
        main, static = prompt.main, {k: v for k, v in prompt.arguments.items() if k != "decoder_input_ids"}
        heads = prompt.arguments["decoder_input_ids"].tolist()
        names = ("decoder_input_ids", "decoder_attention_mask")
        frames: Mapping[str | None, Frame] = prompt.frames
    else:
        main, static, frames = batch.frame, {}, {}
        heads = [batch.input_ids[r, s : s + n].tolist() for r, (s, n) in enumerate(zip(main.starts, main.lengths))]
        names = ("input_ids", "attention_mask")
    rows = [heads[i // copies] + answer[:-1] for i, answer in enumerate(answers)]
    width = max(map(len, rows))
    ids = torch.tensor([r + [0] * (width - len(r)) for r in rows], device=model.device)
    mask = torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows], device=model.device)
    grown = max(map(len, answers)) - 1
    main = replace(main, starts=(0,) * main.rows, width=width, grown=grown)
    frames = {**{t: f for t, f in frames.items() if t == "encoder"}, None: main, "decoder": main, "text": main}
    repeat = torch.arange(batch.rows, device=model.device).repeat_interleave(copies)
    arguments = {k: v[repeat] if isinstance(v, Tensor) else v for k, v in static.items()}
    arguments[names[0]] = ids
    if bool((mask == 0).any()) and model.accepts(names[1]):
        arguments[names[1]] = mask
    first = [len(heads[i // copies]) - 1 for i in range(len(answers))]
    low, high = min(first), max(f + len(a) for f, a in zip(first, answers))
    keep = _keep(model, edits, torch.arange(low, high, device=model.device))
    logits = _logits(model, _call(model, arguments | keep, frames, edits, batch.rows, copies))
    return _gather(logits, [f - (low if keep else 0) for f in first], answers)


def _shared(model: Model, batch: Batch, answers: list[list[int]], edits: list[Edit], copies: int) -> Tensor:
    """Each prompt once with a cache, then the answers of each prompt on copies of it."""
    prompt = prepare(model, batch)
    arguments = dict(prompt.arguments)
    mask = arguments.get("attention_mask")
    if mask is None:
        mask = torch.ones_like(arguments["input_ids"])
    if any(prompt.main.starts) and model.accepts("position_ids"):
        arguments["position_ids"] = (mask.cumsum(-1) - 1).clamp(min=0)
    keep = _keep(model, edits, 1)
    output = _call(model, {**arguments, **keep, "use_cache": True}, prompt.frames, edits, batch.rows, 1)
    first = _logits(model, output)[:, -1:].repeat_interleave(copies, 0)
    longest = max(map(len, answers))
    if longest == 1:
        return _gather(first, [0] * len(answers), answers)
    output.cache.batch_repeat_interleave(copies)
    rest = [answer[:-1] for answer in answers]
    ids = torch.tensor([r + [0] * (longest - 1 - len(r)) for r in rest], device=model.device)
    real = torch.tensor([[1] * len(r) + [0] * (longest - 1 - len(r)) for r in rest], device=model.device)
    more: dict[str, Any] = {"input_ids": ids, "cache": output.cache, "use_cache": True}
    more["attention_mask"] = torch.cat([mask.repeat_interleave(copies, 0), real], 1)
    if model.accepts("position_ids"):
        lengths = torch.tensor(prompt.main.lengths, device=model.device).repeat_interleave(copies)
        more["position_ids"] = lengths[:, None] + torch.arange(longest - 1, device=model.device)
    frames = prompt.at(longest - 1, longest - 1)
    logits = _logits(model, _call(model, more, frames, edits, batch.rows, copies))
    return _gather(torch.cat([first, logits], 1), [0] * len(answers), answers)


def _can_share(model: Model, batch: Batch) -> bool:
    """Whether prompts can be read once: an attention cache, and padding on the left that changes nothing."""
    if getattr(model.config, "is_encoder_decoder", False) or not model.accepts("cache"):
        return False
    if any("mixer" in b.roles for t in model.architecture.towers for b in t.blocks):
        return False  # a recurrent state takes one token at a time
    return len(set(batch.frame.lengths)) == 1 or padding_is_neutral(model)


def _keep(model: Model, edits: list[Edit], wanted: Any) -> dict[str, Any]:
    """The argument that computes only the logits that are read; none where edits of logits count their positions."""
    if any(e.site.point == "logits" for e in edits) or not model.accepts("logits_to_keep"):
        return {}
    return {"logits_to_keep": wanted}


def _call(
    model: Model,
    arguments: Mapping[str, Any],
    frames: Mapping[str | None, Frame],
    edits: list[Edit],
    rows: int,
    copies: int,
) -> Any:
    plan = build_plan(model, (), edits)
    worlds = Worlds(plan, rows, copies)
    plan.begin.append(lambda call, kwargs: worlds.update(frames, rows * copies))
    return execute(model, Batch(arguments, Frame.unknown(rows * copies)), plan)


def _logits(model: Model, output: Any) -> Tensor:
    logits = output if isinstance(output, Tensor) else getattr(output, "logits", None)
    if not isinstance(logits, Tensor) or logits.dim() != 3:
        raise NotServed(
            f"scoring continuations with {type(model.core).__name__}",
            "it returns no scores over a vocabulary per position",
            "open it with its language-model head",
        )
    return logits


def _gather(logits: Tensor, first: Sequence[int], answers: list[list[int]]) -> Tensor:
    """Log-probabilities fp32 `[row, token]` of answers whose first token is predicted at column `first`."""
    cells = [(i, first[i] + t, token) for i, answer in enumerate(answers) for t, token in enumerate(answer)]
    row, column, token = torch.tensor(cells, device=logits.device).unbind(1)
    values = logits[row, column].float().log_softmax(-1).gather(1, token[:, None])[:, 0]
    out = torch.full((len(answers), max(map(len, answers))), float("nan"), device=logits.device)
    out[row, column - torch.tensor(first, device=logits.device)[row]] = values
    return out
