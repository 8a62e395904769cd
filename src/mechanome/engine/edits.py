"""`Edit`: one small algebra for every intervention, as plain data.

An edit names a site, where it acts, in which basis, an operation and a value. Familiar interventions are
constructors: `Patch`, `Ablate`, `Add`, `Scale`, `Clamp`, `ProjectOut`, `Splice`, `FreezeTo`,
`AttentionKnockout`. Rows of a batch are worlds: a value may come from another row or another run.

When positions and phases are given in real tokens, an edit means the same with and without padding and with
and without a key/value cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from mechanome.core.errors import BadInput, nearest
from mechanome.engine import plain
from mechanome.engine.bases import Basis, Directions, as_basis
from mechanome.engine.frame import Positions
from mechanome.engine.site import Site, parse
from mechanome.engine.values import Donor, FromRows, FromRun, Resample, Value, amount, checked, has_gaps
from mechanome.engine.where import Where

if TYPE_CHECKING:
    from mechanome.engine.run import Run

__all__ = [
    "OPS",
    "Ablate",
    "Add",
    "AttentionKnockout",
    "Clamp",
    "Custom",
    "Donor",
    "Edit",
    "FreezeTo",
    "FromRows",
    "FromRun",
    "Op",
    "Patch",
    "ProjectOut",
    "Resample",
    "Scale",
    "Splice",
    "Value",
    "Where",
    "flatten",
]

Op = Literal["set", "add", "scale", "clamp", "ablate", "custom"]
OPS: tuple[str, ...] = ("set", "add", "scale", "clamp", "ablate", "custom")


_OWN = "use the basis inside the function"
Replacement = Callable[[Site], Tensor]
"""From a whole site to what takes its place: `[feature...]` or `[row, pos, feature...]`."""


@dataclass(frozen=True, eq=False)
class Edit:
    """One intervention.

    Args:
        site: what is edited; a head, neuron or expert coordinate restricts it.
        op: `set`, `add`, `scale`, `clamp`, `ablate` (a `set` that says why), or `custom`.
        value: a number; a tensor `[feature...]` for all, `[row, feature...]` per row, or `[row, pos, feature...]`;
            `FromRows`, `FromRun`, `Resample`; for clamp a pair (lo, hi).
        where: positions, rows, phase, steps, keys.
        basis: coordinates the operation works in; None for the activations themselves.
        function: for `custom`: receives the selected activations `[..., feature]`, returns the new ones.

    Attributes:
        gaps: whether `value` ends some rows in NaN, as ragged captures do; those cells cannot be written.

    Raises:
        BadInput: a value, basis or function that the operation cannot use. NotFinite: NaN or infinity in the value.
    """

    site: Site
    op: Op = "set"
    value: Value = None
    where: Where = field(default_factory=Where)
    basis: Basis | None = None
    function: Callable[[Tensor], Tensor] | None = None
    gaps: bool = field(init=False, repr=False, default=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "site", parse(self.site))
        if self.op not in OPS:
            raise BadInput(f"operation '{self.op}'", "there is no such operation", nearest(self.op, OPS))
        object.__setattr__(self, "value", checked(self.value, self.op, self.site))
        object.__setattr__(self, "gaps", has_gaps(self.value))
        if self.basis is not None:
            object.__setattr__(self, "basis", as_basis(self.basis))
            _check_basis(self.basis, self.site)
        if (self.op == "custom") != callable(self.function):
            why = "'custom' needs a function" if self.op == "custom" else f"'{self.op}' takes no function"
            raise BadInput(f"edit of {self.site}", why, "use Custom(site, function)")
        if self.op == "custom" and self.basis is not None:
            raise BadInput(f"custom edit of {self.site}", "its function gets activations, so a basis has no part", _OWN)
        if self.where.keys is not None and not self.site.point.endswith(("scores", "pattern")):
            raise BadInput(f"keys of {self.site}", "only scores and patterns have a key axis", "use pos=")

    def at(self, **where: Any) -> Edit:
        """The same edit somewhere else: `edit.at(pos="last", rows=[0])`."""
        return replace(self, where=replace(self.where, **where))

    def __repr__(self) -> str:
        value = f"tensor{list(self.value.shape)}" if isinstance(self.value, Tensor) else repr(self.value)
        rest = "" if self.where.everywhere else f", where={self.where}"
        basis = f", basis={type(self.basis).__name__}" if self.basis is not None else ""
        return f"Edit({self.site}, {self.op} {value}{basis}{rest})"


def _check_basis(basis: Any, site: Site) -> None:
    if isinstance(basis, type) or not isinstance(basis, Basis):
        kind = f"the class {basis.__name__}" if isinstance(basis, type) else f"a {type(basis).__name__}"
        raise BadInput(
            f"basis for {site}", f"{kind} has no encode and decode", "give Directions, Subspace, a dictionary"
        )


def Patch(
    site: str | Site,
    source: Run | Tensor | np.ndarray[Any, Any] | FromRows | FromRun | int,
    *,
    pos: Positions = None,
    from_pos: Positions = None,
    rows: Sequence[int] | None = None,
    from_rows: Sequence[int] | None = None,
    basis: Basis | None = None,
) -> Edit:
    """Replace activations by those of another run, another row of the batch (an int), or a tensor.

    Args:
        site: what to replace. source: where from. pos: which positions; from_pos: the donor's positions, as many.
        rows: which rows; from_rows: the rows of another run. basis: replace only these coordinates.

    Raises:
        BadInput: a source of another kind, or `from_pos` or `from_rows` with a source that does not take it.
    """
    value, row = source, plain.whole(source)
    if row is not None:
        _unused("from_rows", from_rows, site, "an int is itself the donor row")
        value = FromRows((row,), from_pos)
    elif isinstance(source, (Tensor, np.ndarray, FromRows, FromRun)):
        kind = "a tensor is written as it is" if isinstance(source, (Tensor, np.ndarray)) else "the donor names its own"
        _unused("from_rows", from_rows, site, kind)
        _unused("from_pos", from_pos, site, kind)
    elif callable(getattr(source, "source", None)):
        value = FromRun(source, from_rows, from_pos)  # type: ignore[arg-type]
    else:
        raise BadInput(
            f"source {source!r} of a patch of {site}",
            f"a {type(source).__name__} gives no activations",
            "give a run, a row (an int), a tensor, a NumPy array, FromRows or FromRun; Ablate(site, x) for a constant",
        )
    return Edit(parse(site), "set", value, Where(pos, rows), basis)  # type: ignore[arg-type]


def _unused(name: str, given: Any, site: str | Site, why: str) -> None:
    if given is not None:
        raise BadInput(f"{name} of a patch of {site}", why, f"leave {name} out, or give FromRows or FromRun")


def Ablate(
    site: str | Site,
    by: Literal["zero", "resample"] | float | Tensor | np.ndarray[Any, Any] | Run | Replacement = "zero",
    *,
    pos: Positions = None,
    rows: Sequence[int] | None = None,
    basis: Basis | None = None,
    seed: int = 0,
) -> Edit:
    """Remove what a site carries.

    Args:
        site: what to remove.
        by: "zero"; a tensor; "resample" from other rows; another run; or a function from a whole site to a tensor, as
            `activation_patching` takes it: `mean_of(model, prompts)` for mean ablation.
        pos, rows, basis: where. seed: of resampling.
    """
    if isinstance(by, str):
        choices: dict[str, Value] = {"zero": 0.0, "resample": Resample(seed)}
        if by not in choices:
            raise BadInput(f"ablation by '{by}'", "there is no such kind", nearest(by, choices))
        value = choices[by]
    elif callable(getattr(by, "source", None)):
        value = FromRun(by)  # type: ignore[arg-type]
    elif callable(by) and not isinstance(by, type):
        value = _replacement(parse(site), by)
    else:
        value = by  # type: ignore[assignment]
    return Edit(parse(site), "ablate", value, Where(pos, rows), basis)


def _replacement(site: Site, by: Replacement) -> Tensor:
    """The site's own part of what a function gives for the whole: `z.5.h3` of the mean of `z.5`.

    Raises:
        BadInput: a function that returns no tensor.
    """
    whole = by(site.whole)
    if not isinstance(whole, Tensor):
        why = f"the function returns a {type(whole).__name__}"
        raise BadInput(f"what replaces {site}", why, "return a tensor [feature...], as mean_of(model, prompts) does")
    for axis, i in site.selector:
        whole = whole.select(-2, i) if axis in ("head", "kv") else whole[..., i : i + 1]
    return whole


def Add(site: str | Site, vector: Tensor | float, scale: float = 1.0, **where: Any) -> Edit:
    """Add a vector, times `scale`; `where` as in `Where` (`pos=`, `rows=`, `phase=`, `steps=`)."""
    given = amount(vector, f"vector to add at {site}")
    value = torch.as_tensor(given) * plain.number(scale, f"scale of Add at {site}")
    return Edit(parse(site), "add", value, Where(**where))


def Scale(site: str | Site, factor: float | Tensor, basis: Basis | None = None, **where: Any) -> Edit:
    """Multiply by a factor."""
    return Edit(parse(site), "scale", factor, Where(**where), basis)


def Clamp(
    site: str | Site, lo: float | None = None, hi: float | None = None, basis: Basis | None = None, **where: Any
) -> Edit:
    """Keep values between `lo` and `hi`."""
    return Edit(parse(site), "clamp", (lo, hi), Where(**where), basis)


def ProjectOut(site: str | Site, directions: Tensor, **where: Any) -> Edit:
    """Remove the components along some directions `[k, d]` or `[d]`."""
    return Edit(parse(site), "ablate", 0.0, Where(**where), Directions(directions))


def Splice(site: str | Site, dictionary: Basis, keep_error: bool = True, **where: Any) -> Edit:
    """Send activations through a dictionary; with `keep_error` what it cannot express is kept.

    With the error kept the splice alone changes nothing; edits of its latents do (give them `basis=dictionary`).
    """
    basis = as_basis(dictionary)
    _check_basis(basis, parse(site))
    if keep_error:
        return Edit(parse(site), "scale", 1.0, Where(**where), basis)
    return Custom(site, lambda x: basis.decode(basis.encode(x)), **where)


def FreezeTo(run: Run, sites: Iterable[str | Site] | None = None, **where: Any) -> list[Edit]:
    """Hold every captured site of a run (or the given ones) at that run's values."""
    chosen = list(run.sites) if sites is None else [parse(s) for s in sites]
    return [Edit(site, "set", FromRun(run), Where(**where)) for site in chosen]


def AttentionKnockout(
    layers: int | Iterable[int],
    src: Positions,
    dst: Positions,
    *,
    heads: int | Iterable[int] | None = None,
    renormalize: bool = True,
    rows: Sequence[int] | None = None,
    tower: str | None = None,
) -> list[Edit]:
    """Stop queries at `dst` from attending to keys at `src`.

    Args:
        layers: which layers. src: key positions. dst: query positions. heads: which heads, None for all.
        renormalize: True masks the scores, so that the rest of the row sums to 1 again; False zeroes the pattern.
        rows: which rows. tower: of the sites.
    """
    point, value = ("scores", float("-inf")) if renormalize else ("pattern", 0.0)
    where = Where(pos=dst, rows=rows, keys=src)
    chosen = plain.integers(layers, "layers of AttentionKnockout")
    each: Sequence[int | None] = plain.chosen(heads, "heads of AttentionKnockout") or (None,)
    if not chosen:
        raise BadInput("layers of AttentionKnockout", "there are none", "give a layer, or several")
    return [Edit(Site(point, layer, head=h, tower=tower), "ablate", value, where) for layer in chosen for h in each]


def Custom(site: str | Site, function: Callable[[Tensor], Tensor], **where: Any) -> Edit:
    """Any function of the selected activations `[..., feature]`. Not serializable."""
    return Edit(parse(site), "custom", None, Where(**where), function=function)


def flatten(edits: Edit | Iterable[Edit | Iterable[Edit]] | None) -> list[Edit]:
    """Edits given singly, in a list, or in nested lists (as `AttentionKnockout` returns) as one list.

    Raises:
        BadInput: something that is not an edit.
    """
    if edits is None:
        return []
    if isinstance(edits, Edit):
        return [edits]
    if isinstance(edits, (str, Tensor)) or not isinstance(edits, Iterable):
        raise BadInput(f"edits {edits!r}", "they are not Edits", "use Patch, Ablate, Add ... from mechanome")
    flat: list[Edit] = []
    for item in edits:
        if isinstance(item, Edit):
            flat.append(item)
        elif isinstance(item, Iterable) and not isinstance(item, (str, Tensor)):
            flat += flatten(item)
        else:
            raise BadInput(f"edit {item!r}", "it is not an Edit", "use Patch, Ablate, Add ... from mechanome")
    return flat
