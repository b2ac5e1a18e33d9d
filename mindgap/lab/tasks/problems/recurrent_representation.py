"""Hyper-representation with a recurrent encoder: the problem of the SLIP paper's Fig. 1, on words.

As :mod:`~mindgap.lab.tasks.problems.representation`, with x the weights of a two-layer tanh RNN
over frozen word vectors, its mean over the words, and one tanh layer on that, or on (u, v, (u -
v)², u v) of a pair.

The heads alone are differentiated twice, so that a wide encoder may have a backward pass of its own
(:class:`HalfCode`): products of 16 bits, one product per weight matrix over all words, and none
for words that a text does not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from mindgap.base.check import fail, one_of, positive
from mindgap.base.checked import check_arguments
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import Sample
from mindgap.lab.tasks.data.tabular import Table
from mindgap.lab.tasks.problems.recurrent_cleaning import (
    recurrent_code,
    recurrent_start,
    standardised,
)
from mindgap.lab.tasks.problems.representation import HyperRepresentation, Tasks, draw_tasks

#: Setting -> the types of products in the forward and in the backward pass; None: those of the
#: weights. float16 has as many digits as TF32, bfloat16 the range that gradients need.
PRECISIONS = {"tf32": None, "half": (torch.float16, torch.bfloat16)}


class HalfCode(torch.autograd.Function):
    """:func:`~mindgap.lab.tasks.problems.recurrent_cleaning.recurrent_code` with products of fewer
    digits: (texts, hidden), in the type of the weights. It can be differentiated once.

    Texts lie in order of length, and each word is read with the texts that have it: ``sizes`` says
    how many, and all arrays of words have their parts one below the other.
    """

    @staticmethod
    def forward(
        ctx: Any,
        vectors: Tensor,
        share: Tensor,
        sizes: Sequence[int],
        dtypes: tuple[torch.dtype, torch.dtype],
        *weights: Tensor,
    ) -> Tensor:
        """The mean over the words of the second layer's units.

        Args:
            ctx: keeps what the backward pass needs.
            vectors: (words, dimensions) word vectors.
            share: (words, 1) weight of each word in its text.
            sizes: texts that have a first, second, ... word.
            dtypes: of products, forward and backward.
            weights: those of :data:`WEIGHTS`.
        """
        (
            first_input,
            first_bias,
            first_recurrent,
            second_input,
            second_bias,
            second_recurrent,
        ) = (weight.to(dtypes[0]) for weight in weights)
        words = vectors.to(dtypes[0])
        first_units = _layer_outputs(words, first_input, first_bias, first_recurrent, sizes)
        second_units = _layer_outputs(
            first_units, second_input, second_bias, second_recurrent, sizes
        )
        ctx.save_for_backward(words, share, first_units, second_units, *weights)
        ctx.sizes, ctx.dtypes = sizes, dtypes
        code = weights[0].new_zeros(sizes[0], second_recurrent.shape[1])
        for of_word in (second_units * share.to(dtypes[0])).split(sizes):
            code[: len(of_word)] += of_word
        return code

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the weights, in their own type; words have none."""
        if torch.is_grad_enabled():
            fail("precision", "must be tf32 where an encoder is differentiated twice", "half")
        words, share, first_units, second_units, *weights = ctx.saved_tensors
        sizes, dtype = ctx.sizes, ctx.dtypes[1]
        _, _, first_recurrent, second_input, _, second_recurrent = (
            weight.to(dtype) for weight in weights
        )
        grad = grad.to(dtype)
        by_units = torch.cat([grad[:size] for size in sizes]).mul_(share.to(dtype))
        by_inputs = _by_inputs(by_units, second_units, second_recurrent, sizes)
        of_second = _weight_gradients(first_units, second_units, by_inputs, sizes)
        by_inputs = _by_inputs(by_inputs @ second_input.mT, first_units, first_recurrent, sizes)
        of_first = _weight_gradients(words, first_units, by_inputs, sizes)
        gradients = zip(of_first + of_second, weights, strict=True)
        return None, None, None, None, *(g.to(weight.dtype) for g, weight in gradients)


#: The weights of the two layers, in the order of :class:`HalfCode`.
WEIGHTS = ("input", "first_bias", "first", "between", "second_bias", "second")


def _layer_outputs(
    inputs: Tensor, weights: Tensor, bias: Tensor, recurrent: Tensor, sizes: Sequence[int]
) -> Tensor:
    """The outputs of one layer's units after each word: tanh of inputs, bias, and the outputs after
    the word before times the weights ``recurrent``. ``sizes`` says which rows belong to the first,
    second, ... words (see :class:`HalfCode`).
    """
    outputs = torch.addmm(bias, inputs, weights)
    of_words = outputs.split(sizes)
    of_words[0].tanh_()
    for previous, current in pairwise(of_words):
        current.addmm_(previous[: len(current)], recurrent).tanh_()
    return outputs


def _by_inputs(by_units: Tensor, units: Tensor, recurrent: Tensor, sizes: Sequence[int]) -> Tensor:
    """Derivatives by the argument of each unit's tanh, from those by its output (``by_units``,
    overwritten and returned): backwards from the last word, each word adding to the one before.
    """
    slopes = torch.addcmul(units.new_ones(()), units, units, value=-1)  # tanh' = 1 - tanh²
    slope_of = slopes.to(by_units.dtype).split(sizes)
    of_words = by_units.split(sizes)
    of_words[-1].mul_(slope_of[-1])
    for word in range(len(sizes) - 2, -1, -1):
        of_words[word][: sizes[word + 1]].addmm_(of_words[word + 1], recurrent.mT)
        of_words[word].mul_(slope_of[word])
    return by_units


def _weight_gradients(
    inputs: Tensor, units: Tensor, by_inputs: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, ...]:
    """The gradients of a layer's input weights, bias and recurrent weights: one product over all
    words each.
    """
    previous = [of_word[:size] for of_word, size in zip(units.split(sizes), sizes[1:])]
    of_recurrent = torch.cat(previous or [units[:0]]).to(by_inputs.dtype).mT @ by_inputs[sizes[0] :]
    return inputs.to(by_inputs.dtype).mT @ by_inputs, by_inputs.sum(0), of_recurrent


@dataclass(frozen=True)
class RecurrentRepresentation(HyperRepresentation):
    """Few-shot tasks on texts or pairs, as word numbers (tasks, examples[, 2], words), and a
    recurrent encoder.

    Args:
        vectors: standardised word vectors; they are not learned. The others are those of
            :class:`HyperRepresentation`.
        precision: one of :data:`PRECISIONS`.
        most: for half precision, how many texts of a minibatch have a first, second, ... word at
            most; :meth:`problem` counts them, because a CUDA graph cannot.

    Example:
        >>> made = made_up_pairs(400)
        >>> sizes = {"tasks": (6, 3, 3), "shots": 4, "hidden": 3}
        >>> task = recurrent_representation([made], [made], [made], made_up_vectors(), **sizes)
        >>> task.problem(2).dim_y, task.problem(2).lower_data.batches
        (60, 4)
    """

    vectors: Tensor
    precision: str = "tf32"
    most: tuple[int, ...] = ()

    @property
    def y0(self) -> Tensor:
        """The heads of the training tasks at the start: zeros."""
        return self.vectors.new_zeros(len(self.train), self.start["join"].shape[1] + 1, self.ways)

    def problem(self, batch_size: int | tuple[int, int] = 2) -> BilevelProblem:
        """The task as a bilevel problem; ``batch_size`` counts examples of every task, one number
        or (upper, lower). In half precision its losses are those of a copy of the task that knows
        how many words its minibatches have (``most``).
        """
        problem = super().problem(batch_size)
        if PRECISIONS[self.precision] is None:
            return problem
        return HyperRepresentation.problem(replace(self, most=_most_texts(problem)), batch_size)

    def encode(self, x: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """φ_x: word numbers (..., words), or (..., 2, words) for an encoder of pairs, to
        features and a 1.
        """
        texts, dtypes = inputs.flatten(0, -2), PRECISIONS[self.precision]
        if dtypes is None:
            code = recurrent_code(x, self.vectors, texts)
        else:
            code = half_code(x, self.vectors, texts, dtypes, self.most)
        code = code.view(*inputs.shape[:-1], -1)
        if x["join"].shape[0] != x["first"].shape[0]:
            u, v = code.unbind(-2)
            code = torch.cat([u, v, (u - v).square(), u * v], -1)
        features = torch.tanh(code @ x["join"] + x["join_bias"])
        return torch.cat([features, torch.ones_like(features[..., :1])], -1)


def _most_texts(problem: BilevelProblem) -> tuple[int, ...]:
    """How many texts of a minibatch of either level have a first, second, ... word at most; nothing
    where the levels' minibatches differ in size. A shorter last minibatch is left out.
    """
    upper, lower = problem.upper_data, problem.lower_data
    if upper.batch_size != lower.batch_size:
        return ()
    minibatches = [
        data.fetch(Sample(number))[0].flatten(0, -2)
        for data in (upper, lower)
        for number in range(data.n // data.batch_size)
    ]
    places = torch.arange(minibatches[0].shape[1], device=minibatches[0].device)[:, None]
    texts = torch.stack([((words != 0).sum(1) > places).sum(1) for words in minibatches])
    return (len(minibatches[0]), *texts.amax(0).tolist()[1:])


def half_code(
    weights: Mapping[str, Tensor],
    vectors: Tensor,
    words: Tensor,
    dtypes: tuple[torch.dtype, torch.dtype],
    most: Sequence[int] = (),
) -> Tensor:
    """:func:`~mindgap.lab.tasks.problems.recurrent_cleaning.recurrent_code` by :class:`HalfCode`:
    (texts, hidden).

    Args:
        weights: those of :data:`WEIGHTS` by name.
        vectors: (vocabulary, dimensions) word vectors; row 0 is that of no word.
        words: (texts, length) numbers, 0 at the end of a short text.
        dtypes: of products, forward and backward.
        most: bounds on how many texts have a first, second, ... word, for as many texts as the
            first one says; they are counted where there are none for so many.
    """
    lengths, order = (words != 0).sum(1).sort(descending=True, stable=True)
    number, longest = words.shape
    if most and most[0] == number:
        sizes = list(most)
        # The first text that is not read at a word must not have it.
        is_short = [lengths[texts] <= place for place, texts in enumerate(sizes) if texts < number]
        torch._assert_async(torch.stack([lengths[0] <= longest, *is_short]).all())
    elif words.is_cuda and torch.cuda.is_current_stream_capturing():
        sizes = [number] * longest
    else:
        places = torch.arange(1, longest, device=words.device)[:, None]
        sizes = [number, *(texts for texts in (lengths > places).sum(1).tolist() if texts)]
    words_read = torch.cat([of_place[:size] for of_place, size in zip(words[order].t(), sizes)])
    weight = 1 / lengths.clamp(min=1).to(vectors.dtype)
    share = (words_read != 0) * torch.cat([weight[:size] for size in sizes])
    code: Tensor = HalfCode.apply(
        embedding(words_read, vectors),
        share[:, None],
        sizes,
        dtypes,
        *(weights[texts] for texts in WEIGHTS),
    )
    return code.index_select(0, order.argsort())


def recurrent_representation(
    train: Sequence[Table],
    validation: Sequence[Table],
    test: Sequence[Table],
    vectors: np.ndarray,
    *,
    decay: float = 1e-1,
    tasks: tuple[int, int, int] = (500, 100, 100),
    ways: int = 2,
    shots: int = 10,
    hidden: int = 128,
    features: int = 4,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    precision: str = "tf32",
) -> RecurrentRepresentation:
    """Draw tasks from tables of texts or of sentence pairs, and an encoder.

    Args:
        train, validation, test: tables of word numbers (texts, words) or (pairs, 2, words).
        vectors: (vocabulary, dimensions); row 0 is that of no word.
        hidden: units of each recurrent layer.
        decay: c, weight of a head's squared norm.
        tasks: how many (training, validation, test) tasks.
        ways: classes of a task, drawn from the table's.
        shots: examples of each class in the support set, and as many in the query set.
        features: numbers that the encoder gives to a head.
        seed: of the tasks and the encoder's start.
        dtype, device: of the tensors.
        precision: of products inside the encoder, ``"tf32"`` or ``"half"``.
    """
    one_of("precision", precision, PRECISIONS)
    positive("decay", decay)
    target, task_sets = torch.device(device), []
    for (name, tables), number in zip(
        {"train": train, "validation": validation, "test": test}.items(), tasks
    ):
        levels = draw_tasks(tables, number, ways, shots, seed, name)
        support, query = (
            (torch.from_numpy(inputs).to(target), torch.from_numpy(labels).to(target))
            for inputs, labels in levels
        )
        task_sets.append(Tasks(support, query))
    shapes = {
        "input": (vectors.shape[1], hidden),
        **dict.fromkeys(("first", "between", "second"), (hidden, hidden)),
        "join": ((4 if train[0].features.ndim == 3 else 1) * hidden, features),
    }
    start = recurrent_start(shapes, seed, "recurrent representation", dtype, target)
    table = torch.from_numpy(
        standardised(vectors, np.concatenate([words.features.ravel() for words in train]))
    )
    table = table.to(target, dtype)
    return RecurrentRepresentation(
        task_sets[0], task_sets[1], task_sets[2], ways, decay, start, table, precision
    )


def made_up_vectors(vocabulary: int = 60) -> np.ndarray:
    """Vectors of made-up words."""
    from mindgap.lab.tasks.data.tweets import made_up_tweets

    return made_up_tweets(10, 2, vocabulary=vocabulary).vectors


def made_up_pairs(pairs: int = 600, length: int = 6, *, seed: int = 0) -> Table:
    """Pairs of made-up texts of three classes: both nice, both nasty, one of each kind."""
    from mindgap.lab.tasks.data.tweets import made_up_tweets

    texts = made_up_tweets(2 * pairs + pairs // 2, length, seed=seed)
    moods = texts.labels[: 2 * pairs].reshape(-1, 2).sum(1)
    return Table(texts.words[: 2 * pairs].reshape(-1, 2, length), moods, "made-up pairs")


check_arguments(__name__)
