"""Numbers that change with the step: thresholds on a schedule, and the draws of the
interpolated methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mindgap.base.check import number, positive
from mindgap.base.rng import stream_seed

#: Arithmetic is modulo 2⁶⁴; the other numbers are those of SplitMix64 (Steele, Lea, Flood, 2014).
_MASK = 2**64 - 1
_STRIDE, _MIX_1, _MIX_2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


@dataclass(frozen=True)
class PowerSchedule:
    """k ↦ scale·k^exponent with k = 1, 2, …; unlike a lambda it can be pickled.

    Args:
        scale: value at the first step.
        exponent: any real number; 1/α gives the thresholds that the proof of Theorem 1 of acclip
            uses.

    Example:
        >>> [PowerSchedule(2.0, 0.5)(k) for k in (1, 4, 9)]
        [2.0, 4.0, 6.0]

    Source: acclip, Thm 1 (its proof has τ_k = G·k^(1/α)); thesis, Thm 4.4.2.
    """

    scale: float
    exponent: float

    def __post_init__(self) -> None:
        positive("scale", self.scale)
        number("exponent", self.exponent)

    def __call__(self, k: int) -> float:
        return self.scale * float(k) ** self.exponent


def value_at(value: Any, k: int) -> Any:
    """A setting at step k: a function of the step is called, anything else is itself.

    Example:
        >>> value_at(3.0, 7), value_at(lambda k: 2.0 * k, 7)
        (3.0, 14.0)
    """
    return value(k) if callable(value) else value


def unit_draw(seed: int, k: int) -> float:
    """The k-th number, uniform on [0, 1), of the sequence with that seed.

    It is a hash of (seed, k), by the generator SplitMix64, whose state is a counter. So the whole
    state of the sequence is the pair (seed, k), which every process of a distributed run has and
    every checkpoint keeps.

    Example:
        >>> (
        ...     0 <= unit_draw(0, 1) < 1,
        ...     unit_draw(0, 1) == unit_draw(0, 1),
        ...     unit_draw(0, 1) == unit_draw(0, 2),
        ... )
        (True, True, False)
    """
    z = (draw_base(seed) + k * _STRIDE) & _MASK
    z = ((z ^ (z >> 30)) * _MIX_1) & _MASK
    z = ((z ^ (z >> 27)) * _MIX_2) & _MASK
    # The upper 53 of 64 bits: as many as a float holds.
    return ((z ^ (z >> 31)) >> 11) * 2.0**-53


@lru_cache
def draw_base(seed: int) -> int:
    """Where the counter of the sequence with that seed starts."""
    return stream_seed(seed, "interpolation")
