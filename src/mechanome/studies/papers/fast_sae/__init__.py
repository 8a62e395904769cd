"""Paper 50: are autoencoders for chat models better when every dialogue is run alone, and not in blocks?

Blocks do two things to a dialogue: what stands before it in the block leaks into its activations, and borders of blocks
cut it. Dictionaries are trained on the very same tokens of the very same dialogues, run in blocks, in blocks that cut
nothing, and alone; another one on prose in blocks. All are measured on held-out dialogues that are run alone.
Thresholds were fixed before the final seeds were run.
"""

from __future__ import annotations

from dataclasses import dataclass

from mechanome.core import Claim
from mechanome.studies.study import Quantity, Scale, Study, measured_in

PATHS = {
    "prose": "BT(P), prose in blocks",
    "blocks": "BT(F), dialogues in blocks",
    "fast": "FAST, each dialogue alone",
    "whole": "control: blocks of whole dialogues",
    "isolated": "control: blocks in which dialogues do not see each other",
}
"""What dictionaries are trained on, each the same number of tokens."""

SHOWN = ("prose", "blocks", "fast", "whole")
"""Paths that are shown one by one; the remaining one is told against FAST."""

SPLITS = {
    "all": "all tokens",
    "rest": "without first tokens",
    "special": "special tokens and names of roles, without first tokens",
    "first": "first tokens",
    "own": "tokens behind what all dialogues begin with",
    "own-special": "special tokens and names of roles behind it",
}
"""Parts of the held-out dialogues."""

MAIN = ("prose", "blocks", "fast")
"""The paper's paths: losses and gradients are measured of these."""


@dataclass(frozen=True)
class Settings:
    """Sizes.

    Args:
        site: whose activations dictionaries learn.
        tokens: of each path; a multiple of `batch`. context: tokens of a block.
        width, k: of the TopK dictionaries. lr, steps, batch: of their training; the rate stays level.
        at: steps at which gradients are measured. batches: of `batch` rows, for each.
        dialogues: held out. losses: how many of them losses are measured on.
    """

    tokens: int
    steps: int
    at: tuple[int, ...]
    batches: int
    dialogues: int
    losses: int
    site: str = "resid_post.10"
    context: int = 512
    width: int = 768
    k: int = 32
    lr: float = 1e-3
    batch: int = 512


def _shown() -> tuple[Quantity, ...]:
    """Every path by itself."""
    kinds = {
        **{f"log2-{split}": f"log2 of the mean squared error, {what}" for split, what in SPLITS.items()},
        "explained": "explained variance, without first tokens",
        "live": "latents active on held-out dialogues",
    }
    return tuple(Quantity(f"{id}-{path}", f"{PATHS[path]}: {what}") for id, what in kinds.items() for path in SHOWN)


STUDY = Study(
    name="fast-sae",
    paper=50,
    title="Breaking the Block: Preserving Data Continuity to Train Superior SAEs for Instruct Models",
    source="Li et al., ICML 2026, arXiv 2506.07691",
    home="mechanome.activations and mechanome.dictionaries",
    claims=(
        Claim("fast-error", "log2 of the mean squared error, all tokens: FAST minus BT(F)", "< -0.5"),
        Claim("fast-error-special", "the same on special tokens: FAST minus BT(F)", "< -0.5"),
        Claim("blocks-error", "log2 of the mean squared error, all tokens: BT(F) minus BT(P)", "< -1"),
        Claim("blocks-error-special", "the same on special tokens: BT(F) minus BT(P)", "< -1"),
        Claim("loss", "size of the delta loss, a share of the loss: FAST minus BT(F)", "<= 0"),
        Claim("alignment", "cosine with the mean gradient of held-out dialogues run alone: FAST minus BT(F)", "> 0"),
        Claim(
            "isolated-same",
            "largest relative difference of an activation, dialogues isolated in blocks against each alone, float32",
            "< 0.0001",
        ),
    ),
    reported=(
        *_shown(),
        *(Quantity(f"delta-{path}", f"{PATHS[path]}: delta loss, a share of the loss") for path in MAIN),
        Quantity("isolated-error", "log2 of the mean squared error, all tokens: isolated minus FAST"),
        Quantity("leak-error", "log2 of the mean squared error, all tokens: blocks of whole dialogues minus FAST"),
        Quantity("cut-error", "log2 of the mean squared error, all tokens: BT(F) minus blocks of whole dialogues"),
        Quantity("own-error", "log2 of the mean squared error behind what all dialogues begin with: FAST minus BT(F)"),
        Quantity("own-error-special", "the same on special tokens behind it: FAST minus BT(F)"),
        Quantity("in-blocks", "the held-out dialogues run in blocks, log2 of the mean squared error: FAST minus BT(F)"),
        Quantity("moved-blocks", "relative distance of a token's activation in blocks from that alone, mean"),
        Quantity("moved-whole", "relative distance of a token's activation in blocks of whole dialogues, mean"),
        *(Quantity(f"aligned-{path}", f"{PATHS[path]}: cosine with the held-out mean gradient") for path in MAIN),
        *(Quantity(f"gsnr-{path}", f"{PATHS[path]}: median signal to noise of a gradient") for path in MAIN),
        *(Quantity(f"gsnr-mean-{path}", f"{PATHS[path]}: mean signal to noise of a gradient") for path in MAIN),
        *(Quantity(f"silent-{path}", f"{PATHS[path]}: share of parameters left out of it") for path in MAIN),
    ),
    measure=measured_in(__name__),
    scales={
        "smoke": Scale(
            Settings(tokens=512, steps=4, at=(0, 4), batches=4, dialogues=4, losses=2, width=64, k=8, batch=128),
            {"chat": "smollm2-135m-instruct"},
            seeds=2,
            note="512 tokens a path and four steps.",
        ),
        "cpu": Scale(
            Settings(tokens=20_480, steps=300, at=(0, 100, 300), batches=24, dialogues=80, losses=32),
            {"chat": "smollm2-135m-instruct"},
            note="20,480 tokens a path, 768 latents.",
        ),
        "full": Scale(
            Settings(
                tokens=524_288,
                steps=8000,
                at=(0, 1000, 8000),
                batches=32,
                dialogues=500,
                losses=200,
                site="resid_post.14",
                context=2048,
                width=12_288,
                k=50,
                lr=2e-4,
                batch=2048,
            ),
            {"chat": "Qwen/Qwen2.5-1.5B-Instruct"},
            note="Half a million tokens a path, eight times as many latents as dimensions; about 20 GB of activations. "
            "Also: Qwen2.5-7B-Instruct, Llama-3.2-3B-Instruct; texts of your own through `harvest`.",
        ),
    },
    seeds=(0, 1, 2),
    pilot=(100, 101),
    method=(
        "A seed draws dialogues from eight templates and prose from Python's documentation, and the dictionaries' "
        "starting weights. BT(F), both controls and FAST have the same tokens in the same order, and every batch of "
        "training holds the same ones: only what else the model saw differs. Nothing begins a block but what stands "
        "there; no row is left out, first tokens included.",
        "TopK, scaled to mean norm sqrt(d), unit decoder directions, Adam at a level rate, no auxiliary loss. Rows for "
        "training are computed in bfloat16, everything that is measured in float32.",
        "Held-out dialogues are other draws; those that were trained on, word for word, and repeated ones are left "
        "out. Errors and losses are means over all seeds' dialogues; intervals draw dialogues.",
        "Delta loss is the rise of the cross-entropy over itself when reconstructions of all tokens stand in for "
        "activations, first tokens included.",
        "Special tokens are those of the tokenizer and the names of roles in the template. The system prompt that the "
        "template adds is in every dialogue, so its activations are the same wherever dialogues are run alone: a "
        "dictionary can learn them by heart. Errors behind it are shown beside.",
        "Gradients are those of the training loss, over 24 batches of equal size, at steps 0, 100 and 300 of both the "
        "FAST and the BT(F) dictionary: all paths at the same weights. Parameters whose gradient does not vary are "
        "left out and counted. Intervals draw seeds. Noise alone has a median of .019 and a mean of .046.",
        "The paper's steering at special tokens is `latent.set(2.0, pos=special_positions(model, prompt))`; it is not "
        "measured here.",
        "In the recorded run FAST's lead over all tokens, .52, comes apart into .38 of cutting and .15 of leakage, and "
        "behind the system prompt .17 is left of it (.65 on special tokens). So most of it is the prompt, whose "
        "activations FAST has seen as they are, and longer dialogues would leave less.",
        "Delta losses of both are small in the recorded run and of opposite sign: with BT(F)'s reconstructions the "
        "model predicts the templates' dialogues 2.6 % better than by itself, with FAST's 2.3 % worse. Their sizes do "
        "not differ beyond noise, and a loss that falls is no better reconstruction.",
    ),
    limits=(
        "One small model and short dialogues made from templates, which begin alike; the paper trains 240 dictionaries "
        "on seven models with real dialogues.",
        "Held-out dialogues are run alone, as a chat model is used; that is what FAST is trained on. On the same "
        "dialogues in blocks it is BT(F) that is better, by .65 in the recorded run: by error, a dictionary is best "
        "at the way of running that it was trained on.",
        "Interpretability and the steering of answers are not measured.",
    ),
    beside={
        "own-error": "FAST minus BT(F) in log2 of the error, behind the system prompt",
        "in-blocks": "on dialogues in blocks",
    },
)
