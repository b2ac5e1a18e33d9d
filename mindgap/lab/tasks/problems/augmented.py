"""Image networks that never see the same image twice: every drawn sample is shifted, or
flipped, at random.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated

import torch
from torch.nn import functional as F

from mindgap.base.check import one_of
from mindgap.base.checked import AtLeast, Range, check_arguments
from mindgap.base.objective import Objective
from mindgap.lab.tasks.data import cifar10, digits
from mindgap.lab.tasks.models.small import small_convolutional_network
from mindgap.lab.tasks.problems.training import TrainingProblem, label_loss, seeded_network

#: Channels and side of the images of a data set.
SHAPES = {"digits": (1, 8), "cifar-10": (3, 32)}


def augmented_network(
    data: str = "digits",
    *,
    width: int = 4,
    shift: Annotated[int, AtLeast(0)] = 1,
    flip: bool = False,
    wrong_labels: Annotated[float, Range(0, 1)] = 0.0,
    seed: int = 0,
) -> TrainingProblem:
    """A small convolutional network on images that are augmented as they are drawn, cross-entropy.

    An image is moved by up to ``shift`` pixels up or down and left or right, black pixels coming
    in, and with ``flip`` mirrored every second time: too many images for a small network to know
    them all by heart. A batch is (images (n, channels, side, side), labels (n,)), the images
    standardised per channel.

    Args:
        data: ``"digits"`` (scikit-learn's, 8 x 8) or ``"cifar-10"`` (32 x 32 in three colours, from
            ``MINDGAP_DATA``).
        width: of the network.
        shift: most pixels, zero or more.
        flip: also mirror left and right.
        wrong_labels: probability that a drawn label is replaced by one at random, anew at every
            draw: a part of the loss that no network can remove.
        seed: of the network's start, the convolutions by He's rule.

    Raises:
        RuleError: unknown data, a negative shift.
        DataError: CIFAR-10 is not here.

    Example:
        >>> problem = augmented_network("digits", width=2, shift=1)
        >>> images, labels = problem.draw(torch.Generator().manual_seed(0), 5)
        >>> problem.samples, images.shape, labels.shape
        (1797, torch.Size([5, 1, 8, 8]), torch.Size([5]))
    """
    channels, side = SHAPES[one_of("data", data, SHAPES)]
    unpadded, labels = _images(data)
    mean, deviation = unpadded.mean((0, 2, 3)), unpadded.std((0, 2, 3))  # per channel
    images = F.pad(unpadded, (shift,) * 4)

    def build() -> torch.nn.Sequential:
        """The network for images of the data's ``channels`` and ``side``."""
        network = small_convolutional_network(width, channels=channels, side=side)
        for layer in network:
            # He's rule, as a ResNet starts: without it the first steps move little.
            if isinstance(layer, torch.nn.Conv2d):
                torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        return network

    def draw(generator: torch.Generator, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """``size`` random images, each at a random shift and, with ``flip``, mirrored or not, and
        their labels, the share ``wrong_labels`` of them random. Advances the generator.

        ``images`` are padded by ``shift`` on all sides; ``mean`` and ``deviation`` are those of the
        channels.
        """
        chosen = torch.randint(0, len(images), (size,), generator=generator)
        offsets = torch.randint(0, 2 * shift + 1, (2, size, 1), generator=generator)
        rows, columns = offsets + torch.arange(side)  # a window of the padded image for each sample
        if flip:
            mirrored = torch.randint(0, 2, (size, 1), generator=generator).bool()
            columns = torch.where(mirrored, columns.flip(1), columns)
        # (size, side, side, channels): the axes that are indexed come first.
        window = images[chosen[:, None, None], :, rows[:, :, None], columns[:, None, :]]
        window = (window.permute(0, 3, 1, 2) - mean[:, None, None]) / deviation[:, None, None]
        drawn_labels = labels[chosen]
        if wrong_labels:
            is_wrong = torch.rand(size, generator=generator) < wrong_labels
            random_labels = torch.randint(0, 10, (size,), generator=generator)
            drawn_labels = torch.where(is_wrong, random_labels, drawn_labels)
        return window, drawn_labels

    objective = Objective(seeded_network(build, seed), label_loss)
    return TrainingProblem(objective, draw, len(images))


@cache
def _images(data: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(images (samples, channels, side, side), pixels in [0, 1]; labels) of a key of ``SHAPES``;
    read once per process.
    """
    table = digits() if data == "digits" else cifar10()
    channels, side = SHAPES[data]
    images = torch.tensor(table.features, dtype=torch.float32).reshape(-1, channels, side, side)
    return images, torch.tensor(table.labels)


check_arguments(__name__)
