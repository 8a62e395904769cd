"""Every study by name: the table is the package `mechanome.studies.papers` itself, one module a study.

Names come from file names, so listing and completing them imports nothing; a study is imported when it is looked up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from mechanome.studies import papers

if TYPE_CHECKING:
    from mechanome.studies.study import Study


class Registry(Mapping[str, "Study[Any]"]):
    """Studies by name, imported on demand.

    Args:
        package: whose modules each hold one ``STUDY``.
    """

    def __init__(self, package: Any) -> None:
        self._package = package

    def __iter__(self) -> Iterator[str]:
        modules = iter_modules(self._package.__path__)
        return iter(sorted(module.name.replace("_", "-") for module in modules))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in list(iter(self))

    def __getitem__(self, name: str) -> Study[Any]:
        """The study.

        Raises:
            UnknownName: no such study; the message names the nearest ones. (It is no KeyError.)
        """
        from mechanome.core.errors import UnknownName, nearest

        if name not in self:
            raise UnknownName(f"study '{name}'", "there is no such study", nearest(name, self))
        study: Study[Any] = import_module(f"{self._package.__name__}.{name.replace('-', '_')}").STUDY
        return study

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)


STUDIES = Registry(papers)
"""Every study by name."""
