"""Two sets of records (two versions, two machines): which verdicts changed, which curves differ
beyond seed noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mindgap.base.check import between
from mindgap.lab.report.aggregate import Readings, over_seeds
from mindgap.lab.report.load import Loaded, load

#: Places along a curve at which two sets are compared.
PLACES = 20


@dataclass(frozen=True)
class Difference:
    """How one curve of folder B compares with that of folder A.

    ``outcome`` is *same* (equal to rounding), *within noise*, *differs*, or *too few seeds* (curves
    differ, but one seed per side says nothing about noise).
    """

    study: str
    scale: str
    method: str
    quantity: str
    outcome: str
    where: float = math.nan  # x of the largest difference; NaN where the outcome is *same*
    a: float = math.nan  # mean over the seeds of A there
    b: float = math.nan  # mean over the seeds of B there
    error: float = 0.0  # the difference in standard errors


@dataclass(frozen=True)
class Comparison:
    """What two sets of records share, and where they differ."""

    verdicts: tuple[tuple[str, str, str, str], ...]  # study, scale, verdict in A, verdict in B
    curves: tuple[Difference, ...]
    only_a: tuple[str, ...]  # "study/scale"
    only_b: tuple[str, ...]

    @property
    def changed(self) -> tuple[tuple[str, str, str, str], ...]:
        """Study, scale, verdict in A, verdict in B, where the two differ."""
        return tuple(
            (study, scale, in_a, in_b) for study, scale, in_a, in_b in self.verdicts if in_a != in_b
        )

    @property
    def differing(self) -> tuple[Difference, ...]:
        """The curves that differ beyond seed noise."""
        return tuple(d for d in self.curves if d.outcome == "differs")


def compare(a: Path, b: Path, *, level: float = 0.001) -> Comparison:
    """Compare two folders of records, ``a`` and ``b``, study by study and curve by curve.

    Two curves differ beyond seed noise if Welch's t of their means exceeds its quantile at some
    place. ``level`` is divided by the number of places (Bonferroni): at most this share of equal
    curves is called different.
    """
    between("level", level, 0, 1, ends="()")
    # By study and scale.
    in_a = {(study.name, study.scale): study for study in load(a)}
    in_b = {(study.name, study.scale): study for study in load(b)}
    common = [key for key in in_a if key in in_b]
    return Comparison(
        verdicts=tuple((*key, _verdict(in_a[key]), _verdict(in_b[key])) for key in common),
        curves=tuple(
            curve for key in common for curve in _differences(in_a[key], in_b[key], level)
        ),
        only_a=tuple("/".join(key) for key in in_a if key not in in_b),
        only_b=tuple("/".join(key) for key in in_b if key not in in_a),
    )


def _verdict(study: Loaded) -> str:
    """The word of a verdict, or that there is none yet."""
    return study.verdict.verdict or "no verdict yet"


def _differences(a: Loaded, b: Loaded, level: float) -> list[Difference]:
    """One difference per method that both studies have and per curve of the first one's figures; a
    curve that either of them has not recorded is left out.
    """
    differences = []
    # A scatter has no common places; its quantities show in the verdict's numbers.
    quantities = dict.fromkeys(
        (figure.x, figure.y) for figure in a.description.figures if figure.kind == "lines"
    )
    for method in (method for method in a.methods if method in b.methods):
        for x, y in quantities:
            curves_a, curves_b = (_curves(study, method, x, y) for study in (a, b))
            if curves_a and curves_b:
                unjudged = Difference(a.name, a.scale, method, y, "same")
                differences.append(difference(unjudged, curves_a, curves_b, level))
    return differences


def _curves(study: Loaded, method: str, x: str, y: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """One curve (x, y) per run of a method that recorded both columns."""
    panels = [Readings(run).panels(x, y, "") for run in study.runs if run.header.method == method]
    # Without a facet a run has one panel, whose title is "", or none.
    return [panels_of_run[""] for panels_of_run in panels if panels_of_run]


def difference(
    unjudged: Difference,
    a: Sequence[tuple[np.ndarray, np.ndarray]],
    b: Sequence[tuple[np.ndarray, np.ndarray]],
    level: float,
) -> Difference:
    """Compare two bundles of curves (one (x, y) per seed) at up to ``PLACES`` common places by
    Welch's t. They differ where no place is common, or where one mean is not finite.

    Args:
        unjudged: names the curve; its outcome is "same".
        a, b: the curves of each folder.
        level: share of equal curves that may be called different.

    Returns:
        ``unjudged`` with the outcome, and where the curves differ most.
    """
    from scipy.stats import t as student

    stats_a, stats_b = over_seeds(a), over_seeds(b)
    common, rows_a, rows_b = np.intersect1d(stats_a["x"], stats_b["x"], return_indices=True)
    if not len(common):
        return replace(unjudged, outcome="differs")
    # Evenly spaced among the common places, the first and the last included.
    compared = np.unique(np.linspace(0, len(common) - 1, PLACES).astype(int))
    stats_a = {name: column[rows_a[compared]] for name, column in stats_a.items()}
    stats_b = {name: column[rows_b[compared]] for name, column in stats_b.items()}
    mean_a, mean_b = stats_a["mean"], stats_b["mean"]

    def difference_at(row: np.intp, outcome: str, error: float) -> Difference:
        """``unjudged`` with an outcome, and the x and both means at one compared place, a row of
        ``mean_a`` and ``mean_b``; ``error`` is the difference there in standard errors.
        """
        x, value_a, value_b = (float(column[row]) for column in (stats_a["x"], mean_a, mean_b))
        return replace(unjudged, outcome=outcome, where=x, a=value_a, b=value_b, error=error)

    only_one_finite = np.isfinite(mean_a) != np.isfinite(mean_b)
    if only_one_finite.any():
        return difference_at(np.argmax(only_one_finite), "differs", math.inf)
    gap, size = np.abs(mean_a - mean_b), np.maximum(np.abs(mean_a), np.abs(mean_b))
    unequal = np.isfinite(mean_a) & (gap > 1e-9 * size)  # by more than rounding
    if not unequal.any():
        return unjudged
    if min(stats_a["n"].min(), stats_b["n"].min()) < 2:
        # No deviation is known: the place of the largest relative difference stands for the worst.
        relative = np.where(unequal, gap / np.maximum(size, 1e-300), -1)
        return difference_at(np.argmax(relative), "too few seeds", math.nan)
    welch_t, degrees = _welch(gap, stats_a, stats_b)
    welch_t = np.where(unequal, welch_t, 0.0)
    # t over its quantile: two-sided, the level divided by the number of places that are compared
    # (Bonferroni). Above 1 the means differ by more than noise.
    excess = welch_t / student.ppf(1 - level / len(compared) / 2, degrees)
    worst = np.argmax(excess)
    outcome = "differs" if excess[worst] > 1 else "within noise"
    return difference_at(worst, outcome, float(welch_t[worst]))


def _welch(
    gap: np.ndarray, stats_a: dict[str, np.ndarray], stats_b: dict[str, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Welch's t of the gap between two means, and its degrees of freedom by Welch and
    Satterthwaite, at every place.

    Args:
        gap: absolute difference of the means.
        stats_a, stats_b: columns ``sd`` and ``n`` over the seeds.
    """
    variance_a, variance_b = (stats["sd"] ** 2 / stats["n"] for stats in (stats_a, stats_b))
    with np.errstate(divide="ignore", invalid="ignore"):
        score = gap / np.sqrt(variance_a + variance_b)
        degrees = (variance_a + variance_b) ** 2 / (
            variance_a**2 / (stats_a["n"] - 1) + variance_b**2 / (stats_b["n"] - 1)
        )
    # Without any deviation the quantile is that of a Gaussian: very many degrees of freedom.
    return score, np.where(np.isfinite(degrees), np.maximum(degrees, 1), 1e9)
