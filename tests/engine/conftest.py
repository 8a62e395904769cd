"""Self-test reports of the tiny models go to a folder of this session, so that no test reads an old result."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mechanome.engine import Model, selftest


@pytest.fixture(scope="session", autouse=True)
def _own_reports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder, named = tmp_path_factory.mktemp("selftest"), selftest._cache_file
    with pytest.MonkeyPatch.context() as patch:

        def here(model: Model, check: str) -> Path | None:
            file = named(model, check)
            return None if file is None else folder / file.name

        patch.setattr(selftest, "_cache_file", here)
        yield
