"""AlexNet (Krizhevsky et al. 2012) cut down for images of 32x32."""

from __future__ import annotations

from torch import nn

from mindgap.base.checked import check_arguments


def AlexNet(classes: int = 10) -> nn.Sequential:
    """Five convolutions of AlexNet's widths without normalisation, and one linear layer, for images
    (n, 3, 32, 32); 2.47 M parameters.

    Args:
        classes: number of scores.

    Example:
        >>> sum(p.numel() for p in AlexNet().parameters())
        2472266

    Source: acclip, Fig. 6 (AlexNet on ImageNet there); 2.47 M is the size that public comparisons
    on CIFAR-10 give.
    """
    layers: list[nn.Module] = []
    channels = 3
    # (channels out, side of the kernel, stride, whether the side is halved afterwards)
    for width, kernel, stride, pool in (
        (64, 11, 4, True),
        (192, 5, 1, True),
        (384, 3, 1, False),
        (256, 3, 1, False),
        (256, 3, 1, True),
    ):
        layers += [nn.Conv2d(channels, width, kernel, stride, kernel // 2), nn.ReLU()]
        if pool:
            layers.append(nn.MaxPool2d(2))
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, classes))  # 1 x 1 pixel is left


check_arguments(__name__)
