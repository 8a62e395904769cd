"""Runs that leave a folder with everything in it, or nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mechanome.core.errors import CorruptFile
from mechanome.core.runs import RunFolder


def nothing(folder: RunFolder) -> str:
    """What is worth keeping of a run that stopped: nothing."""
    return ""


@contextmanager
def whole_run(
    verb: str,
    arguments: Mapping[str, Any],
    *,
    base: str | os.PathLike[str] = "runs",
    seed: int | None = None,
    keep: Callable[[RunFolder], str] = nothing,
) -> Iterator[RunFolder]:
    """A new run folder for the block; if the block fails, or on Ctrl-C, the folder is removed again.

    Args:
        verb, arguments, base, seed: as `RunFolder.create`.
        keep: asked when the block failed: says how to go on with what is in the folder, which then stays; empty
            removes it. What it says is added to the error.

    Raises:
        BadInput: the folder cannot be made.
    """
    above = Path(base)
    first = not os.path.exists(above)  # noqa: PTH110 - false, too, for a name that no folder can have
    folder = RunFolder.create(verb, {**arguments, "out": str(base)}, base=above, seed=seed)
    try:
        with folder:
            yield folder
    except BaseException as error:
        if said := keep(folder):
            error.add_note(said)
        else:
            shutil.rmtree(folder.path, ignore_errors=True)
            if first and not any(above.iterdir()):
                above.rmdir()
        raise


def expect(verb: str, arguments: Mapping[str, Any], names: Iterable[str]) -> None:
    """Check that a recorded run has the arguments that its verb takes.

    Raises:
        CorruptFile: some are missing or unknown.
    """
    if odd := sorted({*names} ^ {*arguments}):
        why = f"arguments that are missing or unknown: {', '.join(odd)}"
        raise CorruptFile(f"a run of {verb}", why, "restore its config.yaml, or start a new run")
