"""Gradient iterations over many runs at once, and the first time that each of them is ε-stationary.

One array holds every run: grid points and seeds along the leading axes. Runs that are finished are
dropped from the arrays, so that a grid costs as much as its slow members.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mindgap.base.checked import Count, Vectors, check_arguments

Array = np.ndarray
#: (gradient estimate of shape (runs, d), indices of the runs still going) -> effective step of
#: shape (runs,)
StepRule = Callable[[Array, Array], Array]


def first_hits(
    gradient: Callable[[Array, Array], Array],
    x0: Array,
    step: StepRule,
    epsilon: Array | float,
    limit: Count,
    noise: Callable[[int, Array], Array] | None = None,
) -> tuple[Array, Array]:
    """Iterate x <- x - h(g)·g for all runs and return when ‖∇f(x_t)‖ <= ε first held.

    A run ends there, or when its gradient's norm is no longer finite.

    Args:
        gradient: ``gradient(x, running)``: gradients at points ``x`` of shape (n, d), of the runs
            with the numbers ``running``, those not finished.
        x0: starting points, shape (runs, d).
        step: ``step(gradients, running)``: effective steps h of shape (n,).
        epsilon: accuracy, one number, or one per run.
        limit: most iterations.
        noise: ``noise(n, running)`` of shape (n, d) that is added to the gradient before the step;
            None for exact gradients.

    Returns:
        (T, x): T_ε of the thesis, (3.7), for every run, shape (runs,), ``limit + 1`` where it was
        not reached or the run became non-finite; and the last points, shape (runs, d).

    Example:
        >>> hits, _ = first_hits(
        ...     lambda x, running: x,
        ...     np.array([[1.0]]),
        ...     lambda gradients, running: np.full(len(gradients), 0.5),
        ...     epsilon=0.1,
        ...     limit=100,
        ... )
        >>> int(hits[0])  # 2^-4 is the first power of 1/2 below 0.1
        4
    """
    runs = len(x0)
    accuracies = np.broadcast_to(np.asarray(epsilon, dtype=float), (runs,))
    hits = np.full(runs, limit + 1)
    last_points = np.array(x0, dtype=float)
    running, x = np.arange(runs), last_points.copy()  # x[i] belongs to run running[i]
    with np.errstate(over="ignore", invalid="ignore"):
        for step_number in range(limit + 1):
            gradients = gradient(x, running)
            norm = np.sqrt((gradients * gradients).sum(-1))
            reached = norm <= accuracies[running]
            # A run that is no longer finite ends too, without a hit.
            finished = reached | ~np.isfinite(norm)
            if finished.any():
                hits[running[reached]] = step_number
                last_points[running[finished]] = x[finished]
                running, x, gradients = running[~finished], x[~finished], gradients[~finished]
                if not len(running):
                    break
            if step_number < limit:
                if noise is not None:
                    gradients = gradients + noise(len(running), running)
                x = x - step(gradients, running)[:, None] * gradients
    last_points[running] = x
    return hits, last_points


def row_norm(g: Vectors) -> Any:
    """‖g‖ of every row: the 2-norm along the last axis, which falls away.

    Example:
        >>> row_norm(np.array([[3.0, 4.0]])).tolist()
        [5.0]
    """
    return np.sqrt((g * g).sum(-1))


check_arguments(__name__)
