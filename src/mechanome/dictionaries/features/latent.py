"""A latent as a handle: steer along it, or set, scale, clamp and ablate its activation with everything else kept.

`steer` adds the latent's atom and works on any dictionary. The others read the activation at the site, change the
latent's value and add the difference that this makes to the reconstruction, so what the dictionary misses (its error)
and all other latents stay exactly as they were.

    love = Latent(dictionary, 812, maximum=12.3)
    model.generate("I think that you", edits=love.steer(2.0))              # twice its largest activation, everywhere
    model.run(text, edits=love.set(5.0, unit="value", pos="last"))
    model.run(text, edits=love.ablate(phase="decode"))

Strengths are multiples of the latent's largest activation seen (a feature card knows it), or plain values with
`unit="value"`. A strength of 0 changes no bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from mechanome.core import BadInput, NotServed
from mechanome.dictionaries.capabilities import Interacting
from mechanome.dictionaries.dictionary import Dictionary
from mechanome.engine import Basis, Edit, Site, Where
from mechanome.engine.asked import one_of
from mechanome.engine.plain import integers, number
from mechanome.engine.site import parse

if TYPE_CHECKING:
    from mechanome.engine.edits import Op

Unit = Literal["max", "value"]


@dataclass(frozen=True, eq=False)
class Latent:
    """One latent of a dictionary, or several that are changed together.

    Args:
        dictionary: whose. index: which latent, or which.
        site: where; None for the site that the dictionary writes.
        maximum: the largest activation seen, one a latent; needed for strengths in its multiples.

    Raises:
        BadInput: a latent that does not exist, a dictionary of several sites without `site`, a maximum that is not
            positive or not one a latent.
    """

    dictionary: Dictionary
    index: int | Sequence[int]
    site: Site = field(default=None)  # type: ignore[assignment]  # taken from the dictionary below
    maximum: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        latents = integers([self.index] if isinstance(self.index, int) else self.index, "latents")
        spec = self.dictionary.spec
        wrong = [i for i in latents if not 0 <= i < spec.width]
        if wrong or not latents or len(set(latents)) != len(latents):
            why = f"the dictionary has latents 0 to {spec.width - 1}"
            raise BadInput(f"latents {list(latents)[:5]}", why, "name different ones of these")
        if self.site is None and len(spec.sites_out) != 1:
            raise BadInput("a latent", f"its dictionary writes {list(spec.sites_out)}", "give site=")
        object.__setattr__(self, "index", latents)
        object.__setattr__(self, "site", parse(self.site or spec.sites_out[0]))
        if self.maximum is not None:
            given = [self.maximum] if isinstance(self.maximum, (int, float)) else list(self.maximum)
            known = tuple(number(m, "maximum of a latent") for m in given)
            if len(known) != len(latents) or min(known) <= 0:
                why = f"{len(known)} for {len(latents)} latents, the smallest {min(known, default=0)}"
                raise BadInput("maximum", why, "give one above 0 for each latent")
            object.__setattr__(self, "maximum", known)

    @property
    def latents(self) -> tuple[int, ...]:
        """Which latents."""
        return tuple(self.index)  # type: ignore[arg-type]

    @property
    def atoms(self) -> Tensor:
        """What each adds to the site for an activation of 1, `[latent, d]`."""
        name = str(self.site)
        site = name if name in self.dictionary.spec.sites_out else None
        return self.dictionary.atoms(site).detach()[list(self.latents)]

    def steer(self, strength: float = 1.0, *, unit: Unit = "max", **where: Any) -> Edit:
        """Add the atom (the sum of the atoms), as if the latent were that much more active.

        Args:
            strength: in the unit; negative works against the latent, 0 changes no bit.
            unit: "max" counts in the largest activation seen, "value" is the activation itself.
            where: as in `Where` (`pos=`, `rows=`, `phase=`, `steps=`).

        Raises:
            BadInput: multiples of a maximum that is not known.
        """
        vector = (self._amounts(strength, unit)[:, None] * self.atoms).sum(0)
        # Adding -0.0 leaves every number as it is, -0.0 included; adding 0.0 does not.
        return Edit(self.site, "add", torch.where(vector == 0, -0.0, vector), Where(**where))

    def set(self, level: float, *, unit: Unit = "max", **where: Any) -> Edit:
        """Replace the activation; arguments and errors as `steer`, and those of `scale`."""
        return self._edit("set", self._amounts(level, unit), where)

    def clamp(self, lo: float | None = None, hi: float | None = None, *, unit: Unit = "max", **where: Any) -> Edit:
        """Keep the activation between two levels; arguments and errors as `set`.

        Raises:
            BadInput: several latents whose maxima differ, for levels in their multiples.
        """
        ends = [None if end is None else self._amounts(end, unit).unique() for end in (lo, hi)]
        if any(end is not None and len(end) > 1 for end in ends):
            raise BadInput("a clamp of several latents", "their maxima differ", "clamp each, or use unit='value'")
        return self._edit("clamp", tuple(None if end is None else float(end) for end in ends), where)

    def scale(self, factor: float, **where: Any) -> Edit:
        """Multiply the activation.

        Raises:
            NotServed: a dictionary whose latents act in pairs, or that writes elsewhere than it reads.
        """
        return self._edit("scale", number(factor, "factor of a latent"), where)

    def ablate(self, **where: Any) -> Edit:
        """Set the activation to 0; errors as `scale`."""
        return self._edit("ablate", 0.0, where)

    def basis(self) -> Basis:
        """The activations as coordinates, for own edits and circuits.

        Raises:
            NotServed: as `scale`.
        """
        spec = self.dictionary.spec
        if isinstance(self.dictionary, Interacting):
            why = "its latents act in pairs, so what one of them adds depends on the others"
            raise NotServed("the activation of a latent of this dictionary", why, "use steer, which adds its atom")
        if spec.sites_in != spec.sites_out:
            why = f"it is read at {', '.join(spec.sites_in)} and written at {', '.join(spec.sites_out)}"
            raise NotServed("the activation of this latent", why, "use steer, which adds its atom")
        return self.dictionary.basis(list(self.latents))

    def _edit(self, op: Op, value: Any, where: dict[str, Any]) -> Edit:
        return Edit(self.site, op, value, Where(**where), self.basis())

    def _amounts(self, strength: float, unit: Unit) -> Tensor:
        """Activations, one a latent."""
        one_of("unit", unit, ("max", "value"))
        amount = number(strength, "strength of a latent")
        if unit == "value":
            return torch.full((len(self.latents),), amount)
        if self.maximum is None:
            raise BadInput("a strength in multiples", "the latent's largest activation is not known",
                           "give maximum=, take the latent from a feature card, or use unit='value'")  # fmt: skip
        return amount * torch.tensor(self.maximum)

    def __repr__(self) -> str:
        which = ", ".join(map(str, self.latents[:5])) + (" ..." if len(self.latents) > 5 else "")
        return f"Latent({which} of {self.dictionary.spec.width} at {self.site})"
