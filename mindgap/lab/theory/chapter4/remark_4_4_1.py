"""Remark 4.4.1 and appendix A of acclip: fixed steps carry the noise's tail into every iterate.

On f(x) = x²/2 the iterate is a fixed linear combination of the noise: x_k = A_k x_0 - Σ_j w_j ξ_j. With stable noise
x_k is stable again, with the same index and an exact scale, so E|x_k|^p is infinite for every p >= the index, whatever
the steps.

*Differs from the papers*: appendix A bounds Σ η_j² E‖ξ_j‖² from below by (Σ η_j²) max_j E‖ξ_j‖², which is the wrong
direction unless the noise is stationary, and loses the 1/2 of f; neither changes the conclusion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mindgap.base.check import fail
from mindgap.lab.theory.noise import Stable


class LinearIterate(NamedTuple):
    """x_k = keep·x_0 - Σ_j weights_j ξ_j.

    Example:
        >>> LinearIterate(keep=0.0, weights=np.ones(1)).keep
        0.0
    """

    keep: float
    weights: np.ndarray


def sgd_iterate(steps: Sequence[float] | np.ndarray) -> LinearIterate:
    """The coefficients of x_k after SGD with those steps on x²/2: w_j = η_j Π_{i>j}(1 - η_i).

    Example:
        >>> it = sgd_iterate([0.5, 0.5])
        >>> it.keep, it.weights.tolist()
        (0.25, [0.25, 0.5])

    Source: thesis, Remark 4.4.1.
    """
    eta = np.asarray(steps, dtype=float)
    if eta.ndim != 1 or not eta.size or not (eta > 0).all():
        fail("steps", "must be a non-empty list of positive numbers", steps)
    after = np.concatenate([np.cumprod((1 - eta)[::-1])[::-1][1:], [1.0]])
    return LinearIterate(float(np.prod(1 - eta)), eta * after)


def stable_iterate_law(law: Stable, steps: Sequence[float] | np.ndarray) -> Stable:
    """The exact law of x_k - keep·x_0 under stable noise: stable, scale s·(Σ|w_j|^a)^(1/a).

    Example:
        >>> stable_iterate_law(Stable(index=1.5), [1.0]).moment(2.0)
        inf

    Source: thesis, Remark 4.4.1.
    """
    w = np.abs(sgd_iterate(steps).weights)
    return Stable(law.index, float(np.asarray(law.scale)) * float((w**law.index).sum() ** (1 / law.index)))
