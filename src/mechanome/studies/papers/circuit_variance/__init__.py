"""Paper 40: is a circuit found again when the inputs, the template or the method change?

Exact effects of every head are measured input by input in a real model, and every edge of a small trained model is
scored in 16 ways. Resampling says how alike circuits are, and the variance of scores is split by where it comes from.
Scores with known answers check the estimators. Thresholds were fixed before the final seeds were run.
"""

from __future__ import annotations

from dataclasses import dataclass

from mechanome.core import Claim
from mechanome.studies.study import Quantity, Scale, Study, measured_in

QUALITY = {
    "error": "share of prompts on which the circuit prefers the other answer than the model",
    "faithfulness": "share of the total effect that the circuit keeps",
    "KL": "KL(model || circuit) of the next token, nats",
}
"""What circuits of the small model do."""


@dataclass(frozen=True)
class Settings:
    """Sizes.

    Args:
        inputs: pairs of nouns a seed. base: how effects of heads are found; "exact" but in the smoke tier.
        top: heads whose variation is looked at. few, many: sizes of circuits of heads.
        samples: bootstrap samples of heads.
        candidates: subjects tried a seed, and examples of other tasks that accuracy is taken on.
        others: inputs of the second task. enough: accuracy from which it counts.
        steps: of training the small model. prompts: it is scored on. bootstraps: samples of them.
        sizes: circuit sizes in edges; circuit: the one that claims are about.
        repeats: sets of known scores, per level of variation and seed.
    """

    inputs: int
    samples: int
    others: int
    steps: int
    prompts: int
    repeats: int
    base: str = "exact"
    top: int = 20
    few: int = 10
    many: int = 30
    enough: float = 0.8
    candidates: int = 40
    bootstraps: int = 50
    sizes: tuple[int, ...] = (5, 10, 20, 30, 50)
    circuit: int = 20


STUDY = Study(
    name="circuit-variance",
    paper=40,
    title="Mechanistic Interpretability as Statistical Estimation: A Variance Analysis",
    source="M\u00e9loux, Portet & Peyrard, ICML 2026, arXiv 2510.00845",
    home="mechanome.circuits",
    claims=(
        Claim("top-cv", "exact effects, 20 heads with the largest |mean|: median CV over inputs", "> 0.5"),
        Claim("single-jaccard", "exact effects, top 10 heads of two single inputs: Jaccard index", "< 0.5"),
        Claim(
            "bootstrap-jaccard", "exact effects, top 10 heads of two bootstrap samples of 16: Jaccard index", "< 0.75"
        ),
        Claim("bootstrap-rises", "Spearman's correlation of that index with the number of inputs", "> 0.9"),
        Claim("eap-amplifies-4", "top 30, samples of 4: Jaccard index of attribution patching minus exact", "<= 0.03"),
        Claim("eap-amplifies-8", "top 30, samples of 8: Jaccard index of attribution patching minus exact", "<= 0.03"),
        Claim("paraphrase-lower", "top 10: Jaccard index across templates minus that across bootstrap samples", "< 0"),
        Claim(
            "hyperparameters-lower",
            "small model, 20 edges: Jaccard index across 16 ways to score minus that across bootstrap samples",
            "< 0",
        ),
        Claim("ig-agrees-better", "small model, Pearson with exact effects over edges: EAP-IG minus EAP", "> 0"),
        Claim("parts-sum", "small model: sum of the parts of variance over the total measured", "in [0.95, 1.05]"),
        Claim(
            "known-bootstrap",
            "known scores: Jaccard index of bootstrap samples of 16 of 64 minus that of the true distribution",
            "in [-0.05, 0.05]",
        ),
        Claim("known-fresh", "known scores: the same of samples that share no input", "in [-0.05, 0.05]"),
        Claim("known-cv", "known scores: median estimated over true CV", "in [0.9, 1.1]"),
    ),
    reported=(
        Quantity("sign-consistency", "share of inputs with the sign of the mean, mean over the top 20 heads"),
        Quantity("top-cv-behind", "the first claim's number, template 'behind'"),
        Quantity("top-cv-that-clause", "the first claim's number, template 'that-clause'"),
        Quantity("eap-top-cv", "the first claim's number, attribution patching"),
        Quantity("eap-single-jaccard", "the second claim's number, attribution patching"),
        Quantity("eap-pearson", "Pearson of attribution patching with exact effects over heads"),
        Quantity("bootstrap-jaccard-many", "top 30 heads of two bootstrap samples of 16: Jaccard index"),
        Quantity("paraphrase-jaccard", "top 10 heads of two templates: Jaccard index"),
        Quantity("paraphrase-jaccard-many", "top 30 heads of two templates: Jaccard index"),
        Quantity("paraphrase-lower-many", "top 30: across templates minus across bootstrap samples"),
        Quantity("other-top-cv", "another task: the first claim's number"),
        Quantity("other-single-jaccard", "another task: the second claim's number"),
        Quantity("other-bootstrap-jaccard", "another task: top 10 heads of two bootstrap samples of all inputs"),
        Quantity("small-accuracy", "small model: share of prompts and counterfactuals done right"),
        Quantity("small-bootstrap", "small model: Jaccard index across bootstrap samples, mean over 16 ways to score"),
        Quantity("small-hyperparameters", "small model: Jaccard index across 16 ways to score"),
        Quantity("small-chance", "small model: Jaccard index of random sets of 20 edges"),
        Quantity("small-pearson-eap", "small model: Pearson of EAP with exact effects"),
        Quantity("small-pearson-eap-ig", "small model: Pearson of EAP-IG with exact effects"),
        *(
            Quantity(
                f"small-{name.lower()}{end}", f"small model, circuits of 20 edges: {what}, {how} bootstrap samples"
            )
            for name, what in QUALITY.items()
            for end, how in (("", "mean over"), ("-sd", "standard deviation over"))
        ),
        Quantity("share-sampling", "share of the variance of scores that is due to samples"),
        Quantity("share-method", "share that is due to the way of scoring"),
        Quantity("share-interaction", "share that is due to both together"),
        Quantity("cut-rest", "Jaccard index of 20 edges: simulated from normal scores minus measured"),
    ),
    measure=measured_in(__name__),
    scales={
        "smoke": Scale(
            Settings(
                inputs=3, samples=60, others=3, steps=20, prompts=6, repeats=2, base="eap", candidates=12, bootstraps=30
            ),
            {"decoder": "smollm2-135m-instruct"},
            seeds=1,
            note="Effects of heads are estimates here, and the small model is hardly trained.",
        ),
        "cpu": Scale(
            Settings(inputs=6, samples=1000, others=8, steps=900, prompts=64, repeats=5),
            {"decoder": "smollm2-135m-instruct"},
            note="24 pairs of nouns in three templates, 270 heads patched for each; four small models.",
        ),
        "full": Scale(
            Settings(inputs=50, samples=2000, others=100, steps=5000, prompts=256, repeats=20, candidates=400),
            {"decoder": "meta-llama/Llama-3.2-1B"},
            device="cuda",
            note="200 inputs. The paper's other models: --model decoder=openai-community/gpt2 or "
            "meta-llama/Llama-3.2-1B-Instruct.",
        ),
    },
    seeds=(0, 1, 2, 3),
    pilot=(100, 101),
    method=(
        "Heads: 'The boys near the car' against 'The boy near the car', metric logit(' are') - logit(' is'); also "
        "'behind' and 'The boys that the friends saw', with the same subjects. A pair of nouns is used where the model "
        "does all six prompts right. The output of one head is patched at all positions and the rest of the model run "
        "again; this is exact, for each input. Attribution patching is the first-order estimate of the same.",
        "A circuit is the k heads with the largest |mean effect|. Samples of n inputs are drawn with replacement; all "
        "pairs of samples are compared. Intervals are over inputs, by the jackknife after the bootstrap, which holds "
        "the noise of finitely many samples and is therefore conservative.",
        "Across templates: circuits of two templates from the same bootstrap sample of nouns. It is set against "
        "circuits of two samples within a template; samples are as large as there are inputs.",
        "Small model: two layers of four heads and MLPs, width 64, learn to continue a repeated pattern of eight "
        "tokens; 110 edges. They are scored by exact effects, EAP, EAP-IG (five steps) and gradients at both ends, "
        "each with four interventions (patch, zero, mean, noise). Intervals resample models.",
        "Parts of variance: for a random sample and a random way of scoring, the mean squared distance from the exact "
        "effect over all inputs is the sum of intrinsic variance, error variance, their covariance (all over n), "
        "spread of methods, and squared bias. The parts come from scores per input, the total from resampling.",
        "Two claims stayed open. The index of the top 10 heads of samples of 16 depends on where the cut falls, above "
        "a plateau of many small effects: it is 0.83 for 8 heads, 0.81 for 10, 0.73 for 12 and 0.65 for 20; four times "
        "as many samples leave it and its interval as they are. EAP-IG agrees better with exact effects than EAP in "
        "three of the four small models (Pearson 0.987 against 0.958, 0.989 against 0.978, 0.992 against 0.967) and a "
        "little worse in one (0.982 against 0.989); four models are too few for an interval above 0.",
        "Known scores: 270 components with normal means and the same CV of 0.5, 1 or 2, top 10. The true index is that "
        "of samples from the true distribution.",
    ),
    limits=(
        "One small language model and toy models of two layers; the paper's models are larger.",
        "Only top-k circuits are compared, not the searches that the paper also used.",
        "Patching a head at all positions mixes what it does at each of them.",
        "Which templates, and how different they are, decides how alike their circuits can be.",
    ),
)
