"""A process that opens the fake model: killed or raced by the tests of the store.

Arguments: folder with the wheel, mode, file that marks progress. ``stall`` stops in the middle of the conversion
until it is killed; ``make`` converts, slowly enough that two processes overlap, and notes that it did.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from unittest import mock

from registry_wheels import FILENAME, ID, catalog_module, model_of, pin

from mechanome.engine.registry import ensure
from mechanome.engine.registry import store as store_module


def main(index: Path, mode: str, marks: Path) -> None:
    def slow(files, folder, scratch):
        (folder / "model.safetensors").write_bytes(files.read("model.gguf"))
        with marks.open("a") as handle:
            handle.write("converting\n")
        time.sleep(600 if mode == "stall" else 0.5)
        return ()

    with (
        mock.patch.object(catalog_module, "_TABLE", (model_of(pin(index / FILENAME)),)),
        mock.patch.object(store_module, "converter", lambda name: slow),
    ):
        print(ensure(ID, quiet=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
