"""A language model whose answers are known: each token's scores for the next are written down, nothing else counts.

Blocks add nothing, the embedding is one-hot, and the unembedding holds the table. Tokens are words with their space.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import mechanome as mn
from mechanome.engine import Model

WORDS = [
    "<s>",
    "Capital:",
    "capital:",
    "Big",
    " of",
    " France",
    " Italy",
    " Spain",
    " USA",
    " Paris",
    " Rome",
    " Madrid",
]
WORDS += [" New", " York", " Delhi", " Cape", " Town", "."]
SCORES = {
    (" France", " Paris"): 5.0,
    (" France", " Rome"): 1.0,
    (" Italy", " Rome"): 4.0,
    (" Italy", " Paris"): 1.5,
    (" Spain", " Rome"): 2.0,
    (" Spain", " Madrid"): 0.5,
    (" USA", " New"): 6.0,
    (" USA", " Cape"): 5.0,
    (" New", " York"): 2.0,
    (" New", " Delhi"): 0.0,
    (" Cape", " Town"): 9.0,
}
"""Logits of a next token; all others are 0."""


def logprob(*tokens: str) -> float:
    """Log-probability of the tokens after the first, from the table."""
    total = 0.0
    for now, then in pairwise(tokens):
        row = [SCORES.get((now, word), 0.0) for word in WORDS]
        total += SCORES.get((now, then), 0.0) - math.log(sum(map(math.exp, row)))
    return total


def bigram() -> Model:
    """The model, opened."""
    inner = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<s>"))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?[^ .]+|\."), "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", pad_token="<s>")
    size = 24
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=size,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=None,
        pad_token_id=0,
        rms_norm_eps=1e-12,
    )
    torch.manual_seed(0)
    module = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        module.model.embed_tokens.weight.copy_(torch.eye(len(WORDS), size))
        module.lm_head.weight.zero_()
        for (now, then), score in SCORES.items():
            module.lm_head.weight[WORDS.index(then), WORDS.index(now)] = score / math.sqrt(size)
        for block in module.model.layers:
            block.self_attn.o_proj.weight.zero_()
            block.mlp.down_proj.weight.zero_()
    return mn.load(module, tokenizer=tokenizer)
