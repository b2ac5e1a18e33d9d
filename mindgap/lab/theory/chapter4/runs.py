"""Projected GClip and CClip over many runs at once, with the k-weighted average of Theorem 4.4.2.

The problems are f(x) = μ‖x - x*‖²/2 on a box; runs lie along the first axis, coordinates along the last.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mindgap.base.check import one_of, whole
from mindgap.lab.theory.chapter4.clipped_gradient import clip_coordinates, clip_global

Array = np.ndarray


def weighted_average_runs(gradient: Callable[[Array, int], Array], x0: Array, step: Callable[[int], float],
                          threshold: Callable[[int], Array | float], horizons: list[int], *, method: str,
                          box: tuple[float, float] | None = None) -> Array:
    """x̄_K = Σ_{j<=K} j x_{j-1} / Σ j of every run, at each of the horizons (thesis, Theorem 4.4.2 and (proj-GClip)).

    Args:
        gradient: stochastic gradient of all runs, ``gradient(x, k)`` with x of shape (runs, d).
        x0: starting points, shape (runs, d).
        step: η_k.
        threshold: τ_k, a number (gclip) or a number or vector (cclip).
        horizons: increasing K.
        method: "gclip" or "cclip".
        box: lower and upper limits of every coordinate for the projection; None for none.

    Returns:
        shape (len(horizons), runs, d).

    Example:
        >>> out = weighted_average_runs(lambda x, k: x - 1, np.zeros((1, 1)), lambda k: 4 / (k + 1),
        ...                             lambda k: 10.0, [1, 50], method="gclip")
        >>> float(out[0, 0, 0]), abs(float(out[1, 0, 0]) - 1) < 0.01
        (0.0, True)
    """
    one_of("method", method, ("gclip", "cclip"))
    clip = clip_global if method == "gclip" else clip_coordinates
    wanted = {whole("horizon", h, least=1) for h in horizons}
    x, total, out = np.array(x0, dtype=float), np.zeros(x0.shape), []
    for k in range(1, max(wanted) + 1):
        total += k * x
        if k in wanted:
            out.append(total / (k * (k + 1) / 2))
        x = x - step(k) * clip(gradient(x, k), threshold(k))
        if box is not None:
            x = np.clip(x, *box)
    return np.stack(out)
