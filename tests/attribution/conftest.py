"""The tiny language models of the explain tests, which have a tokenizer, serve these tests, too."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "explain"))
