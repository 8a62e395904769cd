"""The tiny models of the explain tests serve the tests of circuits, too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "explain"))
