"""Paper 34: do contribution weights name the tokens that matter, and do attention sinks turn heads down?

A contribution weight is the share of attention's output that a token explains, by projection. The study hides every
token from the last position and asks which measure of importance predicts the damage; then it measures what the sink
does to the length of heads' outputs and to tokens the model is unsure about. Thresholds were fixed before the final
seeds were run. The claims are about the layer form; everything else is shown beside it.
"""

from __future__ import annotations

from dataclasses import dataclass

from mechanome.core import Claim
from mechanome.studies.study import Quantity, Scale, Study, measured_in

METRICS = {
    "contribution_layer": "contribution weights, layer form",
    "contribution_head": "contribution weights, head form",
    "attention": "attention weights",
    "norm": "norm-based weights a||u||",
    "value_weighted": "value-weighted attention a||v||",
    "rollout": "attention rollout",
    "gradient_x_input": "gradient times input",
}
"""Measures of token importance, in the order in which they are shown."""

MEASURES = {
    "agreement": "Spearman's correlation with the size of the masking effect, over the tokens of a prompt",
    "agreement-signed": "Spearman's correlation with the signed masking effect, over the tokens of a prompt",
    "hit": "share of prompts with an answer-bearing token among the top three",
    "auc": "chance that an answer-bearing token scores above another token",
    "drop": "loss of log p(answer) in nats with the top three hidden (comprehensiveness)",
    "kept": "loss of log p(answer) in nats with only the top three kept (sufficiency; lower is better)",
}
"""What is measured of each of them."""


@dataclass(frozen=True)
class Settings:
    """Sizes.

    Args:
        prompts: kept prompts of each kind and seed. candidates: drawn for them.
        masked: how many of these are masked token by token. removed: in how many the sink is removed, layer by layer.
        top: how many tokens count as the top.
        layers: of the decoder, for sink removal: every so many.
        heavy: the mean sink rate from which a head is sink-heavy.
    """

    prompts: int
    candidates: int
    masked: int
    removed: int
    top: int = 3
    layers: int = 1
    heavy: float = 0.5


_SINK = (
    ("share", "the sink's contribution over its attention, layer form, mean over layers", "<= 0.5"),
    ("convex", "share of heads whose ||o|| against the sink rate s has a fitted parabola that opens upwards", ">= 0.8"),
    ("louder", "share of sink-heavy heads (s > 0.5) whose output grows when the sink is removed", ">= 0.7"),
)
_SINKS = {"decoder": "first token", "encoder": "[CLS] and [SEP]"}
_SMALL = {"decoder": "smollm2-135m-instruct", "encoder": "minilm-l6"}

STUDY = Study(
    name="contribution-weights",
    paper=34,
    title="Contribution Weights: A Geometrical Analysis of Self-Attention Transformers",
    source="Cunningham & Mu\u00e7a Cirone, ICML 2026, arXiv 2606.07604",
    home="mechanome.heads",
    claims=(
        Claim(
            "agreement-margin",
            "Spearman's correlation with the size of the masking effect: contribution weights minus attention",
            ">= 0.05",
        ),
        Claim("agreement-better", "the same difference is above 0 (paired bootstrap over prompts)", "> 0"),
        Claim("hit-margin", "hit@3 on answer-bearing tokens: contribution weights minus attention", ">= 0.1"),
        *(
            Claim(f"sink-{name}-{role}", f"{role} ({where}): {statement}", threshold)
            for role, where in _SINKS.items()
            for name, statement, threshold in _SINK
        ),
        Claim(
            "drift-entropy",
            "Spearman's correlation over tokens of next-token entropy with the drift that removing the sink adds",
            ">= 0.15",
        ),
        Claim("drift-significant", "the same correlation is above 0 at p < 0.01 (99 % interval)", "> 0"),
    ),
    reported=(
        Quantity("agreement-over-norm", "the first claim's difference against norm-based weights instead of attention"),
        Quantity("hit-over-norm", "hit@3: contribution weights minus norm-based weights"),
        *(
            Quantity(f"{measure}-{metric.replace('_', '-')}", f"{named}: {what}")
            for measure, what in MEASURES.items()
            for metric, named in METRICS.items()
        ),
        *(
            Quantity(f"sink-{metric.replace('_', '-')}", f"{METRICS[metric]}: share of the decoder's sink, last query")
            for metric in ("attention", "contribution_head", "contribution_layer")
        ),
        *(
            Quantity(f"sink-convex-squared-{role}", f"{role}: share of heads whose ||o||^2 against s opens upwards")
            for role in _SINKS
        ),
        *(
            Quantity(f"sink-falling-{role}", f"{role}: share of heads whose output is shorter where s is larger")
            for role in _SINKS
        ),
        *(
            Quantity(f"suppression-{role}", f"{role}: suppression index 1 - ||o||/||m||, mean over sink-heavy heads")
            for role in _SINKS
        ),
        Quantity("clipped", "share of (layer, head) cells at the last query whose shares were bounded by eps"),
        Quantity(
            "answered",
            "share of drawn prompts (until there are enough) that the decoder answers right, in one token",
        ),
    ),
    measure=measured_in(__name__),
    scales={
        "smoke": Scale(Settings(prompts=1, candidates=8, masked=1, removed=1, layers=10), _SMALL, note="seconds"),
        "cpu": Scale(
            Settings(prompts=7, candidates=70, masked=7, removed=2),
            _SMALL,
            note="Three seeds of 21 prompts of 25 to 45 tokens, each masked token by token; minutes on one thread.",
        ),
        "full": Scale(
            Settings(prompts=100, candidates=600, masked=20, removed=10),
            {**_SMALL, "decoder": "meta-llama/Llama-3.1-8B"},
            device="cuda",
            dtype="bfloat16",
            note="900 prompts, 180 masked token by token; about 20 GB of GPU memory. The paper's other models: --model "
            "decoder=mistralai/Mistral-7B-v0.3, Qwen/Qwen2.5-7B or openai-community/gpt2.",
        ),
    },
    seeds=(0, 1, 2),
    pilot=(100,),
    method=(
        "Prompts are of three kinds: who has what (the value bears the answer), four facts about four people with a "
        "question in other words about one of them (the fact's last word does), and a list of ten words that begins "
        "again (the word that followed before does). Kept are those whose answer greedy decoding says, with one token.",
        "Masking: in every layer the last position cannot attend to one token, and the rest of its attention is "
        "renormalized; the effect is the change of log p(answer). Token 0, the sink, takes no part in rankings and "
        "correlations: hiding it is another experiment.",
        "Importance is that for the last position, averaged over layers (and heads). hit@3 is the share of prompts in "
        "which a token that bears the answer is among the three of most importance. Intervals resample prompts; "
        "shares of heads have exact binomial intervals, as if heads were independent draws.",
        "A head's output is o = s u + (1 - s) m, with sink rate s, the sink's transformed value u, and the rest m; "
        "||x|| is the Euclidean length of x. "
        "Parabolas are fitted to ||o|| over all queries of all prompts. Removing the sink takes m for o; for drift, it "
        "is removed in one layer at a time and the block run again. Drift is 1 - cos of the stream before and after a "
        "block; what counts is by how much removing the sink raises it. Its correlation with entropy resamples whole "
        "prompts.",
        "With u and m held, ||o|| is convex in s by algebra. Where a head bends down all the same, the note on that "
        "claim says how ||m|| goes with s: it is longer at the queries where the head uses its sink more.",
    ),
    limits=(
        "One small decoder and one small encoder; the paper's models are larger.",
        "Masking removes the last position's direct view of a token. What earlier positions copied from it stays.",
        "The size of an effect on one answer is no complete account of what a model used.",
        "Heads of one model are not independent, so the intervals of shares of heads are too narrow for a claim about "
        "models in general.",
        "The paper's own protocol was not available in full; this operationalization follows its abstract.",
    ),
    beside={
        "agreement-over-norm": "agreement with masking, contribution weights minus norm-based weights",
        "hit-over-norm": "hit@3, contribution weights minus norm-based weights",
    },
)
