"""What turns packages into texts: one function a corpus, from the files of its packages to texts or chats."""

from __future__ import annotations

import ast
import inspect
import json
import sysconfig
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import cycle
from pathlib import Path

import yaml

from mechanome.activations.corpora.passages import mixed, passages
from mechanome.activations.text_items import Item
from mechanome.core.errors import CorruptFile, NotServed

Files = Mapping[str, bytes]
"""The wanted files of all packages, by their names inside them."""


def english(files: Files) -> list[Item]:
    """Chapters of a novel and speeches, as passages."""
    documents = (json.loads(content) for content in files.values())
    found = [
        piece for each in documents if isinstance(each, dict) and "text" in each for piece in passages(each["text"])
    ]
    return list(mixed(found))


def chatterbot(files: Files) -> list[Item]:
    """Conversations, whose speakers take turns as user and assistant; one without an answer is left out."""
    chats: dict[str, Item] = {}
    for name, content in files.items():
        for conversation in yaml.safe_load(content)["conversations"]:
            said = [str(words).strip() for words in conversation]
            said = said[: len(said) // 2 * 2]  # the assistant has the last word
            if said:
                pairs = zip(cycle(("user", "assistant")), said)
                chat: Item = [{"role": role, "content": content} for role, content in pairs]
                chats.setdefault(json.dumps([name, chat]), chat)  # the source repeats many
    order = mixed(chats)
    return [chats[key] for key in order]


def python_docs(files: Files) -> list[Item]:
    """The language reference's help topics and the standard library's docstrings, from the running Python.

    Raises:
        NotServed: this Python came without them.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        why = "this Python came without pydoc_data"
        raise NotServed("corpus 'python-docs'", why, "use a Python from python.org") from error
    root = Path(sysconfig.get_paths()["stdlib"])
    documents = [*topics.values(), *(_docstrings(path, root) for path in _modules(root))]
    return list(mixed(piece for document in documents for piece in passages(document)))


def _modules(root: Path) -> list[Path]:
    """The standard library's files, without tests and what is not part of it."""
    skipped = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "__pycache__", "turtledemo"}
    return sorted(path for path in root.rglob("*.py") if not skipped & set(path.relative_to(root).parts))


def _docstrings(path: Path, root: Path) -> str:
    """All docstrings of a module, each below the name of what it explains; the file is read, never run."""
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # a few files are kept broken on purpose
        return ""
    module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    return "\n\n".join(f"{name}\n\n{text}" for name, text in _explained(tree, module))


def _explained(
    node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, name: str
) -> Iterator[tuple[str, str]]:
    if text := ast.get_docstring(node):
        signature = "" if isinstance(node, ast.Module | ast.ClassDef) else f"({ast.unparse(node.args)})"
        yield name + signature, inspect.cleandoc(text)
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _explained(child, f"{name}.{child.name}")


CONVERTERS: dict[str, Callable[[Files], list[Item]]] = {
    "english": english,
    "python-docs": python_docs,
    "chatterbot": chatterbot,
}
"""By corpus id."""


def convert(id: str, files: Files) -> list[Item]:
    """The texts of a corpus.

    Raises:
        CorruptFile: the packages hold no text where it should be.
    """
    try:
        made = CONVERTERS[id](files)
    except (ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise CorruptFile(f"corpus {id!r}", f"its packages are not as expected ({error})", "report it") from error
    if not made:
        raise CorruptFile(f"corpus {id!r}", "its packages hold no text", "report it")
    return made
