"""The Vega-Lite specification of a figure, from which page, PNG and SVG are drawn alike."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from mindgap.base.checked import Range, checked
from mindgap.lab.report.drawing import DASHES, ENOUGH_SEEDS, GREY, LIGHT, SHAPES, Axis, Drawing
from mindgap.lab.report.headline import headline
from mindgap.lab.report.words import number, signs

#: Up to so many points of a scatter are drawn large.
FEW = 120
SCHEMA_URL = "https://vega.github.io/schema/vega-lite/v6.json"


def view_rows(drawing: Drawing, axis: Axis, statistic: str) -> list[dict[str, Any]]:
    """The rows the specification is filled with; the page's script does the same for what the
    reader chooses.
    """
    log_x, log_y = drawing.figure.log_x, drawing.figure.log_y
    rows: list[dict[str, Any]] = []
    shifts = dict(zip(drawing.methods, drawing.shifts))
    lows = [s.columns["q10"] for s in axis.series if "q10" in s.columns]
    floor = 0.0 if lows and all((low[np.isfinite(low)] >= 0).all() for low in lows) else -math.inf
    drawn = axis.runs if statistic == "every" and axis.runs else axis.series
    for place, series in sorted(
        enumerate(drawn), key=lambda item: item[1].method in drawing.accent
    ):
        columns = series.columns
        if "y" in columns:
            middle, low, high = columns["y"], None, None
        elif statistic == "quantiles":
            middle, low, high = columns["q50"], columns["q10"], columns["q90"]
        elif statistic == "mean":
            middle = columns["mean"]
            low = columns["mean"] - columns["sd"]
            high = columns["mean"] + columns["sd"]
        else:
            middle, low, high = columns["mean"], None, None
        for i, (x, y) in enumerate(zip(columns["x"].tolist(), middle.tolist())):
            if not math.isfinite(x) or (log_x and x <= 0):
                continue
            x += shifts[series.method]
            row: dict[str, Any] = {
                "x": x,
                "m": series.method,
                "f": series.facet,
                "r": place,
                "o": i,
            }
            row["k"] = not drawing.accent or series.method in drawing.accent
            row["y"] = y if math.isfinite(y) and (y > 0 or not log_y) else None
            if (
                low is not None
                and high is not None
                and math.isfinite(high[i])
                and row["y"] is not None
            ):
                # The band of a quantity that is never negative ends at zero.
                row["lo"], row["hi"] = max(float(low[i]), floor), float(high[i])
            rows.append(row)
    if log_y:
        least = min((row["y"] for row in rows if row["y"] is not None), default=1.0)
        for row in rows:
            if row.get("lo", 1.0) <= 0:
                row["lo"] = least
    return rows


def specification(
    drawing: Drawing, axis: Axis, *, rows: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    """The Vega-Lite specification of a figure: with ``rows`` a picture by itself, without them
    the page's template.
    """
    figure, kind = drawing.figure, drawing.kind
    methods = list(drawing.methods)
    colours = [GREY if i is None else LIGHT[i] for i in drawing.colours]
    alone = drawing.alone(axis)
    log_x, log_y = figure.log_x, figure.log_y
    x: dict[str, Any] = {
        "field": "x",
        "type": "quantitative",
        "scale": scale(log_x, padded=kind == "points"),
    }
    x["axis"] = {"title": signs(axis.label), **ticks(log_x, "x", own="x" in alone)}
    if drawing.names:
        found = named(drawing.names)
        x |= {"scale": found["scale"], "axis": {**found["axis"], "title": figure.x_label or None}}
    heights = {row["y"] for row in rows or [] if row["y"] is not None}
    y_scale = scale(log_y, padded=bool(log_y), flat=len(heights) == 1)
    y_axis = {"title": None, **ticks(log_y, "y", own="y" in alone)}
    y = {"field": "y", "type": "quantitative", "title": None, "scale": y_scale, "axis": y_axis}
    legend = {
        "title": None,
        "orient": "bottom",
        "direction": "horizontal",
        "columns": 3,
        "labelLimit": 260,
    }
    legend |= {"symbolOpacity": 1, "symbolType": "circle" if kind == "points" else "stroke"}
    colour = {
        "field": "m",
        "type": "nominal",
        "scale": {"domain": methods, "range": colours},
        "legend": legend,
    }
    detail = {"field": "r", "type": "nominal"}
    # The whole row, of which the page shows one ready text: with `nearest`, Vega-Lite 6 looks for
    # the fields of a tooltip channel in the wrong place and shows "undefined".
    tooltip = {"content": "data"}
    hover = {
        "transform": [{"filter": "datum.h"}],
        "params": [
            {
                "name": "hover",
                "select": {
                    "type": "point",
                    "on": "pointerover",
                    "nearest": True,
                    "clear": "pointerout",
                },
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
        shape = {
            "field": "m",
            "type": "nominal",
            "scale": {"domain": methods, "range": shapes},
            "legend": legend,
        }
        few = sum(len(s) for s in axis.series) <= FEW
        mark = {
            "type": "point",
            "filled": True,
            "size": 60 if few else 26,
            "opacity": 0.6,
            "tooltip": tooltip,
        }
        layers = [{"mark": mark, "encoding": {"y": y, "shape": shape}}]
    elif kind == "path":
        order = {"field": "o", "type": "quantitative"}
        path = {"type": "line", "strokeWidth": 1.5}
        layers = [
            {"mark": path, "encoding": {"y": y, "order": order, "detail": detail, **_lit(1.5)}},
            hover,
        ]
    else:
        line: dict[str, Any] = {
            "y": y,
            "detail": detail,
            **_lit(1.4 if drawing.statistic == "every" else 2.4),
        }
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
        layers = [{"mark": {"type": "line"}, "encoding": line}, hover]
        if drawing.seeds >= ENOUGH_SEEDS:
            layers.insert(0, band)
    layers += rules(figure.hlines, y_scale)
    unit: dict[str, Any] = {"layer": layers, "encoding": {"x": x, "color": colour}}
    spec: dict[str, Any] = {
        "$schema": SCHEMA_URL,
        "title": _title(drawing, drawn_words(drawing)),
        "params": [{"name": "lit", "value": ""}],
        "background": "#ffffff",
        "config": CONFIG,
        "datasets": {"rows": rows or []},
        "data": {"name": "rows"},
    }
    if drawing.facets == ("",):
        return {
            **spec,
            "width": 620,
            "height": 320,
            "autosize": {"type": "fit", "contains": "padding"},
            **unit,
        }
    across = columns(len(drawing.facets), 3)
    spec["facet"] = {"field": "f", "type": "nominal", "title": None, "sort": list(drawing.facets)}
    spec["columns"] = across
    spec["spec"] = {"width": 600 // across, "height": 220, **unit}
    # In a last row that is not full, a common axis would stand below panels that are not there.
    ragged = {"axis": {"x": "independent"}} if len(drawing.facets) % across else {}
    if alone or ragged:
        spec["resolve"] = {"scale": alone, **ragged}
    return spec


def _lit(width: float) -> dict[str, Any]:
    """Lines fade while another method is pointed at; those that the claim is about are the
    thicker ones.
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


def _title(drawing: Drawing, below: str, letters: int = 78) -> dict[str, Any]:
    """The finding, broken into lines that fit the picture, and what is drawn upwards."""
    lines = textwrap.wrap(headline(drawing), letters)
    return {"text": lines, "subtitle": below, "anchor": "start", "frame": "group"}


def ranking(drawing: Drawing) -> dict[str, Any]:
    """Where every method ends, best first: mean ± sd, or the median with the 10 and 90 %
    quantiles, or the few seeds themselves.
    """
    figure, axis = drawing.figure, drawing.axes[0]
    ends, log = drawing.ends(), figure.log_y
    rows: list[dict[str, Any]] = []
    for s in axis.series:
        if (end := ends.get((s.method, s.facet))) is None or (log and end <= 0):
            continue
        names = ("mean", "sd", "q10", "q90", "n")
        last = s.ends or {name: float(s.columns[name][-1]) for name in names}
        low, high = last["q10"], last["q90"]
        if drawing.middle == "mean":
            low, high = last["mean"] - last["sd"], last["mean"] + last["sd"]
        row: dict[str, Any] = {
            "m": s.method,
            "f": s.facet,
            "v": end,
            "k": s.method in drawing.accent,
        }
        if last["n"] >= ENOUGH_SEEDS and math.isfinite(high) and (low > 0 or not log):
            row |= {"lo": low, "hi": high}
        row["t"] = f"{s.method}\n{figure.y_label}: {number(end)}" + (
            f"  [{number(row['lo'])}, {number(row['hi'])}]" if "lo" in row else ""
        )
        rows.append(row)
    few = drawing.seeds < ENOUGH_SEEDS
    runs = [(s, s.columns["y"][np.isfinite(s.columns["y"])]) for s in axis.runs if few]
    seeds = [
        {"m": s.method, "f": s.facet, "s": float(y[-1])}
        for s, y in runs
        if len(y) and (y[-1] > 0 or not log)
    ]
    order = list(
        dict.fromkeys(
            row["m"] for row in sorted(rows, key=lambda row: row["v"], reverse=drawing.upwards)
        )
    )
    colours = [GREY if i is None or not drawing.accent else LIGHT[i] for i in drawing.colours]
    colour = {
        "field": "m",
        "type": "nominal",
        "legend": None,
        "scale": {"domain": list(drawing.methods), "range": colours},
    }
    y: dict[str, Any] = {"field": "m", "type": "nominal", "sort": order, "title": None}
    y["axis"] = {"labelLimit": 240, "grid": True, "domain": False, "ticks": False}
    # Every method stands in one panel alone.
    apart = len(rows) == len(order) and len(drawing.facets) > 1
    if apart and all(len(found) == 1 for found in _last_parts(rows).values()):
        y["axis"]["labelExpr"] = "replace(datum.label, /, [^,]*$/, '')"
    x: dict[str, Any] = {
        "type": "quantitative",
        "scale": scale(log, padded=True),
        "title": signs(figure.y_label),
    }
    x["axis"] = ticks(log, "x", own=len(drawing.facets) > 1 and "y" in drawing.alone(axis))
    layers: list[dict[str, Any]] = [
        {
            "mark": {"type": "rule", "strokeWidth": 2},
            "encoding": {"x": {**x, "field": "lo"}, "x2": {"field": "hi"}},
        },
        {
            "data": {"values": seeds},
            "mark": {"type": "tick", "thickness": 2, "height": 12},
            "encoding": {"x": {**x, "field": "s"}},
        },
        {
            "mark": {
                "type": "point",
                "filled": True,
                "size": 80,
                "opacity": 1,
                "tooltip": {"content": "data"},
            },
            "encoding": {"x": {**x, "field": "v"}},
        },
    ]
    intervals = any("lo" in row for row in rows)
    kept = [layer for layer, wanted in zip(layers, (intervals, seeds, True)) if wanted]
    unit: dict[str, Any] = {"layer": kept, "encoding": {"y": y, "color": colour}}
    spec: dict[str, Any] = {
        "$schema": SCHEMA_URL,
        "title": _title(drawing, rank_words(drawing), 64),
        "background": "#ffffff",
        "config": CONFIG,
        "data": {"values": rows},
    }
    if drawing.facets == ("",):
        fit = {"type": "fit", "contains": "padding"}
        return {**spec, "width": 620, "height": 21 * len(order) + 80, "autosize": fit, **unit}
    spec |= {
        "facet": {"field": "f", "type": "nominal", "title": None, "sort": list(drawing.facets)},
        "columns": 2,
    }
    own = {
        channel: "independent"
        for channel, wanted in (("x", "y" in drawing.alone(axis)), ("y", apart))
        if wanted
    }
    return {
        **spec,
        "spec": {"width": 220, "height": {"step": 21}, **unit},
        "resolve": {"scale": own},
    }


#: Statistic -> what is drawn, as page.js says it too.
STATISTIC_WORDS = {"mean": "mean ± sd", "quantiles": "median, 10–90 %", "every": "every run"}


def drawn_words(drawing: Drawing) -> str:
    """What stands upwards in a figure, and how several runs are drawn."""
    words = STATISTIC_WORDS.get(drawing.statistic) if drawing.kind == "lines" else None
    return signs(drawing.figure.y_label) + (f" ({words})" if words else "")


def rank_words(drawing: Drawing) -> str:
    """What a ranking shows."""
    if drawing.single:
        return "best first"
    if drawing.seeds < ENOUGH_SEEDS:
        return "best first: median (point) and every seed (ticks)"
    spans = {"mean": "mean ± sd", "median": "median with the 10 and 90 % quantiles"}
    return f"best first: {spans[drawing.middle]} over {drawing.seeds} seeds"


def _last_parts(rows: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Panel -> what the names of its methods have behind their last comma; a name without one
    gives itself.
    """
    found: dict[str, set[str]] = {}
    for row in rows:
        found.setdefault(row["f"], set()).add(row["m"].rpartition(", ")[2])
    return found


_FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif"
# has the papers' signs (norms, gradients)
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
        flat: whether all values are the same; zero is then shown too, or there would be no scale at
            all.
    """
    room = {"padding": PADDING} if padded else {}
    return (
        {"type": "log", "nice": False, **room} if log else {"type": "linear", "zero": flat, **room}
    )


def named(names: Sequence[str]) -> dict[str, Any]:
    """Scale and axis of a figure whose places 0, 1, ... have names; a newline breaks a name."""
    listed = json.dumps([name.split("\n") for name in names], ensure_ascii=False)
    turned = {"labelAngle": -35} if len(names) > 4 else {}
    return {
        "scale": {"type": "linear", "domain": [-0.5, len(names) - 0.5], "nice": False},
        "axis": {
            "values": list(range(len(names))),
            "labelExpr": f"{listed}[datum.value]",
            "grid": False,
        }
        | {"labelOverlap": False, "ticks": False, "labelPadding": 6, **turned},
    }


def ticks(log: Any, channel: str, *, own: bool = False) -> dict[str, Any]:
    """Tick labels of an axis.

    Args:
        log: a logarithmic axis labels powers of ten, with 2 and 5 between where it spans little
            more than two of them, and every tick where it spans less than half of one.
        channel: ``"x"`` or ``"y"``.
        own: whether each panel has an axis of its own, which Vega-Lite calls by another name.
    """
    return {"labelExpr": log_labels(channel, own=own), "tickCount": 6} if log else {"tickCount": 6}


def log_labels(channel: str, *, own: bool = False) -> str:
    """The expression behind :func:`ticks`; it looks at how much the axis spans when it is drawn."""
    ends = f"domain('{'child_' if own else ''}{channel}')"
    decades = f"(log({ends}[1] / {ends}[0]) / LN10)"
    some = f"indexof({decades} > 2.2 ? [1] : [1, 2, 5], {_DIGIT}) >= 0"
    return f"{decades} < 0.5 || {some} ? {_LABEL} : ''"


def rules(hlines: Mapping[str, float], y_scale: dict[str, Any]) -> list[dict[str, Any]]:
    """Horizontal rules with their labels at the right end."""
    if not hlines:
        return []
    data = {"values": [{"y": value, "label": label} for label, value in hlines.items()]}
    y = {"field": "y", "type": "quantitative", "title": None, "scale": y_scale}
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
        # Under the words, the same words with a broad rim in the colour of the paper: crossing
        # lines do not hide them.
        {
            "name": "rim",
            "data": data,
            "mark": {**words, "stroke": "#ffffff", "strokeWidth": 4},
            "encoding": {**place, "color": {"value": "#ffffff"}},
        },
        {"data": data, "mark": words, "encoding": {**place, "color": grey}},
    ]


def columns(panels: int, most: int) -> int:
    """How many panels stand side by side: at most ``most``, and the last row as full as it can be.

    Example:
        >>> [columns(panels, 3) for panels in (1, 2, 3, 4, 5, 6, 8)]
        [1, 2, 3, 2, 3, 3, 3]
    """
    rows = -(-panels // max(most, 1))
    return -(-panels // rows)
