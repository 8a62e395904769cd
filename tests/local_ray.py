"""A small ray on this machine, started once for all tests that fan out; without ray they are skipped."""

from __future__ import annotations

import os
import sys

import pytest


@pytest.fixture(scope="session")
def local_ray():
    """What `cluster="local"` joins: two workers."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'mechanome[cluster]'")
    if not ray.is_initialized():
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
            patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # workers import what tests send
            ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="error")
    return "local"
