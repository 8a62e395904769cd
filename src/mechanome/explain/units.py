"""Which neurons, or singular units of MLPs, carry the answer to one prompt.

All of them are ranked by integrated gradients between both prompts, an estimate; the strongest are measured exactly on
the prompt, and on paraphrases where there are some. With enough paraphrases a certificate says which of them would be
among the strongest whatever single prompt is missing or other (paper 26).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits import Circuit, Graph, Scores, scores
from mechanome.circuits.certification import Certificate
from mechanome.circuits.finding.carriers import Carriers, carriers, strongest
from mechanome.circuits.finding.record import certificate_record
from mechanome.circuits.finding.unit_graph import graph_of
from mechanome.core import NotServed, track
from mechanome.engine import Model
from mechanome.engine.memory import Budget
from mechanome.explain.certified import check_prompts, sources_certified
from mechanome.explain.circuit import STEPS, triple
from mechanome.explain.paraphrases import Paraphrases
from mechanome.explain.question import Question


@dataclass(frozen=True)
class PromptUnits:
    """The units of one prompt.

    Args:
        carriers: the strongest, measured on the prompt, and with their mean shares on the paraphrases.
        paraphrases: how many these are.
        certificate: of the strongest units over the prompt and its paraphrases, where it was asked for.
    """

    carriers: Carriers
    paraphrases: int = 0
    certificate: Certificate | None = field(default=None, repr=False)

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return {
            **self.carriers.record(),
            "paraphrases": self.paraphrases,
            "certificate": None if self.certificate is None else certificate_record(self.certificate),
        }


def unit_graph(model: Model, units: str) -> Graph:
    """The graph with MLPs cut into units.

    Raises:
        NotServed: a model whose MLPs cannot be cut, with what to leave out.
    """
    try:
        return graph_of(model, units)
    except NotServed as refusal:
        raise NotServed(f"{units} of {model.name}", refusal.why or refusal.what, "leave out units") from refusal


def prompt_units(
    graph: Graph,
    units: str,
    question: Question,
    others: Sequence[Question] = (),
    *,
    certified: bool = False,
    seed: int = 0,
    budget: Budget = None,
    quiet: bool = False,
) -> PromptUnits:
    """Find and measure the units of a prompt.

    Args:
        graph: made by `unit_graph`. units: how its MLPs are cut.
        question: what is explained.
        others: its paraphrases, each a question of its own.
        certified: whether a certificate is asked for.
        seed: of random sets and masks. budget: memory for the largest piece. quiet: no progress line.

    Raises:
        TooFewRows: too few paraphrases for a certificate. NotFinite, BudgetTooSmall: as `scores`.
    """
    kinds = graph.kinds("unit")
    if certified:
        check_prompts(Paraphrases(tuple(others)), int(kinds.sum()))
    asked = [question, *others] if certified else [question]
    ranked = [_ranked(graph, q, budget) for q in track(asked, f"ranking {units}", quiet=quiet)]
    values = ranked[0].values
    sources = strongest(graph, kinds, values)
    found = carriers(
        graph,
        units,
        sources,
        values,
        triple(question),
        question.clean,
        among=int(kinds.sum()),
        ranked_by=ranked[0].method,
        seed=seed,
        budget=budget,
        quiet=quiet,
    )
    shares = [_shares(graph, sources, q, budget) for q in track(others, "measuring on paraphrases", quiet=quiet)]
    if shares:
        means = torch.stack(shares).mean(0).tolist()
        found = replace(found, units=tuple(replace(u, elsewhere=m) for u, m in zip(found.units, means)))
    proof = None
    if certified:
        proof = sources_certified(graph, ranked, kinds, len(sources), seed)
        found = found.certified(proof, sources)
    return PromptUnits(found, len(others), proof)


def _ranked(graph: Graph, question: Question, budget: Budget) -> Scores:
    return scores(graph, triple(question), level="node", steps=STEPS, budget=budget, quiet=True)


def _shares(graph: Graph, sources: Sequence[int], question: Question, budget: Budget) -> Tensor:
    """Exact shares of the effect of some units on one question, `[unit]` float64."""
    mask = torch.zeros(len(graph.sources), dtype=torch.bool)
    mask[list(sources)] = True
    only = Circuit.of_nodes(graph, mask)
    found = scores(graph, triple(question), method="exact", level="node", only=only, budget=budget, quiet=True)
    return -found.values[list(sources)].double() / question.gap
