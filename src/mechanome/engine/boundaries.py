"""Where a prompt ends and its continuation begins, in tokens.

Both are tokenized as one text. If the tokens of the prompt alone are a prefix of those, the rest is the
continuation; if not, a token straddles the boundary, and the text is refused rather than scored as another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from mechanome.core.errors import BadInput
from mechanome.engine.asked import token_ids
from mechanome.engine.inputs import Batch, Encodes, Inputs, token_strings
from mechanome.engine.model import Model
from mechanome.engine.plain import whole

Answer = str | list[int]


def answers_of(continuations: Any) -> list[Answer]:
    """A continuation or a list of them, each a text or ids, as a list.

    Raises:
        BadInput: nothing, or neither text nor ids.
    """
    if isinstance(continuations, Tensor) or hasattr(continuations, "tolist"):
        continuations = continuations.tolist()
    if not isinstance(continuations, Sequence) or isinstance(continuations, bytes):
        kind = type(continuations).__name__
        raise BadInput("the continuations", f"nothing can be read from {kind}", "give a text, ids, or a list of them")
    if isinstance(continuations, str) or (continuations and whole(continuations[0]) is not None):
        continuations = [continuations]
    if not continuations:
        raise BadInput("the continuations", "there are none", "give a text, ids, or a list of them")
    return [c if isinstance(c, str) else token_ids("continuation", c).tolist() for c in continuations]


def prompt_texts(prompts: Inputs) -> list[Any]:
    """Per prompt its text, its chat, or None where it came encoded; one item where rows are not known yet."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, (Batch, Encodes, Mapping, Tensor)) or not prompts or isinstance(prompts[0], int):
        return [None]
    if isinstance(prompts[0], Mapping):
        return [prompts]
    return [p if isinstance(p, str) or (p and isinstance(p[0], Mapping)) else None for p in prompts]


def listed(model: Model, prompts: Sequence[Any], answers: Sequence[Answer]) -> list[list[int]]:
    """The token ids of each answer behind its prompt.

    Raises:
        BadInput: no token, an id out of range, a text without a tokenizer or with a token across the boundary.
    """
    config = model.config
    vocabulary = getattr(getattr(config, "text_config", None) or config, "vocab_size", None)
    found = [
        _ids(model, prompt, answer) if isinstance(answer, str) else list(answer)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]
    for answer, ids in zip(answers, found):
        if not ids:
            raise BadInput(f"continuation {answer!r}", "it has no token", "give at least one")
        if vocabulary is not None and not all(0 <= i < vocabulary for i in ids):
            raise BadInput(
                f"continuation {answer!r}", f"ids must be 0 to {vocabulary - 1}", "use the model's tokenizer"
            )
    return found


def _ids(model: Model, prompt: Any, answer: str) -> list[int]:
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise BadInput(f"continuation {answer!r}", "this model came without a tokenizer", "pass token ids")
    if prompt is None or getattr(model.config, "is_encoder_decoder", False):
        return list(tokenizer(answer, add_special_tokens=False)["input_ids"])
    if not isinstance(prompt, str):
        prompt = tokenizer.apply_chat_template(list(prompt), tokenize=False, add_generation_prompt=True)
    head = list(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    both = list(tokenizer(prompt + answer, add_special_tokens=False)["input_ids"])
    if both[: len(head)] != head:
        same = next(i for i, (a, b) in enumerate(zip(head, [*both, None])) if a != b)
        across = token_strings(tokenizer, both[same : same + 1])
        raise BadInput(
            f"continuation {answer!r} after {prompt[-20:]!r}",
            f"token {across[0] if across else ''!r} straddles the boundary",
            "move characters across it (often the space before the answer), or pass token ids",
        )
    return both[len(head) :]
