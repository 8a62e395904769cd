"""Names of places in a model: what other tools call them, and our sites.

A file that names no place, or one that has no site, is not guessed at: the caller says which site it is. Where a
foreign tensor is close to a site but not the same (a norm's output before its gain), reading warns with `NearMatch` and
keeps the foreign name in the provenance, from which `mechanome.engine.names.lookup(...).convert` makes it the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypedDict

from mechanome.core.errors import BadInput, MechanomeError, NotServed, UnknownName, UnknownSite
from mechanome.engine.names import from_foreign, translate
from mechanome.engine.site import Site, parse

_MODULES = {
    "output": "resid_post.{n}",
    "self_attn.o_proj.input": "z.{n}",
    "pre_feedforward_layernorm.output": "ln2.{n}",
    "post_feedforward_layernorm.output": "mlp_out.{n}",
}
_MODULE = re.compile(r"model\.(?:language_model\.)?layers\.(\d+)\.(.+)")
_BLOCK = r"(?:model\.|gpt_neox\.|transformer\.)?(?:layers|h)\.(\d+)"
_SUBMODULES = (
    (re.compile(_BLOCK), "resid_post.{n}"),
    (re.compile(_BLOCK + r"\.mlp"), "mlp_out.{n}"),
    (re.compile(_BLOCK + r"\.(?:attn|self_attn|attention)"), "attn_out.{n}"),
    (re.compile(r"(?:model\.)?embed_tokens|(?:gpt_neox\.)?embed_in|(?:transformer\.)?wte"), "embed"),
)


def site_of_hook(hook: str | None, layer: int | None = None) -> str | None:
    """The site of a hook name of TransformerLens, SAELens or circuit-tracer; None where there is no name.

    Args:
        hook: such as `blocks.3.hook_resid_post`.
        layer: for circuit-tracer, whose names hold no layer.

    Raises:
        BadInput: a name without a site; the fix is to say the site.
    """
    if not hook:
        return None
    try:
        return str(from_foreign(hook, layer=layer))
    except (NotServed, UnknownName) as error:
        raise BadInput(f"hook '{hook}'", error.why, "say which site it is: read(path, site=...)") from error


def hook_of_site(site: str | Site | None, layered: bool = True) -> str | None:
    """The hook name of a site, without its layer for circuit-tracer; None where no hook means exactly this tensor."""
    try:
        return translate(site, "saelens" if layered else "circuit_tracer") if site else None
    except MechanomeError:
        return None


def one_site(ends: tuple[str, ...]) -> Site | None:
    """The site of a dictionary's end; None where it has none, or a name that its maker made up."""
    try:
        return parse(ends[0]) if ends else None
    except UnknownSite:
        return None


def site_of_module(name: str | None) -> str | None:
    """The site of a place in a Hugging Face model, such as `model.layers.7.output` (Gemma Scope 2).

    Raises:
        BadInput: another kind of name.
    """
    if not name:
        return None
    found = _MODULE.fullmatch(name)
    if found and found[2] in _MODULES:
        return _MODULES[found[2]].format(n=found[1])
    path, _, end = name.rpartition(".")
    if end not in ("input", "output"):
        raise BadInput(f"place '{name}'", "it is no module's input or output", "say the site: read(path, site=...)")
    return str(Site(f"path:{path}:in" if end == "input" else f"path:{path}"))


def site_of_submodule(name: str) -> str | None:
    """The site of a module's output as sparsify names its folders (`layers.3.mlp`); None where the name is another."""
    for pattern, site in _SUBMODULES:
        if found := pattern.fullmatch(name):
            return site.format(n=found[1]) if found.groups() else site
    return None


@dataclass(frozen=True)
class Told:
    """What the caller of `read` said about places; what files say counts only where nothing was said.

    Args:
        site: where the dictionary reads. site_out: where it writes, if elsewhere.
    """

    site: str | Site | None = None
    site_out: str | Site | None = None

    def ends(self, found: Callable[[], str | None], found_out: Callable[[], str | None] | None = None) -> Ends:
        """`sites_in` and `sites_out` of a dictionary; empty where nobody knows.

        Args:
            found: looks the input up in the file; not asked where the caller said it.
            found_out: the same for the output; None for dictionaries that write where they read.
        """
        sites_in = _one(self.site, found)
        return {"sites_in": sites_in, "sites_out": _one(self.site_out, found_out) if found_out else sites_in}


class Ends(TypedDict):
    """Sites, under the names that parts and specs give them."""

    sites_in: tuple[str, ...]
    sites_out: tuple[str, ...]


def _one(told: str | Site | None, found: Callable[[], str | None]) -> tuple[str, ...]:
    site = str(parse(told)) if told is not None else found()
    return () if site is None else (site,)
