"""A slope with teeth, on which the upper bounds of Theorems 3.4.1 and 3.4.3 are within a factor two of the truth.

The proofs turn every iteration into a decrease of at least h ε²/2. A straight slope of size ε decreases by h ε², so
it cannot show that half the bound is wrong. Here the slope is ε at every iterate and dips between two iterates as fast
as the curvature allows, so that every step gains less.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mindgap.base.check import fail
from mindgap.base.checked import Count, Positive
from mindgap.lab.theory.assumptions import RelaxedSmooth
from mindgap.lab.theory.function import Function, namespace


@dataclass(frozen=True)
class ToothedSlope(Function):
    """f' is periodic with period h·s: s at the grid points, falling and rising with slope ±L between them.

    For x > 0: f'(x) = s - L·max(0, dist(x, grid) - w), grid = {0, hs, 2hs, ...}; for x <= 0, f'(x) = s + L x, a
    quadratic with its minimum at -s/L. The flat top of half-width w = hs/20 keeps rounding errors from growing.
    Gradient descent with step h from x0 = n·h·s visits every grid point and gains s²h(1 - 0.81·hL/4) per step.

    Args:
        slope: s, slightly above the accuracy ε that is asked for.
        step: h of the method that the function is made for, h·L <= 1.
        L: bound of the curvature.
        teeth: n, number of steps from the start to 0.

    Example:
        >>> f = ToothedSlope(slope=0.1, step=0.5, L=1.0, teeth=4)
        >>> round(f.start, 9), round(float(f.gradient(f.start)), 9), round(float(f.gradient(f.start - 0.025)), 9)
        (0.2, 0.1, 0.0775)
    """

    slope: Positive
    step: Positive
    L: Positive
    teeth: Count

    def __post_init__(self) -> None:
        if self.step * self.L > 1:
            fail("step", f"must be at most 1/L = {1 / self.L:g}", self.step)

    @property
    def period(self) -> float:
        """h·s, the way that one step covers."""
        return self.step * self.slope

    @property
    def start(self) -> float:
        """x0, n teeth away from 0."""
        return self.teeth * self.period

    def _tooth(self, x: Any) -> tuple[Any, Any]:
        """Whole teeth behind x and the way into the current one, for x > 0."""
        xp = namespace(x)
        number = xp.floor(x / self.period)
        return number, x - number * self.period

    @property
    def _flat(self) -> float:
        return self.period / 20

    @property
    def _one(self) -> float:
        """The height of one tooth: s·hs less the triangle."""
        return self.slope * self.period - self.L * (self.period / 2 - self._flat) ** 2

    def _dip(self, t: Any) -> Any:
        """max(0, t - w)."""
        return namespace(t).where(t > self._flat, t - self._flat, t * 0)

    def value(self, x: Any) -> Any:
        xp, s, L, p = namespace(x), self.slope, self.L, self.period
        up = xp.where(x > 0, x, x * 0)
        number, t = self._tooth(up)
        falling = s * t - L * self._dip(t) ** 2 / 2
        rising = s * t - L * (p / 2 - self._flat) ** 2 + L * self._dip(p - t) ** 2 / 2
        right = number * self._one + xp.where(t <= p / 2, falling, rising)
        down = xp.where(x > 0, x * 0, x)
        left = s * down + L * down * down / 2
        return right + left + s * s / (2 * L)

    def gradient(self, x: Any) -> Any:
        xp, s, L, p = namespace(x), self.slope, self.L, self.period
        up = xp.where(x > 0, x, x * 0)
        _, t = self._tooth(up)
        return xp.where(x > 0, s - L * self._dip(xp.where(t <= p / 2, t, p - t)), s + L * x)

    @property
    def delta(self) -> float:
        """f(x0) - f*: n teeth and the quadratic end s²/(2L)."""
        return self.teeth * self._one + self.slope**2 / (2 * self.L)

    def constants(self, L0: float, L1: float) -> RelaxedSmooth:
        """(L0, L1, Δ, M = s); the curvature L must not exceed L0, because the gradient is 0 at the minimum."""
        if self.L > L0 * (1 + 1e-9):
            fail("L", f"must be at most L0 = {L0:g}", self.L)
        return RelaxedSmooth(L0=L0, L1=L1, delta=self.delta, M=self.slope)
