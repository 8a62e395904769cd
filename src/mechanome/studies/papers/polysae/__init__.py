"""Paper 42: does a decoder of products tell features that work together from features that merely occur together?

Where interactions are planted, one can look: autoencoders of the same size with and without products are fitted, and
what PolySAE says of pairs is set against the truth and against how often they occur together. On a language model's
activations two dictionaries are compared, and only that nothing is lost is judged. Thresholds are the specification's.
"""

from __future__ import annotations

from dataclasses import dataclass

from mechanome.core import Claim
from mechanome.studies.study import Quantity, Scale, Study, measured_in

ARMS = {
    "sae": "linear autoencoder",
    "wide": "linear autoencoder with as many parameters",
    "linear": "factorized linear control",
    "poly": "PolySAE",
}
"""Dictionaries of planted interactions; the first and the last are also fitted to a language model."""


@dataclass(frozen=True)
class Settings:
    """Sizes.

    Args:
        features, d: planted features, and the space they live in.
        width, k, ranks: of the dictionaries. wide: latents of the one that has PolySAE's number of parameters.
        steps, batch, rate, norm, power_rate: of their training. held_out: batches they are measured on.
        site: of the language model. context: tokens of a sequence. tokens: of passages to learn from.
        sentences: of each subject. held_out_texts: passages to measure on.
        lm_width, lm_k, lm_ranks: of its dictionaries.
        lm_steps, lm_batch, lm_rate, lm_retract_every, lm_power_rate, lm_clip: of their training.
        lm_seeds: how many of the seeds it is done with. splits: of people, for probes.
    """

    features: int = 96
    d: int = 64
    width: int = 128
    wide: int = 176
    k: int = 4
    ranks: tuple[int, ...] = (64, 64)
    steps: int = 2500
    batch: int = 512
    rate: float = 2e-3
    norm: str = "none"
    power_rate: float = 1.0
    held_out: int = 20
    site: str = "resid_post.15"
    context: int = 128
    tokens: int = 46_000
    sentences: int = 140
    held_out_texts: int = 48
    lm_width: int = 2048
    lm_k: int = 32
    lm_ranks: tuple[int, ...] = (576, 32, 32)
    lm_steps: int = 1500
    lm_batch: int = 256
    lm_rate: float | str = "auto"
    lm_retract_every: int = 1
    lm_power_rate: float = 1.0
    lm_clip: float | None = None
    lm_seeds: int = 1
    splits: int = 5


STUDY = Study(
    name="polysae",
    paper=42,
    title="PolySAE: Modeling Feature Interactions in Sparse Autoencoders via Polynomial Decoding",
    source="Koromilas, Demou, Oldfield, Panagakis & Nicolaou, ICML 2026, arXiv 2602.01322",
    home="mechanome.dictionaries",
    claims=(
        Claim("over-sae", "planted: FVU of PolySAE over that of the linear autoencoder, same m and k", "< 0.95"),
        Claim("over-linear", "planted: FVU of PolySAE over that of the factorized linear control", "< 0.92"),
        Claim("truth", "planted: correlation of interaction strength with the true interaction over pairs", "> 0.3"),
        Claim(
            "beyond-covariance",
            "planted: that correlation minus that of the autoencoder's |covariance| with the true interaction",
            ">= 0.2",
        ),
        Claim(
            "not-cooccurrence",
            "planted: correlation of interaction strength with how often a pair is active together",
            "in [-0.25, 0.25]",
        ),
        Claim("covariance-is", "planted: correlation of the autoencoder's |covariance| with the same", "> 0.4"),
        Claim("ce", "language model: CE recovered by PolySAE minus that by the autoencoder", "in [-0.02, 0.02]"),
        Claim("finite", "language model: weights and reconstructions that are not finite", "<= 0"),
    ),
    reported=(
        *(Quantity(f"fvu-{arm}", f"planted, {what}: FVU") for arm, what in ARMS.items()),
        *(
            Quantity(f"found-{arm}", f"planted, {what}: share of features with an atom of cosine 0.9 or more")
            for arm, what in ARMS.items()
        ),
        Quantity(
            "covariance-truth", "planted: correlation of the autoencoder's |covariance| with the true interaction"
        ),
        Quantity(
            "share", "planted: mean length of PolySAE's interactions over that of its linear part; the truth is 0.5"
        ),
        Quantity(
            "compounds-sae", "planted, linear autoencoder: cosine of a pair's output with what was planted for it"
        ),
        Quantity("compounds-poly", "planted, PolySAE: the same"),
        Quantity("ce-sae", "language model, linear autoencoder: CE recovered, of what zero ablation loses"),
        Quantity("ce-poly", "language model, PolySAE: the same"),
        Quantity("mse-sae", "language model, linear autoencoder: squared error per coordinate, held-out passages"),
        Quantity("mse-poly", "language model, PolySAE: the same"),
        Quantity("lm-fvu-sae", "language model, linear autoencoder: FVU, held-out passages"),
        Quantity("lm-fvu-poly", "language model, PolySAE: the same"),
        *(
            Quantity(f"f1-{k}-{arm}", f"language model, {ARMS[arm]}: F1 of probes of {k} latent(s), six subjects")
            for k in (1, 5)
            for arm in ("sae", "poly")
        ),
        Quantity("f1-gain-1", "language model: F1 with 1 latent, PolySAE minus the autoencoder"),
        Quantity("f1-gain-5", "language model: F1 with 5 latents, PolySAE minus the autoencoder"),
        Quantity("w1-sae", "language model, linear autoencoder: mean W1 between subjects, in standard deviations"),
        Quantity("w1-poly", "language model, PolySAE: the same"),
        Quantity("w1-ratio", "language model: mean W1 of PolySAE over that of the autoencoder"),
        Quantity("dead-sae", "language model, linear autoencoder: share of latents without a row"),
        Quantity("dead-poly", "language model, PolySAE: the same"),
        Quantity("lm-share", "language model: mean length of interactions over that of the linear part"),
    ),
    measure=measured_in(__name__),
    scales={
        "smoke": Scale(
            Settings(
                steps=60,
                held_out=2,
                tokens=600,
                sentences=16,
                held_out_texts=4,
                context=48,
                lm_width=192,
                lm_k=8,
                lm_ranks=(96, 8, 8),
                lm_steps=4,
                lm_batch=64,
                splits=2,
            ),
            {"decoder": "smollm2-135m-instruct"},
            note="A few steps.",
        ),
        "cpu": Scale(
            Settings(), {"decoder": "smollm2-135m-instruct"}, note="Three seeds; the language model with one."
        ),
        "full": Scale(
            Settings(
                site="resid_post.8",
                tokens=2_000_000,
                sentences=320,
                held_out_texts=500,
                lm_width=16_384,
                lm_k=64,
                lm_ranks=(768, 64, 64),
                lm_steps=50_000,
                lm_batch=4096,
                lm_seeds=3,
            ),
            {"decoder": "openai-community/gpt2"},
            device="cuda",
            note="The paper learns from 300 to 500 million tokens of web text; its other models: --model "
            "decoder=EleutherAI/pythia-410m (site resid_post.15), google/gemma-2-2b (resid_post.12).",
        ),
    },
    seeds=(0, 1, 2),
    pilot=(100, 101),
    method=(
        "Planted: 96 unit features in 64 dimensions, four a row, drawn with weights rank^-0.7 and values |N(1, 0.3)|; "
        "the products are g ((z U*)^2) C*' with eight orthonormal columns U*, half as long as the linear part on "
        "average; noise of 0.02. All dictionaries have 128 latents and k = 4 and see the same batches.",
        "Pairs are those of features that each have an atom of cosine 0.7 or more, both active in some held-out row. "
        "Interaction strength is the length of the pair atom at the mean values of the two latents; the truth "
        "is the length of the planted one. The autoencoder's covariance is taken over its own pairs. Correlations are "
        "Pearson's. Intervals resample seeds.",
        "Language model: half of the tokens are from prose, half from Python's documentation, and all of the "
        "sentences on six subjects in eight common frames are added; rows of massive norm are dropped. Both "
        "dictionaries have 2048 latents, k = 32, and see the same batches. CE is measured on held-out passages, whose "
        "first position is kept. Probes and W1 look at mean codes of sentences; probes are judged on people that are "
        "not in the training part. Intervals of CE and of errors resample passages, of F1 splits, of W1 latents.",
    ),
    limits=(
        "Planted interactions have exactly the form that PolySAE can write, squares of a low-rank space; with "
        "interactions of high rank less is to be expected.",
        "The language model is small, one seed of it is looked at, its dictionaries see some sixty thousand tokens "
        "several times, and the subjects are easy. In the recorded run the paper's gains do not appear: F1 changes by "
        "-.002 with one latent and by .018 with five, both intervals reach over 0, and W1 is .83 of the autoencoder's "
        "where the paper has two to ten times as much; interactions are 6 % of the linear part.",
        "W1 depends on its unit. On the pilot seed, after 300 steps with a retraction every five, PolySAE's distances "
        "are 0.75 of the autoencoder's in standard deviations, and 1.67 of them without a unit: its decoder has no "
        "fixed length, and its codes are 1.8 times as large (3.16 against 1.74). A ratio without a unit says as much "
        "of the scale as of the classes.",
    ),
    beside={
        "fvu-wide": "FVU of an autoencoder of as many parameters",
        "fvu-poly": "of PolySAE",
        "f1-gain-1": "F1 gain with one latent",
        "w1-ratio": "W1 ratio",
    },
)
