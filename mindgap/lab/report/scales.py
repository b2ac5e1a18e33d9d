"""Axes of a figure: scales, tick labels and horizontal rules, as Vega-Lite has them; page.js
does the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

#: Pixels between the outermost points and the frame, so that no point lies on an axis.
PADDING = 10

#: A number on a log axis: a power of ten as such, not as a row of zeros.
_POWER = "floor(log(datum.value) / LN10 + 1e-9)"
_DIGIT = f"round(100 * datum.value / pow(10, {_POWER})) / 100"
_UP = "substring('⁰¹²³⁴⁵⁶⁷⁸⁹', {0}, 1 + {0})"
_RAISED = (
    f"({_POWER} < 0 ? '⁻' : '') + (abs({_POWER}) > 9 ? {_UP.format(f'floor(abs({_POWER}) / 10)')} "
    ": '')"
    f" + {_UP.format(f'abs({_POWER}) % 10')}"
)
_LABEL = (
    f"(datum.value < 1e-3 || datum.value >= 1e5 ? ({_DIGIT} == 1 ? '' : format({_DIGIT}, '~g') + "
    "'·') + '10'"
    f" + {_RAISED} : format(datum.value, '~g'))"
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
