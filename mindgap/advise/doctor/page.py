"""The answer as HTML: sentence, the curve before and after, code. No script, no file from
elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any, Protocol

_WIDTH, _HEIGHT, _MARGIN = 560, 220, 46
_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:2rem auto;padding:0 1rem}
pre{background:#8881;padding:.8rem;overflow:auto}h1{font-size:1.25rem}li{margin:.2rem 0}
@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}"""


class Answer(Protocol):
    """What the page shows (``Examination`` of ``mindgap.advise``, which uses this module)."""

    @property
    def verdict(self) -> str: ...
    @property
    def sentence(self) -> str: ...
    @property
    def findings(self) -> tuple[str, ...]: ...
    @property
    def code(self) -> str: ...
    @property
    def trial(self) -> Any: ...
    @property
    def curve(self) -> tuple[float, ...]: ...
    @property
    def notes(self) -> tuple[str, ...]: ...


def fragment(answer: Answer) -> str:
    """Sentence, picture, findings and code."""
    parts = [f"<h1>{escape(answer.sentence)}</h1>", picture(answer)]
    if answer.findings:
        items = "".join(f"<li>{escape(line)}</li>" for line in answer.findings)
        parts.append(f"<ul>{items}</ul>")
    if answer.code:
        parts.append(f"<pre><code>{escape(answer.code)}</code></pre>")
    if answer.notes:
        items = "".join(f"<li>{escape(line)}</li>" for line in answer.notes)
        parts.append(
            f"<details><summary>What could not be read</summary><ul>{items}</ul></details>"
        )
    return "\n".join(part for part in parts if part)


def page(answer: Answer) -> str:
    """A whole page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>mindgap examine: {escape(answer.verdict)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{fragment(answer)}\n</body></html>\n"
    )


def standalone(answer: Answer) -> str:
    """The picture as a file of its own (SVG), legible on light and on dark."""
    style = "<style>svg{color:#222}@media(prefers-color-scheme:dark){svg{color:#ddd}}</style>"
    drawn = picture(answer).replace(
        "<svg ", '<svg xmlns="http://www.w3.org/2000/svg" font-family="system-ui,sans-serif" ', 1
    )
    begin = drawn.index(">") + 1
    return f"{drawn[:begin]}{style}{drawn[begin:]}\n"


def picture(answer: Answer) -> str:
    """The training loss as it is and with the cure, on one logarithmic or linear axis."""
    curves = [("as it is", "#c0392b", _means_of_pieces(answer.curve))]
    if answer.trial is not None and answer.trial.helps:
        curves.append(("with the cure", "#2471a3", _means_of_pieces(answer.trial.curve)))
    values = [v for _, _, curve in curves for _, v in curve]
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    log = low > 0 and high / low > 20
    span = (math.log(low), math.log(high)) if log else (low, high)
    reach = max(span[1] - span[0], 1e-12)
    steps = max(k for _, _, curve in curves for k, _ in curve) or 1

    def x(k: int) -> float:
        return _MARGIN + (_WIDTH - 2 * _MARGIN) * k / steps

    def y(v: float) -> float:
        share = ((math.log(v) if log else v) - span[0]) / reach
        return _HEIGHT - 30 - (_HEIGHT - 50) * share

    drawn = []
    for i, (name, colour, curve) in enumerate(curves):
        points = " ".join(f"{x(k):.1f},{y(v):.1f}" for k, v in curve)
        drawn.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{points}"/>'
            f'<text x="{_MARGIN + 8 + 130 * i}" y="14" fill="{colour}">{name}</text>'
        )
    words = "; ".join(f"{name}: {c[0][1]:.3g} to {c[-1][1]:.3g}" for name, _, c in curves if c)
    return (
        f'<svg role="img" aria-label="Training loss over {steps} steps; {escape(words)}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" font-size="12" fill="currentColor">'
        f'<text x="2" y="{y(high) + 4:.0f}">{high:.3g}</text>'
        f'<text x="2" y="{y(low) + 4:.0f}">{low:.3g}</text>'
        f'<text x="{_MARGIN}" y="{_HEIGHT - 6}">step 0</text>'
        f'<text x="{_WIDTH - _MARGIN}" y="{_HEIGHT - 6}" text-anchor="end">step {steps}</text>'
        f"{''.join(drawn)}</svg>"
    )


def _means_of_pieces(curve: Sequence[float], points: int = 60) -> list[tuple[int, float]]:
    """Means of equal pieces; what is not finite is left out."""
    width = max(1, math.ceil(len(curve) / points))
    found = []
    for k in range(0, len(curve), width):
        piece = [v for v in curve[k : k + width] if math.isfinite(v)]
        if piece:
            found.append((min(k + width, len(curve)), sum(piece) / len(piece)))
    return found


def sparkline(curve: Sequence[float], low: float, high: float, width: int = 40) -> str:
    """A curve in one line of text; ``×`` where it is not finite.

    Example:
        >>> sparkline([3.0, 2.0, 1.0, float("nan")], 1.0, 3.0, width=4)
        '█▄▁×'
    """
    blocks = "▁▂▃▄▅▆▇█"
    step = max(1.0, len(curve) / width)
    marks = []
    for i in range(min(width, len(curve))):
        piece = curve[int(i * step) : max(int(i * step) + 1, int((i + 1) * step))]
        finite = [v for v in piece if math.isfinite(v)]
        if not finite:
            marks.append("×")
            continue
        share = (sum(finite) / len(finite) - low) / max(high - low, 1e-12)
        marks.append(blocks[min(7, max(0, int(share * 7.999)))])
    return "".join(marks)
