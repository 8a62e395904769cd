"""Sequences as forward passes: which share a row, which rows share a pass. Length decides, so that little is padded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Pass:
    """One forward pass: per row, the sequences in it, one after another."""

    rows: tuple[tuple[int, ...], ...]


def passes(wanted: np.ndarray, lengths: np.ndarray, *, shared: int, at_once: int, pads: bool) -> list[Pass]:
    """Group sequences into passes.

    Args:
        wanted: numbers of sequences.
        lengths: of all sequences, in tokens.
        shared: a row takes further sequences up to so many tokens; 0 gives each sequence its own row.
        at_once: most tokens of a pass, padding included; a single row may be longer.
        pads: whether rows of different lengths may share a pass.
    """
    rows: list[tuple[int, ...]] = []
    room = 0
    for seq in map(int, wanted):
        if rows and lengths[seq] <= room:
            rows[-1] = (*rows[-1], seq)
            room -= int(lengths[seq])
        else:
            rows.append((seq,))
            room = shared - int(lengths[seq])
    width = {row: int(lengths[list(row)].sum()) for row in rows}
    found: list[list[tuple[int, ...]]] = []
    for row in sorted(rows, key=lambda row: -width[row]):  # stable: rows of one length stay in order
        fits = bool(found) and width[found[-1][0]] * (len(found[-1]) + 1) <= at_once
        if fits and (pads or width[found[-1][0]] == width[row]):
            found[-1].append(row)
        else:
            found.append([row])
    return [Pass(tuple(group)) for group in found]
