"""Hyper-representation with a recurrent encoder: the problem of the SLIP paper's Fig. 1, on words.

As :mod:`~mindgap.lab.tasks.problems.representation`, with x the weights of a two-layer tanh RNN
over frozen word vectors, its mean over the words, and one tanh layer on that, or on (u, v, (u -
v)², u v) of a pair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mindgap.base.check import positive
from mindgap.base.checked import check_arguments
from mindgap.lab.tasks.data.tabular import Table
from mindgap.lab.tasks.problems.recurrent_cleaning import (
    recurrent_code,
    recurrent_start,
    standardised,
)
from mindgap.lab.tasks.problems.representation import HyperRepresentation, Tasks, _draw


@dataclass(frozen=True)
class RecurrentRepresentation(HyperRepresentation):
    """Few-shot tasks on texts or pairs, as word numbers (tasks, examples[, 2], words), and a
    recurrent encoder.

    Args:
        vectors: standardised word vectors; they are not learned. The others are those of
            :class:`HyperRepresentation`.

    Example:
        >>> made = made_up_pairs(400)
        >>> sizes = {"tasks": (6, 3, 3), "shots": 4, "hidden": 3}
        >>> task = recurrent_representation([made], [made], [made], made_up_vectors(), **sizes)
        >>> task.problem(2).dim_y, task.problem(2).lower_data.batches
        (60, 4)
    """

    vectors: Tensor

    @property
    def y0(self) -> Tensor:
        """The heads of the training tasks at the start: zeros."""
        return self.vectors.new_zeros(len(self.train), self.start["join"].shape[1] + 1, self.ways)

    def encode(self, x: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """φ_x: word numbers (..., words), or (..., 2, words) for an encoder of pairs, to
        features and a 1.
        """
        code = recurrent_code(x, self.vectors, inputs.flatten(0, -2)).view(*inputs.shape[:-1], -1)
        if x["join"].shape[0] != x["first"].shape[0]:
            u, v = code.unbind(-2)
            code = torch.cat([u, v, (u - v).square(), u * v], -1)
        features = torch.tanh(code @ x["join"] + x["join_bias"])
        return torch.cat([features, torch.ones_like(features[..., :1])], -1)


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
) -> RecurrentRepresentation:
    """Draw tasks from tables of texts or of sentence pairs, and an encoder.

    Args:
        train, validation, test: tables of word numbers (texts, words) or (pairs, 2, words).
        vectors: (vocabulary, dimensions); row 0 is that of no word.
        hidden: units of each recurrent layer.
        tasks, ways, shots, features, decay, seed, dtype, device: as for ``hyper_representation``.
    """
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
    return RecurrentRepresentation(drawn[0], drawn[1], drawn[2], ways, decay, start, table)


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
