"""Paper 26: are the parts of a circuit that randomly deleted examples agree on the better circuit?

The theorem is checked by listing every mask and every dataset one edit away. A small residual network that learned a
spurious cue, a language model and a real image classifier then show what certified circuits are worth beside plain ones
of the same share and of the same size. Thresholds were fixed before the final seeds were run.
"""

from __future__ import annotations

from dataclasses import dataclass

from mechanome.core import Claim
from mechanome.studies.study import Quantity, Scale, Study, measured_in

SCORERS = ("relevance", "activation", "rank")
"""How channels are scored; claims are about the first."""


@dataclass(frozen=True)
class Settings:
    """Sizes.

    Args:
        datasets: of random scores whose masks are listed, per seed. repeats: certificates of them.
        train, epochs: of the residual network. concept: images a class that circuits are found on.
        tests: images a class and set that circuits are run on.
        shares: K, the share of channels of each stage that the plain circuit keeps.
        masks: n. abstentions: random ones, averaged.
        prompts: pairs that circuits of the language model are found on. asked: prompts of each kind they are run on.
        candidates: prompts tried. node_shares: K of heads and MLPs.
        crops: of a photograph. photo_shares: K of its circuits.
    """

    datasets: int = 5
    repeats: int = 100
    train: int = 6000
    epochs: int = 6
    concept: int = 80
    tests: int = 30
    shares: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
    masks: int = 1000
    abstentions: int = 2
    prompts: int = 60
    asked: int = 30
    candidates: int = 400
    node_shares: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
    crops: int = 40
    photo_shares: tuple[float, ...] = (0.6, 0.8, 0.9, 0.95, 0.98, 1.0)


_EACH = "mean over classes and seeds"

STUDY = Study(
    name="certified-circuits",
    paper=26,
    title="Certified Circuits: Stability Guarantees for Mechanistic Circuits",
    source="Anani, Lorenz, Schiele, Fritz & Fischer, ICML 2026, arXiv 2602.22968",
    home="mechanome.circuits",
    claims=(
        Claim(
            "no-flips",
            "random scores, every mask and every dataset one edit away: certified majorities that turn around",
            "<= 0",
        ),
        Claim("teeth", "the same for components that are not certified: share of checks that turn around", "> 0"),
        Claim(
            "foreign-no-flips", "two foreign methods (scikit-learn's, a user's): certified majorities that turn", "<= 0"
        ),
        Claim(
            "rarely-wrong",
            "share of certificates at alpha = 0.05 in which any component is certified whose exact share is below tau",
            "<= 0.05",
        ),
        Claim(
            "smaller-as-good",
            "residual network, at the peak: seeds of 3 in which the certified circuit keeps at least 20 % fewer "
            "channels and its accuracy is at least the plain one's minus 0.01",
            ">= 2",
        ),
        Claim(
            "better-shifted",
            "residual network: peak accuracy of certified minus plain circuits, mean over four shifted sets",
            ">= 0",
        ),
        Claim(
            "found-again",
            "residual network: IoU of circuits from two halves of the images, certified minus plain of the same size",
            ">= 0.03",
        ),
        Claim(
            "language-accuracy",
            "language model: accuracy of certified minus plain circuits at the plain peak",
            ">= -0.02",
        ),
        Claim("language-smaller", "language model: share of nodes that the certified circuit drops there", ">= 0.2"),
        Claim("cost", "scoring and certifying with 1,000 masks over scoring and selecting, by the clock", "<= 2.5"),
    ),
    reported=(
        Quantity("full-usual", "residual network: accuracy on images as in training"),
        Quantity("full-shifted", "residual network: accuracy, mean over four shifted sets"),
        Quantity(
            "dropped", f"share of the plain peak's channels that the certified circuit drops at its peak, {_EACH}"
        ),
        Quantity("peak-certified", f"peak accuracy of certified circuits, images as in training, {_EACH}"),
        Quantity("peak-plain", f"peak accuracy of plain circuits, images as in training, {_EACH}"),
        Quantity("shifted-certified", f"peak accuracy of certified circuits, shifted sets, {_EACH}"),
        Quantity("shifted-plain", f"peak accuracy of plain circuits, shifted sets, {_EACH}"),
        Quantity(
            "minus-same-size", "accuracy at the certified peak: certified minus plain of the same size, all five sets"
        ),
        Quantity("minus-random", "accuracy at the certified peak: certified minus random abstention, all five sets"),
        Quantity("all-shares-minus-same-size", "the same difference, mean over all K below 1 and all sets"),
        Quantity("all-shares-minus-random", "certified minus random abstention, mean over all K below 1 and all sets"),
        Quantity("other-classes-certified", "accuracy of certified circuits on images of other classes, at their peak"),
        Quantity("other-classes-plain", "accuracy of plain circuits on images of other classes, at their peak"),
        Quantity("iou-certified", "IoU of certified circuits from two halves of the images"),
        Quantity("iou-plain", "IoU of plain circuits of the same size from two halves of the images"),
        Quantity("iou-both", "IoU of certified circuits with the plain ones of the same size, of the same images"),
        Quantity("detection-certified", "peak of the mean of own images done right and of others not called the class"),
        Quantity("detection-plain", "the same of plain circuits; a circuit that always names its class has 0.5"),
        Quantity("detection-minus-plain", "certified minus plain, each at its peak"),
        Quantity("detection-minus-same-size", "certified minus plain of the same size, at the certified peak"),
        Quantity(
            "detection-dropped", "share of the plain peak's channels that the certified circuit drops at its peak"
        ),
        *(
            Quantity(f"{scorer}-{name}", f"scorer '{scorer}': {what}")
            for scorer in SCORERS[1:]
            for name, what in (
                ("dropped", "share of the plain peak's channels that the certified circuit drops at its peak"),
                ("peak", "peak accuracy of certified minus plain circuits, images as in training"),
                ("shifted", "the same, mean over four shifted sets"),
            )
        ),
        Quantity("language-plain", "language model: accuracy of plain circuits at their peak"),
        Quantity("language-certified", "language model: accuracy of certified circuits there"),
        Quantity("language-same-size", "language model: accuracy there, certified minus plain of the same size"),
        Quantity("language-held-out", "language model: accuracy there on held-out templates, certified minus plain"),
        Quantity("photo-certified", "EfficientNet-Lite0: accuracy of certified circuits on crops, at their peak"),
        Quantity("photo-minus-plain", "EfficientNet-Lite0: peak accuracy of certified minus plain circuits"),
        Quantity(
            "photo-dropped", "EfficientNet-Lite0: share of the plain peak's channels dropped at the certified peak"
        ),
        Quantity("photo-minus-same-size", "EfficientNet-Lite0: accuracy at the certified peak minus the same size"),
        Quantity("photo-found-again", "EfficientNet-Lite0: IoU of two halves, certified minus plain of the same size"),
    ),
    measure=measured_in(__name__),
    scales={
        "smoke": Scale(
            Settings(
                datasets=1,
                repeats=5,
                train=256,
                epochs=1,
                concept=24,
                tests=2,
                shares=(0.3, 1.0),
                abstentions=1,
                prompts=12,
                asked=3,
                candidates=60,
                node_shares=(0.3, 0.5),
                crops=24,
                photo_shares=(0.9,),
            ),
            {"decoder": "smollm2-135m-instruct", "photos": "efficientnet-lite0"},
            seeds=1,
            note="The residual network is hardly trained.",
        ),
        "cpu": Scale(
            Settings(),
            {"decoder": "smollm2-135m-instruct", "photos": "efficientnet-lite0"},
            note="Three residual networks of 0.3 million weights; 240 channels, 300 heads and MLPs, 784 channels.",
        ),
        "full": Scale(
            Settings(
                datasets=20,
                repeats=1000,
                train=50_000,
                epochs=20,
                concept=500,
                tests=200,
                prompts=500,
                asked=200,
                candidates=4000,
                crops=400,
            ),
            {"decoder": "openai-community/gpt2", "photos": "efficientnet-lite0"},
            device="cuda",
            note="The paper's ResNet-101 and ImageNet with its shifted sets need images that no package brings.",
        ),
    },
    seeds=(0, 1, 2),
    pilot=(100, 101),
    method=(
        "A circuit is found on a list of examples of one class or task. Certifying deletes each example with chance "
        "0.6, finds the circuit again, 1,000 times, and keeps a part where a Clopper-Pearson bound (alpha 0.001, "
        "Bonferroni) of the share of runs that find it is above 0.95. Then no single insertion, deletion or "
        "substitution of an example can turn its majority around.",
        "The theorem: random scores of 30 components on 8 examples, top 8; all 256 masks give exact shares, and so do "
        "those of the 116 datasets that one edit makes with a pool of 12 more examples. The same is done with the "
        "feature selection of scikit-learn (the best 3 of 10 by the F test) and with a rule written by hand.",
        "Residual network: 32 x 32 images of eight shapes before gratings, of which the class's own one is there in "
        "four of five training images. A channel's relevance is its feature map times the gradient of the class's "
        "logit. The plain circuit keeps the share K of each stage's channels with the highest mean over 80 images of "
        "a class; all others are set to zero. Accuracy is that of each class's circuit on images of its class, mean "
        "over classes; the peak is the best of eight K, the smallest of equal ones. Shifted sets: any grating, never "
        "the class's own, blurred, roughened. Intervals resample circuits (a class of a seed).",
        "Controls: the plain circuit of the certified one's size in each stage; and random parts of the plain "
        "circuit of that size.",
        "Language model: agreement across a thing that stands near the subject; heads and MLPs by attribution "
        "patching, |mean| over pairs. Nodes outside the circuit carry what they carry on the counterfactual; the "
        "embedding is always inside. Prompts that circuits are run on are others than those they were found on; "
        "held-out templates have a clause in place of the thing. Intervals resample prompts, and seeds for sizes.",
        "EfficientNet-Lite0: two photographs of scikit-learn, their class the model's own. Circuits of the channels of "
        "seven stages are found on 40 random crops and run on others.",
        "What the verdicts hide. On the residual network both kinds of circuits are perfect from a twentieth of the "
        "channels on, on every set, because they always name their class: on images of other classes they are never "
        "right, and as detectors of their class they are at chance, 0.5, for every K below 80 %; the whole network, at "
        "0.91, is the best. So 'smaller-as-good' and 'better-shifted' hold where accuracy on a class's own images says "
        "nothing (in one seed the certified circuit is even the larger one), and the paper's own sign of "
        "specificity, a fall of accuracy on other classes to 1 %, is what such circuits show.",
        "Two claims fail. Certified channels are found again no more often (IoU 0.84) than as many of the strongest "
        "(0.85), because they are nearly the same ones (IoU 0.96): of channels a certificate gives the proof and "
        "not another choice. In the language model it is another choice, and a worse one: certified circuits do 33 "
        "% fewer of all prompts right than plain ones at their peak, and 24 % fewer than plain ones of the same "
        "size. On a pilot seed, what they leave out of the strongest nodes are mostly MLPs whose effect changes "
        "from prompt to prompt (coefficient of variation 2 to 5, beside 1 of certified nodes): no two sets of "
        "examples agree on them, and each prompt needs some of them. The paper's 1.00 on such tasks is for edges of "
        "GPT-2 by EAP-IG.",
    ),
    limits=(
        "A certificate is about the examples, not about whether the circuit is what the network uses.",
        "One small residual network on drawn images; one small language model; two photographs. The paper's networks "
        "and image sets are larger.",
        "The peak is found on the images it is reported for, as in the paper; with eight K this flatters all circuits "
        "alike.",
        "Setting channels to zero takes the network where it has never been; a circuit may do better than the "
        "network by cutting a cue that misleads it, and that is counted for it here.",
    ),
    beside={
        "other-classes-certified": "residual network, accuracy of certified circuits on other classes",
        "detection-minus-plain": "as detectors of their class, certified minus plain",
        "language-same-size": "language model, certified minus plain of the same size",
    },
)
