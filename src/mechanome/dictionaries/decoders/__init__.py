"""Decoders: from a code back to activations."""

from mechanome.dictionaries.decoders.decoder import Decoder
from mechanome.dictionaries.decoders.linear import LinearDecoder
from mechanome.dictionaries.decoders.polynomial import PolynomialDecoder

__all__ = ["Decoder", "LinearDecoder", "PolynomialDecoder"]
