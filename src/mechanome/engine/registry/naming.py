"""What a model is named by: a registry id, a folder, or a hub id. Said before anything heavy is imported or opened."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from mechanome.core.errors import UnknownModel

from .catalog import catalog, suggestion

Named = Literal["registry", "folder", "hub"]

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_NAME = re.compile(r"(?=.*[\d-])[\w.-]+")  # sizes and versions make a model of a family
_OWNERS = (
    ("distilgpt2|distilbert|distilroberta", "distilbert"),
    ("gpt2", "openai-community"),
    ("pythia|gpt-neo|gpt-j", "EleutherAI"),
    ("bert", "google-bert"),
    ("roberta|xlm", "FacebookAI"),
    ("t5", "google-t5"),
    ("albert", "albert"),
    ("opt-", "facebook"),
    ("qwen", "Qwen"),
    ("gemma|vit-|electra", "google"),
    ("llama", "meta-llama"),
    ("mistral|mixtral", "mistralai"),
    ("smollm", "HuggingFaceTB"),
    ("phi-", "microsoft"),
    ("bloom", "bigscience"),
    ("olmo", "allenai"),
    ("whisper", "openai"),
)
"""How names of well-known model families begin, and who publishes them on the hub; only used to suggest a spelling."""


def named_by(id_or_path: str | Path) -> Named:
    """What a name stands for. A registry id wins over a folder, a folder over a hub id of the same spelling.

    Whether the hub has such a model is not asked.

    Raises:
        UnknownModel: nothing of these; the message suggests registry ids, and the hub's spelling of a known family.
    """
    name = str(id_or_path)
    if any(model.id == name for model in catalog()):
        return "registry"
    if name and Path(name).expanduser().is_dir():
        return "folder"
    if isinstance(id_or_path, str) and _HUB_ID.fullmatch(name) and not name.startswith("."):
        return "hub"
    why = "it is no registry id, no folder and no hub id (owner/name)"
    raise UnknownModel(f"model {name!r}", why, _spelled(name) + suggestion(name))


def _spelled(name: str) -> str:
    owner = next((owner for begins, owner in _OWNERS if re.match(begins, name, re.IGNORECASE)), None)
    if owner is None or not _HUB_NAME.fullmatch(name):
        return ""
    return f"on the hub it would be '{owner}/{name}'; of the registry, "
