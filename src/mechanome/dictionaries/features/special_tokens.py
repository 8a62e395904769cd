"""Where the special tokens of a prompt are, to steer a chat model at them alone (paper 50, 3.6).

Chat models keep much of what they know of a dialogue at tokens such as `<|im_start|>`. A latent can be changed at these
positions, with everything else kept:

    prompt = model.encode(chat)
    model.generate(prompt, edits=latent.set(2.0, pos=special_positions(model, prompt)))
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from mechanome.core import BadInput

if TYPE_CHECKING:
    from mechanome.engine import Model
    from mechanome.engine.inputs import Inputs


def special_positions(model: Model, inputs: Inputs, tokens: Iterable[str] | None = None) -> tuple[tuple[int, ...], ...]:
    """Positions of special tokens in each row, in real tokens, as `pos=` of any edit takes them.

    Args:
        model: with a tokenizer.
        inputs: texts, chats, ids or an encoded batch; the edit must be used on the same.
        tokens: which, such as `["<|im_end|>"]`; None for all that the tokenizer calls special.

    Raises:
        BadInput: no tokenizer, a text that is not one token, or inputs without any of them.
    """
    if model.tokenizer is None:
        raise BadInput("special tokens", f"{model.name} came without a tokenizer", "load it with one, or give pos=")
    wanted = set(model.tokenizer.all_special_ids if tokens is None else map(model.single_token, tokens))
    batch = model.encode(inputs)
    frame = batch.frame
    rows = zip(batch.input_ids.tolist(), frame.starts, frame.lengths)
    found = tuple(
        tuple(pos for pos, token in enumerate(row[start : start + length]) if token in wanted)
        for row, start, length in rows
    )
    if not any(found):
        raise BadInput("special tokens", "the inputs hold none of them", "render dialogues by a chat template")
    return found
