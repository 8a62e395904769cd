"""Circuits: graphs of a model's parts, scores of their edges, and sets of edges."""

from mechanome.circuits.attribution import QUADRATURES
from mechanome.circuits.circuit import Circuit, stack
from mechanome.circuits.circuit_files import load_circuit, load_eap_ig, save_circuit, save_eap_ig
from mechanome.circuits.graph import Graph, Group, Layer
from mechanome.circuits.interventions import Intervention
from mechanome.circuits.picture import CircuitPicture
from mechanome.circuits.score_matrix import Scores
from mechanome.circuits.scoring import METHODS, scores

__all__ = [
    "METHODS",
    "QUADRATURES",
    "Circuit",
    "CircuitPicture",
    "Graph",
    "Group",
    "Intervention",
    "Layer",
    "Scores",
    "load_circuit",
    "load_eap_ig",
    "save_circuit",
    "save_eap_ig",
    "scores",
    "stack",
]
