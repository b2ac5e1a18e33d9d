"""One figure: its numbers, and the Vega-Lite specification from which page, PNG and SVG are drawn alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindgap.report.aggregate import Readings, Series, facet_values, over_seeds, thin, thin_points

#: Colours for white paper and for a dark screen; each has a contrast of at least 3 to its background.
LIGHT = ("#0b5cad", "#c2410c", "#15803d", "#8b2fc9", "#946800", "#0e7490", "#be185d", "#4b5563")
DARK = ("#6cb6ff", "#ff9d5c", "#5fd38d", "#c9a2ff", "#e6c34a", "#4fd0e0", "#ff8fc0", "#b5bdc9")
#: Beyond eight methods the colours come again with another dash.
DASHES = ([1, 0], [6, 3], [2, 2], [8, 3, 2, 3])
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")

#: The order in which x-axes are offered (a description on disk has its keys in order of the alphabet).
AXES = ("step", "x_epoch", "y_epoch", "oracle_calls", "seconds")

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
    figure: dict[str, Any]
    methods: tuple[str, ...]
    facets: tuple[str, ...]
    axes: tuple[Axis, ...]

    @property
    def empty(self) -> bool:
        return not any(len(s) for axis in self.axes for s in axis.series)

    @property
    def kind(self) -> str:
        return str(self.figure.get("kind", "lines"))

    @property
    def single(self) -> bool:
        return self.kind != "lines" or all(s.columns["n"].max(initial=1) <= 1 for a in self.axes for s in a.series)

    @property
    def statistic(self) -> str:
        """What is drawn first: medians on a log axis, where a mean follows the largest value; means otherwise."""
        if self.single:
            return "value"
        return "quantiles" if self.figure.get("log_y") else "mean"

    def alone(self, axis: Axis) -> dict[str, str]:
        """The channels on which each panel needs an axis of its own: it would fill too little of a common one."""
        if len(self.facets) < 2:
            return {}
        apart = {}
        for channel in ("x", "y"):
            log = bool(self.figure.get(f"log_{channel}"))
            column = channel if channel == "x" or self.kind != "lines" else "q50"
            ends = [_ends([s.columns[column] for s in axis.series if s.facet == f], log) for f in self.facets]
            spans = [end for end in ends if end is not None]
            if spans:
                whole = max(high for _, high in spans) - min(low for low, _ in spans)
                if min(high - low for low, high in spans) < 0.3 * whole:
                    apart[channel] = "independent"
        return apart


def _ends(columns: list[np.ndarray], log: bool) -> tuple[float, float] | None:
    values = np.concatenate([*columns, np.empty(0)])
    values = values[np.isfinite(values)]
    if log:
        values = np.log(values[values > 0])
    return (float(values.min()), float(values.max())) if len(values) else None


def draw(
    identity: str,
    figure: dict[str, Any],
    runs: Sequence[Readings],
    methods: list[str],
    axes: dict[str, str],
    budget: int = 6000,
) -> Drawing:
    """Collect the numbers of one figure.

    Args:
        identity: id of the figure in the page.
        figure: the figure's description, as ``study.json`` has it.
        runs: the records to draw, as columns.
        methods: every method of the study, in its order; colours follow it.
        axes: column -> label of what may serve as x-axis.
        budget: points to keep, per axis; more are thinned, keeping extremes.
    """
    lines = figure.get("kind", "lines") == "lines"
    offered = {figure["x"]: figure.get("x_label") or axes.get(figure["x"], figure["x"])}
    if lines and figure["x"] in axes:
        known = sorted(axes, key=lambda name: AXES.index(name) if name in AXES else len(AXES))
        offered |= {name: axes[name] for name in known if name not in offered}
    facets = facet_values([r.run for r in runs], figure.get("facet", ""))
    drawn = []
    for name, label in offered.items():
        axis = _axis(name, label, figure, runs, methods, facets, budget)
        varies = any(np.ptp(s.columns["x"]) > 0 for s in axis.series if len(s))
        if name == figure["x"] or varies:
            drawn.append(axis)
    return Drawing(identity, figure, tuple(methods), tuple(facets), tuple(drawn))


def draw_tuning(identity: str, tuning: dict[str, Any], methods: list[str]) -> Drawing:
    """The best value so far against the number of trials: how a search with equal budgets went for each method."""
    figure = {
        "title": "Tuning: best value so far",
        "y": tuning["metric"],
        "y_label": f"best {tuning['metric']} so far",
        "x": "trial",
        "caption": "Every method had the same number of trials in the same space.",
    }
    series = []
    for method, made in tuning["methods"].items():
        values = np.array([trial["value"] for trial in made["trials"]], dtype=float)
        best = np.minimum.accumulate(values)
        columns = {"x": np.arange(1.0, len(best) + 1), "mean": best, "n": np.ones(len(best))}
        columns |= {"sd": np.zeros(len(best)), "q10": best, "q50": best, "q90": best}
        series.append(Series(method, "", columns))
    known = list(dict.fromkeys([*methods, *tuning["methods"]]))
    return Drawing(identity, figure, tuple(known), ("",), (Axis("trial", "trial", tuple(series)),))


def _axis(
    name: str,
    label: str,
    figure: dict[str, Any],
    runs: Sequence[Readings],
    methods: list[str],
    facets: list[str],
    budget: int,
) -> Axis:
    by_place: dict[tuple[str, str], list[tuple[int, np.ndarray, np.ndarray]]] = {}
    for run in runs:
        header = run.run.header
        for facet, (x, y) in run.panels(name, figure["y"], figure.get("facet", "")).items():
            by_place.setdefault((header.method, facet), []).append((header.seed, x, y))
    order = sorted(by_place, key=lambda key: (methods.index(key[0]), facets.index(key[1])))
    each = [Series(m, f, {"x": x, "y": y}, seed) for m, f in order for seed, x, y in by_place[m, f]]
    kind, log_x = figure.get("kind", "lines"), bool(figure.get("log_x"))
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
    log_x, log_y = bool(drawing.figure.get("log_x")), bool(drawing.figure.get("log_y"))
    rows: list[dict[str, Any]] = []
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
            row: dict[str, Any] = {"x": x, "m": series.method, "f": series.facet, "r": place, "o": i}
            row["y"] = y if math.isfinite(y) and (y > 0 or not log_y) else None
            if low is not None and high is not None and math.isfinite(high[i]) and row["y"] is not None:
                row["lo"], row["hi"] = float(low[i]), float(high[i])
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
    x = {
        "field": "x",
        "type": "quantitative",
        "axis": {"title": axis.label, **_ticks(figure.get("log_x"), (r["x"] for r in rows or []))},
        "scale": _scale(figure.get("log_x"), nice=False),
    }
    y_scale = _scale(figure.get("log_y"))
    y_axis = {"title": None, **_ticks(figure.get("log_y"), (r["y"] for r in rows or []))}
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
        mark = {"type": "point", "filled": True, "size": 26, "opacity": 0.6, "tooltip": tooltip}
        layers = [{"mark": mark, "encoding": {"y": y, "shape": shape}}]
    elif kind == "path":
        order = {"field": "o", "type": "quantitative"}
        path = {"type": "line", "strokeWidth": 1.5}
        layers = [{"mark": path, "encoding": {"y": y, "order": order, "detail": detail}}, hover]
    else:
        line: dict[str, Any] = {"y": y, "detail": detail}
        if len(methods) > len(LIGHT):
            dashes = [DASHES[i // len(LIGHT) % len(DASHES)] for i in range(len(methods))]
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
    layers += _rules(figure.get("hlines") or {}, y_scale)
    unit: dict[str, Any] = {"layer": layers, "encoding": {"x": x, "color": colour}}
    spec: dict[str, Any] = {
        "$schema": SCHEMA_URL,
        "title": {"text": figure["title"], "subtitle": figure["y_label"], "anchor": "start", "frame": "group"},
        "background": "#ffffff",
        "config": CONFIG,
        "datasets": {"rows": rows or []},
        "data": {"name": "rows"},
    }
    if drawing.facets == ("",):
        return {**spec, "width": 620, "height": 320, "autosize": {"type": "fit", "contains": "padding"}, **unit}
    columns = 1 if len(drawing.facets) == 1 else (2 if len(drawing.facets) in (2, 4) else 3)
    spec["facet"] = {"field": "f", "type": "nominal", "title": None, "sort": list(drawing.facets)}
    spec["columns"] = columns
    spec["spec"] = {"width": 600 // columns, "height": 220, **unit}
    if apart := drawing.alone(axis):
        spec["resolve"] = {"scale": apart}
    return spec


def _scale(log: Any, *, nice: bool = True) -> dict[str, Any]:
    return {"type": "log", "nice": nice} if log else {"type": "linear", "zero": False}


def _ticks(log: Any, values: Iterable[Any]) -> dict[str, Any]:
    """Tick labels: on a log axis powers of ten, with 2 and 5 between them where it spans little more than one."""
    if not log:
        return {"tickCount": 6}
    return {"labelExpr": log_labels(values), "tickCount": 6}


def log_labels(values: Iterable[Any]) -> str:
    """A Vega expression that labels 1e-6 as such, not as a row of zeros, and leaves most ticks bare."""
    positive = [v for v in values if v is not None and v > 0]
    decades = math.log10(max(positive) / min(positive)) if positive else 2.0
    label = "(datum.value < 1e-3 || datum.value >= 1e5 ? format(datum.value, '.1~e') : format(datum.value, '~g'))"
    if decades < 0.4:
        return label
    first = "datum.value / pow(10, floor(log(datum.value) / LN10 + 1e-9))"
    digits = "1" if decades > 1.3 else "1, 2, 5"
    return f"indexof([{digits}], round(100 * {first}) / 100) >= 0 ? {label} : ''"


def _rules(hlines: dict[str, float], scale: dict[str, Any]) -> list[dict[str, Any]]:
    """Horizontal rules with their labels at the right end."""
    if not hlines:
        return []
    data = {"values": [{"y": value, "label": label} for label, value in hlines.items()]}
    y = {"field": "y", "type": "quantitative", "title": None, "scale": scale}
    grey = {"value": "#57606a"}
    words = {"type": "text", "align": "right", "baseline": "bottom", "dy": -3, "fontSize": 12}
    place = {"x": {"value": "width"}, "y": y, "text": {"field": "label"}}
    rule = {"type": "rule", "strokeDash": [5, 4], "strokeWidth": 1.2}
    return [
        {
            "data": data,
            "mark": rule,
            "encoding": {"x": {"value": 0}, "x2": {"value": "width"}, "y": y, "color": grey},
        },
        # Under the words, the same words with a broad rim in the colour of the paper: crossing lines do not hide them.
        {
            "name": "rim",
            "data": data,
            "mark": {**words, "stroke": "#ffffff", "strokeWidth": 4},
            "encoding": {**place, "color": {"value": "#ffffff"}},
        },
        {"data": data, "mark": words, "encoding": {**place, "color": grey}},
    ]


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
