"""Time averages of a training run: what settles on average although nothing settles at a point
(thesis, chapter 6).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mindgap.base.check import between, fail, whole
from mindgap.measure.distributions import as_numbers, student_quantile

Array = NDArray[np.float64]


@dataclass(frozen=True)
class OneStepChange:
    """The time average of the one-step change φ(θ_t) - φ(F(θ_t))."""

    sizes: NDArray[np.int64]  # n, growing
    change: Array  # ``|mean of the first n changes|``, the left side of Theorem 6.4.1 along one run
    lengths: NDArray[np.int64]  # lengths of disjoint blocks of consecutive steps
    spread: Array  # root mean square over the blocks of the block's mean change
    #: slope of log spread against log length: -1/2 when chance decides each step, -1 when the
    #: changes telescope (a deterministic map), 0 when φ moves on for good.
    exponent: float
    #: interval for the exponent, by leaving out one of sixteen stretches of the run at a time.
    interval: tuple[float, float]
    coefficient: float  # c of the fit ``spread = c / √n``


@dataclass(frozen=True)
class Drift:
    """Whether the time average still moves between two windows."""

    #: means over the two windows.
    early: float
    late: float
    change: float  # late - early
    interval: tuple[float, float]  # of the change; takes the series' own correlation into account
    drifts: bool  # True when zero lies outside the interval


@dataclass(frozen=True)
class Oscillation:
    """Oscillation against trend."""

    trend: float  # rise of the straight line through the series, from its first to its last value
    oscillation: float  # standard deviation around that line
    ratio: float  # |trend| / oscillation; below 1 the series moves around more than it moves on
    #: |last - first| / sum of |steps|: 1 for a monotone series, towards 0 for one that goes to and
    #: fro.
    path_ratio: float
    period: float  # length of the strongest cycle around the line, in steps
    share: float  # part of the variance around the line that the strongest cycle explains


def running_average(values: Any) -> Array:
    """Means of the first 1, 2, ... values, along the last axis (thesis, Fig. 6-5 and 6-6).

    Example:
        >>> running_average([1.0, 3.0, 5.0]).tolist()
        [1.0, 2.0, 3.0]
    """
    series = as_numbers("values", values, dims=(1, 2, 3))
    return np.cumsum(series, axis=-1) / np.arange(1, series.shape[-1] + 1)


def window_average(values: Any, window: int) -> Array:
    """Means of ``window`` consecutive values, at every start: M_t of Lemma 6.4.2.

    Example:
        >>> window_average([1.0, 3.0, 5.0], 2).tolist()
        [2.0, 4.0]
    """
    series = as_numbers("values", values, dims=(1, 2, 3))
    whole("window", window, least=1)
    if window > series.shape[-1]:
        fail("window", f"must be at most the series' length {series.shape[-1]}", window)
    return np.lib.stride_tricks.sliding_window_view(series, window, axis=-1).mean(-1)


def one_step_change(values: Any, following: Any = None, *, level: float = 0.9) -> OneStepChange:
    """Time average of φ(θ_t) - φ(F(θ_t)) and how it falls with the number of steps (thesis, Theorem
    6.4.1 and (6.6)). φ is a function of the iterate θ_t with |φ| <= M, and F makes one update.

    Args:
        values: φ(θ_t) along the run, at least 64 finite numbers.
        following: φ(F(θ_t)), or its mean over the randomness of one update, for the same t; None:
            the next value of the run itself, for which the sum telescopes and the change is at most
            2M/n.
        level: of the exponent's interval.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> phi = rng.uniform(-1, 1, 4096)  # F forgets its argument: E φ(F(θ)) = 0
        >>> found = one_step_change(phi, np.zeros(4096))
        >>> round(found.exponent, 1), round(found.coefficient, 1)
        (-0.5, 0.6)
    """
    between("level", level, 0, 1, ends="()")
    series = _as_series("values", values)
    after = series[1:] if following is None else _as_series("following", following)
    if following is not None and len(after) != len(series):
        fail("following", f"must have one value for each of {len(series)} steps", len(after))
    steps = series[: len(after)] - after
    count = len(steps)
    sizes = np.unique(np.geomspace(1, count, 40).astype(np.int64))
    change = np.abs(np.cumsum(steps)[sizes - 1] / sizes)
    # The run is cut into sixteen stretches, and each stretch into blocks. Leaving out one stretch
    # at a time (jackknife) gives the error of the slope.
    stretch_length = count // 16
    lengths = np.array([2**e for e in range(int(math.log2(stretch_length)) + 1)], dtype=np.int64)
    stretches = steps[: 16 * stretch_length].reshape(16, stretch_length)
    # Mean squares of block means, shape (lengths, 16).
    squares = np.stack(
        [np.square(_block_means(stretches, int(length))).mean(axis=1) for length in lengths]
    )
    spread = np.sqrt(squares.mean(axis=1))
    if not (spread > 0).all():
        return OneStepChange(sizes, change, lengths, spread, -math.inf, (-math.inf, -math.inf), 0.0)
    slope, coefficient = _fit_spread(lengths, spread)
    total = squares.sum(axis=1, keepdims=True)
    # Column j is the spread without stretch j.
    spread_without = np.sqrt(np.maximum(total - squares, 1e-300) / 15)
    slopes_without = np.array([_fit_spread(lengths, column)[0] for column in spread_without.T])
    # The jackknife's error of sixteen estimates, which has 15 degrees of freedom.
    error = math.sqrt(15 / 16 * float(np.sum((slopes_without - slopes_without.mean()) ** 2)))
    reach = student_quantile(0.5 + level / 2, 15) * error
    return OneStepChange(
        sizes=sizes,
        change=change,
        lengths=lengths,
        spread=spread,
        exponent=slope,
        interval=(slope - reach, slope + reach),
        coefficient=coefficient,
    )


def _fit_spread(lengths: NDArray[np.int64], spread: Array) -> tuple[float, float]:
    """Slope of log spread on log length by weighted least squares, and c of the fit ``spread =
    c / √length``. Long blocks are few and count less: weights are 1 / length.
    """
    log_length, log_spread, weights = np.log(lengths), np.log(spread), 1 / lengths
    centred_length = log_length - np.average(log_length, weights=weights)
    centred_spread = log_spread - np.average(log_spread, weights=weights)
    slope = np.sum(weights * centred_length * centred_spread) / np.sum(weights * centred_length**2)
    coefficient = np.exp(np.average(log_spread + log_length / 2, weights=weights))
    return float(slope), float(coefficient)


def drift(values: Any, *, share: float = 0.5, level: float = 0.9) -> Drift:
    """Difference between the means of the first and the last part of a series of 64 values or more,
    with an interval.

    Neighbouring iterates are alike, so that the usual standard error is far too small: each window
    is cut into about ∛n blocks whose means are nearly independent (batch means), and their spread
    gives the error. Where values are alike over more than a block the interval is too narrow (an
    AR(1) series of 0.99 and 2,000 values drifts in 30 % of cases, not in 10 %).

    Args:
        share: length of each window as a part of the series, at most one half.
        level: of the interval.

    Example:
        >>> drift(np.sin(2 * np.pi * np.arange(480) / 12)).drifts
        False
        >>> drift(np.arange(480.0)).drifts
        True
    """
    between("share", share, 0, 0.5, ends="(]")
    between("level", level, 0, 1, ends="()")
    series = _as_series("values", values)
    window_length = max(16, int(share * len(series)))  # enough for four blocks of four
    early, late = series[:window_length], series[-window_length:]
    squared_errors, degrees_of_freedom = [], 0  # of the means of both windows
    for window in (early, late):
        blocks = max(4, round(window_length ** (1 / 3)))
        block_means = _block_means(window, window_length // blocks)
        squared_errors.append(float(np.var(block_means, ddof=1)) / len(block_means))
        degrees_of_freedom += len(block_means) - 1
    change = float(late.mean() - early.mean())
    # What is left after exact cancellation (a cycle) is rounding, not drift.
    error = math.sqrt(sum(squared_errors)) + 1e-12 * float(np.abs(series).max())
    reach = student_quantile(0.5 + level / 2, degrees_of_freedom) * error
    return Drift(
        early=float(early.mean()),
        late=float(late.mean()),
        change=change,
        interval=(change - reach, change + reach),
        drifts=not change - reach <= 0 <= change + reach,
    )


def oscillation(values: Any) -> Oscillation:
    """Compare how much a series of 64 values or more oscillates around a straight line with how
    much the line rises, and find the length of the strongest cycle around it.

    The cycle is the highest point of the periodogram around the fitted line, refined between the
    frequencies of the grid by a parabola through the logarithms of the three points at the top.

    Example:
        >>> found = oscillation(np.sin(2 * np.pi * np.arange(600) / 12))
        >>> round(found.period, 3), found.ratio < 0.2
        (12.0, True)
    """
    series = _as_series("values", values)
    count = len(series)
    centred_time = np.arange(count) - (count - 1) / 2
    slope = float(centred_time @ series / (centred_time @ centred_time))
    detrended = series - series.mean() - slope * centred_time
    spread, trend = float(np.std(detrended)), slope * (count - 1)
    path = float(np.abs(np.diff(series)).sum())
    path_ratio = abs(float(series[-1] - series[0])) / path if path > 0 else 1.0
    if spread <= 1e-12 * max(float(np.abs(series).max()), 1e-300):  # a straight line
        return Oscillation(trend, 0.0, math.inf if trend else 0.0, path_ratio, math.inf, 0.0)
    power = np.abs(np.fft.rfft(detrended * np.hanning(count))) ** 2
    peak = int(np.argmax(power[1:])) + 1
    peak_place = float(peak)
    if 1 < peak < len(power) - 1 and min(power[peak - 1], power[peak + 1]) > 0:
        # The parabola through (-1, below), (0, at_peak), (1, above) has its top here.
        below, at_peak, above = np.log(power[peak - 1 : peak + 2])
        curvature = float(below - 2 * at_peak + above)
        peak_place += 0.5 * float(below - above) / curvature if curvature else 0.0
    phase = 2 * np.pi * peak_place / count * np.arange(count)
    cycle = np.stack([np.cos(phase), np.sin(phase)], axis=1)
    coefficients, *_ = np.linalg.lstsq(cycle, detrended, rcond=None)
    share = 1 - float(np.var(detrended - cycle @ coefficients) / np.var(detrended))
    return Oscillation(
        trend=trend,
        oscillation=spread,
        ratio=abs(trend) / spread,
        path_ratio=path_ratio,
        period=count / peak_place,
        share=max(share, 0.0),
    )


def _as_series(name: str, values: Any) -> Array:
    """A series of at least 64 finite numbers; an error where it is not."""
    series = as_numbers(name, values)
    if len(series) < 64:
        fail(name, "must be a series of at least 64 values", f"shape {series.shape}")
    if not np.isfinite(series).all():
        fail(name, "must be finite", f"{int(np.sum(~np.isfinite(series)))} values that are not")
    return series


def _block_means(series: Array, length: int) -> Array:
    """Means of consecutive blocks of this length along the last axis; what is left at its end is
    dropped.
    """
    used = series.shape[-1] // length * length
    return series[..., :used].reshape(*series.shape[:-1], -1, length).mean(axis=-1)
