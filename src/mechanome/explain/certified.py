"""Certificates of one prompt: which edges, or units, are among the strongest whatever single prompt is missing.

The examples are the prompt and its paraphrases; the method takes the strongest on average over those that are left.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mechanome.circuits import Graph, Scores, Select, certify
from mechanome.circuits.certification import Certificate
from mechanome.circuits.effects import Components, Effects
from mechanome.circuits.finding.certifiable import check_certifiable
from mechanome.explain.paraphrases import Paraphrases

MOST = 9
"""Paraphrases that are tried at most, as many as in the paper on query circuits."""


def check_prompts(alike: Paraphrases, components: int) -> None:
    """Refuse a certificate that could certify nothing.

    Args:
        alike: the paraphrases that can be used. components: of the certificate.

    Raises:
        TooFewRows: too few prompts, with those that were left out.
    """
    fix = f"give more --paraphrases of the same behavior: up to {MOST} are taken, of short prompts"
    check_certifiable(1 + len(alike.questions), components, "; ".join((fix, *alike.left_out)))


def edges_certified(graph: Graph, each: Sequence[Scores], size: int, seed: int) -> Certificate:
    """Of the strongest edges of a graph.

    Args:
        graph: the graph. each: scores of every prompt. size: how many edges are taken. seed: of the masks.
    """
    values = torch.stack([one.edge_values()[graph.mask] for one in each])
    return certify(Select(size), Effects(values, Components(graph.mask, graph)), seed=seed, quiet=True)


def sources_certified(graph: Graph, each: Sequence[Scores], among: Tensor, size: int, seed: int) -> Certificate:
    """Of the strongest among some sources.

    Args:
        among: which, `[source]` of booleans. graph, each, size, seed: as in `edges_certified`.
    """
    values = torch.stack([one.values[among] for one in each])
    return certify(Select(size), Effects(values, Components(among, graph)), seed=seed, quiet=True)
