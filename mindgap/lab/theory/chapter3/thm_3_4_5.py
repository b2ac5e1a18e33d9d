"""Theorem 3.4.5: stochastic gradient descent with a fixed step and bounded noise.

*Differs from the paper*: the statement lost a square. The proof ends with P{(1/T) Σ‖∇f‖² > 2A/√T} <= 1/2 where
A = f(x0) - f* + (5 L0 + 4 L1 M)(M + τ)²/2, which asks for T >= 4A²/ε⁴; printed is (... )/ε⁴ without the square.
A slope longer than the noise is large refutes the printed bound (a test). M must bound the gradient
everywhere, not only on the sublevel set, because the iteration may climb; the theorem does not list it.
"""

from __future__ import annotations

import math

from mindgap.base.check import whole
from mindgap.lab.theory.assumptions import BoundedNoise, RelaxedSmooth, accuracy


def sgd_step(a: RelaxedSmooth, noise: BoundedNoise, horizon: int) -> float:
    """h = min{1/√T, 1/(L1 (M + τ))}.

    Example:
        >>> sgd_step(RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0, M=1.0), BoundedNoise(tau=1.0), horizon=100)
        0.1

    Source: thesis, Theorem 3.4.5.
    """
    whole("horizon", horizon, least=1)
    return min(1 / math.sqrt(horizon), 1 / (a.need_l1() * (a.need_m() + noise.tau)))


def sgd_bound(a: RelaxedSmooth, noise: BoundedNoise, epsilon: float) -> float:
    """Iterations after which ‖∇f(x_k)‖ <= ε has happened with probability at least 1/2, as proved.

    max{(2(f(x0) - f*) + (5 L0 + 4 L1 M)(M + τ)²)²/ε⁴, L1² (M + τ)²}; the second term makes 1/√T the smaller step,
    which the proof takes for granted.

    Example:
        >>> sgd_bound(RelaxedSmooth(L0=1.0, L1=1.0, delta=2.0, M=1.0), BoundedNoise(tau=1.0), epsilon=1.0)
        1600.0

    Source: thesis, 3.7.5.
    """
    accuracy(epsilon)
    M = a.need_m()
    c = (5 * a.L0 + 4 * a.need_l1() * M) * (M + noise.tau) ** 2
    return max((2 * a.delta + c) ** 2 / epsilon**4, (a.L1 * (M + noise.tau)) ** 2)
