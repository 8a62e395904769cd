"""What can be asked about at all: a text or a chat, checked before anything heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mechanome.core.errors import BadInput, TooFewRows

Message = Mapping[str, str]
Asked = str | Sequence[Message]
"""A text, or a chat: messages with "role" and "content"."""


def check_asked(what: str, asked: Any) -> None:
    """Whether something can be a prompt at all.

    Raises:
        BadInput: neither text nor chat, or empty.
    """
    if isinstance(asked, str):
        if not asked:
            raise BadInput(what, "it is empty", "write some text")
        return
    chat = isinstance(asked, Sequence) and not isinstance(asked, bytes | bytearray)
    if not chat or not all(_is_message(m) for m in asked):
        raise BadInput(
            f"{what} of type {type(asked).__name__}",
            "one text or one chat is explained at a time",
            "pass a string, or a list such as [{'role': 'user', 'content': 'some text'}]",
        )
    if not any(m["content"].strip() for m in asked):
        raise BadInput(what, "the chat is empty", "write a message")


FEWEST_PROMPTS = 8
"""Prompts without which a certificate certifies nothing, whatever the model; large graphs need one more
(`mechanome.circuits.finding.certifiable`)."""


def check_certify(certify: bool, circuit: bool, paraphrases: int) -> None:
    """Whether a certificate can be made at all.

    Args:
        certify: whether one is asked for. circuit: whether there is to be a circuit. paraphrases: how many are given.

    Raises:
        BadInput: neither yes nor no, or without a circuit. TooFewRows: too few prompts.
    """
    if not isinstance(certify, bool):
        raise BadInput(f"certify={certify!r}", "it is yes or no", "give True or False")
    if not certify:
        return
    if not circuit:
        raise BadInput("certify", "it is about the circuit, which is not asked for", "leave one of both out")
    if 1 + paraphrases < FEWEST_PROMPTS:
        given = "1 prompt" if not paraphrases else f"{1 + paraphrases} prompts"
        raise TooFewRows(
            f"a certificate from {given}",
            "it says what hangs on no single prompt, so the circuit is found again on random parts of many; from fewer "
            f"than {FEWEST_PROMPTS} nothing can be certified",
            f"give --paraphrases FILE with {FEWEST_PROMPTS} or 9 prompts of the same behavior, or leave certify out",
        )


def _is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(value.get(key), str) for key in ("role", "content"))
