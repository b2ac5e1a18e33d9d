"""What an attack on a statement is: a family of instances for one reading of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mindgap.lab.theory.certificate import Certificate

Parameters = Mapping[str, float]


@dataclass(frozen=True)
class Attack:
    """One family of instances against one reading of a statement.

    Args:
        place: the statement, as the table of theorems names it.
        reading: "as printed", "as corrected", or what else was changed.
        family: the instances, in words.
        ranges: parameter -> its smallest and largest value, both positive; searched on a log
            scale.
        attempt: parameters -> a certificate (valid or not), or None outside the assumptions.
        points: how many values of each parameter the grid has.
    """

    place: str
    reading: str
    family: str
    ranges: Mapping[str, tuple[float, float]]
    attempt: Callable[[Parameters], Certificate | None]
    points: int = 3
