"""What an architecture is: which module plays which part. `mechanome.engine.discovery` finds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from mechanome.core.errors import NotServed
from mechanome.engine.families import Style


@dataclass(frozen=True)
class Part:
    """One module with a role: its dotted path in the model, and the module."""

    path: str
    module: nn.Module


@dataclass(frozen=True)
class Block:
    """One block of a tower.

    Args:
        part: the block itself.
        roles: role -> part.
        style: where norms stand.
        n_heads, n_kv: query and key/value heads; 0 without attention.
        registry: whether its attention goes through the Transformers attention registry.
        fused: how a fused query-key-value projection lies: "" (none), "concat" or "per_head".
        reasons: role or point -> why this block has none, for refusals that explain themselves.
    """

    part: Part
    roles: Mapping[str, Part]
    style: Style
    n_heads: int = 0
    n_kv: int = 0
    registry: bool = False
    fused: str = ""
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Tower:
    """A stack of blocks with its embedding and final norm."""

    name: str | None
    path: str
    blocks: tuple[Block, ...]
    embed: Part | None
    ln_final: Part | None
    causal: bool
    feature_map: bool = False
    additive: bool = True


@dataclass(frozen=True)
class Architecture:
    """All towers of a model, and its unembedding."""

    root: nn.Module
    towers: tuple[Tower, ...]
    unembed: Part | None

    def tower(self, name: str | None) -> Tower:
        """The tower of a site.

        Raises:
            NotServed: a tower this model does not have, or none named where there are several.
        """
        for tower in self.towers:
            if tower.name == name:
                return tower
        if not self.towers:
            raise NotServed(
                f"named points of {type(self.root).__name__}",
                "no list of its modules looks like known blocks",
                "use path: sites, or describe it by a Layout",
            )
        names = ", ".join(str(t.name) for t in self.towers if t.name) or "none (one unnamed tower)"
        if name is None:
            raise NotServed("this site", "the model has several towers", f"prefix the site with one of: {names}")
        raise NotServed(f"tower '{name}'", "this model has no such tower", f"its towers: {names}")


def child(module: nn.Module, path: str) -> nn.Module | None:
    """A descendant by dotted path, through wrappers that forward attributes; None if there is none."""
    here: Any = module
    for name in path.split(".") if path else []:
        if name.isdigit() and isinstance(here, (nn.ModuleList, nn.Sequential)):
            here = here[int(name)] if int(name) < len(here) else None
        else:
            here = getattr(here, name, None)
        if not isinstance(here, nn.Module):
            return None
    return here
