"""Lower solvers: stochastic gradient steps on g(x, .) at a fixed x, in the variants the methods use."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mindgap.bilevel.sample import Sample


def project_ball(ops: Any, v: Any, centre: Any, radius: float) -> Any:
    """The nearest point to ``v`` in the ball around ``centre``; an infinite radius leaves it where it is.

    Example:
        >>> import torch
        >>> from mindgap.bilevel.ops import TorchOps
        >>> project_ball(TorchOps, torch.tensor([3.0, 4.0]), torch.zeros(2), 1.0)
        tensor([0.6000, 0.8000])
    """
    if math.isinf(radius):
        return v
    away = v - centre
    # The floor only keeps the quotient finite at the centre, where the factor is 1 anyway.
    return centre + ops.minimum(radius / ops.maximum(ops.norm(away), 1e-30), 1.0) * away


def project_y(oracle: Any, y: Any) -> Any:
    """The nearest allowed y, where the problem restricts it."""
    return y if oracle.project_y is None else oracle.project_y(y)


def descend(oracle: Any, x: Any, y: Any, tokens: Sample, lr: Any, *, length: Any = None, exponent: float = 0.0) -> Any:
    """Steps ``y -= lr / (i + 1)^exponent g_y(x, y; S_i)``, projected if the problem says so.

    Args:
        tokens: one a step.
        lr: the first step.
        length: how many of the tokens are used; all if not given.
        exponent: how the step falls within the loop.
    """
    move = oracle.ops.move
    if not exponent:
        return oracle.ops.loop(
            lambda y, token: project_y(oracle, move(y, oracle.lower(x, y, token), lr)), y, (tokens,), length=length
        )
    falls = np.arange(1.0, len(tokens.which) + 1) ** -exponent
    return oracle.ops.loop(
        lambda y, token, fall: project_y(oracle, move(y, oracle.lower(x, y, token), lr * fall)),
        y,
        (tokens, falls),
        length=length,
    )


def descend_average(oracle: Any, x: Any, y: Any, tokens: Sample, lr: Any, radius: float, count: int) -> Any:
    """Projected steps in the ball B(y, R) around the start; returns the mean of the ``count`` iterates after the start.

    Source: UpdateLower of BO-REP (Hao, Gong, Liu 2024).
    """
    ops, centre = oracle.ops, y

    def step(carry: tuple[Any, Any], token: Sample) -> tuple[Any, Any]:
        y, total = carry
        y = project_ball(ops, ops.move(y, oracle.lower(x, y, token), lr), centre, radius)
        y = project_y(oracle, y)
        return y, total + y

    _, total = ops.loop(step, (y, ops.zeros_like(y)), (tokens,))
    return total / count


def epoch_sgd_lengths(first: int, epochs: int) -> list[int]:
    """Steps in each epoch of epoch-SGD: T_{s+1} = 2 T_s.

    Example:
        >>> epoch_sgd_lengths(4, 3)
        [4, 8, 16]
    """
    return [first * 2**s for s in range(epochs)]


def epoch_sgd(oracle: Any, x: Any, y: Any, tokens: list[Sample], lr: float, radius: float) -> Any:
    """Epochs of averaged projected descent, each with half the step and a ball smaller by the root of two.

    T_{s+1} = 2 T_s, alpha_{s+1} = alpha_s / 2, D_{s+1} = D_s / sqrt 2.

    Args:
        tokens: the tokens of each epoch (their number is T_s).

    Source: initialisation refinement of BO-REP, after Hazan & Kale 2014 and Ghadimi & Lan 2013.
    """
    for s, part in enumerate(tokens):
        count = len(part.which)
        y = descend_average(oracle, x, y, part, lr / 2**s, radius / math.sqrt(2) ** s, count)
    return y
