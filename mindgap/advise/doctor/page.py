"""The answer of ``examine`` and ``diagnose_run``, as text, as JSON and as HTML (sentence, the curve
before and after, code; no script, no file from elsewhere).
"""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any

from mindgap.advise.doctor.differential import LISTED, in_words
from mindgap.record.store import write_atomically

_WIDTH, _HEIGHT = 700, 250
#: Left of the axis, right of it (labels of the curves), above and below.
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 190, 12, 34
#: Where the curves end at the right, and where the axis of steps is.
_EDGE, _FLOOR = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
#: Legible on white and on nearly black.
_SICK, _CURED, _GREY = "#d0455a", "#2b7fd1", "#888888"
_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:1.2rem auto;
padding:0 1rem}pre{background:#8882;padding:.8rem;overflow:auto;font-size:.875rem;margin:.6rem 0}
h1{font-size:1.15rem;line-height:1.35;margin:.4rem 0 .8rem}li{margin:.2rem 0}ul{margin:.6rem 0}
svg{max-width:100%;height:auto}@media(max-width:560px){svg text{font-size:16.5px}}
@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}"""


@dataclass(frozen=True)
class Trial:
    """One cure on a copy."""

    cause: str  # its key
    variant: float  # of the cure: a factor, a limit or a number that tells ways apart
    before: float  # held-out loss without the cure
    after: float  # held-out loss with it
    steps: int
    helps: bool
    curve: tuple[float, ...] = ()  # training losses with the cure


@dataclass(frozen=True)
class Examination:
    """The answer."""

    verdict: str  # "sick", "healthy" or "cannot tell"
    sentence: str  # what is wrong, how sure, what to change
    causes: tuple[tuple[str, float], ...]  # likeliest first, with their probabilities
    findings: tuple[str, ...]  # at most three sentences
    code: str  # what to paste; empty if there is nothing to change
    trial: Trial | None  # the cure that was tried and helped
    curve: tuple[float, ...]  # training losses as they are
    notes: tuple[str, ...]  # what could not be read
    seconds: float
    facts: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def alternatives(self) -> tuple[str, ...]:
        """What else it could be, in words; where nothing is named, what to look at first."""
        if self.verdict == "healthy":
            return ()
        listed = [key for key, _ in self.causes[:LISTED]]
        return tuple(in_words([key]) for key in listed if key != self.cause)

    @property
    def shortened(self) -> str:
        """What the time did not suffice for; empty where everything was done."""
        return str(self.facts.get("shortened", ""))

    @property
    def other(self) -> str:
        """The words before :attr:`alternatives`."""
        return "If that does not help" if self.verdict == "sick" else "Look first whether"

    @property
    def cause(self) -> str:
        """Key of the likeliest cause; empty where none is named."""
        return self.causes[0][0] if self.verdict == "sick" else ""

    def __str__(self) -> str:
        lines = [self.sentence, *(f"- {line}" for line in self.findings)]
        if self.alternatives:
            lines.append(f"{self.other}: {'; '.join(self.alternatives)}.")
        if self.shortened:
            lines.append(self.shortened)
        return "\n".join([*lines, *(["", self.code] if self.code else [])])

    def _repr_html_(self) -> str:
        """The answer as a notebook shows it."""
        return fragment(self)

    def write(self, path: str | Path) -> Path:
        """Write the answer as JSON, without its facts, whole or not at all; returns the path."""
        record = {
            "verdict": self.verdict,
            "sentence": self.sentence,
            "causes": self.causes,
            "findings": self.findings,
            "alternatives": self.alternatives,
            "code": self.code,
            "trial": vars(self.trial) if self.trial else None,
            "curve": self.curve,
            "notes": self.notes,
            "seconds": self.seconds,
        }
        write_atomically(Path(path), json.dumps(record, indent=1) + "\n")
        return Path(path)


def fragment(answer: Examination) -> str:
    """The answer as a piece of HTML: sentence, picture, code, then findings, other causes, what the
    time did not suffice for, and what could not be read, each where there is any.
    """
    parts = [f"<h1>{escape(answer.sentence)}</h1>", picture(answer)]
    if answer.code:
        parts.append(f"<pre><code>{escape(answer.code)}</code></pre>")
    if answer.findings:
        items = "".join(f"<li>{escape(line)}</li>" for line in answer.findings)
        parts.append(f"<ul>{items}</ul>")
    if answer.alternatives:
        parts.append(f"<p>{escape(answer.other)}: {escape('; '.join(answer.alternatives))}.</p>")
    if answer.shortened:
        parts.append(f"<p>{escape(answer.shortened)}</p>")
    if answer.notes:
        items = "".join(f"<li>{escape(line)}</li>" for line in answer.notes)
        parts.append(
            f"<details><summary>What could not be read</summary><ul>{items}</ul></details>"
        )
    return "\n".join(part for part in parts if part)


def page(answer: Examination) -> str:
    """The answer as a whole page of HTML, without scripts and files from elsewhere."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>mindgap examine: {escape(answer.verdict)}</title><style>{_STYLE}</style></head>\n"
        f"<body>\n{fragment(answer)}\n</body></html>\n"
    )


def standalone(answer: Examination, columns: int = 78) -> str:
    """The picture as a file of its own (SVG) with the sentence as its title; legible on light and
    on dark.

    Args:
        columns: characters per line of the title.
    """
    style = "<style>svg{color:#222}@media(prefers-color-scheme:dark){svg{color:#ddd}}</style>"
    lines = textwrap.wrap(answer.sentence, columns)  # 20 units high each
    title = "".join(
        f'<text x="8" y="{22 + 20 * k}" font-size="15" font-weight="600">{escape(line)}</text>'
        for k, line in enumerate(lines)
    )
    title_height = 16 + 20 * len(lines)
    height = _HEIGHT + title_height
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" '
        f'aria-label="{escape(answer.sentence)} {escape(_picture_in_words(answer))}" '
        f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'font-family="system-ui,sans-serif" font-size="13" fill="currentColor">{style}{title}'
        f'<g transform="translate(0 {title_height})">{_draw(answer)}</g></svg>\n'
    )


def picture(answer: Examination) -> str:
    """The training loss as it is and with the cure, on one logarithmic or linear axis, as SVG;
    empty where there are fewer than two finite points.
    """
    inside = _draw(answer)
    if not inside:
        return ""
    return (
        f'<svg role="img" aria-label="{escape(_picture_in_words(answer))}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" font-size="13" fill="currentColor">'
        f"{inside}</svg>"
    )


def _curves(answer: Examination) -> list[tuple[str, str, Sequence[float]]]:
    """Title, colour and losses of the run as it is and, where a cure helped, of the cured one."""
    colour = _SICK if answer.verdict == "sick" else _CURED
    curves: list[tuple[str, str, Sequence[float]]] = [("as it is", colour, answer.curve)]
    if answer.trial is not None and answer.trial.helps:
        curves.append(("with the cure", _CURED, answer.trial.curve))
    return curves


def _picture_in_words(answer: Examination) -> str:
    """First and last loss of each curve, for readers who do not see the picture."""
    words = []
    for name, _, curve in _curves(answer):
        losses = [loss for _, loss in _means_of_pieces(curve)]
        if losses:
            words.append(f"{name}: {losses[0]:.3g} to {losses[-1]:.3g}")
    return f"Training loss over {len(answer.curve)} steps; {'; '.join(words)}."


@dataclass(frozen=True)
class _Axes:
    """From steps and losses to places on the picture."""

    low: float  # the loss at the bottom
    high: float  # the loss at the top
    steps: int  # at the right end
    log: bool  # a logarithmic axis of losses

    def x(self, step: float) -> float:
        """Place of a step, from the left."""
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / self.steps

    def y(self, loss: float) -> float:
        """Place of a loss, from above."""
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, loss))
        return _FLOOR - (_FLOOR - _TOP) * (value - low) / max(high - low, 1e-12)


@dataclass(frozen=True, order=True)
class _Label:
    """Words at the right end of a line."""

    level: float  # place from above
    colour: str
    words: str
    weight: str = ""  # of the font


def _draw(answer: Examination) -> str:
    """The inside of the picture as SVG: axes, curves, their names at their ends, and the loss of
    the constant answer as a dotted line. Empty where there are fewer than two finite points. The
    axis of losses is logarithmic where they span more than a factor of 20.
    """
    curves = _curves(answer)
    values = [loss for _, _, curve in curves for _, loss in _means_of_pieces(curve)]
    if len(values) < 2:
        return ""
    constant = answer.facts.get("trivial", math.nan)
    has_constant = constant is not None and math.isfinite(constant)
    if has_constant:
        values.append(constant)
    low, high = min(values), max(values)
    log = low > 0 and high / low > 20
    ticks = _ticks(low, high, log)
    steps = max(len(curve) for _, _, curve in curves) or 1
    axes = _Axes(min(low, ticks[0]), max(high, ticks[-1]), steps, log)
    parts, labels = [_draw_axes(axes, ticks)], []
    for name, colour, curve in curves:
        line, label = _draw_curve(axes, name, colour, curve)
        parts.append(line)
        labels.append(label)
    if has_constant:
        level = axes.y(constant)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_EDGE}" y1="{level:.1f}" y2="{level:.1f}" '
            f'stroke="currentColor" stroke-dasharray="1.5 4.5" stroke-width="1.5"/>'
        )
        # Three digits, also where the last ones are zeros.
        words = f"constant answer {f'{constant:#.3g}'.rstrip('.')}"
        labels.append(_Label(level, "currentColor", words))
    for label in _move_apart(labels):
        bold = f' font-weight="{label.weight}"' if label.weight else ""
        parts.append(
            f'<text x="{_EDGE + 8}" y="{label.level + 4:.1f}" fill="{label.colour}"{bold}>'
            f"{escape(label.words)}</text>"
        )
    return "".join(parts)


def _draw_axes(axes: _Axes, ticks: list[float]) -> str:
    """Lines at the losses of the ticks with their numbers, and the steps below, as SVG."""
    lines = [
        f'<line x1="{_LEFT}" x2="{_EDGE}" y1="{axes.y(v):.1f}" y2="{axes.y(v):.1f}" '
        f'stroke="{_GREY}" stroke-opacity=".25"/><text x="{_LEFT - 6}" y="{axes.y(v) + 4:.1f}" '
        f'text-anchor="end">{v:g}</text>'
        for v in ticks
    ]
    return "".join(lines) + (
        f'<text x="{_LEFT}" y="{_FLOOR + 22}">step 0</text>'
        f'<text x="{_EDGE}" y="{_FLOOR + 22}" text-anchor="end">{axes.steps}</text>'
        f'<text x="{(_LEFT + _EDGE) // 2}" y="{_FLOOR + 22}" text-anchor="middle">'
        "training loss</text>"
    )


def _draw_curve(axes: _Axes, name: str, colour: str, curve: Sequence[float]) -> tuple[str, _Label]:
    """The line of a curve as SVG, with a cross where it stops being finite, and its label. The line
    is empty where no loss is finite.

    Args:
        curve: the loss of every step.
    """
    points = _means_of_pieces(curve)
    if not points:
        return "", _Label(_TOP + 4.0, colour, f"{name}: not finite", "600")
    places = " ".join(f"{axes.x(step):.1f},{axes.y(loss):.1f}" for step, loss in points)
    line = (
        f'<polyline fill="none" stroke="{colour}" stroke-width="2.5" stroke-linejoin="round" '
        f'points="{places}"/>'
    )
    step, loss = points[-1]
    words = name  # the sentence has the held-out losses; this is the training loss
    if not math.isfinite(curve[-1]):
        words = f"{name}: not finite"
        line += (
            f'<text x="{axes.x(step):.1f}" y="{axes.y(loss) + 5:.1f}" fill="{colour}" '
            f'font-weight="700" text-anchor="middle">×</text>'
        )
    return line, _Label(axes.y(loss), colour, words, "600")


def _move_apart(labels: list[_Label], distance: float = 17.0) -> list[_Label]:
    """The labels in order of their levels, moved so that none overlap and all stay on the picture.

    Args:
        distance: between two neighbours, at least.
    """
    ordered = sorted(labels)
    levels: list[float] = []
    for label in ordered:  # down the picture: each one below the one before it
        levels.append(max(label.level, levels[-1] + distance if levels else _TOP))
    lowest_free = float(_FLOOR)
    for i in reversed(range(len(levels))):  # up again: none below the floor
        levels[i] = min(levels[i], lowest_free)
        lowest_free = levels[i] - distance
    return [replace(label, level=level) for level, label in zip(levels, ordered)]


def _ticks(low: float, high: float, log: bool) -> list[float]:
    """Round numbers from below a range to above it: powers of ten on a logarithmic axis, with at
    most six steps between them, else multiples of a round step, about six of them.

    Example:
        >>> _ticks(0.03, 4.0, True), _ticks(0.1, 2.3, False)
        ([0.01, 0.1, 1.0, 10.0], [0.0, 0.5, 1.0, 1.5, 2.0, 2.5])
    """
    if log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        decades = max(1, math.ceil((last - first) / 6))  # between two ticks
        return [10.0**k for k in range(first, last + decades, decades)]
    reach = max(high - low, 1e-12)
    power = 10.0 ** math.floor(math.log10(reach))
    round_steps = (factor * power for factor in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0))
    step_size = next(step for step in round_steps if reach / step <= 6)
    first = math.floor(low / step_size)
    last = math.ceil(high / step_size - 1e-9)  # no further tick for an error of rounding
    return [round(k * step_size, 12) for k in range(first, last + 1)]


def _means_of_pieces(curve: Sequence[float], points: int = 60) -> list[tuple[int, float]]:
    """Cut a curve into at most ``points`` equally long pieces, and return the last step and the
    mean of the finite losses of each. Pieces without a finite loss are left out.
    """
    width = max(1, math.ceil(len(curve) / points))
    ends_and_means = []
    for begin in range(0, len(curve), width):
        finite = [loss for loss in curve[begin : begin + width] if math.isfinite(loss)]
        if finite:
            end = min(begin + width, len(curve))
            ends_and_means.append((end, sum(finite) / len(finite)))
    return ends_and_means


def sparkline(curve: Sequence[float], low: float, high: float, width: int = 40) -> str:
    """A curve in one line of text: one block per piece, at most ``width``, whose height shows where
    its mean lies between ``low`` and ``high``; ``×`` where no loss of the piece is finite.

    Example:
        >>> sparkline([3.0, 2.0, 1.0, float("nan")], 1.0, 3.0, width=4)
        '█▄▁×'
    """
    blocks = "▁▂▃▄▅▆▇█"
    piece_length = max(1.0, len(curve) / width)
    marks = []
    for i in range(min(width, len(curve))):
        begin, end = int(i * piece_length), int((i + 1) * piece_length)
        piece = curve[begin : max(begin + 1, end)]
        finite = [loss for loss in piece if math.isfinite(loss)]
        if not finite:
            marks.append("×")
            continue
        share = (sum(finite) / len(finite) - low) / max(high - low, 1e-12)
        marks.append(blocks[min(7, max(0, int(share * 7.999)))])  # below 8 for a share of 1
    return "".join(marks)
