"""The model registry: named models from pinned wheels, and any folder or hub model, opened the same way."""

from .catalog import RegistryModel, Wheel, catalog, find
from .opening import Provenance, open_folder
from .store import ensure, models_table

__all__ = ["Provenance", "RegistryModel", "Wheel", "catalog", "ensure", "find", "models_table", "open_folder"]
