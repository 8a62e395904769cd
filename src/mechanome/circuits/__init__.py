"""Circuits: graphs of parts, scores of edges, sets of edges, running them, and how far to trust them."""

from mechanome.circuits.attribution import QUADRATURES, relp_rules
from mechanome.circuits.certification import Certificate, certify, load_certificate, save_certificate
from mechanome.circuits.channels import Channels, channel_scores, prune_channels
from mechanome.circuits.circuit import Circuit, stack
from mechanome.circuits.circuit_files import load_circuit, load_eap_ig, save_circuit, save_eap_ig
from mechanome.circuits.execution import Executed, Prepared, execute
from mechanome.circuits.graph import Graph
from mechanome.circuits.interventions import Intervention
from mechanome.circuits.layers import Group, Layer
from mechanome.circuits.layerwise import SelectEach
from mechanome.circuits.measured import Measured
from mechanome.circuits.metrics import (
    SIZES,
    SizeCurve,
    accuracy,
    circuit_error,
    completeness,
    divergence,
    faithfulness,
    iou,
    metrics_table,
    ndf,
    size_curve,
    sizes_in_edges,
)
from mechanome.circuits.minimality import Minimality, minimality
from mechanome.circuits.native import (
    AttentionTerms,
    KnownFeatures,
    MLPUnits,
    QueryKey,
    UnitCard,
    UnitContributions,
    WeightUnits,
    ablate_units,
    attention_terms,
    detector_effector_units,
    keep_units,
    output_value,
    query_key,
    sca,
    train_known_features,
    unit_cards,
)
from mechanome.circuits.picture import CircuitPicture
from mechanome.circuits.query import ScoredQuery, query_circuits
from mechanome.circuits.query_methods import QUERY_METHODS
from mechanome.circuits.query_result import QueryCircuits
from mechanome.circuits.query_sizes import BUDGETS
from mechanome.circuits.resampling import Resamples
from mechanome.circuits.score_matrix import Scores
from mechanome.circuits.scoring import METHODS, scores
from mechanome.circuits.screening import Screened, screen
from mechanome.circuits.search import (
    GATES,
    OBJECTIVES,
    SEARCHES,
    Decisions,
    Found,
    Moment,
    Said,
    Search,
    Training,
    acdc,
    greedy,
    learned_mask,
    search,
    top_n,
    train_masks,
)
from mechanome.circuits.selecting import Select
from mechanome.circuits.sheaves import SheafRecipe, SheafTrainer, Sheaves, SideBySide, discover_many
from mechanome.circuits.stability import bootstrap_circuits, stability_report
from mechanome.circuits.stability_card import StabilityReport
from mechanome.circuits.units import Units
from mechanome.circuits.variance import Decomposition, variance_decomposition
from mechanome.circuits.variation import Variation, required_n, split_half, variation

__all__ = [
    "BUDGETS",
    "GATES",
    "METHODS",
    "OBJECTIVES",
    "QUADRATURES",
    "QUERY_METHODS",
    "SEARCHES",
    "SIZES",
    "AttentionTerms",
    "Certificate",
    "Channels",
    "Circuit",
    "CircuitPicture",
    "Decisions",
    "Decomposition",
    "Executed",
    "Found",
    "Graph",
    "Group",
    "Intervention",
    "KnownFeatures",
    "Layer",
    "MLPUnits",
    "Measured",
    "Minimality",
    "Moment",
    "Prepared",
    "QueryCircuits",
    "QueryKey",
    "Resamples",
    "Said",
    "ScoredQuery",
    "Scores",
    "Screened",
    "Search",
    "Select",
    "SelectEach",
    "SheafRecipe",
    "SheafTrainer",
    "Sheaves",
    "SideBySide",
    "SizeCurve",
    "StabilityReport",
    "Training",
    "UnitCard",
    "UnitContributions",
    "Units",
    "Variation",
    "WeightUnits",
    "ablate_units",
    "accuracy",
    "acdc",
    "attention_terms",
    "bootstrap_circuits",
    "certify",
    "channel_scores",
    "circuit_error",
    "completeness",
    "detector_effector_units",
    "discover_many",
    "divergence",
    "execute",
    "faithfulness",
    "greedy",
    "iou",
    "keep_units",
    "learned_mask",
    "load_certificate",
    "load_circuit",
    "load_eap_ig",
    "metrics_table",
    "minimality",
    "ndf",
    "output_value",
    "prune_channels",
    "query_circuits",
    "query_key",
    "relp_rules",
    "required_n",
    "save_certificate",
    "save_circuit",
    "save_eap_ig",
    "sca",
    "scores",
    "screen",
    "search",
    "size_curve",
    "sizes_in_edges",
    "split_half",
    "stability_report",
    "stack",
    "top_n",
    "train_known_features",
    "train_masks",
    "unit_cards",
    "variance_decomposition",
    "variation",
]
