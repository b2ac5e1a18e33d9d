"""Two sets of records (two versions, two machines): which verdicts changed, which curves differ
beyond seed noise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
    differ, but one seed per side says nothing about noise); ``where`` is the place of the largest
    difference and ``error`` that difference in standard errors.
    """

    study: str
    scale: str
    method: str
    quantity: str
    outcome: str
    where: float = math.nan
    a: float = math.nan
    b: float = math.nan
    error: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """What two sets of records share, and where they differ."""

    verdicts: tuple[tuple[str, str, str, str], ...]
    curves: tuple[Difference, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]

    @property
    def changed(self) -> tuple[tuple[str, str, str, str], ...]:
        """Study, scale, verdict in A, verdict in B, where the two differ."""
        return tuple(v for v in self.verdicts if v[2] != v[3])

    @property
    def differing(self) -> tuple[Difference, ...]:
        return tuple(d for d in self.curves if d.outcome == "differs")


def compare(a: Path, b: Path, *, level: float = 0.001) -> Comparison:
    """Compare two folders of records, study by study and curve by curve.

    Two curves differ beyond seed noise if Welch's t of their means exceeds its quantile at some
    place. ``level`` is divided by the number of places (Bonferroni): at most this share of equal
    curves is called different.
    """
    between("level", level, 0, 1, ends="()")
    left = {(s.name, s.scale): s for s in load(a)}
    right = {(s.name, s.scale): s for s in load(b)}
    both = [key for key in left if key in right]
    verdicts = tuple((*key, _verdict(left[key]), _verdict(right[key])) for key in both)
    curves = tuple(d for key in both for d in _curves(left[key], right[key], level))
    return Comparison(
        verdicts,
        curves,
        tuple("/".join(key) for key in left if key not in right),
        tuple("/".join(key) for key in right if key not in left),
    )


def _verdict(study: Loaded) -> str:
    return study.verdict.verdict or "no verdict yet"


def _curves(a: Loaded, b: Loaded, level: float) -> list[Difference]:
    """One difference per method of both studies and per curve of the first one's figures."""
    found = []
    quantities = dict.fromkeys((f.x, f.y, f.kind) for f in a.description.figures)
    for method in (m for m in a.methods if m in b.methods):
        for x, y, kind in quantities:
            if (
                kind != "lines"
            ):  # a scatter has no common places; its quantities show in the verdict's numbers
                continue
            sides = [_columns(study, method, x, y) for study in (a, b)]
            if all(sides):
                place = Difference(a.name, a.scale, method, y, "same")
                found.append(difference(place, sides[0], sides[1], level))
    return found


def _columns(study: Loaded, method: str, x: str, y: str) -> list[tuple[np.ndarray, np.ndarray]]:
    runs = [Readings(run).panels(x, y, "") for run in study.runs if run.header.method == method]
    return [panels[""] for panels in runs if "" in panels]


def difference(
    place: Difference,
    a: Sequence[tuple[np.ndarray, np.ndarray]],
    b: Sequence[tuple[np.ndarray, np.ndarray]],
    level: float,
) -> Difference:
    """Two bundles of curves (one (x, y) per seed), compared at common places."""
    from scipy.stats import t as student

    one, two = over_seeds(a), over_seeds(b)
    common, at_one, at_two = np.intersect1d(one["x"], two["x"], return_indices=True)
    if not len(common):
        return Difference(place.study, place.scale, place.method, place.quantity, "differs")
    pick = np.unique(np.linspace(0, len(common) - 1, PLACES).astype(int))
    at_one, at_two, common = at_one[pick], at_two[pick], common[pick]
    mean_a, mean_b = one["mean"][at_one], two["mean"][at_two]
    n_a, n_b = one["n"][at_one], two["n"][at_two]
    finite = np.isfinite(mean_a) & np.isfinite(mean_b)
    if (np.isfinite(mean_a) != np.isfinite(mean_b)).any():
        worst = int(np.argmax(np.isfinite(mean_a) != np.isfinite(mean_b)))
        return _difference_at(place, "differs", common, mean_a, mean_b, worst, math.inf)
    scale = np.maximum(np.abs(mean_a), np.abs(mean_b))
    apart = finite & (np.abs(mean_a - mean_b) > 1e-9 * scale)
    if not apart.any():
        return place
    var_a, var_b = one["sd"][at_one] ** 2 / n_a, two["sd"][at_two] ** 2 / n_b
    if min(n_a.min(), n_b.min()) < 2:
        worst = int(
            np.argmax(np.where(apart, np.abs(mean_a - mean_b) / np.maximum(scale, 1e-300), -1))
        )
        return _difference_at(place, "too few seeds", common, mean_a, mean_b, worst, math.nan)
    error = np.sqrt(var_a + var_b)
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(apart, np.abs(mean_a - mean_b) / error, 0.0)
        degrees = (var_a + var_b) ** 2 / (var_a**2 / (n_a - 1) + var_b**2 / (n_b - 1))
    limit = student.ppf(
        1 - level / len(common) / 2, np.where(np.isfinite(degrees), np.maximum(degrees, 1), 1e9)
    )
    beyond = score / limit
    worst = int(np.argmax(beyond))
    outcome = "differs" if beyond[worst] > 1 else "within noise"
    return _difference_at(place, outcome, common, mean_a, mean_b, worst, float(score[worst]))


def _difference_at(
    place: Difference,
    outcome: str,
    x: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    i: int,
    error: float,
) -> Difference:
    """The difference of two curves at their i-th place."""
    return Difference(
        place.study,
        place.scale,
        place.method,
        place.quantity,
        outcome,
        float(x[i]),
        float(a[i]),
        float(b[i]),
        error,
    )
