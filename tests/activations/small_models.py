"""What these tests share: tiny models of families with a tokenizer of words, and texts for them."""

from __future__ import annotations

from functools import cache

import numpy as np
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import mechanome as mn
from families import build

WORDS = [f"w{i}" for i in range(80)]
CHAT = (
    "{% for m in messages %}<s> {{ m['role'] }} {{ m['content'] | trim }} </s> {% endfor %}"
    "{% if add_generation_prompt %}<s> assistant {% endif %}"
)


def tokenizer():
    """One token a word."""
    special = ["<pad>", "<s>", "</s>", "<unk>", "user", "assistant", "system"]
    vocabulary = {word: i for i, word in enumerate([*special, *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    made.chat_template = CHAT
    return made


@cache
def small(name="llama"):
    """A tiny model of a family."""
    return mn.load(build(name), tokenizer=tokenizer(), check="light")


def some_texts(n=12, seed=0, longest=20):
    """Texts of 1 to `longest` words."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, longest + 1))) for _ in range(n)]
