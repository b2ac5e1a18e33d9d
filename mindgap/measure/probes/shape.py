"""How far apart the shapes of two samples of noise norms are, and how far two samples of one
shape would be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mindgap.base.check import fail, whole
from mindgap.base.rng import numpy_stream
from mindgap.measure.distributions import as_numbers

if TYPE_CHECKING:
    from mindgap.measure.probes.noise import NoiseSample

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ShapeDistance:
    """A distance between two shapes."""

    #: the largest difference between the two distribution functions of norm over median norm, in
    #: [0, 1/2] up to rounding: both are 1/2 at 1.
    distance: float
    #: 5 %, 50 % and 95 % quantiles of the same distance when the samples are mixed at random.
    null: tuple[float, float, float]
    p_value: float  # share of such mixtures whose distance is as large or larger

    @property
    def answer(self) -> str:
        """One plain sentence."""
        return (
            f"shapes {self.distance:.3f} apart; of one shape they would be {self.null[1]:.3f} "
            "apart, in one of twenty "
            f"cases more than {self.null[2]:.3f} (p = {self.p_value:.2g})"
        )


def shape_distance(
    one: NoiseSample | Any, other: NoiseSample | Any, *, permutations: int = 499, seed: int = 0
) -> ShapeDistance:
    """Compare the shapes of two laws of noise norms: what is left of them when each is divided by
    its median.

    The distance is Kolmogorov's between the two samples of norm / median, D = max |F(r) - G(r)|:
    the share of the minibatches that lie elsewhere. Two concentrated laws of which one spreads one
    and a half times as much as the other are about 0.1 apart. The null mixes the two standardised
    samples at random, divides each part by its own median again and measures anew, so that samples
    of one shape and different scales are not called different. In simulations of 300 pairs of 256
    norms, 4 to 8 % of pairs of one shape have p ≤ 0.05 (exponential, log-normal, concentrated and
    heavy-tailed norms); a law with a sharp edge below, such as Pareto's, 8 to 10 %. Source: thesis,
    Fig. 4-2; acclip, Fig. 5, where histograms are compared by eye.

    Args:
        one, other: ``NoiseSample`` s, or arrays of 30 positive norms or more.
        permutations: random mixtures for the null.
        seed: names their random numbers.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> found = shape_distance(rng.exponential(size=400), 7 * rng.exponential(size=400))
        >>> found.p_value > 0.05  # one shape, two scales
        True
        >>> found = shape_distance(rng.exponential(size=400), rng.uniform(size=400))
        >>> found.p_value  # two shapes, 1/4 apart
        0.002
    """
    whole("permutations", permutations, least=20, most=1_000_000)
    first, second = _norms_over_median("one", one), _norms_over_median("other", other)
    distance = _kolmogorov_distance(first, second)
    pooled, rng = np.concatenate([first, second]), numpy_stream(seed, "shape distance")
    nulls = np.empty(permutations)
    for i in range(permutations):
        shuffled = rng.permutation(pooled)
        parts = shuffled[: len(first)], shuffled[len(first) :]
        nulls[i] = _kolmogorov_distance(*(part / np.median(part) for part in parts))
    low, median, high = (float(v) for v in np.quantile(nulls, [0.05, 0.5, 0.95]))
    p_value = float((1 + np.sum(nulls >= distance)) / (1 + permutations))
    return ShapeDistance(distance=distance, null=(low, median, high), p_value=p_value)


def _norms_over_median(name: str, sample: Any) -> Array:
    """Norms over their median. An error where they are fewer than 30, not finite, or have a median
    that is not positive.

    Args:
        name: of the argument, for the error.
        sample: a ``NoiseSample`` or an array.
    """
    norms = as_numbers(name, getattr(sample, "norms", sample))
    if len(norms) < 30:
        fail(name, "must hold at least 30 norms", len(norms))
    if not np.isfinite(norms).all() or not np.median(norms) > 0:
        fail(name, "must be finite with a positive median", norms)
    return norms / np.median(norms)


def _kolmogorov_distance(a: Array, b: Array) -> float:
    """The largest difference between the distribution functions of two samples (Kolmogorov's
    distance), which they attain at one of their jumps.
    """
    a, b = np.sort(a), np.sort(b)
    jumps = np.concatenate([a, b])
    function_a = np.searchsorted(a, jumps, side="right") / len(a)
    function_b = np.searchsorted(b, jumps, side="right") / len(b)
    return float(np.abs(function_a - function_b).max())
