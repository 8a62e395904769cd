"""AntiBERTy, a BERT for antibody sequences: its masked language model, under transformers' own class."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import BertConfig, BertForMaskedLM

from ..archive import WheelFiles
from ..torch_files import load_pinned
from .folder import write_transformers
from .residues import residue_tokenizer

_WEIGHTS = "AntiBERTy_md_smooth/pytorch_model.bin"
_LEFT_OUT = ("bert.pooler.", "cls.species.", "cls.chain.", "cls.graft.")
_STALE_CONFIG = ("_name_or_path", "architectures", "gradient_checkpointing", "model_type", "transformers_version")


def convert_antiberty(files: WheelFiles, folder: Path, scratch: Path) -> tuple[str, ...]:
    """Convert the AntiBERTy checkpoint."""
    settings = json.loads(files.read("AntiBERTy_md_smooth/config.json"))
    config = BertConfig(**{name: value for name, value in settings.items() if name not in _STALE_CONFIG})
    tensors = load_pinned(files.read(_WEIGHTS), _WEIGHTS)
    # The output matrix and its bias are the embeddings and cls.predictions.bias under a second name.
    tied = ("cls.predictions.decoder.", "bert.embeddings.position_ids")
    kept = {name: value for name, value in tensors.items() if not name.startswith(_LEFT_OUT + tied)}
    write_transformers(folder, BertForMaskedLM, config, kept)
    tokenizer = residue_tokenizer(
        files.read("trained_models/vocab.txt").decode().split(),
        start="[CLS]",
        end="[SEP]",
        pad="[PAD]",
        unknown="[UNK]",
        mask="[MASK]",
        max_length=config.max_position_embeddings,
    )
    tokenizer.save_pretrained(folder)
    return ("pooler and the species, chain and graft classifiers left out",)
