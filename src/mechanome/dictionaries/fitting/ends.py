"""Where a dictionary reads and writes in a stream, and its rows there, normalized once for all that share them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mechanome.activations import Activations, ActivationStream
from mechanome.core.errors import BadInput, NotFinite, ShapeMismatch, TooFewRows, UnknownSite, nearest
from mechanome.dictionaries.architectures import Crosscoder, Recipe, Transcoder
from mechanome.dictionaries.norm import Affine
from mechanome.engine.asked import names

Sites = tuple[str, ...]
Asked = str | Sequence[str] | None


@dataclass(frozen=True)
class Ends:
    """The sites that a dictionary reads and writes, in order."""

    read: Sites
    written: Sites

    @classmethod
    def of(cls, recipe: Recipe, stream: ActivationStream, site: Asked, site_in: Asked, site_out: Asked) -> Ends:
        """What a recipe uses of a stream.

        Raises:
            UnknownSite: a site that the stream does not have.
            BadInput: sites are needed and not given, or given and not used.
        """
        if isinstance(recipe, Transcoder):
            if site is not None or site_in is None or site_out is None:
                raise BadInput(recipe.architecture, "it reads one site and writes another", "give site_in and site_out")
            ends = cls(_sites(site_in, stream), _sites(site_out, stream))
        elif site_in is not None or site_out is not None:
            raise BadInput(recipe.architecture, "it writes where it reads", "give site, or wrap it in Transcoder")
        else:
            sites = _sites(stream.sites if site is None else site, stream)
            ends = cls(sites, sites)
        one = 1 if not isinstance(recipe, Crosscoder) else max(2, len(ends.read))
        if len(ends.read) != one or (len(ends.written) != one):
            wanted = "several sites" if isinstance(recipe, Crosscoder) else "one site"
            why = f"it is for {wanted}, here are {', '.join(ends.read)}"
            raise BadInput(recipe.architecture, why, f"choose among {', '.join(stream.sites)}")
        return ends

    def widths(self, stream: ActivationStream) -> tuple[int, int]:
        """What it reads and writes, all sites together."""
        read, written = (sum(stream.widths[site] for site in sites) for sites in self.both)
        return read, written

    @property
    def both(self) -> tuple[Sites, Sites]:
        """Read and written."""
        return self.read, self.written


def first_rows(stream: ActivationStream, rows: int) -> tuple[Activations, int]:
    """So many rows (or all there are) from a stream's present position, to which it goes back; and the size of a batch.

    Raises:
        TooFewRows: there are none.
    """
    here, parts, found = stream.state(), [], 0
    for batch in stream:
        parts.append(batch)
        found += batch.rows
        if found >= rows:
            break
    stream.seek(here)
    if not found:
        raise TooFewRows("the stream", "it has no rows", "check its source, or go back to its start")
    return Activations.cat(parts).take(slice(0, rows)), parts[0].rows


def normalized(batch: Activations, norms: Mapping[Sites, Affine], widths: Mapping[str, int]) -> dict[Sites, Tensor]:
    """Rows `[row, d]` of each tuple of sites, side by side, in the dictionaries' space.

    Raises:
        ShapeMismatch: a site of another width than the stream says.
        NotFinite: NaN or infinity among the rows.
    """
    for site in {site for sites in norms for site in sites}:
        x = batch[site]
        if x.shape[1] != widths[site]:
            raise ShapeMismatch(f"a batch of {site}", f"width {x.shape[1]}, the stream says {widths[site]}", "mend it")
        if not bool(torch.isfinite(x.sum())) and not bool(torch.isfinite(x).all()):
            bad = int((~torch.isfinite(x)).any(1).nonzero()[0])
            raise NotFinite(f"a batch of {site}", f"NaN or infinity, first in row {bad}", "drop those rows")
    return {sites: norm(joined(batch, sites)) for sites, norm in norms.items()}


def joined(batch: Activations, sites: Iterable[str]) -> Tensor:
    """Sites side by side, float32 `[row, d]`."""
    parts = [batch[site].float() for site in sites]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _sites(asked: Asked, stream: ActivationStream) -> Sites:
    sites = () if asked is None else tuple(names("site", asked))
    for site in sites:
        if site not in stream.sites:
            raise UnknownSite(f"site {site!r}", "the stream does not have it", nearest(site, stream.sites))
    return sites
