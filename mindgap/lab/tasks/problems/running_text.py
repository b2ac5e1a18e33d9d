"""Language models on running text: each segment goes on from the state that the one before
left; all on one device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from mindgap.base.check import fail, one_of, whole
from mindgap.base.checked import check_arguments
from mindgap.lab.tasks.data.prepared import prepared
from mindgap.lab.tasks.problems.language import TEXTS, tokens_of_parts
from mindgap.lab.tasks.problems.training import random_windows

#: The parts of a text, in the order of its files.
PARTS = ("train", "validation", "test")


class StatefulModel(Protocol):
    """A language model that gives a state to begin with, and for a segment and its first state
    (scores, last state).
    """

    training: bool

    def blank(self, batch: int) -> Any:
        """The state at the beginning of ``batch`` texts."""

    def train(self, mode: bool = True) -> Any:
        """Set training or evaluation mode."""

    def __call__(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]: ...


@dataclass(frozen=True)
class RunningText:
    """A text cut into rows of consecutive words, read side by side.

    Example:
        >>> text = RunningText(torch.arange(14).reshape(2, 7), length=2)
        >>> [(x.tolist(), y.tolist()) for x, y in text.segments()][1]
        ([[2, 3], [9, 10]], [[3, 4], [10, 11]])
    """

    rows: Tensor  # batch x words, numbers of words
    length: int  # words per segment

    def segments(self, *, short: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (words of a segment, the word after each), both (batch, length), from the first
        segment to the last.

        Args:
            short: whether to yield a shorter last segment where words are left over.
        """
        words = self.rows.shape[1] - 1  # the last one has none after it
        for start in range(0, words if short else words - self.length + 1, self.length):
            stop = min(start + self.length, words)
            yield self.rows[:, start:stop], self.rows[:, start + 1 : stop + 1]

    def windows(self, generator: torch.Generator, size: int) -> Tensor:
        """``size`` random windows of consecutive words of the text, (size, length + 1). Rows are
        read on end, so a window may reach into the next row.

        Args:
            generator: on the CPU; it is advanced.
            size: how many.
        """
        return random_windows(self.rows.flatten(), self.length + 1, generator, size)


def running_text(
    text: str,
    part: str,
    *,
    words: int,
    batch: int,
    length: int,
    device: torch.device | str = "cpu",
    shift: int = 0,
) -> RunningText:
    """One part of a text on a device, cut into ``batch`` rows.

    Args:
        text: ``"prose"``, ``"ptb"`` or ``"wikitext-2"``.
        part: ``"train"``, ``"validation"`` or ``"test"``.
        words: the ``words`` - 1 most frequent words have a number of their own; all others share
            the last.
        batch: rows; words that do not fill all rows are left out.
        length: words per segment.
        device: where the words lie.
        shift: begin that many words later, and end with those left out.

    Raises:
        RuleError: an unknown text or part, or fewer words than one segment needs.
        DataError: the text is not here.

    Example:
        >>> running_text("prose", "validation", words=100, batch=10, length=5).rows.shape[0]
        10
    """
    parts = prepared_tokens(one_of("text", text, TEXTS), whole("words", words, least=2))
    tokens = parts[PARTS.index(one_of("part", part, PARTS))]
    words_per_row = len(tokens) // whole("batch", batch, least=1)
    if words_per_row <= whole("length", length, least=1):
        fail("length", f"must be below {words_per_row}, the words per row", length)
    rows = tokens.roll(-shift)[: words_per_row * batch].reshape(batch, words_per_row)
    return RunningText(rows.to(device), length)


@cache
def prepared_tokens(text: str, words: int) -> tuple[Tensor, ...]:
    """The parts of a text as numbers of words, made once per machine.

    Example:
        >>> [len(part) > 10_000 for part in prepared_tokens("prose", 100)]
        [True, True, True]
    """
    arrays = prepared(
        f"{text}-{words}-words",
        lambda: {name: tokens.numpy() for name, tokens in zip(PARTS, tokens_of_parts(text, words))},
    )
    return tuple(torch.from_numpy(arrays[part]) for part in PARTS)


def bigram_loss(text: str, words: int) -> float:
    """Mean cross-entropy per word of a bigram model on the test part of a text: a trained network
    should stay below it.

    The model mixes the relative frequencies of pairs, of single words, and 1/words for every word.
    Expectation maximisation finds the weights of the three on the validation part.

    Args:
        text: one of ``TEXTS``.
        words: size of the vocabulary.

    Example:
        >>> 2.0 < bigram_loss("prose", 100) < 4.6  # the logarithm of 100
        True
    """
    train, validation, test = (
        part.numpy().astype(np.int64) for part in prepared_tokens(text, words)
    )
    # A pair of words has the number first·words + second.
    pairs, counts = np.unique(train[:-1] * words + train[1:], return_counts=True)
    frequencies = np.bincount(train, minlength=words) / len(train)
    first_counts = np.bincount(train[:-1], minlength=words)

    def probabilities(part: np.ndarray) -> np.ndarray:
        """Three probabilities of each word of ``part`` but the first, (3, words of the part - 1):
        given the word before, by its own frequency, and 1/words. ``pairs``, sorted, and their
        ``counts`` are those of the training text.
        """
        # The count in training of each pair, 0 for a pair that does not occur there.
        pair_numbers = part[:-1] * words + part[1:]
        places = np.searchsorted(pairs, pair_numbers).clip(max=len(pairs) - 1)
        pair_counts = np.where(pairs[places] == pair_numbers, counts[places], 0)
        conditional = pair_counts / np.maximum(first_counts[part[:-1]], 1)
        return np.stack([conditional, frequencies[part[1:]], np.full(len(pair_numbers), 1 / words)])

    of_validation, weights = probabilities(validation), np.full(3, 1 / 3)
    for _ in range(50):  # expectation maximisation, from equal weights
        weighted = weights[:, None] * of_validation
        weights = (weighted / weighted.sum(0)).mean(1)  # each one's mean share of a probability
    return float(-np.log(weights @ probabilities(test)).mean())


def going_on(state: object) -> tuple[list[Tensor], Callable[..., Tensor]]:
    """Make a loss that goes on from segment to segment.

    Args:
        state: of the model at the beginning of a text, such as ``model.blank(batch)``; its tensors
            are overwritten by every call of the loss.

    Returns:
        (the tensors of the state; ``loss(model, x, y)`` of a segment's words x and the words y
        after them, which begins in these tensors and leaves the segment's last state there).

    Example:
        >>> from mindgap.lab.tasks.models import AWDLSTM
        >>> model = AWDLSTM(20, width=4, hidden=6)
        >>> carried, loss = going_on(model.blank(2))
        >>> x = torch.zeros(2, 5, dtype=torch.long)
        >>> value = loss(model, x, x)
        >>> len(carried), all(t.abs().sum() > 0 for t in carried)
        (6, True)
    """
    carried, structure = pytree.tree_flatten(state)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        """Mean cross-entropy of a segment that begins in the state whose tensors are ``carried``;
        overwrites them with the segment's last state.
        """
        # The model gets clones: autograd needs the first state after it has been overwritten.
        first_state = pytree.tree_unflatten([t.clone() for t in carried], structure)
        scores, last_state = model(x, first_state)
        with torch.no_grad():
            torch._foreach_copy_(carried, pytree.tree_leaves(last_state))
        return F.cross_entropy(scores.flatten(0, 1), y.flatten())

    return carried, loss


def window_loss(model: nn.Module, windows: Tensor) -> Tensor:
    """Mean cross-entropy of a model's next words in windows that each begin with an empty state."""
    scores, _ = model(windows[:, :-1])
    return F.cross_entropy(scores.flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def running_loss(model: StatefulModel, text: RunningText) -> float:
    """Mean cross-entropy per word of a whole text in evaluation mode, in nats; its exponential is
    the perplexity.

    Example:
        >>> from mindgap.lab.tasks.models import AWDLSTM
        >>> text = RunningText(torch.randint(20, (2, 12)), length=5)
        >>> abs(running_loss(AWDLSTM(20, width=4, hidden=6), text) - 3.0) < 0.1  # log 20
        True
    """
    was_training, state = model.training, model.blank(len(text.rows))
    model.train(False)
    loss_sum, count = torch.zeros((), dtype=torch.float64, device=text.rows.device), 0
    for x, y in text.segments(short=True):
        scores, state = model(x, state)
        loss_sum += F.cross_entropy(scores.flatten(0, 1).float(), y.flatten(), reduction="sum")
        count += y.numel()
    model.train(was_training)
    return float(loss_sum) / count


check_arguments(__name__)
