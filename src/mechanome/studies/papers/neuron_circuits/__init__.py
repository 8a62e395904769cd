"""Paper 20: are circuits of single neurons sparse, faithful and complete, and can they be steered?

Nodes are (layer, token position, neuron). Circuits for subject-verb agreement are found on some nouns and judged on
others, against circuits found by other attributions, in other bases, and at random; then the neurons that say which
state a city is in are removed and exchanged. Thresholds were fixed before the final seeds were run.
"""

from __future__ import annotations

from dataclasses import dataclass

from mechanome.core import Claim
from mechanome.studies.study import Quantity, Scale, Study, measured_in

KINDS = ("simple", "nounpp")
"""Templates."""

BASES = ("mlp_out", "attn_out", "resid_post")
"""Other parts that are nodes, number by number."""

BASELINES = {"gradient": "the plain gradient", "ig": "integrated gradients"}
"""Attributions that RelP is set against."""

COMPARED = ("few", "top")
"""Names of the two sizes at which they are: 30 and 100 nodes."""

SCALES = (-1.0, 0.0, 0.5, 2.0, 3.0)
"""Factors that a city's neurons are multiplied by."""


@dataclass(frozen=True)
class Settings:
    """Sizes.

    Args:
        train, test: nouns that circuits are found on, and judged on; each in both numbers.
        sizes: nodes of circuits by RelP. base_sizes: of circuits of other parts.
        compared: the two sizes at which attributions are compared. top: the size that claims are about.
        random: nodes of random circuits. steps: of integrated gradients. integrated: seeds that have them, 0 for none.
        cities: that are steered. steered: neurons for each. draws: of random ones. wired: nodes among which edges are.
    """

    train: int = 16
    test: int = 14
    sizes: tuple[int, ...] = (10, 30, 100, 300, 1000)
    base_sizes: tuple[int, ...] = (30, 100, 300, 1000, 3000, 10000)
    compared: tuple[int, int] = (30, 100)
    top: int = 100
    random: int = 1000
    steps: int = 5
    integrated: int = 1
    cities: int = 12
    steered: int = 50
    draws: int = 3
    wired: int = 30


_FEW = {"few": "30", "top": "100"}

STUDY = Study(
    name="neuron-circuits",
    paper=20,
    title="Language Model Circuits Are Sparse in the Neuron Basis",
    source="Arora, Wu, Steinhardt & Schwettmann, ICML 2026, arXiv 2601.22594",
    home="mechanome.circuits",
    claims=(
        *(Claim(f"faithful-{kind}", f"{kind}: faithfulness of the 100 neurons by RelP", ">= 0.8") for kind in KINDS),
        *(
            Claim(f"complete-{kind}", f"{kind}: what is left without these 100 neurons (completeness)", "<= 0.15")
            for kind in KINDS
        ),
        Claim(
            "sparser", "simple: nodes for faithfulness 0.5, numbers of MLP outputs over neurons, both by RelP", ">= 20"
        ),
        *(
            Claim(
                f"over-{method}-{kind}-{size}",
                f"{kind}: faithfulness of {n} neurons, RelP's minus that by {named}",
                ">= 0",
            )
            for kind in KINDS
            for method, named in BASELINES.items()
            for size, n in _FEW.items()
        ),
        *(Claim(f"random-{kind}", f"{kind}: faithfulness of 1,000 random neurons", "<= 0.05") for kind in KINDS),
        Claim("overlap", "share of the top 100 neurons that two disjoint halves of the nouns have in common", ">= 0.5"),
        Claim("removed", "fall of p(state), over p(state), with its 50 specific neurons set to zero", ">= 0.5"),
        Claim("removed-random", "the same of 50 random neurons that are as active", "< 0.1"),
        Claim(
            "moved",
            "share of pairs of cities in which another city's 50 neuron values raise the other state's probability",
            ">= 0.7",
        ),
    ),
    reported=(
        *(Quantity(f"faithful-{kind}-few", f"{kind}: faithfulness of 30 neurons by RelP") for kind in KINDS),
        *(
            Quantity(f"{method}-{kind}-{size}", f"{kind}: faithfulness of {n} neurons by {named}")
            for kind in KINDS
            for method, named in BASELINES.items()
            for size, n in _FEW.items()
        ),
        *(Quantity(f"off-{kind}", f"{kind}: |1 - faithfulness| of the 100 neurons by RelP") for kind in KINDS),
        *(Quantity(f"random-without-{kind}", f"{kind}: faithfulness without 1,000 random neurons") for kind in KINDS),
        *(Quantity(f"logit-difference-{kind}", f"{kind}: logit difference of the model") for kind in KINDS),
        *(
            Quantity(f"needed-{base.replace('_', '-')}", f"simple: nodes for faithfulness 0.5 at {base}, by RelP")
            for base in ("mlp_act", *BASES)
        ),
        Quantity(
            "number", "share of the top 100 neurons whose attribution to the plural verb tells the subject's number"
        ),
        Quantity("probability", "p(state), as the model is"),
        Quantity("doubled", "p(state) with its 50 neurons doubled"),
        Quantity("moved-random", "share of pairs in which 50 random neuron values raise the other state's probability"),
        Quantity("moved-nats", "rise of log p(other state) with the other city's neuron values"),
        Quantity("moved-nats-random", "the same with random neurons"),
        Quantity("moved-likeliest", "share of pairs in which the other state becomes the likeliest next token"),
    ),
    measure=measured_in(__name__),
    scales={
        "smoke": Scale(
            Settings(
                train=2,
                test=2,
                sizes=(30, 100),
                base_sizes=(1000,),
                integrated=0,
                cities=2,
                steered=10,
                draws=1,
                wired=4,
            ),
            {"decoder": "smollm2-135m-instruct"},
            seeds=1,
            note="Two nouns to find circuits, two to judge them, two cities; no integrated gradients.",
        ),
        "cpu": Scale(
            Settings(),
            {"decoder": "smollm2-135m-instruct"},
            note="Three seeds of 32 training and 28 test prompts, and twice as many of nounpp; minutes on one thread.",
        ),
        "full": Scale(
            Settings(integrated=3, cities=24, steps=10),
            {"decoder": "meta-llama/Llama-3.1-8B"},
            device="cuda",
            dtype="bfloat16",
            note="The paper's model; about 20 GB of GPU memory. Scores are added up in float32.",
        ),
    },
    seeds=(0, 1, 2),
    pilot=(100,),
    method=(
        "Templates: 'The parents' and 'The doctor near the girls'. Every noun is used in both numbers, and so is the "
        "second noun of every prompt: all four pairs of numbers are equally frequent. The counterfactual prompt has "
        "the subject in the other number. The metric is the mean over is/are, was/were and has/have of the logit of "
        "the form that agrees minus that of the other. No token is put in front.",
        "The study was run again, on the same seeds and with the same thresholds, because its prompts were wrong: the "
        "second noun of nounpp always had the other number. A model without the circuit then still agrees, with the "
        "wrong noun, so completeness was -0.90 [-1.22, -0.73], where 0 would say that nothing is left, and met an "
        "upper bound that is not meant for it. Faithfulness was 1.22 [1.06, 1.49].",
        "A seed draws 16 nouns to find circuits and 14 others to judge them. RelP: (value - counterfactual's value) "
        "times the gradient of a model whose norms, activations and attention are held linear, averaged over prompts; "
        "the circuit is the nodes with the largest averages by size. The plain gradient is the same without these "
        "rules; integrated gradients move one layer at a time along 5 points, on the first seed only.",
        "Faithfulness: all other nodes are set to their mean over the training prompts at their token position; "
        "completeness: these nodes are, and no others. Both are (m - m(none)) / (m(model) - m(none)), ratios of means "
        "over prompts. Attention and embeddings are left alone where neurons or MLP outputs are the nodes. Intervals "
        "resample nouns, over all seeds together.",
        "Nodes for faithfulness 0.5: where the curve over the sizes on the page first reaches it, on a straight line "
        "in log size. The overlap compares circuits of 100 found on two halves of a seed's training nouns.",
        "Cities are those whose state the model names, in one token, after '... is in the state of'. A neuron is "
        "specific to a prompt by its unpaired RelP (value times gradient of the state's logit) minus the mean of the "
        "prompts about other states, at the last six positions. Random neurons: for each one another of the same layer "
        "and position, drawn from the twenty whose size on that prompt is nearest; three sets, averaged.",
        "Exchange: the 50 neurons of one city are set, in another city's prompt, to their values in the first.",
    ),
    limits=(
        "One small language model; agreement in two templates (relative clauses are left out), and one relation.",
        "Two-hop facts ('the capital of the state containing Dallas') are not measured: a model this small does not "
        "know them, and the small model trained on them that the protocol allows for is left out.",
        "No dictionary is compared; the comparison of bases is with numbers of other sites.",
        "Nouns of different seeds overlap, so the seeds are not independent; intervals resample nouns for that.",
    ),
    beside={
        "needed-mlp-act": "neurons for half of the effect",
        "needed-mlp-out": "numbers of MLP outputs for half of the effect",
        "off-nounpp": "nounpp, |1 - faithfulness| of the 100 neurons",
    },
)
