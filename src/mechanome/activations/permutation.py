"""A random order that needs no memory: where row i goes is computed from i and a key.

A balanced Feistel network over the smallest even number of bits that holds n, walked until the result is below n, is a
one-to-one map of 0 ... n - 1. So an order of any length costs nothing to keep, and a position in it is one number.
"""

from __future__ import annotations

import numpy as np

_ROUNDS = 6
_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_STEP = np.uint64(0x9E3779B97F4A7C15)


def hashed(values: np.ndarray, *key: int) -> np.ndarray:
    """A 64-bit hash of each value under a key of whole numbers (the splitmix64 finisher).

    Args:
        values: integers of any shape, taken as uint64.

    Returns:
        uint64, of the same shape.
    """
    with np.errstate(over="ignore"):
        state: np.ndarray = _finish(np.asarray(values).astype(np.uint64))
        for part in key:
            state = _finish(state ^ _finish(np.uint64(part % 2**64) + _STEP))
    return state


def _finish(values: np.ndarray | np.uint64) -> np.ndarray:
    x: np.ndarray = np.asarray(values + _STEP)
    x = (x ^ (x >> np.uint64(30))) * _MIX[0]
    x = (x ^ (x >> np.uint64(27))) * _MIX[1]
    return np.asarray(x ^ (x >> np.uint64(31)))


class Permutation:
    """A one-to-one map of `0 ... n - 1` onto itself, drawn from a key.

    Args:
        n: how many.
        key: whole numbers, such as a seed and an epoch.
    """

    def __init__(self, n: int, *key: int) -> None:
        self.n, self.key = n, key
        self._half = max(1, ((max(n, 2) - 1).bit_length() + 1) // 2)

    def __call__(self, index: np.ndarray) -> np.ndarray:
        """Where each index goes; int64, of the same shape."""
        value = np.array(index, dtype=np.uint64)
        outside = np.ones(value.shape, dtype=bool)
        while outside.any():
            value[outside] = self._rounds(value[outside])
            outside = value >= self.n
        return value.astype(np.int64)

    def _rounds(self, value: np.ndarray) -> np.ndarray:
        bits, mask = np.uint64(self._half), np.uint64(2**self._half - 1)
        left, right = value >> bits, value & mask
        for turn in range(_ROUNDS):
            left, right = right, left ^ (hashed(right, turn, *self.key) & mask)
        return (left << bits) | right
