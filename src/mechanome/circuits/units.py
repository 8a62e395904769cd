"""Units of an MLP: what a graph has in place of a whole MLP, in the coordinates of any `Basis`.

An MLP's output is a sum over units, `c_i` (a number per token) times a direction of the stream, plus a rest:

| `units=` | coordinates `c_i` | direction of unit i | rest |
|---|---|---|---|
| `"neurons"` | activation of neuron i (`mlp_act`) | row i of `W_out` | none |
| `"svd"` | `mlp_act . p_i`, with `W_out = sum s_i p_i q_i` | `s_i q_i` | none: it writes nothing |
| `{"mlp_act.7": basis}` | `encode(mlp_act)` | `decode` of unit i, times `W_out` | what `decode(encode())` misses |
| `{"mlp_out.7": basis}` | `encode(mlp_out)` | `decode` of unit i | what `decode(encode())` misses |

Units are sources. They and the rest add up to the MLP's output exactly, whatever the basis: the rest is what a
dictionary calls its error. It is one node, `mlp_out.7.rest`, left out where the basis misses nothing that reaches the
stream. The bias behind `W_out`, and what `decode` adds to no unit at all, belong to no node and stay, as biases of
attention do. Where a norm stands behind the MLP (sandwich norms), units at `mlp_act` add up in front of it, as heads do
in front of theirs, and units at `mlp_out` behind it. `decode` must be linear up to such a constant; `encode` may be
anything (a sparse autoencoder is served).

The units of an MLP share one reader, `mlp_in.7`: they read one stream through one norm, and what a unit computes of it
it computes with all others. An edge into `mlp_in.7` thus says what the MLP's chosen units read. A reader per neuron
would ask more than that of a model that has no such thing, at a price: SmolLM2 cut into neurons has 46,351 sources and
481 targets, 22 MB for the edges of a circuit and 89 MB for their scores; with a reader per neuron 2.2 and 8.6 GB.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mechanome.core import BadInput, NotServed, ShapeMismatch, UnknownSite
from mechanome.engine import Basis, Neurons, SingularVectors, Site
from mechanome.engine.asked import one_of
from mechanome.engine.site import parse

if TYPE_CHECKING:
    from mechanome.engine import Model

POINTS = ("mlp_act", "mlp_out")
"""Where an MLP can be cut."""

_ROWS = 1024
"""So many unit vectors are decoded at once."""
_TOLERANCE = 1e-4
_SEED = 94_117
"""Of inputs that a basis is tried on; one that nobody else draws from, or they might lie in its span."""


@dataclass(frozen=True)
class Units:
    """The units that an MLP is cut into.

    Args:
        point: where their coordinates are read, a name of `POINTS`.
        count: how many.
        rest: whether something remains beside them.
        neurons: their numbers along the point's last axis, where they are single neurons; else None.
        fingerprint: of the basis: two cuts with the same are the same.
        basis: the coordinates; None in a graph read from a file.
    """

    point: str
    count: int
    rest: bool
    neurons: Sequence[int] | None
    fingerprint: str
    basis: Basis | None = field(default=None, repr=False, compare=False)

    def names(self, stem: str, rest: bool = False) -> Iterator[str]:
        """Names of the units: `mlp_act.7.n120` of neurons, which are sites, `mlp_act.7.u120` of others.

        Args:
            stem: the site, `mlp_act.7`. rest: the name of the rest, `mlp_act.7.rest`, and none of the units.
        """
        if rest:
            return iter([f"{stem}.rest"])
        numbers = range(self.count) if self.neurons is None else self.neurons
        return (f"{stem}.{'u' if self.neurons is None else 'n'}{i}" for i in numbers)

    @property
    def every_neuron(self) -> bool:
        """Whether the units are all numbers of the site's last axis, in order."""
        return isinstance(self.basis, Neurons) and self.neurons == range(self.basis.width)

    def record(self) -> dict[str, Any]:
        """As plain data, without the basis."""
        numbers = None if self.neurons is None else list(self.neurons)
        return {
            "point": self.point, "count": self.count, "rest": self.rest,
            "neurons": "all" if numbers == list(range(self.count)) else numbers, "basis": self.fingerprint,
        }  # fmt: skip

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Units:
        """What `record` made, without the basis; KeyError, TypeError or ValueError where it did not make this."""
        count, numbers = int(record["count"]), record["neurons"]
        neurons = range(count) if numbers == "all" else None if numbers is None else _numbers(numbers)
        if record["point"] not in POINTS or (neurons is not None and len(neurons) != count):
            raise ValueError(f"units at {record['point']}, {count} of them")
        return cls(record["point"], count, bool(record["rest"]), neurons, str(record["basis"]))


def _numbers(indices: Sequence[int]) -> Sequence[int]:
    """Indices; as a range where they are one, so that comparing costs nothing."""
    numbers = tuple(int(i) for i in indices)
    return range(len(numbers)) if numbers == tuple(range(len(numbers))) else numbers


Asked = str | Mapping[str, Basis | str] | Mapping[Site, Basis | str]
"""A name of `NAMED` for every MLP, or for some sites a basis or a name."""

NAMED: dict[str, Callable[[Tensor], Basis]] = {
    "neurons": lambda out: Neurons(range(len(out)), len(out)),
    "svd": lambda out: SingularVectors(out),
}
"""Bases that follow from the output weights of an MLP, `[neuron, d_model]`; they are at `mlp_act`."""


def units_of(model: Model, tower: str | None, mlps: Sequence[int], d_model: int, asked: Asked) -> dict[int, Units]:
    """The units that some MLPs are cut into, by layer.

    Args:
        model: the model. tower: of the graph.
        mlps: the layers that have an MLP.
        d_model: width of the stream.
        asked: how they are cut.

    Raises:
        BadInput: a name that does not exist, no basis, a site that is no MLP's, two cuts of one MLP.
        UnknownSite: a layer without MLP. ShapeMismatch: a basis of another width.
        NotServed: a site or weight that the model does not have, a decoder that is not linear.
    """
    if isinstance(asked, str):
        one_of("units", asked, NAMED, "there is no such basis")
        asked = {Site("mlp_act", layer, tower=tower): asked for layer in mlps}
    if not isinstance(asked, Mapping) or not asked:
        raise BadInput(f"units={asked!r}", "it is no choice of bases", "give 'neurons', or {'mlp_act.7': basis}")
    found: dict[int, Units] = {}
    for given, basis in asked.items():
        site = parse(given)
        if site.point not in POINTS or site.selector or site.tower != tower:
            where = "" if tower is None else f" of tower {tower}"
            raise BadInput(f"units at {site}", f"MLPs{where} are cut where they act or write", "use mlp_act or mlp_out")
        assert site.layer is not None
        if site.layer not in mlps:
            raise UnknownSite(f"units at {site}", "there is no MLP", f"MLPs are in layers {list(mlps)}")
        if site.layer in found:
            raise BadInput(f"units at {site}", "this MLP is already cut", "choose one site for each MLP")
        if why := model.why_not(site):
            raise NotServed(f"units at {site}", why, "cut other MLPs")
        out = _written(model, site, d_model)
        if isinstance(basis, str):
            one_of(f"units at {site}", basis, NAMED, "there is no such basis")
            if site.point != "mlp_act":
                raise BadInput(f"units '{basis}' at {site}", "they act at mlp_act", f"cut mlp_act.{site.layer}")
            basis = NAMED[basis](out)
        found[site.layer] = cut(site, basis, out)
    return found


def _written(model: Model, site: Site, d_model: int) -> Tensor:
    """What each number of a site's last axis adds to the stream, `[feature, d_model]`."""
    if site.point == "mlp_out":
        return torch.eye(d_model, device=model.device)
    return model.weight(f"W_out.{site.layer}", site.tower).value.detach().float()


def cut(site: Site, basis: Any, out: Tensor) -> Units:
    """The units of one basis.

    Args:
        site: where. basis: its coordinates. out: what each number there adds to the stream, `[feature, d_model]`.

    Raises:
        BadInput: no basis, or one that fails. ShapeMismatch: of another width. NotServed: a decoder that is not linear.
    """
    if isinstance(basis, type) or not isinstance(basis, Basis):
        raise BadInput(f"units at {site}", f"{basis!r} has no encode and decode", "give a Basis, or 'neurons'")
    x = torch.randn(3, len(out), generator=torch.Generator().manual_seed(_SEED)).to(out)
    try:
        with torch.no_grad():
            c = basis.encode(x)
            again = basis.decode(c)
    except (RuntimeError, TypeError, ValueError) as error:
        raise BadInput(f"units at {site}", f"the basis fails on {len(out)} features ({error})", "check it") from error
    if c.dim() != 2 or again.shape != x.shape:
        shapes = f"{list(x.shape)} becomes {list(c.shape)} and {list(again.shape)}"
        raise ShapeMismatch(f"units at {site}", shapes, "encode [..., d] to [..., k], and decode it back")
    neurons = _numbers(basis.indices) if isinstance(basis, Neurons) else None
    missed = ((x - again) @ out).abs().max() > _TOLERANCE * (x @ out).abs().max()
    found = Units(site.point, c.shape[-1], bool(missed), neurons, fingerprint(basis), basis)
    if neurons is None:
        drawn = torch.randn(3, found.count, generator=torch.Generator().manual_seed(_SEED + 1)).to(out)
        with torch.no_grad():
            claimed, seen = (
                drawn @ vectors(basis, found.count, out.device),
                basis.decode(drawn) - basis.decode(0 * drawn),
            )
        if not (claimed - seen).abs().max() <= _TOLERANCE * seen.abs().max():
            raise NotServed(f"units at {site}", "what its decoder adds is no sum over units", "use a linear decoder")
    return found


def vectors(basis: Basis, count: int, device: torch.device) -> Tensor:
    """What a linear decoder adds for each unit, `[unit, feature]`.

    Args:
        basis: the coordinates. count: of units. device: where the decoder takes them.
    """
    with torch.no_grad():
        nothing = basis.decode(torch.zeros(1, count, device=device))
        found = torch.empty(count, nothing.shape[-1], device=device)
        for first in range(0, count, _ROWS):
            some = torch.zeros(min(_ROWS, count - first), count, device=device)
            some[torch.arange(len(some)), torch.arange(first, first + len(some))] = 1.0
            found[first : first + len(some)] = basis.decode(some) - nothing
    return found


def fingerprint(basis: Basis) -> str:
    """A name for what a basis holds: its class, and a hash of its numbers and settings."""
    digest = hashlib.sha256()
    for name, value in _held(basis):
        digest.update(f"{name}=".encode() + _bytes(value))
    return f"{type(basis).__name__}-{digest.hexdigest()[:16]}"


def _held(holder: Any) -> Iterator[tuple[str, Any]]:
    """What an object was made from: the arguments of a dataclass, state and settings of a module, else attributes."""
    if is_dataclass(holder):
        yield from ((f.name, getattr(holder, f.name)) for f in fields(holder) if f.init)
        return
    if isinstance(holder, nn.Module):
        yield from holder.state_dict().items()
    yield from sorted((k, v) for k, v in getattr(holder, "__dict__", {}).items() if not k.startswith("_"))


def _bytes(value: Any) -> bytes:
    if isinstance(value, Tensor):
        whole = value.detach().cpu().contiguous()
        return f"{whole.dtype}{list(whole.shape)}".encode() + whole.reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, (int, float, str, type(None), range)):
        return repr(value).encode()
    if isinstance(value, (tuple, list)):
        return b",".join(_bytes(v) for v in value)
    if isinstance(value, Mapping):
        return b",".join(f"{name}=".encode() + _bytes(v) for name, v in sorted(value.items()))
    if isinstance(value, nn.Module) or (is_dataclass(value) and not isinstance(value, type)):
        # What a basis is made of counts with all it holds: a dictionary behind the basis of its latents.
        return b",".join(f"{name}=".encode() + _bytes(v) for name, v in _held(value))
    return type(value).__name__.encode()
