"""Shapes on textured grounds: what the class is, and what only goes along with it, are known.

Each image shows one of eight shapes, in a random color, place, size and slant, before a grating. The shape is the
class. In training the grating is the class's own in four of five images: a spurious cue, as easy to see as the shape is
not. Shifted sets break the cue, or blur or roughen the image.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from mechanome.core import ShapeMismatch
from mechanome.engine.asked import count, one_of

Ground = Literal["usual", "random", "other"]
GROUNDS = ("usual", "random", "other")
"""Which grating an image has: usually its class's own, any, or never its own."""

_Form = Callable[[Tensor, Tensor], Tensor]
_FORMS: dict[str, _Form] = {
    "disk": lambda u, v: u.square() + v.square() < 0.72,
    "square": lambda u, v: torch.maximum(u.abs(), v.abs()) < 0.75,
    "diamond": lambda u, v: u.abs() + v.abs() < 1,
    "triangle": lambda u, v: (v < 0.7) & (v > 1.75 * u.abs() - 0.9),
    "cross": lambda u, v: (torch.minimum(u.abs(), v.abs()) < 0.3) & (torch.maximum(u.abs(), v.abs()) < 0.95),
    "ring": lambda u, v: ((u.square() + v.square()).sqrt() - 0.7).abs() < 0.22,
    "bar": lambda u, v: (u.abs() < 1) & (v.abs() < 0.38),
    "crescent": lambda u, v: (u.square() + v.square() < 0.8) & ((u - 0.5).square() + v.square() > 0.5),
}
"""From coordinates, about -1 to 1, to whether a point is inside."""
CLASSES = tuple(_FORMS)
_WAVES = (0.11, 0.22)
"""Of a grating, in cycles a pixel; four directions each make eight gratings."""
_SIGMA, _NOISE = 1.2, 0.35
"""Of the blur, in pixels; and of the added noise, in units of the images."""


@dataclass(frozen=True)
class Shapes:
    """Images with what is in them.

    Args:
        images: `[image, color, height, width]`, from -1 to 1.
        labels: the shape, an index of `CLASSES`, `[image]`.
        grounds: the grating, that of the class with this index, `[image]`.
    """

    images: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    grounds: Tensor = field(repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def of(self, label: int) -> Shapes:
        """The images of one class."""
        chosen = self.labels == label
        return Shapes(self.images[chosen], self.labels[chosen], self.grounds[chosen])


def draw_shapes(
    n: int, seed: int = 0, *, ground: Ground = "usual", agree: float = 0.8, size: int = 32, balanced: bool = True
) -> Shapes:
    """Draw images.

    Args:
        n: how many.
        seed: of everything that is drawn.
        ground: "usual" (the class's own grating with chance `agree`), "random", or "other" (never the class's own).
        agree: how often the cue is right.
        size: height and width in pixels.
        balanced: classes in turn, so that there are equally many; else drawn.

    Raises:
        BadInput: another ground, or no image.
    """
    one_of("ground", ground, GROUNDS)
    generator = torch.Generator().manual_seed(seed)
    kinds = len(CLASSES)
    labels = torch.arange(count("n", n)) % kinds if balanced else torch.randint(kinds, (n,), generator=generator)
    elsewhere = (labels + torch.randint(1, kinds, (n,), generator=generator)) % kinds
    anywhere = torch.randint(kinds, (n,), generator=generator)
    right = torch.rand(n, generator=generator) < agree
    grounds = {"usual": torch.where(right, labels, elsewhere), "random": anywhere, "other": elsewhere}[ground]
    images = torch.where(
        _inside(labels, size, generator)[:, None],
        _fill(n, size, generator),
        _grating(grounds, size, generator),
    )
    images = images + 0.05 * torch.randn(images.shape, generator=generator)
    return Shapes(2 * images.clamp(0, 1) - 1, labels, grounds)


def shifted_shapes(n: int, seed: int, shift: str) -> Shapes:
    """Images of another distribution than those of training; see `SHIFTS`.

    Raises:
        BadInput: another shift.
    """
    one_of("shift", shift, SHIFTS)
    return SHIFTS[shift](n, seed)


def blurred(images: Tensor, sigma: float = _SIGMA) -> Tensor:
    """Images `[image, color, height, width]` after a Gaussian blur.

    Args:
        images: of any size.
        sigma: in pixels.

    Raises:
        ShapeMismatch: other axes.
    """
    if images.dim() != 4:
        raise ShapeMismatch(f"images of shape {list(images.shape)}", "they have four axes", "add a batch axis")
    reach = math.ceil(3 * sigma)
    line = torch.exp(-torch.arange(-reach, reach + 1, dtype=images.dtype).square() / (2 * sigma**2))
    kernel = (line / line.sum()).expand(images.shape[1], 1, -1)
    padded = functional.pad(images, [reach] * 4, mode="reflect")
    rows = functional.conv2d(padded, kernel[:, :, None], groups=images.shape[1])
    return functional.conv2d(rows, kernel[:, :, :, None], groups=images.shape[1])


def _blur(n: int, seed: int) -> Shapes:
    drawn = draw_shapes(n, seed)
    return Shapes(blurred(drawn.images), drawn.labels, drawn.grounds)


def _roughen(n: int, seed: int) -> Shapes:
    drawn = draw_shapes(n, seed)
    noise = torch.randn(drawn.images.shape, generator=torch.Generator().manual_seed(seed + 1))
    return Shapes((drawn.images + _NOISE * noise).clamp(-1, 1), drawn.labels, drawn.grounds)


SHIFTS: dict[str, Callable[[int, int], Shapes]] = {
    "random background": lambda n, seed: draw_shapes(n, seed, ground="random"),
    "other background": lambda n, seed: draw_shapes(n, seed, ground="other"),
    "blur": _blur,
    "noise": _roughen,
}
"""Sets that differ from the training images: name to a function of number and seed."""


def _uniform(n: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """`[n, 1, 1]`, one number an image."""
    return low + (high - low) * torch.rand(n, 1, 1, generator=generator)


def _inside(labels: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Which pixels show the shape, `[image, height, width]` of booleans."""
    n = len(labels)
    place = torch.linspace(-1, 1, size)
    x, y = (
        place[None, None, :] - _uniform(n, -0.3, 0.3, generator),
        place[None, :, None] - _uniform(n, -0.3, 0.3, generator),
    )
    slant, scale = _uniform(n, -0.25, 0.25, generator), _uniform(n, 0.42, 0.62, generator)
    u, v = (slant.cos() * x + slant.sin() * y) / scale, (slant.cos() * y - slant.sin() * x) / scale
    found = torch.zeros(n, size, size, dtype=torch.bool)
    for label, form in enumerate(_FORMS.values()):
        rows = labels == label
        found[rows] = form(u[rows], v[rows])
    return found


def _fill(n: int, size: int, generator: torch.Generator) -> Tensor:
    """A random color with a grain, `[image, color, height, width]`."""
    color = torch.rand(n, 3, 1, 1, generator=generator)
    return color * (0.8 + 0.4 * torch.rand(n, 1, size, size, generator=generator))


def _grating(kinds: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Waves between two random colors, `[image, color, height, width]`; direction and length tell the kind."""
    n = len(kinds)
    pixel = torch.arange(size, dtype=torch.float32)
    angle = (math.pi / 4 * (kinds % 4))[:, None, None] + _uniform(n, -0.08, 0.08, generator)
    wave = torch.tensor(_WAVES)[kinds // 4][:, None, None]
    along = pixel[None, None, :] * angle.cos() + pixel[None, :, None] * angle.sin()
    height = 0.5 + 0.5 * torch.sin(2 * math.pi * (wave * along + _uniform(n, 0, 1, generator)))
    low, high = (torch.rand(n, 3, 1, 1, generator=generator) for _ in range(2))
    return low + (high - low) * height[:, None]
