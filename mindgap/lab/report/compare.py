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
            # A scatter has no common places; its quantities show in the verdict's numbers.
            if kind != "lines":
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
    """Two bundles of curves (one (x, y) per seed), compared at common places by Welch's t.

    Returns:
        ``place`` with the outcome, and where the curves differ most.
    """
    from scipy.stats import t as student

    one, two = over_seeds(a), over_seeds(b)
    common, at_one, at_two = np.intersect1d(one["x"], two["x"], return_indices=True)
    if not len(common):
        return replace(place, outcome="differs")
    pick = np.unique(np.linspace(0, len(common) - 1, PLACES).astype(int))
    one, two = (
        {k: v[at[pick]] for k, v in side.items()} for side, at in ((one, at_one), (two, at_two))
    )
    mean_a, mean_b = one["mean"], two["mean"]

    def differs_at(worst: np.intp, outcome: str, error: float) -> Difference:
        where, here, there = (float(column[worst]) for column in (one["x"], mean_a, mean_b))
        return replace(place, outcome=outcome, where=where, a=here, b=there, error=error)

    one_ends = np.isfinite(mean_a) != np.isfinite(mean_b)
    if one_ends.any():
        return differs_at(np.argmax(one_ends), "differs", math.inf)
    gap, scale = np.abs(mean_a - mean_b), np.maximum(np.abs(mean_a), np.abs(mean_b))
    apart = np.isfinite(mean_a) & (gap > 1e-9 * scale)
    if not apart.any():
        return place
    if min(one["n"].min(), two["n"].min()) < 2:
        relative = np.where(apart, gap / np.maximum(scale, 1e-300), -1)
        return differs_at(np.argmax(relative), "too few seeds", math.nan)
    variances = [side["sd"] ** 2 / side["n"] for side in (one, two)]
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(apart, gap / np.sqrt(sum(variances)), 0.0)
        terms = [v**2 / (side["n"] - 1) for v, side in zip(variances, (one, two))]
        degrees = sum(variances) ** 2 / sum(terms)
    usable = np.where(np.isfinite(degrees), np.maximum(degrees, 1), 1e9)
    beyond = score / student.ppf(1 - level / len(pick) / 2, usable)
    worst = np.argmax(beyond)
    outcome = "differs" if beyond[worst] > 1 else "within noise"
    return differs_at(worst, outcome, float(score[worst]))
