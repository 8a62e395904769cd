"""Circuits of channels: what a convolutional network's channels do for a class, and the network without some of them.

A channel is one feature map of a site, such as the output of a stage. Its score on an image is one number a channel; a
circuit keeps some channels of every site and sets the others to zero, all in one pass of the unmodified network.

| scorer | score of a channel on an image | source |
|---|---|---|
| `activation` | mean size of the feature map | paper 26 |
| `relevance` | feature map times gradient of the class's logit, summed over places | paper 26 |
| `rank` | rank of its activation among the channels of its site, 1 for the strongest, 0 for the weakest | paper 26 |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mechanome.circuits.effects import Components, Effects
from mechanome.core import NotServed, ShapeMismatch
from mechanome.engine import Edit, Model, Site
from mechanome.engine.asked import count, one_of

_ROWS = 256
"""Images that run at once."""


@dataclass(frozen=True, eq=False)
class Channels:
    """The channels of several sites of a model, laid end to end.

    Args:
        model: an opened network whose logits are `batch class`.
        sites: where, in the order of the network.
        widths: channels of each.
    """

    model: Model
    sites: tuple[Site, ...]
    widths: tuple[int, ...]

    @classmethod
    def of(cls, model: Model, sites: str | Site | Sequence[str | Site], example: Tensor) -> Channels:
        """The channels of sites, whose widths are seen by running an image.

        Args:
            model: an opened network.
            sites: sites with channels: `path:` sites of `batch channel height width`, or named ones whose last axis are
                channels, such as `resid_post.2`.
            example: images `[image, color, height, width]`, of which the first is run.

        Raises:
            UnknownSite, NotServed: a site that the model does not have or serve.
        """
        found = tuple(model.expand(sites))
        if not found:
            raise NotServed("circuits of channels", "no site was named", "name the outputs of stages")
        run = model.run({"pixel_values": example[:1]}, found, logits=False)
        return cls(model, found, tuple(_channels_first(run.captured[s]).shape[1] for s in found))

    @cached_property
    def groups(self) -> Tensor:
        """The number of each channel's site, `[channel]`."""
        return torch.arange(len(self.sites)).repeat_interleave(torch.tensor(self.widths))

    @cached_property
    def components(self) -> Components:
        """The channels with their names, `path:stages.2 c17`."""
        names = tuple(f"{site} c{i}" for site, width in zip(self.sites, self.widths) for i in range(width))
        return Components(torch.ones(len(names), dtype=torch.bool), None, names)


def channel_scores(
    channels: Channels, images: Tensor, labels: Tensor, scorer: str = "relevance", *, batch: int = _ROWS
) -> Effects:
    """Scores of every channel on every image.

    Args:
        channels: of a model.
        images: `[image, color, height, width]`, as the model takes them.
        labels: the class of each image, `[image]`; only relevance depends on it.
        scorer: a name of `SCORERS`.
        batch: images at once.

    Returns:
        `Effects` with `values [image, channel]`.

    Raises:
        BadInput: another scorer. ShapeMismatch: not one label an image. NotFinite: scores that are NaN or infinite.
    """
    one_of("scorer", scorer, SCORERS)
    if labels.shape != images.shape[:1]:
        raise ShapeMismatch(f"labels of shape {list(labels.shape)}", f"there are {len(images)} images", "one each")
    pieces = zip(images.split(count("batch", batch)), labels.split(batch))
    values = torch.cat([torch.cat(SCORERS[scorer](channels, x, y), 1) for x, y in pieces])
    return Effects(values.cpu(), channels.components)


def prune_channels(channels: Channels, images: Tensor, kept: Tensor, *, batch: int = _ROWS) -> Tensor:
    """Logits of the network with the channels outside each circuit set to zero.

    Args:
        channels: of a model.
        images: `[image, color, height, width]`.
        kept: which channels each circuit keeps, `[circuit, channel]` of booleans.
        batch: images times circuits at once.

    Returns:
        `[circuit, image, class]` float32 on the CPU.

    Raises:
        ShapeMismatch: circuits of other channels. NotServed: a site that cannot be edited.
    """
    if kept.dim() != 2 or kept.shape[1] != len(channels.components) or kept.dtype != torch.bool:
        raise ShapeMismatch(
            f"circuits of {kept.dtype} {list(kept.shape)}",
            f"there are {len(channels.components)} channels",
            "give booleans [circuit, channel]",
        )
    rows = torch.cartesian_prod(torch.arange(len(kept)), torch.arange(len(images)))
    found = []
    for piece in rows.split(count("batch", batch)):
        masks = kept[piece[:, 0]].to(images).split(channels.widths, 1)
        edits = [Edit(site, "scale", _as_value(site, mask)) for site, mask in zip(channels.sites, masks)]
        logits = channels.model.run({"pixel_values": images[piece[:, 1]]}, edits=edits).logits
        assert logits is not None
        found.append(logits.float().cpu())
    return torch.cat(found).unflatten(0, (len(kept), len(images)))


def _as_value(site: Site, mask: Tensor) -> Tensor:
    """A mask `[row, channel]` as an edit takes it: `path:` sites have channels second, named ones last."""
    return mask[:, :, None, None] if site.is_path else mask


def _channels_first(x: Tensor) -> Tensor:
    """A site's tensor as `[row, channel, place]`: of four axes the second are channels, else the last."""
    return x.flatten(2) if x.dim() == 4 else x.movedim(-1, 1).flatten(2) if x.dim() > 2 else x[:, :, None]


def _activation(channels: Channels, images: Tensor, labels: Tensor) -> list[Tensor]:
    run = channels.model.run({"pixel_values": images}, channels.sites, logits=False)
    return [_channels_first(run.captured[site]).abs().mean(2) for site in channels.sites]


def _relevance(channels: Channels, images: Tensor, labels: Tensor) -> list[Tensor]:
    def logit(logits: Tensor, rows: Tensor) -> Tensor:
        return logits.gather(1, labels.to(logits.device)[rows][:, None])[:, 0]

    found = channels.model.grad(logit, {"pixel_values": images}, channels.sites)
    parts = [_channels_first(found.run.captured[site] * found.sites[site]) for site in channels.sites]
    return [part.sum(2) for part in parts]


def _rank(channels: Channels, images: Tensor, labels: Tensor) -> list[Tensor]:
    found = []
    for values in _activation(channels, images, labels):
        places = values.argsort(dim=1, stable=True).argsort(dim=1, stable=True)
        found.append(places.to(values) / max(1, values.shape[1] - 1))
    return found


SCORERS: dict[str, Callable[[Channels, Tensor, Tensor], list[Any]]] = {
    "activation": _activation,
    "relevance": _relevance,
    "rank": _rank,
}
"""How channels are scored: from images and labels to `[image, channel]` of each site."""
