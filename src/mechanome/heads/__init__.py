"""What attention heads do: patterns, contribution weights, token importance and its test by masking, sinks."""

from mechanome.heads.contribution import FORMS, Contribution, contribution, head_importance, transformed_lengths
from mechanome.heads.contributions import Contributions, contributions, contributions_of
from mechanome.heads.faithfulness import Faithfulness, agreement, agreements, critical_auc, faithfulness, hit_at_k
from mechanome.heads.head_scores import SCORES, HeadScores, head_scores, repeated_tokens
from mechanome.heads.importance import METRICS, TokenImportance, TokenMetric, rollout, token_importance
from mechanome.heads.masking import (
    HIDDEN_FROM,
    LeaveOneOut,
    Masked,
    leave_one_out,
    mask_tokens,
    masked_runs,
    neighbors,
)
from mechanome.heads.patterns import Patterns, patterns
from mechanome.heads.reading import AttentionLayer, Reading, read_attention
from mechanome.heads.sink_removal import SinkRemoval, drift, drift_against_entropy, sink_removal
from mechanome.heads.sink_report import SinkReport, sink_report
from mechanome.heads.sinks import SinkSplit, find_sinks, fit_parabola, split_at_sink

__all__ = [
    "FORMS",
    "HIDDEN_FROM",
    "METRICS",
    "SCORES",
    "AttentionLayer",
    "Contribution",
    "Contributions",
    "Faithfulness",
    "HeadScores",
    "LeaveOneOut",
    "Masked",
    "Patterns",
    "Reading",
    "SinkRemoval",
    "SinkReport",
    "SinkSplit",
    "TokenImportance",
    "TokenMetric",
    "agreement",
    "agreements",
    "contribution",
    "contributions",
    "contributions_of",
    "critical_auc",
    "drift",
    "drift_against_entropy",
    "faithfulness",
    "find_sinks",
    "fit_parabola",
    "head_importance",
    "head_scores",
    "hit_at_k",
    "leave_one_out",
    "mask_tokens",
    "masked_runs",
    "neighbors",
    "patterns",
    "read_attention",
    "repeated_tokens",
    "rollout",
    "sink_removal",
    "sink_report",
    "split_at_sink",
    "token_importance",
    "transformed_lengths",
]
