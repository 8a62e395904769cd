"""EfficientNet-Lite: inverted residual blocks without squeeze-and-excitation, activations capped at 6.

``stem`` halves the image, ``blocks.i`` expand to many channels, filter each channel on its own and project
back (adding the input where the shape stays the same), ``head`` widens to the features that, averaged over
the image, ``classifier`` reads. Convolutions pad like TensorFlow's "same": the odd pixel goes right and below.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

# One row a stage: channel expansion, kernel size, stride of the first block, output channels, number of blocks.
LITE0_STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)


class SameConv2d(nn.Conv2d):
    """A convolution without bias whose output has ceil(size / stride) rows and columns."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(channels_in, channels_out, kernel, stride, groups=groups, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """``[batch channel row column]`` to ``[batch channel_out ceil(row/stride) ceil(column/stride)]``."""
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        rows, columns = (max((-(-size // stride) - 1) * stride + kernel - size, 0) for size in input.shape[-2:])
        padded = functional.pad(input, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return functional.conv2d(padded, self.weight, None, self.stride, 0, self.dilation, self.groups)


class ConvUnit(nn.Sequential):
    """Convolution, batch norm and, unless `linear`, ReLU6; its parts are ``conv``, ``norm`` and ``act``."""

    def __init__(
        self, channels_in: int, channels_out: int, kernel: int, stride: int = 1, groups: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        self.add_module("conv", SameConv2d(channels_in, channels_out, kernel, stride, groups))
        self.add_module("norm", nn.BatchNorm2d(channels_out, eps=1e-3))
        if not linear:
            self.add_module("act", nn.ReLU6())


class InvertedResidual(nn.Module):
    """Expand, filter depthwise, project; the input is added where stride is 1 and the width is kept."""

    def __init__(self, channels_in: int, channels_out: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        width = channels_in * expansion
        self.expand: nn.Module = ConvUnit(channels_in, width, 1) if expansion > 1 else nn.Identity()
        self.depthwise = ConvUnit(width, width, kernel, stride, groups=width)
        self.project = ConvUnit(width, channels_out, 1, linear=True)
        self.adds_input = stride == 1 and channels_in == channels_out

    def forward(self, features: Tensor) -> Tensor:
        """``[batch channel row column]`` to ``[batch channel_out row/stride column/stride]``."""
        update: Tensor = self.project(self.depthwise(self.expand(features)))
        return features + update if self.adds_input else update


class EfficientNetLite(nn.Module):
    """An image classifier; the defaults are EfficientNet-Lite0 for ImageNet-1k.

    Args:
        stages: rows of (expansion, kernel, stride, channels, blocks).
        stem_width: channels after the stem.
        head_width: channels before averaging.
        classes: number of outputs.
    """

    def __init__(
        self,
        stages: Sequence[Sequence[int]] = LITE0_STAGES,
        stem_width: int = 32,
        head_width: int = 1280,
        classes: int = 1000,
    ) -> None:
        super().__init__()
        self.stem = ConvUnit(3, stem_width, 3, 2)
        blocks: list[nn.Module] = []
        width = stem_width
        for expansion, kernel, stride, channels, repeats in stages:
            for index in range(repeats):
                blocks.append(InvertedResidual(width, channels, expansion, kernel, stride if index == 0 else 1))
                width = channels
        self.blocks = nn.ModuleList(blocks)
        self.head = ConvUnit(width, head_width, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(head_width, classes)

    def forward(self, pixel_values: Tensor) -> Tensor:
        """Class logits of images.

        Args:
            pixel_values: ``[batch 3 row column]``, RGB bytes scaled as (x - 127) / 128; 224 x 224 in training.

        Returns:
            ``[batch class]`` logits.
        """
        features = self.stem(pixel_values)
        for block in self.blocks:
            features = block(features)
        return self.classifier(torch.flatten(self.pool(self.head(features)), 1))
