"""What shows a printed sentence to be false: an instance, the assumptions it meets, and by how much
the sentence fails.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from mindgap.base.check import one_of

Number = int | float | Fraction

#: What the printed sentence claims of the measured side -> the comparison, measured with printed,
#: that contradicts it.
CLAIMS: dict[str, Callable[[Number, Number], bool]] = {
    "at most": operator.gt,
    "at least": operator.lt,
    "equal to": operator.ne,
    "above": operator.le,
}


@dataclass(frozen=True)
class Certificate:
    """A counterexample with its checks.

    Args:
        instance: name -> the constants and functions, in words or numbers.
        assumptions: every assumption of the statement -> whether the instance meets it.
        measured: the side that the statement bounds, exact or a lower bound of it.
        printed: the side that is printed.
        claim: what the statement says of ``measured`` against ``printed``, one of ``CLAIMS``.
        method: how both were computed, in words.

    Example:
        >>> seen = Certificate({"x": 2}, {"x > 0": True}, 2, 1, "at most", "counting")
        >>> seen.valid, seen.ratio
        (True, 2.0)
        >>> Certificate({"x": -2}, {"x > 0": False}, 2, 1, "at most", "counting").valid
        False
    """

    instance: dict[str, str | Number]
    assumptions: dict[str, bool]
    measured: Number
    printed: Number
    claim: str
    method: str

    def __post_init__(self) -> None:
        one_of("claim", self.claim, CLAIMS)

    @property
    def contradicts(self) -> bool:
        """Whether the claim is false of the numbers: ``measured`` is not at most (at least, equal
        to, above) ``printed``. It does not ask whether the assumptions are met; ``valid`` does.
        """
        return CLAIMS[self.claim](self.measured, self.printed)

    @property
    def valid(self) -> bool:
        """Whether there are assumptions, all are met, and the statement is contradicted."""
        return bool(self.assumptions) and all(self.assumptions.values()) and self.contradicts

    @property
    def ratio(self) -> float:
        """Measured over printed; infinite where ``printed`` is 0."""
        return float(self.measured / self.printed) if self.printed else float("inf")

    def words(self, source: str = "printed") -> str:
        """Instance and margin in one sentence; ``source`` says where the bound comes from."""
        instance = ", ".join(f"{name} = {_short(value)}" for name, value in self.instance.items())
        return (
            f"{instance}: {_short(self.measured)} where {self.claim} {_short(self.printed)} is "
            f"{source} ({self.method})"
        )


def _short(value: str | Number) -> str:
    """Text as it is, an int below 10^7 in full, any other number with four significant digits."""
    if isinstance(value, str):
        return value
    short_int = isinstance(value, int) and abs(value) < 10**7
    return str(value) if short_int else f"{float(value):.4g}"
