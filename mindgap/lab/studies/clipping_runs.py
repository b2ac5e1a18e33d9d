"""What the studies of clipping share: noise laws with a finite α-moment, means against bounds,
draws that resume.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mindgap.lab.studies.spec import Parts, Run, Trial
from mindgap.lab.studies.verdict import by_method, slope
from mindgap.record.schema import grouped


def noise_law(name: str, alpha: float, horizon: int) -> Any:
    """A law of noise whose α-moment is finite, with a tail about as heavy as that allows.

    Args:
        name: ``"gaussian"`` (no heavy tail), ``"student"``, ``"pareto"`` and ``"stable"`` (of an
            index just above α), or ``"rare jump"`` (two values: a jump about once in a run, of the
            size of the last threshold, and else a small one that makes the mean zero).
        alpha: α, in (1, 2].
        horizon: steps of the longest run.
    """
    from mindgap.lab import theory

    # Functions, so that the named law alone is made.
    return {
        "gaussian": lambda: theory.Gaussian(scale=0.5),
        "student": lambda: theory.Student(df=alpha + 0.1, scale=0.2),
        "pareto": lambda: theory.SymmetricPareto(index=alpha + 0.1, scale=0.2),
        "stable": lambda: theory.Stable(index=min(2.0, alpha + 0.05), scale=0.2),
        "rare jump": lambda: theory.TwoPoint(
            probability=1 / horizon, scale=8 * horizon ** (1 / alpha)
        ),
    }[name]()


def below_bounds(runs: Sequence[Run], cell: Sequence[str], reading: str = "") -> Parts:
    """One part per method: no mean error exceeds its bound by more than four standard errors.

    Args:
        runs: of all methods and seeds, with the columns ``error``, ``se`` (its standard error),
            ``bound``, and ``ratio`` (error over bound).
        cell: the columns whose values name a cell of the grid, in which all seeds have one bound;
            errors of one cell are averaged over seeds.
        reading: the form of the statement that the bounds belong to (``verdict.READINGS``).
    """
    parts = Parts()
    for name, own_runs in by_method(runs).items():
        cells = grouped(
            (tuple(row[column] for column in cell), row) for run in own_runs for row in run.rows
        )
        cells_above = 0
        for rows in cells.values():
            mean = float(np.mean([row["error"] for row in rows]))
            # Of the mean over independent seeds.
            standard_error = math.sqrt(sum(row["se"] ** 2 for row in rows)) / len(rows)
            cells_above += mean - 4 * standard_error > rows[0]["bound"]
        largest = max(row["ratio"] for run in own_runs for row in run.rows)
        parts.add(
            f"{name} stays below",
            holds=cells_above == 0,
            words=f"{cells_above} of {len(cells)} cells above, largest value/bound {largest:.2g}",
            numbers={name: {"cells": len(cells), "above": cells_above, "largest_ratio": largest}},
            reading=reading,
        )
    return parts


def resumed_draws(trial: Trial) -> Iterator[tuple[int, np.random.Generator]]:
    """Go through the trial's ``draws`` of parameters, with a checkpoint offered for each.

    A restored trial goes on after its last checkpoint.

    Yields:
        The number of a draw, from 0, and the generator to draw from. It is the same generator for
        all of them, so that each draw goes on where the one before ended.
    """
    rng = trial.numpy_generator("parameters")
    if trial.restored:
        rng.bit_generator.state = trial.restored["rng"]
    for draw in range(trial.restored.get("draw", 0), trial["draws"]):
        trial.save(lambda: {"draw": draw + 1, "rng": rng.bit_generator.state})  # noqa: B023
        yield draw, rng


def exponents(runs: Sequence[Run], x: str) -> dict[float, tuple[float, float]]:
    """α -> the exponent of the error's decay with the horizon, and its standard error.

    The exponent is the least-squares slope of log ``error`` against log ``x``, over the later half
    of the horizons of all runs.

    Args:
        runs: whose rows have ``alpha``, ``error`` and ``x``.
        x: name of the column of horizons.
    """
    points = grouped((row["alpha"], (row[x], row["error"])) for run in runs for row in run.rows)
    # α -> (horizon, error) of the later half of its points, in the order of the horizons.
    later_halves = {alpha: sorted(points[alpha])[len(points[alpha]) // 2 :] for alpha in points}
    return {alpha: slope(*np.log(later_halves[alpha]).T) for alpha in sorted(later_halves)}
