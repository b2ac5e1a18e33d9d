"""The chart: findings with their strength, facts that cures need, and notes on what failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One thing that was seen."""

    name: str  # a key that the table of causes weighs
    strength: float  # between 0 (absent) and 1
    sentence: str  # with its number and its place


@dataclass
class Chart:
    """Everything that is known about a patient."""

    findings: dict[str, Finding] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def find(self, name: str, strength: float, sentence: str) -> None:
        """Add a finding; the stronger one stays where two readings give the same."""
        strength = min(1.0, max(0.0, float(strength)))
        known = self.findings.get(name)
        if strength > 0 and (known is None or known.strength < strength):
            self.findings[name] = Finding(name, strength, sentence)

    def has(self, name: str) -> bool:
        return name in self.findings

    def attempt(self, what: str, reading: Callable[[], Any]) -> Any:
        """Call a reading; an error becomes a note and None."""
        try:
            return reading()
        except Exception as error:
            first = str(error).strip().splitlines()
            text = f"{type(error).__name__}: {first[0] if first else ''}"
            self.notes.append(f"{what} could not be read ({text[:120]})")
            return None


def ramp(value: float, low: float, high: float) -> float:
    """0 below ``low``, 1 above ``high``, linear between; turned round where ``low`` > ``high``.

    Example:
        >>> ramp(5, 0, 10), ramp(1, 4, 2)
        (0.5, 1.0)
    """
    return min(1.0, max(0.0, (value - low) / (high - low)))


def middle(values: Iterable[float]) -> float:
    """The median; of an even number of values the upper one of the two in the middle.

    Example:
        >>> middle([3.0, 1.0, 2.0, 9.0])
        3.0
    """
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
