"""Paper 05: do singular vectors of MLP weights name the units that a prediction runs through?

Every MLP is cut into Detector-Effector Units, exactly. The study asks whether the units that contribute most to a
prediction are the ones that matter when they are taken out, whether contributions are held by few units, whether what
these units write can be read, and what all of it costs beside a trained dictionary. Thresholds were fixed before the
final seeds were run.
"""

from __future__ import annotations

from dataclasses import dataclass

from mechanome.core import Claim
from mechanome.studies.study import Quantity, Scale, Study, measured_in

BASES = {
    "svd": "singular vectors",
    "neurons": "neurons",
    "rotated": "a random rotation of the neurons",
    "rotated-within": "a random rotation of the singular vectors, as many units",
}
"""Ways to cut an MLP into units that are compared, by their name in `mechanome.circuits.native.SPLITS`."""


@dataclass(frozen=True)
class Settings:
    """Sizes.

    Args:
        prompts: kept prompts of each task and seed; contributions are measured on half, units removed on the others.
        candidates: drawn for them.
        removed: units taken out together. draws: random sets that are set against them.
        sampled: units taken out one by one. ablated: prompts for that.
        kept: numbers of units that are kept alone.
        top: units whose tokens are read. directions: random ones they are set against.
        layers: every so many layers are cut.
        texts: windows of text for the dictionary, of 64 tokens each. steps: of its training at most.
    """

    prompts: int
    candidates: int
    removed: int = 64
    draws: int = 3
    sampled: int = 300
    ablated: int = 3
    kept: tuple[int, ...] = (64, 512, 4096)
    top: int = 100
    directions: int = 300
    layers: int = 1
    texts: int = 96
    steps: int = 120


STUDY = Study(
    name="nana",
    paper=5,
    title="SVD as a Fast Interpretability Method for Transformers",
    source="Xue & Andrzejak, ICML 2026, OpenReview 7tt8TwMjdJ",
    home="mechanome.circuits",
    claims=(
        Claim("exact-output", "sum of units against the MLP's output: relative error, worst layer", "< 1e-4"),
        Claim(
            "exact-shares",
            "direct contributions summed by layer against direct logit attribution: error over the logit difference",
            "< 1e-4",
        ),
        Claim(
            "beats-random",
            "64 units by mean contribution removed: drop of the logit difference minus 5 times that of random units of "
            "the same output length",
            "> 0",
        ),
        Claim(
            "beats-sigma",
            "the same drop minus 1.5 times that of the 64 units with the largest singular values",
            "> 0",
        ),
        Claim(
            "gradient-ranks",
            "Spearman's correlation over 300 random units of first-order contributions with exact single removals",
            ">= 0.7",
        ),
        Claim(
            "concentrated",
            "share of all contributions held by the top 1 % of units: singular vectors minus a random rotation",
            "> 0",
        ),
        Claim(
            "cheaper",
            "processor time to train a dictionary on one layer to FVU 0.3, over that of cutting and scoring one layer",
            ">= 50",
        ),
        Claim(
            "coherent",
            "chance that the ten tokens a top-100 unit promotes are more alike than those of a random direction (99 %)",
            "> 0.5",
        ),
    ),
    reported=(
        Quantity("drop-top", "64 units by mean contribution removed: drop of the logit difference"),
        Quantity("drop-gradient", "64 units by mean first-order contribution removed: drop"),
        Quantity("drop-random", "64 random units of the same output length removed: drop"),
        Quantity("drop-sigma", "64 units with the largest singular values removed: drop"),
        Quantity("drop-neurons", "64 neurons by mean contribution removed: drop"),
        Quantity("logit-difference", "logit difference of the unchanged model"),
        Quantity("direct-ranks", "Spearman's correlation of direct contributions with exact single removals"),
        *(Quantity(f"share-{base}", f"share held by the top 1 % of units: {named}") for base, named in BASES.items()),
        Quantity("over-neurons", "share held by the top 1 %: singular vectors minus neurons"),
        Quantity("over-rotated-within", "share held by the top 1 %: singular vectors minus as many random units"),
        Quantity("centred-concentrated", "the claim on concentration, contributions minus their mean over prompts"),
        Quantity("kept-recovered", "logit difference with only the most units of the largest setting kept, over whole"),
        Quantity(
            "peaked", "chance that a top-100 unit's scores over the vocabulary are more peaked than a random one's"
        ),
        Quantity("seconds-svd", "processor seconds to cut all layers"),
        Quantity("seconds-sca", "processor seconds to score all units on one batch"),
        Quantity(
            "seconds-dictionary", "processor seconds to train a dictionary on one layer, reading text not counted"
        ),
        Quantity("dictionary-fvu", "fraction of variance that it leaves unexplained; the units leave none"),
    ),
    measure=measured_in(__name__),
    scales={
        "smoke": Scale(
            Settings(
                prompts=4,
                candidates=12,
                removed=8,
                draws=2,
                sampled=12,
                ablated=1,
                kept=(8, 32),
                top=10,
                directions=20,
                layers=10,
                texts=6,
                steps=2,
            ),
            {"decoder": "smollm2-135m-instruct"},
            seeds=1,
            note="Three layers only, and a dictionary that is hardly trained.",
        ),
        "cpu": Scale(
            Settings(prompts=20, candidates=60),
            {"decoder": "smollm2-135m-instruct"},
            seeds=2,
            note="17,280 units of 30 layers; 40 prompts of each of three tasks. Minutes on one thread.",
        ),
        "full": Scale(
            Settings(prompts=60, candidates=200, draws=20, sampled=1000, ablated=20, texts=4096, steps=5000),
            {"decoder": "meta-llama/Llama-3.2-1B"},
            device="cuda",
            note="The paper's models: --model decoder=openai-community/gpt2, -medium, -large or -xl.",
        ),
    },
    seeds=(0, 1, 2),
    pilot=(100,),
    method=(
        "Tasks: capitals ('The capital of Kenya is'), opposites without demonstrations ('The opposite of hot is', "
        "against repeating the word), and subject-verb agreement across an attractor. Kept are prompts on which the "
        "model prefers the answer to the foil. Half of them choose units, the other half measures what their removal "
        "does.",
        "A unit is a pair of singular vectors of W_out: its gate is the neurons' projection on one, and it writes the "
        "other. Its direct contribution is what it adds to the logit difference through the stream alone, the last "
        "norm's scale held. Units are removed at the last position, everything after is computed again.",
        "Random sets: for each chosen unit another one, among the twenty whose mean output is closest in length. Three "
        "sets, averaged. Comparisons of drops are contrasts (a - 5 b > 0 rather than a / b >= 5), which stay defined "
        "where b is near 0; intervals resample prompts.",
        "Concentration: 1 % of the units of each basis, per prompt. A rotation of the neurons has 1,536 units a layer, "
        "the singular vectors 576; a rotation among the singular vectors has as many as they.",
        "The dictionary is a TopK autoencoder (k = 32, 4,608 latents) of the middle layer's MLP output, trained by "
        "Adam until its fraction of variance unexplained on held-out text is 0.3, or the steps end; then its cost is a "
        "lower bound. The same processor time is taken for cutting all layers and scoring one batch, over the layers.",
        "Coherence: the mean cosine between embeddings of the ten tokens that are promoted most. The top 100 units are "
        "those with the largest mean absolute contribution over the three tasks.",
        "What did not hold: the units that contribute most by the direct path are not the ones a prediction needs. "
        "Over random units direct contributions rank single removals at 0.21, first-order ones at 0.995, and removing "
        "the 64 units that the latter choose costs 2.28 of 3.78, nine times as much as random ones, where the direct "
        "choice costs 0.31. The direct path leaves out what later layers read. Singular vectors hold contributions a "
        "little more tightly than random rotations, and less so than the neurons as they are; the tokens they promote "
        "are no more alike than those of random directions. kept-recovered is a mean of ratios, some of whose "
        "denominators are near 0; its interval says so.",
    ),
    limits=(
        "One small language model and three tasks whose answers are single tokens.",
        "Direct contributions leave out what a unit does through later layers; removals of sets count it, but only at "
        "the last position.",
        "What a unit writes is read through the unembedding, which early layers need not use.",
        "Only the abstract of the paper was available; the formulas are its standard reading.",
    ),
    beside={
        "share-svd": "contributions held by 1 % of units, singular vectors",
        "share-neurons": "by 1 % of neurons",
    },
)
