"""A dictionary as a folder: `mechanome.json` says what it is, `weights.safetensors` holds its tensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechanome.core.errors import BadInput, CorruptFile
from mechanome.core.files import atomic_dir
from mechanome.core.formats import read_json, write_json
from mechanome.core.tensor_files import read_tensors, write_tensors
from mechanome.dictionaries.norm import Affine
from mechanome.dictionaries.spec import DictionarySpec

if TYPE_CHECKING:
    from mechanome.dictionaries.dictionary import Dictionary

FORMAT, VERSION = "dictionary", 1


def save(dictionary: Dictionary, path: str | Path) -> None:
    """Write a dictionary's folder, whole or not at all.

    Raises:
        BadInput: something is there already.
    """
    if Path(path).exists():
        raise BadInput(str(path), "it exists already", "name another folder, or remove it first")
    with atomic_dir(path) as folder:
        kinds = {"norm": dictionary.norm.kind, "norm_out": dictionary.norm_out.kind}
        content = {"format": FORMAT, "version": VERSION, "spec": dictionary.spec.as_json(), **kinds}
        write_json(folder / "mechanome.json", content)
        write_tensors(folder / "weights.safetensors", dictionary.state_dict(), format=FORMAT, version=VERSION)


def load(path: str | Path) -> Dictionary:
    """Read a dictionary's folder; it comes back in `eval()` mode."""
    from mechanome.dictionaries.architectures import recipe_of

    folder = Path(path)
    if not folder.is_dir():
        raise BadInput(str(path), "no such folder", "give the folder a dictionary was saved in")
    content = _checked(read_json(folder / "mechanome.json"), folder)
    spec = DictionarySpec.of_json(content["spec"])
    file = folder / "weights.safetensors"
    stored = read_tensors(file, format=FORMAT, version=VERSION, finite=True)
    ends = {}
    for end in ("norm", "norm_out"):
        if missing := {f"{end}_shift", f"{end}_scale"} - stored.tensors.keys():
            raise CorruptFile(str(file), f"misses {', '.join(sorted(missing))}", "write it again")
        ends[end] = Affine(stored.tensors[f"{end}_shift"], stored.tensors[f"{end}_scale"], content[end])
    dictionary = recipe_of(spec).assemble(spec, **ends)
    expected = read_tensors(file, format=FORMAT, version=VERSION, expect=dictionary.state_dict(), finite=True)
    dictionary.load_state_dict(expected.tensors)
    return dictionary.eval()


def _checked(content: Any, folder: Path) -> dict[str, Any]:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CorruptFile(str(folder), "its mechanome.json is not of a dictionary", "give a dictionary's folder")
    if content["version"] > VERSION:
        raise CorruptFile(str(folder), f"version {content['version']} is newer than {VERSION}", "update mechanome")
    return content
