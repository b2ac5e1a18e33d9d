"""Tail index of gradient noise: the value, an interval, what Gaussian noise would give, and a
plain sentence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from mindgap.base.check import between, fail, flag, one_of, whole
from mindgap.base.rng import numpy_stream
from mindgap.measure import tail_estimators as estimators
from mindgap.measure.distributions import as_numbers, student_quantile

if TYPE_CHECKING:
    from mindgap.measure.probes.noise import NoiseSample

Array = NDArray[np.float64]

TailMethod = Literal["hill", "moment", "block-sum", "stable"]
METHODS: tuple[TailMethod, ...] = get_args(TailMethod)
ValuesOf = Literal["norms", "coordinates", "projections"]

#: "Not heavier than Gaussian" is said only when the interval excludes indices below this, the
#: estimate is not among the fifth of Gaussian samples that look heaviest, and the moment estimate
#: is one that a tail of this index hardly gives.
HEAVY = 1.8
#: How often a power law of index ``HEAVY`` may look that light.
RARELY = 5e-4

#: One-sided error of either end of the interval that decides whether the variance is infinite.
BORDER = 0.1

#: Resamples and draws at most.
MOST = 100_000
#: Shuffles that the block-sum estimator averages over.
ROUNDS = 8


@dataclass(frozen=True)
class TailIndex:
    """An estimated tail index."""

    index: float  # α; infinite when no power law is seen
    #: interval for α: from resamples; for ``hill`` on independent values from the law of its
    #: estimate.
    interval: tuple[float, float]
    level: float  # level of the interval
    method: str  # one of ``METHODS``
    samples: int  # n, the values used (rows times columns)
    tail: int  # how many of them the estimate rests on
    #: 5 %, 50 % and 95 % quantiles of the same estimator on Gaussian samples of the same size.
    null: tuple[float, float, float]
    p_value: float  # share of Gaussian samples whose estimate is as small or smaller
    heavier: bool | None  # True, False, or None where the sample cannot tell

    @property
    def answer(self) -> str:
        """One plain sentence."""
        numbers = _index_in_words(self)
        return {
            None: f"cannot tell from {self.samples} samples whether the tail is heavier than "
            f"Gaussian ({numbers})",
            True: f"heavier than Gaussian: {numbers}",
            False: f"no heavy tail: {numbers}, below 2 would mean infinite variance",
        }[self.heavier]


def tail_index(
    sample: NoiseSample | Any,
    method: TailMethod = "hill",
    *,
    of: ValuesOf = "norms",
    per_layer: bool = False,
    groups: Any = None,
    level: float = 0.9,
    bootstrap: int = 200,
    null: int = 200,
    seed: int = 0,
) -> TailIndex:
    """Estimate the index α of a tail ``P(|X| > x) ≈ c x^(-α)``; below 2 the variance is infinite.

    Values of both signs are centred at their median, values of one sign (norms) are taken as they
    are by ``hill`` and ``moment``, and as differences of random pairs by ``block-sum`` and
    ``stable``, which need a symmetric law. Without that the block-sum estimator answers 1.00 for
    *any* concentrated norms. Source: acclip, App. H; thesis, section 4.2.

    Args:
        sample: a ``NoiseSample``, or an array of 30 values or more, or of rows drawn together (one
            row per minibatch).
        method: ``"hill"`` (bias-reduced; for any tail), ``"moment"`` (Dekkers et al.; also light
            tails), ``"block-sum"`` (Mohammadi et al., App. H of acclip) and ``"stable"``
            (McCulloch's quantiles), both for stable laws.
        of: for a ``NoiseSample``: ``"norms"``, ``"coordinates"`` or ``"projections"``.
        per_layer: bring the coordinates of each layer to the same scale before pooling them;
            coordinates of different scales pooled look heavy-tailed whatever they are.
        groups: for an array with columns: one label per column, columns of one label share a scale.
        level: of the interval.
        bootstrap: resamples for the interval (of rows, where there are rows); independent values
            need none with ``hill``.
        null: Gaussian samples of the same size to compare with.
        seed: names the random numbers of the interval; the null is the same for all samples of one
            size.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> tail_index(rng.standard_cauchy(2000)).answer
        'heavier than Gaussian: index 1.1 [0.7, 1.7]'
        >>> tail_index(rng.standard_normal(2000)).answer
        'no heavy tail: index 12.3 [7.9, 19.1], below 2 would mean infinite variance'

    Differs from the paper: bias-reduced Hill, block sums compared with longer block sums,
    symmetrised, averaged over shuffles, with an interval and a null. docs/measure.md has a table of
    how often the intervals cover.
    """
    one_of("method", method, METHODS)
    between("level", level, 0, 1, ends="()")
    whole("bootstrap", bootstrap, least=20, most=MOST)
    whole("null", null, least=20, most=MOST)
    flag("per_layer", per_layer)
    rows, signed = _tail_values(sample, of, per_layer, groups)
    count, rng = rows.size, numpy_stream(seed, "tail index", method)
    # For Hill's on independent values (one per row) the law of the estimate is known.
    resamples = 0 if method == "hill" and rows.shape[1] == 1 else bootstrap
    estimate = _ESTIMATE[method](rows, signed, resamples, rng)
    looks_light = _looks_light(rows)
    lower, upper = _interval(method, estimate, level, count)
    # Where a heavy tail may give an estimate near zero, that is no evidence: its spread vanishes.
    if not looks_light:
        lower = min(lower, HEAVY)
    index = _index_of(estimate.gamma)
    null_indices = _null(method, count, signed, null)
    null_low, null_median, null_high = (
        float(v) for v in np.quantile(null_indices, [0.05, 0.5, 0.95], method="inverted_cdf")
    )
    p_value = float((1 + np.sum(null_indices <= index)) / (1 + len(null_indices)))
    heavier: bool | None = None
    if p_value < 0.05 and upper < null_median:
        heavier = True
    elif looks_light and p_value > 0.2 and lower > HEAVY:  # ``HEAVY`` says why these three
        heavier = False
    if method in ("block-sum", "stable"):  # a stable law has no index above 2
        index, lower, upper = min(index, 2.0), min(lower, 2.0), min(upper, 2.0)
    return TailIndex(
        index,
        interval=(lower, upper),
        level=level,
        method=method,
        samples=count,
        tail=estimate.used,
        null=(null_low, null_median, null_high),
        p_value=p_value,
        heavier=heavier,
    )


def tail_table(sample: NoiseSample | Any, **options: Any) -> list[TailIndex]:
    """The estimate by every method, to be read together.

    Example:
        >>> [t.method for t in tail_table(np.random.default_rng(0).standard_cauchy(500))]
        ['hill', 'moment', 'block-sum', 'stable']
    """
    return [tail_index(sample, method, **options) for method in METHODS]


@dataclass(frozen=True)
class InfiniteVariance:
    """Whether the noise has infinite variance, from Hill's and the moment estimator together."""

    #: 1/γ with γ the mean of the two estimates, of which the moment one counts as -1 at least;
    #: infinite when no power law is seen.
    index: float
    #: the 80 % interval that decides, from the law of the same estimate on exact power laws
    interval: tuple[float, float]
    samples: int  # n, the values used
    infinite: bool | None  # True, False, or None where the sample cannot tell

    @property
    def answer(self) -> str:
        """One plain sentence."""
        if self.infinite is False:  # only the lower end decides, and the estimate may be infinite
            low = self.interval[0]
            above = f"index above {_number_in_words(low)}, and 2 is the border"
            return f"the variance is finite: {above if low < math.inf else 'no power law is seen'}"
        if self.infinite:
            return f"the variance is infinite: {_index_in_words(self)}, below 2"
        return (
            f"cannot tell from {self.samples} samples whether the variance is infinite: "
            f"{_index_in_words(self)}, and 2 is the border"
        )


def infinite_variance(sample: NoiseSample | Any) -> InfiniteVariance:
    """Say, by two estimators together, whether 30 values or more (or the norms of a sample) have
    infinite variance.

    Hill's estimate is precise and leans towards heavy tails for laws like the log-normal; the
    moment estimate does not, and is less precise. The interval holds the indices of the power laws
    that give an estimate like theirs; 1 in 10 samples of either end's law lies beyond it.
    "Infinite" needs an interval below 2. "Finite" needs one above 2, and either a moment estimate
    that a tail of index 1.8 gives in 1 of 2,000 samples, or a mean γ below 0.15 from 200 values on.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> infinite_variance(rng.standard_t(1.3, 512)).answer
        'the variance is infinite: index 1.3 [1.0, 1.5], below 2'
        >>> infinite_variance(rng.standard_normal(2000)).infinite
        False

    Source: thesis, section 4.2 (Assumption 4.2.1 asks for α > 1 only); the test is ours;
    ``benchmarks/measure_known.py`` prints how often it is right.
    """
    # One mean of γ from both estimates decides, and the law of it on exact power laws.
    rows, _ = _tail_values(sample, "norms", False, None)
    logs, k = _largest_logs(rows)
    hill, moment = float(estimators.plain_hill_gamma(logs)), float(estimators.moment_gamma(logs))
    gamma = (hill + max(moment, -1.0)) / 2
    low, high = _index_between(gamma, k, 0.5)  # both estimates count half
    light_by_moments = _looks_light(rows)
    if light_by_moments:  # then the moment estimate decides: a heavy tail hardly gives it
        low_by_moments, _ = _index_between(moment, k, 1.0)
        low = max(low, low_by_moments)
    is_finite = low > 2 and (light_by_moments or (gamma < 0.15 and rows.size >= 200))
    # Hill's estimate leans towards heavy tails: where even it says 1/γ > 2, the variance is not
    # called infinite.
    is_infinite = high < 2 and hill > 0.5
    infinite = is_infinite if is_infinite or is_finite else None
    return InfiniteVariance(_index_of(gamma), (low, high), rows.size, infinite)


@lru_cache(maxsize=16)
def _unit_law(k: int) -> tuple[Array, Array]:
    """Estimates of 1/α on many samples of the power law of index 1, from k values each.

    Returns:
        Hill's estimates, and the moment estimates less Hill's, of equal shapes (samples,). On a
        power law of index α the first are divided by α, and the second stay as they are.
    """
    logs = _power_law(k, 1.0)
    hill = estimators.plain_hill_gamma(logs)
    return hill, estimators.moment_gamma(logs) - hill


def _index_between(estimate: float, k: int, moment_share: float) -> tuple[float, float]:
    """The interval of indices of power laws that give such an estimate from k values, by test
    inversion: of the samples of either end's law a share ``BORDER`` lies beyond the estimate.

    Args:
        estimate: of 1/α, (1 - ``moment_share``) times Hill's plus ``moment_share`` times the moment
            one.
        k: number of values it rests on.
        moment_share: between 0 and 1.
    """
    hill, moment_part = _unit_law(k)

    def end(share: float) -> float:
        """The index of the power law of whose samples this share has a smaller estimate than the
        one given, by halving the interval of its logarithm; infinite above a thousand. The samples
        are those of ``_unit_law``, brought to another index.
        """

        def quantile_at(alpha: float) -> float:
            """The estimate below which this share of the samples of the law of index alpha lies."""
            # Hill's estimates are divided by the index; what the moment ones add stays.
            return float(np.quantile(hill / alpha + moment_share * moment_part, share))

        low, high = 0.05, 1e3  # the index is looked for between these
        if quantile_at(high) >= estimate:  # quantiles fall as the index grows
            return math.inf
        for _ in range(24):  # the interval is then below a millionth of the index
            midpoint = math.sqrt(low * high)
            low, high = (midpoint, high) if quantile_at(midpoint) > estimate else (low, midpoint)
        return low

    return end(BORDER), end(1 - BORDER)


def _largest_logs(rows: Array) -> tuple[Array, int]:
    """Logarithms of the k+1 largest moduli of all values, decreasing, where k is the tail length
    for so many values; and k. An error where fewer than k+1 values differ from zero.
    """
    count = rows.size
    k = estimators.tail_length(count)
    largest = estimators.largest(np.abs(rows).reshape(-1), k + 1)
    if not largest[k] > 0:
        fail(
            "sample",
            f"must have more than {k} values other than zero",
            f"{int(np.sum(rows != 0))} of {count}",
        )
    return np.log(largest), k


@lru_cache(maxsize=16)
def _power_law(k: int, index: float) -> Array:
    """Logarithms of the k+1 largest values over the last of them, in many samples of an exact power
    law; shape (samples, k + 1), the last column zero.

    They are exponential numbers over the index, whatever the sample's size. As many samples as
    hold two million numbers together, but 500 to 4,000. Their order within a row does not matter to
    the estimators that use them.
    """
    samples = min(4000, max(500, 2**21 // k))
    logs = np.zeros((samples, k + 1))
    logs[:, :k] = numpy_stream(0, "power law", k).exponential(size=(samples, k)) / index
    return logs


@lru_cache(maxsize=64)
def _light_bound(k: int) -> float:
    """The value below which the moment estimate of 1/α from k values lies in only a share
    ``RARELY`` of samples of the power law of index ``HEAVY``.
    """
    return float(np.quantile(estimators.moment_gamma(_power_law(k, HEAVY)), RARELY))


def _looks_light(rows: Array) -> bool:
    """Whether the largest values lie closer together than a tail of index ``HEAVY`` leaves them, by
    the moment estimate. Never of fewer than 64 values, because there Student laws of infinite
    variance look so too often.
    """
    logs, k = _largest_logs(rows)
    return rows.size >= 64 and float(estimators.moment_gamma(logs)) < _light_bound(k)


def _tail_values(sample: Any, of: str, per_layer: bool, groups: Any) -> tuple[Array, bool]:
    """The values to estimate a tail from; an error where they are fewer than 30 or not finite.

    Values of both signs are centred at their median. Columns of one group are divided by the median
    of their moduli.

    Args:
        sample: a ``NoiseSample``, or an array of one or two dimensions.
        of: for a ``NoiseSample``: which of its arrays is used.
        per_layer: for its coordinates: those of one layer form a group.
        groups: for an array with columns: one label per column; None forms no groups.

    Returns:
        The values, shape (rows, values drawn together); and whether some are below zero.
    """
    if hasattr(sample, "norms") and hasattr(sample, "coordinates"):
        one_of("of", of, get_args(ValuesOf))
        if per_layer and of == "coordinates":
            groups = sample.coordinate_layer
        sample = getattr(sample, of)
    values = as_numbers("sample", sample, dims=(1, 2))
    if values.size < 30:
        fail(
            "sample",
            "must hold at least 30 values in one or two dimensions",
            f"shape {values.shape}",
        )
    if not np.isfinite(values).all():
        fail("sample", "must be finite", f"{int(np.sum(~np.isfinite(values)))} values that are not")
    rows = values.reshape(len(values), -1)
    signed = bool((rows < 0).any())
    if signed:
        rows = rows - np.median(rows)
    if groups is not None:
        is_sequence = isinstance(groups, (list, tuple, range, np.ndarray))
        labels = np.asarray(groups) if is_sequence else np.empty(0)
        if labels.shape != (rows.shape[1],):
            fail(
                "groups",
                f"must give one label for each of {rows.shape[1]} columns",
                f"shape {labels.shape}",
            )
        rows = rows.copy()
        for label in np.unique(labels):
            columns = labels == label
            # Unlike a standard deviation the median exists for every tail; one of zero scales
            # nothing.
            rows[:, columns] /= np.median(np.abs(rows[:, columns])) or 1.0
    return rows, signed


class _Estimate(NamedTuple):
    """An estimate of γ = 1/α."""

    gamma: float
    resampled: Array  # the same of each resample
    used: int  # how many values it rests on


#: (rows of values, whether they have signs, resamples, generator) -> the estimate.
_Estimator = Callable[[Array, bool, int, np.random.Generator], _Estimate]


def _by_tail(functional: Callable[[Array], Array]) -> _Estimator:
    """The estimator that applies ``functional`` to the logarithms of the largest values, of the
    sample and of each resample.

    Args:
        functional: logarithms of shape (..., k + 1), decreasing -> estimates of 1/α.
    """

    def estimate(rows: Array, signed: bool, draws: int, rng: np.random.Generator) -> _Estimate:
        """The estimate, and that of each of ``draws`` resamples: of independent values (one per
        row) these are drawn by the law of ranks, else row by row. ``signed`` does not matter.
        """
        count, moduli = rows.size, np.abs(rows)
        logs, k = _largest_logs(rows)
        # A zero, which has no logarithm, gets one far below the k+1 largest in both branches.
        if rows.shape[1] == 1:
            with np.errstate(divide="ignore"):
                all_logs = np.log(estimators.largest(moduli[:, 0], count))
            # Which values a resample's largest are is drawn directly, without the resample.
            ranks = estimators.resampled_ranks(count, k + 1, draws, rng)
            resampled_logs = np.maximum(all_logs, logs[k] - 1e3)[ranks]
        else:
            resamples = (
                moduli[rng.integers(0, len(rows), len(rows))].reshape(-1) for _ in range(draws)
            )
            largest_of_each = np.array([estimators.largest(values, k + 1) for values in resamples])
            resampled_logs = np.log(np.maximum(largest_of_each, math.exp(logs[k] - 1e2)))
        return _Estimate(float(functional(logs)), functional(resampled_logs), k)

    return estimate


def _symmetrise(values: Array, signed: bool, rng: np.random.Generator) -> Array:
    """Values of a symmetric law with the same tail, along the last axis: ``signed`` values as they
    are, others as differences of random pairs, half as many.
    """
    if signed:
        return values
    half = values.shape[-1] // 2
    shuffled = values[..., rng.permutation(values.shape[-1])]
    return shuffled[..., :half] - shuffled[..., half : 2 * half]


def _by_blocks(rows: Array, signed: bool, draws: int, rng: np.random.Generator) -> _Estimate:
    """The block-sum estimate of 1/α, and that of each resample of rows.

    Args:
        rows: the values, shape (rows, values drawn together).
        signed: whether they have signs; others are made symmetric first.
        draws: number of resamples.
    """
    count = rows.size

    def gammas(values: Array) -> Array:
        """The estimates from values of shape (..., n), shape (...): each the mean over four random
        ways of making the values symmetric, with ``ROUNDS`` shuffles in all. Advances ``rng``.
        """
        estimates = [
            estimators.block_sum_gamma(_symmetrise(values, signed, rng), rng, ROUNDS // 4)
            for _ in range(4)
        ]
        return np.mean(estimates, axis=0)

    # In portions, so that the resamples never take more than some 16 MB.
    portion, resampled = max(1, 2**21 // count), []
    for start in range(0, draws, portion):
        chosen_rows = rng.integers(0, len(rows), (min(portion, draws - start), len(rows)))
        resampled.append(gammas(rows[chosen_rows].reshape(len(chosen_rows), -1)))
    return _Estimate(float(gammas(rows.reshape(-1))), np.concatenate(resampled), count)


def _by_quantiles(rows: Array, signed: bool, draws: int, rng: np.random.Generator) -> _Estimate:
    """McCulloch's estimate of 1/α, from the 90 % and the 50 % quantile of the moduli, and that of
    each resample. Resamples of independent values with signs are drawn by the law of ranks, others
    row by row.

    Args:
        rows: the values, shape (rows, values drawn together).
        signed: whether they have signs; others are made symmetric first.
        draws: number of resamples.
    """
    count = rows.size
    if signed and rows.shape[1] == 1:
        places = (max(1, count // 10), count // 2)  # of the quantiles, counted from the largest
        moduli = np.sort(np.abs(rows[:, 0]))[::-1]
        quantiles = moduli[estimators.resampled_quantile_ranks(count, places, draws, rng)]
        resampled = 1 / estimators.stable_alpha(quantiles[:, 0], quantiles[:, 1])
        estimate = 1 / estimators.stable_alpha(moduli[places[0] - 1], moduli[places[1] - 1])
        return _Estimate(float(estimate), resampled, count)

    def gamma(values: Array) -> float:
        """The estimate of 1/α from values of shape (n,): of ``signed`` ones directly, of norms the
        mean over four random ways of making them symmetric.
        """
        estimates = []
        for _ in range(1 if signed else 4):
            moduli = np.abs(_symmetrise(values, signed, rng))
            # Places of the 90 % and the 50 % quantile.
            upper, middle = len(moduli) - len(moduli) // 10, len(moduli) // 2
            partitioned = np.partition(moduli, [middle, upper])
            estimates.append(1 / estimators.stable_alpha(partitioned[upper], partitioned[middle]))
        return float(np.mean(estimates))

    resamples = rng.integers(0, len(rows), (draws, len(rows)))  # places of rows
    of_sample = gamma(rows.reshape(-1))
    of_resamples = np.array([gamma(rows[places].reshape(-1)) for places in resamples])
    return _Estimate(of_sample, of_resamples, count)


_ESTIMATE: dict[str, _Estimator] = {
    "hill": _by_tail(estimators.hill_gamma),
    "moment": _by_tail(estimators.moment_gamma),
    "block-sum": _by_blocks,
    "stable": _by_quantiles,
}


def _interval(method: str, estimate: _Estimate, level: float, count: int) -> tuple[float, float]:
    """An interval for α = 1/γ from the bootstrap's γ; both ends infinite without an estimate.

    For ``stable`` it holds percentiles. Else it is γ plus and minus Student's quantile times its
    spread, on the scale of log α where γ is clearly above zero. These are the forms that cover in
    simulations of n = 2000.

    Args:
        method: one of ``METHODS``.
        level: of the interval.
        count: n, the number of values.
    """
    gamma, resampled = estimate.gamma, estimate.resampled
    resampled = resampled[np.isfinite(resampled)]
    if not math.isfinite(gamma) or not (len(resampled) or method == "hill"):
        return (math.inf, math.inf)
    if method == "stable":
        # α is a steep and bent function of the quantiles near 2: percentiles do not mind, a
        # standard error would.
        low, high = np.quantile(resampled, [0.5 - level / 2, 0.5 + level / 2])
        return (_index_of(float(high)), _index_of(float(low)))
    spread, k = float(np.std(resampled)) if len(resampled) else 0.0, estimators.tail_length(count)
    freedom: float = k
    if method == "moment":
        # Resampling repeats the few largest values, which narrows the moment estimator's spread
        # (its intervals would cover in 75 to 88 %): not less than the spread in the limit.
        spread = max(spread, math.sqrt((1 + max(gamma, 0.0) ** 2) / k))
    elif method == "hill":
        # The intercept is worth k/9 exponential variables, and for independent values that is all:
        # a resampled spread would add noise of its own. Values of one row may hang together, so
        # there it counts if it is larger.
        spread, freedom = max(3 * max(abs(gamma), 0.02) / math.sqrt(k), spread), k / 9
    reach = student_quantile(0.5 + level / 2, freedom) * spread
    if gamma > 2 * spread:
        return (math.exp(-reach / gamma) / gamma, math.exp(reach / gamma) / gamma)
    return (_index_of(gamma + reach), _index_of(gamma - reach))


def _index_of(gamma: float) -> float:
    """α = 1/γ; infinite where no power law is seen."""
    return 1 / gamma if gamma > 0 else math.inf


@lru_cache(maxsize=64)
def _null(method: str, count: int, signed: bool, draws: int) -> Array:
    """The indices that a method estimates for Gaussian samples of n values, shape (draws,); at most
    60 draws for the slow methods on more than 20,000 values.

    For norms the null is the modulus of one Gaussian number: of all norms of Gaussian vectors it
    spreads most for its size, so that no Gaussian vector is called heavier than Gaussian.

    Args:
        method: one of ``METHODS``.
        count: n.
        signed: whether the values have signs; False for norms.
    """
    rng = numpy_stream(0, "null", method, count, int(signed))
    if method in ("hill", "moment"):
        import torch

        k = estimators.tail_length(count)
        # The order statistics of n uniforms are partial sums of n + 1 exponential numbers over
        # their total; the n - k that are not needed one by one add up to a gamma number.
        sums = rng.exponential(size=(draws, k + 1)).cumsum(axis=1)
        total = sums[:, -1:] + rng.gamma(count - k, size=(draws, 1))
        # The modulus of a Gaussian number with upper tail probability sums / total.
        logs = np.log(-torch.special.ndtri(torch.from_numpy(sums / total / 2)).numpy())
        gammas = (estimators.hill_gamma if method == "hill" else estimators.moment_gamma)(logs)
    else:
        gammas = np.empty(draws if count <= 20_000 else min(draws, 60))
        for i in range(len(gammas)):
            values = rng.standard_normal((count, 1))
            values = values if signed else np.abs(values)
            gammas[i] = _ESTIMATE[method](values, signed, 1, rng).gamma
    return np.array([_index_of(float(g)) for g in gammas])


def _index_in_words(estimate: TailIndex | InfiniteVariance) -> str:
    """Index and interval for a sentence, such as "index 1.3 [1.0, 1.5]"."""
    low, high = map(_number_in_words, estimate.interval)
    return f"index {_number_in_words(estimate.index)} [{low}, {high}]"


def _number_in_words(value: float) -> str:
    """A number with one digit behind the point, without any from 100 on; "inf" for infinity."""
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
