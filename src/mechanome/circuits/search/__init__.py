"""Circuit search: from scores, edge by edge, or by learned masks."""

from mechanome.circuits.search.found import Found
from mechanome.circuits.search.ranking import greedy, top_n
from mechanome.circuits.search.searching import SEARCHES, Search, search

__all__ = ["SEARCHES", "Found", "Search", "greedy", "search", "top_n"]
