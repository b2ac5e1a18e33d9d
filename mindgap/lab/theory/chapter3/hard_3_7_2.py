"""The two functions of 3.7.2 that make every fixed step slow, and a repair of the first one.

*Differs from the paper*: the exponential function is said to be (1, L1)-smooth (3.10); its curvature at 0 is L1 while
its gradient there is 0, so it is (L1, L1)-smooth and no better. ``HyperbolicCosine`` plays the same part for any
(L0, L1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mindgap.base.check import between, fail, positive
from mindgap.base.checked import Positive
from mindgap.lab.theory.assumptions import RelaxedSmooth, accuracy
from mindgap.lab.theory.function import Function, namespace


@dataclass(frozen=True)
class ExponentialQuadratic(Function):
    """f(x) = e^(L1|x|)/(L1 e) for |x| > 1/L1, and L1 x²/2 + 1/(2 L1) between.

    f'(x) = sign(x) e^(L1|x|)/e outside, L1 x inside; f'' = L1·|f'| outside, L1 inside. From x0 = (log M + 1)/L1,
    where f'(x0) = M, gradient descent diverges for h > 2 x0 / M and converges for h < 2 x0 / M.

    Args:
        L1: L1 >= 1 in the paper; any positive number here.

    Example:
        >>> f = ExponentialQuadratic(L1=2.0)
        >>> x0 = f.start(M=100.0)
        >>> round(float(f.gradient(x0)), 9), f.constants(M=100.0).L0
        (100.0, 2.0)

    Source: thesis, 3.7.2, first display.
    """

    L1: Positive

    def value(self, x: Any) -> Any:
        xp = namespace(x)
        u = self.L1 * xp.abs(x)
        # The branch that is not taken must stay finite: autograd multiplies it by zero.
        outside = xp.exp(xp.where(u > 1, u, u * 0 + 1) - 1) / self.L1
        return xp.where(u > 1, outside, u * u / (2 * self.L1) + 1 / (2 * self.L1))

    def gradient(self, x: Any) -> Any:
        xp = namespace(x)
        u = self.L1 * xp.abs(x)
        return xp.sign(x) * xp.where(u > 1, xp.exp(xp.where(u > 1, u, u * 0 + 1) - 1), u)

    def curvature(self, x: Any) -> Any:
        """f''(x)."""
        xp = namespace(x)
        u = self.L1 * xp.abs(x)
        return self.L1 * xp.where(u > 1, xp.exp(xp.where(u > 1, u, u * 0 + 1) - 1), u * 0 + 1)

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


@dataclass(frozen=True)
class SlowFunction(Function):
    """Slope 2ε outside [-1, 1], ε(6x² - x⁴)/4 inside: no gradient shows where the minimum is until the iterate is near.

    f'(x) = ε(3x - x³) inside, so |f'| <= 2ε everywhere and |f''| <= 3ε.

    Args:
        epsilon: the accuracy that is asked for.

    Example:
        >>> f = SlowFunction(epsilon=0.1)
        >>> x0 = f.start(delta=2.125)                       # f(x0) - f* = 2Δ' + 5ε/4 with x0 = 1 + Δ'/ε
        >>> round(x0, 9), round(float(f.value(x0)), 9), round(float(f.gradient(x0)), 9)
        (11.0, 2.125, 0.2)

    Source: thesis, 3.7.2, second display.
    """

    epsilon: Positive

    def value(self, x: Any) -> Any:
        xp = namespace(x)
        u = xp.abs(x)
        inside = self.epsilon / 4 * (6 * x * x - x * x * x * x)
        return xp.where(u > 1, 2 * self.epsilon * (u - 1) + 1.25 * self.epsilon, inside)

    def gradient(self, x: Any) -> Any:
        xp = namespace(x)
        return xp.where(xp.abs(x) > 1, 2 * self.epsilon * xp.sign(x), self.epsilon * (3 * x - x * x * x))

    def curvature(self, x: Any) -> Any:
        """f''(x) = 3ε(1 - x²) inside, 0 outside."""
        xp = namespace(x)
        return xp.where(xp.abs(x) > 1, x * 0, 3 * self.epsilon * (1 - x * x))

    def start(self, delta: float) -> float:
        """The x0 >= 1 with f(x0) - f* = delta."""
        positive("delta", delta)
        if delta < 1.25 * self.epsilon:
            fail("delta", f"must be at least 5*epsilon/4 = {1.25 * self.epsilon:g}", delta)
        return 1 + (delta - 1.25 * self.epsilon) / (2 * self.epsilon)

    def constants(self, delta: float, L0: float = 1.0, L1: float = 1.0) -> RelaxedSmooth:
        """(L0, L1, Δ, M = 2ε): any L0 >= 3ε does."""
        accuracy(self.epsilon, below=L0 / 3 * (1 + 1e-12))
        return RelaxedSmooth(L0=L0, L1=L1, delta=delta, M=2 * self.epsilon)


@dataclass(frozen=True)
class HyperbolicCosine(Function):
    """f(x) = (L0/L1²)·Σ_i cosh(L1 x_i): (L0, L1)-smooth with equality at 0, for any L0 and L1.

    f' = (L0/L1) sinh(L1 x), f'' = L0 cosh(L1 x) <= L0 + L1 |f'|. It repairs 3.7.2's first function for L0 < L1.

    Args:
        L0: curvature at 0.
        L1: growth.
        dimension: number of coordinates.

    Example:
        >>> f = HyperbolicCosine(L0=1.0, L1=10.0)
        >>> x0 = f.start(M=50.0)
        >>> round(float(f.gradient(x0)), 9)
        50.0

    Source: thesis, 3.7.2; this function is the library's own.
    """

    L0: Positive
    L1: Positive
    dimension: int = 1

    def value(self, x: Any) -> Any:
        xp = namespace(x)
        v = (self.L0 / self.L1**2) * xp.cosh(self.L1 * x)
        return v if self.dimension == 1 else v.sum(-1)

    def gradient(self, x: Any) -> Any:
        return (self.L0 / self.L1) * namespace(x).sinh(self.L1 * x)

    def curvature(self, x: Any) -> Any:
        """‖∇²f(x)‖ = L0 max_i cosh(L1 x_i)."""
        xp = namespace(x)
        c = self.L0 * xp.cosh(self.L1 * x)
        return c if self.dimension == 1 else xp.amax(c, -1)

    def start(self, M: float) -> float:
        """The x0 > 0 of one coordinate with |f'(x0)| = M."""
        positive("M", M)
        return math.asinh(M * self.L1 / self.L0) / self.L1

    def longest_step(self, M: float) -> float:
        """2 x0 / M in one dimension: a longer fixed step diverges from x0."""
        return 2 * self.start(M) / M

    def constants(self, M: float) -> RelaxedSmooth:
        """(L0, L1, Δ, M) from x0 in one dimension: Δ = (L0/L1²)(cosh(L1 x0) - 1)."""
        delta = (self.L0 / self.L1**2) * (math.hypot(1, M * self.L1 / self.L0) - 1)
        return RelaxedSmooth(L0=self.L0, L1=self.L1, delta=delta, M=M)
