"""The numbers of one figure: every method's curve or points, what the claim is about, and what
the figure shows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from mindgap.lab.report.aggregate import (
    Readings,
    Series,
    end_values,
    facet_values,
    one_value_per_place,
    over_seeds,
    thin,
    thin_points,
)
from mindgap.lab.report.words import MORE_IS_BETTER
from mindgap.record.forms import Figure, Tuning

#: Colours on white, each with a contrast of at least 3; the style sheet has those for a dark
#: screen.
LIGHT = ("#0b5cad", "#c2410c", "#15803d", "#8b2fc9", "#946800", "#0e7490", "#be185d", "#4b5563")
#: Methods that the claim is not about; where the claim names none, beyond eight the colours come
#: again with a dash.
GREY = "#868e96"
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
#: With more methods than this, those that the claim is not about are grey.
FEW_METHODS = 4
#: Quantiles and standard deviations over fewer seeds say nothing: the seeds themselves are drawn.
ENOUGH_SEEDS = 4
#: A line that runs along earlier ones is broken, so that they show through its gaps.
ALONG = ([1, 0], [7, 7], [2, 7], [7, 3, 1, 3])
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-right",
    "triangle-left",
)

#: The order in which x-axes are offered (a description on disk has its keys in order of the
#: alphabet).
AXES = ("step", "x_epoch", "y_epoch", "oracle_calls", "seconds", "cpu_seconds")


@dataclass(frozen=True)
class Axis:
    """The figure's numbers against one quantity: statistics over seeds, and every run by itself."""

    name: str
    label: str
    series: tuple[Series, ...]
    runs: tuple[Series, ...] = ()


@dataclass(frozen=True)
class Drawing:
    """A figure with its numbers, ready for the page or for a picture.

    ``single`` says that no method has more than one run, so that there is no band to draw.
    ``accent`` lists the methods that the claim is about; the others are drawn in grey.
    """

    TIMES: ClassVar[tuple[str, ...]] = AXES
    #: Along these a search looks for the lowest value.
    SEARCHED: ClassVar[tuple[str, ...]] = (
        "factor",
        "candidate",
    )

    id: str
    figure: Figure
    methods: tuple[str, ...]
    facets: tuple[str, ...]
    axes: tuple[Axis, ...]
    accent: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not any(len(s) for axis in self.axes for s in axis.series)

    @property
    def kind(self) -> str:
        return self.figure.kind

    @property
    def single(self) -> bool:
        return self.kind != "lines" or all(
            s.columns["n"].max(initial=1) <= 1 for a in self.axes for s in a.series
        )

    @property
    def statistic(self) -> str:
        """What is drawn first: the seeds where they are few; medians on a log axis, where a mean
        follows the largest value; means otherwise."""
        if self.single:
            return "value"
        if self.seeds < ENOUGH_SEEDS:
            return "every"
        return "quantiles" if self.figure.log_y else "mean"

    @property
    def seeds(self) -> int:
        """The largest number of seeds of a method."""
        return int(
            max(
                (
                    s.columns["n"].max(initial=1)
                    for a in self.axes
                    for s in a.series
                    if "n" in s.columns
                ),
                default=1,
            )
        )

    @property
    def colours(self) -> list[int | None]:
        """The number of each method's colour; ``None``: grey."""
        if not self.accent:
            return [place % len(LIGHT) for place in range(len(self.methods))]
        return [
            self.accent.index(m) % len(LIGHT) if m in self.accent else None for m in self.methods
        ]

    @property
    def ranked(self) -> bool:
        """Whether a ranking of the last values replaces the bundle of lines."""
        return (
            self.kind == "lines"
            and not self.names
            and len(self.ends()) > len(LIGHT) * len(self.facets)
        )

    @property
    def middle(self) -> str:
        """What stands for several runs in titles and rankings, as in the picture; empty for one."""
        if self.kind == "points":
            return "median"
        return "" if self.single else "mean" if self.statistic == "mean" else "median"

    def ends(self) -> dict[tuple[str, str], float]:
        """(method, panel) -> the :attr:`middle` of its runs' last values or of its points; along
        a search the lowest.
        """
        found: dict[tuple[str, str], list[np.ndarray]] = {}
        for series in self.axes[0].series:
            values = self._ends_of(series)
            if len(values):
                found.setdefault((series.method, series.facet), []).append(values)
        return {key: float(np.median(np.concatenate(parts))) for key, parts in found.items()}

    def _ends_of(self, series: Series) -> np.ndarray:
        """All finite points of a scatter; of a line its last finite value, along a search its
        lowest; empty where there is none.
        """
        if "y" in series.columns:
            return series.columns["y"][np.isfinite(series.columns["y"])]
        column = "mean" if self.middle == "mean" else "q50"
        searched = self.axes[0].name in self.SEARCHED
        if series.ends and not searched:
            values = np.array([series.ends[column]])
        else:
            values = series.columns[column]
        finite = values[np.isfinite(values)]
        return np.sort(finite)[:1] if searched else finite[-1:]

    @property
    def upwards(self) -> bool:
        """Whether more of what is drawn is better."""
        return any(word in self.figure.y_label for word in MORE_IS_BETTER)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the places 0, 1, ... on the x-axis; empty where it shows numbers."""
        if self.figure.x == "method":
            return self.methods
        return self.figure.x_names

    @property
    def shifts(self) -> list[float]:
        """How far each method's points stand beside a named place: those of several methods
        must not hide another.
        """
        number = len(self.methods) if self.names and self.figure.x != "method" else 0
        return [
            (place - (number - 1) / 2) * 0.7 / number if number else 0.0
            for place in range(len(self.methods))
        ]

    @property
    def dashes(self) -> list[list[int]]:
        """The dash of each method's line: one per block of eight colours; others for lines
        along earlier ones.
        """
        if len(self.methods) > len(LIGHT):
            return [DASHES[i // len(LIGHT) % len(DASHES)] for i in range(len(self.methods))]
        log = self.figure.log_y
        curves = [{s.facet: s for s in self.axes[0].series if s.method == m} for m in self.methods]
        along = [
            sum(_run_along(curves[j], curves[i], log) for j in range(i))
            if self.kind == "lines"
            else 0
            for i in range(len(self.methods))
        ]
        return [ALONG[min(number, len(ALONG) - 1)] for number in along]

    def alone(self, axis: Axis) -> dict[str, str]:
        """The channels on which each panel needs an axis of its own: it would fill too little
        of a common one.
        """
        if len(self.facets) < 2:
            return {}
        apart = {}
        for channel in ("x", "y"):
            log = getattr(self.figure, f"log_{channel}")
            column = channel if channel == "x" or self.kind != "lines" else "q50"
            ends = [
                _ends([s.columns[column] for s in axis.series if s.facet == f], log)
                for f in self.facets
            ]
            spans = [end for end in ends if end is not None]
            if spans:
                whole = max(high for _, high in spans) - min(low for low, _ in spans)
                if min(high - low for low, high in spans) < 0.3 * whole:
                    apart[channel] = "independent"
        return apart


def _run_along(a: dict[str, Series], b: dict[str, Series], log: bool) -> bool:
    """Whether in some panel nearly all of curve ``b`` is as good as on curve ``a``: within a
    hundredth of the range.
    """
    for facet in a.keys() & b.keys():
        (x, y), (u, v) = (_finite_points(s, log) for s in (a[facet], b[facet]))
        if len(x) and (np.diff(x) >= 0).all() and (inside := (u >= x[0]) & (u <= x[-1])).any():
            range_ = np.ptp(np.concatenate([y, v])) or 1.0
            if np.mean(np.abs(np.interp(u[inside], x, y) - v[inside]) <= 0.01 * range_) > 0.9:
                return True
    return False


def _finite_points(series: Series, log: bool) -> tuple[np.ndarray, np.ndarray]:
    """The finite points of a curve of medians, as high as they are drawn."""
    x, y = series.columns["x"], series.columns["q50"]
    keep = np.isfinite(y) & ((y > 0) | (not log))
    return x[keep], np.log(y[keep]) if log else y[keep]


def _ends(columns: list[np.ndarray], log: bool) -> tuple[float, float] | None:
    """Smallest and largest finite value, of logarithms where ``log``; None where there is none."""
    values = np.concatenate([*columns, np.empty(0)])
    values = values[np.isfinite(values)]
    if log:
        values = np.log(values[values > 0])
    return (float(values.min()), float(values.max())) if len(values) else None


def draw(
    identity: str,
    figure: Figure,
    runs: Sequence[Readings],
    methods: list[str],
    axes: dict[str, str],
    budget: int = 6000,
    accent: Sequence[str] = (),
) -> Drawing:
    """Collect the numbers of one figure.

    Args:
        budget: points to keep, per axis; more are thinned, keeping extremes.
        accent: the methods that the claim is about.
    """
    lines = figure.kind == "lines"
    offered = {figure.x: figure.x_label or axes.get(figure.x, figure.x)}
    if lines and figure.x in axes:
        known = sorted(axes, key=lambda name: AXES.index(name) if name in AXES else len(AXES))
        offered |= {name: axes[name] for name in known if name not in offered}
    facets = facet_values([r.run for r in runs], figure.facet)
    drawn = []
    for name, label in offered.items():
        axis = _axis(name, label, figure, runs, methods, facets, budget)
        varies = any(np.ptp(s.columns["x"]) > 0 for s in axis.series if len(s))
        if name == figure.x or varies:
            drawn.append(axis)
    shown = {s.facet for axis in drawn for s in axis.series}
    panels = tuple(f for f in facets if f in shown) or ("",)
    return Drawing(identity, figure, tuple(methods), panels, tuple(drawn), tuple(accent))


def about(title: str, methods: Sequence[str]) -> list[str]:
    """The methods that a claim's title names, where there are many and it names some of them only.

    Example:
        >>> (
        ...     about("SLIP against four", ["SLIP", "BSA", "TTSA", "MRBO", "VRBO"]),
        ...     about("SGD or Adam", ["SGD", "Adam"]),
        ... )
        (['SLIP'], [])
    """
    named = [m for m in methods if re.search(rf"(?<![\w-]){re.escape(m)}(?![\w-])", title)]
    return named if len(methods) > FEW_METHODS and len(named) < len(methods) else []


def draw_tuning(identity: str, tuning: Tuning, methods: list[str]) -> Drawing:
    """The best value so far against the number of trials: how a search with equal budgets went
    for each method.
    """
    figure = Figure(
        title="Tuning: best value so far",
        y=tuning.metric,
        y_label=f"best {tuning.metric} so far",
        x="trial",
        caption="Every method had the same number of trials in the same space."
        if not tuning.extended
        else f"Every method had the same {tuning.trials} points; further ones lie beyond an end "
        "of the grid.",
    )
    series = []
    for method, made in tuning.methods.items():
        values = np.array([trial.value for trial in made.trials], dtype=float)
        best = np.minimum.accumulate(values)
        columns = {"x": np.arange(1.0, len(best) + 1), "mean": best, "n": np.ones(len(best))}
        columns |= {"sd": np.zeros(len(best)), "q10": best, "q50": best, "q90": best}
        series.append(Series(method, "", columns))
    known = list(dict.fromkeys([*methods, *tuning.methods]))
    return Drawing(identity, figure, tuple(known), ("",), (Axis("trial", "trial", tuple(series)),))


def _axis(
    name: str,
    label: str,
    figure: Figure,
    runs: Sequence[Readings],
    methods: list[str],
    facets: list[str],
    budget: int,
) -> Axis:
    """The series of one figure over one x-axis, thinned to the budget of points."""
    by_place: dict[tuple[str, str], list[tuple[int, np.ndarray, np.ndarray]]] = {}
    for run in runs:
        header = run.run.header
        column = figure.y if name == "method" else name
        for facet, (x, y) in run.panels(column, figure.y, figure.facet).items():
            by_place.setdefault((header.method, facet), []).append((header.seed, x, y))
    if name == "method":
        by_place = {
            key: [(seed, np.full(len(y), float(methods.index(key[0]))), y) for seed, _, y in found]
            for key, found in by_place.items()
        }
    order = sorted(by_place, key=lambda key: (methods.index(key[0]), facets.index(key[1])))
    each = [Series(m, f, {"x": x, "y": y}, seed) for m, f in order for seed, x, y in by_place[m, f]]
    kind, log_x = figure.kind, figure.log_x
    share = max(budget // max(len(each), 1), 12)
    if kind == "points":
        return Axis(name, label, tuple(thin_points(s, share) for s in each))
    if kind == "path":
        return Axis(name, label, tuple(thin(s, max(share // 4, 3)) for s in each))
    bundles = {key: [(x, y) for _, x, y in by_place[key]] for key in order}
    table = [
        Series(*key, over_seeds(curves), ends=end_values(curves)) for key, curves in bundles.items()
    ]
    buckets = min(max(budget // max(len(table), 1) // 6, 6), 200)
    series = tuple(thin(s, buckets, log_x=log_x) for s in table)
    several = len(each) > len(table)
    each = [
        replace(s, columns=dict(zip("xy", one_value_per_place(s.columns["x"], s.columns["y"]))))
        for s in each
    ]
    return Axis(
        name,
        label,
        series,
        tuple(thin(s, max(share // 4, 3), log_x=log_x) for s in each) if several else (),
    )
