"""Open a model: architecture, sites, dispatch, edits, capture, gradients, generation, resume, weights."""

from mechanome.engine.bases import Basis, Directions, Neurons, SingularVectors, Subspace
from mechanome.engine.edits import (
    Ablate,
    Add,
    AttentionKnockout,
    Clamp,
    Custom,
    Edit,
    FreezeTo,
    FromRows,
    FromRun,
    Patch,
    ProjectOut,
    Resample,
    Scale,
    Splice,
    Where,
)
from mechanome.engine.families import BlockShape, Layout
from mechanome.engine.frame import Frame
from mechanome.engine.gradients import Factors, Gradients
from mechanome.engine.inputs import Batch
from mechanome.engine.load import load
from mechanome.engine.metrics import Logit, LogitDiff, LogProb
from mechanome.engine.model import Model
from mechanome.engine.points import POINTS, Point
from mechanome.engine.resume import Prefix
from mechanome.engine.run import Run
from mechanome.engine.selftest import Report
from mechanome.engine.site import Site, parse
from mechanome.engine.sweep import Sweep, activation_patching

__all__ = [
    "POINTS",
    "Ablate",
    "Add",
    "AttentionKnockout",
    "Basis",
    "Batch",
    "BlockShape",
    "Clamp",
    "Custom",
    "Directions",
    "Edit",
    "Factors",
    "Frame",
    "FreezeTo",
    "FromRows",
    "FromRun",
    "Gradients",
    "Layout",
    "LogProb",
    "Logit",
    "LogitDiff",
    "Model",
    "Neurons",
    "Patch",
    "Point",
    "Prefix",
    "ProjectOut",
    "Report",
    "Resample",
    "Run",
    "Scale",
    "SingularVectors",
    "Site",
    "Splice",
    "Subspace",
    "Sweep",
    "Where",
    "activation_patching",
    "load",
    "parse",
]
