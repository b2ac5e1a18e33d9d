"""BERT on WikiText-2, ResNet20 and AlexNet on CIFAR-10, on a device: their noise is measured at
scale gpu.
"""

from __future__ import annotations

from typing import Any

import torch

from mindgap.base.check import one_of, whole
from mindgap.base.checked import check_arguments
from mindgap.base.objective import Objective
from mindgap.lab.tasks.data.device_images import cifar_on
from mindgap.lab.tasks.data.wordpiece import wikitext_pieces
from mindgap.lab.tasks.models import AlexNet, MaskedBert, ResNet20
from mindgap.lab.tasks.problems.language import masked_loss, masked_places
from mindgap.lab.tasks.problems.training import (
    TrainingProblem,
    label_loss,
    random_windows,
    seeded_network,
)
from mindgap.lab.tasks.problems.word_pieces import (
    masked_pieces,
    padded_loss,
    padded_pieces,
)

#: Standard deviation of a word's vector at the start.
START = 0.02
#: BERT's own share of values set to zero.
DROPOUT = 0.1


def masked_bert(
    device: torch.device | str = "cpu",
    *,
    words: int = 8192,
    width: int = 512,
    layers: int = 6,
    length: int = 64,
    attention: bool = True,
    gaussian: bool = False,
    real: bool = False,
    seed: int = 0,
) -> TrainingProblem:
    """BERT from a random start that restores masked word pieces of WikiText-2 (its part ``train``),
    cross-entropy.

    Of every window 15 % of the pieces are masked: eight of ten become ``[MASK]``, one of ten
    another piece at random, one stays. A batch is (input, places, answers). There is no dropout.

    With ``real`` every piece is masked by itself, one window in ten is cut short and padded, a
    batch is that of :func:`~mindgap.lab.tasks.problems.word_pieces.padded_pieces`, and dropout is
    0.1. With ``gaussian`` the input of either batch is vectors (samples, length, width).

    Args:
        device: of network and text.
        words: size of the vocabulary; see
            :func:`~mindgap.lab.tasks.data.wordpiece.wikitext_pieces`.
        width, layers: of the network, with one head per 64 of width (at least one) and an inner
            width of 4 x width.
        length: of a window.
        attention: False takes the attention out of the blocks.
        gaussian: replace the vector of each piece by a fresh Gaussian one of the same scale; the
            pieces to predict stay, and nothing can be learnt about them.
        real: masks, padding and dropout as in pre-training.
        seed: of the network's start.

    Source: Devlin et al., 3.1; acclip, section 5.2, for the network without attention and the
    Gaussian input.
    """
    text = wikitext_pieces(whole("words", words, least=10))
    pieces = torch.as_tensor(text["train"], device=device).long()
    model = seeded_network(
        lambda: MaskedBert(
            words,
            width,
            layers=layers,
            heads=max(width // 64, 1),
            inner=4 * width,
            length=length,
            dropout=DROPOUT if real else 0.0,
            attention=attention,
            embedding=not gaussian,
        ),
        seed,
    )

    def draw(generator: torch.Generator, size: int) -> tuple[torch.Tensor, ...]:
        """A minibatch of ``size`` masked windows at random places: padded with ``real``, and with
        ``gaussian`` fresh vectors in place of the pieces. Advances the generator. ``pieces`` is the
        text, ``words`` the size of its vocabulary.
        """
        windows = random_windows(pieces, length, generator, size)
        batch: tuple[torch.Tensor, ...]
        if real:
            batch = padded_pieces(windows, words, generator)
        elif gaussian:  # nothing is hidden: below vectors take the place of all pieces
            batch = (windows, *masked_places(windows, generator))
        else:
            batch = masked_pieces(windows, words, generator)
        if gaussian:  # the vectors take the place of the input
            shape = (size, length, width)
            vectors = torch.randn(shape, generator=generator, device=pieces.device)
            return START * vectors, *batch[1:]
        return batch

    loss = padded_loss if real else masked_loss
    objective = Objective(model.to(device), lambda network, batch: loss(network, *batch))
    return TrainingProblem(objective, draw, len(pieces) - length + 1)


def image_network(
    network: str = "resnet20",
    device: torch.device | str = "cpu",
    *,
    wrong_labels: float = 0.0,
    seed: int = 0,
) -> TrainingProblem:
    """ResNet20 or AlexNet from a random start on the 45,000 training images of CIFAR-10,
    cross-entropy.

    A batch is (images, labels). Batch normalisation uses the statistics of each minibatch, as in
    training. Images are not augmented.

    Args:
        network: ``"resnet20"`` or ``"alexnet"``.
        device: of network and images.
        wrong_labels: share of the labels that are drawn at random, anew at every draw, so that the
            network cannot know them by heart.
        seed: of the network's start.
    """
    builders = {"resnet20": ResNet20, "alexnet": AlexNet}
    build = builders[one_of("network", network, builders)]
    images, labels = cifar_on(device)["train"]
    model: torch.nn.Module = seeded_network(build, seed)

    def draw(generator: torch.Generator, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """``size`` random training images with their labels; advances the generator."""
        rows = torch.randint(0, len(images), (size,), generator=generator, device=images.device)
        drawn = labels[rows]
        if wrong_labels:
            source: dict[str, Any] = {"generator": generator, "device": labels.device}
            is_wrong = torch.rand(size, **source) < wrong_labels
            drawn = torch.where(is_wrong, torch.randint(10, (size,), **source), drawn)
        return images[rows], drawn

    return TrainingProblem(Objective(model.to(device), label_loss), draw, len(images))


check_arguments(__name__)
