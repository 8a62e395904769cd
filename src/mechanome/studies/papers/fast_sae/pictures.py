"""Pictures of paper 50's study: errors by path and token, what blocks do to activations, gradients by state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from mechanome.report import HeatMap, Section, Sheet, number
from mechanome.studies.papers.fast_sae import MAIN, PATHS, SPLITS, Settings

_BLOCKS = {"blocks": "blocks", "whole": "blocks of whole dialogues"}


def sections(found: Sequence[Mapping[str, Any]], size: Settings) -> tuple[Section, ...]:
    """The study's sections, in order."""
    return (_errors(found), _losses(found), _moved(found), _gradients(found))


def _errors(found: Sequence[Mapping[str, Any]]) -> Section:
    rows = []
    for path, what in PATHS.items():
        cells = []
        for split in SPLITS:
            error, of = (sum(float(np.sum(part)) for part in parts) for parts in (
                [each["error"][path][split] for each in found], [each["cells"][split] for each in found]))  # fmt: skip
            cells.append(number(float(np.log2(error / of))))
        rows.append([what, *cells, number(float(np.mean([each["live"][path] for each in found])), 0)])
    columns = (("trained on", ""), *((split, what) for split, what in SPLITS.items()), ("live", "latents in use"))
    lead = ("log2 of the mean squared error on held-out dialogues, each run alone. One less is half the error.",)
    return Section("Errors", lead, Sheet(columns, rows))


def _losses(found: Sequence[Mapping[str, Any]]) -> Section:
    clean, tokens = (sum(float(np.sum(each["loss"][name])) for each in found) for name in ("clean", "tokens"))
    rows = [["the model as it is", number(clean / tokens, 3), ""]]
    for path in MAIN:
        loss = sum(float(np.sum(each["loss"][path])) for each in found)
        rows.append([PATHS[path], number(loss / tokens, 3), f"{number(100 * (loss - clean) / clean, 1)} %"])
    columns = (("in place of activations", ""), ("loss", "nats a token"), ("rise", "of the loss, over itself"))
    lead = ("What the model says when reconstructions stand in for activations of held-out dialogues.",)
    return Section("Losses", lead, Sheet(columns, rows))


def _moved(found: Sequence[Mapping[str, Any]]) -> Section:
    from mechanome.studies.papers.fast_sae.measuring import AGES

    bounds = ["0", *(str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in pairwise(AGES)), f"{AGES[-1]} on"]
    means = {path: np.mean([np.asarray(each["ages"][path]) for each in found], axis=0) for path in _BLOCKS}
    values = [[None if np.isnan(v) else float(v) for v in means[path]] for path in _BLOCKS]
    lead = (
        "How far a token's activation is from what it is when its dialogue is run alone, over its length, by the "
        "token's position in the dialogue.",
    )
    picture = HeatMap(list(_BLOCKS.values()), bounds, values, "position in the dialogue", "run in",
                      ends=("", "as far as it is long"))  # fmt: skip
    return Section("What stands before a dialogue moves its activations", lead, picture)


def _gradients(found: Sequence[Mapping[str, Any]]) -> Section:
    rows = []
    for i, state in enumerate(found[0]["gradients"]):
        cells = [
            number(float(np.mean([each["gradients"][i][path][what] for each in found])), 3)
            for what in ("aligned", "gsnr")
            for path in MAIN
        ]
        rows.append([f"{PATHS[state['path']]}, step {state['step']}", *cells])
    named = {path: PATHS[path].partition(",")[0] for path in MAIN}
    columns = (
        ("at the dictionary of", ""),
        *((f"cosine {name}", "with the mean gradient of held-out dialogues") for name in named.values()),
        *((f"GSNR {name}", "median squared mean over variance") for name in named.values()),
    )
    lead = ("Gradients of all paths at the same weights, means over seeds.",)
    return Section("Gradients", lead, Sheet(columns, rows))
