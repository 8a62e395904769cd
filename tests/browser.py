"""A page in a headless browser: what it is after its scripts ran, and that it neither complains nor calls home."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest


def opened(page: Path, profile: Path) -> str:
    """The document as the browser built it; fails on a console message, or on a request that leaves the folder.

    Args:
        page: the file. profile: an empty place for the browser's own files.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no chromium here")
    log = profile.with_suffix(".json")
    command = [
        browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps",
        f"--user-data-dir={profile}", "--enable-logging=stderr", f"--log-net-log={log}", "--virtual-time-budget=10000",
        "--dump-dom", page.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert "CONSOLE" not in done.stderr, done.stderr
    events = [event.get("params", {}) for event in json.loads(log.read_text(encoding="utf-8"))["events"]]
    # The browser's own requests have no origin; those of a page have one.
    requests = [event["url"] for event in events if event.get("initiator", "not an origin") != "not an origin"]
    assert not requests, requests
    return done.stdout
