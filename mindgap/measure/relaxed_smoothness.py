"""Does smoothness grow with the gradient norm? The (L0, L1) fit, with intervals and the right
to refuse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mindgap.base.check import between, fail, whole
from mindgap.base.rng import numpy_stream
from mindgap.measure.distributions import as_numbers, average_ranks

#: The gradient norm must span at least this factor (5 to 95 % quantile) before anything is
#: concluded.
LEAST_SPAN = 3.0
#: A log-log slope below this is no growth that matters.
LEAST_SLOPE = 0.2


@dataclass(frozen=True)
class RelaxedSmoothness:
    """How smoothness and gradient norm go together."""

    #: upper envelope L <= L0 + L1 ||g|| over a ``cover`` share of the readings, both non-negative.
    L0: float
    L1: float
    #: bootstrap intervals.
    L0_interval: tuple[float, float]
    L1_interval: tuple[float, float]
    #: least-squares slope of log L against log ||g||.
    slope: float
    slope_interval: tuple[float, float]
    #: Spearman's rank correlation.
    rank: float
    rank_interval: tuple[float, float]
    span: float  # ratio of the 95 % to the 5 % quantile of ||g||
    readings: int  # pairs used (finite and positive)
    level: float  # of the intervals
    grows: bool | None  # True, False, or None where the readings do not allow a conclusion
    sentence: str  # the answer in words


def fit_relaxed_smoothness(
    norms: Sequence[float] | NDArray[np.float64],
    smoothness: Sequence[float] | NDArray[np.float64],
    *,
    cover: float = 0.95,
    level: float = 0.9,
    repeats: int = 200,
    block: int | None = None,
    seed: int = 0,
) -> RelaxedSmoothness:
    """Fit L <= L0 + L1 ||g|| to readings along a run, and say whether L grows with ||g||.

    The envelope is the quantile regression line at ``cover`` with L0, L1 >= 0. Slope and rank
    correlation come with it. Readings along a run depend on each other, so the bootstrap draws
    blocks of neighbours. Source: thesis, (3.2) and Assumption 3.3.3; Fig. 3-2 and 3-3.

    Args:
        norms: gradient norms ||g||, in the order of the run.
        smoothness: local smoothness at the same points.
        cover: share of the readings below the envelope.
        level: of the bootstrap intervals.
        repeats: bootstrap draws.
        block: neighbours drawn together; the cube root of the number of readings unless given.
        seed: of the bootstrap.

    Example:
        >>> g = np.geomspace(0.1, 10, 60)
        >>> fit = fit_relaxed_smoothness(g, 1 + 2 * g)
        >>> round(fit.L0, 6), round(fit.L1, 6), fit.grows
        (1.0, 2.0, True)
        >>> print(fit_relaxed_smoothness(g**0.1, 1 + 2 * g).sentence.replace(": ", ":\\n"))
        cannot tell from 60 readings whether smoothness grows with the gradient:
        the gradient norm spans a factor 1.5, and 3 is the least to conclude from
    """
    g, y = as_numbers("norms", norms), as_numbers("smoothness", smoothness)
    if g.shape != y.shape:
        fail("smoothness", f"must have one value for each of the {len(g)} norms", len(y))
    between("cover", cover, 0, 1, ends="()")
    between("level", level, 0, 1, ends="()")
    whole("repeats", repeats, least=20, most=100_000)
    usable = np.isfinite(g) & np.isfinite(y) & (g > 0) & (y > 0)
    g, y = g[usable], y[usable]
    n = len(g)
    if n < 3:
        fail("norms", "must have at least 3 finite, positive readings", n)
    block = whole("block", block if block is not None else math.ceil(n ** (1 / 3)), least=1)
    rng = numpy_stream(seed, "relaxed smoothness")
    picks = np.array([_blocks(n, min(block, n), rng) for _ in range(repeats)])
    slopes = [_slope(g[pick], y[pick]) for pick in picks]
    ranks = [_rank(g[pick], y[pick]) for pick in picks]
    tails = [(1 - level) / 2, (1 + level) / 2]
    low, high = np.nanquantile(
        np.array([*_envelopes(g[picks], y[picks], cover), slopes, ranks]), tails, axis=1
    )
    L0, L1 = _envelope(g, y, cover)
    slope, rank = _slope(g, y), _rank(g, y)
    span = float(np.quantile(g, 0.95) / np.quantile(g, 0.05))
    around = [(float(a), float(b)) for a, b in zip(low, high)]
    grows, sentence = _conclude(n, span, slope, around[2], rank, around[3], L0, L1, cover)
    return RelaxedSmoothness(
        L0,
        L1,
        around[0],
        around[1],
        slope,
        around[2],
        rank,
        around[3],
        span,
        n,
        level,
        grows,
        sentence,
    )


def _conclude(
    n: int,
    span: float,
    slope: float,
    slopes: tuple[float, float],
    rank: float,
    ranks: tuple[float, float],
    L0: float,
    L1: float,
    cover: float,
) -> tuple[bool | None, str]:
    """Whether smoothness grows with the gradient norm (None: cannot tell), and the sentence that
    says so.
    """
    unsure = f"cannot tell from {n} readings whether smoothness grows with the gradient"
    if n < 10:
        return None, f"{unsure}: 10 are the least to conclude from"
    if span < LEAST_SPAN:
        return None, (
            f"{unsure}: the gradient norm spans a factor {span:.2g}, "
            f"and {LEAST_SPAN:g} is the least to conclude from"
        )
    numbers = (
        f"log-log slope {slope:.2f} [{slopes[0]:.2f}, {slopes[1]:.2f}], "
        f"rank correlation {rank:.2f} [{ranks[0]:.2f}, {ranks[1]:.2f}]"
    )
    if slopes[0] > 0 and ranks[0] > 0:
        line = (
            f"{L0:.3g} + {L1:.3g} ||g||" if L1 > 0 else f"{L0:.3g}, but not in proportion to ||g||"
        )
        return (
            True,
            f"smoothness grows with the gradient norm: {numbers}; {cover:.0%} of the readings are "
            f"below {line}",
        )
    if slopes[1] < 0 and ranks[1] < 0:
        return False, f"smoothness falls with the gradient norm: {numbers}"
    decides = f"log-log slope {slope:.2f} [{slopes[0]:.2f}, {slopes[1]:.2f}], {LEAST_SLOPE:g} is"
    if slopes[1] < LEAST_SLOPE:
        return (
            False,
            f"no growth of smoothness with the gradient norm that matters: {decides} the border",
        )
    return None, f"{unsure}: {numbers}"


def _envelope(g: NDArray[np.float64], y: NDArray[np.float64], cover: float) -> tuple[float, float]:
    """min over L0, L1 >= 0 of sum rho_cover(y - L0 - L1 g): the search below, then the line
    through its two points.
    """
    L0, L1 = (float(v[0]) for v in _envelopes(g[None], y[None], cover))
    on = np.argsort(np.abs(y - L0 - L1 * g))[:2]
    if L0 > 0 and L1 > 0 and g[on[0]] != g[on[1]]:
        slope = float((y[on[1]] - y[on[0]]) / (g[on[1]] - g[on[0]]))
        if abs(slope - L1) <= 1e-6 * L1:
            return float(y[on[0]] - slope * g[on[0]]), slope
    return L0, L1


def _envelopes(
    g: NDArray[np.float64], y: NDArray[np.float64], cover: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The same for many samples at once (rows), by a search over L1: for fixed L1 the best L0
    is a quantile.
    """
    place = min(g.shape[1] - 1, math.ceil(cover * g.shape[1]) - 1)

    def best(L1: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rest = y - L1[:, None] * g
        L0 = np.maximum(0.0, np.partition(rest, place, axis=1)[:, place])
        rest = rest - L0[:, None]
        return np.maximum(cover * rest, (cover - 1) * rest).sum(axis=1), L0

    low, high = np.zeros(len(g)), (y / g).max(axis=1)
    for _ in range(45):  # the loss is convex in L1: thirds shrink the bracket by 1e-8
        third = (high - low) / 3
        left = best(low + third)[0] <= best(high - third)[0]
        low, high = np.where(left, low, low + third), np.where(left, high - third, high)
    L1 = (low + high) / 2
    return best(L1)[1], L1


def _slope(g: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    u, v = np.log(g), np.log(y)
    u = u - u.mean()
    spread = float(u @ u)
    return float(u @ (v - v.mean()) / spread) if spread > 0 else math.nan


def _rank(g: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    # Equal up to rounding counts as equal: a constant smoothness must not be ranked by its last
    # bits.
    a, b = average_ranks(_round_digits(g)), average_ranks(_round_digits(y))
    a, b = a - a.mean(), b - b.mean()
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size > 0 else 0.0


def _round_digits(values: NDArray[np.float64]) -> NDArray[np.float64]:
    digits = 10.0 ** (9 - np.ceil(np.log10(values)))
    return np.round(values * digits) / digits


def _blocks(n: int, block: int, rng: np.random.Generator) -> NDArray[np.int64]:
    starts = rng.integers(0, n - block + 1, size=math.ceil(n / block))
    return (starts[:, None] + np.arange(block)).ravel()[:n]
