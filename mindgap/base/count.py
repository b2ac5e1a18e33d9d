"""Counters of oracle calls, so that methods are compared at equal cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class OracleCount:
    """Counts calls by name; the counts go into a run's rows and into a budget.

    Example:
        >>> calls = OracleCount()
        >>> calls.add("grad"); calls.add("hvp", 3)
        >>> calls.total, calls.as_dict()
        (4, {'grad': 1, 'hvp': 3})
    """

    def __init__(self, start: Mapping[str, int] | None = None) -> None:
        self._counts: Counter[str] = Counter(dict(start or {}))

    def add(self, name: str, calls: int = 1) -> None:
        self._counts[name] += calls

    def __getitem__(self, name: str) -> int:
        return self._counts[name]

    @property
    def total(self) -> int:
        """Calls of all names together."""
        return sum(self._counts.values())

    def as_dict(self) -> dict[str, int]:
        """The counts, sorted by name: what goes into a checkpoint or a row."""
        return dict(sorted(self._counts.items()))
