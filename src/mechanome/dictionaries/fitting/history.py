"""What a fit reported, kept with its checkpoints so that a resumed fit has all of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class History:
    """Records of each dictionary by step; a `FitState`."""

    def __init__(self, dictionaries: int) -> None:
        self.records: list[list[dict[str, float]]] = [[] for _ in range(dictionaries)]

    def add(self, metrics: Sequence[Mapping[str, float]]) -> None:
        """One record for each dictionary."""
        for records, record in zip(self.records, metrics):
            records.append(dict(record))

    def state_dict(self) -> dict[str, Any]:
        """What to keep."""
        return {"records": self.records}

    def load_state_dict(self, state: Mapping[str, Any], /) -> None:
        """Take it back."""
        self.records = [list(records) for records in state["records"]]
