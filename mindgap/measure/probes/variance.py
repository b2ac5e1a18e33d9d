"""Empirical variance of the gradient noise against sample size: it settles if the variance is
finite, or else grows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mindgap.base.check import between, fail, whole
from mindgap.base.rng import numpy_stream
from mindgap.measure.distributions import as_numbers

if TYPE_CHECKING:
    from mindgap.measure.probes.noise import NoiseSample

Array = NDArray[np.float64]

#: The variance grows if the exponent's interval lies above GROWS (the exponent of a tail of index
#: 1.74), and settles if it lies below SETTLES. In between are heavy tails of finite variance
#: (Student 3: 0.11 at n = 2000) and stable laws near index 2 (1.8: 0.10).
SETTLES, GROWS = 0.08, 0.15
#: Where one minibatch has this share of the sum of squares, nothing has settled.
LARGE = 0.25


@dataclass(frozen=True)
class VarianceGrowth:
    """How the mean of ``‖n_b‖²`` over m minibatches changes with m."""

    sizes: NDArray[np.int64]  # m, growing
    running: Array  # the mean over the first m minibatches, as the papers draw it
    #: 5 %, 50 % and 95 % quantiles over random choices of m minibatches.
    low: Array
    median: Array
    high: Array
    #: slope of log median against log m for m up to a quarter of the sample; 2/α - 1 for a tail of
    #: index α < 2, towards 0 for a finite variance.
    exponent: float
    interval: tuple[float, float]  # bootstrap interval of the exponent
    #: the largest ``‖n_b‖²`` over their sum; it goes to 0 exactly when the variance is finite
    largest_share: float
    settles: bool | None  # True, False, or None where the sample cannot tell

    @property
    def answer(self) -> str:
        """One plain sentence."""
        unsure = f"cannot tell from {int(self.sizes[-1])} samples whether the variance settles"
        conclusion = {
            True: "the variance settles",
            False: "the variance grows with the sample",
            None: unsure,
        }[self.settles]
        low, high = self.interval
        return (
            f"{conclusion} (like m^{self.exponent:.2f} [{low:.2f}, {high:.2f}] over m minibatches)"
        )


def variance_growth(
    sample: NoiseSample | Any,
    *,
    level: float = 0.9,
    bootstrap: int = 100,
    shuffles: int = 40,
    seed: int = 0,
) -> VarianceGrowth:
    """The mean of ``‖n_b‖²`` over the first m noise norms, for growing m, and whether it settles.

    Args:
        sample: a ``NoiseSample`` or an array of noise norms, 128 or more.
        level: coverage of the exponent's interval.
        bootstrap: number of resamples for that interval.
        shuffles: number of random orders for the exponent; the bands come from as many, but at
            least 40.
        seed: names the random numbers.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> variance_growth(np.abs(rng.standard_normal(2000))).answer
        'the variance settles (like m^0.02 [0.01, 0.02] over m minibatches)'
        >>> variance_growth(np.abs(rng.standard_cauchy(2000))).settles
        False

    Source: thesis, Fig. 4-1 (c), (f); acclip, Fig. 2 (c), (f).

    Differs from the paper: the papers look at one curve. One curve may settle or jump by chance, so
    the exponent here is that of the median over random orders, with an interval.
    """
    between("level", level, 0, 1, ends="()")
    whole("bootstrap", bootstrap, least=20, most=100_000)
    whole("shuffles", shuffles, least=1, most=100_000)
    norms = as_numbers("sample", getattr(sample, "norms", sample))
    if len(norms) < 128:
        fail("sample", "must hold at least 128 norms", len(norms))
    if not np.isfinite(norms).all() or not norms.any():
        fail("sample", "must be finite and not all zero", norms)
    # Scaled by the largest, so that squares of huge norms do not overflow before the end.
    largest = np.abs(norms).max()
    squares = np.square(norms / largest)
    count = len(squares)
    with np.errstate(over="ignore"):
        scale = np.square(largest)  # of the squares
    rng = numpy_stream(seed, "variance growth")
    sizes = np.unique(np.geomspace(8, count, 30).astype(np.int64))  # m, of the curves
    curves = np.stack(
        [_running_means(rng.permutation(squares), sizes) for _ in range(max(shuffles, 40))]
    )
    low, median, high = np.quantile(curves, [0.05, 0.5, 0.95], axis=0) * scale
    exponent = _exponent(squares, shuffles, rng)
    resampled = [
        _exponent(squares[rng.integers(0, count, count)], shuffles, rng) for _ in range(bootstrap)
    ]
    least, most = map(float, np.quantile(resampled, [0.5 - level / 2, 0.5 + level / 2]))
    # Resamples repeat values, which moves them off the sample's own exponent.
    least, most = min(least, exponent), max(most, exponent)
    largest_share = float(squares.max() / squares.sum())
    is_decided = (most < SETTLES and largest_share < LARGE) or least > GROWS
    return VarianceGrowth(
        sizes=sizes,
        running=_running_means(squares, sizes) * scale,
        low=low,
        median=median,
        high=high,
        exponent=exponent,
        interval=(least, most),
        largest_share=largest_share,
        settles=most < SETTLES if is_decided else None,
    )


def _running_means(squares: Array, sizes: NDArray[np.int64]) -> Array:
    """Means of the first m values, for every m of ``sizes``; shape (sizes,)."""
    return np.cumsum(squares)[sizes - 1] / sizes


def _exponent(squares: Array, shuffles: int, rng: np.random.Generator) -> float:
    """The slope of log median against log m, where the median is that of the means of disjoint
    groups of m values: m = n/128 (at least 16), doubling up to n/4.

    The median mean of fewer than 16 values grows for every skew law, heavy-tailed or not.

    Args:
        squares: n values of ``‖n_b‖²``, up to a factor.
        shuffles: random orders of the values from which groups are made.
    """
    count = len(squares)
    smallest = max(16, count // 128)
    doublings = int(math.log2(count / 4 / smallest))
    sizes = [smallest * 2**i for i in range(doublings + 1)]
    shuffled = np.stack([rng.permutation(squares) for _ in range(shuffles)])
    medians = []
    for size in sizes:
        groups = shuffled[:, : count // size * size].reshape(shuffles, -1, size)
        medians.append(np.median(groups.mean(axis=2)))
    # The first coefficient of the line is its slope; a median of zero has no logarithm.
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(medians, 1e-300)), 1)[0])
