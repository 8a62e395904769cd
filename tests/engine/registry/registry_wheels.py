"""Stand-ins for the tests of the registry: wheels that pip accepts, and a catalog of them."""

from __future__ import annotations

import hashlib
import importlib
import zipfile
from pathlib import Path

from mechanome.engine.registry import RegistryModel, Wheel

# The package exports a function of the same name, so the module is fetched by its full name.
catalog_module = importlib.import_module("mechanome.engine.registry.catalog")

PACKAGE, VERSION = "mechanome-fake-model", "1.2.3"
FILENAME = "mechanome_fake_model-1.2.3-py3-none-any.whl"
ID = "fake-model"


def build_wheel(folder: Path, files: dict[str, bytes], filename: str = FILENAME) -> Wheel:
    """Write a wheel that pip can download and return its pin."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / filename
    info = "mechanome_fake_model-1.2.3.dist-info"
    parts = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    return pin(path)


def pin(path: Path) -> Wheel:
    data = path.read_bytes()
    return Wheel(PACKAGE, VERSION, path.name, hashlib.sha256(data).hexdigest(), len(data))


def model_of(*wheels: Wheel, id: str = ID, converter: str = "gguf-llama") -> RegistryModel:
    return RegistryModel(id, wheels, converter, "MIT", "causal-lm", 1000, "a fake", "nothing")


def use_catalog(patch, *models: RegistryModel) -> None:
    patch.setattr(catalog_module, "_TABLE", models)
