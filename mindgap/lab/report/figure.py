"""One figure: its numbers, and the Vega-Lite specification from which page, PNG and SVG are drawn alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindgap.lab.report.aggregate import Readings, Series, facet_values, over_seeds, thin, thin_points
from mindgap.lab.report.scales import columns, named, rules, scale, ticks
from mindgap.record.forms import Figure, Tuning

#: Colours for white paper and for a dark screen; each has a contrast of at least 3 to its background.
LIGHT = ("#0b5cad", "#c2410c", "#15803d", "#8b2fc9", "#946800", "#0e7490", "#be185d", "#4b5563")
DARK = ("#6cb6ff", "#ff9d5c", "#5fd38d", "#c9a2ff", "#e6c34a", "#4fd0e0", "#ff8fc0", "#b5bdc9")
#: Beyond eight methods the colours come again with another dash.
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
#: Up to so many points of a scatter are drawn large.
FEW = 120
#: A line that runs along earlier ones is broken, so that they show through its gaps.
ALONG = ([1, 0], [7, 7], [2, 7], [7, 3, 1, 3])
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")

#: The order in which x-axes are offered (a description on disk has its keys in order of the alphabet).
AXES = ("step", "x_epoch", "y_epoch", "oracle_calls", "seconds", "cpu_seconds")

SCHEMA_URL = "https://vega.github.io/schema/vega-lite/v6.json"


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
    """

    id: str
    figure: Figure
    methods: tuple[str, ...]
    facets: tuple[str, ...]
    axes: tuple[Axis, ...]

    @property
    def empty(self) -> bool:
        return not any(len(s) for axis in self.axes for s in axis.series)

    @property
    def kind(self) -> str:
        return self.figure.kind

    @property
    def single(self) -> bool:
        return self.kind != "lines" or all(s.columns["n"].max(initial=1) <= 1 for a in self.axes for s in a.series)

    @property
    def statistic(self) -> str:
        """What is drawn first: medians on a log axis, where a mean follows the largest value; means otherwise."""
        if self.single:
            return "value"
        return "quantiles" if self.figure.log_y else "mean"

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the places 0, 1, ... on the x-axis; empty where it shows numbers."""
        if self.figure.x == "method":
            return self.methods
        return self.figure.x_names

    @property
    def shifts(self) -> list[float]:
        """How far each method's points stand beside a named place: those of several methods must not hide another."""
        number = len(self.methods) if self.names and self.figure.x != "method" else 0
        return [(place - (number - 1) / 2) * 0.7 / number if number else 0.0 for place in range(len(self.methods))]

    @property
    def dashes(self) -> list[list[int]]:
        """The dash of each method's line: one a block of eight colours; others for lines along earlier ones."""
        if len(self.methods) > len(LIGHT):
            return [DASHES[i // len(LIGHT) % len(DASHES)] for i in range(len(self.methods))]
        log = self.figure.log_y
        curves = [{s.facet: s for s in self.axes[0].series if s.method == m} for m in self.methods]
        along = [
            sum(_run_along(curves[j], curves[i], log) for j in range(i)) if self.kind == "lines" else 0
            for i in range(len(self.methods))
        ]
        return [ALONG[min(number, len(ALONG) - 1)] for number in along]

    def alone(self, axis: Axis) -> dict[str, str]:
        """The channels on which each panel needs an axis of its own: it would fill too little of a common one."""
        if len(self.facets) < 2:
            return {}
        apart = {}
        for channel in ("x", "y"):
            log = getattr(self.figure, f"log_{channel}")
            column = channel if channel == "x" or self.kind != "lines" else "q50"
            ends = [_ends([s.columns[column] for s in axis.series if s.facet == f], log) for f in self.facets]
            spans = [end for end in ends if end is not None]
            if spans:
                whole = max(high for _, high in spans) - min(low for low, _ in spans)
                if min(high - low for low, high in spans) < 0.3 * whole:
                    apart[channel] = "independent"
        return apart


def _run_along(a: dict[str, Series], b: dict[str, Series], log: bool) -> bool:
    """Whether in some panel nearly all of curve ``b`` is as good as on curve ``a``: within a hundredth of the range."""
    for facet in a.keys() & b.keys():
        (x, y), (u, v) = (_drawn(s, log) for s in (a[facet], b[facet]))
        if len(x) and (np.diff(x) >= 0).all() and (inside := (u >= x[0]) & (u <= x[-1])).any():
            range_ = np.ptp(np.concatenate([y, v])) or 1.0
            if np.mean(np.abs(np.interp(u[inside], x, y) - v[inside]) <= 0.01 * range_) > 0.9:
                return True
    return False


def _drawn(series: Series, log: bool) -> tuple[np.ndarray, np.ndarray]:
    """The finite points of a curve of medians, as high as they are drawn."""
    x, y = series.columns["x"], series.columns["q50"]
    keep = np.isfinite(y) & ((y > 0) | (not log))
    return x[keep], np.log(y[keep]) if log else y[keep]


def _ends(columns: list[np.ndarray], log: bool) -> tuple[float, float] | None:
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
) -> Drawing:
    """Collect the numbers of one figure.

    Args:
        identity: id of the figure in the page.
        figure: what to draw, as ``study.json`` has it.
        runs: the records to draw, as columns.
        methods: every method of the study, in its order; colours follow it.
        axes: column -> label of what may serve as x-axis.
        budget: points to keep, per axis; more are thinned, keeping extremes.
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
    return Drawing(identity, figure, tuple(methods), tuple(f for f in facets if f in shown) or ("",), tuple(drawn))


def draw_tuning(identity: str, tuning: Tuning, methods: list[str]) -> Drawing:
    """The best value so far against the number of trials: how a search with equal budgets went for each method."""
    figure = Figure(
        title="Tuning: best value so far",
        y=tuning.metric,
        y_label=f"best {tuning.metric} so far",
        x="trial",
        caption="Every method had the same number of trials in the same space.",
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
    table = [Series(m, f, over_seeds([(x, y) for _, x, y in by_place[m, f]])) for m, f in order]
    buckets = min(max(budget // max(len(table), 1) // 6, 6), 200)
    series = tuple(thin(s, buckets, log_x=log_x) for s in table)
    several = len(each) > len(table)
    return Axis(name, label, series, tuple(thin(s, max(share // 4, 3), log_x=log_x) for s in each) if several else ())


def view_rows(drawing: Drawing, axis: Axis, statistic: str) -> list[dict[str, Any]]:
    """The rows the specification is filled with; the page's script does the same for what the reader chooses."""
    log_x, log_y = drawing.figure.log_x, drawing.figure.log_y
    rows: list[dict[str, Any]] = []
    shifts = dict(zip(drawing.methods, drawing.shifts))
    lows = [s.columns["q10"] for s in axis.series if "q10" in s.columns]
    floor = 0.0 if lows and all((low[np.isfinite(low)] >= 0).all() for low in lows) else -math.inf
    for place, series in enumerate(axis.series):
        columns = series.columns
        if "y" in columns:
            middle, low, high = columns["y"], None, None
        elif statistic == "quantiles":
            middle, low, high = columns["q50"], columns["q10"], columns["q90"]
        elif statistic == "mean":
            middle, low, high = columns["mean"], columns["mean"] - columns["sd"], columns["mean"] + columns["sd"]
        else:
            middle, low, high = columns["mean"], None, None
        for i, (x, y) in enumerate(zip(columns["x"].tolist(), middle.tolist())):
            if not math.isfinite(x) or (log_x and x <= 0):
                continue
            x += shifts[series.method]
            row: dict[str, Any] = {"x": x, "m": series.method, "f": series.facet, "r": place, "o": i}
            row["y"] = y if math.isfinite(y) and (y > 0 or not log_y) else None
            if low is not None and high is not None and math.isfinite(high[i]) and row["y"] is not None:
                # The band of a quantity that is never negative ends at zero.
                row["lo"], row["hi"] = max(float(low[i]), floor), float(high[i])
            rows.append(row)
    if log_y:
        least = min((row["y"] for row in rows if row["y"] is not None), default=1.0)
        for row in rows:
            if row.get("lo", 1.0) <= 0:
                row["lo"] = least
    return rows


def specification(drawing: Drawing, axis: Axis, *, rows: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """The Vega-Lite specification of a figure: with ``rows`` a picture by itself, without them the page's template."""
    figure, kind = drawing.figure, drawing.kind
    methods = list(drawing.methods)
    colours = [LIGHT[i % len(LIGHT)] for i in range(len(methods))]
    alone = drawing.alone(axis)
    log_x, log_y = figure.log_x, figure.log_y
    x: dict[str, Any] = {"field": "x", "type": "quantitative", "scale": scale(log_x, padded=kind == "points")}
    x["axis"] = {"title": axis.label, **ticks(log_x, "x", own="x" in alone)}
    if drawing.names:
        found = named(drawing.names)
        x |= {"scale": found["scale"], "axis": {**found["axis"], "title": figure.x_label or None}}
    heights = {row["y"] for row in rows or [] if row["y"] is not None}
    y_scale = scale(log_y, padded=bool(log_y), flat=len(heights) == 1)
    y_axis = {"title": None, **ticks(log_y, "y", own="y" in alone)}
    y = {"field": "y", "type": "quantitative", "title": None, "scale": y_scale, "axis": y_axis}
    legend = {"title": None, "orient": "bottom", "direction": "horizontal", "columns": 3, "labelLimit": 260}
    legend |= {"symbolOpacity": 1, "symbolType": "circle" if kind == "points" else "stroke"}
    colour = {"field": "m", "type": "nominal", "scale": {"domain": methods, "range": colours}, "legend": legend}
    detail = {"field": "r", "type": "nominal"}
    # The whole row, of which the page shows one ready text: with `nearest`, Vega-Lite 6 looks for the fields of a
    # tooltip channel in the wrong place and shows "undefined".
    tooltip = {"content": "data"}
    hover = {
        "transform": [{"filter": "datum.h"}],
        "params": [
            {
                "name": "hover",
                "select": {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"},
            }
        ],
        "mark": {"type": "point", "filled": True, "size": 70, "tooltip": tooltip},
        "encoding": {
            "y": y,
            "detail": detail,
            "opacity": {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 0},
        },
    }
    layers: list[dict[str, Any]]
    if kind == "points":
        shapes = [SHAPES[i % len(SHAPES)] for i in range(len(methods))]
        shape = {"field": "m", "type": "nominal", "scale": {"domain": methods, "range": shapes}, "legend": legend}
        few = sum(len(s) for s in axis.series) <= FEW
        mark = {"type": "point", "filled": True, "size": 60 if few else 26, "opacity": 0.6, "tooltip": tooltip}
        layers = [{"mark": mark, "encoding": {"y": y, "shape": shape}}]
    elif kind == "path":
        order = {"field": "o", "type": "quantitative"}
        path = {"type": "line", "strokeWidth": 1.5}
        layers = [{"mark": path, "encoding": {"y": y, "order": order, "detail": detail}}, hover]
    else:
        line: dict[str, Any] = {"y": y, "detail": detail}
        dashes = drawing.dashes
        if any(dash != DASHES[0] for dash in dashes):
            line["strokeDash"] = {
                "field": "m",
                "type": "nominal",
                "scale": {"domain": methods, "range": dashes},
                "legend": legend,
            }
        low = {**y, "field": "lo"}
        band = {
            "name": "band",
            "transform": [{"filter": "isValid(datum.lo) && isValid(datum.hi)"}],
            "mark": {"type": "area", "opacity": 0.18},
            "encoding": {"y": low, "y2": {"field": "hi"}, "detail": detail},
        }
        layers = [{"mark": {"type": "line", "strokeWidth": 2}, "encoding": line}, hover]
        if not drawing.single:
            layers.insert(0, band)
    layers += rules(dict(figure.hlines), y_scale)
    unit: dict[str, Any] = {"layer": layers, "encoding": {"x": x, "color": colour}}
    spec: dict[str, Any] = {
        "$schema": SCHEMA_URL,
        "title": {"text": figure.title, "subtitle": figure.y_label, "anchor": "start", "frame": "group"},
        "background": "#ffffff",
        "config": CONFIG,
        "datasets": {"rows": rows or []},
        "data": {"name": "rows"},
    }
    if drawing.facets == ("",):
        return {**spec, "width": 620, "height": 320, "autosize": {"type": "fit", "contains": "padding"}, **unit}
    across = columns(len(drawing.facets), 3)
    spec["facet"] = {"field": "f", "type": "nominal", "title": None, "sort": list(drawing.facets)}
    spec["columns"] = across
    spec["spec"] = {"width": 600 // across, "height": 220, **unit}
    # In a last row that is not full, a common axis would stand below panels that are not there.
    ragged = {"axis": {"x": "independent"}} if len(drawing.facets) % across else {}
    if alone or ragged:
        spec["resolve"] = {"scale": alone, **ragged}
    return spec


_FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
_LETTERS = "'DejaVu Sans', 'Segoe UI', Helvetica, Arial, sans-serif"  # has the papers' signs (norms, gradients)
CONFIG: dict[str, Any] = {
    "font": _FONT,
    "aria": False,
    "view": {"stroke": None},
    "axis": {
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFont": _LETTERS,
        "titleFontWeight": "normal",
        "labelColor": "#3d444d",
        "titleColor": "#3d444d",
        "gridColor": "#e4e8ec",
        "domainColor": "#8c959f",
        "tickColor": "#8c959f",
        "labelOverlap": True,
        "titlePadding": 8,
    },
    "axisX": {"labelFlush": 16},  # a number near the end of an axis must not reach over it
    "title": {
        "fontSize": 15,
        "subtitleFontSize": 12,
        "subtitleFont": _LETTERS,
        "color": "#1f2328",
        "subtitleColor": "#3d444d",
        "offset": 10,
        "subtitlePadding": 4,
    },
    "header": {"labelFontSize": 12, "labelColor": "#1f2328", "labelFontWeight": "bold", "labelAnchor": "start"},
    "legend": {"labelFontSize": 12, "labelColor": "#1f2328", "labelFont": _LETTERS, "symbolStrokeWidth": 2.5},
    "facet": {"spacing": 28},
}


def picture(drawing: Drawing) -> dict[str, Any]:
    """The whole specification of a figure as it is first shown, with its numbers inside."""
    axis = drawing.axes[0]
    return specification(drawing, axis, rows=view_rows(drawing, axis, drawing.statistic))


def figure_png(spec: dict[str, Any], *, scale: float = 2.0) -> bytes:
    """A Vega-Lite specification as a PNG picture, drawn offline.

    Example:
        >>> spec = {"data": {"values": [{"a": 1}]}, "mark": "point", "encoding": {"x": {"field": "a"}}}
        >>> figure_png(spec)[:4]
        b'\\x89PNG'
    """
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(spec, scale=scale))


def figure_svg(spec: dict[str, Any]) -> str:
    """A Vega-Lite specification as an SVG picture, drawn offline."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(spec))
