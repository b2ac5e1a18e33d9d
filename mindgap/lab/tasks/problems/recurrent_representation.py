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

from mindgap.base.check import fail, one_of
from mindgap.base.checked import Positive, check_arguments
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import Sample
from mindgap.lab.tasks.data.tabular import Table
from mindgap.lab.tasks.data.tweets import made_up_tweets
from mindgap.lab.tasks.problems.recurrent_cleaning import (
    recurrent_code,
    recurrent_start,
    standardised,
)
from mindgap.lab.tasks.problems.representation import (
    HyperRepresentation,
    Tasks,
    _features_of_code,
    draw_tasks,
)

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
        """The mean over the words of the second layer's units, (texts, hidden).

        Args:
            ctx: keeps what the backward pass needs.
            vectors: (words, dimensions) word vectors, all first words, then all second ones, ....
            share: (words, 1) weight of each word in its text, 1 over the text's words.
            sizes: how many texts have a first, second, ... word.
            dtypes: of products, forward and backward.
            weights: those of :data:`WEIGHTS`, in that order: three for each layer.
        """
        words, *converted = (tensor.to(dtypes[0]) for tensor in (vectors, *weights))
        first_layer, second_layer = converted[:3], converted[3:]
        first_units = _layer_outputs(words, first_layer, sizes)
        second_units = _layer_outputs(first_units, second_layer, sizes)
        ctx.save_for_backward(words, share, first_units, second_units, *weights)
        ctx.sizes, ctx.dtypes = sizes, dtypes
        code = weights[0].new_zeros(sizes[0], second_units.shape[1])
        for weighted_units in (second_units * share.to(dtypes[0])).split(sizes):  # word by word
            code[: len(weighted_units)] += weighted_units
        return code

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the arguments of :meth:`forward` after ``ctx``: None for the first four,
        and those of the weights in their own type.

        Args:
            ctx: what :meth:`forward` kept.
            grad: the derivative of the loss by the code, (texts, hidden).
        """
        if torch.is_grad_enabled():  # autograd keeps this pass for a second derivative
            fail("precision", "must be tf32 where an encoder is differentiated twice", "half")
        words, share, first_units, second_units, *weights = ctx.saved_tensors
        sizes, dtype = ctx.sizes, ctx.dtypes[1]
        _, _, first_recurrent, second_input, _, second_recurrent = (
            weight.to(dtype) for weight in weights
        )
        grad = grad.to(dtype)
        # ``by_...`` is the loss's derivative by something, one row per word of a text.
        # First of the second layer, whose mean the code is, then of the first.
        by_units = torch.cat([grad[:size] for size in sizes]).mul_(share.to(dtype))
        by_arguments = _by_tanh_arguments(by_units, second_units, second_recurrent, sizes)
        second_gradients = _weight_gradients(first_units, second_units, by_arguments, sizes)
        by_units = by_arguments @ second_input.mT
        by_arguments = _by_tanh_arguments(by_units, first_units, first_recurrent, sizes)
        first_gradients = _weight_gradients(words, first_units, by_arguments, sizes)
        # Gradients and weights stand in the order of ``WEIGHTS``.
        by_weights = zip(first_gradients + second_gradients, weights, strict=True)
        return None, None, None, None, *(g.to(weight.dtype) for g, weight in by_weights)


#: The weights of the two layers, in the order of :class:`HalfCode`.
WEIGHTS = ("input", "first_bias", "first", "between", "second_bias", "second")


def _layer_outputs(inputs: Tensor, layer: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """The outputs of one layer's units after each word, (words, hidden): h_t = tanh(W' a_t + b +
    R' h_{t-1}) with h_0 = 0.

    Args:
        inputs: a_t, (words, inputs); all first words, then all second ones, ....
        layer: W (inputs, hidden), b, and the recurrent weights R (hidden, hidden).
        sizes: how many texts have a first, second, ... word.
    """
    weights, bias, recurrent = layer
    outputs = torch.addmm(bias, inputs, weights)
    of_words = outputs.split(sizes)  # views of ``outputs``, changed in place word by word
    of_words[0].tanh_()
    for previous, current in pairwise(of_words):
        current.addmm_(previous[: len(current)], recurrent).tanh_()
    return outputs


def _by_tanh_arguments(
    by_units: Tensor, units: Tensor, recurrent: Tensor, sizes: Sequence[int]
) -> Tensor:
    """The loss's derivatives by the argument of each unit's tanh, from those by its output:
    backwards from the last word, each word adding to the one before.

    Args:
        by_units: the derivatives by the outputs, without what later words add, (words, hidden);
            overwritten and returned.
        units: the outputs, of :func:`_layer_outputs`.
        recurrent: R there.
        sizes: how many texts have a first, second, ... word.
    """
    slopes = torch.addcmul(units.new_ones(()), units, units, value=-1)  # tanh' = 1 - tanh²
    slope_of = slopes.to(by_units.dtype).split(sizes)
    of_words = by_units.split(sizes)  # views, changed in place
    of_words[-1].mul_(slope_of[-1])
    for word in range(len(sizes) - 2, -1, -1):
        # The texts that have a next word are the first ones.
        of_words[word][: sizes[word + 1]].addmm_(of_words[word + 1], recurrent.mT)
        of_words[word].mul_(slope_of[word])
    return by_units


def _weight_gradients(
    inputs: Tensor, units: Tensor, by_arguments: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, ...]:
    """The gradients (of a layer's input weights, of its bias, of its recurrent weights), each by
    one product or sum over all words.

    Args:
        inputs: of the layer, (words, inputs).
        units: its outputs, (words, hidden).
        by_arguments: the loss's derivatives by the arguments of tanh, (words, hidden).
        sizes: how many texts have a first, second, ... word.
    """
    # For every word but the first ones, the outputs after the word before it.
    previous = [outputs[:size] for outputs, size in zip(units.split(sizes), sizes[1:])]
    recurrent_inputs = torch.cat(previous or [units[:0]]).to(by_arguments.dtype)
    by_recurrent = recurrent_inputs.mT @ by_arguments[sizes[0] :]
    return inputs.to(by_arguments.dtype).mT @ by_arguments, by_arguments.sum(0), by_recurrent


@dataclass(frozen=True)
class RecurrentRepresentation(HyperRepresentation):
    """Few-shot tasks on texts or pairs, as word numbers (tasks, examples[, 2], words), and a
    recurrent encoder.

    Args:
        vectors: standardised word vectors; they are not learned. The others are those of
            :class:`HyperRepresentation`.
        precision: one of :data:`PRECISIONS`.
        most_texts: for half precision, how many texts of a minibatch have a first, second, ... word
            at most; :meth:`problem` counts them, because a CUDA graph cannot.

    Example:
        >>> made = made_up_pairs(400)
        >>> sizes = {"tasks": (6, 3, 3), "shots": 4, "hidden": 3}
        >>> task = recurrent_representation([made], [made], [made], made_up_vectors(), **sizes)
        >>> task.problem(2).dim_y, task.problem(2).lower_data.batches
        (60, 4)
    """

    vectors: Tensor
    precision: str = "tf32"
    most_texts: tuple[int, ...] = ()

    @property
    def y0(self) -> Tensor:
        """The heads of the training tasks at the start: zeros."""
        return self.vectors.new_zeros(len(self.train), self.start["join"].shape[1] + 1, self.ways)

    def problem(self, batch_size: int | tuple[int, int] = 2) -> BilevelProblem:
        """The task as a bilevel problem.

        In half precision its losses are those of a copy of the task that knows how many words its
        minibatches have (``most_texts``).

        Args:
            batch_size: examples of every task in a minibatch, one number or (upper, lower).
        """
        problem = super().problem(batch_size)
        if PRECISIONS[self.precision] is None:
            return problem
        counted = replace(self, most_texts=_most_texts(problem))
        return HyperRepresentation.problem(counted, batch_size)  # ``counted.problem`` counts again

    def encode(self, x: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """φ_x: the features of texts, and a 1 for the heads' constant, (..., features + 1).

        Args:
            x: the encoder's weights by name: ``WEIGHTS``, ``join`` and ``join_bias``.
            inputs: word numbers (..., words), or (..., 2, words) for an encoder of pairs.
        """
        texts, dtypes = inputs.flatten(0, -2), PRECISIONS[self.precision]
        if dtypes is None:
            code = recurrent_code(x, self.vectors, texts)
        else:
            code = half_code(x, self.vectors, texts, dtypes, self.most_texts)
        code = code.view(*inputs.shape[:-1], -1)
        return _features_of_code(code, x["join"], x["join_bias"])


def _most_texts(problem: BilevelProblem) -> tuple[int, ...]:
    """How many texts of a minibatch have a first, second, ... word, the most over all minibatches
    of both levels.

    Entry 0 is the number of texts. Empty where the levels' minibatches differ in size. A shorter
    last minibatch is left out.
    """
    upper, lower = problem.upper_data, problem.lower_data
    if upper.batch_size != lower.batch_size:
        return ()
    # The word numbers (texts, words) of every full minibatch; a batch is (inputs, labels).
    minibatches = [
        data.fetch(Sample(number))[0].flatten(0, -2)
        for data in (upper, lower)
        for number in range(data.n // data.batch_size)
    ]
    places = torch.arange(minibatches[0].shape[1], device=minibatches[0].device)[:, None]
    # (minibatches, words): how many texts are longer than each place, which has a word then.
    counts = torch.stack([((words != 0).sum(1) > places).sum(1) for words in minibatches])
    return (len(minibatches[0]), *counts.amax(0).tolist()[1:])


def half_code(
    weights: Mapping[str, Tensor],
    vectors: Tensor,
    words: Tensor,
    dtypes: tuple[torch.dtype, torch.dtype],
    most_texts: Sequence[int] = (),
) -> Tensor:
    """Two tanh layers over the words, and the mean over the words of each unit of the second, with
    products of fewer digits: (texts, hidden).

    The twin of :func:`~mindgap.lab.tasks.problems.recurrent_cleaning.recurrent_code`, by
    :class:`HalfCode`, which reads texts in order of length.

    Args:
        weights: those of :data:`WEIGHTS` by name.
        vectors: (vocabulary, dimensions) word vectors; row 0 is that of no word.
        words: (texts, length) numbers, 0 at the end of a short text.
        dtypes: of products, forward and backward.
        most_texts: bounds on how many texts have a first, second, ... word, as :func:`_most_texts`
            gives them. They are used where ``words`` has as many texts as ``most_texts[0]``; else
            the texts are counted, or while a CUDA graph is captured all are read to the end.
    """
    lengths, order = (words != 0).sum(1).sort(descending=True, stable=True)
    number, longest = words.shape
    if most_texts and most_texts[0] == number:
        sizes = list(most_texts)
        # Texts lie in order of length: the first one that is not read at a word must not have it.
        is_short = [lengths[texts] <= place for place, texts in enumerate(sizes) if texts < number]
        # An assertion on the device, which does not wait for it.
        torch._assert_async(torch.stack([lengths[0] <= longest, *is_short]).all())
    elif words.is_cuda and torch.cuda.is_current_stream_capturing():
        sizes = [number] * longest
    else:
        places = torch.arange(1, longest, device=words.device)[:, None]
        sizes = [number, *(texts for texts in (lengths > places).sum(1).tolist() if texts)]
    # All first words, then all second ones, ..., each weighted with 1 over its text's words.
    words_read = torch.cat([column[:size] for column, size in zip(words[order].t(), sizes)])
    weight = 1 / lengths.clamp(min=1).to(vectors.dtype)
    share = (words_read != 0) * torch.cat([weight[:size] for size in sizes])
    code: Tensor = HalfCode.apply(
        embedding(words_read, vectors),
        share[:, None],
        sizes,
        dtypes,
        *(weights[name] for name in WEIGHTS),
    )
    return code.index_select(0, order.argsort())  # in the order of ``words``


def recurrent_representation(
    train: Sequence[Table],
    validation: Sequence[Table],
    test: Sequence[Table],
    vectors: np.ndarray,
    *,
    decay: Positive = 1e-1,
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
        # Of a pair (u, v, (u - v)², u v) is read.
        "join": ((4 if train[0].features.ndim == 3 else 1) * hidden, features),
    }
    start = recurrent_start(shapes, seed, "recurrent representation", dtype, target)
    train_words = np.concatenate([table.features.ravel() for table in train])
    return RecurrentRepresentation(
        train=task_sets[0],
        validation=task_sets[1],
        test=task_sets[2],
        ways=ways,
        decay=decay,
        start=start,
        vectors=torch.from_numpy(standardised(vectors, train_words)).to(target, dtype),
        precision=precision,
    )


def made_up_vectors() -> np.ndarray:
    """The vectors of 60 made-up words, (61, 8); row 0 is that of no word."""
    return made_up_tweets(10, 2).vectors


def made_up_pairs(pairs: int = 600, length: int = 6, *, seed: int = 0) -> Table:
    """Pairs of made-up texts, features (pairs, 2, length); label 0: both nasty, 1: one of each
    kind, 2: both nice.

    Args:
        pairs: how many.
        length: longest text in words.
        seed: of all draws.
    """
    # A tenth of the texts are manual ones, so more are made than are used.
    texts = made_up_tweets(2 * pairs + pairs // 2, length, seed=seed)
    nice_of_two = texts.labels[: 2 * pairs].reshape(-1, 2).sum(1)
    return Table(texts.words[: 2 * pairs].reshape(-1, 2, length), nice_of_two, "made-up pairs")


check_arguments(__name__)
