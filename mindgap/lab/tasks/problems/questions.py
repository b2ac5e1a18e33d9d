"""Questions whose answer is a span of a passage: made from prose, or SQuAD's, for an encoder
that was pre-trained.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

import torch
from torch.nn import functional as F

from mindgap.base.check import fail, one_of
from mindgap.base.checked import AtLeast, Count, check_arguments
from mindgap.base.objective import Objective
from mindgap.base.rng import torch_stream
from mindgap.lab.tasks.data import squad
from mindgap.lab.tasks.models.small import SmallTransformer, SpanFinder
from mindgap.lab.tasks.problems.language import (
    known_words,
    passage_around,
    spans_in,
    tokens_of_parts,
)
from mindgap.lab.tasks.problems.training import TrainingProblem, random_windows, seeded_network

#: Where questions come from -> the text whose words are known, and longest answer in words.
SOURCES = {"prose": ("prose", 2), "squad": ("wikitext-2", 8)}

#: A word, or a sign that is no space.
TOKEN = re.compile(r"\w+|[^\w\s]")

#: Input, and the answers of every question: first and last place of each.
Batch = tuple[torch.Tensor, torch.Tensor]


def question_answering(
    source: str = "prose",
    *,
    words: int = 200,
    width: int = 32,
    layers: int = 1,
    question: Count = 2,
    passage: Annotated[int, AtLeast(8)] = 12,
    held_out: Count = 500,
    start: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> TrainingProblem:
    """A :class:`SpanFinder` that marks the answer in a passage; mean of the cross-entropies of its
    two ends.

    Input is the question, the mask as a mark between, and the passage.

    ``"prose"``: the passage is a window of the text, the answer two successive words of it, and the
    question the first of them, followed by blanks.

    ``"squad"``: the answerable questions of SQuAD's dev file (``MINDGAP_DATA``), in the order of
    the file 70 % to train on and 15 % each for validation and test; two parts share an article only
    where one is cut. The passage is words around the answer, which lies in it at random, and the
    vocabulary is that of WikiText-2.

    A batch is (inputs (samples, question + 1 + passage), answers (samples, answers, 2), first and
    last place of each answer).

    Args:
        source: of the questions.
        words: size of the vocabulary, without the mask.
        width, layers: of the encoder.
        question, passage: words of each in an input; longer questions are cut, shorter ones filled
            with the mask.
        held_out: how many questions the parts ``"validation"`` and ``"test"`` have each, the same
            for all seeds.
        start: state of a pre-trained encoder of this size, whose windows have question + 1 +
            passage words.
        seed: of the network's start (of its two scores, where the encoder is given).

    Raises:
        RuleError: an unknown source, fewer questions than asked for.
        DataError: SQuAD or WikiText-2 is not here.

    Example:
        >>> problem = question_answering("prose", words=50, width=8, held_out=20)
        >>> inputs, answers = problem.draw(torch.Generator().manual_seed(0), 5)
        >>> inputs.shape, answers.shape
        (torch.Size([5, 15]), torch.Size([5, 1, 2]))
    """
    one_of("source", source, SOURCES)
    length = question + 1 + passage
    model = seeded_network(
        lambda: SpanFinder(SmallTransformer(words + 1, width, layers, length=length, causal=False)),
        seed,
    )
    if start is not None:
        model.encoder.load_state_dict(start)
    # A batch is (inputs, answers).
    objective = Objective(model, lambda network, batch: ends_loss(network(batch[0]), batch[1]))
    if source == "prose":
        train, *texts = tokens_of_parts("prose", words)
        parts = {
            name: _from_prose(
                text, question, passage, words, torch_stream(0, f"questions {name}"), held_out
            )
            for name, text in zip(("validation", "test"), texts)
        }

        def draw(generator: torch.Generator, size: int) -> Batch:
            """``size`` questions made from random passages of the training text; the mask is the
            number ``words``.
            """
            return _from_prose(train, question, passage, words, generator, size)

        return TrainingProblem(objective, draw, len(train) - passage, parts)
    inputs, answers = _from_squad(words, question, passage)
    train_end, validation_end = len(inputs) * 70 // 100, len(inputs) * 85 // 100
    # The two parts held out are what is left behind ``train_end``, in two halves.
    most = min(validation_end - train_end, len(inputs) - validation_end)
    if held_out > most:
        fail("held_out", f"must be at most {most}", held_out)
    parts = {
        name: (inputs[begin : begin + held_out], answers[begin : begin + held_out])
        for name, begin in (("validation", train_end), ("test", validation_end))
    }

    def draw_squad(generator: torch.Generator, size: int) -> Batch:
        """``size`` random training questions, the first ``train_end`` of all, with their
        answers.
        """
        rows = torch.randint(0, train_end, (size,), generator=generator)
        return inputs[rows], answers[rows]

    return TrainingProblem(objective, draw_squad, train_end, parts)


def ends_loss(scores: torch.Tensor, answers: torch.Tensor) -> torch.Tensor:
    """Mean of the cross-entropies of the first and the last place of the first answer.

    Args:
        scores: of every place as the first one and as the last, (n, T, 2).
        answers: first and last places, (n, answers, 2).
    """
    first, last = (F.cross_entropy(scores[..., end], answers[:, 0, end]) for end in range(2))
    return (first + last) / 2


def best_spans(scores: torch.Tensor, *, after: int, longest: int) -> torch.Tensor:
    """First and last place of the span with the largest sum of scores: (n, T, 2) -> (n, 2).

    Args:
        scores: of beginning and of ending at every place.
        after: places before this one belong to the question, and no span begins there.
        longest: most words of an answer.

    Example:
        >>> scores = torch.tensor([[[9.0, 9.0], [0.0, 5.0], [1.0, 0.0], [0.0, 2.0]]])
        >>> best_spans(scores, after=1, longest=2).tolist()
        [[1, 1]]
        >>> best_spans(scores[:, [0, 2, 3]], after=1, longest=2).tolist()
        [[1, 2]]
    """
    # Row: the first place of a span, column: its last place.
    places = torch.arange(scores.shape[1], device=scores.device)
    first = places.unsqueeze(1)
    allowed = (places >= first) & (places < first + longest) & (first >= after)
    sums = (scores[:, :, None, 0] + scores[:, None, :, 1]).masked_fill(~allowed, -torch.inf)
    best = sums.flatten(1).argmax(dim=1)  # counted row by row
    return torch.stack([best // scores.shape[1], best % scores.shape[1]], dim=1)


def exact_and_f1(spans: torch.Tensor, answers: torch.Tensor) -> tuple[float, float]:
    """(share of spans that are one of the answers, mean F1 of their words against the nearest
    answer).

    Args:
        spans: first and last place of each, (n, 2).
        answers: first and last places of the right answers, (n, answers, 2).

    Example:
        >>> [
        ...     round(v, 4)
        ...     for v in exact_and_f1(
        ...         torch.tensor([[2, 3], [2, 5]]), torch.tensor([[[2, 3]], [[4, 5]]])
        ...     )
        ... ]
        [0.5, 0.8333]

    *Differs from the paper*: places are compared, not texts: the same words elsewhere in the
    passage do not count.
    """
    # (n, 1) and (n, answers): every span meets each of its answers.
    first, last = spans[:, None, 0], spans[:, None, 1]
    answer_first, answer_last = answers.unbind(-1)
    # Words that span and answer have in common; negative where they lie apart.
    common = torch.minimum(last, answer_last) - torch.maximum(first, answer_first) + 1
    words_of_both = (last - first + 1) + (answer_last - answer_first + 1)
    f1 = 2 * common.clamp_min(0).double() / words_of_both  # of each answer, (n, answers)
    is_exact = (answers == spans.unsqueeze(1)).all(dim=2).any(dim=1)
    return float(is_exact.double().mean()), float(f1.amax(dim=1).mean())


def _from_prose(
    text: torch.Tensor,
    question: int,
    passage: int,
    mask: int,
    generator: torch.Generator,
    size: int,
) -> Batch:
    """A minibatch of made-up questions (inputs, answers): the question is a word of the passage and
    blanks, the answer that word and the next.

    Args:
        text: numbers of words, from which passages are windows.
        question: words of the question.
        passage: words of a passage.
        mask: the number of the mask, which stands for a blank.
        generator: draws passages and questions.
        size: samples of the minibatch.
    """
    passages = random_windows(text, passage, generator, size)
    places = torch.randint(0, passage - 1, (size, 1), generator=generator)  # of the asked words
    questions = torch.full((size, question + 1), mask)  # blanks, and the mark before the passage
    questions[:, :1] = passages.take_along_dim(places, dim=1)
    first = places + question + 1
    return torch.cat([questions, passages], dim=1), torch.stack([first, first + 1], dim=2)


@cache
def _from_squad(words: int, question: int, passage: int) -> Batch:
    """SQuAD's questions and their answers as numbers, made once per process. The twin with word
    pieces is ``word_pieces._squad_pieces``.

    A question whose first answer is too long for the passage or for ``SOURCES`` is left out.

    Args:
        words: size of the vocabulary; ``words`` itself is the mask, ``words`` - 1 stands for all
            unknown words.
        question: words of a question; longer ones are cut, shorter ones filled with the mask.
        passage: words of a passage, filled likewise.

    Returns:
        (inputs (questions, question + 1 + passage), answers (questions, answers, 2)).
    """
    number_of, mask, unknown = known_words("wikitext-2", words), words, words - 1
    generator = torch_stream(0, "passages")
    inputs, answers, longest = [], [], min(passage, SOURCES["squad"][1])
    for item in squad():
        tokens = list(TOKEN.finditer(item["context"]))
        spans = spans_in([token.span() for token in tokens], item["answers"])
        # The first answer has last - first + 1 words.
        if not spans or spans[0][1] - spans[0][0] >= longest:
            continue
        begin, spans_inside = passage_around(
            spans,
            len(tokens),
            passage,
            question + 1,
            lambda low, high: int(torch.randint(low, high + 1, (), generator=generator)),
        )
        row = [number_of.get(word, unknown) for word in TOKEN.findall(item["question"])[:question]]
        row += [mask] * (question + 1 - len(row))  # blanks, and the mark before the passage
        row += [number_of.get(token.group(), unknown) for token in tokens[begin : begin + passage]]
        inputs.append(row + [mask] * (question + 1 + passage - len(row)))
        answers.append(spans_inside)
    return torch.tensor(inputs), torch.tensor(answers)


check_arguments(__name__)
