"""Functions on which the bounds of chapter 3 are attained, or nearly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mindgap.base.check import between, fail
from mindgap.base.checked import Count, Positive
from mindgap.lab.theory.assumptions import RelaxedSmooth, accuracy
from mindgap.lab.theory.function import Function, namespace

# The two functions of 3.7.2 that make every fixed step slow, and a repair of the first one.
# *Differs from the paper*: the exponential function is said to be (1, L1)-smooth (3.10); its
# curvature at 0 is L1 while its gradient there is 0, so it is (L1, L1)-smooth and no better.
# ``HyperbolicCosine`` plays the same part for any (L0, L1).


@dataclass(frozen=True)
class ExponentialQuadratic(Function):
    """f(x) = e^(L1|x|)/(L1 e) for |x| > 1/L1, and L1 x²/2 + 1/(2 L1) between (thesis, 3.7.2, first
    display).

    f'(x) = sign(x) e^(L1|x|)/e outside, L1 x inside; f'' = L1·|f'| outside, L1 inside. From x0 =
    (log M + 1)/L1, where f'(x0) = M, gradient descent diverges for h > 2 x0 / M and converges for h
    < 2 x0 / M.

    Example:
        >>> f = ExponentialQuadratic(L1=2.0)
        >>> x0 = f.start(M=100.0)
        >>> round(float(f.gradient(x0)), 9), f.constants(M=100.0).L0
        (100.0, 2.0)
    """

    L1: Positive  # L1 >= 1 in the paper; any positive number here

    def value(self, x: Any) -> Any:
        """f(x), entry by entry: exponential for |x| > 1/L1, a parabola between."""
        xp = namespace(x)
        u = self.L1 * xp.abs(x)  # above 1 outside the parabola
        outside = _exponential_part(u) / self.L1
        return xp.where(u > 1, outside, u * u / (2 * self.L1) + 1 / (2 * self.L1))

    def gradient(self, x: Any) -> Any:
        """f'(x), entry by entry: exponential for |x| > 1/L1, linear between."""
        xp = namespace(x)
        u = self.L1 * xp.abs(x)
        return xp.sign(x) * xp.where(u > 1, _exponential_part(u), u)

    def curvature(self, x: Any) -> Any:
        """f''(x), entry by entry: exponential for |x| > 1/L1, else L1."""
        return self.L1 * _exponential_part(self.L1 * namespace(x).abs(x))

    def start(self, M: float) -> float:
        """x0 = (log M + 1)/L1, where |f'(x0)| = M; M > 1."""
        between("M", M, 1, math.inf, ends="()")
        return (math.log(M) + 1) / self.L1

    def longest_step(self, M: float) -> float:
        """2 x0 / M = (2 log M + 2)/(M L1): a longer fixed step diverges from x0."""
        return 2 * self.start(M) / M

    def constants(self, M: float) -> RelaxedSmooth:
        """(L0, L1, Δ, M) from x0: L0 = L1, Δ = M/L1 - 1/(2 L1)."""
        return RelaxedSmooth(L0=self.L1, L1=self.L1, delta=(M - 0.5) / self.L1, M=M)


def _exponential_part(u: Any) -> Any:
    """e^(u-1) where u > 1, else 1: finite everywhere, because autograd multiplies the branch that
    is not taken by zero.
    """
    xp = namespace(u)
    return xp.exp(xp.where(u > 1, u, u * 0 + 1) - 1)


@dataclass(frozen=True)
class SlowFunction(Function):
    """Slope 2ε outside [-1, 1], ε(6x² - x⁴)/4 inside: no gradient shows where the minimum is until
    the iterate is near.

    f'(x) = ε(3x - x³) inside, so |f'| <= 2ε everywhere and |f''| <= 3ε. Source: thesis, 3.7.2,
    second display.

    Example:
        >>> f = SlowFunction(epsilon=0.1)
        >>> x0 = f.start(delta=2.125)  # f(x0) - f* = 2Δ' + 5ε/4 with x0 = 1 + Δ'/ε
        >>> round(x0, 9), round(float(f.value(x0)), 9), round(float(f.gradient(x0)), 9)
        (11.0, 2.125, 0.2)
    """

    epsilon: Positive

    def value(self, x: Any) -> Any:
        """f(x), entry by entry: slope 2ε outside [-1, 1], a quartic inside, 5ε/4 at ±1."""
        xp = namespace(x)
        distance = xp.abs(x)
        inside = self.epsilon / 4 * (6 * x * x - x * x * x * x)
        outside = 2 * self.epsilon * (distance - 1) + 1.25 * self.epsilon
        return xp.where(distance > 1, outside, inside)

    def gradient(self, x: Any) -> Any:
        """f'(x), entry by entry: ±2ε outside [-1, 1], ε(3x - x³) inside."""
        xp = namespace(x)
        outside, inside = 2 * self.epsilon * xp.sign(x), self.epsilon * (3 * x - x * x * x)
        return xp.where(xp.abs(x) > 1, outside, inside)

    def curvature(self, x: Any) -> Any:
        """f''(x), entry by entry: 3ε(1 - x²) in [-1, 1], 0 outside."""
        xp = namespace(x)
        return xp.where(xp.abs(x) > 1, x * 0, 3 * self.epsilon * (1 - x * x))

    def start(self, delta: Positive) -> float:
        """The x0 >= 1 with f(x0) - f* = delta, at least 5ε/4, the value at 1."""
        if delta < 1.25 * self.epsilon:
            fail("delta", f"must be at least 5*epsilon/4 = {1.25 * self.epsilon:g}", delta)
        return 1 + (delta - 1.25 * self.epsilon) / (2 * self.epsilon)

    def constants(self, delta: float, L0: float = 1.0, L1: float = 1.0) -> RelaxedSmooth:
        """(L0, L1, Δ, M = 2ε): any L0 >= 3ε does."""
        accuracy(self.epsilon, below=L0 / 3 * (1 + 1e-12))  # ε = L0/3 passes in spite of rounding
        return RelaxedSmooth(L0=L0, L1=L1, delta=delta, M=2 * self.epsilon)


@dataclass(frozen=True)
class HyperbolicCosine(Function):
    """f(x) = (L0/L1²)·Σ_i cosh(L1 x_i): (L0, L1)-smooth with equality at 0, for any L0 and L1.

    f' = (L0/L1) sinh(L1 x), f'' = L0 cosh(L1 x) <= L0 + L1 |f'|. It repairs 3.7.2's first function
    for L0 < L1. Source: thesis, 3.7.2; this function is the library's own.

    Example:
        >>> f = HyperbolicCosine(L0=1.0, L1=10.0)
        >>> x0 = f.start(M=50.0)
        >>> round(float(f.gradient(x0)), 9)
        50.0
    """

    L0: Positive
    L1: Positive
    dimension: int = 1

    def value(self, x: Any) -> Any:
        """f(x), (L0/L1²)·Σ_i cosh(L1 x_i)."""
        terms = (self.L0 / self.L1**2) * namespace(x).cosh(self.L1 * x)
        return terms if self.dimension == 1 else terms.sum(-1)  # in one variable entry by entry

    def gradient(self, x: Any) -> Any:
        """∇f(x), entry by entry (L0/L1) sinh(L1 x)."""
        return (self.L0 / self.L1) * namespace(x).sinh(self.L1 * x)

    def curvature(self, x: Any) -> Any:
        """‖∇²f(x)‖ = L0 max_i cosh(L1 x_i): of every entry in one dimension, else along the last
        axis, which falls away.
        """
        xp = namespace(x)
        diagonal = self.L0 * xp.cosh(self.L1 * x)
        return diagonal if self.dimension == 1 else xp.amax(diagonal, -1)

    def start(self, M: Positive) -> float:
        """The x0 > 0 of one coordinate with |f'(x0)| = M."""
        return math.asinh(M * self.L1 / self.L0) / self.L1

    def longest_step(self, M: float) -> float:
        """2 x0 / M in one dimension: a longer fixed step diverges from x0."""
        return 2 * self.start(M) / M

    def constants(self, M: float) -> RelaxedSmooth:
        """(L0, L1, Δ, M) from x0 in one dimension: Δ = (L0/L1²)(cosh(L1 x0) - 1)."""
        # cosh(L1 x0) = √(1 + sinh²), with sinh(L1 x0) = M L1/L0.
        delta = (self.L0 / self.L1**2) * (math.hypot(1, M * self.L1 / self.L0) - 1)
        return RelaxedSmooth(L0=self.L0, L1=self.L1, delta=delta, M=M)


# A slope with teeth, on which the upper bounds of Theorems 3.4.1 and 3.4.3 are within a factor two
# of the truth. The proofs turn every iteration into a decrease of at least h ε²/2. A straight slope
# of size ε decreases by h ε², so it cannot show that half the bound is wrong. Here the slope is ε
# at every iterate and dips between two iterates as fast as the curvature allows, so that every step
# gains less.


@dataclass(frozen=True)
class ToothedSlope(Function):
    """f' is periodic with period h·s: s at the grid points, falling and rising with slope ±L
    between them.

    For x > 0: f'(x) = s - L·max(0, dist(x, grid) - w), grid = {0, hs, 2hs, ...}; for x <= 0, f'(x)
    = s + L x, a quadratic with its minimum at -s/L. f' is constant within w = hs/20 of a grid
    point, so that rounding errors do not grow. Gradient descent with step h from x0 = n·h·s visits
    every grid point and gains s²h(1 - 0.81·hL/4) per step.

    Example:
        >>> f = ToothedSlope(slope=0.1, step=0.5, L=1.0, teeth=4)
        >>> (
        ...     round(f.start, 9),
        ...     round(float(f.gradient(f.start)), 9),
        ...     round(float(f.gradient(f.start - 0.025)), 9),
        ... )
        (0.2, 0.1, 0.0775)
    """

    slope: Positive  # s, slightly above the accuracy ε that is asked for
    step: Positive  # h of the method that the function is made for, h·L <= 1
    L: Positive  # bound of the curvature
    teeth: Count  # n, number of steps from the start to 0

    def __post_init__(self) -> None:
        if self.step * self.L > 1:
            fail("step", f"must be at most 1/L = {1 / self.L:g}", self.step)

    @property
    def period(self) -> float:
        """h·s, the distance that one step covers."""
        return self.step * self.slope

    @property
    def start(self) -> float:
        """x0, n teeth away from 0."""
        return self.teeth * self.period

    def _tooth(self, x: Any) -> tuple[Any, Any]:
        """(number of whole teeth between 0 and x, the distance t from the last grid point to x),
        for x >= 0.
        """
        number = namespace(x).floor(x / self.period)
        return number, x - number * self.period

    @property
    def _flat(self) -> float:
        """w, half the width of the flat top at a grid point."""
        return self.period / 20

    @property
    def _tooth_rise(self) -> float:
        """By how much f rises over one tooth: s·hs less the area L (hs/2 - w)² of the dip of f'."""
        return self.slope * self.period - self.L * (self.period / 2 - self._flat) ** 2

    def _beyond_flat(self, distance: Any) -> Any:
        """max(0, distance - w), by how much a distance to the grid exceeds the flat top."""
        return namespace(distance).where(distance > self._flat, distance - self._flat, distance * 0)

    def value(self, x: Any) -> Any:
        """f(x), entry by entry: the integral of ``gradient``, with the minimum 0 at -s/L."""
        xp, s, L, period = namespace(x), self.slope, self.L, self.period
        right_of_0, left_of_0 = xp.where(x > 0, x, x * 0), xp.where(x > 0, x * 0, x)
        number, t = self._tooth(right_of_0)
        # ∫ f' over the distance t into the tooth: f' falls in the tooth's first half and rises in
        # its second.
        first_half = s * t - L * self._beyond_flat(t) ** 2 / 2
        whole_dip = L * (period / 2 - self._flat) ** 2
        second_half = s * t - whole_dip + L * self._beyond_flat(period - t) ** 2 / 2
        teeth = number * self._tooth_rise + xp.where(t <= period / 2, first_half, second_half)
        parabola = s * left_of_0 + L * left_of_0 * left_of_0 / 2
        return teeth + parabola + s * s / (2 * L)

    def gradient(self, x: Any) -> Any:
        """f'(x), entry by entry: s - L·max(0, distance to the grid - w) for x > 0, else s + L x.

        s is ``slope``, L the curvature; the grid is 0, period, 2·period, ..., and w, half the width
        of the flat top at a grid point, is period/20.
        """
        xp, s, L = namespace(x), self.slope, self.L
        # t: how far x lies behind the last grid point.
        _, t = self._tooth(xp.where(x > 0, x, x * 0))
        to_grid = xp.where(t <= self.period / 2, t, self.period - t)
        return xp.where(x > 0, s - L * self._beyond_flat(to_grid), s + L * x)

    @property
    def delta(self) -> float:
        """f(x0) - f*: n teeth and the quadratic end s²/(2L)."""
        return self.teeth * self._tooth_rise + self.slope**2 / (2 * self.L)

    def constants(self, L0: float, L1: float) -> RelaxedSmooth:
        """The record (L0, L1, Δ, M = s) of this function from ``start``.

        The curvature L must not exceed L0 (up to rounding), because the gradient is 0 at the
        minimum.
        """
        if self.L > L0 * (1 + 1e-9):
            fail("L", f"must be at most L0 = {L0:g}", self.L)
        return RelaxedSmooth(L0=L0, L1=L1, delta=self.delta, M=self.slope)
