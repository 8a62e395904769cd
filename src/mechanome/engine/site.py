"""A `Site` names one tensor inside a model: a point, a layer, and optionally one head, neuron or expert.

The string form is strict and injective: `parse(str(site)) == site`, and a string that holds a coordinate the
point does not have is refused, because ignoring a coordinate would return the wrong tensor. Positions,
generation steps and batch rows belong to the request, never to the site.

    resid_pre.5   z.5.h3   k.5.kv1   pattern.5.h3   mlp_act.7.n120   logits   vision/resid_post.3
    path:model.layers.5.mlp.down_proj      path:model.layers.5.mlp.down_proj:in
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from mechanome.core.errors import UnknownSite, nearest
from mechanome.engine.points import POINTS, TOWERS

_COORDINATES = {"head": "h", "kv": "kv", "neuron": "n", "expert": "e"}
_COORDINATE = re.compile(r"(kv|h|n|e)(\d+)")
_LAYER = re.compile(r"(0|[1-9]\d*)")


@dataclass(frozen=True, order=True)
class Site:
    """One named tensor of a model.

    Args:
        point: a name of the points table (`mechanome.engine.points.POINTS`), or `path:<module path>` for the
            output of any module and `path:<module path>:in` for its first input.
        layer: block index within the tower, from 0; None for points of the whole model.
        head: query head. kv: key/value head. neuron: last-axis unit. expert: expert of a mixture.
        tower: `encoder`, `decoder`, `vision`, `audio` or `text`; None in a model with one tower.

    Raises:
        UnknownSite: a point that does not exist or a coordinate the point does not have.
    """

    point: str
    layer: int | None = None
    head: int | None = None
    kv: int | None = None
    neuron: int | None = None
    expert: int | None = None
    tower: str | None = None

    def __post_init__(self) -> None:
        if self.is_path:
            extra = [n for n in ("layer", "tower", *_COORDINATES) if getattr(self, n) is not None]
            if extra or not self.module_path:
                raise UnknownSite(
                    f"site '{self.point}'",
                    f"a path site takes no {extra[0]}" if extra else "the module path is empty",
                    "write only path:<module path> or path:<module path>:in",
                )
            return
        if self.point not in POINTS:
            raise UnknownSite(f"point '{self.point}'", "there is no such point", nearest(self.point, POINTS))
        point = POINTS[self.point]
        if point.per_layer and self.layer is None:
            raise UnknownSite(
                f"site '{self.point}'", "this point exists in each layer", f"name one, as in {self.point}.0"
            )
        if not point.per_layer and self.layer is not None:
            raise UnknownSite(f"site '{self.point}.{self.layer}'", "this point has no layers", f"write {self.point}")
        for name in _COORDINATES:
            value = getattr(self, name)
            if value is not None and name not in point.coordinates:
                allowed = ", ".join(point.coordinates) or "none"
                raise UnknownSite(
                    f"site '{self}'", f"{self.point} has no {name} axis", f"its coordinates are: {allowed}"
                )
            if value is not None and value < 0:
                raise UnknownSite(f"site '{self}'", f"{name} {value} is negative", "count from 0")
        if self.layer is not None and self.layer < 0:
            raise UnknownSite(f"site '{self}'", f"layer {self.layer} is negative", "count from 0")
        if self.tower is not None and self.tower not in TOWERS:
            raise UnknownSite(f"tower '{self.tower}'", "there is no such tower", nearest(self.tower, TOWERS))

    def __str__(self) -> str:
        head = f"{self.tower}/" if self.tower else ""
        layer = "" if self.layer is None else f".{self.layer}"
        rest = "".join(f".{k}{getattr(self, n)}" for n, k in _COORDINATES.items() if getattr(self, n) is not None)
        return f"{head}{self.point}{layer}{rest}"

    def __repr__(self) -> str:
        return f"Site({self})"

    @property
    def is_path(self) -> bool:
        """Whether this site names a module directly."""
        return self.point.startswith("path:")

    @property
    def module_path(self) -> str:
        """The module of a path site, without `path:` and `:in`."""
        return self.point.removeprefix("path:").removesuffix(":in")

    @property
    def is_input(self) -> bool:
        """Whether a path site names the module's input rather than its output."""
        return self.is_path and self.point.endswith(":in")

    @property
    def whole(self) -> Site:
        """The same site without head, kv, neuron and expert: the tensor as the model holds it."""
        if self.head is None and self.kv is None and self.neuron is None and self.expert is None:
            return self  # the usual case, asked for often
        return replace(self, head=None, kv=None, neuron=None, expert=None)

    @property
    def selector(self) -> tuple[tuple[str, int], ...]:
        """The coordinates that are set, as (axis name, index) pairs."""
        pairs = ((n, getattr(self, n)) for n in _COORDINATES)
        return tuple((n, v) for n, v in pairs if v is not None)


def parse(text: str | Site) -> Site:
    """Read a site's string form; strict, so a misspelled site never becomes another one.

    Args:
        text: for example `z.5.h3`, `vision/resid_post.3`, `path:model.layers.5.mlp:in`; a `Site` passes through.

    Raises:
        UnknownSite: with the nearest valid names.
    """
    if isinstance(text, Site):
        return text
    if not isinstance(text, str) or not text:
        raise UnknownSite(f"site {text!r}", "a site is a string or a Site", "for example 'resid_post.5'")
    if text.startswith("path:"):
        return Site(text)
    tower, slash, rest = text.rpartition("/")
    if slash and not tower:
        raise UnknownSite(f"site '{text}'", "the tower before '/' is empty", nearest(tower, TOWERS))
    if "hook_" in text or text.startswith(("blocks.", "hidden_states")):
        raise UnknownSite(
            f"site '{text}'",
            "this is another tool's name",
            f"mn.from_foreign({text!r}) gives the site, or says why not",
        )
    point, *parts = rest.split(".")
    fields: dict[str, int] = {}
    if parts and _LAYER.fullmatch(parts[0]):
        fields["layer"] = int(parts.pop(0))
    order = {short: name for name, short in _COORDINATES.items()}
    for part in parts:
        match = _COORDINATE.fullmatch(part)
        name = order[match[1]] if match else ""
        if not match or name in fields or str(int(match[2])) != match[2]:
            raise UnknownSite(
                f"site '{text}'", f"'{part}' is not a coordinate", "write .h3 (head), .kv1, .n120 (neuron) or .e2"
            )
        fields[name] = int(match[2])
    site = Site(point, tower=tower or None, **fields)
    if str(site) != text:
        raise UnknownSite(f"site '{text}'", "coordinates are out of order", f"write '{site}'")
    return site


def is_glob(text: str | Site) -> bool:
    """Whether a string names several sites (`*`, `?`, `[..]` or a layer range `3-7`)."""
    return isinstance(text, str) and not text.startswith("path:") and bool(re.search(r"[*?\[]|\.\d+-\d+", text))


def expand(patterns: str | Site | Iterable[str | Site], available: Sequence[Site]) -> list[Site]:
    """Turn site strings and globs into sites, keeping order and dropping repeats.

    Args:
        patterns: one or several of: a `Site`, its string form, a glob over whole sites (`z.*`, `*.5`), a layer
            range (`resid_post.3-7`). A coordinate may follow a glob: `z.*.h3`.
        available: the whole sites the model serves; what globs choose from.

    Raises:
        UnknownSite: a glob that matches nothing, with the nearest names.
    """
    if isinstance(patterns, (str, Site)):
        patterns = [patterns]
    found: dict[Site, None] = {}
    for pattern in patterns:
        if not is_glob(pattern):
            found[parse(pattern)] = None
            continue
        assert isinstance(pattern, str)
        stem, tail = _split_coordinates(pattern)
        matches = [s for s in available if _matches(stem, str(s))]
        if not matches:
            names = [str(s) for s in available]
            raise UnknownSite(f"site pattern '{pattern}'", "it matches nothing here", nearest(stem, names))
        for site in matches:
            found[parse(f"{site}{tail}")] = None
    return list(found)


def _split_coordinates(pattern: str) -> tuple[str, str]:
    match = re.search(r"(\.(?:kv|h|n|e)\d+)+$", pattern)
    return (pattern[: match.start()], match[0]) if match else (pattern, "")


def _matches(pattern: str, name: str) -> bool:
    span = re.fullmatch(r"(.*)\.(\d+)-(\d+)", pattern)
    if not span:
        return fnmatchcase(name, pattern)
    stem, dot, layer = name.rpartition(".")
    return bool(dot) and layer.isdigit() and fnmatchcase(stem, span[1]) and int(span[2]) <= int(layer) <= int(span[3])
