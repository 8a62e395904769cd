"""Mechanome: open a neural network, find the mechanism behind a behaviour, prove it, change it.

import mechanome as mn

model = mn.load("smollm2-135m-instruct")
run = model.run("The capital of France is", capture=["resid_post.*", "z.*"])
model.run("The capital of France is", edits=[mn.Ablate("mlp_out.12")])
mn.explain("The capital of France is")

Names are imported when first used: `mechanome --help` need not wait for torch.
"""

from typing import TYPE_CHECKING

from mechanome.lazy import offer
from mechanome.version import __version__

if TYPE_CHECKING:
    from mechanome.engine import (
        POINTS,
        Ablate,
        Add,
        AttentionKnockout,
        Basis,
        Batch,
        Clamp,
        Custom,
        Directions,
        Edit,
        FreezeTo,
        FromRows,
        FromRun,
        Layout,
        Logit,
        LogitDiff,
        LogProb,
        Model,
        Neurons,
        Patch,
        Prefix,
        ProjectOut,
        Resample,
        Run,
        Scale,
        SingularVectors,
        Site,
        Splice,
        Subspace,
        Sweep,
        Where,
        activation_patching,
        from_foreign,
        load,
        load_edits,
        parameter_mask,
        save_edits,
        translate,
    )
    from mechanome.explain import Explanation, explain

__all__ = [
    "POINTS",
    "Ablate",
    "Add",
    "AttentionKnockout",
    "Basis",
    "Batch",
    "Clamp",
    "Custom",
    "Directions",
    "Edit",
    "Explanation",
    "FreezeTo",
    "FromRows",
    "FromRun",
    "Layout",
    "LogProb",
    "Logit",
    "LogitDiff",
    "Model",
    "Neurons",
    "Patch",
    "Prefix",
    "ProjectOut",
    "Resample",
    "Run",
    "Scale",
    "SingularVectors",
    "Site",
    "Splice",
    "Subspace",
    "Sweep",
    "Where",
    "__version__",
    "activation_patching",
    "explain",
    "from_foreign",
    "load",
    "load_edits",
    "parameter_mask",
    "save_edits",
    "translate",
]

offer(__name__)
