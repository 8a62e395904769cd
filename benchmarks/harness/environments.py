"""Each peer lives in its own virtual environment, built once from its pinned requirements.

An environment is complete when it holds the stamp of its requirements; anything else is rebuilt from scratch. The
folder `MECHANOME_BENCH_VENVS` replaces `benchmarks/.venvs`: an environment `<peer>` found there without a stamp was
made by hand and is used as it is.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OVERRIDE = "MECHANOME_BENCH_VENVS"
_STAMP = "requirements.sha256"


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, which is built if need be.

    Args:
        peer: the name of a file `benchmarks/requirements/<peer>.txt`.

    Raises:
        FileNotFoundError: no such peer.
        subprocess.CalledProcessError: pip could not install the requirements; its own output says why.
    """
    requirements = ROOT / "benchmarks" / "requirements" / f"{peer}.txt"
    stamp = hashlib.sha256(requirements.read_bytes()).hexdigest()
    override = os.environ.get(OVERRIDE)
    folder = Path(override or ROOT / "benchmarks" / ".venvs") / peer
    python = folder / "bin" / "python"
    marker = folder / _STAMP
    if python.exists() and (marker.read_text() == stamp if marker.exists() else override):
        return python
    print(f"building {folder} from {requirements.relative_to(ROOT)}", file=sys.stderr)
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, "-r", str(requirements)], check=True)
    marker.write_text(stamp)
    return python
