"""The page of a recommendation: the answer, the code to paste and one figure first; then what
led there.
"""

from __future__ import annotations

import html
import math
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mindgap.lab.report.templates import asset, template
from mindgap.lab.report.words import number
from mindgap.record.schema import RecordError
from mindgap.record.store import read_json, write_atomically

#: The version of the written form that is drawn.
SCHEMA = 2
#: Size of the figure in its own units.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 340, 92, 30, 14, 64


def write_recommendation_page(answer: Path, out: Path) -> Path:
    """Draw the page of ``recommendation.json``; the file appears whole or not at all.

    Raises:
        RecordError: the file is not a recommendation of this version.
    """
    content = read_json(Path(answer))
    if not isinstance(content, dict) or content.get("kind") != "recommendation":
        raise RecordError(f"{answer} must be a recommendation written by 'mindgap recommend'")
    if content.get("schema") != SCHEMA:
        raise RecordError(f"{answer} must have schema {SCHEMA}, got {content.get('schema')!r:.50}")
    try:
        drawn = page(content)
    except Exception as error:  # a file may be made up: any of its fields may be anything
        raise RecordError(
            f"{answer} must be whole, got a field that cannot be drawn "
            f"({type(error).__name__}: {error})"
        ) from error
    write_atomically(Path(out), drawn)
    return Path(out)


def page(answer: dict[str, Any]) -> str:
    """The whole page as text."""
    tried = [
        {**t, "shown": number(t["loss"]) if math.isfinite(t["loss"]) else "diverged"}
        for t in answer["tried"]
    ]
    return str(
        template("recommendation.html").render(
            answer={**answer, "tried": tried},
            gain=_gain(answer.get("decision")),
            caption=_caption(answer),
            picture=Markup(figure(answer)),
            css=asset("page.css"),
        )
    )


def _gain(decision: dict[str, Any] | None) -> str:
    """What the recommended setting saves, in words; empty where it is the baseline itself."""
    if not decision or decision["kind"] != "optimizer":
        return ""
    gain, low, high = (100 * value for value in decision["gain"])
    if not math.isfinite(low):
        return ""
    what = "validation loss" if decision["relative_to"] == "loss" else "fall of the loss"
    return (
        f"Saved against {decision['baseline']}, AdamW at its best rate: {gain:.1f} % of the {what} "
        f"(90 % interval {low:.1f} % to {high:.1f} %)."
    )


def _lines_by_colour(answer: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, class of the line) of the recommended setting and of the baseline; one where they are
    the same setting.
    """
    decision = answer.get("decision")
    if not decision:
        return []
    kinds = {decision["baseline"]: "baseline", decision["setting"]: "best"}
    return [(name, kinds[name]) for name in (decision["setting"], decision["baseline"]) if name][
        : len(kinds.keys() - {""})
    ]


def figure(answer: dict[str, Any]) -> str:
    """Validation loss against step, which decides: the recommended setting and AdamW at its best
    rate in colour, all other runs in grey.
    """
    runs = [t for t in answer["tried"] if t["seed"] == answer["about"]["seed"]]
    decision = answer.get("decision")
    if not decision:
        return ""
    start = decision["start"]
    lines = [
        (t["name"], [(s, v) for s, v in [(0, start), *t["scores"]] if math.isfinite(v)])
        for t in runs
    ]
    lines = [(name, points) for name, points in lines if len(points) > 1]
    values = sorted(v for _, points in lines for _, v in points)
    if not values:
        return ""
    logs = values[0] > 0
    level = math.log if logs else float
    low, high = level(values[0]), level(max(start, values[int(0.9 * (len(values) - 1))]))
    high = max(high, low + 1e-6)
    last = max(s for _, points in lines for s, _ in points)

    def place(step: float, value: float) -> tuple[float, float]:
        share = min(1.0, max(0.0, (level(value) - low) / (high - low)))
        x = _LEFT + step / last * (_WIDTH - _LEFT - _RIGHT)
        return x, _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    drawn = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        value = low + share * (high - low)
        value = math.exp(value) if logs else value
        _, y = place(0, value)
        drawn.append(
            f"<line class='grid' x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>"
        )
        drawn.append(f"<text x='{_LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>{value:.2g}</text>")
        x = _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
        drawn.append(
            f"<text x='{x:.1f}' y='{_HEIGHT - 36}' text-anchor='middle'>{share * last:.0f}</text>"
        )
    coloured = _lines_by_colour(answer)
    kinds = dict(coloured)
    for name, points in sorted(lines, key=lambda line: "obb".find(kinds.get(line[0], "o")[0])):
        path = " L".join(f"{x:.1f} {y:.1f}" for x, y in (place(s, v) for s, v in points))
        drawn.append(
            f"<path class='{kinds.get(name, 'other')}' d='M{path}'><title>{_text(name)}</title>"
            "</path>"
        )
    ends = {name: place(*points[-1]) for name, points in lines if name in kinds}
    taken: list[float] = []
    for name, kind in coloured:
        if name not in ends:
            continue
        x, y = ends[name]
        y -= 8  # above the end of its own line, and clear of the other label
        while any(abs(y - other) < 18 for other in taken):
            y -= 18
        taken.append(y)
        drawn.append(
            f"<text class='{kind}-name' x='{x - 6:.1f}' y='{y:.1f}' text-anchor='end'>"
            f"{_text(name)}</text>"
        )
    drawn.append(
        f"<text x='{(_LEFT + _WIDTH) / 2}' y='{_HEIGHT - 6}' text-anchor='middle'>step</text>"
    )
    turned = (
        f"class='side' transform='translate(20 {_HEIGHT / 2}) rotate(-90)' text-anchor='middle'"
    )
    drawn.append(f"<text {turned}>validation loss</text>")
    label = _text(_caption(answer))
    return (
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='{label}' "
        f"style='width:100%;height:auto'>{''.join(drawn)}</svg>"
    )


def _caption(answer: dict[str, Any]) -> str:
    if not answer["tried"] or not answer.get("decision"):
        return ""
    coloured = _lines_by_colour(answer)
    words = {"best": "blue", "baseline": "orange, AdamW at its best rate"}
    named = " and ".join(f"{name} ({words[kind]})" for name, kind in coloured)
    others = len({t["name"] for t in answer["tried"]} - {name for name, _ in coloured})
    return f"Validation loss of {named}, and of {others} other settings (grey)."


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)
