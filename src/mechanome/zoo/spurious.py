"""A small residual network that learned a spurious cue: trained on shapes whose grounds usually go with their class."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor
from torch.nn import functional

from mechanome.core import Parts, fit, seeded
from mechanome.zoo.kept import kept_weights
from mechanome.zoo.resnet import SmallResNet
from mechanome.zoo.shapes import CLASSES, Shapes, draw_shapes

_VERSION = 1  # raised when images or training change, so that older weights are not believed


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Args:
        images: training images. agree: how often the ground goes with the class.
        epochs, batch, rate: of AdamW with one cycle.
    """

    images: int = 6000
    agree: float = 0.8
    epochs: int = 6
    batch: int = 64
    rate: float = 4e-3


def spurious_resnet(seed: int = 0, recipe: Recipe | None = None, *, quiet: bool = False) -> SmallResNet:
    """The network of a seed, in eval mode; trained on first use (about half a minute), then read from the cache.

    Args:
        seed: of images, initial weights and order.
        recipe: how it is trained; None for the usual one.
        quiet: no progress.
    """
    chosen = recipe or Recipe()
    settings = {**asdict(chosen), "seed": seed, "version": _VERSION}
    model = SmallResNet(len(CLASSES))
    model.load_state_dict(
        kept_weights("spurious-resnet", settings, lambda: train_on_shapes(seed, chosen, quiet=quiet).state_dict())
    )
    return model.eval()


def train_on_shapes(seed: int, recipe: Recipe | None = None, *, quiet: bool = False) -> SmallResNet:
    """Train the network of a seed; nothing is read from or written to the cache.

    Args:
        seed: of images, initial weights and order. recipe: None for the usual one. quiet: no progress.
    """
    chosen = recipe or Recipe()
    data = draw_shapes(chosen.images, seed, agree=chosen.agree)
    with seeded(seed):
        model = SmallResNet(len(CLASSES))
    each = -(-len(data) // chosen.batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=chosen.rate, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, chosen.rate, total_steps=chosen.epochs * each)

    def step(done: int) -> dict[str, Tensor]:
        epoch, place = divmod(done, each)
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(1000 * seed + epoch))
        rows = order[place * chosen.batch : (place + 1) * chosen.batch]
        loss = functional.cross_entropy(model(data.images[rows]), data.labels[rows], label_smoothing=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return {"loss": loss}

    model.train()
    fit(
        step, Parts(model=model, optimizer=optimizer), steps=chosen.epochs * each, seed=seed,
        what="training on shapes", quiet=quiet,
    )  # fmt: skip
    return model.eval()


def accuracy(model: SmallResNet, data: Shapes, batch: int = 500) -> float:
    """Share of images whose class has the largest logit."""
    with torch.no_grad():
        said = torch.cat([model(images).argmax(1) for images in data.images.split(batch)])
    return float((said == data.labels).double().mean())
