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
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, nearest
from mechanome.engine.bases import Basis, Directions
from mechanome.engine.frame import Frame, Positions
from mechanome.engine.site import Site, parse

if TYPE_CHECKING:
    from mechanome.engine.run import Run

Op = Literal["set", "add", "scale", "clamp", "ablate", "custom"]
OPS: tuple[str, ...] = ("set", "add", "scale", "clamp", "ablate", "custom")


@dataclass(frozen=True)
class Where:
    """Where an edit acts; everything left out means everywhere.

    Args:
        pos: positions in real tokens (see `Frame.positions`); for scores and patterns these are queries.
        rows: batch rows.
        phase: "prefill" (the prompt) or "decode" (generated tokens).
        steps: generation steps: step s acts on the position that predicts generated token s (0 is the last prompt
            token); for a module that is called several times in one pass, its calls.
        keys: for scores and patterns: key positions.
    """

    pos: Positions = None
    rows: Sequence[int] | None = None
    phase: Literal["prefill", "decode"] | None = None
    steps: Sequence[int] | None = None
    keys: Positions = None

    def __post_init__(self) -> None:
        if self.phase not in (None, "prefill", "decode"):
            raise BadInput(f"phase '{self.phase}'", "there is no such phase", "use 'prefill' or 'decode'")

    @property
    def everywhere(self) -> bool:
        """Whether nothing is restricted."""
        return self == Where()


@dataclass(frozen=True)
class FromRows:
    """A value taken from other rows of the same batch, at the same site, before this edit.

    Args:
        rows: one donor row per edited row, or a single row for all.
        pos: donor positions, as many per row as are edited; None means the same positions.
    """

    rows: Sequence[int]
    pos: Positions = None


class Donor(Protocol):
    """Where values of another run come from: a `Run`, or one site of a run read from a file."""

    def source(self, site: Site) -> tuple[Tensor, Frame]:
        """The whole tensor `[row, pos, feature...]` of a site, and where its real tokens are."""
        ...


@dataclass(frozen=True)
class FromRun:
    """A value taken from another run, which must have captured the same site at all positions.

    Args:
        run: the donor.
        rows: one donor row per edited row, or a single row for all; None pairs rows by index (or takes the only one).
        pos: donor positions; None means the same positions.
    """

    run: Donor
    rows: Sequence[int] | None = None
    pos: Positions = None


@dataclass(frozen=True)
class Resample:
    """A value taken from a random other row of the batch.

    Args:
        seed: of the random derangement.
    """

    seed: int = 0


Value = float | Tensor | FromRows | FromRun | Resample | tuple[float | None, float | None] | None


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
    """

    site: Site
    op: Op = "set"
    value: Value = None
    where: Where = field(default_factory=Where)
    basis: Basis | None = None
    function: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "site", parse(self.site))
        if self.op not in OPS:
            raise BadInput(f"operation '{self.op}'", "there is no such operation", nearest(self.op, OPS))
        if self.op != "custom" and self.value is None:
            raise BadInput(f"edit of {self.site}", f"'{self.op}' needs a value", "give a number, a tensor or a donor")
        if self.op == "clamp" and not (isinstance(self.value, tuple) and len(self.value) == 2):
            raise BadInput(f"clamp of {self.site}", "its value is a pair (lo, hi)", "use None for an open end")
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


def Patch(
    site: str | Site,
    source: Run | Tensor | FromRows | FromRun | int,
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
        rows: which rows; from_rows: the donor's rows. basis: replace only these coordinates.
    """
    value: Value
    if isinstance(source, (Tensor, FromRows, FromRun)):
        value = source
    elif isinstance(source, int):
        value = FromRows([source], from_pos)
    else:
        value = FromRun(source, from_rows, from_pos)
    return Edit(parse(site), "set", value, Where(pos, rows), basis)


def Ablate(
    site: str | Site,
    by: Literal["zero", "resample"] | float | Tensor | Run = "zero",
    *,
    pos: Positions = None,
    rows: Sequence[int] | None = None,
    basis: Basis | None = None,
    seed: int = 0,
) -> Edit:
    """Remove what a site carries.

    Args:
        site: what to remove. by: "zero"; a mean activation as a tensor; "resample" from other rows; or another run.
        pos, rows, basis: where. seed: of resampling.
    """
    if isinstance(by, str):
        choices: dict[str, Value] = {"zero": 0.0, "resample": Resample(seed)}
        if by not in choices:
            raise BadInput(f"ablation by '{by}'", "there is no such kind", nearest(by, choices))
        value = choices[by]
    elif isinstance(by, (Tensor, float, int)):
        value = by
    else:
        value = FromRun(by)
    return Edit(parse(site), "ablate", value, Where(pos, rows), basis)


def Add(site: str | Site, vector: Tensor | float, scale: float = 1.0, **where: Any) -> Edit:
    """Add a vector, times `scale`; `where` as in `Where` (`pos=`, `rows=`, `phase=`, `steps=`)."""
    return Edit(parse(site), "add", torch.as_tensor(vector) * scale, Where(**where))


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
    if keep_error:
        return Edit(parse(site), "scale", 1.0, Where(**where), dictionary)
    return Custom(site, lambda x: dictionary.decode(dictionary.encode(x)), **where)


def FreezeTo(run: Run, sites: Iterable[str | Site] | None = None, **where: Any) -> list[Edit]:
    """Hold every captured site of a run (or the given ones) at that run's values."""
    chosen = list(run.sites) if sites is None else [parse(s) for s in sites]
    return [Edit(site, "set", FromRun(run), Where(**where)) for site in chosen]


def AttentionKnockout(
    layers: int | Iterable[int],
    src: Positions,
    dst: Positions,
    *,
    heads: Iterable[int] | None = None,
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
    chosen = [layers] if isinstance(layers, int) else list(layers)
    each: Sequence[int | None] = [None] if heads is None else list(heads)
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
    flat: list[Edit] = []
    for item in edits:
        if isinstance(item, Edit):
            flat.append(item)
        elif isinstance(item, Iterable) and not isinstance(item, (str, Tensor)):
            flat += flatten(item)
        else:
            raise BadInput(f"edit {item!r}", "it is not an Edit", "use Patch, Ablate, Add ... from mechanome")
    return flat
