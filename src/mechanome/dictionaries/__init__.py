"""Dictionaries of activations: sparse autoencoders and kin, fitted fast and exactly, measured, saved and used."""

from typing import TYPE_CHECKING

from mechanome.lazy import offer

if TYPE_CHECKING:
    from mechanome.dictionaries.architectures import (
        ARCHITECTURES,
        BatchTopK,
        Crosscoder,
        Gated,
        JumpReLU,
        Matryoshka,
        PolySAE,
        Recipe,
        ReLU,
        SkipTranscoder,
        TopK,
        Transcoder,
        recipe_of,
    )
    from mechanome.dictionaries.autoencoder import PolynomialAutoencoder, SparseAutoencoder
    from mechanome.dictionaries.basis import LatentBasis
    from mechanome.dictionaries.capabilities import Interacting, LinearEncoder, MultiSite, Skip, Thresholded
    from mechanome.dictionaries.codes import SparseCodes
    from mechanome.dictionaries.cross_layer import CrossLayerTranscoder
    from mechanome.dictionaries.dictionary import Dictionary
    from mechanome.dictionaries.features import FeatureCards, Latent
    from mechanome.dictionaries.fitting.fit import DictionaryFit, fit
    from mechanome.dictionaries.folding import fold
    from mechanome.dictionaries.formats import FORMATS, check, detect, formats_table, read, write
    from mechanome.dictionaries.metrics import evaluate, pareto
    from mechanome.dictionaries.norm import Affine
    from mechanome.dictionaries.pattern import Pattern
    from mechanome.dictionaries.spec import DictionarySpec

__all__ = [
    "ARCHITECTURES",
    "FORMATS",
    "Affine",
    "BatchTopK",
    "CrossLayerTranscoder",
    "Crosscoder",
    "Dictionary",
    "DictionaryFit",
    "DictionarySpec",
    "FeatureCards",
    "Gated",
    "Interacting",
    "JumpReLU",
    "Latent",
    "LatentBasis",
    "LinearEncoder",
    "Matryoshka",
    "MultiSite",
    "Pattern",
    "PolySAE",
    "PolynomialAutoencoder",
    "ReLU",
    "Recipe",
    "Skip",
    "SkipTranscoder",
    "SparseAutoencoder",
    "SparseCodes",
    "Thresholded",
    "TopK",
    "Transcoder",
    "check",
    "detect",
    "evaluate",
    "fit",
    "fold",
    "formats_table",
    "pareto",
    "read",
    "recipe_of",
    "write",
]

offer(__name__)
