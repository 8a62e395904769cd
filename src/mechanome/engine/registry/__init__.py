"""The model registry: named models from pinned wheels, and any folder or hub model, opened the same way."""

from typing import TYPE_CHECKING

from mechanome.lazy import offer

if TYPE_CHECKING:
    from mechanome.engine.registry.catalog import RegistryModel, Wheel, catalog, find
    from mechanome.engine.registry.naming import named_by
    from mechanome.engine.registry.opening import Provenance, open_folder
    from mechanome.engine.registry.store import ensure, models_table

__all__ = [
    "Provenance",
    "RegistryModel",
    "Wheel",
    "catalog",
    "ensure",
    "find",
    "models_table",
    "named_by",
    "open_folder",
]

offer(__name__)
