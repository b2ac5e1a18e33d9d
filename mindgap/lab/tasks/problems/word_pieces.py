"""Text as word pieces on a device: masked windows that pre-train BERT, and questions that
fine-tune it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mindgap.base.check import fail, whole
from mindgap.base.checked import check_arguments
from mindgap.base.rng import numpy_stream, torch_stream
from mindgap.lab.tasks.data.prepared import prepared
from mindgap.lab.tasks.data.text import squad
from mindgap.lab.tasks.data.wordpiece import SPECIAL, known_word_pieces, wikitext_pieces
from mindgap.lab.tasks.problems.language import (
    MASKED,
    evenly_spaced,
    hidden_words,
    loss_of_frequencies,
    masked_windows,
    passage_around,
    spans_in,
)
from mindgap.lab.tasks.problems.questions import ends_loss

PAD, CLS, SEP, MASK = (SPECIAL.index(f"[{name}]") for name in ("PAD", "CLS", "SEP", "MASK"))
#: Word pieces of the longest answer.
LONGEST = 20

#: Input, masked places and the pieces that stand there.
Masked = tuple[Tensor, Tensor, Tensor]


def masked_pieces(windows: Tensor, words: int, generator: torch.Generator) -> Masked:
    """Masked windows: of ten masked pieces eight become ``[MASK]``, one another piece at random,
    one stays.

    Args:
        windows: numbers of pieces, samples x length, on the device of the generator.
        words: size of the vocabulary.
        generator: draws places and pieces.

    Example:
        >>> windows = torch.randint(5, 30, (4, 10))
        >>> inputs, places, answers = masked_pieces(windows, 30, torch.Generator().manual_seed(0))
        >>> (
        ...     bool((inputs != windows).sum() <= 8),
        ...     torch.equal(windows.take_along_dim(places, dim=1), answers),
        ... )
        (True, True)

    Source: Devlin et al. 2019, 3.1.
    """
    return masked_windows(windows, generator, mask=MASK, others=(len(SPECIAL), words))


#: Input, the pieces before masking, 1 where one is to be restored, True where a place is not
#: padding.
Padded = tuple[Tensor, Tensor, Tensor, Tensor]
#: Share of sequences that are short, as BERT's own data have it.
SHORT = 0.1


def padded_pieces(windows: Tensor, words: int, generator: torch.Generator) -> Padded:
    """Windows as pre-training meets them: one in ten is cut at a random length and padded, and
    every piece is masked with probability 15 % by itself (at least one per window).

    :func:`masked_pieces` masks a fixed number of pieces per window and does not pad.

    Args:
        windows: numbers of pieces, samples x length, on the device of the generator.
        words: size of the vocabulary.
        generator: draws lengths, places and pieces.

    Returns:
        (input, ``windows``, 1.0 where a piece is to be restored, True where a place is not
        padding), each samples x length.

    Example:
        >>> windows = torch.randint(5, 30, (400, 20))
        >>> inputs, answers, masked, not_padding = padded_pieces(
        ...     windows, 30, torch.Generator().manual_seed(0)
        ... )
        >>> bool((masked.sum(1) >= 1).all()), len(masked.sum(1).unique()) > 3
        (True, True)
        >>> bool((masked <= not_padding).all()), 0 < int((~not_padding[:, -1]).sum()) < 100
        (True, True)

    Source: Devlin et al. 2019, 3.1 and A.2; their code has the share of short sequences.
    """
    size, length = windows.shape
    options: dict[str, Any] = {"generator": generator, "device": windows.device}
    shortened = torch.rand(size, 1, **options) < SHORT
    random_lengths = torch.randint(2, length + 1, (size, 1), **options)
    lengths = torch.where(shortened, random_lengths, torch.full_like(random_lengths, length))
    not_padding = torch.arange(length, device=windows.device) < lengths
    # Padding gets 1, which is never among the masked.
    uniform = torch.rand(size, length, **options).masked_fill(~not_padding, 1.0)
    # The piece with the smallest number is masked in any case: at least one per window.
    masked = (uniform < MASKED) | (uniform == uniform.amin(1, keepdim=True))
    hidden = hidden_words(windows, generator, mask=MASK, others=(len(SPECIAL), words))
    inputs = torch.where(masked, hidden, windows).masked_fill(~not_padding, PAD)
    return inputs, windows, masked.float(), not_padding


def padded_loss(
    model: nn.Module, inputs: Tensor, answers: Tensor, masked: Tensor, not_padding: Tensor
) -> Tensor:
    """Mean cross-entropy over the pieces to be restored of a whole batch, as
    :func:`padded_pieces` makes it.

    Scores are computed at the pieces to be restored and at a few others, so that the number of
    places depends on the batch's shape alone, as a CUDA graph needs it. The loss is NaN where that
    number is too small.

    Args:
        model: a ``MaskedBert``.
        inputs: samples x length.
        answers: the pieces before masking.
        masked: 1.0 where a piece is to be restored.
        not_padding: True where a place is not padding.
    """
    # Places counted over all samples on end, those with 1 first.
    places = masked.flatten().topk(_most_masked(*masked.shape), sorted=False).indices
    is_masked = masked.flatten().take_along_dim(places, dim=0)
    losses = F.cross_entropy(
        model(inputs, places, not_padding),
        answers.flatten().take_along_dim(places, dim=0),
        reduction="none",
    )
    count = masked.sum()
    # NaN unless all masked places were among those scored.
    return (losses * is_masked).sum() / torch.where(is_masked.sum() == count, count, torch.nan)


def _most_masked(windows: int, length: int) -> int:
    """How many places to reserve for the masked ones, which no batch exceeds in practice.

    Eight standard deviations above the mean of the binomial number, and one place for every window
    that has none by chance; rounded up to a multiple of 64, at most all.

    Args:
        windows: in the batch.
        length: pieces per window.

    Example:
        >>> _most_masked(1, 64), _most_masked(32, 64)
        (64, 512)
    """
    places = windows * length
    mean, variance = MASKED * places, MASKED * (1 - MASKED) * places
    return min(places, 64 * math.ceil((mean + 8 * math.sqrt(variance) + windows) / 64))


@dataclass(frozen=True)
class MaskedText:
    """WikiText-2 as word pieces, with or without reviews, ready to pre-train BERT.

    Attributes:
        train: the training text.
        parts: ``"validation"`` and ``"test"`` -> masked windows, the same in every run.
        words, length: size of the vocabulary, pieces per window.
    """

    train: Tensor
    parts: Mapping[str, Masked]
    words: int
    length: int

    def batches(self, size: int, generator: torch.Generator) -> list[Masked]:
        """One pass over the training text in random order, cut into windows and masked anew.

        Args:
            size: windows per batch; a short last batch is left out.
            generator: draws where the first window begins, the order and the masks.

        Returns:
            (input, places, answers) of every batch; see :func:`masked_pieces`.
        """
        shift = int(torch.randint(self.length, (), generator=generator, device=self.train.device))
        number = (len(self.train) - shift) // self.length
        if number < size:
            fail("batch", f"must be at most {number}, the windows of the text", size)
        windows = self.train[shift : shift + number * self.length].view(number, self.length)
        order = torch.randperm(number, generator=generator, device=self.train.device)
        full_batches = windows[order[: number - number % size]]
        masked = masked_pieces(full_batches, self.words, generator)
        return list(zip(*(tensor.split(size) for tensor in masked)))

    def by_frequency(self, part: str = "test") -> float:
        """The loss on a ``part`` held out, ``"validation"`` or ``"test"``, of predicting pieces by
        their relative frequencies in the training text alone.
        """
        return loss_of_frequencies(self.train, self.words, self.parts[part][2])

    def best_guess(self, part: str, *, sees: bool = True) -> float:
        """The loss on a part held out of the best guess of one who reads no other place.

        It knows the pieces' relative frequencies f in the training text. With ``sees`` it also
        knows what stands in the place. A piece w there has stayed with a chance of f(w) to 1/n,
        where n is the number of pieces that are put in at random: then it is the answer. Otherwise,
        and where ``[MASK]`` stands, the answer has the frequency f.

        Args:
            part: ``"validation"`` or ``"test"``.
            sees: False: it does not see the place either, so that the loss is that of the
                frequencies.

        Example:
            >>> train = torch.tensor([5, 5, 5, 6])  # of three pieces, numbers 5 to 7
            >>> shown, answers = torch.tensor([[4, 5, 6]]), torch.tensor([[6, 5, 6]])
            >>> part = shown, torch.tensor([[0, 1, 2]]), answers
            >>> text = MaskedText(train, {"test": part}, words=8, length=3)
            >>> round(text.best_guess("test"), 3)  # chances 1/4, 12/13 and 4/7
            0.675
            >>> round(text.best_guess("test", sees=False), 3)  # 1/4, 3/4 and 1/4
            1.02
        """
        inputs, places, answers = self.parts[part]
        if not sees:
            return loss_of_frequencies(self.train, self.words, answers)
        counts = torch.bincount(self.train, minlength=self.words).double()
        frequency = (counts / counts.sum()).clamp_min(1e-12)  # as ``loss_of_frequencies`` has it
        shown, first = inputs.take_along_dim(places, dim=1), len(SPECIAL)
        # 1/n where the piece shown may have been put in at random; special pieces never are. As
        # often a piece stays as another is put in, one time in ten, so the tenths cancel.
        at_random = (shown >= first).double() / (self.words - first)
        stayed = frequency[shown] * (shown == answers)
        known = (stayed + frequency[answers] * at_random) / (frequency[shown] + at_random)
        chance = torch.where(shown == MASK, frequency[answers], known)
        return float(-chance.clamp_min(1e-12).log().mean())


def masked_text(
    device: torch.device | str = "cpu",
    *,
    words: int = 8192,
    length: int = 128,
    held_out: int = 1024,
    reviews: bool = True,
) -> MaskedText:
    """The text of :func:`~mindgap.lab.tasks.data.wordpiece.wikitext_pieces` on a device, with the
    windows held out already masked.

    Args:
        device: where it lies.
        words: size of the vocabulary.
        length: pieces per window.
        held_out: windows of the parts ``"validation"`` and ``"test"`` each, evenly over
            WikiText-2's own parts.
        reviews: train on the reviews of FDU-MTL too.
    """
    pieces = wikitext_pieces(whole("words", words, least=10), reviews=reviews)
    parts = {}
    for name, file in (("validation", "valid"), ("test", "test")):
        windows = evenly_spaced(torch.as_tensor(pieces[file]).long(), length, held_out)
        inputs, places, answers = masked_pieces(windows, words, torch_stream(0, f"masked {name}"))
        parts[name] = inputs.to(device), places.to(device), answers.to(device)
    train = torch.as_tensor(pieces["train"]).long().to(device)
    return MaskedText(train, parts, words, length)


@torch.no_grad()
def masked_reading(model: nn.Module, batch: Masked, *, size: int = 256) -> tuple[float, float]:
    """(mean loss, share of right answers) at the masked places, in evaluation mode; the mode is
    restored.

    Args:
        model: a ``MaskedBert``.
        batch: (input, places, answers), as :func:`masked_pieces` makes it.
        size: windows that the model reads at once.

    Example:
        >>> from mindgap.lab.tasks.models import MaskedBert
        >>> model = MaskedBert(30, 8, layers=1, heads=2, inner=8, length=10)
        >>> batch = masked_pieces(
        ...     torch.randint(5, 30, (4, 10)), 30, torch.Generator().manual_seed(0)
        ... )
        >>> abs(masked_reading(model, batch)[0] - 3.4) < 0.1  # log 30
        True
    """
    was_training = model.training
    model.eval()
    _, _, all_answers = batch
    # Two sums of shape (1,), on the device: of the losses and of the right answers.
    loss_sum, right = torch.zeros((2, 1), dtype=torch.float64, device=all_answers.device)
    for inputs, places, answers in zip(*(tensor.split(size) for tensor in batch)):
        scores = model(inputs, places).float()
        loss_sum += F.cross_entropy(scores.flatten(0, 1), answers.flatten(), reduction="sum")
        right += (scores.argmax(dim=-1) == answers).sum()
    model.train(was_training)
    return float(loss_sum) / all_answers.numel(), float(right) / all_answers.numel()


@dataclass(frozen=True)
class Questions:
    """Questions with their passages as word pieces: ``[CLS]`` question ``[SEP]`` passage ``[SEP]``,
    filled with [PAD].

    Attributes:
        parts: ``"train"``, ``"validation"`` and ``"test"`` -> inputs (questions, places), and first
            and last place of every answer (questions, answers, 2).
        question: pieces of the longest question; its passage begins two places later.
    """

    parts: Mapping[str, tuple[Tensor, Tensor]]
    question: int

    @property
    def after(self) -> int:
        """The place at which passages begin."""
        return self.question + 2

    def scores(self, model: nn.Module, inputs: Tensor) -> Tensor:
        """Scores of every place as the first and as the last one of the answer: (questions, places,
        2).

        Args:
            model: a ``QuestionBert``.
            inputs: questions x places.
        """
        # 0 for the question, 1 for the passage; padding is not attended to.
        parts = (torch.arange(inputs.shape[1], device=inputs.device) >= self.after).long()
        return model(inputs, parts.expand_as(inputs), inputs != PAD)

    def loss(self, model: nn.Module, inputs: Tensor, answers: Tensor) -> Tensor:
        """Mean of the cross-entropies of the two ends of the first answer, of a batch (inputs,
        answers).
        """
        return ends_loss(self.scores(model, inputs), answers)

    def batches(self, size: int, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
        """One pass over the training questions in random order: (inputs, answers) of every batch.

        Args:
            size: questions per batch; a short last batch is left out.
            generator: draws the order.
        """
        inputs, answers = self.parts["train"]
        if len(inputs) < size:
            fail("batch", f"must be at most {len(inputs)}, the training questions", size)
        order = torch.randperm(len(inputs), generator=generator, device=inputs.device)
        rows = order[: len(inputs) // size * size]
        return list(zip(inputs[rows].split(size), answers[rows].split(size)))


def squad_questions(
    device: torch.device | str = "cpu",
    *,
    words: int = 8192,
    question: int = 24,
    passage: int = 101,
    reviews: bool = True,
) -> Questions:
    """The answerable questions of SQuAD's dev file, in the order of the file 70 % to train on, 15 %
    each held out.

    Args:
        device: where they lie.
        words: size of the vocabulary.
        reviews: whether the vocabulary's text includes the reviews of FDU-MTL.
        question: word pieces of a question; longer ones are cut.
        passage: word pieces around the first answer, which lies at random in them.
    """
    arrays = prepared(
        f"squad-{words}-{question}-{passage}{'-reviews' * reviews}",
        lambda: _squad_pieces(words, question, passage, reviews),
    )
    inputs, answers = (
        torch.as_tensor(arrays[name], device=device).long() for name in ("inputs", "answers")
    )
    train_end, validation_end = len(inputs) * 70 // 100, len(inputs) * 85 // 100
    # The rows of each part, in the order of the file.
    rows = {
        "train": slice(train_end),
        "validation": slice(train_end, validation_end),
        "test": slice(validation_end, None),
    }
    parts = {name: (inputs[part], answers[part]) for name, part in rows.items()}
    return Questions(parts, question)


def _squad_pieces(words: int, question: int, passage: int, reviews: bool) -> dict[str, np.ndarray]:
    """SQuAD as word pieces; ``questions._from_squad`` does the same with whole words.

    A question whose answers are all longer than ``LONGEST`` or the passage is left out, and the
    answers of the others that are too long.

    Args:
        words: size of the vocabulary.
        question: pieces of a question; longer ones are cut, shorter ones padded.
        passage: pieces of a passage.
        reviews: whether the vocabulary's text includes the reviews of FDU-MTL.

    Returns:
        ``inputs``, int32 (questions, question + passage + 3), and ``answers``, int32 (questions,
        answers, 2), first and last place of each in its input.
    """
    vocabulary = known_word_pieces(wikitext_pieces(words, reviews=reviews)["vocabulary"].tolist())
    generator, inputs, answers = numpy_stream(0, "passages"), [], []
    encode_context = cache(vocabulary.numbers_and_places)  # several questions share a passage
    for item in squad():
        pieces, places = encode_context(item["context"])
        spans = spans_in(places, item["answers"])
        spans = [(first, last) for first, last in spans if last - first < min(passage, LONGEST)]
        if not spans:
            continue
        begin, spans_inside = passage_around(
            spans,
            len(pieces),
            passage,
            question + 2,
            lambda low, high: int(generator.integers(low, high + 1)),
        )
        question_pieces, _ = vocabulary.numbers_and_places(item["question"])
        row = [CLS, *question_pieces[:question], SEP]
        row += [PAD] * (question + 2 - len(row))  # up to the place at which passages begin
        row += [*pieces[begin : begin + passage], SEP]
        inputs.append(row + [PAD] * (question + passage + 3 - len(row)))
        answers.append(spans_inside)
    return {"inputs": np.array(inputs, np.int32), "answers": np.array(answers, np.int32)}


check_arguments(__name__)
