"""A verdict made of several parts: each holds, is refuted or stays open, and says so with its numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mindgap.lab.studies.verdict import Interval, mean_interval
from mindgap.record.schema import Verdict


@dataclass
class Findings:
    """The parts found so far.

    All must hold for the whole to hold; one that is refuted refutes it; otherwise it is inconclusive.

    Attributes:
        holds, refuted: of the parts so far.
        usable: False makes the whole inconclusive whatever its parts say.
        words, numbers: what the verdict will print and keep.

    Example:
        >>> found = Findings()
        >>> found.ratio("grows", [2.0, 2.1, 2.05], [1.0, 1.0, 1.0], 1.0)
        >>> found.verdict().verdict, found.verdict().measured
        ('holds', 'grows: yes (ratio 2.05 [1.93, 2.18])')
    """

    holds: bool = True
    refuted: bool = False
    usable: bool = True
    words: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, holds: bool, refuted: bool, words: str, numbers: Any) -> None:
        """One part."""
        self.holds &= holds
        self.refuted |= refuted
        self.say(f"{name}: {'yes' if holds else 'no' if refuted else 'open'} ({words})", name, numbers)

    def say(self, words: str, name: str = "", numbers: Any = None) -> None:
        """Something that is not judged."""
        self.words.append(words)
        if name:
            self.numbers[name] = numbers

    def ratio(self, name: str, over: Sequence[float], under: Sequence[float], least: float) -> None:
        """A part: the first lies above ``least`` times the second, by a 95 % interval for the log of their ratio."""
        found = log_ratio(over, under)
        self.add(name, found.low > math.log(least), found.high < math.log(least), shown(found), as_ratios(found))

    def below(self, name: str, ours: Sequence[float], rivals: Sequence[float], negligible: float, parts: int) -> None:
        """A part: the first are smaller, the 95 % interval for the log of the ratio lies below 0.

        Refuted where less than the share ``negligible`` is saved, by an interval that errs in one of 20 studies of so
        many ``parts``.
        """
        found, wide = log_ratio(ours, rivals), log_ratio(ours, rivals, miss=0.05 / parts)
        none = wide.low > math.log1p(-negligible)
        self.add(name, found.high < 0 and not none, none, shown(found), as_ratios(found))

    def verdict(self) -> Verdict:
        """The whole."""
        found = "does not hold" if self.refuted else "holds" if self.holds else "inconclusive"
        return Verdict(found if self.usable else "inconclusive", "; ".join(self.words), self.numbers)


def log_ratio(over: Sequence[float], under: Sequence[float], *, miss: float = 0.05) -> Interval:
    """Interval for the mean log of the ratio of paired positive values."""
    return mean_interval(np.log(np.maximum(over, 1e-12)) - np.log(np.maximum(under, 1e-12)), miss=miss)


def as_ratios(found: Interval) -> dict[str, float]:
    """The interval of a log as one of ratios, kept finite."""
    values = (math.exp(min(max(v, -700.0), 700.0)) for v in (found.mean, found.low, found.high))
    return dict(zip(("ratio", "low", "high"), values))


def shown(found: Interval) -> str:
    """The interval of a log in words."""
    return "ratio {ratio:.3g} [{low:.3g}, {high:.3g}]".format(**as_ratios(found))
