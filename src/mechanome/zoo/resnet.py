"""`SmallResNet`: a residual network of four stages for 32 x 32 images, about 0.3 million weights.

``stem`` halves the image, ``stages.i`` are one residual block each (every one but the first halves the image again and
widens it), ``classifier`` reads the average over what is left of the image. Each stage's output, after its ReLU, is
`path:stages.i`, `batch channel height width`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

WIDTHS = (16, 32, 64, 128)


class ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, which is a 1 x 1 convolution where the shape changes."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels_out, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels_out)
        self.second = nn.Conv2d(channels_out, channels_out, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False), nn.BatchNorm2d(channels_out)
            )

    def forward(self, features: Tensor) -> Tensor:
        """``[batch channel row column]`` to ``[batch channel_out row/stride column/stride]``."""
        inner = torch.relu(self.first_norm(self.first(features)))
        return torch.relu(self.second_norm(self.second(inner)) + self.shortcut(features))


class SmallResNet(nn.Module):
    """An image classifier.

    Args:
        classes: number of outputs.
        widths: channels of the stages.
    """

    def __init__(self, classes: int = 8, widths: Sequence[int] = WIDTHS) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 3, 2, 1, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU())
        before = [widths[0], *widths[:-1]]
        self.stages = nn.ModuleList(
            ResidualBlock(a, b, 1 if i == 0 else 2) for i, (a, b) in enumerate(zip(before, widths))
        )
        self.classifier = nn.Linear(widths[-1], classes)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Class logits ``[batch class]`` of images ``[batch 3 row column]`` with values from -1 to 1."""
        features = self.stem(pixel_values)
        for stage in self.stages:
            features = stage(features)
        return self.classifier(features.mean((2, 3)))
