"""Text as sequences of tokens: what a model sees as one, and who wrote each token.

Three packings (paper 50 compares them):

- "packed": texts joined by the end token and cut in blocks of `context` tokens; each block is a sequence, in which
  later texts attend to earlier ones. The usual way of pre-training.
- "isolated": each text is a sequence of its own, truncated at `context`; several share a row of a forward pass, where
  none sees another and positions start anew. The activations are those of "sequence", with less padding.
- "sequence": each text or dialogue is a sequence of its own and a row of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mechanome.activations.activations import ROLES
from mechanome.activations.chats import Rendered, render
from mechanome.core.errors import BadInput
from mechanome.core.progress import Bar
from mechanome.core.tensor_files import read_tensors, write_tensors
from mechanome.engine.asked import count, one_of
from mechanome.engine.inputs import Bos
from mechanome.engine.plain import integers, whole

PACKINGS = ("packed", "isolated", "sequence")
_TEMPLATE = ROLES.index("template")
_AT_ONCE = 64
"""Texts a tokenizer gets at once."""


@dataclass(frozen=True, eq=False)
class Sequences:
    """Tokens of all sequences, one after another.

    Args:
        ids: token ids, int32 `[token]`.
        roles: indices of `ROLES`, int8 `[token]`.
        docs: which text a token is from, int32 `[token]`.
        offsets: where each sequence begins, and where the last one ends, int64 `[sequence + 1]`.
        packing: one of `PACKINGS`.
        first: the id that `bos` puts first, None if there is none.
        truncated: texts that lost their end at `context`.
    """

    ids: np.ndarray
    roles: np.ndarray
    docs: np.ndarray
    offsets: np.ndarray
    packing: str
    first: int | None = None
    truncated: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def tokens(self) -> int:
        """How many tokens there are in all."""
        return len(self.ids)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence."""
        return np.diff(self.offsets)

    @property
    def sha256(self) -> str:
        """Of everything that decides what a model sees and how rows are labeled."""
        digest = sha256(f"{self.packing} {self.first}".encode())
        for part in (self.ids, self.roles, self.docs, self.offsets):
            digest.update(part.tobytes())
        return digest.hexdigest()

    def __getitem__(self, seq: int) -> np.ndarray:
        """Token ids of a sequence."""
        return self.ids[self.offsets[seq] : self.offsets[seq + 1]]

    def places(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sequence and position of every token of some sequences, in their order; int64 `[token]` each."""
        lengths = self.lengths[wanted]
        pos = np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)
        return np.repeat(np.asarray(wanted, np.int64), lengths), pos.astype(np.int64)

    def labels(self, seq: np.ndarray, pos: np.ndarray) -> dict[str, torch.Tensor]:
        """The labels of tokens: "seq", "pos", "token", "doc" int64, and "role" int8."""
        at = self.offsets[seq] + pos
        found = {"seq": seq, "pos": pos, "token": self.ids[at], "doc": self.docs[at]}
        labels = {name: torch.from_numpy(x.astype(np.int64)) for name, x in found.items()}
        return {**labels, "role": torch.from_numpy(self.roles[at])}

    def write(self, path: Path) -> None:
        """Write a file that `read` reads."""
        arrays = {"ids": self.ids, "roles": self.roles, "docs": self.docs, "offsets": self.offsets}
        meta = {"packing": self.packing, "first": self.first, "truncated": self.truncated}
        write_tensors(path, {k: torch.from_numpy(v) for k, v in arrays.items()}, format="sequences", meta=meta)

    @classmethod
    def read(cls, path: Path) -> Sequences:
        """Read a file of `write`.

        Raises:
            CorruptFile: damaged, or another file.
        """
        file = read_tensors(path, format="sequences")
        arrays: dict[str, Any] = {name: x.numpy() for name, x in file.tensors.items()}
        return cls(**arrays, **file.meta)


def sequences(
    texts: Iterable[Any],
    tokenizer: Any,
    *,
    packing: str = "packed",
    context: int = 256,
    tokens: int | None = None,
    bos: Bos = "auto",
    quiet: bool = False,
) -> Sequences:
    """Tokenize texts and dialogues, and make sequences of them.

    Args:
        texts: strings, chats (lists of `{"role", "content"}`), or rows of token ids, which are taken as they are.
        tokenizer: for strings and chats.
        packing: "packed", "isolated" or "sequence"; see this module.
        context: most tokens of a sequence.
        tokens: how many tokens are wanted in all, those that `bos` adds included; the last sequence is cut to fit.
            None takes everything.
        bos: what stands first in each sequence, as in `mechanome.load`.

    Raises:
        BadInput: no text, fewer tokens than wanted, a chat that its template refuses, text without a tokenizer.
    """
    one_of("packing", packing, PACKINGS)
    count("context", context)
    wanted = None if tokens is None else count("tokens", tokens)
    first = _first(tokenizer, bos)
    ids, roles, docs, offsets = array("i"), array("b"), array("i"), array("q", [0])
    end = getattr(tokenizer, "eos_token_id", None)
    room = context - (packing == "packed" and first is not None)
    if room < 1:
        raise BadInput(f"context={context}", "the first token fills it", "give at least 2")
    need = None if wanted is None else wanted if packing != "packed" else -(-wanted // context) * context
    truncated = 0
    with Bar("Tokenizing", None, quiet) as bar:
        for doc, (chat, row, marks) in enumerate(_documents(texts, tokenizer, packing, bos, first)):
            if packing == "packed":
                if row and not chat and end is not None:
                    row, marks = [*row, end], [*marks, _TEMPLATE]
            elif len(row) > context:
                row, marks, truncated = row[:context], marks[:context], truncated + 1
            for column, values in ((ids, row), (roles, marks), (docs, [doc] * len(row))):
                column.extend(values)
            if packing != "packed" and row:
                offsets.append(len(ids))
            bar.advance()
            if need is not None and len(ids) >= need:
                break
    parts = [np.frombuffer(x, dtype=kind) if len(x) else np.zeros(0, kind) for x, kind in (
        (ids, np.int32), (roles, np.int8), (docs, np.int32))]  # fmt: skip
    bounds = np.frombuffer(offsets, dtype=np.int64)
    if packing == "packed":
        parts, bounds = _blocks(parts, room, first)
    total = int(bounds[-1])
    if not total:
        raise BadInput("the texts", "they hold no token", "give at least one text that is not empty")
    if wanted is not None:
        if total < wanted:
            raise BadInput(f"tokens={wanted}", f"the texts hold only {total}", f"give more text, or at most {total}")
        last = int(np.searchsorted(bounds, wanted))
        bounds = np.append(bounds[:last], wanted)
    ids_, roles_, docs_ = (np.ascontiguousarray(part[: int(bounds[-1])]) for part in parts)
    return Sequences(ids_, roles_, docs_, np.ascontiguousarray(bounds), packing, first, truncated)


def _first(tokenizer: Any, bos: Bos) -> int | None:
    """The id that stands first, as `model.encode` puts it; encoders put their own."""
    if bos == "auto":
        encoder = getattr(tokenizer, "cls_token_id", None) is not None
        return None if encoder else getattr(tokenizer, "bos_token_id", None)
    if bos == "none":
        return None
    found = whole(bos)
    if found is None or found < 0:
        raise BadInput(f"bos={bos!r}", "it is not a token id", "use 'auto', 'none' or an id")
    return found


def _blocks(parts: list[np.ndarray], room: int, first: int | None) -> tuple[list[np.ndarray], np.ndarray]:
    """Cut the stream of all tokens into blocks of `room` tokens, each behind the first token."""
    total = len(parts[0])
    starts = np.arange(0, total, room)
    if first is not None:
        # The token before a block belongs to the text that the block begins with.
        fillers = (np.full(len(starts), first), np.full(len(starts), _TEMPLATE), parts[2][starts])
        parts = [np.insert(part, starts, filler.astype(part.dtype)) for part, filler in zip(parts, fillers)]
    size = room + (first is not None)
    return parts, np.append(np.arange(0, len(parts[0]), size), len(parts[0]))


def _documents(
    texts: Iterable[Any], tokenizer: Any, packing: str, bos: Bos, first: int | None
) -> Iterator[tuple[bool, list[int], list[int]]]:
    """Per text: whether it is a chat, its token ids, and the role of each."""
    if isinstance(texts, str):
        raise BadInput("the texts", "they are one string", "give a list of strings, or a path to mechanome's texts()")
    every = iter(texts)
    while some := list(islice(every, _AT_ONCE)):
        written = [_written(item, tokenizer) for item in some]
        plain = [i for i, item in enumerate(written) if isinstance(item, Rendered)]
        # In a block only the block begins with the first token; special tokens of chats come from their template.
        special = [packing != "packed" and bos == "auto" and not written[i].spans for i in plain]  # type: ignore[union-attr]
        found: dict[int, Any] = {}
        for add in {*special}:
            chosen = [i for i, s in zip(plain, special) if s == add]
            fast = getattr(tokenizer, "is_fast", False)
            made = tokenizer(
                [written[i].text for i in chosen],  # type: ignore[union-attr]
                add_special_tokens=add,
                return_offsets_mapping=fast,
                verbose=False,
            )
            spans = made["offset_mapping"] if fast else [None] * len(chosen)
            found |= {i: (row, where) for i, row, where in zip(chosen, made["input_ids"], spans)}
        for i, item in enumerate(written):
            if not isinstance(item, Rendered):
                yield False, item, [0] * len(item)
                continue
            row, marks = list(found[i][0]), _marks(item, *found[i])
            if row and packing != "packed" and first is not None and row[0] != first:
                row, marks = [first, *row], [_TEMPLATE, *marks]
            elif row and packing != "packed" and row[0] == first:
                marks[0] = _TEMPLATE
            yield bool(item.spans), row, marks


def _written(item: Any, tokenizer: Any) -> Rendered | list[int]:
    """A text or a chat as text, or token ids as they are.

    Raises:
        BadInput: anything else, broken text, or text without a tokenizer.
    """
    if isinstance(item, torch.Tensor | np.ndarray) or (isinstance(item, list) and item and isinstance(item[0], int)):
        if not isinstance(item, list) and item.ndim != 1:
            raise BadInput(f"token ids {list(item.shape)}", "each sequence is a row", "give [row, token], or lists")
        return list(integers(item, "token ids", "give rows of whole numbers"))
    if tokenizer is None:
        raise BadInput("text", "this model came without a tokenizer", "give rows of token ids, or load it with one")
    if isinstance(item, str):
        found = Rendered(item, ())
    elif isinstance(item, list | tuple) and item:
        found = render(item, tokenizer)
    else:
        raise BadInput(f"a text of type {type(item).__name__}", "it cannot be read", "give strings, chats or token ids")
    try:
        found.text.encode()
    except UnicodeEncodeError as error:
        raise BadInput("a text", f"character {error.start} is half of a surrogate pair", "decode it anew") from error
    return found


def _marks(item: Rendered, row: list[int], where: Any) -> list[int]:
    """The role of each token, by its first character that is no space.

    Raises:
        BadInput: a chat, and a tokenizer that does not tell where tokens lie.
    """
    if not item.spans:
        return [0] * len(row) if where is None else [0 if end > start else _TEMPLATE for start, end in where]
    if where is None:
        raise BadInput("roles of a chat", "this tokenizer does not tell where tokens lie", "use a fast tokenizer")
    marks, spans, k = [], item.spans, 0
    for start, end in where:
        start += len(item.text[start:end]) - len(item.text[start:end].lstrip())
        while k < len(spans) and spans[k][1] <= start:
            k += 1
        inside = k < len(spans) and spans[k][0] <= start
        marks.append(ROLES.index(spans[k][2]) if inside else _TEMPLATE)
    return marks
