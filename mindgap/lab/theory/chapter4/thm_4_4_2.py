"""Theorem 4.4.2 (= Theorem 1 of acclip): projected GClip on strongly convex functions, with k-weighted averaging.

*Differs from the papers*. The threshold is printed as τ_k = G k^(α-1); the proofs use τ_k = G k^(1/α).
(proj-GClip) is printed without its projection. In the proof, dividing by
K(K+1)/2 gives twice the printed 8G²K⁻¹(K+1)^((2-α)/α), and the last display of 4.7.2 has the exponent (2-α)/α for
(2-2α)/α. The constant 16 is right nevertheless: the two terms add up to 6 G² k^((2-α)/α)/μ where the text uses 8, and
the sum to (α/2)(K+1)^(2/α), which is enough for K >= 3; for K <= 2 the averaged point lies in the domain, where
f - f* <= G²/(2μ).
"""

from __future__ import annotations

from typing import Any

from mindgap.base.check import whole
from mindgap.lab.theory.assumptions import StronglyConvexMoment


def gclip_step(a: StronglyConvexMoment, k: Any) -> Any:
    """η_k = 4/(μ(k+1)), k = 1, 2, ...

    Example:
        >>> gclip_step(StronglyConvexMoment(alpha=1.5, G=1.0, mu=2.0), 1)
        1.0

    Source: thesis, Theorem 4.4.2.
    """
    return 4 / (a.mu * (k + 1))


def gclip_threshold(a: StronglyConvexMoment, k: Any) -> Any:
    """τ_k = G k^(1/α), as proved.

    Example:
        >>> gclip_threshold(StronglyConvexMoment(alpha=2.0, G=3.0, mu=1.0), 4)
        6.0

    Source: thesis, 4.7.2; acclip, D.
    """
    return a.G * k ** (1 / a.alpha)


def gclip_bound(a: StronglyConvexMoment, k: int) -> float:
    """E f(x̄_k) - f* <= 16 G² / (μ (k+1)^(2(α-1)/α)), x̄_k = Σ j x_{j-1} / Σ j.

    Args:
        a: α, G and μ.
        k: iterations, at least 1.

    Example:
        >>> gclip_bound(StronglyConvexMoment(alpha=2.0, G=1.0, mu=1.0), 15)
        1.0

    Source: thesis, Theorem 4.4.2; acclip, Theorem 1.
    """
    whole("k", k, least=1)
    return 16 * a.G**2 / (a.mu * (k + 1) ** (2 * (a.alpha - 1) / a.alpha))
