"""Labelled activations: streams of them, the store on disk, and accumulators that merge.

from mechanome.activations import harvest

store = harvest(mn.load("smollm2-135m-instruct"), "notes.txt", "resid_post.15", tokens=100_000)
for batch in store.stream(epochs=1):
    batch.x  # [row, d]

Names are imported when first used.
"""

from typing import TYPE_CHECKING

from mechanome.lazy import offer

if TYPE_CHECKING:
    from mechanome.activations.activations import ROLES, Activations
    from mechanome.activations.arrays import ArrayActivations
    from mechanome.activations.corpora.table import CORPORA, corpora_table, corpus
    from mechanome.activations.drop import Drop
    from mechanome.activations.generated import GeneratedActivations
    from mechanome.activations.harvest import harvest
    from mechanome.activations.live import ModelActivations
    from mechanome.activations.planted import PlantedFeatures
    from mechanome.activations.store import ActivationStore
    from mechanome.activations.stream import ActivationStream
    from mechanome.activations.texts import Texts, texts

__all__ = [
    "CORPORA",
    "ROLES",
    "ActivationStore",
    "ActivationStream",
    "Activations",
    "ArrayActivations",
    "Drop",
    "GeneratedActivations",
    "ModelActivations",
    "PlantedFeatures",
    "Texts",
    "corpora_table",
    "corpus",
    "harvest",
    "texts",
]

offer(__name__)
