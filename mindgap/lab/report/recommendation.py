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

#: Size of the figure in its own units.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 720, 340, 92, 30, 14, 64


def write_recommendation_page(answer: Path, out: Path) -> Path:
    """Draw the page of ``recommendation.json``; the file appears whole or not at all.

    Raises:
        RecordError: the file is not a recommendation.
    """
    content = read_json(Path(answer))
    if not isinstance(content, dict) or content.get("kind") != "recommendation":
        raise RecordError(f"{answer} must be a recommendation written by 'mindgap recommend'")
    write_atomically(Path(out), page(content))
    return Path(out)


def page(answer: dict[str, Any]) -> str:
    """The whole page as text."""
    gain, low, high = (100 * value for value in answer["gain"])
    words = (
        f"Gain over AdamW at lr 0.001: {gain:.1f} % (90 % interval {low:.1f} % to {high:.1f} %)."
    )
    tried = [
        {**t, "shown": number(t["loss"]) if math.isfinite(t["loss"]) else "diverged"}
        for t in answer["tried"]
    ]
    return str(
        template("recommendation.html").render(
            answer={**answer, "tried": tried},
            gain=words if math.isfinite(low) else "",
            caption=_caption(answer) if tried else "",
            picture=Markup(figure(answer)),
            css=asset("page.css"),
        )
    )


def figure(answer: dict[str, Any]) -> str:
    """Training loss against step: the recommended run and AdamW at 1e-3 in colour, all other
    runs in grey.
    """
    runs = [
        t for t in answer["tried"] if t["seed"] == answer["about"]["seed"] and len(t["curve"]) > 1
    ]
    points = [(s, v) for t in runs for s, v in t["curve"] if math.isfinite(v) and v > 0]
    if not points:
        return ""
    values = sorted(v for _, v in points)
    low, high = math.log(values[0]), math.log(values[int(0.98 * (len(values) - 1))])
    high = max(high, low + 1e-6)
    last = max(s for s, _ in points)

    def place(step: float, value: float) -> tuple[float, float]:
        share = min(1.0, max(0.0, (math.log(max(value, 1e-300)) - low) / (high - low)))
        x = _LEFT + step / last * (_WIDTH - _LEFT - _RIGHT)
        return x, _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    drawn = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        value = math.exp(low + share * (high - low))
        _, y = place(0, value)
        drawn.append(
            f"<line class='grid' x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>"
        )
        drawn.append(f"<text x='{_LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>{value:.2g}</text>")
        x = _LEFT + share * (_WIDTH - _LEFT - _RIGHT)
        drawn.append(
            f"<text x='{x:.1f}' y='{_HEIGHT - 36}' text-anchor='middle'>{share * last:.0f}</text>"
        )
    best, baseline = _best_name(answer), "AdamW lr=0.001"
    for name, kind in ((None, "other"), (baseline, "baseline"), (best, "best")):
        for run in runs:
            if run["name"] == name or (name is None and run["name"] not in (best, baseline)):
                line = " L".join(
                    f"{x:.1f} {y:.1f}" for x, y in (place(s, v) for s, v in run["curve"])
                )
                drawn.append(
                    f"<path class='{kind}' d='M{line}'><title>{_text(run['name'])}</title></path>"
                )
    names = (
        [(best, "best-name")]
        if best == baseline
        else [(best, "best-name"), (baseline, "baseline-name")]
    )
    for k, (name, kind) in enumerate(names):
        # losses fall: this corner is empty
        place_of = f"x='{_LEFT + 12}' y='{_HEIGHT - _BOTTOM - 12 - 26 * k}'"
        drawn.append(f"<text class='{kind}' {place_of}>{_text(name)}</text>")
    drawn.append(
        f"<text x='{(_LEFT + _WIDTH) / 2}' y='{_HEIGHT - 6}' text-anchor='middle'>step</text>"
    )
    turned = (
        f"class='side' transform='translate(20 {_HEIGHT / 2}) rotate(-90)' text-anchor='middle'"
    )
    drawn.append(f"<text {turned}>training loss</text>")
    label = _text(_caption(answer))
    return (
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' aria-label='{label}' "
        "style='width:100%;height:auto'>"
        f"{''.join(drawn)}</svg>"
    )


def _best_name(answer: dict[str, Any]) -> str:
    longest = max(t["steps"] for t in answer["tried"])
    return str(
        min((t for t in answer["tried"] if t["steps"] == longest), key=lambda t: t["loss"])["name"]
    )


def _caption(answer: dict[str, Any]) -> str:
    best = _best_name(answer)
    others = len({t["name"] for t in answer["tried"]} - {best, "AdamW lr=0.001"})
    return (
        f"Training loss of {best} (blue), AdamW at lr 0.001 (orange) and {others} other settings "
        "(grey)."
    )


def _text(value: object) -> str:
    return html.escape(str(value), quote=True)
