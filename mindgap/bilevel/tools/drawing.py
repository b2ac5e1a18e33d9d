"""The history of a run as a drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from mindgap.base.check import fail, one_of

AXES = {"calls": "oracle calls", "seconds": "seconds", "iteration": "iterations"}
WIDE, HIGH, LEFT, BELOW = 560, 220, 80, 40


def draw_history(rows: Sequence[dict[str, float]], against: str = "calls") -> str:
    """One curve per recorded quantity, below each other, as SVG. A quantity that is positive and
    spans more than two decades has a logarithmic axis.

    Example:
        >>> rows = [{"iteration": t, "calls": 5 * t, "seconds": 0.1, "upper": 1.0} for t in (0, 1)]
        >>> draw_history(rows).count("<polyline")
        1
    """
    one_of("against", against, tuple(AXES))
    if not rows:
        fail("history", "must have rows to plot: call solve(..., history=100)", 0)
    names = [name for name in rows[0] if name not in AXES]
    panels = [_panel(rows, against, name, HIGH * place) for place, name in enumerate(names)]
    size = f"viewBox='0 0 {WIDE} {HIGH * len(names)}' width='{WIDE}'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {size} role='img' font-size='11'>"
    return head + "".join(panels) + "</svg>"


def _panel(rows: Sequence[dict[str, float]], across: str, name: str, top: int) -> str:
    """The curve of one quantity with its axes."""
    points = [(row[across], row[name]) for row in rows if math.isfinite(row[name])]
    title = f"{name} against {AXES[across]}"
    if not points:
        return f"<text x='{LEFT}' y='{top + 20}'>{escape(title)}: no finite value</text>"
    values = [value for _, value in points]
    steep = min(values) > 0 and max(values) > 100 * min(values)
    heights = [math.log10(v) if steep else v for v in values]
    low, span = min(heights), (max(heights) - min(heights)) or 1.0
    right, room = max(x for x, _ in points) or 1.0, HIGH - BELOW - 20
    places = zip(points, heights, strict=True)
    line = " ".join(
        f"{LEFT + (WIDE - LEFT - 20) * x / right:.1f},"
        f"{top + 20 + room * (1 - (h - low) / span):.1f}"
        for (x, _), h in places
    )
    bottom = top + HIGH - BELOW
    marks = ""
    for k in range(5):
        height = low + span * k / 4
        label = f"{10**height if steep else height:.3g}"
        y = bottom - room * k / 4 + 4
        marks += f"<text x='{LEFT - 6}' y='{y:.0f}' text-anchor='end'>{label}</text>"
        x = LEFT + (WIDE - LEFT - 20) * k / 4
        marks += (
            f"<text x='{x:.0f}' y='{bottom + 14}' text-anchor='middle'>{right * k / 4:.3g}</text>"
        )
    middle = (LEFT + WIDE - 20) / 2
    return (
        f"<title>{escape(title)}</title>"
        f"<text x='{LEFT}' y='{top + 12}'>{escape(name)}{' (logarithmic)' if steep else ''}</text>"
        f"<path d='M{LEFT} {top + 20}V{bottom}H{WIDE - 20}' fill='none' stroke='#888'/>{marks}"
        f"<text x='{middle:.0f}' y='{bottom + 28}' text-anchor='middle'>{AXES[across]}</text>"
        f"<polyline points='{line}' fill='none' stroke='#1f6fb4' stroke-width='1.5'/>"
    )
