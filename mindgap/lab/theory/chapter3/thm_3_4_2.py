"""Theorem 3.4.2: no fixed step is fast on the whole class; it must be short for one function and then fails on another.

*Differs from the paper*: with x0 = 1 + Δ'/ε the slow function has f(x0) - f* = 2Δ' + 5ε/4, so the proof gives
(Δ - 5ε/4) where the theorem has (Δ - 5ε/8). The exponential function needs L0 >= L1, not L0 >= 1 (see
``hard_3_7_2``), and the slow one ε <= L0/3. ``repaired_lower_bound`` runs the same argument with
``HyperbolicCosine`` and holds for every L0 and L1.
"""

from __future__ import annotations

import math

from mindgap.base.check import fail
from mindgap.lab.theory.assumptions import RelaxedSmooth, accuracy


def fixed_step_lower_bound(a: RelaxedSmooth, epsilon: float) -> float:
    """Least iterations of the best fixed step on the worst function: L1 M (Δ - 5ε/4) / (8 ε² (log M + 1)).

    Args:
        a: L0 >= L1 >= 1, M > 1 and Δ are used.
        epsilon: accuracy, at most L0/3.

    Raises:
        RuleError: when a constant is outside the range in which the two functions belong to the class.

    Example:
        >>> a = RelaxedSmooth(L0=1.0, L1=1.0, delta=1.125, M=math.e)
        >>> round(fixed_step_lower_bound(a, epsilon=0.1), 9)                       # e·1/(8·0.01·2)
        16.989261428
        >>> fixed_step_lower_bound(a, epsilon=1.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: epsilon must be below 0.333333, got 1.0

    Source: thesis, Theorem 3.4.2 with the constant that its proof gives.
    """
    M = a.need_m()
    if not a.L1 >= 1:
        fail("L1", "must be at least 1", a.L1)
    if not a.L0 >= a.L1:
        fail("L0", f"must be at least L1 = {a.L1:g}", a.L0)
    if not M > 1:
        fail("M", "must be above 1", M)
    accuracy(epsilon, below=a.L0 / 3 * (1 + 1e-12))
    return a.L1 * M * (a.delta - 1.25 * epsilon) / (8 * epsilon**2 * (math.log(M) + 1))


def repaired_lower_bound(a: RelaxedSmooth, epsilon: float) -> float:
    """The same for every L0 and L1 > 0: L1 M (Δ - 5ε/4) / (8 ε² asinh(M L1/L0)).

    (L0/L1²) cosh(L1 x) diverges for h > 2 asinh(M L1/L0)/(M L1) from the point where its gradient is M; a shorter step
    covers at most 2εh per step on the slow function.

    Args:
        a: L0, L1 > 0, M and Δ.
        epsilon: accuracy, at most L0/3 and below M/2.

    Example:
        >>> a = RelaxedSmooth(L0=0.5, L1=5.0, delta=1.125, M=100.0)
        >>> round(repaired_lower_bound(a, epsilon=0.1), 6)
        822.270754

    Source: thesis, 3.7.2, repaired.
    """
    M = a.need_m()
    accuracy(epsilon, below=min(a.L0 / 3 * (1 + 1e-12), M / 2))
    longest = 2 * math.asinh(M * a.need_l1() / a.L0) / (a.L1 * M)
    return (a.delta - 1.25 * epsilon) / (4 * epsilon**2 * longest)
