"""Native bases: structure read off a model's own weights, with nothing trained.

MLPs as Detector-Effector Units and what each unit contributes (paper 05); attention heads as singular vectors of their
query-key and output-value maps, and attention explained by few of them (paper 28); a toy whose features are known.
"""

from mechanome.circuits.native.attention_terms import AttentionTerms, Case, attention_terms
from mechanome.circuits.native.best_rank_one import fitted, predicted
from mechanome.circuits.native.cards import UnitCard, unit_cards
from mechanome.circuits.native.contexts import Context, contexts, gates_over
from mechanome.circuits.native.contributions import MODES, UnitContributions, sca
from mechanome.circuits.native.coupling import Coupling, coupling
from mechanome.circuits.native.folding import Fold
from mechanome.circuits.native.head_units import QueryKey, output_value, query_key
from mechanome.circuits.native.known_features import Alignment, KnownFeatures, TrainedToy, train_known_features
from mechanome.circuits.native.rotary import Rotations, rotations
from mechanome.circuits.native.sparse_attention import needed, sparseness
from mechanome.circuits.native.unit_edits import ablate_units, keep_units
from mechanome.circuits.native.units import SIDES, MLPUnits, detector_effector_units
from mechanome.circuits.native.vocabulary import Vocabulary, kurtosis
from mechanome.circuits.native.weight_units import SPLITS, Orthonormal, WeightUnits, random_rotation

__all__ = [
    "MODES",
    "SIDES",
    "SPLITS",
    "Alignment",
    "AttentionTerms",
    "Case",
    "Context",
    "Coupling",
    "Fold",
    "KnownFeatures",
    "MLPUnits",
    "Orthonormal",
    "QueryKey",
    "Rotations",
    "TrainedToy",
    "UnitCard",
    "UnitContributions",
    "Vocabulary",
    "WeightUnits",
    "ablate_units",
    "attention_terms",
    "contexts",
    "coupling",
    "detector_effector_units",
    "fitted",
    "gates_over",
    "keep_units",
    "kurtosis",
    "needed",
    "output_value",
    "predicted",
    "query_key",
    "random_rotation",
    "rotations",
    "sca",
    "sparseness",
    "train_known_features",
    "unit_cards",
]
