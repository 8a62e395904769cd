"""One accumulator a site, in the form that a generation hands its captures over."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, Self, TypeVar

from mechanome.core.errors import CorruptFile, UnknownSite, nearest


class _OfRows(Protocol):
    def update(self, x: Any) -> Any: ...

    def merge(self, other: Any) -> Any: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


A = TypeVar("A", bound=_OfRows)


class PerSite(Generic[A]):
    """Accumulators by site name; one is made when a site is first seen.

    ``model.generate(..., capture="resid_post.*", reduce=PerSite(Moments))`` streams statistics of generated tokens and
    stores nothing.

    Args:
        make: makes one accumulator, whose ``update`` takes rows alone.
    """

    def __init__(self, make: Callable[[], A]) -> None:
        self.make = make
        self._sites: dict[str, A] = {}

    def update(self, site: Any, x: Any) -> Self:
        """Take in rows ``[..., unit]`` of a site."""
        self._of(str(site)).update(x)
        return self

    def merge(self, other: PerSite[A]) -> Self:
        """Take in what another has seen of other rows."""
        for site, part in other._sites.items():
            self._of(site).merge(part)
        return self

    def __getitem__(self, site: Any) -> A:
        """The accumulator of a site.

        Raises:
            UnknownSite: it was never seen.
        """
        if str(site) not in self._sites:
            raise UnknownSite(f"site {str(site)!r}", "no row of it was seen", nearest(str(site), self._sites))
        return self._sites[str(site)]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sites)

    def __len__(self) -> int:
        return len(self._sites)

    def state_dict(self) -> dict[str, Any]:
        """The state of each site's accumulator."""
        return {site: part.state_dict() for site, part in self._sites.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over a state of :meth:`state_dict`.

        Raises:
            CorruptFile, BadInput: as the accumulators.
        """
        if not isinstance(state, Mapping):
            raise CorruptFile("accumulator state", f"it is a {type(state).__name__}", "use the state of PerSite")
        self._sites = {}
        for site, part in state.items():
            self._of(site).load_state_dict(part)

    def _of(self, site: str) -> A:
        return self._sites.setdefault(site, self.make())
