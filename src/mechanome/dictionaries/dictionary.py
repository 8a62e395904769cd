"""Dictionaries: activations as sparse sums of directions.

A :class:`Dictionary` encodes rows of activations into sparse codes and decodes codes back. What it does in between is
its own affair (see :mod:`mechanome.dictionaries.capabilities` for what some can do besides). Its `norm` maps
activations to the space its weights live in and is part of it: what goes in or comes out is in raw activation space.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from mechanome.core.errors import NotFinite, ShapeMismatch, UnknownSite, nearest
from mechanome.dictionaries.codes import SparseCodes
from mechanome.dictionaries.norm import Affine
from mechanome.dictionaries.spec import DictionarySpec

if TYPE_CHECKING:
    from mechanome.dictionaries.basis import LatentBasis

CHUNK = 1 << 25
"""Scores computed at once when encoding: 128 MB of float32."""


class Dictionary(nn.Module):
    """Base of all dictionaries.

    Args:
        spec: what it is.
        norm: from activations to its own space; None leaves them as they are.
        norm_out: the same for what it writes; None for that of the input.

    Raises:
        ShapeMismatch: a norm of another width.
    """

    def __init__(self, spec: DictionarySpec, norm: Affine | None = None, norm_out: Affine | None = None) -> None:
        super().__init__()
        self.spec = spec
        norm = norm or Affine.none(spec.d_in)
        self.set_norms(norm, norm_out or (norm if spec.d_out == spec.d_in else Affine.none(spec.d_out)))

    def set_norms(self, norm: Affine, norm_out: Affine) -> None:
        """Replace both norms; weights are not touched (see :mod:`mechanome.dictionaries.folding`).

        Raises:
            ShapeMismatch: a norm of another width.
        """
        self._kinds = {"norm": norm.kind, "norm_out": norm_out.kind}
        for end, affine, d in (("norm", norm, self.spec.d_in), ("norm_out", norm_out, self.spec.d_out)):
            if affine.shift.shape != (d,):
                why = f"it is for width {affine.shift.shape[-1]}, the dictionary has {d}"
                raise ShapeMismatch(end, why, "estimate it on activations of the same site")
            self.register_buffer(f"{end}_shift", affine.shift.clone())
            self.register_buffer(f"{end}_scale", affine.scale.clone())

    @property
    def norm(self) -> Affine:
        """From activations to the dictionary's space."""
        return Affine(self.get_buffer("norm_shift"), self.get_buffer("norm_scale"), self._kinds["norm"])

    @property
    def norm_out(self) -> Affine:
        """The same for what it writes."""
        return Affine(self.get_buffer("norm_out_shift"), self.get_buffer("norm_out_scale"), self._kinds["norm_out"])

    def encode(self, x: Tensor) -> SparseCodes:
        """Codes of activations `[..., d_in]`, a row for each; values in the dictionary's space, exact float32.

        Differentiable in `x` through the values.

        Raises:
            ShapeMismatch: another width.
            NotFinite: NaN or infinity among the activations.
        """
        rows = self.rows_of(x)
        if not bool(torch.isfinite(rows).all()):
            bad = int((~torch.isfinite(rows)).any(1).nonzero()[0])
            raise NotFinite("activations", f"NaN or infinity, first in row {bad}", "drop those rows")
        pieces = rows.split(max(1, CHUNK // self.spec.width)) if len(rows) else (rows,)
        return SparseCodes.cat([self.encode_normed(self.norm(piece)) for piece in pieces])

    def decode(self, codes: SparseCodes, x: Tensor | None = None) -> Tensor:
        """Activations `[row, d_out]` of codes; `x [..., d_in]` where a skip connection reads it.

        Raises:
            ShapeMismatch: codes of another width.
            BadInput: a skip connection, and no `x`.
        """
        if not isinstance(codes, SparseCodes):
            why = f"a {type(codes).__name__} is none"
            raise ShapeMismatch("codes", why, "give what encode returned, or SparseCodes.of_dense(z)")
        if codes.width != self.spec.width:
            why = f"the codes have {codes.width} latents, the dictionary {self.spec.width}"
            raise ShapeMismatch("codes", why, "decode with the dictionary that encoded")
        return self.norm_out.invert(self.decode_normed(codes, None if x is None else self.norm(self.rows_of(x))))

    def forward(self, x: Tensor) -> Tensor:
        """Reconstruction `[..., d_out]` of activations `[..., d_in]`."""
        return self.decode(self.encode(x), x).view(*x.shape[:-1], self.spec.d_out)

    def atoms(self, site: str | None = None) -> Tensor:
        """What each latent adds to the activations when its value is 1, to first order: `[latent, d_out]`, raw space.

        Args:
            site: the part written to one of several sites; None for all, side by side.

        Raises:
            UnknownSite: the dictionary does not write there.
        """
        atoms = self.norm_out.directions(self.directions())
        if site is None or self.spec.sites_out == (site,):
            return atoms
        if site not in self.spec.sites_out:
            raise UnknownSite(site, "the dictionary does not write there", nearest(site, self.spec.sites_out))
        return atoms.split(self.spec.site_widths, dim=1)[self.spec.sites_out.index(site)]

    def basis(self, latents: Sequence[int] | Tensor | None = None) -> LatentBasis:
        """Coordinates of activations for edits and circuits: the values of some latents, or of all."""
        from mechanome.dictionaries.basis import LatentBasis

        return LatentBasis(self, latents)

    def save(self, path: str | Path) -> None:
        """Write a folder, whole or not at all; SAELens loads it too where it has such an architecture.

        Raises:
            BadInput: something is there already.
        """
        from mechanome.dictionaries.formats import write

        write(self, path)

    @staticmethod
    def load(path: str | Path) -> Dictionary:
        """Read a folder written by :meth:`save`; `mechanome.dictionaries.formats.read` reads those of other tools.

        Raises:
            BadInput: no such folder.
            CorruptFile, ShapeMismatch: damaged, or of another format.
        """
        from mechanome.dictionaries.formats import read

        return read(path, "mechanome")

    def rows_of(self, x: Tensor) -> Tensor:
        """Activations `[..., d_in]` as float32 rows `[row, d_in]`."""
        if not isinstance(x, Tensor) or not x.dim() or x.is_complex():
            what = f"a {x.dtype} of shape {list(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise ShapeMismatch("activations", f"{what} has no rows of real numbers", "give a tensor [..., d_in]")
        if x.shape[-1] != self.spec.d_in:
            why = f"they have width {x.shape[-1]}, the dictionary reads {self.spec.d_in}"
            where = f" of {', '.join(self.spec.sites_in)}" if self.spec.sites_in else ""
            raise ShapeMismatch("activations", why, f"give activations{where}")
        return x.reshape(-1, self.spec.d_in).float()

    def encode_normed(self, x: Tensor) -> SparseCodes:
        """Codes of rows `[row, d_in]` in the dictionary's space."""
        raise NotImplementedError

    def decode_normed(self, codes: SparseCodes, x: Tensor | None) -> Tensor:
        """Rows `[row, d_out]` in the dictionary's space."""
        raise NotImplementedError

    def directions(self) -> Tensor:
        """What each latent writes, to first order, in the dictionary's space `[latent, d_out]`."""
        raise NotImplementedError
