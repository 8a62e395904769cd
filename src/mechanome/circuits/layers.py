"""The shape of a block, as far as edges depend on it, and groups of its nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from mechanome.circuits.units import Units
from mechanome.core import BadInput, NotServed
from mechanome.engine.architecture import Block, Tower
from mechanome.engine.families import Style

Kind = Literal["embedding", "head", "mlp", "unit", "rest", "q", "k", "v", "mlp_in", "logits"]


@dataclass(frozen=True)
class Layer:
    """The shape of one block: all that edges depend on.

    Args:
        heads: query heads; 0 without attention.
        kv: key/value heads.
        mlp: whether it has an MLP (a mixture of experts counts as one).
        style: where its norms stand.
        units: what its MLP is cut into; None for a whole one.
    """

    heads: int
    kv: int
    mlp: bool = True
    style: Style = "pre"
    units: Units | None = None

    def __post_init__(self) -> None:
        if self.units is not None and not self.mlp:
            raise BadInput("units of an MLP", "this block has none", "cut other blocks")
        if self.heads < 0 or self.kv < 0 or (self.heads and (self.kv == 0 or self.heads % self.kv)):
            raise BadInput(
                f"{self.heads} heads over {self.kv} key/value heads", "each must serve equally many", "check the counts"
            )


@dataclass(frozen=True)
class Group:
    """Consecutive nodes of one kind in one layer.

    Args:
        kind: what they are.
        layer: their block, None for the embedding and the logits.
        first, count: their indices among sources (or among targets).
        after: targets only: they read what the first `after` sources wrote.
    """

    kind: Kind
    layer: int | None
    first: int
    count: int
    after: int = 0

    @property
    def nodes(self) -> slice:
        """Their indices."""
        return slice(self.first, self.first + self.count)


def groups_of(layers: Sequence[Layer]) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """Groups of sources in the order in which they write, and of targets in the order in which they read."""
    sources, targets = [Group("embedding", None, 0, 1)], []
    n_sources, n_targets = 1, 0

    def write(kind: Kind, layer: int, count: int) -> None:
        nonlocal n_sources
        if count:
            sources.append(Group(kind, layer, n_sources, count))
            n_sources += count

    def read(kind: Kind, layer: int | None, count: int, after: int) -> None:
        nonlocal n_targets
        if count:
            targets.append(Group(kind, layer, n_targets, count, after))
            n_targets += count

    for i, layer in enumerate(layers):
        before = n_sources
        for kind, count in (("q", layer.heads), ("k", layer.kv), ("v", layer.kv)):
            read(kind, i, count if layer.heads else 0, before)  # type: ignore[arg-type]
        write("head", i, layer.heads)
        if layer.mlp:
            read("mlp_in", i, 1, before if layer.style == "parallel" else n_sources)
            write("mlp", i, int(layer.units is None))
        if layer.units is not None:
            write("unit", i, layer.units.count)
            write("rest", i, int(layer.units.rest))
    read("logits", None, 1, n_sources)
    return tuple(sources), tuple(targets)


def refused(what: str, why: str) -> NotServed:
    """The error of a tower or model that is no circuit graph."""
    return NotServed(f"a circuit graph of {what}", why, "patch its sites with activation_patching")


def layer_of(tower: Tower, block: Block) -> Layer:
    """The shape of a block.

    Raises:
        NotServed: no attention and MLP on one stream of tokens, with the reason.
    """
    roles = block.roles
    if "mixer" in roles:
        raise refused(tower.path, f"{block.part.path} mixes tokens without attention, so it has no heads")
    if not ("attention" in roles or "mlp_out" in roles):
        raise refused(tower.path, f"{block.part.path} has neither attention nor an MLP that is known")
    heads, kv = (block.n_heads, block.n_kv) if "attention" in roles else (0, 0)
    return Layer(heads, kv, "mlp_out" in roles, block.style)
