"""The effect that decided each verdict on a network, with its interval: one strip per claim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mindgap.record.outcomes import Effect, Outcome, short_title


@dataclass(frozen=True)
class Panel:
    """The effects of one unit on one axis."""

    title: str
    ticks: tuple[tuple[float, str], ...]  # place in percent of the axis, label
    zero: float  # place of no effect, in percent of the axis
    rows: tuple[Row, ...]  # one per claim


@dataclass(frozen=True)
class Row:
    """One claim: its effect and interval as places in percent of the axis."""

    outcome: Outcome
    effect: Effect
    title: str
    at: float  # place of the effect
    low: float  # place of the interval's lower end
    high: float  # place of its upper end
    cut: str  # ends at which the interval goes beyond the axis: "", "left ", "right" or both

    @property
    def width(self) -> float:
        """Length of the interval in percent of the axis."""
        return self.high - self.low

    @property
    def answer(self) -> str:
        """The part's answer; where the network is not trained nothing is answered."""
        return "untrained" if self.outcome.verdict.verdict == "not trained" else self.effect.answer

    @property
    def said(self) -> str:
        """The answer in words."""
        return {"open": "undecided", "untrained": "not trained"}.get(self.answer, self.answer)


@dataclass(frozen=True)
class Axis:
    """The axis of one unit."""

    title: str
    low: float
    high: float
    ticks: tuple[float, ...]
    log: bool = False

    def percent(self, value: float) -> float:
        """The place of a value between the ends, in percent; beyond an end it is that end's."""
        low, high = self.low, self.high
        if self.log:  # 1e-9 in place of 0, which has no logarithm
            value, low, high = (math.log(max(number, 1e-9)) for number in (value, low, high))
        return 100 * min(max((value - low) / (high - low), 0.0), 1.0)


#: Unit -> its axis.
AXES = {
    "points": Axis("Differences, in points of 100", -5.0, 5.0, (-5, -2.5, 0, 2.5, 5)),
    "ratio": Axis("Ratios", 0.5, 2.0, (0.5, 0.7, 1, 1.4, 2), log=True),
    "correlation": Axis("Rank correlations", -1.0, 1.0, (-1, -0.5, 0, 0.5, 1)),
}


def strips(outcomes: Sequence[Outcome]) -> tuple[list[Panel], list[Outcome]]:
    """The papers' claims about networks, sorted by whether their verdict rests on an effect.

    Returns:
        One panel per unit of effects that occurs, and the outcomes without an effect.
    """
    on_networks = [
        outcome
        for outcome in outcomes
        if outcome.kind != "formula" and not outcome.description.ours
    ]
    panels = []
    for unit, axis in AXES.items():
        rows = tuple(
            _row(outcome, outcome.effect, axis)
            for outcome in on_networks
            if outcome.effect is not None and outcome.effect.unit == unit
        )
        if rows:
            # No effect is a ratio of 1, or a difference or correlation of 0.
            ticks = tuple(
                (axis.percent(tick), f"{tick:g}".replace("-", "−")) for tick in axis.ticks
            )
            panels.append(Panel(axis.title, ticks, axis.percent(1.0 if axis.log else 0.0), rows))
    return panels, [outcome for outcome in on_networks if outcome.effect is None]


def _row(outcome: Outcome, effect: Effect, axis: Axis) -> Row:
    """The row of one claim on the axis of its unit, in percent of the axis; ``cut`` names the ends
    beyond which effect or interval reach.
    """
    return Row(
        outcome,
        effect,
        title=short_title(outcome.name, outcome.description.title),
        at=round(axis.percent(effect.value), 1),
        low=round(axis.percent(effect.low), 1),
        high=round(axis.percent(effect.high), 1),
        cut=("left " if min(effect.low, effect.value) < axis.low else "")
        + ("right" if max(effect.high, effect.value) > axis.high else ""),
    )
