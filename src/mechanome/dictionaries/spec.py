"""What a dictionary is, apart from its weights: enough to build it empty, and to know where it came from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mechanome.core.errors import CorruptFile
from mechanome.engine.asked import count

_JSON: dict[str, tuple[type, ...]] = {
    "architecture": (str,),
    "sites_in": (list, tuple),
    "sites_out": (list, tuple),
    "site_widths": (list, tuple),
    "settings": (Mapping,),
    "provenance": (Mapping,),
}
"""What a spec's parts are in a file; sizes are checked in any case."""


@dataclass(frozen=True)
class DictionarySpec:
    """A dictionary's architecture, sizes, sites and origin.

    Args:
        architecture: a name of `ARCHITECTURES`.
        d_in: width of what it reads; of several sites together.
        d_out: width of what it writes; of several sites together.
        width: how many latents.
        sites_in: where its input comes from, in order.
        sites_out: where its output belongs, in order.
        site_widths: width of each site written, where there are several.
        settings: of the architecture, as JSON.
        provenance: as JSON: model id, revision and hash, tokenizer hash, data, rows, seed, expected norm and FVU ...
    """

    architecture: str
    d_in: int
    d_out: int
    width: int
    sites_in: tuple[str, ...] = ()
    sites_out: tuple[str, ...] = ()
    site_widths: tuple[int, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("d_in", "d_out", "width"):
            object.__setattr__(self, name, count(name, getattr(self, name)))

    def as_json(self) -> dict[str, Any]:
        """As JSON; :meth:`of_json` is the inverse."""
        return asdict(self)

    @classmethod
    def of_json(cls, content: Mapping[str, Any]) -> DictionarySpec:
        """Read :meth:`as_json`.

        Raises:
            CorruptFile: a key is missing or unknown, or its value is of another kind.
        """
        if not isinstance(content, Mapping):
            raise CorruptFile("dictionary spec", f"a {type(content).__name__} is none", "write it again")
        known = cls.__dataclass_fields__.keys()
        if wrong := sorted(content.keys() ^ known):
            raise CorruptFile("dictionary spec", f"missing or unknown: {', '.join(wrong)}", "write it again")
        for name, kind in _JSON.items():
            if not isinstance(content[name], kind):
                raise CorruptFile("dictionary spec", f"its {name} is {content[name]!r}", "write it again")
        tuples = {name: tuple(content[name]) for name in ("sites_in", "sites_out", "site_widths")}
        return cls(**{**content, **tuples})
