"""What a verb leaves behind: its result, and the run folder that holds it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar


class Recorded(Protocol):
    """A result that can say itself as plain data."""

    def record(self) -> dict[str, Any]: ...


F = TypeVar("F", bound=Recorded)


@dataclass(frozen=True)
class Left(Generic[F]):
    """A result and its folder.

    Args:
        found: the result.
        folder: its run folder, with `config.yaml`, the record, `report.html` and `run.json`.
    """

    found: F
    folder: Path

    @property
    def report(self) -> Path:
        """The page."""
        return self.folder / "report.html"

    @property
    def record(self) -> dict[str, Any]:
        """The result as plain data, as the folder holds it."""
        return self.found.record()
