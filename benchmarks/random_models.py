"""Models with random weights, written once as files that every engine opens: identical weights, no download.

GPT-2's own spread of 0.02 leaves attention almost uniform and most edges without effect; at 0.05 every part matters.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from benchmarks.harness.environments import ROOT

FOLDER = ROOT / "benchmarks" / ".models"
_SPREAD = 0.05


def gpt2(name: str = "gpt2-shaped", seed: int = 0, **config: int) -> Path:
    """The folder of a random GPT-2, made if need be.

    Args:
        name: of the folder.
        seed: of its weights.
        config: what differs from GPT-2 small (12 layers, 12 heads, width 768, 50,257 tokens).
    """
    folder = FOLDER / name
    if folder.exists():
        return folder
    torch.manual_seed(seed)
    made = folder.with_name(f"{name}.part")
    shutil.rmtree(made, ignore_errors=True)
    model = GPT2LMHeadModel(GPT2Config(initializer_range=_SPREAD, **config))
    for weight in model.parameters():
        if weight.dim() == 1:  # biases and gains, which a new model has at 0 and 1
            torch.nn.init.normal_(weight, weight.mean().item(), _SPREAD)
    model.save_pretrained(made)
    # TransformerLens opens no model without a tokenizer; this one has a word.
    words = Tokenizer(WordLevel({"<|endoftext|>": 0}, unk_token="<|endoftext|>"))
    special = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), "<|endoftext|>")
    PreTrainedTokenizerFast(tokenizer_object=words, **special).save_pretrained(made)
    return made.rename(folder)
