"""Tiers of work, apart from what judges them, so that the command line knows them at once."""

from typing import Literal

Tier = Literal["smoke", "cpu", "full"]
"""How much work a study does: seconds (never judged), minutes on two cores, the paper's own scale."""
TIERS: tuple[Tier, ...] = ("smoke", "cpu", "full")
