"""Fitting dictionaries by gradients, many at once on one stream."""

from mechanome.dictionaries.fitting.fit import DictionaryFit, fit

__all__ = ["DictionaryFit", "fit"]
