"""How often a pass rule says each word where all methods are equal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mindgap.base.check import RuleError
from mindgap.base.rng import numpy_stream
from mindgap.lab.studies.verdict import by_method
from mindgap.record.schema import Run

if TYPE_CHECKING:
    from mindgap.lab.studies.spec import Study

#: Width of the smoothing's Gaussian, in spreads between seeds.
WIDTH = 0.8

#: Columns that a null simulation leaves as they are: settings and counters.
FIXED = frozenset(
    {"step", "lr", "candidate", "factor", "oracle_calls", "x_epoch", "y_epoch", "epoch", "samples"}
)


def null_rates(study: Study, runs: Sequence[Run], draws: int | None = None) -> dict[str, float]:
    """How often the study's rule says *holds* and *does not hold* on runs of equal methods.

    In each draw all methods get runs of one method, chosen at random: its runs are drawn with
    replacement, and each measured column is moved by a smooth random amount of the size of its
    spread between seeds (a smoothed bootstrap that keeps mean and spread). Methods then differ by
    chance alone. The same runs give the same rates.

    Args:
        study: whose rule is asked.
        runs: all runs of one scale.
        draws: simulated studies; by default ``study.null_draws``. A draw on which the rule fails,
            because only some methods record what it reads, is made again, three times as many in
            all.

    Returns:
        ``holds``, ``does not hold`` and ``draws``; empty where there is one method only. A
        statement about each method by itself (a bound) stays true where all are equal.
    """
    groups, draws = by_method(runs), study.null_draws if draws is None else draws
    if len(groups) < 2 or not draws:
        return {}
    rng = numpy_stream(0, f"null {study.name}")
    verdicts: list[str] = []
    for _ in range(3 * draws):  # a draw may give no verdict
        if len(verdicts) == draws:
            break
        pool = groups[list(groups)[rng.integers(len(groups))]]  # the runs of one method
        spreads = _spreads(pool)
        resampled = [
            replace(run, rows=_shift_rows(pool[rng.integers(len(pool))].rows, spreads, rng))
            for run in runs
        ]
        # A rule may need what only some methods record.
        with suppress(KeyError, IndexError, RuleError):
            verdicts.append(study.verdict(resampled).verdict)
    if not verdicts:
        return {}
    return {
        "holds": verdicts.count("holds") / len(verdicts),
        "does not hold": verdicts.count("does not hold") / len(verdicts),
        "draws": len(verdicts),
    }


class _Spread(NamedTuple):
    """How the last values of a column are spread over the runs of one method."""

    mean: float
    deviation: float  # standard deviation between the runs
    of_logs: bool  # mean and deviation are those of the logarithms


def _spreads(pool: Sequence[Run]) -> dict[str, _Spread]:
    """Column -> how its last values are spread over the runs of one method.

    Logarithms are taken where all values of a column are positive. Left out are columns of no
    floats, those of :data:`FIXED`, and those with values that are not finite, missing in a run, or
    equal in all runs.
    """
    spreads = {}
    rows = [row for run in pool for row in run.rows]
    names = {name for row in rows for name, value in row.items() if isinstance(value, float)}
    for name in sorted(names - FIXED):
        # One list of numbers per run.
        columns = [
            [value for value in run.column(name) if isinstance(value, (int, float))] for run in pool
        ]
        if not all(columns) or not np.isfinite(np.concatenate(columns)).all():
            continue
        positive = min(map(min, columns)) > 0
        last_values = (float(column[-1]) for column in columns)
        ends = np.array([math.log(value) if positive else value for value in last_values])
        if len(ends) > 1 and ends.std(ddof=1) > 0:
            spreads[name] = _Spread(float(ends.mean()), float(ends.std(ddof=1)), positive)
    return spreads


def _shift_rows(
    rows: Sequence[Mapping[str, Any]], spreads: Mapping[str, _Spread], rng: np.random.Generator
) -> tuple[dict[str, Any], ...]:
    """The rows of one run, with its columns moved at random as in a smoothed bootstrap.

    Each column is moved by a Gaussian shift of :data:`WIDTH` spreads, the same in all rows, and
    then shrunk towards the mean by 1/√(1 + WIDTH²), so that the spread between runs stays.

    Args:
        rows: of the run.
        spreads: column -> its spread between runs; a spread of logarithms moves the logarithm.
        rng: of the shifts; it is advanced.
    """
    shifts = {
        name: WIDTH * spread.deviation * rng.standard_normal() for name, spread in spreads.items()
    }
    shrink = 1 / math.sqrt(1 + WIDTH**2)

    def moved(name: str, value: Any) -> Any:
        """The value, moved by the shift of its column if it is a float and its column moves."""
        if name not in shifts or not isinstance(value, float):
            return value
        mean, _, of_logs = spreads[name]
        if of_logs:
            return math.exp(mean + (math.log(value) - mean + shifts[name]) * shrink)
        return mean + (value - mean + shifts[name]) * shrink

    return tuple({name: moved(name, value) for name, value in row.items()} for row in rows)
