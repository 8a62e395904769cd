"""Circuits: graphs of a model's parts, scores of their edges, and sets of edges."""

from mechanome.circuits.graph import Graph, Group, Layer

__all__ = ["Graph", "Group", "Layer"]
