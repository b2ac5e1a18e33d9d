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
from mindgap.bilevel.data.sample import SampleOrder
from mindgap.lab.tasks.data.tabular import Table
from mindgap.lab.tasks.problems.recurrent_cleaning import (
    recurrent_code,
    recurrent_start,
    standardised,
)
from mindgap.lab.tasks.problems.representation import HyperRepresentation, Tasks, _draw

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
        read: Tensor,
        share: Tensor,
        sizes: Sequence[int],
        dtypes: tuple[torch.dtype, torch.dtype],
        *weights: Tensor,
    ) -> Tensor:
        """The mean over the words of the second layer's units.

        Args:
            ctx: keeps what the backward pass needs.
            read: (words, dimensions) vectors.
            share: (words, 1) weight of each word in its text.
            sizes: texts that have a first, second, ... word.
            dtypes: of products, forward and backward.
            weights: those of :data:`WEIGHTS`.
        """
        inner, bias, turn, between, second_bias, second = (w.to(dtypes[0]) for w in weights)
        words = read.to(dtypes[0])
        first = _turns(words, inner, bias, turn, sizes)
        later = _turns(first, between, second_bias, second, sizes)
        ctx.save_for_backward(words, share, first, later, *weights)
        ctx.sizes, ctx.dtypes = sizes, dtypes
        code = weights[0].new_zeros(sizes[0], second.shape[1])
        for part in (later * share.to(dtypes[0])).split(sizes):
            code[: len(part)] += part
        return code

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the weights, in their own type; words have none."""
        if torch.is_grad_enabled():
            fail("precision", "must be tf32 where an encoder is differentiated twice", "half")
        words, share, first, later, *weights = ctx.saved_tensors
        sizes, back = ctx.sizes, ctx.dtypes[1]
        _, _, turn, between, _, second = (w.to(back) for w in weights)
        grad = grad.to(back)
        wanted = torch.cat([grad[:size] for size in sizes]).mul_(share.to(back))
        slopes = _slopes(wanted, later, second, sizes)
        found = _weight_gradients(first, later, slopes, sizes)
        slopes = _slopes(slopes @ between.mT, first, turn, sizes)
        found = _weight_gradients(words, first, slopes, sizes) + found
        return None, None, None, None, *(g.to(w.dtype) for g, w in zip(found, weights, strict=True))


#: The weights of the two layers, in the order of :class:`HalfCode`.
WEIGHTS = ("input", "first_bias", "first", "between", "second_bias", "second")


def _turns(
    below: Tensor, inner: Tensor, bias: Tensor, turn: Tensor, sizes: Sequence[int]
) -> Tensor:
    """One layer: what its units say after each word."""
    seen = torch.addmm(bias, below, inner)
    parts = seen.split(sizes)
    parts[0].tanh_()
    for before, here in pairwise(parts):
        here.addmm_(before[: len(here)], turn).tanh_()
    return seen


def _slopes(wanted: Tensor, seen: Tensor, turn: Tensor, sizes: Sequence[int]) -> Tensor:
    """Derivatives by what enters each unit; ``wanted`` (those by what the units say) is
    overwritten.
    """
    bent = torch.addcmul(seen.new_ones(()), seen, seen, value=-1).to(wanted.dtype).split(sizes)
    parts = wanted.split(sizes)
    parts[-1].mul_(bent[-1])
    for place in range(len(sizes) - 2, -1, -1):
        parts[place][: sizes[place + 1]].addmm_(parts[place + 1], turn.mT)
        parts[place].mul_(bent[place])
    return wanted


def _weight_gradients(
    below: Tensor, seen: Tensor, slopes: Tensor, sizes: Sequence[int]
) -> tuple[Tensor, ...]:
    """Those of a layer's inner weights, bias and turn: one product over all words each."""
    before = [part[:size] for part, size in zip(seen.split(sizes), sizes[1:])]
    turned = torch.cat(before or [seen[:0]]).to(slopes.dtype).mT @ slopes[sizes[0] :]
    return below.to(slopes.dtype).mT @ slopes, slopes.sum(0), turned


@dataclass(frozen=True)
class RecurrentRepresentation(HyperRepresentation):
    """Few-shot tasks on texts or pairs, as word numbers (tasks, examples[, 2], words), and a
    recurrent encoder.

    Args:
        vectors: standardised word vectors; they are not learned. The others are those of
            :class:`HyperRepresentation`.
        precision: one of :data:`PRECISIONS`.
        most: for half precision, how many texts of a minibatch have a first, second, ... word at
            most; :meth:`problem` counts them, for a CUDA graph cannot.

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

    def problem(
        self, batch_size: int | tuple[int, int] = 2, *, order: SampleOrder = "partition"
    ) -> BilevelProblem:
        """As that of :class:`HyperRepresentation`; in half precision the words of its minibatches
        are counted.
        """
        here = self
        if PRECISIONS[self.precision] is not None and order == "partition":
            here = replace(self, most=self._most(batch_size))
        return HyperRepresentation.problem(here, batch_size, order=order)

    def _most(self, batch_size: int | tuple[int, int]) -> tuple[int, ...]:
        """How many texts of a minibatch of either level have a first, second, ... word at most;
        nothing where the levels' minibatches differ in size.
        """
        above, below = batch_size if isinstance(batch_size, tuple) else (batch_size, batch_size)
        if above != below:
            return ()
        found = []
        for words, _ in (self.train.query, self.train.support):
            known = (words != 0).transpose(0, 1).flatten(2, -2).sum((1, 2))  # by example and word
            batches = known[: len(known) // above * above].unflatten(0, (-1, above)).sum(1)
            found.append(batches.max(0).values)
        texts = above * self.train.query[0][:, 0, ..., 0].numel()
        return (texts, *torch.maximum(*found).tolist()[1:])

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
        weights, vectors, words: as there.
        dtypes: of products, forward and backward.
        most: bounds on how many texts have a first, second, ... word, for as many texts as the
            first one says; they are counted where there are none for so many.
    """
    lengths, order = (words != 0).sum(1).sort(descending=True, stable=True)
    number, longest = words.shape
    if most and most[0] == number:
        sizes = list(most)
        # The first text that is not read at a word must not have it.
        short = [lengths[n] <= place for place, n in enumerate(sizes) if n < number]
        torch._assert_async(torch.stack([lengths[0] <= longest, *short]).all())
    elif words.is_cuda and torch.cuda.is_current_stream_capturing():
        sizes = [number] * longest
    else:
        places = torch.arange(1, longest, device=words.device)[:, None]
        sizes = [number, *(n for n in (lengths > places).sum(1).tolist() if n)]
    used = torch.cat([here[:size] for here, size in zip(words[order].t(), sizes)])
    weight = 1 / lengths.clamp(min=1).to(vectors.dtype)
    share = (used != 0) * torch.cat([weight[:size] for size in sizes])
    code: Tensor = HalfCode.apply(
        embedding(used, vectors), share[:, None], sizes, dtypes, *(weights[n] for n in WEIGHTS)
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
        tasks, ways, shots, features, decay, seed, dtype, device: as for ``hyper_representation``.
        precision: of products inside the encoder, ``"tf32"`` or ``"half"``.
    """
    one_of("precision", precision, PRECISIONS)
    positive("decay", decay)
    where, drawn = torch.device(device), []
    for (name, tables), number in zip(
        {"train": train, "validation": validation, "test": test}.items(), tasks
    ):
        levels = _draw(tables, number, ways, shots, seed, name)
        support, query = (
            (torch.from_numpy(a).to(where), torch.from_numpy(b).to(where)) for a, b in levels
        )
        drawn.append(Tasks(support, query))
    shapes = {
        "input": (vectors.shape[1], hidden),
        **dict.fromkeys(("first", "between", "second"), (hidden, hidden)),
        "join": ((4 if train[0].features.ndim == 3 else 1) * hidden, features),
    }
    start = recurrent_start(shapes, seed, "recurrent representation", dtype, where)
    table = torch.from_numpy(
        standardised(vectors, np.concatenate([t.features.ravel() for t in train]))
    )
    table = table.to(where, dtype)
    return RecurrentRepresentation(
        drawn[0], drawn[1], drawn[2], ways, decay, start, table, precision
    )


def made_up_vectors(vocabulary: int = 60) -> np.ndarray:
    """Vectors of made-up words."""
    from mindgap.lab.tasks.data.tweets import made_up_tweets

    return made_up_tweets(10, 2, vocabulary=vocabulary).vectors


def made_up_pairs(pairs: int = 600, length: int = 6, *, seed: int = 0) -> Table:
    """Pairs of made-up texts of three classes: both nice, both nasty, one of each kind."""
    from mindgap.lab.tasks.data.tweets import made_up_tweets

    made = made_up_tweets(2 * pairs + pairs // 2, length, seed=seed)
    moods = made.labels[: 2 * pairs].reshape(-1, 2).sum(1)
    return Table(made.words[: 2 * pairs].reshape(-1, 2, length), moods, "made-up pairs")


check_arguments(__name__)
