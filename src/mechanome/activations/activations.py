"""`Activations`: what a model computed at some sites, one row per token, with labels that say which token.

A row is never bare: it knows the sequence and position it comes from, so that it can be found again, filtered (by role,
by step) and kept apart from the rows of other sequences when data is split.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mechanome.core.errors import BadInput, ShapeMismatch, UnknownName, UnknownSite, nearest
from mechanome.engine.plain import number

ROLES = ("text", "template", "system", "user", "assistant", "tool")
"""What the label "role" counts: plain text, what a chat template wrote around messages, and who a message is from."""


@dataclass(frozen=True)
class Activations:
    """Labelled rows of activations.

    Args:
        values: per site name, `[row, d]`; sites may have different d.
        labels: per label, `[row]`. Where known: "seq" (which sequence), "pos" (position in it), "token" (its id) and
            "doc" (which text), int64; "role" (an index of `ROLES`), int8; "step" of a generation, int64; "weight" and
            whatever else belongs to a row.

    Raises:
        BadInput: no site, or no mapping of sites.
        ShapeMismatch: a value that is no `[row, d]`, a label that is no `[row]`, or different numbers of rows.
    """

    values: Mapping[str, Tensor] = field(repr=False)
    labels: Mapping[str, Tensor] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for what, given in (("activations", self.values), ("labels", self.labels)):
            if not isinstance(given, Mapping):
                raise BadInput(what, f"a {type(given).__name__} has no names", "give a mapping of names to tensors")
        if not self.values:
            raise BadInput("activations", "they have no site", "give values as {'resid_post.5': tensor}")
        rows = None
        for kind, tensors, dims in (("site", self.values, 2), ("label", self.labels, 1)):
            for name, x in tensors.items():
                if not isinstance(x, Tensor) or x.dim() != dims:
                    shape = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
                    axes = "[row, d]" if dims == 2 else "[row]"
                    raise ShapeMismatch(f"{kind} '{name}' of {shape}", f"it must be a tensor {axes}", "reshape it")
                if not x.shape[-1] and dims == 2:
                    raise ShapeMismatch(f"{kind} '{name}' of {list(x.shape)}", "it has no width", "give at least one")
                rows = len(x) if rows is None else rows
                if len(x) != rows:
                    raise ShapeMismatch(f"{kind} '{name}' of {len(x)} rows", f"others have {rows}", "align the rows")

    @classmethod
    def cat(cls, parts: Iterable[Activations]) -> Activations:
        """Parts one after another. Labels that not every part has are left out.

        Raises:
            BadInput: no part. UnknownSite: parts of different sites. ShapeMismatch: of different widths.
        """
        parts = list(parts)
        if not parts:
            raise BadInput("activations", "there is no part to join", "give at least one")
        first = parts[0]
        for part in parts[1:]:
            if set(part.sites) != set(first.sites):
                raise UnknownSite(f"sites {part.sites}", f"other parts have {first.sites}", "join parts of equal sites")
            if part.widths != first.widths:
                raise ShapeMismatch(f"widths {part.widths}", f"other parts have {first.widths}", "join parts alike")
        shared = [name for name in first.labels if all(name in part.labels for part in parts)]
        return cls(
            {site: torch.cat([part.values[site] for part in parts]) for site in first.sites},
            {name: torch.cat([part.labels[name] for part in parts]) for name in shared},
        )

    @property
    def rows(self) -> int:
        """How many."""
        return len(next(iter(self.values.values())))

    def __len__(self) -> int:
        return self.rows

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of sites, in their order."""
        return tuple(self.values)

    @property
    def widths(self) -> dict[str, int]:
        """Per site, d."""
        return {site: x.shape[1] for site, x in self.values.items()}

    @property
    def x(self) -> Tensor:
        """The values of the only site, `[row, d]`.

        Raises:
            BadInput: several sites.
        """
        if len(self.values) > 1:
            raise BadInput("x", f"there are several sites: {', '.join(self.sites)}", "take one as activations[site]")
        return next(iter(self.values.values()))

    def __getitem__(self, site: Any) -> Tensor:
        """The values of a site, `[row, d]`.

        Raises:
            UnknownSite: not among these.
        """
        if str(site) not in self.values:
            raise UnknownSite(f"site '{site}'", "these activations do not have it", nearest(str(site), self.sites))
        return self.values[str(site)]

    def take(self, rows: Tensor | slice) -> Activations:
        """Some rows: int64 indices in the wanted order, a boolean mask `[row]`, or a slice.

        Raises:
            BadInput: rows that do not exist, or a mask of another length.
        """
        try:
            values = {site: x[rows] for site, x in self.values.items()}
        except (IndexError, TypeError) as error:
            why = f"there are {self.rows} ({error})"
            raise BadInput("rows to take", why, "give int64 indices, a mask of all rows, or a slice") from error
        return Activations(values, {name: x[rows] for name, x in self.labels.items()})

    def only(self, *sites: Any) -> Activations:
        """Some sites, in the wanted order.

        Raises:
            UnknownSite: not among these.
        """
        return Activations({str(site): self[site] for site in sites}, self.labels)

    def where(self, **label: Any) -> Activations:
        """The rows whose labels have these values; a role may be given by its name, several values as a list.

        Raises:
            UnknownName: a label or role that is not there. BadInput: a value that is no number.
        """
        keep = torch.ones(self.rows, dtype=torch.bool)
        for name, wanted in label.items():
            if name not in self.labels:
                raise UnknownName(f"label '{name}'", "these rows do not have it", nearest(name, self.labels))
            values = [_value(name, v) for v in (wanted if isinstance(wanted, (list, tuple, set, range)) else [wanted])]
            column = self.labels[name].cpu()
            column = column.to(torch.int8) if column.dtype == torch.bool else column  # isin takes no booleans
            keep &= torch.isin(column, torch.tensor(values, dtype=column.dtype))
        return self.take(keep)

    def to(self, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> Activations:
        """Values in another dtype or on another device; labels keep their dtype."""
        return Activations(
            {site: x.to(device=device, dtype=dtype) for site, x in self.values.items()},
            {name: x.to(device=device) for name, x in self.labels.items()},
        )

    def __repr__(self) -> str:
        sites = ", ".join(f"{site} [{self.rows}, {d}]" for site, d in self.widths.items())
        return f"Activations({sites}; labels: {', '.join(self.labels) or 'none'})"


def _value(label: str, value: Any) -> Any:
    if label == "role" and isinstance(value, str):
        if value not in ROLES:
            raise UnknownName(f"role '{value}'", "there is no such role", nearest(value, ROLES))
        return ROLES.index(value)
    return value if isinstance(value, bool) else number(value, f"label '{label}'", "give its values as numbers")
