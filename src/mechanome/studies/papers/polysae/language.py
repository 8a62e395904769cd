"""Paper 42 on a language model: activations of passages and of sentences on six subjects, two dictionaries of them."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import torch
from torch import Tensor

from mechanome.activations import Activations, ArrayActivations, ModelActivations, corpus
from mechanome.activations.sequences import sequences
from mechanome.core import BadInput
from mechanome.dictionaries import PolynomialAutoencoder, PolySAE, SparseAutoencoder, TopK, fit
from mechanome.dictionaries.metrics import ReconstructionSums, ce_recovered, class_distances, pooled, sparse_probing
from mechanome.engine import Model
from mechanome.studies.papers.polysae import Settings
from mechanome.studies.papers.polysae.topics import Sentences, sentences

TWO = ("sae", "poly")
"""The dictionaries that are compared, as `ARMS` names them."""
CORPORA = ("english", "python-docs")
"""Where passages are from, half of the tokens each."""
KS = (1, 5)
"""Latents of a probe."""


def activations(model: Model, seed: int, size: Settings) -> dict[str, Tensor]:
    """What the model holds at the site, bfloat16.

    Returns:
        passages, held_out, topics: `[row, d]`; held_out_seq, topics_doc: sequence or sentence of each row, `[row]`.
    """
    train, held_out = _passages(seed, size)
    said = sentences(size.sentences, seed)
    each = size.tokens // len(CORPORA)
    seen = [_rows(model, part, size, each) for part in train]
    unseen = _rows(model, held_out, size)
    topics = _rows(model, list(said.texts), size)
    return {
        "passages": torch.cat([rows.x for rows in seen]).bfloat16(),
        "held_out": unseen.x.bfloat16(),
        "held_out_seq": unseen.labels["seq"],
        "topics": topics.x.bfloat16(),
        "topics_doc": topics.labels["doc"],
    }


def language(model: Model, rows: Mapping[str, Tensor], seed: int, size: Settings) -> dict[str, Any]:
    """Fit both dictionaries to the same rows, and measure them.

    Args:
        model: the model. rows: its `activations`. seed: of texts, starting weights and order. size: the sizes.

    Returns:
        tokens: rows that were learned from; ce: clean and zero, tokens, and of each dictionary, `[sequence]` each;
        per dictionary what `_measured` returns.
    """
    learned = torch.cat([rows["passages"], rows["topics"]]).float()
    stream = ArrayActivations({size.site: learned}, batch=size.lm_batch, seed=seed)
    recipes = {
        "sae": TopK(size.lm_width, k=size.lm_k),
        "poly": PolySAE(
            size.lm_width, k=size.lm_k, order=len(size.lm_ranks), ranks=size.lm_ranks,
            retract_every=size.lm_retract_every, power_rate=size.lm_power_rate,
        ),
    }  # fmt: skip
    fits = fit(list(recipes.values()), stream, steps=size.lm_steps, lr=size.lm_rate, clip=size.lm_clip, seed=seed,
               quiet=True)  # fmt: skip
    assert isinstance(fits, list)
    made = {name: done.dictionary for name, done in zip(recipes, fits)}
    said = sentences(size.sentences, seed)
    measured = {name: _measured(dictionary, rows, said, size) for name, dictionary in made.items()}
    return {"tokens": len(learned), "ce": _losses(model, made, seed, size), **measured}


@torch.no_grad()
def _measured(
    dictionary: SparseAutoencoder, rows: Mapping[str, Tensor], said: Sentences, size: Settings
) -> dict[str, Any]:
    """Reconstruction of held-out passages, probes and distances of sentences.

    Returns:
        error, scatter, cells: sums over each held-out sequence; broken: numbers that are not finite among weights and
        reconstructions, of how many (`numbers`); dead: share of latents without a row; f1: `[split, k]`; control:
        accuracy with shuffled labels, likewise; distance: mean over classes, `[latent]`; share: of the interactions,
        where there are any.
    """
    x, topics = rows["held_out"].float(), rows["topics"].float()
    codes = dictionary.encode(x)
    rebuilt = dictionary.decode(codes)
    sums = ReconstructionSums(x.shape[1])
    every = [*dictionary.parameters(), rebuilt]
    broken = sum(int((~torch.isfinite(part)).sum()) for part in every)
    if not broken:
        sums.update(x, rebuilt, rows["held_out_seq"], codes.l0())
    of_rows = dictionary.encode(topics)
    alive = (codes.counts() + of_rows.counts()) > 0
    per_text, texts = pooled(of_rows, rows["topics_doc"])
    classes, groups = (torch.tensor(part)[texts] for part in (said.classes, said.groups))
    probes = [sparse_probing(per_text, classes, groups, k=KS, shuffles=1, seed=s) for s in range(size.splits)]
    found = {
        **({} if broken else _units(sums)),
        "broken": broken,
        "numbers": sum(part.numel() for part in every),
        "dead": float((~alive).double().mean()),
        "f1": torch.tensor([[probe.f1.estimate for probe in split] for split in probes], dtype=torch.float64),
        "control": torch.tensor([[probe.control[0] for probe in split] for split in probes], dtype=torch.float64),
        "distance": class_distances(per_text, classes).mean(0),
        "alive": alive,
    }
    if isinstance(dictionary, PolynomialAutoencoder):
        found["share"] = dictionary.interaction_share(codes)
    return found


def _units(sums: ReconstructionSums) -> dict[str, Any]:
    found = sums.units()
    return {"error": found["error"], "scatter": found["scatter"], "cells": found["rows"] * sums.width}


def _losses(model: Model, made: Mapping[str, SparseAutoencoder], seed: int, size: Settings) -> dict[str, Any]:
    _, texts = _passages(seed, size)
    data = sequences(texts, model.tokenizer, packing="sequence", context=size.context, bos=model.bos, quiet=True)
    ids = [data[i].tolist() for i in range(len(data))]
    found = ce_recovered(model, dict(made), ids, site=size.site, first="keep")
    return {"tokens": found.tokens, "clean": found.clean, **found.ce}


def _passages(seed: int, size: Settings) -> tuple[list[list[str]], list[str]]:
    """Passages to learn from, by corpus, and those that are held out."""
    train, held_out = [], []
    each = size.held_out_texts // len(CORPORA)
    for name in CORPORA:
        every = list(corpus(name, quiet=True))
        long = [text for text in every if isinstance(text, str) and len(text) > 8 * size.context]
        Random(f"polysae/passages/{name}/{seed}").shuffle(long)
        held_out += long[:each]
        train.append(long[each:])
    return train, held_out


def _rows(model: Model, texts: list[str], size: Settings, tokens: int | None = None) -> Activations:
    """Rows of texts, each a sequence of its own, in their order."""
    wanted = texts if tokens is None else texts[: 2 + 2 * tokens // size.context]
    stream = ModelActivations(
        model, wanted, size.site, tokens=tokens, context=size.context, packing="sequence", mix=0, epochs=1
    )
    parts = list(stream)
    if not parts:
        raise BadInput("activations", "no row is left", "give longer texts")
    return Activations.cat(parts)
