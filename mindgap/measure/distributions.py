"""Quantiles and draws that the instruments need, written with numpy so that the library needs
no scipy.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindgap.base.check import fail


def as_numbers(name: str, values: Any, *, dims: tuple[int, ...] = (1,)) -> NDArray[np.float64]:
    """The values as an array of float64; an error where they are no real numbers.

    Args:
        name: of the argument, for the error.
        dims: numbers of dimensions that are allowed.

    Example:
        >>> as_numbers("values", [1, 2]).tolist()
        [1.0, 2.0]
        >>> as_numbers("values", "abc")
        Traceback (most recent call last):
        mindgap.base.check.RuleError: values must be an array of real numbers, got 'abc'
    """
    try:
        array = np.asarray(values)
        if array.dtype.kind not in "fiub" or isinstance(values, dict):
            raise TypeError
    except (TypeError, ValueError, RuntimeError):
        fail(name, "must be an array of real numbers", values)
    if array.ndim not in dims:
        allowed = "1 dimension" if dims == (1,) else f"{' or '.join(map(str, dims))} dimensions"
        fail(name, f"must have {allowed}", array.shape)
    return array.astype(np.float64)


def student_quantile(share: float, freedom: float) -> float:
    """Value below which a Student number with ``freedom`` degrees of freedom lies with probability
    ``share``.

    By bisection on the upper tail P(T > t), which ``_student_tail`` gives for t >= 0; a share below
    one half is that of the mirrored value.

    Example:
        >>> round(student_quantile(0.95, 3), 4), round(student_quantile(0.5, 7.5), 4)
        (2.3534, 0.0)
    """
    if share < 0.5:
        return -student_quantile(1 - share, freedom)
    if share == 0.5:
        return 0.0
    low, high = 0.0, 1.0
    while _student_tail(high, freedom) > 1 - share:
        low, high = high, 2 * high
    while high - low > 1e-15 * high:  # halve until only rounding is left
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if _student_tail(middle, freedom) > 1 - share else (low, middle)
    return (low + high) / 2


def _student_tail(t: float, freedom: float) -> float:
    """P(T > t) of Student's law for t >= 0: half the regularised incomplete beta function I_x(a, b)
    at a = v/2, b = 1/2 and x = v / (v + t²), where v is ``freedom``.

    I_x(a, b) = x^a (1 - x)^b / (a B(a, b)) times the continued fraction of ``_beta_fraction``.
    """
    a, b, x = freedom / 2, 0.5, freedom / (freedom + t * t)
    if x >= 1:
        return 0.5
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    factor = math.exp(a * math.log(x) + b * math.log1p(-x) - log_beta)
    # The fraction converges quickly on one side of the mean; I_x(a, b) = 1 - I_(1-x)(b, a).
    if x < (a + 1) / (a + b + 2):
        return 0.5 * factor * _beta_fraction(a, b, x) / a
    return 0.5 - 0.5 * factor * _beta_fraction(b, a, 1 - x) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction 1/(1 + t1/(1 + t2/(1 + ...))) of the incomplete beta function (DLMF
    8.17.22), by Lentz's method.

    Even and odd terms t2, t3, ... are added in pairs, after t1 = -(a + b) x / (a + 1). c and d are
    the ratios of successive numerators and denominators of the partial fractions.
    """
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))  # with t1
    fraction = d
    for m in range(1, 10_000):  # terms t2m and t2m+1; far fewer are needed
        even_term = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd_term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even_term, odd_term):
            d, c = 1 / (1 + term * d), 1 + term / c
            fraction *= d * c
        if abs(d * c - 1) < 1e-16:
            break
    return fraction


def stable_draws(alpha: float, shape: Any, rng: np.random.Generator) -> NDArray[np.float64]:
    """Numbers of the symmetric stable law of index ``alpha`` with scale 1, by the method of
    Chambers, Mallows and Stuck (1976).

    X = sin(αV) / cos(V)^(1/α) · (cos((1 - α)V) / W)^((1-α)/α), with V uniform on (-π/2, π/2) and W
    exponential. Advances ``rng``.

    Example:
        >>> draws = stable_draws(1.5, 20_000, np.random.default_rng(0))
        >>> round(float(np.quantile(draws, 0.95) / np.quantile(draws, 0.75)), 1)
        3.1
    """
    angle, exponential = np.pi * (rng.random(shape) - 0.5), rng.exponential(size=shape)
    ratio = np.cos((1 - alpha) * angle) / exponential
    return np.sin(alpha * angle) / np.cos(angle) ** (1 / alpha) * ratio ** ((1 - alpha) / alpha)


def average_ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks from 1; equal values share their mean rank.

    Example:
        >>> average_ranks(np.array([5.0, 2.0, 5.0])).tolist()
        [2.5, 1.0, 2.5]
    """
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2  # of each group of equal values
    return mean_ranks[group]
