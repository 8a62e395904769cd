"""The tiny models of the explain tests serve the command line's tests, too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "explain"))
