"""Architectures that transformers does not have, written out plainly, with named parts to look into.

A folder whose ``config.json`` names one of `MODULES` under ``architectures`` is opened with that class, built
from the config's ``settings``.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from .efficientnet_lite import EfficientNetLite
from .protein_mpnn import ProteinMPNN

MODULES: Mapping[str, type[nn.Module]] = {cls.__name__: cls for cls in (EfficientNetLite, ProteinMPNN)}

__all__ = ["MODULES", "EfficientNetLite", "ProteinMPNN"]
