"""Open a model: architecture, sites, dispatch, edits, capture, gradients, generation, resume, weights."""

from typing import TYPE_CHECKING

from mechanome.lazy import offer

if TYPE_CHECKING:
    from mechanome.engine.bases import Basis, Directions, Neurons, SingularVectors, Subspace
    from mechanome.engine.edit_files import load_edits, save_edits
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
    from mechanome.engine.generation import Generation, generate
    from mechanome.engine.gradients import Factors, Gradients
    from mechanome.engine.inputs import Batch
    from mechanome.engine.load import load
    from mechanome.engine.metrics import Logit, LogitDiff, LogProb
    from mechanome.engine.model import Model
    from mechanome.engine.names import from_foreign, lookup, translate
    from mechanome.engine.points import POINTS, Point
    from mechanome.engine.resume import Prefix
    from mechanome.engine.run import Run
    from mechanome.engine.scoring import OptionScores, logprob, score_options
    from mechanome.engine.selftest import Report
    from mechanome.engine.site import Site, parse
    from mechanome.engine.sweep import Sweep, activation_patching
    from mechanome.engine.weights import Weight, edited_weights, parameter_mask

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
    "Generation",
    "Gradients",
    "Layout",
    "LogProb",
    "Logit",
    "LogitDiff",
    "Model",
    "Neurons",
    "OptionScores",
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
    "Weight",
    "Where",
    "activation_patching",
    "edited_weights",
    "from_foreign",
    "generate",
    "load",
    "load_edits",
    "logprob",
    "lookup",
    "parameter_mask",
    "parse",
    "save_edits",
    "score_options",
    "translate",
]

offer(__name__)
