"""Tokenizers of protein language models: one letter, one token.

Sequences may be written with or without blanks between residues; mask tokens are written in place of a letter.
"""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast


def residue_tokenizer(
    vocabulary: Sequence[str], *, start: str, end: str, pad: str, unknown: str, mask: str, max_length: int
) -> PreTrainedTokenizerFast:
    """A tokenizer that gives each residue letter the id of its place in `vocabulary`.

    Args:
        vocabulary: every token; the id is the position.
        start: token put before a sequence.
        end: token put after a sequence.
        pad: padding token.
        unknown: token for any other letter.
        mask: token for a hidden residue.
        max_length: most tokens the model takes, start and end included.
    """
    ids = {token: index for index, token in enumerate(vocabulary)}
    core = Tokenizer(models.WordLevel(ids, unk_token=unknown))
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex("."), "isolated")]
    )
    core.decoder = decoders.Fuse()
    core.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}", special_tokens=[(start, ids[start]), (end, ids[end])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=start,
        cls_token=start,
        eos_token=end,
        sep_token=end,
        pad_token=pad,
        unk_token=unknown,
        mask_token=mask,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
