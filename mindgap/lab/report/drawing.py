"""The numbers of one figure: every method's curve or points, what the claim is about, and what
the figure shows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from mindgap.record.schema import grouped

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
#: Along these a search looks for the lowest value.
SEARCHED = ("factor", "candidate")


@dataclass(frozen=True)
class Axis:
    """The figure's numbers against one quantity: statistics over seeds, and every run by itself."""

    name: str  # of the quantity, as records have it
    label: str
    series: tuple[Series, ...]  # statistics of lines; the points of every run otherwise
    runs: tuple[Series, ...] = ()  # every run of lines; empty where no method has two


@dataclass(frozen=True)
class Drawing:
    """A figure with its numbers, ready for the page or for a picture."""

    id: str
    figure: Figure  # what to draw: quantities, labels, kind
    methods: tuple[str, ...]
    facets: tuple[str, ...]  # titles of the panels; ("",) for one without a title
    axes: tuple[Axis, ...]  # the x-axes on offer; the first one is the figure's own
    accent: tuple[str, ...] = ()  # methods that the claim is about; the others are grey

    @property
    def empty(self) -> bool:
        return not any(len(s) for axis in self.axes for s in axis.series)

    @property
    def kind(self) -> str:
        return self.figure.kind

    @property
    def single(self) -> bool:
        """Whether no method has more than one run, so that there is no band to draw."""
        series = [series for axis in self.axes for series in axis.series]
        return self.kind != "lines" or all(one.columns["n"].max(initial=1) <= 1 for one in series)

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
        series = [series for axis in self.axes for series in axis.series if "n" in series.columns]
        return int(max((each.columns["n"].max(initial=1) for each in series), default=1))

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
        if self.single:
            return ""
        return "mean" if self.statistic == "mean" else "median"

    def ends(self) -> dict[tuple[str, str], float]:
        """(method, panel) -> the :attr:`middle` of its runs' last values, of a scatter the median
        of its points, and along a search the lowest value of the curve. Empty ones are left out.
        """
        values_of = grouped(
            ((series.method, series.facet), self._ends_of(series)) for series in self.axes[0].series
        )
        joined = {key: np.concatenate(parts) for key, parts in values_of.items()}
        return {key: float(np.median(values)) for key, values in joined.items() if len(values)}

    def _ends_of(self, series: Series) -> np.ndarray:
        """The values of a series that its end is the median of: all finite y of a scatter or a
        path, else one value: the last finite one of a line, or along a search the lowest. Empty
        where there is none.
        """
        if "y" in series.columns:
            return series.columns["y"][np.isfinite(series.columns["y"])]
        column = "mean" if self.middle == "mean" else "q50"
        searched = self.axes[0].name in SEARCHED
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
        """How far each method's points stand to the right of a named place (to the left where
        negative), so that the methods do not hide each other. The places are 1 apart.
        """
        count = len(self.methods)
        if not self.names or self.figure.x == "method":
            return [0.0] * count
        # Together the methods take 0.7 of the way from one named place to the next.
        return [(place - (count - 1) / 2) * 0.7 / count for place in range(count)]

    @property
    def dashes(self) -> list[list[int]]:
        """The dash of each method's line: lengths drawn and left out in turn.

        With more methods than colours, a dash per round of colours. Otherwise a line gets a dash by
        the number of earlier lines that it runs along, so that they show through its gaps.
        """
        if len(self.methods) > len(LIGHT):
            return [DASHES[i // len(LIGHT) % len(DASHES)] for i in range(len(self.methods))]
        if self.kind != "lines":
            return [ALONG[0]] * len(self.methods)
        # Per method: panel -> its curve.
        curves = [{s.facet: s for s in self.axes[0].series if s.method == m} for m in self.methods]
        dashes = []
        for i, curve in enumerate(curves):
            covered = sum(_run_along(before, curve, self.figure.log_y) for before in curves[:i])
            dashes.append(ALONG[min(covered, len(ALONG) - 1)])
        return dashes

    def alone(self, axis: Axis) -> dict[str, str]:
        """The channels on which each panel gets an axis of its own, because some panel would fill
        less than 0.3 of a common one; each is mapped to Vega-Lite's word ``"independent"``.
        """
        if len(self.facets) < 2:
            return {}
        independent = {}
        for channel in ("x", "y"):
            log = getattr(self.figure, f"log_{channel}")
            # The heights of lines are those of their medians.
            column = "q50" if channel == "y" and self.kind == "lines" else channel
            by_panel = grouped((series.facet, series.columns[column]) for series in axis.series)
            range_or_none = [_ends(columns, log) for columns in by_panel.values()]
            ranges = [ends for ends in range_or_none if ends is not None]
            lows, highs = [low for low, _ in ranges], [high for _, high in ranges]
            narrowest = min((high - low for low, high in ranges), default=0.0)
            if ranges and narrowest < 0.3 * (max(highs) - min(lows)):
                independent[channel] = "independent"
        return independent


def _run_along(a: dict[str, Series], b: dict[str, Series], log: bool) -> bool:
    """Whether curve ``b`` runs along curve ``a``: in some panel more than 90 % of its points, where
    ``a`` is drawn, lie within a hundredth of the height of both from it.

    Args:
        a, b: panel -> the series of one method.
        log: whether heights are compared as logarithms.
    """
    for facet in a.keys() & b.keys():
        x_a, y_a = _finite_points(a[facet], log)
        x_b, y_b = _finite_points(b[facet], log)
        if not len(x_a) or (np.diff(x_a) < 0).any():
            continue
        inside = (x_b >= x_a[0]) & (x_b <= x_a[-1])  # where curve a is drawn
        if inside.any():
            height = np.ptp(np.concatenate([y_a, y_b])) or 1.0
            distance = np.abs(np.interp(x_b[inside], x_a, y_a) - y_b[inside])
            if np.mean(distance <= 0.01 * height) > 0.9:
                return True
    return False


def _finite_points(series: Series, log: bool) -> tuple[np.ndarray, np.ndarray]:
    """The finite points (x, y) of a curve of medians; y is the logarithm where ``log``."""
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
    """Collect the numbers of one figure, over its own x-axis and, for lines, over every other one
    that is offered and along which the numbers vary.

    Args:
        identity: id of the figure in the page.
        axes: name -> label of the x-axes that the study offers.
        budget: points to keep, per axis; more are thinned, keeping extremes.
        accent: the methods that the claim is about.
    """
    lines = figure.kind == "lines"
    offered = {figure.x: figure.x_label or axes.get(figure.x, figure.x)}
    if lines and figure.x in axes:
        known = sorted(axes, key=lambda name: AXES.index(name) if name in AXES else len(AXES))
        offered |= {name: axes[name] for name in known if name not in offered}
    facets = facet_values([reading.run for reading in runs], figure.facet)
    drawn_axes = []
    for name, label in offered.items():
        axis = _axis(name, label, figure, runs, methods, facets, budget)
        varies = any(np.ptp(one.columns["x"]) > 0 for one in axis.series if len(one))
        if name == figure.x or varies:
            drawn_axes.append(axis)
    facets_drawn = {one.facet for axis in drawn_axes for one in axis.series}
    panels = tuple(facet for facet in facets if facet in facets_drawn) or ("",)
    return Drawing(identity, figure, tuple(methods), panels, tuple(drawn_axes), tuple(accent))


def about(title: str, methods: Sequence[str]) -> list[str]:
    """The methods that a claim's title names, where there are many and it names some of them only.

    Example:
        >>> (
        ...     about("SLIP against four", ["SLIP", "BSA", "TTSA", "MRBO", "VRBO"]),
        ...     about("SGD or Adam", ["SGD", "Adam"]),
        ... )
        (['SLIP'], [])
    """
    named = [
        method for method in methods if re.search(rf"(?<![\w-]){re.escape(method)}(?![\w-])", title)
    ]
    return named if len(methods) > FEW_METHODS and len(named) < len(methods) else []


def draw_tuning(identity: str, tuning: Tuning, methods: list[str]) -> Drawing:
    """The drawing of a search: for each method the best value so far against the number of trials.

    Args:
        identity: id of the figure in the page.
        methods: the study's methods, which come first.
    """
    figure = Figure(
        title="Tuning: best value so far",
        y=tuning.metric,
        y_label=f"best {tuning.metric} so far",
        x="trial",
        caption="Every method shown had the same number of trials in the same space."
        if not tuning.extended
        else f"Every method shown had the same {tuning.trials} points; further ones lie beyond an "
        "end of the grid.",
    )
    series = []
    for method, search in tuning.methods.items():
        values = np.array([trial.value for trial in search.trials], dtype=float)
        best = np.minimum.accumulate(values)
        # Statistics of a single run: no deviation, and all quantiles are the value.
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
    """The series of one figure over one x-axis, thinned to the budget of points: statistics over
    the seeds for lines, every run by itself for other kinds.

    Args:
        name, label: of the x-axis.
        facets: titles of the panels.
    """
    of_runs = _series_of_runs(name, figure, runs, methods, facets)
    points_per_run = max(budget // max(len(of_runs), 1), 12)
    if figure.kind == "points":
        return Axis(name, label, tuple(thin_points(run, points_per_run) for run in of_runs))
    buckets_per_run = max(points_per_run // 4, 3)  # a bucket keeps four points
    if figure.kind == "path":
        return Axis(name, label, tuple(thin(run, buckets_per_run) for run in of_runs))
    curves_of = grouped(
        ((run.method, run.facet), (run.columns["x"], run.columns["y"])) for run in of_runs
    )
    buckets = min(max(budget // max(len(curves_of), 1) // 6, 6), 200)  # statistics keep six points
    statistics = []
    for (method, facet), curves in curves_of.items():
        over_all_seeds = Series(method, facet, over_seeds(curves), ends=end_values(curves))
        statistics.append(thin(over_all_seeds, buckets, log_x=figure.log_x))
    if len(of_runs) == len(statistics):  # one seed each: its curve is the statistic
        return Axis(name, label, tuple(statistics))
    single_runs = []
    for run in of_runs:
        x, y = one_value_per_place(run.columns["x"], run.columns["y"])
        sorted_by_x = replace(run, columns={"x": x, "y": y})
        single_runs.append(thin(sorted_by_x, buckets_per_run, log_x=figure.log_x))
    return Axis(name, label, tuple(statistics), tuple(single_runs))


def _series_of_runs(
    name: str,
    figure: Figure,
    runs: Sequence[Readings],
    methods: list[str],
    facets: list[str],
) -> list[Series]:
    """One series with the columns ``x`` and ``y`` per run and panel, in the order of methods and
    panels.

    Args:
        name: the quantity on the x-axis; on the axis ``method`` x is the method's number.
    """
    series = []
    for readings in runs:
        header = readings.run.header
        x_name = figure.y if name == "method" else name
        for facet, (x, y) in readings.panels(x_name, figure.y, figure.facet).items():
            if name == "method":
                x = np.full(len(y), float(methods.index(header.method)))
            series.append(Series(header.method, facet, {"x": x, "y": y}, header.seed))
    return sorted(series, key=lambda s: (methods.index(s.method), facets.index(s.facet)))
