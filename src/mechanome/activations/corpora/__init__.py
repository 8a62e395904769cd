"""Built-in corpora: real text through package registries, the running Python's documentation, made-up dialogues."""

from typing import TYPE_CHECKING

from mechanome.lazy import offer

if TYPE_CHECKING:
    from mechanome.activations.corpora.dialogues import TEMPLATES, dialogue, dialogues
    from mechanome.activations.corpora.table import CORPORA, Corpus, corpora_table, corpus

__all__ = [
    "CORPORA",
    "TEMPLATES",
    "Corpus",
    "corpora_table",
    "corpus",
    "dialogue",
    "dialogues",
]

offer(__name__)
