"""Statistics for pass rules: quantiles and medians of means, because means lie under heavy tails."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindgap.base.check import fail, whole
from mindgap.record.schema import Run


def by_method(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs grouped by method, in order of first appearance."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.header.method, []).append(run)
    return groups


def by_seed(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs grouped by method, each group in the order of the seeds that every method has: compared seed by seed."""
    groups = {name: {run.header.seed: run for run in group} for name, group in by_method(runs).items()}
    seeds = sorted(set.intersection(*(set(group) for group in groups.values())))
    return {name: [group[seed] for seed in seeds] for name, group in groups.items()}


def by_setting(runs: Iterable[Run], *names: str) -> dict[tuple[Any, ...], dict[int, Run]]:
    """Runs grouped by the values of some settings, then by seed: groups are compared seed by seed."""
    groups: dict[tuple[Any, ...], dict[int, Run]] = {}
    for run in runs:
        groups.setdefault(tuple(run.header.settings[name] for name in names), {})[run.header.seed] = run
    return groups


def last(run: Run, name: str) -> float:
    """The last recorded value of a quantity."""
    column = run.column(name)
    if not column:
        fail("column", f"must be recorded by {run.header.study}/{run.header.method}", name)
    return float(column[-1])


def finals(runs: Iterable[Run], column: str) -> dict[str, list[float]]:
    """Method -> the last values of a column, in the order of the seeds that every method has."""
    return {name: [last(run, column) for run in group] for name, group in by_seed(runs).items()}


def median_of_means(values: Sequence[float], blocks: int = 8) -> float:
    """Median of the means of equal blocks: concentrates where the plain mean does not (infinite variance).

    Example:
        >>> median_of_means([1.0, 1.0, 1.0, 1.0, 1.0, 1e9], blocks=3)
        1.0
    """
    whole("blocks", blocks, least=1)
    array = np.asarray(values, dtype=float)
    if len(array) < blocks:
        fail("values", f"must hold at least {blocks} numbers, one a block", len(array))
    return float(np.median([block.mean() for block in np.array_split(array, blocks)]))


def slope(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Least-squares slope of y against x, and its standard error.

    Example:
        >>> slope([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])
        (2.0, 0.0)
    """
    x_, y_ = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    centred = x_ - x_.mean()
    spread = float(centred @ centred)
    b = float(centred @ y_) / spread
    residual = y_ - y_.mean() - b * centred
    error = float(np.sqrt(residual @ residual / max(len(x_) - 2, 1) / spread))
    return b, error


@dataclass(frozen=True)
class Interval:
    """A mean and the interval it is known to lie in."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float] | np.ndarray, *, miss: float = 0.05) -> Interval:
    """Student's interval for the mean of independent values, missed with probability ``miss``; one value: unbounded.

    A rule that asks several questions at once divides ``miss`` by their number, so that it errs that often in all.

    Example:
        >>> found = mean_interval([1.0, 2.0, 3.0])
        >>> round(found.mean, 3), round(found.low, 3), round(found.high, 3)
        (2.0, -0.484, 4.484)
    """
    from scipy.stats import t as student

    array = np.asarray(values, dtype=float)
    if len(array) < 2:
        return Interval(float(array.mean()), -math.inf, math.inf)
    half = float(student.ppf(1 - miss / 2, len(array) - 1) * array.std(ddof=1) / math.sqrt(len(array)))
    return Interval(float(array.mean()), float(array.mean()) - half, float(array.mean()) + half)


def error_interval(values: Sequence[float] | np.ndarray, *, errors: float = 2.0) -> Interval:
    """The mean of independent values, give or take so many standard errors; one value: unbounded.

    Example:
        >>> found = error_interval([1.0, 2.0, 3.0])
        >>> round(found.low, 3), round(found.high, 3)
        (0.845, 3.155)
    """
    array = np.asarray(values, dtype=float)
    half = errors * float(array.std(ddof=1) / math.sqrt(len(array))) if len(array) > 1 else math.inf
    return Interval(float(array.mean()), float(array.mean()) - half, float(array.mean()) + half)


@dataclass(frozen=True)
class Comparison:
    """How one method stands against each of the others.

    Args:
        leads: other method -> how far the one is above it, an interval over paired seeds.
        order: all methods by their mean, the highest first.
    """

    leads: Mapping[str, Interval]
    order: Sequence[str]

    @property
    def ahead(self) -> list[str]:
        """Methods that the one is clearly above."""
        return [name for name, lead in self.leads.items() if lead.low > 0]

    @property
    def behind(self) -> list[str]:
        """Methods that the one is clearly below."""
        return [name for name, lead in self.leads.items() if lead.high < 0]


def against_all(
    values: Mapping[str, np.ndarray],
    one: str,
    interval: Callable[[np.ndarray], Interval] = mean_interval,
) -> Comparison:
    """Compare one method with every other, seed by seed.

    Args:
        values: method -> one number a seed, higher is better, the same seeds in the same order.
        one: the method that is said to be ahead.
        interval: of the mean of the differences.

    Example:
        >>> found = against_all({"a": np.array([3.0, 4.0]), "b": np.array([1.0, 2.1]), "c": np.array([3.1, 3.9])}, "a")
        >>> found.ahead, found.behind, found.order
        (['b'], [], ['a', 'c', 'b'])
    """
    leads = {name: interval(values[one] - other) for name, other in values.items() if name != one}
    return Comparison(leads, sorted(values, key=lambda name: -values[name].mean()))
