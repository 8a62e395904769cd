"""Circuits: graphs of a model's parts, scores of their edges, and sets of edges."""

from mechanome.circuits.circuit import Circuit, stack
from mechanome.circuits.circuit_files import load_circuit, load_eap_ig, save_circuit, save_eap_ig
from mechanome.circuits.graph import Graph, Group, Layer
from mechanome.circuits.picture import CircuitPicture
from mechanome.circuits.score_matrix import Scores

__all__ = [
    "Circuit",
    "CircuitPicture",
    "Graph",
    "Group",
    "Layer",
    "Scores",
    "load_circuit",
    "load_eap_ig",
    "save_circuit",
    "save_eap_ig",
    "stack",
]
