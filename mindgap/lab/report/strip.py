"""The effect that decided each verdict on a network, with its interval: one strip per claim."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mindgap.record.outcomes import Effect, Outcome, short_title


@dataclass(frozen=True)
class Panel:
    """The effects of one unit on one axis.

    ``ticks`` are (place in percent, label); ``rows`` one per claim.
    """

    title: str
    ticks: tuple[tuple[float, str], ...]
    zero: float  # place of no effect, in percent
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Row:
    """One claim: places in percent; ``cut`` says at which ends the interval goes beyond the
    axis.
    """

    outcome: Outcome
    effect: Effect
    title: str
    at: float
    low: float
    high: float
    cut: str

    @property
    def width(self) -> float:
        return self.high - self.low

    @property
    def answer(self) -> str:
        """The part's answer; where the network is not trained nothing is answered."""
        return "untrained" if self.outcome.verdict.verdict == "not trained" else self.effect.answer

    @property
    def said(self) -> str:
        return {"open": "undecided", "untrained": "not trained"}.get(self.answer, self.answer)


#: Unit -> title of its panel, ends of its axis, ticks, whether the axis is logarithmic.
AXES = {
    "points": ("Differences, in points of 100", (-5.0, 5.0), (-5, -2.5, 0, 2.5, 5), False),
    "ratio": ("Ratios", (0.5, 2.0), (0.5, 0.7, 1, 1.4, 2), True),
    "correlation": ("Rank correlations", (-1.0, 1.0), (-1, -0.5, 0, 0.5, 1), False),
}


def strips(outcomes: Sequence[Outcome]) -> tuple[list[Panel], list[Outcome]]:
    """One panel per unit for all claims about networks, and those claims that have no interval."""
    on_networks = [o for o in outcomes if o.kind != "formula" and not o.description.ours]
    panels = []
    for unit, (title, (first, last), ticks, log) in AXES.items():

        def place(value: float, first: float = first, last: float = last, log: bool = log) -> float:
            if log:
                value, first, last = (math.log(max(v, 1e-9)) for v in (value, first, last))
            return 100 * min(max((value - first) / (last - first), 0.0), 1.0)

        rows = tuple(
            Row(
                o,
                e,
                short_title(o.name, o.description.title),
                round(place(e.value), 1),
                round(place(e.low), 1),
                round(place(e.high), 1),
                ("left " if min(e.low, e.value) < first else "")
                + ("right" if max(e.high, e.value) > last else ""),
            )
            for o in on_networks
            if (e := o.effect) is not None and e.unit == unit
        )
        if rows:
            named = tuple((place(t), f"{t:g}".replace("-", "−")) for t in ticks)
            panels.append(Panel(title, named, place(1.0 if log else 0.0), rows))
    return panels, [o for o in on_networks if o.effect is None]
