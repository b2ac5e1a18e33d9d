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
    one_value_per_place,
    over_seeds,
    panel_titles,
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
#: Curves keep so many buckets at least, however many curves there are: with 6 a histogram of 40
#: bins became a triangle. A curve of at most 40 points is drawn as it is.
LEAST_BUCKETS = 20
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
        """Whether no axis has a point."""
        return not any(len(s) for axis in self.axes for s in axis.series)

    @property
    def kind(self) -> str:
        """What is drawn: ``"lines"``, ``"path"`` or ``"points"``."""
        return self.figure.kind

    @property
    def has_no_band(self) -> bool:
        """Whether there is no band to draw: the figure has no lines, or no method has two runs."""
        return self.kind != "lines" or self.seeds <= 1

    @property
    def statistic(self) -> str:
        """What is drawn of several runs at first: ``"every"`` run by itself where seeds are few,
        ``"quantiles"`` on a log axis, where a mean follows the largest value, or the ``"mean"``;
        ``"value"`` where a method has one run.
        """
        if self.has_no_band:
            return "value"
        if self.seeds < ENOUGH_SEEDS:
            return "every"
        return "quantiles" if self.figure.log_y else "mean"

    @property
    def seeds(self) -> int:
        """The largest number of runs that a place of a line has, 1 where there are no lines."""
        counts = [s.columns["n"] for axis in self.axes for s in axis.series if "n" in s.columns]
        return int(max((count.max(initial=1) for count in counts), default=1))

    @property
    def colours(self) -> list[int | None]:
        """The number of each method's colour in :data:`LIGHT`; ``None``: grey."""
        coloured = self.accent or self.methods  # the methods that have a colour
        return [
            coloured.index(method) % len(LIGHT) if method in coloured else None
            for method in self.methods
        ]

    @property
    def ranked(self) -> bool:
        """Whether a ranking of the last values replaces the lines, because there are more lines per
        panel than colours.
        """
        return (
            self.kind == "lines"
            and not self.names
            and len(self.ends()) > len(LIGHT) * len(self.facets)
        )

    @property
    def average(self) -> str:
        """The statistic over runs in titles and rankings, ``"mean"`` or ``"median"``, as in the
        picture; empty where a method has one run.
        """
        if self.kind == "points":
            return "median"
        if self.has_no_band:
            return ""
        return "mean" if self.statistic == "mean" else "median"

    def ends(self) -> dict[tuple[str, str], float]:
        """(method, panel) -> the :attr:`average` of its runs' last values; of a scatter the median
        of its points, along a search the lowest value of the curve. A pair without a finite value
        is left out.
        """
        parts_of = grouped(
            ((series.method, series.facet), self._ends_of(series)) for series in self.axes[0].series
        )
        values_of = {key: np.concatenate(parts) for key, parts in parts_of.items()}
        return {key: float(np.median(values)) for key, values in values_of.items() if len(values)}

    def _ends_of(self, series: Series) -> np.ndarray:
        """The finite values of a series whose median is its end: all y of a scatter or a path; of a
        line one value, the last one, or the lowest along a search. Empty where none is finite.
        """
        if "y" in series.columns:
            return series.columns["y"][np.isfinite(series.columns["y"])]
        column = "mean" if self.average == "mean" else "q50"
        searched = self.axes[0].name in SEARCHED
        values = series.columns[column]
        # ``series.ends``, where kept, has the statistics of the runs' own last values.
        if series.ends and not searched:
            values = np.array([series.ends[column]])
        finite = values[np.isfinite(values)]
        return np.sort(finite)[:1] if searched else finite[-1:]

    @property
    def more_is_better(self) -> bool:
        """Whether larger values of y are better, as its label says."""
        return any(word in self.figure.y_label for word in MORE_IS_BETTER)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the places 0, 1, ... on the x-axis; empty where it shows numbers."""
        if self.figure.x == "method":
            return self.methods
        return self.figure.x_names

    @property
    def shifts(self) -> list[float]:
        """How far each method's points stand to the right of a named place, so that the methods do
        not hide each other. The places are 1 apart; a negative number is a shift to the left.
        """
        count = len(self.methods)
        if not self.names or self.figure.x == "method":
            return [0.0] * count
        # Together the methods take 0.7 of the way from one named place to the next.
        return [(number - (count - 1) / 2) * 0.7 / count for number in range(count)]

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
        # ``ALONG`` has a dash for each number of earlier lines, from 0 on.
        series = self.axes[0].series
        # Per method: panel -> its curve.
        curves = [{s.facet: s for s in series if s.method == method} for method in self.methods]
        dashes = []
        for i, curve in enumerate(curves):
            covered = sum(_run_along(earlier, curve, self.figure.log_y) for earlier in curves[:i])
            dashes.append(ALONG[min(covered, len(ALONG) - 1)])
        return dashes

    def independent_axes(self, axis: Axis) -> dict[str, str]:
        """The channels, ``"x"`` or ``"y"``, on which each panel gets an axis of its own, because
        some panel would fill less than 0.3 of a common one; each with Vega-Lite's word
        ``"independent"``.
        """
        if len(self.facets) < 2:
            return {}
        independent = {}
        for channel in ("x", "y"):
            log = getattr(self.figure, f"log_{channel}")
            # The heights of lines are those of their medians.
            column = "q50" if channel == "y" and self.kind == "lines" else channel
            by_panel = grouped((series.facet, series.columns[column]) for series in axis.series)
            values_of_panels = [_finite_values(columns, log) for columns in by_panel.values()]
            lows = [float(values.min()) for values in values_of_panels if len(values)]
            highs = [float(values.max()) for values in values_of_panels if len(values)]
            common_range = max(highs, default=0.0) - min(lows, default=0.0)
            if any(high - low < 0.3 * common_range for low, high in zip(lows, highs)):
                independent[channel] = "independent"
        return independent


def _run_along(a: dict[str, Series], b: dict[str, Series], log: bool) -> bool:
    """Whether curve ``b`` runs along curve ``a`` in some panel: of its points over the x-range of
    ``a``, more than 90 % lie within a hundredth of the height of both curves from ``a``.

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


def _finite_values(columns: list[np.ndarray], log: bool) -> np.ndarray:
    """The finite values of all columns; the logarithms of the positive ones where ``log``."""
    values = np.concatenate(columns)
    values = values[np.isfinite(values)]
    return np.log(values[values > 0]) if log else values


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
        runs: of all methods.
        methods: of the study, in its order.
        axes: name -> label of the x-axes that the study offers.
        budget: points to keep, per axis; more are thinned, keeping extremes.
        accent: the methods that the claim is about.
    """
    # Name -> label, the figure's own x-axis first.
    labels = {figure.x: figure.x_label or axes.get(figure.x, figure.x)}
    if figure.kind == "lines" and figure.x in axes:
        in_order = sorted(axes, key=lambda name: AXES.index(name) if name in AXES else len(AXES))
        labels |= {name: axes[name] for name in in_order if name != figure.x}
    titles = panel_titles([reading.run for reading in runs], figure.facet)
    drawn_axes = []
    for name, label in labels.items():
        axis = _axis(name, label, figure, runs, methods, titles, budget)
        # An axis other than the figure's own is offered only where its quantity varies.
        x_varies = any(np.ptp(series.columns["x"]) > 0 for series in axis.series if len(series))
        if name == figure.x or x_varies:
            drawn_axes.append(axis)
    titles_drawn = {series.facet for axis in drawn_axes for series in axis.series}
    panels = tuple(title for title in titles if title in titles_drawn) or ("",)
    return Drawing(identity, figure, tuple(methods), panels, tuple(drawn_axes), tuple(accent))


def methods_named(title: str, methods: Sequence[str]) -> list[str]:
    """The methods that a claim's title names; empty where there are at most :data:`FEW_METHODS`, or
    where it names all of them.

    Example:
        >>> (
        ...     methods_named("SLIP against four", ["SLIP", "BSA", "TTSA", "MRBO", "VRBO"]),
        ...     methods_named("SGD or Adam", ["SGD", "Adam"]),
        ... )
        (['SLIP'], [])
    """
    # A name stands by itself: SGD is not named by ASGD or by SGD-M.
    named = [
        method for method in methods if re.search(rf"(?<![\w-]){re.escape(method)}(?![\w-])", title)
    ]
    return named if len(methods) > FEW_METHODS and len(named) < len(methods) else []


def draw_tuning(identity: str, tuning: Tuning, methods: list[str]) -> Drawing:
    """The drawing of a search: for each method the best value so far against the number of trials.

    Args:
        identity: id of the figure in the page.
        tuning: the search, with the trials of each method in their order.
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
        best = np.minimum.accumulate([float(trial.value) for trial in search.trials])
        # The statistics of a single run: no deviation, and all quantiles are the value.
        columns = {"x": np.arange(1.0, len(best) + 1), "mean": best, "n": np.ones(len(best))}
        columns |= {"sd": np.zeros(len(best)), "q10": best, "q50": best, "q90": best}
        series.append(Series(method, "", columns))
    all_methods = tuple(dict.fromkeys([*methods, *tuning.methods]))
    return Drawing(identity, figure, all_methods, ("",), (Axis("trial", "trial", tuple(series)),))


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
        runs: of all methods.
        facets: titles of the panels.
        budget: points to keep, shared by all series.
    """
    run_series = _series_of_runs(name, figure, runs, methods, facets)
    points_per_run = max(budget // max(len(run_series), 1), 12)  # at least 12, however many runs
    if figure.kind == "points":
        return Axis(name, label, tuple(thin_points(run, points_per_run) for run in run_series))
    buckets_per_run = max(points_per_run // 4, LEAST_BUCKETS)  # a bucket keeps four points
    if figure.kind == "path":
        return Axis(name, label, tuple(thin(run, buckets_per_run) for run in run_series))
    curves_of = grouped(  # (method, panel) -> its curves
        ((run.method, run.facet), (run.columns["x"], run.columns["y"])) for run in run_series
    )
    # Statistics keep six points per bucket; at most 200 buckets per curve.
    buckets = min(max(budget // max(len(curves_of), 1) // 6, LEAST_BUCKETS), 200)
    statistics = []
    for (method, facet), curves in curves_of.items():
        over_all_seeds = Series(method, facet, over_seeds(curves), ends=end_values(curves))
        statistics.append(thin(over_all_seeds, buckets, log_x=figure.log_x))
    if len(run_series) == len(statistics):  # one seed per method: its curve is the statistic
        return Axis(name, label, tuple(statistics))
    single_runs = []
    for run in run_series:
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
        # On the axis of methods x is no reading: rows with y are enough, and x is put in below.
        x_name = figure.y if name == "method" else name
        for facet, (x, y) in readings.panels(x_name, figure.y, figure.facet).items():
            if name == "method":
                x = np.full(len(y), float(methods.index(header.method)))
            series.append(Series(header.method, facet, {"x": x, "y": y}, header.seed))
    return sorted(series, key=lambda s: (methods.index(s.method), facets.index(s.facet)))
