"""The page of a recommendation: the answer, the code to paste and one figure first; then what
led there.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mindgap.lab.report.templates import asset, template, write_drawn
from mindgap.lab.report.words import number
from mindgap.record.schema import RecordError
from mindgap.record.store import read_json

#: The version of the written form that is drawn.
SCHEMA = 2
#: Size of the figure in its own units, what is left free on its four sides, height of a text line.
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM, _LINE = 720, 340, 92, 30, 14, 64, 18


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
    return write_drawn(page, content, answer, out)


def page(answer: dict[str, Any]) -> str:
    """The whole page as text; ``answer`` is the content of ``recommendation.json``."""
    runs = [
        {**run, "shown": number(run["loss"]) if math.isfinite(run["loss"]) else "diverged"}
        for run in answer["tried"]
    ]
    return str(
        template("recommendation.html").render(
            answer={**answer, "tried": runs},
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
    # The share that is saved, and the ends of its interval.
    gain, low, high = (100 * value for value in decision["gain"])  # in percent
    if not math.isfinite(low):  # too few runs for an interval
        return ""
    saved = "validation loss" if decision["relative_to"] == "loss" else "fall of the loss"
    return (
        f"Saved against {decision['baseline']}, AdamW at its best rate: "
        f"{gain:.1f} % of the {saved} "
        f"(90 % interval {low:.1f} % to {high:.1f} %)."
    )


def _kinds_of_lines(answer: dict[str, Any]) -> dict[str, str]:
    """Name of a setting -> the class of its line, for the settings in colour: the recommended one
    (``"best"``) and, where it is another one, the ``"baseline"``. Empty without a decision.
    """
    decision = answer.get("decision")
    if not decision:
        return {}
    kinds = {decision["setting"]: "best"}
    # The recommended setting may be the baseline itself; it then stays "best".
    kinds.setdefault(decision["baseline"], "baseline")
    return {name: kind for name, kind in kinds.items() if name}


#: Name of a setting, and its (step, loss) at every reading.
_Curve = tuple[str, list[tuple[float, float]]]


def _curves(answer: dict[str, Any]) -> list[_Curve]:
    """The curves of the runs with the seed of the race, from their common start, without losses
    that are not finite. Runs with fewer than two finite losses are left out.
    """
    start = (0, answer["decision"]["start"])
    curves = []
    for run in (run for run in answer["tried"] if run["seed"] == answer["about"]["seed"]):
        points = [(step, loss) for step, loss in [start, *run["scores"]] if math.isfinite(loss)]
        if len(points) > 1:
            curves.append((run["name"], points))
    return curves


@dataclass(frozen=True)
class _Plane:
    """Where a loss stands in the picture: steps to the right, losses upwards."""

    low: float  # height at the bottom: a loss, or its logarithm where the axis is logarithmic
    high: float  # height at the top
    last_step: float  # step at the right end
    is_log: bool  # whether the axis of losses is logarithmic

    @staticmethod
    def around(curves: list[_Curve], start: float) -> _Plane:
        """The plane for these curves: from the least loss to the loss at the start, or to the 90 %
        quantile of all losses where that is larger. Logarithmic where all losses are positive.

        Args:
            curves: at least one, with finite losses.
            start: loss at the start.
        """
        losses = sorted(loss for _, points in curves for _, loss in points)
        least, upper_decile = losses[0], losses[int(0.9 * (len(losses) - 1))]
        height = math.log if least > 0 else float
        low, high = height(least), height(max(start, upper_decile))
        # The 1e-6 keeps the plane's height above 0 where all losses are equal.
        last_step = max(step for _, points in curves for step, _ in points)
        return _Plane(low, max(high, low + 1e-6), last_step, least > 0)

    def place(self, step: float, loss: float) -> tuple[float, float]:
        """The point (x, y) of the picture for a loss at a step, in its units from the upper left. A
        loss above the top or below the bottom is drawn there.
        """
        height = math.log(loss) if self.is_log else loss
        # The share of the way from the bottom to the top; y counts downwards.
        share = min(1.0, max(0.0, (height - self.low) / (self.high - self.low)))
        x = _LEFT + step / self.last_step * (_WIDTH - _LEFT - _RIGHT)
        return x, _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)

    def loss_at(self, share: float) -> float:
        """The loss at that share of the way from the bottom (0) to the top (1)."""
        height = self.low + share * (self.high - self.low)
        return math.exp(height) if self.is_log else height


def figure(answer: dict[str, Any]) -> str:
    """The picture as SVG: the validation loss, which decides, against the step, with the
    recommended setting and AdamW at its best rate in colour and all other runs in grey. Empty where
    nothing was tried.

    Args:
        answer: the content of ``recommendation.json``.
    """
    curves = _curves(answer) if answer.get("decision") else []
    if not curves:
        return ""
    plane, kinds = _Plane.around(curves, answer["decision"]["start"]), _kinds_of_lines(answer)
    # Attributes of the text beside the vertical axis, turned to run upwards.
    side = f"class='side' transform='translate(20 {_HEIGHT / 2}) rotate(-90)' text-anchor='middle'"
    elements = [
        *_grid(plane),
        *_paths(plane, curves, kinds),
        *_names(plane, curves, kinds),
        f"<text x='{(_LEFT + _WIDTH) / 2}' y='{_HEIGHT - 6}' text-anchor='middle'>step</text>",
        f"<text {side}>validation loss</text>",
    ]
    return (
        f"<svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img' "
        f"aria-label='{html.escape(_caption(answer))}' "
        f"style='width:100%;height:auto'>{''.join(elements)}</svg>"
    )


def _grid(plane: _Plane) -> Iterator[str]:
    """SVG elements: five horizontal lines with their losses, and five step numbers below."""
    for share in (0, 0.25, 0.5, 0.75, 1):
        loss = plane.loss_at(share)
        _, y = plane.place(0, loss)
        # The same share of both axes: of the height for the loss, of the width for the step.
        yield f"<line class='grid' x1='{_LEFT}' x2='{_WIDTH - _RIGHT}' y1='{y:.1f}' y2='{y:.1f}'/>"
        yield f"<text x='{_LEFT - 6}' y='{y + 4:.1f}' text-anchor='end'>{loss:.2g}</text>"
        x, step = _LEFT + share * (_WIDTH - _LEFT - _RIGHT), share * plane.last_step
        yield f"<text x='{x:.1f}' y='{_HEIGHT - 36}' text-anchor='middle'>{step:.0f}</text>"


def _paths(plane: _Plane, curves: list[_Curve], kinds: dict[str, str]) -> Iterator[str]:
    """SVG elements: the lines of all curves, those in colour (``kinds``) on top."""
    for name, points in sorted(curves, key=lambda curve: curve[0] in kinds):
        path = " L".join("{:.1f} {:.1f}".format(*plane.place(*point)) for point in points)
        kind = kinds.get(name, "other")
        yield f"<path class='{kind}' d='M{path}'><title>{html.escape(str(name))}</title></path>"


def _names(plane: _Plane, curves: list[_Curve], kinds: dict[str, str]) -> Iterator[str]:
    """SVG elements: the names of the lines in colour, above the ends of their lines, at least a
    line of text apart.

    Args:
        kinds: name of a setting -> the class of its line, of those in colour.
    """
    end_points = {name: plane.place(*points[-1]) for name, points in curves}
    taken_heights: list[float] = []
    for name, kind in kinds.items():
        if name in end_points:
            x, y = end_points[name]
            y -= 8  # a little above the line
            while any(abs(y - height) < _LINE for height in taken_heights):
                y -= _LINE
            taken_heights.append(y)
            place = f"x='{x - 6:.1f}' y='{y:.1f}' text-anchor='end'"
            yield f"<text class='{kind}-name' {place}>{html.escape(str(name))}</text>"


def _caption(answer: dict[str, Any]) -> str:
    """What the picture shows, in one sentence; empty where nothing was tried or decided."""
    kinds = _kinds_of_lines(answer)
    if not answer["tried"] or not answer.get("decision"):
        return ""
    words_of = {"best": "blue", "baseline": "orange, AdamW at its best rate"}
    coloured = " and ".join(f"{name} ({words_of[kind]})" for name, kind in kinds.items())
    others = len({run["name"] for run in answer["tried"]} - kinds.keys())
    return f"Validation loss of {coloured}, and of {others} other settings (grey)."
