"""Circuit search: from scores, edge by edge, or by learned masks."""

from mechanome.circuits.search.decisions import Decisions
from mechanome.circuits.search.edge_by_edge import acdc
from mechanome.circuits.search.found import Found
from mechanome.circuits.search.gates import GATES
from mechanome.circuits.search.learned_masks import learned_mask
from mechanome.circuits.search.mask_training import Moment, Training, train_masks
from mechanome.circuits.search.objectives import OBJECTIVES, Said
from mechanome.circuits.search.ranking import greedy, top_n
from mechanome.circuits.search.running import Runner
from mechanome.circuits.search.searching import SEARCHES, Search, search

__all__ = [
    "GATES",
    "OBJECTIVES",
    "SEARCHES",
    "Decisions",
    "Found",
    "Moment",
    "Runner",
    "Said",
    "Search",
    "Training",
    "acdc",
    "greedy",
    "learned_mask",
    "search",
    "top_n",
    "train_masks",
]
