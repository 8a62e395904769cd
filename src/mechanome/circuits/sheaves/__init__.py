"""Many circuits for one task: sheaves that are trained to stay apart (paper 10, arXiv 2605.12671)."""

from mechanome.circuits.sheaves.comparing import Shared, iou_matrix, mean_iou, shared_edges
from mechanome.circuits.sheaves.found import Sheaves
from mechanome.circuits.sheaves.losses import SheafLosses, density, overlap, two_label, undecided
from mechanome.circuits.sheaves.pictures import SideBySide
from mechanome.circuits.sheaves.recipe import SheafRecipe
from mechanome.circuits.sheaves.training import REFERENCES, Row, SheafTrainer, discover_many

__all__ = [
    "REFERENCES",
    "Row",
    "Shared",
    "SheafLosses",
    "SheafRecipe",
    "SheafTrainer",
    "Sheaves",
    "SideBySide",
    "density",
    "discover_many",
    "iou_matrix",
    "mean_iou",
    "overlap",
    "shared_edges",
    "two_label",
    "undecided",
]
