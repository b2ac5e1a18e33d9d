"""Theorem 6.4.1: the time-averaged one-step change of a bounded function falls like 1/√n."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mindgap.base.check import whole
from mindgap.base.checked import Positive, Share

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class BoundedValues:
    """φ ∘ F takes values in [-M, M]; the statement is asked for with probability 1 - δ.

    Args:
        M: bound of |φ(F(θ))|, positive.
        delta: probability with which the bound may fail, in (0, 1).

    Example:
        >>> BoundedValues(M=-1.0, delta=0.05)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: M must be positive and finite, got -1.0

    Source: thesis, Theorem 6.4.1.
    """

    M: Positive
    delta: Share


def one_step_change_bound(constants: BoundedValues, n: int) -> float:
    """2M/n + M √(2 ln(2/δ)/n): what |E_{θ~μ_n}[φ(θ) - φ(F(θ))]| stays below with probability 1 - δ.

    The sum telescopes up to φ(F(θ_0)) - φ(F(θ_n)), at most 2M, and martingale differences with conditional range
    2M, for which Azuma and Hoeffding give the second term.

    Args:
        constants: M and δ.
        n: number of iterates in the empirical measure.

    Example:
        >>> round(one_step_change_bound(BoundedValues(M=1.0, delta=0.05), 10_000), 4)
        0.0274

    Source: thesis, (6.6) and 6.7.1, with the constants that the proof implies.

    *Differs from the paper.* The paper states O(log(1/δ)/√n); its proof gives √log(2/δ). The paper's φ(θ_0) in the
    telescoped sum must be φ(F(θ_0)): φ is bounded on the image of F only, and θ_0 need not lie there.
    """
    whole("n", n, least=1)
    return 2 * constants.M / n + constants.M * math.sqrt(2 * math.log(2 / constants.delta) / n)


def one_step_change(values: np.ndarray, expected_next: np.ndarray) -> np.ndarray:
    """|(1/n) Σ_t (φ(θ_t) - E φ(F(θ_t)))| for n = 1, 2, ..., along the last axis.

    Args:
        values: φ(θ_t), shape (..., n).
        expected_next: E[φ(F(θ_t)) | θ_t], the mean over the randomness of one update, same shape.

    Example:
        >>> import numpy as np
        >>> one_step_change(np.array([1.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0])).round(3)
        array([1.   , 0.   , 0.333])

    Source: thesis, left side of (6.6).
    """
    import numpy as np

    gap = np.asarray(values, dtype=float) - np.asarray(expected_next, dtype=float)
    return np.abs(gap.cumsum(axis=-1)) / np.arange(1, gap.shape[-1] + 1)
