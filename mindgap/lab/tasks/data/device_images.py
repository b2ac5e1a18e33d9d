"""Images on a device: CIFAR-10 as tensors, epochs of shuffled and shifted batches, and the share of
right answers.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mindgap.base.checked import check_arguments
from mindgap.lab.tasks.data.images import cifar10
from mindgap.lab.tasks.data.prepared import prepared


def augmented_batches(
    images: Tensor, labels: Tensor, size: int, generator: torch.Generator, *, pad: int = 4
) -> list[tuple[Tensor, Tensor]]:
    """One epoch of shuffled batches, each image shifted by up to ``pad`` pixels and mirrored at
    random.

    The whole epoch is made at once, by a dozen kernels; it takes three times the memory of the
    images. The channels of a pixel lie side by side, as fast convolutions want them.

    Args:
        images: samples x channels x height x width, on the device of ``generator``.
        labels: one per image.
        size: images per batch; a short last batch is left out.
        generator: draws order, shifts and mirrors; it is advanced.
        pad: largest shift; the border is filled with zeros, as He et al. do.

    Returns:
        (images, labels) of every batch.

    Example:
        >>> images, labels = torch.randn(10, 3, 8, 8), torch.arange(10)
        >>> batches = augmented_batches(images, labels, 4, torch.Generator().manual_seed(0))
        >>> len(batches), batches[0][0].shape
        (2, torch.Size([4, 3, 8, 8]))
    """
    device, (number, _, height, width) = images.device, images.shape
    used = number - number % size  # images in full batches
    order = torch.randperm(number, generator=generator, device=device)[:used]
    # Downwards and to the right in the padded image; a shift of ``pad`` leaves an image in place.
    shifts = torch.randint(0, 2 * pad + 1, (2, used, 1), generator=generator, device=device)
    mirrored = torch.rand(used, 1, generator=generator, device=device) < 0.5
    columns = torch.arange(width, device=device)
    # The row and the column of the padded image that each pixel is taken from: (images, side).
    source_rows = shifts[0] + torch.arange(height, device=device)
    source_columns = shifts[1] + torch.where(mirrored, width - 1 - columns, columns)
    padded = F.pad(images, (pad, pad, pad, pad)).permute(0, 2, 3, 1)  # channels last
    augmented = padded[order[:, None, None], source_rows[:, :, None], source_columns[:, None, :]]
    return list(zip(augmented.permute(0, 3, 1, 2).split(size), labels[order].split(size)))


def shuffled_batches(
    images: Tensor, labels: Tensor, size: int, generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    """One epoch of shuffled batches (images, labels), the images as they are. The twin of
    :func:`augmented_batches`, with the same arguments.

    A short last batch is left out, and ``generator`` is advanced.

    Example:
        >>> batches = shuffled_batches(
        ...     torch.randn(10, 3, 8, 8), torch.arange(10), 4, torch.Generator().manual_seed(0)
        ... )
        >>> len(batches), batches[0][0].shape
        (2, torch.Size([4, 3, 8, 8]))
    """
    used = len(labels) - len(labels) % size  # images in full batches
    order = torch.randperm(len(labels), generator=generator, device=images.device)[:used]
    shuffled = images[order].contiguous(memory_format=torch.channels_last)
    return list(zip(shuffled.split(size), labels[order].split(size)))


@torch.no_grad()
def accuracy_and_loss(
    model: nn.Module, images: Tensor, labels: Tensor, *, size: int = 1000
) -> tuple[float, float]:
    """(share of right answers, mean cross-entropy) in evaluation mode; the model's mode is
    restored.

    Args:
        model: gives scores (samples, classes).
        images: samples along the first axis.
        labels: one per image.
        size: images that the model reads at once.

    Example:
        >>> right, loss = accuracy_and_loss(
        ...     nn.Flatten(), torch.eye(4).view(4, 1, 2, 2), torch.arange(4)
        ... )
        >>> right, round(loss, 2)
        (1.0, 0.74)
    """
    was_training = model.training
    model.eval()
    scores = torch.cat([model(part) for part in images.split(size)]).float()
    model.train(was_training)
    right = (scores.argmax(1) == labels).double().mean()
    return float(right), float(F.cross_entropy(scores, labels))


def cifar_on(device: torch.device | str) -> dict[str, tuple[Tensor, Tensor]]:
    """CIFAR-10 on a device: ``"train"`` (45,000), ``"validation"`` (5,000) and ``"test"`` (10,000)
    -> (images, labels).

    Images are float32 (n, 3, 32, 32), normalised per channel with mean and deviation of all 50,000
    training images. The archives are decoded once per machine; see
    :func:`~mindgap.lab.tasks.data.prepared.prepared`.
    """

    def decode() -> dict[str, np.ndarray]:
        """Pixels as bytes (``train``, ``test``) and labels (``train_labels``, ``test_labels``)."""
        arrays: dict[str, np.ndarray] = {}
        for split in ("train", "test"):
            table = cifar10(split)
            arrays[split] = np.rint(table.features * 255).astype(np.uint8)
            arrays[f"{split}_labels"] = table.labels
        return arrays

    arrays = {
        name: torch.as_tensor(array, device=device)
        for name, array in prepared("cifar10", decode).items()
    }
    images = {
        name: arrays[name].float().div_(255).view(-1, 3, 32, 32) for name in ("train", "test")
    }
    mean = images["train"].mean((0, 2, 3), keepdim=True)
    deviation = images["train"].std((0, 2, 3), keepdim=True)
    # The pixels are normalised in place, the test images with the training images' numbers.
    train, test = (images[name].sub_(mean).div_(deviation) for name in ("train", "test"))
    labels = arrays["train_labels"]
    return {
        "train": (train[:45_000], labels[:45_000]),
        "validation": (train[45_000:], labels[45_000:]),
        "test": (test, arrays["test_labels"]),
    }


check_arguments(__name__)
