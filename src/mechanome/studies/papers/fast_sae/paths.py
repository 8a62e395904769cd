"""The data of paper 50's study: the same dialogues run in several ways, prose in blocks, and dialogues held out."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor

from mechanome.activations import ROLES, Activations, Drop, ModelActivations, corpus
from mechanome.activations.corpora.dialogues import dialogues
from mechanome.core import TooFewRows
from mechanome.engine import Model
from mechanome.studies.papers.fast_sae import Settings

_SHORTEST = 16
"""Tokens: no dialogue, with its template, has fewer."""
_SPARE = 8
"""So many times as many dialogues are drawn as are held out: some are those of training."""
_AUTHORS = ("system", "user", "assistant")


@dataclass(frozen=True)
class HeldOut:
    """Dialogues that no dictionary was trained on.

    Args:
        alone: activations of each run alone, float32. isolated: in blocks in which none sees another.
        blocks: in plain blocks.
        shared: how many tokens all of them begin with.
        left_out: drawn ones that were trained on or repeated.
    """

    alone: Activations = field(repr=False)
    isolated: Activations = field(repr=False)
    blocks: Activations = field(repr=False)
    shared: int
    left_out: int


def read(
    model: Model, texts: Iterable[Any], packing: str, size: Settings, tokens: int | None = None, compute: str = "model"
) -> Activations:
    """Activations of the study's site, in the order of the text; every row, nothing put in front."""
    stream = ModelActivations(
        model,
        texts,
        size.site,
        tokens=tokens,
        context=size.context,
        packing=packing,
        mix=0,
        bos="none",
        drop=Drop.nothing(),
        compute=compute,
        epochs=1,
    )
    return Activations.cat(stream).to(device=model.device)


def training(model: Model, seed: int, size: Settings) -> dict[str, Activations]:
    """Rows of every path; those made of dialogues have the same tokens in the same order."""
    chats = dialogues(size.tokens // _SHORTEST, seed=2 * seed)
    every = list(corpus("python-docs", quiet=True))
    Random(seed).shuffle(every)
    ways: dict[str, tuple[Iterable[Any], str]] = {
        "prose": (every, "packed"),
        "blocks": (chats, "packed"),
        "fast": (chats, "sequence"),
        "isolated": (chats, "isolated"),
    }
    found = {path: read(model, texts, way, size, size.tokens, "bf16") for path, (texts, way) in ways.items()}
    return {**found, "whole": read(model, joined(found["fast"], size.context), "sequence", size, compute="bf16")}


def joined(rows: Activations, context: int) -> list[list[int]]:
    """Tokens of whole sequences, one after another, as many as fit into a block."""
    blocks: list[list[int]] = []
    for sequence in token_rows(rows):
        if not blocks or len(blocks[-1]) + len(sequence) > context:
            blocks.append([])
        blocks[-1] += sequence
    return blocks


def token_rows(rows: Activations) -> list[list[int]]:
    """Tokens of each sequence."""
    lengths = rows.labels["seq"].unique_consecutive(return_counts=True)[1]
    return [part.tolist() for part in rows.labels["token"].split(lengths.tolist())]


def held_out(model: Model, seed: int, size: Settings) -> HeldOut:
    """Dialogues of another draw, none of them among those drawn for training.

    Raises:
        TooFewRows: not enough of them are new.
    """
    seen = {json.dumps(chat) for chat in dialogues(size.tokens // _SHORTEST, seed=2 * seed)}
    drawn = dialogues(_SPARE * size.dialogues, seed=2 * seed + 1)
    new: dict[str, int] = {}
    for place, chat in enumerate(drawn):
        text = json.dumps(chat)
        if text not in seen and len(new) < size.dialogues:
            new.setdefault(text, place)
    if len(new) < size.dialogues:
        raise TooFewRows("held-out dialogues", f"{len(new)} of {len(drawn)} are new", "draw more, or train on fewer")
    chats = [drawn[place] for place in new.values()]
    alone, isolated, blocks = (read(model, chats, packing, size) for packing in ("sequence", "isolated", "packed"))
    return HeldOut(alone, isolated, blocks, _shared(token_rows(alone)), 1 + max(new.values()) - len(new))


def splits(model: Model, rows: Activations, shared: int) -> dict[str, Tensor]:
    """Which rows belong to each of `SPLITS`, booleans `[row]`."""
    encode = model.tokenizer
    names = [i for name in _AUTHORS for i in encode(name, add_special_tokens=False)["input_ids"]]
    ids = torch.tensor([*encode.all_special_ids, *names], device=rows.labels["token"].device)
    template = rows.labels["role"] == ROLES.index("template")
    first, own = rows.labels["pos"] == 0, rows.labels["pos"] >= shared
    special = template & torch.isin(rows.labels["token"], ids)
    return {
        "all": torch.ones_like(first),
        "rest": ~first,
        "special": special & ~first,
        "first": first,
        "own": own,
        "own-special": special & own,
    }


def _shared(rows: Sequence[Sequence[int]]) -> int:
    """How many tokens all begin with."""
    return next((i for i, column in enumerate(zip(*rows)) if len(set(column)) > 1), min(map(len, rows)))
