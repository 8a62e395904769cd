"""Statistics with intervals, claims and findings, run folders and replay, the one fit loop, safe files, errors."""

from typing import TYPE_CHECKING

from mechanome.lazy import offer

if TYPE_CHECKING:
    from mechanome.core.checkpoints import CheckpointFolder
    from mechanome.core.claims import Claim, Finding, Threshold, Verdict, findings_table, judge
    from mechanome.core.cluster import fan_out
    from mechanome.core.errors import (
        BadInput,
        BudgetTooSmall,
        CorruptFile,
        DownloadFailed,
        MechanomeError,
        NotFinite,
        NotServed,
        ShapeMismatch,
        TooFewRows,
        UnknownModel,
        UnknownName,
        UnknownSite,
        nearest,
    )
    from mechanome.core.files import atomic_dir, atomic_path, atomic_write, lock, sha256
    from mechanome.core.fit import FitState, Fitted, Parts, fit
    from mechanome.core.formats import append_jsonl, plain, read_json, read_jsonl, write_json
    from mechanome.core.left import Left
    from mechanome.core.progress import Bar, notice, silence, stage, track
    from mechanome.core.runs import VERBS, RunConfig, RunFolder, replay, verb
    from mechanome.core.significance import (
        Permutation,
        benjamini_hochberg,
        holm,
        label_permutation_test,
        permutation_test,
    )
    from mechanome.core.state import flatten, seeded, unflatten
    from mechanome.core.statistics import Interval, binomial, bootstrap, paired_bootstrap, spearman
    from mechanome.core.streams import Batches, Stream
    from mechanome.core.tables import Table
    from mechanome.core.tensor_files import TensorFile, read_tensors, write_tensors
    from mechanome.core.tiers import TIERS, Tier
    from mechanome.core.versions import machine, versions

__all__ = [
    "TIERS",
    "VERBS",
    "BadInput",
    "Bar",
    "Batches",
    "BudgetTooSmall",
    "CheckpointFolder",
    "Claim",
    "CorruptFile",
    "DownloadFailed",
    "Finding",
    "FitState",
    "Fitted",
    "Interval",
    "Left",
    "MechanomeError",
    "NotFinite",
    "NotServed",
    "Parts",
    "Permutation",
    "RunConfig",
    "RunFolder",
    "ShapeMismatch",
    "Stream",
    "Table",
    "TensorFile",
    "Threshold",
    "Tier",
    "TooFewRows",
    "UnknownModel",
    "UnknownName",
    "UnknownSite",
    "Verdict",
    "append_jsonl",
    "atomic_dir",
    "atomic_path",
    "atomic_write",
    "benjamini_hochberg",
    "binomial",
    "bootstrap",
    "fan_out",
    "findings_table",
    "fit",
    "flatten",
    "holm",
    "judge",
    "label_permutation_test",
    "lock",
    "machine",
    "nearest",
    "notice",
    "paired_bootstrap",
    "permutation_test",
    "plain",
    "read_json",
    "read_jsonl",
    "read_tensors",
    "replay",
    "seeded",
    "sha256",
    "silence",
    "spearman",
    "stage",
    "track",
    "unflatten",
    "verb",
    "versions",
    "write_json",
    "write_tensors",
]

offer(__name__)
