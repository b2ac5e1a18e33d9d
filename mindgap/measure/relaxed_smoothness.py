"""Does smoothness grow with the gradient norm? The (L0, L1) fit, with intervals and the right
to refuse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mindgap.base.check import between, fail, whole
from mindgap.base.rng import numpy_stream
from mindgap.measure.distributions import as_numbers, average_ranks

Array = NDArray[np.float64]

#: The gradient norm must span at least this factor (5 to 95 % quantile) before anything is
#: concluded.
LEAST_SPAN = 3.0
#: Readings that are needed before anything is concluded.
LEAST_READINGS = 10
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
    grows: bool | None = None  # None where the readings do not allow a conclusion
    sentence: str = ""  # the answer in words


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
    # g: gradient norms, y: smoothness at the same points.
    g, y = as_numbers("norms", norms), as_numbers("smoothness", smoothness)
    if g.shape != y.shape:
        fail("smoothness", f"must have one value for each of the {len(g)} norms", len(y))
    between("cover", cover, 0, 1, ends="()")
    between("level", level, 0, 1, ends="()")
    whole("repeats", repeats, least=20, most=100_000)
    usable = np.isfinite(g) & np.isfinite(y) & (g > 0) & (y > 0)
    g, y = g[usable], y[usable]
    readings = len(g)
    if readings < 3:
        fail("norms", "must have at least 3 finite, positive readings", readings)
    if block is None:
        block = math.ceil(readings ** (1 / 3))
    whole("block", block, least=1)
    rng = numpy_stream(seed, "relaxed smoothness")
    resamples = np.array(
        [_draw_blocks(readings, min(block, readings), rng) for _ in range(repeats)]
    )
    slopes = [_log_slope(g[resample], y[resample]) for resample in resamples]
    ranks = [_rank_correlation(g[resample], y[resample]) for resample in resamples]
    # Rows L0, L1, slope and rank; one column per resample.
    statistics = np.array([*_envelopes(g[resamples], y[resamples], cover), slopes, ranks])
    low, high = np.nanquantile(statistics, [(1 - level) / 2, (1 + level) / 2], axis=1)
    L0_interval, L1_interval, slope_interval, rank_interval = zip(
        low.tolist(), high.tolist(), strict=True
    )
    L0, L1 = _envelope(g, y, cover)
    fit = RelaxedSmoothness(
        L0=L0,
        L1=L1,
        L0_interval=L0_interval,
        L1_interval=L1_interval,
        slope=_log_slope(g, y),
        slope_interval=slope_interval,
        rank=_rank_correlation(g, y),
        rank_interval=rank_interval,
        span=float(np.quantile(g, 0.95) / np.quantile(g, 0.05)),
        readings=readings,
        level=level,
    )
    grows, sentence = _conclude(fit, cover)
    return replace(fit, grows=grows, sentence=sentence)


def _conclude(fit: RelaxedSmoothness, cover: float) -> tuple[bool | None, str]:
    """Whether smoothness grows with the gradient norm (None: cannot tell), and the sentence that
    says so.

    It grows where the intervals of slope and rank correlation both lie above zero. It does not
    where both lie below, or where the slope is certainly below ``LEAST_SLOPE``.

    Args:
        cover: share of the readings below the envelope, for the sentence.
    """
    unsure = f"cannot tell from {fit.readings} readings whether smoothness grows with the gradient"
    if fit.readings < LEAST_READINGS:
        return None, f"{unsure}: {LEAST_READINGS} are the least to conclude from"
    if fit.span < LEAST_SPAN:
        return None, (
            f"{unsure}: the gradient norm spans a factor {fit.span:.2g}, "
            f"and {LEAST_SPAN:g} is the least to conclude from"
        )
    (low, high), (low_rank, high_rank) = fit.slope_interval, fit.rank_interval
    slope = f"log-log slope {fit.slope:.2f} [{low:.2f}, {high:.2f}]"
    numbers = f"{slope}, rank correlation {fit.rank:.2f} [{low_rank:.2f}, {high_rank:.2f}]"
    if low > 0 and low_rank > 0:  # it grows: the envelope says how
        envelope = f"{fit.L0:.3g}, but not in proportion to ||g||"
        if fit.L1 > 0:
            envelope = f"{fit.L0:.3g} + {fit.L1:.3g} ||g||"
        return True, (
            f"smoothness grows with the gradient norm: {numbers}; {cover:.0%} of the readings are "
            f"below {envelope}"
        )
    if high < 0 and high_rank < 0:
        return False, f"smoothness falls with the gradient norm: {numbers}"
    if high < LEAST_SLOPE:
        return False, (
            f"no growth of smoothness with the gradient norm that matters: {slope}, "
            f"{LEAST_SLOPE:g} is the border"
        )
    return None, f"{unsure}: {numbers}"


def _envelope(g: Array, y: Array, cover: float) -> tuple[float, float]:
    """L0 and L1 >= 0 of the line that about a share ``cover`` of the points lie below, by quantile
    regression. They minimise the sum of rho(y - L0 - L1 g), where rho weighs points above the line
    by ``cover`` and points below by 1 - ``cover``.

    This is the search of ``_envelopes`` for one sample, and then the exact line through the two
    points on it.

    Args:
        g, y: gradient norms and smoothness, shape (readings,).
    """
    L0, L1 = (float(values[0]) for values in _envelopes(g[None], y[None], cover))
    i, j = np.argsort(np.abs(y - L0 - L1 * g))[:2]  # the points that the line goes through
    if L0 > 0 and L1 > 0 and g[i] != g[j]:
        slope = float((y[j] - y[i]) / (g[j] - g[i]))
        if abs(slope - L1) <= 1e-6 * L1:  # the same line but for the search's rounding
            return float(y[i] - slope * g[i]), slope
    return L0, L1


def _envelopes(g: Array, y: Array, cover: float) -> tuple[Array, Array]:
    """The envelopes of many samples at once, by a search over L1; ``_envelope`` says what they
    minimise. For a fixed L1 the best L0 is a quantile.

    Args:
        g, y: gradient norms and smoothness, shape (samples, readings).

    Returns:
        L0 and L1, each of shape (samples,).
    """
    # Where the quantile ``cover`` of the readings lies when they are sorted.
    place = min(g.shape[1] - 1, math.ceil(cover * g.shape[1]) - 1)

    def least_loss(L1: Array) -> tuple[Array, Array]:
        """The least loss of the line L0 + L1 g over all L0 >= 0, and the L0 that attains it, for
        each sample's L1. A point above the line costs ``cover`` times its distance, one below
        1 - ``cover`` times.
        """
        rest = y - L1[:, None] * g
        # The best L0 is a quantile of what is left above L1 g.
        L0 = np.maximum(0.0, np.partition(rest, place, axis=1)[:, place])
        above = rest - L0[:, None]  # how far each point lies above the line
        return np.maximum(cover * above, (cover - 1) * above).sum(axis=1), L0

    # A line through zero of the largest y / g lies above all points: L1 is no larger.
    low, high = np.zeros(len(g)), (y / g).max(axis=1)
    for _ in range(45):  # the loss is convex in L1: thirds shrink the bracket by 1e-8
        third = (high - low) / 3
        (loss_left, _), (loss_right, _) = least_loss(low + third), least_loss(high - third)
        goes_left = loss_left <= loss_right
        low, high = np.where(goes_left, low, low + third), np.where(goes_left, high - third, high)
    L1 = (low + high) / 2
    _, L0 = least_loss(L1)
    return L0, L1


def _log_slope(g: Array, y: Array) -> float:
    """Least-squares slope of log y (smoothness) against log g (gradient norm); NaN where g is
    constant.
    """
    log_g, log_y = np.log(g), np.log(y)
    centred = log_g - log_g.mean()
    spread = float(centred @ centred)
    return float(centred @ (log_y - log_y.mean()) / spread) if spread > 0 else math.nan


def _rank_correlation(g: Array, y: Array) -> float:
    """Spearman's rank correlation of gradient norms g and smoothness y; 0 where one of them is
    constant.
    """
    # Equal up to rounding counts as equal: a constant smoothness must not be ranked by its last
    # bits.
    ranks_g, ranks_y = average_ranks(_round_digits(g)), average_ranks(_round_digits(y))
    ranks_g, ranks_y = ranks_g - ranks_g.mean(), ranks_y - ranks_y.mean()
    size = math.sqrt(float(ranks_g @ ranks_g) * float(ranks_y @ ranks_y))
    return float(ranks_g @ ranks_y) / size if size > 0 else 0.0


def _round_digits(values: Array) -> Array:
    """Positive numbers rounded to nine significant digits."""
    # The power of ten that leaves nine digits before the point.
    factors = 10.0 ** (9 - np.ceil(np.log10(values)))
    return np.round(values * factors) / factors


def _draw_blocks(n: int, block: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Places of the n readings of a resample, shape (n,): random blocks of ``block`` neighbours in
    a row, the last one cut.
    """
    starts = rng.integers(0, n - block + 1, size=math.ceil(n / block))
    return (starts[:, None] + np.arange(block)).ravel()[:n]
