"""Mechanome's own folder: everything, exactly, and beside it what SAELens can load.

`mechanome.json` says what the dictionary is, `weights.safetensors` holds its tensors bit for bit, which its SHA-256
beside the spec shows. Where SAELens has an architecture for it, `cfg.json` and `sae_weights.safetensors` are a second
view for that tool (norms folded); they are never read back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mechanome.core.errors import BadInput, CorruptFile
from mechanome.core.files import existing, sha256
from mechanome.core.formats import read_json, write_json
from mechanome.core.tensor_files import read_tensors, write_tensors
from mechanome.dictionaries.architectures import recipe_of
from mechanome.dictionaries.cross_layer import CrossLayerTranscoder
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.dictionaries.formats import saelens
from mechanome.dictionaries.formats.hooks import Told
from mechanome.dictionaries.norm import Affine
from mechanome.dictionaries.spec import DictionarySpec

FORMAT, VERSION = "dictionary", 1
WEIGHTS = "weights.safetensors"


def detect(path: Path) -> bool:
    """Whether a path is of this format."""
    return (path / "mechanome.json").is_file()


def write(dictionary: Dictionary, folder: Path) -> None:
    """Fill a folder."""
    kinds = {"norm": dictionary.norm.kind, "norm_out": dictionary.norm_out.kind}
    write_tensors(folder / WEIGHTS, dictionary.state_dict(), format=FORMAT, version=VERSION)
    content = {"format": FORMAT, "version": VERSION, "spec": dictionary.spec.as_json(), **kinds}
    write_json(folder / "mechanome.json", {**content, "weights_sha256": sha256(folder / WEIGHTS)})
    if saelens.writable(dictionary):
        saelens.write(dictionary, folder)


def read(path: Path, told: Told) -> Dictionary:
    """The dictionary of a folder, in `eval()` mode.

    Raises:
        BadInput: no such folder, or sites were given that its spec has already.
        CorruptFile, ShapeMismatch, NotFinite: damaged, or of another format.
    """
    if told != Told():
        raise BadInput(str(path), "its spec says where it reads and writes", "leave site out")
    content = _checked(read_json(path / "mechanome.json"), path)
    spec = DictionarySpec.of_json(content["spec"])
    file = path / WEIGHTS
    if sha256(existing(file)) != content["weights_sha256"]:
        raise CorruptFile(str(file), "it was changed since it was written: its SHA-256 differs", "write it again")
    stored = read_tensors(file, format=FORMAT, version=VERSION, finite=True)
    ends = {}
    for end in ("norm", "norm_out"):
        if missing := {f"{end}_shift", f"{end}_scale"} - stored.tensors.keys():
            raise CorruptFile(str(file), f"misses {', '.join(sorted(missing))}", "write it again")
        ends[end] = Affine(stored.tensors[f"{end}_shift"], stored.tensors[f"{end}_scale"], content[end])
    dictionary = _empty(spec, **ends)
    expected = read_tensors(file, format=FORMAT, version=VERSION, expect=dictionary.state_dict(), finite=True)
    dictionary.load_state_dict(expected.tensors)
    return dictionary.eval().requires_grad_(False)


def _empty(spec: DictionarySpec, norm: Affine, norm_out: Affine) -> Dictionary:
    if spec.architecture == CrossLayerTranscoder.architecture:
        return CrossLayerTranscoder(spec)
    return recipe_of(spec).assemble(spec, norm, norm_out)


def _checked(content: Any, folder: Path) -> dict[str, Any]:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CorruptFile(str(folder), "its mechanome.json is not of a dictionary", "give a dictionary's folder")
    if missing := {"version", "spec", "norm", "norm_out", "weights_sha256"} - content.keys():
        raise CorruptFile(str(folder), f"its mechanome.json misses {', '.join(sorted(missing))}", "write it again")
    if not isinstance(content["version"], int):
        raise CorruptFile(str(folder), f"its version is {content['version']!r}", "write it again")
    if content["version"] > VERSION:
        raise CorruptFile(str(folder), f"version {content['version']} is newer than {VERSION}", "update mechanome")
    return content
