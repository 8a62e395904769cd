"""Finding a circuit for a task, end to end: what `mechanome circuit` does."""

from mechanome.circuits.finding.discovery import Discovery, discover
from mechanome.circuits.finding.examples import Halves, halves
from mechanome.circuits.finding.settings import Settings
from mechanome.circuits.finding.ways import WAYS

__all__ = ["WAYS", "Discovery", "Halves", "Settings", "discover", "halves"]
