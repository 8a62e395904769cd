"""The graph that a circuit is found in: of whole heads and MLPs, or with MLPs cut into units, where that can be had."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechanome.circuits.graph import Graph
from mechanome.core import BudgetTooSmall, NotServed
from mechanome.engine import Model, Site
from mechanome.engine.memory import nbytes, parse_budget, show

if TYPE_CHECKING:
    from mechanome.circuits.finding.settings import Settings

UNITS = {"neurons": "neurons", "svd": "singular units"}
"""What MLPs can be cut into, and what a page calls it: their neurons, or singular vectors of their output weights."""
_BYTES_OF_A_NAME = 150
"""What Python needs for the name of an edge; stability and certificates name every one."""


def graph_of(model: Model, units: str | None = None) -> Graph:
    """The graph of a model.

    Args:
        model: an opened model.
        units: a name of `UNITS`; None leaves MLPs whole. MLPs that are no such units (experts) stay whole, too.

    Raises:
        NotServed: a model that is no such graph, or that has no MLP which can be cut, with the reason.
    """
    graph = Graph.of(model)
    if units is None:
        return graph
    sites = [Site("mlp_act", i, tower=graph.tower) for i, layer in enumerate(graph.layers) if layer.mlp]
    reasons = {site: _why_whole(model, site) for site in sites}
    cut = {site: units for site, why in reasons.items() if not why}
    if not cut:
        why = next(filter(None, reasons.values()), "its layers have no MLP")
        raise NotServed(f"{units} of {model.name} as units", why, "leave out units: MLPs then stay whole")
    return graph.with_units(cut)


def _why_whole(model: Model, site: Site) -> str | None:
    """Why an MLP cannot be cut; None where it can be."""
    if why := model.why_not(site):
        return why
    try:
        model.weight(f"W_out.{site.layer}", site.tower)
    except NotServed as refusal:
        return refusal.why
    return None


def check_room(graph: Graph, asked: Settings) -> None:
    """Refuse edges of units that would not fit into memory, before anything is measured.

    Raises:
        BudgetTooSmall: with an estimate of what they need.
    """
    if asked.units is None or asked.level != "edge":
        return
    kept = asked.stability or asked.certify
    scores = nbytes(*graph.shape, 3 + 2 * ((asked.examples + 1) // 2) * kept)
    circuits = 3 * (len(asked.sizes) + 3) * graph.shape[0] * graph.shape[1]
    size = scores + circuits + _BYTES_OF_A_NAME * graph.n_edges * kept
    room = parse_budget(asked.budget, graph.opened().device)
    if size > room:
        raise BudgetTooSmall(
            f"edges between {asked.units}",
            f"{graph.n_edges:,} edges, their scores and circuits need about {show(size)}, and {show(room)} may be used",
            "leave out level, so that sources are chosen and not edges, or raise budget",
        )
