"""Texts to run a model on, wherever they are: a file, a folder, a data set of the hub, a built-in corpus, a list.

`texts(...)` reads everything once: each text is checked and hashed, so that a wrong field or a damaged line is found
now and not in the middle of a long harvest, and so that results can say exactly which texts they come from.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mechanome.activations.text_files import READERS, Source, file_source, folder_source, held
from mechanome.activations.text_items import Item
from mechanome.core.errors import BadInput, UnknownName, nearest


@dataclass(frozen=True)
class Texts:
    """Texts in an order, readable again from any of them.

    Attributes:
        id: what they were opened as.
        kind: "text" (strings) or "chat" (lists of ``{"role", "content"}``).
        sha256: of the texts themselves; the same texts in another kind of file have the same.
    """

    id: str
    kind: Literal["text", "chat"]
    sha256: str
    _source: Source = field(repr=False)
    _marks: np.ndarray = field(repr=False)
    _stamp: Any = field(repr=False)

    @classmethod
    def of(cls, source: Source, id: str, limit: int | None = None) -> Texts:
        """Read a source through once, and remember where each text begins.

        Raises:
            BadInput: no text at all, or texts and chats mixed. Whatever the source finds wrong.
        """
        digest = hashlib.sha256()
        marks: list[int] = []
        kinds: list[str] = []
        stamp = source.stamp()
        for mark, item in source.scan():
            if limit is not None and len(marks) >= limit:
                break
            kind = "text" if isinstance(item, str) else "chat"
            if kinds and kind != kinds[0]:
                why = f"text {len(marks)} is a {kind}, those before are {kinds[0]}s"
                raise BadInput(id, why, "keep texts and chats apart")
            kinds[:1] = [kind]
            marks.append(mark)
            digest.update(json.dumps(item, ensure_ascii=False).encode() + b"\n")
        if not marks:
            raise BadInput(id, "there is no text in it", "give at least one that is not blank")
        chats: Literal["text", "chat"] = "chat" if kinds[0] == "chat" else "text"
        return cls(id, chats, digest.hexdigest(), source, np.array(marks, dtype=np.int64), stamp)

    def __len__(self) -> int:
        return len(self._marks)

    def __iter__(self) -> Iterator[Item]:
        return self.at(0)

    def __getitem__(self, index: int) -> Item:
        """One text; from the end if the index is negative."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"text {index} of {len(self)}")
        return next(self.at(index % len(self)))

    def at(self, index: int) -> Iterator[Item]:
        """The texts from number ``index`` on; reading starts there, not at the beginning.

        Raises:
            BadInput: no such place, or the files have changed since they were opened.
        """
        if not 0 <= index <= len(self):
            raise BadInput("texts", f"there is no place {index} among {len(self)}", "count from 0")
        if self._source.stamp() != self._stamp:
            raise BadInput(self.id, "its files have changed since they were opened", "open them again")
        return self._from(index)

    def _from(self, index: int) -> Iterator[Item]:
        if index == len(self):
            return
        for number, (_, item) in enumerate(self._source.scan(int(self._marks[index])), index):
            if number >= len(self):
                return
            yield item


def texts(
    source: str | os.PathLike[str] | Iterable[Any] | Texts,
    *,
    field: str | None = None,
    split: str | None = None,
    limit: int | None = None,
) -> Texts:
    """Open texts.

    Args:
        source: one of
            - a file: ``.txt`` (paragraphs; or documents, where form feeds or lines ``<|endoftext|>`` separate them),
              ``.jsonl`` (an object or a string a line), ``.parquet``;
            - a folder: all such files in it, in the order of their names, each ``.txt`` one document;
            - the id of a built-in corpus, such as ``"english"`` (see `corpora_table`);
            - a data set of the Hugging Face hub, ``"owner/name"`` or ``"owner/name:config"``;
            - an iterable of strings or of chats (lists of ``{"role", "content"}``).
        field: where the text or the messages are in a record; by default the usual names are tried.
        split: of a hub data set; "train" by default.
        limit: at most so many texts; needed for a hub data set of several files.

    Returns:
        the texts; blank ones are left out.

    Raises:
        BadInput: no such file, nothing in it, texts and chats mixed. UnknownName: no such field or corpus.
        CorruptFile: a damaged file. NotServed: a kind of file that is not known, or pyarrow is missing.
        DownloadFailed: a corpus or data set that cannot be fetched.
    """
    if limit is not None and limit < 1:
        raise BadInput("limit", f"{limit} texts", "ask for at least one")
    if isinstance(source, Texts):
        _only_for(field, split, source.id)
        return source if limit is None else Texts.of(source._source, source.id, min(limit, len(source)))
    if not isinstance(source, str | os.PathLike):
        _only_for(field, split, "an iterable")
        return Texts.of(held(source, limit), "given texts", limit)
    path = Path(source).expanduser()
    if path.exists():
        if split is not None:
            raise BadInput("split", f"{path} has no splits", "leave it out")
        return Texts.of(folder_source(path, field) if path.is_dir() else file_source(path, field), str(source), limit)
    return _named(str(source), field, split, limit)


def _named(name: str, field: str | None, split: str | None, limit: int | None) -> Texts:
    """A corpus or a hub data set."""
    from mechanome.activations.corpora.table import CORPORA, corpus

    if name in CORPORA:
        _only_for(field, split, f"corpus {name!r}")
        return texts(corpus(name), limit=limit)
    if Path(name).suffix in READERS or name.startswith(("/", ".", "~")) or len(name) > 200 or "\n" in name:
        raise BadInput(name[:200], "no such file", "check the path; texts themselves go into a list: texts([...])")
    if re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", name):
        from mechanome.activations.hub_texts import hub_source

        source, id = hub_source(name, field, split, limit)
        return Texts.of(source, id, limit)
    fix = f"{nearest(name, CORPORA)} Or name a file, a folder or a hub data set as owner/name"
    raise UnknownName(f"texts {name!r}", "no such file, folder or built-in corpus", fix)


def _only_for(field: str | None, split: str | None, what: str) -> None:
    for option, value in (("field", field), ("split", split)):
        if value is not None:
            raise BadInput(option, f"{what} has none", "leave it out")
