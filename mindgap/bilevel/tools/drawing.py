"""Curves as SVG: the history of a run, and the charts of a race."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from mindgap.base.check import fail, one_of

AXES = {"calls": "oracle calls", "seconds": "seconds", "iteration": "iterations"}
#: Width and height of a chart, and the margins around its plot, in pixels.
WIDE, HIGH, LEFT, RIGHT, ABOVE, BELOW = 560, 260, 80, 110, 16, 42
#: Colours that colour-blind readers tell apart (Okabe, Ito), then dashes for more curves.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#8c6d31")


class Curve(NamedTuple):
    """A line, with a band around it where ``low`` and ``high`` are given."""

    name: str
    across: Sequence[float]  # x of each point
    up: Sequence[float]  # y of each point
    low: Sequence[float] = ()  # the band at each point
    high: Sequence[float] = ()


def draw_history(rows: Sequence[dict[str, float]], against: str = "calls") -> str:
    """One curve per recorded quantity of a run's history rows, below each other, as SVG.

    Horizontally runs the column ``against``: "calls", "seconds" or "iteration".

    Example:
        >>> rows = [{"iteration": t, "calls": 5 * t, "seconds": 0.1, "upper": 1.0} for t in (0, 1)]
        >>> draw_history(rows).count("<polyline")
        1
    """
    one_of("against", against, tuple(AXES))
    if not rows:
        fail("history", "must have rows to plot: call solve(..., history=100)", 0)
    panels: list[str] = []
    for name in (name for name in rows[0] if name not in AXES):
        points = [(row[against], row[name]) for row in rows if math.isfinite(row[name])]
        curve = Curve(name, [x for x, _ in points], [y for _, y in points])
        panels.append(chart([curve], f"{name} against {AXES[against]}", AXES[against], len(panels)))
    size = f"viewBox='0 0 {WIDE} {HIGH * len(panels)}' width='{WIDE}'"
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size}>{''.join(panels)}</svg>"


def chart(curves: Sequence[Curve], title: str, x_label: str, place: int = 0) -> str:
    """Curves with axes and names, as SVG. The vertical axis is logarithmic if all values are
    positive and span more than two decades.

    Args:
        curves: what to draw.
        title: what is shown, for readers of the text.
        x_label: below the horizontal axis.
        place: number of the chart in a column of them.
    """
    xs = [x for curve in curves for x in curve.across]
    ys = [y for curve in curves for values in (curve.up, curve.low, curve.high) for y in values]
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' y='{HIGH * place}' viewBox='0 0 {WIDE} {HIGH}' "
        f"width='{WIDE}' height='{HIGH}' role='img' font-size='11'><title>{escape(title)}</title>"
    )
    if not xs:
        return f"{head}<text x='{LEFT}' y='20'>{escape(title)}: no finite value</text></svg>"
    is_logarithmic = min(ys) > 0 and max(ys) > 100 * min(ys)
    low, high = (math.log10(y) if is_logarithmic else y for y in (min(ys), max(ys)))
    # The plot reaches from 0 to ``end`` and from ``low`` to ``high``, in pixels from LEFT to
    # ``right`` and from ``bottom`` up to ABOVE.
    end, span, bottom, right = max(xs) or 1.0, (high - low) or 1.0, HIGH - BELOW, WIDE - RIGHT

    def points(across: Sequence[float], up: Sequence[float]) -> list[str]:
        """Pixels "x,y" of the points of a curve, for the bounds above."""
        heights = [(math.log10(y) if is_logarithmic else y) - low for y in up]
        return [
            f"{LEFT + (right - LEFT) * x / end:.1f},{bottom - (bottom - ABOVE) * h / span:.1f}"
            for x, h in zip(across, heights, strict=False)
        ]

    body = f"<path d='M{LEFT},{ABOVE}V{bottom}H{right}' fill='none' stroke='#888'/>"
    for k in range(5):  # five numbers at each axis; 6, 4 and 14 move the texts, in pixels
        height, y = low + span * k / 4, bottom - (bottom - ABOVE) * k / 4
        label = f"{10**height if is_logarithmic else height:.3g}"
        body += f"<text x='{LEFT - 6}' y='{y + 4:.0f}' text-anchor='end'>{label}</text>"
        x = LEFT + (right - LEFT) * k / 4
        body += f"<text x='{x:.0f}' y='{bottom + 14}' text-anchor='middle'>{end * k / 4:.3g}</text>"
    heading = escape(title) + (" (logarithmic)" if is_logarithmic else "")
    body += f"<text x='{LEFT}' y='{bottom + 30}'>{escape(x_label)}</text>"
    body += f"<text x='{LEFT}' y='11'>{heading}</text>"
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        dash = " stroke-dasharray='5 3'" if number >= len(COLOURS) else ""
        # Around the band: along its upper edge, and back along the lower one.
        band = " ".join(points(curve.across, curve.high) + points(curve.across, curve.low)[::-1])
        if band:
            body += f"<polygon points='{band}' fill='{colour}' opacity='0.15'/>"
        line = " ".join(points(curve.across, curve.up))
        body += (
            f"<polyline points='{line}' fill='none' stroke='{colour}' stroke-width='1.6'{dash}/>"
        )
        place_of_name = f"x='{right + 8}' y='{20 + 15 * number}' fill='{colour}'"
        body += f"<text {place_of_name}>{escape(curve.name)}</text>"
    return f"{head}{body}</svg>"
