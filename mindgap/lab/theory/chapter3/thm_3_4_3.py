"""Theorem 3.4.3: gradient descent with a fixed step, when the gradient is bounded by M on the sublevel set."""

from __future__ import annotations

from mindgap.lab.theory.assumptions import RelaxedSmooth, accuracy


def gd_step(a: RelaxedSmooth) -> float:
    """h = 1 / (2 (M L1 + L0)).

    Example:
        >>> gd_step(RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0, M=9.0))
        0.05

    Source: thesis, Theorem 3.4.3.
    """
    return 1 / (2 * (a.need_m() * a.L1 + a.L0))


def gd_bound(a: RelaxedSmooth, epsilon: float) -> float:
    """Most iterations until ‖∇f(x_t)‖ <= ε: 4 (M L1 + L0) Δ / ε².

    The proof's own inequality gives 8/3 in place of 4; ``ToothedSlope`` needs more than 2.

    Example:
        >>> round(gd_bound(RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0, M=9.0), epsilon=0.1), 9)
        4000.0

    Source: thesis, Theorem 3.4.3.
    """
    accuracy(epsilon)
    return 4 * (a.need_m() * a.L1 + a.L0) * a.delta / epsilon**2
