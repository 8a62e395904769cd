"""Packages whose names are imported when first used, so that what needs little does not wait for torch.

A package says what it offers the way type checkers read it, in its `if TYPE_CHECKING:` imports; `offer` makes that true
when it runs: the first use of a name imports the module it lives in.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


class Package(ModuleType):
    """A package that knows where its names live."""

    homes: Mapping[str, str]

    def __getattr__(self, name: str) -> Any:
        home = self.__dict__["homes"].get(name)
        if home is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module = import_module(home)
        if name not in self.__dict__:  # the import sets a name that is a module's own, see below
            setattr(self, name, getattr(module, name))
        return self.__dict__[name]

    def __setattr__(self, name: str, value: Any) -> None:
        """Importing a module sets it on its package; one named like what it holds, as `core.fit`, must not hide that.

        A module that can be called, as `mechanome.explain`, is itself what it is named like.
        """
        if isinstance(value, ModuleType) and not callable(value) and self.homes.get(name) == value.__name__:
            value = getattr(value, name)
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self.homes})


def offer(package: str, kind: type[Package] = Package) -> None:
    """Import the names of a package's `if TYPE_CHECKING:` block when they are first used.

    Args:
        package: its `__name__`; called in its `__init__.py`. kind: what the package becomes.
    """
    module = sys.modules[package]
    module.__dict__["homes"] = _homes(Path(str(module.__file__)))
    module.__class__ = kind


def _homes(file: Path) -> dict[str, str]:
    blocks = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
    guarded = [node for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING" for node in block.body]
    imports = [node for node in guarded if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}
