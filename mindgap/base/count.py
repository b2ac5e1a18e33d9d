"""Counters of oracle calls, so that methods are compared at equal cost."""

from __future__ import annotations

from collections import Counter


class OracleCount:
    """Counts calls by name; the counts go into a run's rows and into a budget.

    Example:
        >>> calls = OracleCount()
        >>> calls.add("grad")
        >>> calls.add("hvp", 3)
        >>> calls.add_together(("grad", "hvp"))
        >>> calls.total, calls.as_dict()
        (6, {'grad': 2, 'hvp': 4})
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._together: Counter[tuple[str, ...]] = Counter()  # calls of each of some names

    def add(self, name: str, calls: int = 1) -> None:
        """Count this many calls of a name."""
        self._counts[name] += calls

    def add_together(self, names: tuple[str, ...]) -> None:
        """Count one call of each name, as a single entry that is spread over the names later: this
        runs in every iteration of a method.
        """
        self._together[names] += 1

    def _spread_together(self) -> Counter[str]:
        """Calls by name, after those that were counted together are spread over their names."""
        for names, calls in self._together.items():
            for name in names:
                self._counts[name] += calls
        self._together.clear()
        return self._counts

    def __getitem__(self, name: str) -> int:
        """Calls of this name so far."""
        return self._spread_together()[name]

    @property
    def total(self) -> int:
        """Calls of all names together."""
        return sum(self._spread_together().values())

    def as_dict(self) -> dict[str, int]:
        """The counts, sorted by name: what goes into a checkpoint or a row."""
        return dict(sorted(self._spread_together().items()))
