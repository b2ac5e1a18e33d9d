"""Residual networks for CIFAR-10: ResNet20 of He et al. (2016, section 4.2) and ResNet18 for
small images.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mindgap.base.checked import check_arguments


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch normalisation and a shortcut.

    Args:
        inputs, outputs: channels before and after.
        stride: of the first convolution.
        projection: shape a changed shortcut by a 1x1 convolution; False: by striding and zero
            channels (option A of He et al., without parameters).
    """

    def __init__(self, inputs: int, outputs: int, stride: int, *, projection: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.stride, self.extra = stride, outputs - inputs  # ``extra``: the channels added
        # Where the shape stays, the shortcut adds the input itself.
        shape_changes = stride != 1 or self.extra
        self.shortcut: nn.Module | None = None
        if shape_changes and projection:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The sum of two convolutions and a shortcut, (n, inputs, height, width) -> (n, outputs,
        height/stride, width/stride).

        Where the shape changes, the shortcut is a 1x1 convolution (``projection``), or it skips
        pixels and adds zero channels, half of them on either side.
        """
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        if self.shortcut is not None:
            x = self.shortcut(x)
        elif self.stride != 1 or self.extra:
            # Option A: every ``stride``-th pixel, and zero channels on either side.
            half, skipped = self.extra // 2, x[:, :, :: self.stride, :: self.stride]
            x = F.pad(skipped, (0, 0, 0, 0, half, self.extra - half))
        return F.relu(x + y)


class ResNet(nn.Module):
    """A first convolution, stages of basic blocks, a mean over the image and a linear head.

    Args:
        blocks: basic blocks per stage.
        widths: channels per stage; every stage after the first halves the image.
        classes: outputs.
        projection: see :class:`BasicBlock`.
    """

    def __init__(
        self, blocks: int, widths: tuple[int, ...], classes: int = 10, *, projection: bool
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, widths[0], 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(widths[0])
        stages: list[nn.Module] = []
        channels = widths[0]
        for stage, width in enumerate(widths):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1  # 2 halves the image
                stages.append(BasicBlock(channels, width, stride, projection=projection))
                channels = width
        self.blocks = nn.Sequential(*stages)
        self.head = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of images: (n, 3, height, width) -> (n, classes)."""
        y = self.blocks(F.relu(self.norm(self.conv(x))))
        return self.head(y.mean((2, 3)))


def ResNet20(classes: int = 10) -> ResNet:
    """ResNet20 with 0.27 M parameters (He et al. 2016, Table 6), the network of Fig. 3-3, 3-4 and
    5-1 of the thesis.

    Example:
        >>> sum(p.numel() for p in ResNet20().parameters())
        269722
    """
    return ResNet(3, (16, 32, 64), classes, projection=False)


def ResNet18(classes: int = 10) -> ResNet:
    """ResNet18 for 32x32 images with 11.17 M parameters: the ImageNet network with a 3x3 first
    convolution.

    Example:
        >>> sum(p.numel() for p in ResNet18().parameters())
        11173962
    """
    return ResNet(2, (64, 128, 256, 512), classes, projection=True)


check_arguments(__name__)
