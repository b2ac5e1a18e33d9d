"""Theorem 3.4.1: clipped gradient descent under (L0, L1)-smoothness.

*Differs from the paper*: the statement says "L-smoothness in S"; the proof uses (L0, L1)-smoothness (Assumption 3.3.3).
In the proof, "when ε <= ‖∇f‖ <= L0/L1 the step is η" fails for L1 < 1/10 and ‖∇f‖ > 10 L0; the decrease is then
‖∇f‖/2 >= 5 L0, so the theorem stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mindgap.lab.theory.assumptions import RelaxedSmooth, accuracy
from mindgap.lab.theory.function import namespace


@dataclass(frozen=True)
class ClippedStep:
    """h_c(g) = min{η, γη/‖g‖} of (3.5).

    Example:
        >>> step = ClippedStep(eta=0.1, gamma=2.0)
        >>> [round(float(step(n)), 9) for n in (1.0, 4.0)]
        [0.1, 0.05]
    """

    eta: Any
    gamma: Any

    def __call__(self, norm: Any) -> Any:
        """The effective step for gradients of that norm."""
        return self.eta * self.gamma / namespace(norm).maximum(norm, norm * 0 + self.gamma)


def clipped_gd_step(a: RelaxedSmooth) -> ClippedStep:
    """η = 1/(10 L0) and γ = min{1/η, 1/(10 L1 η)}.

    Args:
        a: L0 and L1 are used.

    Example:
        >>> clipped_gd_step(RelaxedSmooth(L0=1.0, L1=2.0, delta=1.0))
        ClippedStep(eta=0.1, gamma=0.5)

    Source: thesis, Theorem 3.4.1.
    """
    eta = 1 / (10 * a.L0)
    return ClippedStep(eta, 1 / eta if a.L1 <= 0.1 else 1 / (10 * a.L1 * eta))


def clipped_gd_bound(a: RelaxedSmooth, epsilon: float) -> float:
    """Most iterations until ‖∇f(x_t)‖ <= ε: 20 L0 Δ/ε² + 20 max{1, L1²} Δ/L0.

    Args:
        a: the constants.
        epsilon: accuracy, positive.

    Example:
        >>> clipped_gd_bound(RelaxedSmooth(L0=1.0, L1=2.0, delta=1.0), epsilon=0.5)
        160.0

    Source: thesis, Theorem 3.4.1.
    """
    accuracy(epsilon)
    return 20 * a.L0 * a.delta / epsilon**2 + 20 * max(1.0, a.L1**2) * a.delta / a.L0
