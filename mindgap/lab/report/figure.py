"""The Vega-Lite specification of a figure, from which page, PNG and SVG are drawn alike."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from mindgap.base.checked import Range, checked
from mindgap.lab.report.aggregate import Series
from mindgap.lab.report.drawing import DASHES, ENOUGH_SEEDS, GREY, LIGHT, SHAPES, Axis, Drawing
from mindgap.lab.report.headline import headline
from mindgap.lab.report.words import number, signs
from mindgap.record.schema import grouped

#: Up to so many points of a scatter are drawn large.
FEW_POINTS = 120
SCHEMA_URL = "https://vega.github.io/schema/vega-lite/v6.json"
#: The whole row, of which the page shows one ready text: with `nearest`, Vega-Lite 6 looks for the
#: fields of a tooltip channel in the wrong place and shows "undefined".
TOOLTIP = {"content": "data"}
FIT = {"type": "fit", "contains": "padding"}
BY_SERIES = {"field": "r", "type": "nominal"}  # ``r`` of :func:`view_rows`: one line per series


def view_rows(drawing: Drawing, axis: Axis, statistic: str) -> list[dict[str, Any]]:
    """The rows that the specification of a figure is filled with. The page's script does the same
    for the axis and the statistic that a reader chooses.

    Args:
        statistic: what stands for several runs: ``"mean"``, ``"quantiles"``, ``"every"`` run by
            itself, or ``"value"`` where there is one run.

    Returns:
        One row per point, with keys of one letter because a page holds many: ``x``, ``y`` (None
        where the line is broken), method ``m``, panel ``f``, number ``r`` of the series, place
        ``o`` in it, ``k`` (whether the claim is about the method), and the band ``lo`` to ``hi``
        where there is one. Methods that the claim is about come last, on top of the others.
    """
    log_x, log_y = drawing.figure.log_x, drawing.figure.log_y
    shifts = dict(zip(drawing.methods, drawing.shifts))  # how far to the right of a named place
    band_floor = _band_floor(axis)
    drawn_series = axis.runs if statistic == "every" and axis.runs else axis.series
    # With the number of each series, which stays that of its place in ``drawn_series``.
    accented_last = sorted(
        enumerate(drawn_series), key=lambda item: item[1].method in drawing.accent
    )
    rows: list[dict[str, Any]] = []
    for series_number, series in accented_last:
        columns = (series.columns["x"], *_line_and_band(series, statistic))
        for place, (x, y, low, high) in enumerate(zip(*(column.tolist() for column in columns))):
            if not math.isfinite(x) or (log_x and x <= 0):
                continue
            row: dict[str, Any] = {
                "x": x + shifts[series.method],
                "m": series.method,
                "f": series.facet,
                "r": series_number,
                "o": place,
                "k": not drawing.accent or series.method in drawing.accent,
                "y": y if math.isfinite(y) and (y > 0 or not log_y) else None,
            }
            if row["y"] is not None and math.isfinite(high):
                row |= {"lo": max(low, band_floor), "hi": high}
            rows.append(row)
    if log_y:  # a band that reaches down to 0 ends at the lowest point drawn
        lowest = min((row["y"] for row in rows if row["y"] is not None), default=1.0)
        for row in rows:
            if row.get("lo", 1.0) <= 0:
                row["lo"] = lowest
    return rows


def _line_and_band(series: Series, statistic: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The heights of a series' line, and the lower and the upper end of its band, each of shape
    (points,); NaN where there is no band.

    Args:
        series: of statistics, or of one run, which has no band.
        statistic: what is drawn, as in :func:`view_rows`.
    """
    columns, no_band = series.columns, np.full(len(series), math.nan)
    if "y" in columns:
        return columns["y"], no_band, no_band
    if statistic == "quantiles":
        return columns["q50"], columns["q10"], columns["q90"]
    mean, deviation = columns["mean"], columns["sd"] if statistic == "mean" else no_band
    return mean, mean - deviation, mean + deviation


def _band_floor(axis: Axis) -> float:
    """The height at which bands are cut off below: 0 where no 10 % quantile is negative, minus
    infinity otherwise.
    """
    lows = [series.columns["q10"] for series in axis.series if "q10" in series.columns]
    return 0.0 if lows and all((low[np.isfinite(low)] >= 0).all() for low in lows) else -math.inf


def specification(
    drawing: Drawing, axis: Axis, *, rows: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The Vega-Lite specification of a figure over one of its x-axes.

    Args:
        rows: the points, of :func:`view_rows`, for a picture by itself; None for the template that
            the page's script fills.
    """
    figure, independent = drawing.figure, drawing.independent_axes(axis)
    # Where all points have one height, a scale around them would have no length.
    heights = {row["y"] for row in rows or [] if row["y"] is not None}
    y_scale = scale(figure.log_y, padded=bool(figure.log_y), flat=len(heights) == 1)
    y = {
        "field": "y",
        "type": "quantitative",
        "title": None,
        "scale": y_scale,
        "axis": {"title": None, **ticks(figure.log_y, "y", own="y" in independent)},
    }
    layers_of = {"points": _point_layers, "path": _path_layers, "lines": _line_layers}[drawing.kind]
    colours = [GREY if place is None else LIGHT[place] for place in drawing.colours]
    unit: dict[str, Any] = {
        "layer": [*layers_of(drawing, axis, y), *rule_layers(figure.hlines, y_scale)],
        "encoding": {
            "x": _x_channel(drawing, axis, own="x" in independent),
            "color": _by_method(drawing, colours),
        },
    }
    spec: dict[str, Any] = {
        **_frame(drawing, drawn_words(drawing)),
        # The method that the pointer is on; see :func:`_highlight`.
        "params": [{"name": "lit", "value": ""}],
        "datasets": {"rows": rows or []},
        "data": {"name": "rows"},
    }
    if drawing.facets == ("",):
        return {**spec, "width": 620, "height": 320, "autosize": FIT, **unit}
    panels_per_row = panels_side_by_side(len(drawing.facets), most=3)
    # All panels of a row together are about as wide as one figure.
    spec |= {
        "facet": _panels(drawing),
        "columns": panels_per_row,
        "spec": {"width": 600 // panels_per_row, "height": 220, **unit},
    }
    # Below a last row that is not full, a common axis would stand below panels that are not there.
    ragged = {"axis": {"x": "independent"}} if len(drawing.facets) % panels_per_row else {}
    if independent or ragged:
        spec["resolve"] = {"scale": independent, **ragged}
    return spec


def _frame(drawing: Drawing, subtitle: str, line_length: int = 78) -> dict[str, Any]:
    """What every specification has beside its drawing: the finding as a title in several lines, a
    subtitle, the background and the style.

    Args:
        subtitle: what is drawn upwards.
        line_length: of the title, in letters.
    """
    return {
        "$schema": SCHEMA_URL,
        "title": {
            "text": textwrap.wrap(headline(drawing), line_length),
            "subtitle": subtitle,
            "anchor": "start",
            "frame": "group",
        },
        "background": "#ffffff",
        "config": CONFIG,
    }


def _panels(drawing: Drawing) -> dict[str, Any]:
    """The channel that splits a figure into panels, by the rows' ``f``, in the figure's order."""
    return {"field": "f", "type": "nominal", "title": None, "sort": list(drawing.facets)}


def _x_channel(drawing: Drawing, axis: Axis, *, own: bool) -> dict[str, Any]:
    """The horizontal channel, with numbers or with names at its places.

    Args:
        own: whether each panel has an axis of its own.
    """
    figure = drawing.figure
    scale_and_axis: dict[str, Any] = {
        "scale": scale(figure.log_x, padded=drawing.kind == "points"),
        "axis": {"title": signs(axis.label), **ticks(figure.log_x, "x", own=own)},
    }
    if drawing.names:
        scale_and_axis = scale_of_names(drawing.names)
        scale_and_axis["axis"]["title"] = figure.x_label or None
    return {"field": "x", "type": "quantitative", **scale_and_axis}


def _by_method(drawing: Drawing, values: Sequence[Any]) -> dict[str, Any]:
    """A channel (colour, shape, dash) by the rows' method ``m``, with its legend; ``values`` has
    one entry per method.
    """
    return {
        "field": "m",
        "type": "nominal",
        "scale": {"domain": list(drawing.methods), "range": list(values)},
        "legend": {
            "title": None,
            "orient": "bottom",
            "direction": "horizontal",
            "columns": 3,
            "labelLimit": 260,
            "symbolOpacity": 1,
            "symbolType": "circle" if drawing.kind == "points" else "stroke",
        },
    }


def _point_layers(drawing: Drawing, axis: Axis, y: dict[str, Any]) -> list[dict[str, Any]]:
    """The layer of a scatter, with one shape per method; ``y`` is the vertical channel."""
    large_points = sum(len(series) for series in axis.series) <= FEW_POINTS
    mark = {
        "type": "point",
        "filled": True,
        "size": 60 if large_points else 26,
        "opacity": 0.6,
        "tooltip": TOOLTIP,
    }
    shapes = [SHAPES[place % len(SHAPES)] for place in range(len(drawing.methods))]
    return [{"mark": mark, "encoding": {"y": y, "shape": _by_method(drawing, shapes)}}]


def _path_layers(drawing: Drawing, axis: Axis, y: dict[str, Any]) -> list[dict[str, Any]]:
    """The layers of a path: a line through the rows in their order, and invisible points that show
    the row pointed at. ``y`` is the vertical channel; the rows' ``o`` is their place in the path.
    """
    in_order = {"order": {"field": "o", "type": "quantitative"}}
    line = {
        "mark": {"type": "line", "strokeWidth": 1.5},
        "encoding": {"y": y, **in_order, "detail": BY_SERIES, **_highlight(1.5)},
    }
    return [line, _hover_layer(y)]


def _line_layers(drawing: Drawing, axis: Axis, y: dict[str, Any]) -> list[dict[str, Any]]:
    """The layers of lines: one line per method or run, invisible points that show the row pointed
    at, and below both a band where the seeds are enough for one.

    Args:
        y: the vertical channel, for the heights of the lines.
    """
    width = 1.4 if drawing.statistic == "every" else 2.4
    line: dict[str, Any] = {"y": y, "detail": BY_SERIES, **_highlight(width)}
    if any(dash != DASHES[0] for dash in drawing.dashes):
        line["strokeDash"] = _by_method(drawing, drawing.dashes)
    layers = [{"mark": {"type": "line"}, "encoding": line}, _hover_layer(y)]
    if drawing.seeds < ENOUGH_SEEDS:
        return layers
    band = {
        "name": "band",
        "transform": [{"filter": "isValid(datum.lo) && isValid(datum.hi)"}],
        "mark": {"type": "area", "opacity": 0.18},
        "encoding": {"y": {**y, "field": "lo"}, "y2": {"field": "hi"}, "detail": BY_SERIES},
    }
    return [band, *layers]


def _hover_layer(y: dict[str, Any]) -> dict[str, Any]:
    """A layer of points, each of which is visible only while the pointer is near it; ``y`` is the
    vertical channel. The page's script marks rows with a text to show by ``h``; a picture has none.
    """
    nearest = {"type": "point", "on": "pointerover", "nearest": True, "clear": "pointerout"}
    return {
        "transform": [{"filter": "datum.h"}],
        "params": [{"name": "hover", "select": nearest}],
        "mark": {"type": "point", "filled": True, "size": 70, "tooltip": TOOLTIP},
        "encoding": {
            "y": y,
            "detail": BY_SERIES,
            "opacity": {"condition": {"param": "hover", "empty": False, "value": 1}, "value": 0},
        },
    }


def _highlight(width: float) -> dict[str, Any]:
    """Channels of opacity and stroke width of lines. While a method is pointed at (``lit``), the
    lines of the others fade. That line and those that the claim is about (their rows' ``k``) have
    the given width, the others 1.
    """
    return {
        "opacity": {
            "condition": {"test": "lit === '' || datum.m === lit", "value": 1},
            "value": 0.12,
        },
        "strokeWidth": {
            "condition": {"test": "datum.k || datum.m === lit", "value": width},
            "value": 1,
        },
    }


def ranking(drawing: Drawing) -> dict[str, Any]:
    """The Vega-Lite specification of a ranking: a row per method, best first, with a point at its
    end value. Around the point stand the mean ± sd, or the 10 and 90 % quantiles, or few seeds by
    themselves. The figure's y-values lie along x here, and the methods along y.
    """
    rows, log = _rank_rows(drawing), drawing.figure.log_y
    best_first = sorted(rows, key=lambda row: row["v"], reverse=drawing.more_is_better)
    order = list(dict.fromkeys(row["m"] for row in best_first))
    many_panels = len(drawing.facets) > 1
    # The panels' values lie too far apart for a common scale.
    own_scales = "y" in drawing.independent_axes(drawing.axes[0])
    one_panel_each = many_panels and len(rows) == len(order)  # no method stands in two panels
    y_axis: dict[str, Any] = {"labelLimit": 240, "grid": True, "domain": False, "ticks": False}
    # What the names of a panel's methods have behind their last comma; where it is the same for
    # all, the panel's title says it, and the labels leave it out.
    suffixes = grouped((row["f"], row["m"].rpartition(", ")[2]) for row in rows)
    if one_panel_each and all(len(set(of_panel)) == 1 for of_panel in suffixes.values()):
        y_axis["labelExpr"] = "replace(datum.label, /, [^,]*$/, '')"
    x: dict[str, Any] = {
        "type": "quantitative",
        "scale": scale(log, padded=True),
        "title": signs(drawing.figure.y_label),
        "axis": ticks(log, "x", own=many_panels and own_scales),
    }
    y = {"field": "m", "type": "nominal", "sort": order, "title": None, "axis": y_axis}
    # Without an accent all are grey: the labels tell the methods apart.
    places = drawing.colours if drawing.accent else [None] * len(drawing.methods)
    colours = [GREY if place is None else LIGHT[place] for place in places]
    colour = {**_by_method(drawing, colours), "legend": None}
    unit = {"layer": _rank_layers(drawing, rows, x), "encoding": {"y": y, "color": colour}}
    spec = {**_frame(drawing, rank_words(drawing), 64), "data": {"values": rows}}
    row_height = 21
    if drawing.facets == ("",):
        return {
            **spec,
            "width": 620,
            "height": row_height * len(order) + 80,
            "autosize": FIT,
            **unit,
        }
    is_own = {"x": own_scales, "y": one_panel_each}
    return {
        **spec,
        "facet": _panels(drawing),
        "columns": 2,
        "spec": {"width": 220, "height": {"step": row_height}, **unit},
        "resolve": {"scale": {name: "independent" for name, own in is_own.items() if own}},
    }


def _rank_layers(
    drawing: Drawing, rows: list[dict[str, Any]], x: dict[str, Any]
) -> list[dict[str, Any]]:
    """The layers of a ranking, the lowest first: intervals where there are any, the seeds where
    they are few, and the points.

    Args:
        rows: of :func:`_rank_rows`.
        x: the channel of the values, without its field.
    """
    # ``v``, ``lo`` and ``hi`` are fields of ``rows``, ``s`` is one of the seeds' rows.
    point = {"type": "point", "filled": True, "size": 80, "opacity": 1, "tooltip": TOOLTIP}
    layers: list[dict[str, Any]] = [{"mark": point, "encoding": {"x": {**x, "field": "v"}}}]
    seeds = _seed_ends(drawing)
    if seeds:
        ticks_of_seeds = {
            "data": {"values": seeds},
            "mark": {"type": "tick", "thickness": 2, "height": 12},
            "encoding": {"x": {**x, "field": "s"}},
        }
        layers.insert(0, ticks_of_seeds)  # below the points
    if any("lo" in row for row in rows):
        interval = {"x": {**x, "field": "lo"}, "x2": {"field": "hi"}}
        layers.insert(0, {"mark": {"type": "rule", "strokeWidth": 2}, "encoding": interval})
    return layers


def _rank_rows(drawing: Drawing) -> list[dict[str, Any]]:
    """One row per method ``m`` and panel ``f``: its end value ``v``, the interval ``lo`` to ``hi``
    where the seeds are enough for one, the text ``t`` that pointing at it shows, and ``k``, whether
    the claim is about the method. A value that a logarithmic axis cannot show is left out.
    """
    ends, log = drawing.ends(), drawing.figure.log_y
    rows = []
    for series in drawing.axes[0].series:
        end = ends.get((series.method, series.facet))
        if end is None or (log and end <= 0):
            continue
        # Of the runs' last values, where these were kept; else of the last place of the curve.
        names = ("mean", "sd", "q10", "q90", "n")
        statistics = series.ends or {name: float(series.columns[name][-1]) for name in names}
        low, high = statistics["q10"], statistics["q90"]
        if drawing.average == "mean":
            low, high = statistics["mean"] - statistics["sd"], statistics["mean"] + statistics["sd"]
        accented = series.method in drawing.accent
        row = {"m": series.method, "f": series.facet, "v": end, "k": accented}
        tooltip = f"{series.method}\n{drawing.figure.y_label}: {number(end)}"
        if statistics["n"] >= ENOUGH_SEEDS and math.isfinite(high) and (low > 0 or not log):
            row |= {"lo": low, "hi": high}
            tooltip += f"  [{number(low)}, {number(high)}]"
        rows.append({**row, "t": tooltip})
    return rows


def _seed_ends(drawing: Drawing) -> list[dict[str, Any]]:
    """The last finite value ``s`` of every run, with its method ``m`` and panel ``f``; empty where
    the seeds are enough for an interval.
    """
    if drawing.seeds >= ENOUGH_SEEDS:
        return []
    seed_ends = []
    for run in drawing.axes[0].runs:
        finite = run.columns["y"][np.isfinite(run.columns["y"])]
        if len(finite) and (finite[-1] > 0 or not drawing.figure.log_y):
            seed_ends.append({"m": run.method, "f": run.facet, "s": float(finite[-1])})
    return seed_ends


#: Statistic -> what is drawn, as page.js says it too.
STATISTIC_WORDS = {"mean": "mean ± sd", "quantiles": "median, 10–90 %", "every": "every run"}


def drawn_words(drawing: Drawing) -> str:
    """The label of the y-axis and, of lines, how several runs are drawn, in brackets."""
    how_drawn = STATISTIC_WORDS.get(drawing.statistic) if drawing.kind == "lines" else None
    return signs(drawing.figure.y_label) + (f" ({how_drawn})" if how_drawn else "")


def rank_words(drawing: Drawing) -> str:
    """What a ranking shows, as its subtitle: the order, and what stands around each point."""
    if drawing.has_no_band:
        return "best first"
    if drawing.seeds < ENOUGH_SEEDS:
        return "best first: median (point) and every seed (ticks)"
    statistics = {"mean": "mean ± sd", "median": "median with the 10 and 90 % quantiles"}
    return f"best first: {statistics[drawing.average]} over {drawing.seeds} seeds"


_FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
# with the papers' signs (norms, gradients)
_LETTERS = "'DejaVu Sans', 'Segoe UI', Helvetica, Arial, sans-serif"
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
    "header": {
        "labelFontSize": 12,
        "labelColor": "#1f2328",
        "labelFontWeight": "bold",
        "labelAnchor": "start",
    },
    "legend": {
        "labelFontSize": 12,
        "labelColor": "#1f2328",
        "labelFont": _LETTERS,
        "symbolStrokeWidth": 2.5,
    },
    "facet": {"spacing": 28},
}


def picture(drawing: Drawing) -> dict[str, Any]:
    """The whole specification of a figure as it is first shown, with its numbers inside."""
    if drawing.ranked:
        return ranking(drawing)
    axis = drawing.axes[0]
    return specification(drawing, axis, rows=view_rows(drawing, axis, drawing.statistic))


@checked
def figure_png(
    spec: dict[str, Any], *, scale: Annotated[float, Range(0, 100, "(]")] = 2.0
) -> bytes:
    """A Vega-Lite specification as a PNG picture, drawn offline.

    Args:
        spec: with its numbers inside.
        scale: pixels of the picture per unit of the specification.

    Example:
        >>> spec = {
        ...     "data": {"values": [{"a": 1}]},
        ...     "mark": "point",
        ...     "encoding": {"x": {"field": "a"}},
        ... }
        >>> figure_png(spec)[:4]
        b'\\x89PNG'
    """
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(spec, scale=scale))


@checked
def figure_svg(spec: dict[str, Any]) -> str:
    """A Vega-Lite specification as an SVG picture, drawn offline."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(spec))


#: Pixels between the outermost points and the frame, so that no point lies on an axis.
PADDING = 10

#: A number on a log axis: a power of ten as such, not as a row of zeros.
_POWER = "floor(log(datum.value) / LN10 + 1e-9)"
_DIGIT = f"round(100 * datum.value / pow(10, {_POWER})) / 100"
_UP = "substring('⁰¹²³⁴⁵⁶⁷⁸⁹', {0}, 1 + {0})"
_RAISED = (
    f"({_POWER} < 0 ? '⁻' : '') + (abs({_POWER}) > 9 ? {_UP.format(f'floor(abs({_POWER}) / 10)')} "
    f": '') + {_UP.format(f'abs({_POWER}) % 10')}"
)
_LABEL = (
    f"(datum.value < 1e-3 || datum.value >= 1e5 ? ({_DIGIT} == 1 ? '' : format({_DIGIT}, '~g') + "
    f"'·') + '10' + {_RAISED} : format(datum.value, '~g'))"
)


def scale(log: Any, *, padded: bool = False, flat: bool = False) -> dict[str, Any]:
    """A linear or logarithmic scale.

    Args:
        log: whether logarithmic; then it ends where the values end, not at the next power of ten.
        padded: keep the outermost values away from the frame.
        flat: whether all values are the same; a linear scale then begins at 0, or it would have no
            length.
    """
    padding = {"padding": PADDING} if padded else {}
    kind = {"type": "log", "nice": False} if log else {"type": "linear", "zero": flat}
    return {**kind, **padding}


def scale_of_names(names: Sequence[str]) -> dict[str, Any]:
    """Scale and axis of a figure whose places 0, 1, ... have names; a newline breaks a name. More
    than four names are turned, so that they do not run into each other.
    """
    labels = json.dumps([name.split("\n") for name in names], ensure_ascii=False)
    angle = {"labelAngle": -35} if len(names) > 4 else {}
    return {
        # Half a place is left free at both ends.
        "scale": {"type": "linear", "domain": [-0.5, len(names) - 0.5], "nice": False},
        "axis": {
            "values": list(range(len(names))),
            "labelExpr": f"{labels}[datum.value]",
            "grid": False,
            "labelOverlap": False,
            "ticks": False,
            "labelPadding": 6,
            **angle,
        },
    }


def ticks(log: Any, channel: str, *, own: bool = False) -> dict[str, Any]:
    """Tick labels of an axis.

    Args:
        log: whether logarithmic. Such an axis labels powers of ten, with 2 and 5 between where it
            spans little more than two of them, and every tick where it spans less than half of one.
        channel: ``"x"`` or ``"y"``.
        own: whether each panel has an axis of its own, which Vega-Lite calls by another name.
    """
    return {"labelExpr": log_labels(channel, own=own), "tickCount": 6} if log else {"tickCount": 6}


def log_labels(channel: str, *, own: bool = False) -> str:
    """The Vega expression for the label of a tick on a logarithmic axis, as :func:`ticks` describes
    it. It looks at how many powers of ten the axis spans when it is drawn.
    """
    # The ends of the axis; Vega-Lite puts "child_" before the name of a panel's own scale.
    domain = f"domain('{'child_' if own else ''}{channel}')"
    decades = f"(log({domain}[1] / {domain}[0]) / LN10)"
    labelled = f"indexof({decades} > 2.2 ? [1] : [1, 2, 5], {_DIGIT}) >= 0"
    return f"{decades} < 0.5 || {labelled} ? {_LABEL} : ''"


def rule_layers(hlines: Mapping[str, float], y_scale: dict[str, Any]) -> list[dict[str, Any]]:
    """The layers of horizontal rules with their labels at the right end.

    Args:
        hlines: label -> height.
        y_scale: of the figure's vertical axis.
    """
    if not hlines:
        return []
    data = {"values": [{"y": value, "label": label} for label, value in hlines.items()]}
    y = {"field": "y", "type": "quantitative", "title": None, "scale": y_scale}
    grey = {"value": "#57606a"}
    label_mark = {"type": "text", "align": "right", "baseline": "bottom", "dy": -3, "fontSize": 12}
    label_encoding = {"x": {"value": "width"}, "y": y, "text": {"field": "label"}}
    return [
        {
            "data": data,
            "mark": {"type": "rule", "strokeDash": [5, 4], "strokeWidth": 1.2},
            "encoding": {"x": {"value": 0}, "x2": {"value": "width"}, "y": y, "color": grey},
        },
        # The label in white with a broad rim lies below the label, so that lines that cross it do
        # not hide it.
        {
            "name": "rim",
            "data": data,
            "mark": {**label_mark, "stroke": "#ffffff", "strokeWidth": 4},
            "encoding": {**label_encoding, "color": {"value": "#ffffff"}},
        },
        {"data": data, "mark": label_mark, "encoding": {**label_encoding, "color": grey}},
    ]


def panels_side_by_side(panels: int, most: int) -> int:
    """How many panels stand in a row: at most ``most``, and so that the last row is as full as
    possible.

    Example:
        >>> [panels_side_by_side(panels, 3) for panels in (1, 2, 3, 4, 5, 6, 8)]
        [1, 2, 3, 2, 3, 3, 3]
    """
    rows = math.ceil(panels / max(most, 1))
    return math.ceil(panels / rows)
