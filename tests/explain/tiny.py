"""Tiny language models whose mechanism is known, with a tokenizer of a few words.

In all of them only chosen heads write to the residual stream: every MLP and every other head writes zero. So whatever
the last token knows about earlier ones, it knows from those heads.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import mechanome as mn
from mechanome.core import Interval
from mechanome.explain import Explanation

WORDS = (
    "the",
    "cat",
    "dog",
    "cow",
    "hen",
    "fox",
    "sat",
    "ran",
    "on",
    "mat",
    "hat",
    "rug",
    "<script>",
    "x",
    "y",
    "7",
    "8",
)
SENTENCE = "the cat sat on the"


def tokenizer() -> PreTrainedTokenizerFast:
    """Words with and without a leading space, one token each; anything else is several letters."""
    letters = [chr(c) for c in range(ord("a"), ord("z") + 1)] + [" "]
    texts = ["<pad>", "<s>", *WORDS, *(f" {word}" for word in WORDS)]
    texts += [letter for letter in letters if letter not in texts]
    model = models.WordLevel({text: i for i, text in enumerate(texts)}, unk_token="<pad>")
    made = Tokenizer(model)
    known = "|".join(sorted((t.replace("<", "\\<").replace(">", "\\>") for t in texts[2:]), key=len, reverse=True))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(known), "isolated")
    made.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", pad_token="<pad>")


def build(
    writers: dict[tuple[int, int], float], *, layers: int = 3, heads: int = 4, twins: bool = False, floor: float = 0.0
) -> LlamaForCausalLM:
    """A random llama in which only `writers` (layer, head) write, each with its strength.

    Args:
        writers: strength of each head that writes. layers, heads: shape of the model.
        floor: strength of everything else.
        twins: give all heads of a layer the weights of its first one.
    """
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=len(tokenizer()),
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=1,
        pad_token_id=0,
    )
    module = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.5)
        for layer, block in enumerate(module.model.layers):
            block.mlp.down_proj.weight *= floor
            output = block.self_attn.o_proj.weight
            if twins:
                output[:] = output[:, :8].repeat(1, heads)
                for projection in (block.self_attn.q_proj, block.self_attn.k_proj, block.self_attn.v_proj):
                    projection.weight[:] = projection.weight[:8].repeat(heads, 1)
            for head in range(heads):
                output[:, 8 * head : 8 * head + 8] *= writers.get((layer, head), floor)
    return module


@cache
def lonely() -> mn.Model:
    """Only head 1.3 writes."""
    return mn.load(build({(1, 3): 2.0}), tokenizer=tokenizer(), check="off")


@cache
def crowd() -> mn.Model:
    """All 32 heads of the last layer are equal and write, each its share."""
    return mn.load(
        build({(1, h): 2.0 / 32 for h in range(32)}, layers=2, heads=32, twins=True), tokenizer=tokenizer(), check="off"
    )


def verified(e: Explanation, share: float = 0.9) -> Explanation:
    """An explanation whose parts lose and bring back this share, while random ones do nothing."""
    trials = {
        name: replace(trial, share=share, random=(0.0,) * 50, spread=Interval(0.0, 0.0, 0.0, 50))
        for name, trial in (("removed", e.verification.removed), ("kept", e.verification.kept))
    }
    return replace(e, verification=replace(e.verification, said="", **trials))


def save(folder: Path) -> Path:
    """`lonely` as a folder that can be opened by name; the rest writes a little, or the self-test would refuse it."""
    build({(1, 3): 2.0}, floor=1e-3).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
