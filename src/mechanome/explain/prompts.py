"""A prompt as it is asked about: a text or a chat, its tokens, and which of them are its own.

A chat's own tokens are those of its messages. What the model's chat template puts around them (role markers, turns, a
system message of its own) belongs to the model: it is run and shown, but never swapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from mechanome.engine import Batch, Model
from mechanome.explain.asked import Asked, Message, check_asked

_MARK = "\ue000{}\ue001"
"""Stands for the content of one message while its place in the template is looked for; private-use characters."""


@dataclass(frozen=True)
class Prompt:
    """One prompt.

    Args:
        text: what is shown: the text, or the content of a chat's last message.
        batch: its tokens as one row.
        content: positions of its own tokens; in a text all of them.
        chat: the messages, None for a text.
        places: positions of each message's own tokens, empty where the template changes what it is given.
    """

    text: str
    batch: Batch = field(repr=False)
    content: tuple[int, ...] = field(repr=False)
    chat: tuple[Message, ...] | None = None
    places: tuple[tuple[int, ...], ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, model: Model, asked: Asked, what: str = "the prompt") -> Prompt:
        """Encode a text as the tokenizer does, a chat with the model's own template up to where its answer begins.

        Raises:
            BadInput: empty, longer than the context, or a chat for a model without a template.
        """
        check_asked(what, asked)
        if isinstance(asked, str):
            batch = model.encode(asked)
            return cls(asked, batch, tuple(range(batch.frame.lengths[0])))
        chat = tuple(asked)
        batch = model.encode([list(chat)])
        places = _places(model, chat)
        return cls(chat[-1]["content"], batch, tuple(p for own in places for p in own), chat, places)

    @property
    def ids(self) -> list[int]:
        """Its token ids."""
        return [int(i) for i in self.batch.input_ids[0]]

    @property
    def length(self) -> int:
        """Its tokens."""
        return self.batch.frame.lengths[0]

    def followed_by(self, model: Model, ids: Sequence[int]) -> Batch:
        """Its tokens and more, as one row.

        Raises:
            BadInput: longer than the context.
        """
        return model.encode([[*self.ids, *ids]], bos="none") if ids else self.batch

    def swapped(self, model: Model, position: int, new: int) -> Prompt:
        """The prompt with one of its own tokens replaced."""
        ids = self.ids
        ids[position] = new
        batch = model.encode([ids], bos="none")
        if self.chat is None:
            return replace(self, text=model.tokenizer.decode(ids, skip_special_tokens=True), batch=batch)
        chat, n = [dict(message) for message in self.chat], self._message(position)
        chat[n]["content"] = model.tokenizer.decode([ids[p] for p in self.places[n]])
        return replace(self, text=chat[n]["content"], batch=batch, chat=tuple(chat))

    def _message(self, position: int) -> int:
        return next(n for n, places in enumerate(self.places) if position in places)


def _places(model: Model, chat: Sequence[Message]) -> tuple[tuple[int, ...], ...]:
    """Positions of the tokens that lie wholly in each message's content.

    The template is filled once more with a mark for each content; the text between the marks is the template's own. A
    template that changes contents by more than the space around them gives no places.
    """
    tokenizer = model.tokenizer
    if not getattr(tokenizer, "is_fast", False):
        return ((),) * len(chat)  # only fast tokenizers tell where in the text a token is

    def filled(contents: Sequence[str]) -> str:
        messages = [{**message, "content": text} for message, text in zip(chat, contents)]
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))

    whole = [message["content"] for message in chat]
    marks = [_MARK.format(n) for n in range(len(chat))]
    frame = filled(marks)
    for contents in (whole, [text.strip() for text in whole]):
        inner, outer, text = _ranges(frame, marks, contents)
        if text == filled(whole):
            break
    else:
        return ((),) * len(chat)
    own = {f"message {n}": span for n, span in inner.items()}
    spans = {**own, **{f"template {n}": span for n, span in enumerate(outer)}}
    found = model.encode([list(chat)], spans=[spans]).frame.spans[0]
    template = {p for name, places in found.items() if name not in own for p in places}
    return tuple(tuple(p for p in found.get(f"message {n}", ()) if p not in template) for n in range(len(chat)))


def _ranges(
    frame: str, marks: Sequence[str], contents: Sequence[str]
) -> tuple[dict[int, tuple[int, int]], list[tuple[int, int]], str]:
    """Character ranges of contents and of what is between them, and the text they make; empty ranges are left out."""
    inner: dict[int, tuple[int, int]] = {}
    outer, text = list[tuple[int, int]](), ""
    for n, (mark, content) in enumerate(zip(marks, contents)):
        before, there, frame = frame.partition(mark)
        outer.append((len(text), len(text) + len(before)))
        text += before
        if there and content:
            inner[n] = (len(text), len(text) + len(content))
            text += content
    outer.append((len(text), len(text) + len(frame)))
    return inner, [span for span in outer if span[0] < span[1]], text + frame
