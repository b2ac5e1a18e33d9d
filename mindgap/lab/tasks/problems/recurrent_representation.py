"""Hyper-representation with a recurrent encoder: the problem of the SLIP paper's Fig. 1, on words.

As :mod:`~mindgap.lab.tasks.problems.representation`, with x the weights of a two-layer tanh RNN
over frozen word vectors, its mean over the words, and one tanh layer on that, or on (u, v, (u -
v)², u v) of a pair.

The heads alone are differentiated twice, so that a wide encoder may have a backward pass of its own
(:class:`HalfCode`): products of 16 bits, and one product per weight matrix over all words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding

from mindgap.base.check import fail, one_of, positive
from mindgap.base.checked import check_arguments
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
    """

    @staticmethod
    def forward(
        ctx: Any,
        read: Tensor,
        share: Tensor,
        dtypes: tuple[torch.dtype, torch.dtype],
        *weights: Tensor,
    ) -> Tensor:
        """The mean over the words of the second layer's units.

        Args:
            ctx: keeps what the backward pass needs.
            read: (length, texts, dimensions) word vectors.
            share: (length, texts) weight of each word.
            dtypes: of products, forward and backward.
            weights: those of :data:`WEIGHTS`.
        """
        inner, bias, turn, between, second_bias, second = (w.to(dtypes[0]) for w in weights)
        words = read.to(dtypes[0])
        first = _turns(words, inner, bias, turn)
        later = _turns(first, between, second_bias, second)
        ctx.save_for_backward(words, share, first, later, *weights)
        ctx.dtypes = dtypes
        return torch.einsum("lt,lth->th", share.to(dtypes[0]), later).to(weights[0].dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the weights, in their own type; words have none."""
        if torch.is_grad_enabled():
            fail("precision", "must be tf32 where an encoder is differentiated twice", "half")
        words, share, first, later, *weights = ctx.saved_tensors
        back = ctx.dtypes[1]
        _, _, turn, between, _, second = (w.to(back) for w in weights)
        slopes = _slopes(share.to(back)[..., None] * grad.to(back), later, second)
        found = _weight_gradients(first, later, slopes)
        slopes = _slopes(slopes @ between.mT, first, turn)
        found = _weight_gradients(words, first, slopes) + found
        return None, None, None, *(g.to(w.dtype) for g, w in zip(found, weights, strict=True))


#: The weights of the two layers, in the order of :class:`HalfCode`.
WEIGHTS = ("input", "first_bias", "first", "between", "second_bias", "second")


def _turns(below: Tensor, inner: Tensor, bias: Tensor, turn: Tensor) -> Tensor:
    """One layer: what its units say after each word."""
    seen = torch.addmm(bias, below.flatten(0, 1), inner).view(*below.shape[:2], -1)
    seen[0].tanh_()
    for before, here in pairwise(seen):
        here.addmm_(before, turn).tanh_()
    return seen


def _slopes(wanted: Tensor, seen: Tensor, turn: Tensor) -> Tensor:
    """Derivatives by what enters each unit; ``wanted`` (those by what the units say) is
    overwritten.
    """
    bent = torch.addcmul(seen.new_ones(()), seen, seen, value=-1).to(wanted.dtype)
    wanted[-1] *= bent[-1]
    for place in range(len(seen) - 2, -1, -1):
        wanted[place].addmm_(wanted[place + 1], turn.mT).mul_(bent[place])
    return wanted


def _weight_gradients(below: Tensor, seen: Tensor, slopes: Tensor) -> tuple[Tensor, ...]:
    """Those of a layer's inner weights, bias and turn: one product over all words each."""
    below, seen = below.to(slopes.dtype), seen[:-1].to(slopes.dtype)
    inner = below.flatten(0, 1).mT @ slopes.flatten(0, 1)
    return inner, slopes.sum((0, 1)), seen.flatten(0, 1).mT @ slopes[1:].flatten(0, 1)


@dataclass(frozen=True)
class RecurrentRepresentation(HyperRepresentation):
    """Few-shot tasks on texts or pairs, as word numbers (tasks, examples[, 2], words), and a
    recurrent encoder.

    Args:
        vectors: standardised word vectors; they are not learned. The others are those of
            :class:`HyperRepresentation`.
        precision: one of :data:`PRECISIONS`.

    Example:
        >>> made = made_up_pairs(400)
        >>> sizes = {"tasks": (6, 3, 3), "shots": 4, "hidden": 3}
        >>> task = recurrent_representation([made], [made], [made], made_up_vectors(), **sizes)
        >>> task.problem(2).dim_y, task.problem(2).lower_data.batches
        (60, 4)
    """

    vectors: Tensor
    precision: str = "tf32"

    @property
    def y0(self) -> Tensor:
        """The heads of the training tasks at the start: zeros."""
        return self.vectors.new_zeros(len(self.train), self.start["join"].shape[1] + 1, self.ways)

    def encode(self, x: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """φ_x: word numbers (..., words), or (..., 2, words) for an encoder of pairs, to
        features and a 1.
        """
        texts, dtypes = inputs.flatten(0, -2), PRECISIONS[self.precision]
        if dtypes is None:
            code = recurrent_code(x, self.vectors, texts)
        else:
            code = half_code(x, self.vectors, texts, dtypes)
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
) -> Tensor:
    """:func:`~mindgap.lab.tasks.problems.recurrent_cleaning.recurrent_code` by :class:`HalfCode`:
    (texts, hidden).
    """
    known = (words.t() != 0).to(vectors.dtype)
    share = known / known.sum(0).clamp(min=1)
    read = embedding(words.t(), vectors)
    code: Tensor = HalfCode.apply(read, share, dtypes, *(weights[name] for name in WEIGHTS))
    return code


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
