"""The constants that the thesis' theorems of chapters 3 and 4 assume, as records that refuse
impossible values.

One record per assumption set; every field is checked once, when the record is made, so that the
step sizes and bounds need no checks of their own. Standard library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mindgap.base.check import fail, non_negative, positive
from mindgap.base.checked import NonNegative, Order, Positive, check_arguments


def accuracy(epsilon: float, *, below: float = math.inf) -> float:
    """Return a target accuracy unchanged, or refuse it.

    Args:
        epsilon: the accuracy, which must be positive.
        below: the constant of the problem that it must stay below; infinite for none.

    Example:
        >>> accuracy(2.0, below=1.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: epsilon must be below 1, got 2.0
    """
    if not positive("epsilon", epsilon) < below:
        fail("epsilon", f"must be below {below:g}", epsilon)
    return epsilon


@dataclass(frozen=True)
class RelaxedSmooth:
    """(L0, L1)-smoothness from a starting point: Assumptions 3.3.1 to 3.3.3, with 3.4.1 where M is
    given.

    ‖∇²f(x)‖ <= L0 + L1 ‖∇f(x)‖ and f(x0) - f* = Δ; M bounds ‖∇f‖ on {f <= f(x0)}.

    Example:
        >>> RelaxedSmooth(L0=1.0, L1=2.0, delta=3.0).L1
        2.0
        >>> RelaxedSmooth(L0=-1.0, L1=2.0, delta=3.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: L0 must be positive and finite, got -1.0
    """

    L0: Positive
    L1: NonNegative
    delta: Positive
    M: Positive | None = None

    def need_m(self) -> float:
        """Return M, the bound of ‖∇f‖ on {f <= f(x0)}.

        Raises:
            RuleError: M is None.
        """
        if self.M is None:
            fail("M", "must be given for this theorem (Assumption 3.4.1)", None)
        return self.M

    def need_l1(self) -> float:
        """Return L1, or refuse L1 = 0: some theorems divide by it."""
        return positive("L1", self.L1)


@dataclass(frozen=True)
class BoundedNoise:
    """‖g(x) - ∇f(x)‖ <= τ almost surely (Assumption 3.4.2).

    Example:
        >>> BoundedNoise(tau=0.5)
        BoundedNoise(tau=0.5)
    """

    tau: Positive


@dataclass(frozen=True)
class HeavyTail:
    """L-smooth f with noise of bounded α-moment: Assumptions 4.4.1 and 4.4.2.

    E‖g(x) - ∇f(x)‖^α <= σ^α with 1 < α <= 2, f is L-smooth and f(x0) - f* = Δ.

    Example:
        >>> HeavyTail(alpha=2.5, sigma=1.0, L=1.0, delta=1.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: alpha must lie in (1, 2], got 2.5
    """

    alpha: Order
    sigma: Positive
    L: Positive
    delta: Positive


@dataclass(frozen=True)
class StronglyConvexMoment:
    """μ-strongly convex f whose stochastic gradients have a bounded α-moment: Assumptions 4.4.3 and
    4.4.4.

    E‖g(x)‖^α <= G^α with 1 < α <= 2.

    Example:
        >>> StronglyConvexMoment(alpha=1.5, G=1.0, mu=0.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: mu must be positive and finite, got 0.0
    """

    alpha: Order
    G: Positive
    mu: Positive


@dataclass(frozen=True)
class CoordinateMoment:
    """μ-strongly convex f with E|g_i(x)|^α <= B_i^α for every coordinate: Assumption 4.5.1.

    Example:
        >>> CoordinateMoment(alpha=2.0, B=(3.0, 4.0), mu=1.0).norm(2)
        5.0

    Source: thesis, Assumption 4.5.1; acclip, Assumption 2.
    """

    alpha: Order  # α
    B: tuple[float, ...]  # B_i of every coordinate, at least 0 and not all 0
    mu: Positive  # μ

    def __post_init__(self) -> None:
        if not isinstance(self.B, tuple) or not self.B:
            fail("B", "must be a non-empty tuple of numbers", self.B)
        for i, bound in enumerate(self.B):
            non_negative(f"B[{i}]", bound)
        if not any(self.B):
            fail("B", "must have a positive entry", self.B)

    @property
    def dimension(self) -> int:
        """d, the number of coordinates."""
        return len(self.B)

    def norm(self, a: float) -> float:
        """‖B‖_a = (Σ B_i^a)^(1/a), the a-norm of the bounds."""
        return math.fsum(b**a for b in self.B) ** (1 / a)


check_arguments(__name__)
