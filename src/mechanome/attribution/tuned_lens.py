"""Tuned lens: one affine map per layer into the last layer's coordinates, before the logit lens reads it.

Early layers write in coordinates of their own, which the unembedding misreads. A translator `x + x W + b`, fitted so
that what is read comes closest to what the model finally says, corrects that (Belrose et al. 2023). It remains a
reading: it shows what can be decoded by an affine map, not what later layers use. `fit_tuned_lens` makes one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor

from mechanome.core import BadInput, CorruptFile, Interval, Table, UnknownSite, nearest, read_tensors, write_tensors
from mechanome.engine import Model, Site, parse

_FORMAT, _VERSION = "tuned-lens", 1


@dataclass(frozen=True)
class Translator:
    """One layer's map, `x + x W + b`.

    Args:
        factors: `(W [d_model, d_model],)`, or `(down [d_model, rank], up [rank, d_model])` whose product is W.
        bias: `[d_model]`.
    """

    factors: tuple[Tensor, ...]
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Translate streams `[..., d_model]`; computed in float32, returned in the streams' own type."""
        y = wide = x.float()
        for factor in self.factors:
            y = y @ factor.to(y)
        return (wide + y + self.bias.to(wide)).to(x)


@dataclass(frozen=True)
class Quality:
    """How far a layer's reading is from the final prediction: KL(final || read) in nats, averaged over tokens.

    Args:
        tuned: of the tuned lens, on text it was not fitted on. plain: of the logit lens, on the same tokens.
        fitted: of the tuned lens, on text it was fitted on.
    """

    tuned: Interval
    plain: Interval
    fitted: float


@dataclass(frozen=True)
class TunedLens:
    """Translators of one model's layers; give it to `logit_lens(..., translate=lens)`.

    Attributes:
        model_id, model_sha256: the model it was fitted on.
        translators: by site; the last layer needs none.
        last: the site whose stream is the model's own prediction.
        quality: by site.
        settings: how it was fitted.
    """

    model_id: str
    model_sha256: str
    last: Site
    translators: Mapping[Site, Translator] = field(repr=False)
    quality: Mapping[Site, Quality] = field(repr=False)
    settings: Mapping[str, Any] = field(repr=False)

    def __call__(self, site: str | Site, stream: Tensor) -> Tensor:
        """A site's stream `[..., d_model]` in the last layer's coordinates.

        Raises:
            UnknownSite: a site without a translator.
        """
        same = _after(parse(site))
        if same == self.last:
            return stream
        if same not in self.translators:
            names = [str(s) for s in (*self.translators, self.last)]
            raise UnknownSite(f"a tuned lens at {site}", "it has no translator for it", nearest(str(site), names))
        return self.translators[same](stream)

    def check(self, model: Model) -> None:
        """Refuse another model than the one it was fitted on.

        Raises:
            BadInput: another one.
        """
        name, digest = identity(model)
        if digest != self.model_sha256:
            raise BadInput(
                f"a tuned lens of {self.model_id} ({self.model_sha256[:12]})",
                f"the model is {name} ({digest[:12]})",
                "fit one on this model: fit_tuned_lens(model, text)",
            )

    def table(self) -> Table:
        """KL to the final prediction by site, beside the logit lens's."""
        rows = [
            (str(s), q.tuned.estimate, f"{q.tuned.lo:.3g} to {q.tuned.hi:.3g}", q.fitted, q.plain.estimate)
            for s, q in self.quality.items()
        ]
        columns = ("site", "tuned lens", "95 %", "on fitted text", "logit lens")
        n = next((q.tuned.n for q in self.quality.values()), 0)
        return Table(columns, rows, f"KL to the final prediction in nats, {n} held-out pieces of text")

    def _repr_html_(self) -> str:
        return self.table().html()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file, with everything else as JSON in its header."""
        tensors: dict[str, Tensor] = {}
        sites: list[str] = []
        for site, translator in self.translators.items():
            sites.append(str(site))
            tensors |= {f"{site}/factor{i}": factor for i, factor in enumerate(translator.factors)}
            tensors[f"{site}/bias"] = translator.bias
        meta = {
            "model_id": self.model_id,
            "model_sha256": self.model_sha256,
            "last": str(self.last),
            "sites": sites,
            "settings": dict(self.settings),
            "quality": {str(s): [vars(q.tuned), vars(q.plain), q.fitted] for s, q in self.quality.items()},
        }
        write_tensors(path, tensors, format=_FORMAT, version=_VERSION, meta=meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str], model: Model) -> TunedLens:
        """Read a file of `save`.

        Raises:
            BadInput: no such file, or a lens of another model. CorruptFile: damaged, or another kind of file.
            NotFinite: NaN in it.
        """
        content = read_tensors(path, format=_FORMAT, version=_VERSION, finite=True, device=model.device)
        # Copies: tensors mapped from the file lie at other alignments, where products round differently.
        meta, tensors = content.meta, {name: tensor.clone() for name, tensor in content.tensors.items()}
        try:
            translators = {
                parse(s): Translator(
                    tuple(tensors[n] for n in (f"{s}/factor0", f"{s}/factor1") if n in tensors), tensors[f"{s}/bias"]
                )
                for s in meta["sites"]
            }
            quality = {parse(s): Quality(Interval(**t), Interval(**p), f) for s, (t, p, f) in meta["quality"].items()}
            last = parse(meta["last"])
            lens = cls(meta["model_id"], meta["model_sha256"], last, translators, quality, meta["settings"])
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptFile(str(path), f"it misses a part ({error})", "fit the lens again") from error
        lens.check(model)
        return lens


def identity(model: Model) -> tuple[str, str]:
    """A model's id and hash: of the file it came from, or, for a module given by the user, of its parameters."""
    if model.source is not None:
        return model.source.id, model.source.sha256
    digest = sha256()
    for name, parameter in model.module.named_parameters():
        digest.update(f"{name}{list(parameter.shape)}{parameter.dtype}".encode())
        digest.update(parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return model.name, digest.hexdigest()


def _after(site: Site) -> Site:
    """The stream that enters a block is what the block before left."""
    if site.point == "resid_pre" and site.layer:
        return Site("resid_post", site.layer - 1, tower=site.tower)
    return site
