"""Parts of a study that survive a kill: each finished one is a file, and is read instead of computed again.

A part is computed with all random generators seeded from its name, so it does not depend on what ran before it, and its
value is always what is read back from its file: a run that was killed and continued gives the numbers of one that was
not. A file that other code wrote is not trusted; it is computed again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from mechanome.core import flatten, read_tensors, seeded, unflatten, versions, write_tensors

FORMAT = "study-part"


@dataclass(frozen=True)
class Part:
    """A finished part.

    Args:
        value: a nest of tensors, arrays, numbers, texts, lists and dictionaries.
        seconds, processor: that its computation took, in whichever run: by the clock, and of processor time.
        fresh: whether that was in this run.
    """

    value: Any = field(repr=False)
    seconds: float
    processor: float
    fresh: bool


@dataclass(frozen=True)
class PartStore:
    """The parts of one run.

    Args:
        folder: where they are.
        code: what made them; parts of other code are computed again.
    """

    folder: Path
    code: str

    def __len__(self) -> int:
        return len(list(self.folder.glob("*.safetensors")))

    def get(self, name: str, make: Callable[[], Any]) -> Part:
        """A part from its file, or computed and written there.

        Args:
            name: of the part, unique in its run.
            make: computes its value.

        Raises:
            BadInput: a value that no file can hold.
        """
        file = self.folder / f"{_digest(name)[:16]}.safetensors"
        if (found := self._read(file, name)) is not None:
            return found
        start = time.perf_counter(), time.process_time()
        with seeded(int(_digest(name)[:8], 16)):
            tensors, skeleton = flatten(make())
        spent = {"seconds": time.perf_counter() - start[0], "processor": time.process_time() - start[1]}
        meta = {"name": name, "code": self.code, **spent, "value": skeleton}
        write_tensors(file, tensors, format=FORMAT, meta=meta)
        written = self._read(file, name)
        assert written is not None
        return replace(written, fresh=True)

    def _read(self, file: Path, name: str) -> Part | None:
        if not file.exists():
            return None
        stored = read_tensors(file, format=FORMAT)
        if (stored.meta["name"], stored.meta["code"]) != (name, self.code):
            return None
        value = unflatten(stored.tensors, stored.meta["value"])
        return Part(value, stored.meta["seconds"], stored.meta["processor"], False)


@cache
def code_hash() -> str:
    """Of everything a number can depend on here: the sources of this package, and the versions of its libraries."""
    root = Path(str(files("mechanome")))
    whole = sha256(repr(sorted(versions().items())).encode())
    for source in sorted(root.rglob("*.py")):
        whole.update(source.relative_to(root).as_posix().encode() + source.read_bytes())
    return whole.hexdigest()


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
