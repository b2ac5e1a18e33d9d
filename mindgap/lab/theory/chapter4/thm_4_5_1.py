"""Theorem 4.5.1 (= Theorem 3 of acclip): CClip under coordinate-wise moments, strongly convex.

*Differs from the papers*: the threshold is printed as B k^(α-1), the proofs use B_i k^(1/α). "Independent of d" means
that the bound depends on d only through ‖B‖_2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mindgap.base.check import whole
from mindgap.lab.theory.assumptions import CoordinateMoment


def cclip_step(a: CoordinateMoment, k: Any) -> Any:
    """η_k = 4/(μ(k+1)).

    Example:
        >>> cclip_step(CoordinateMoment(alpha=1.5, B=(1.0,), mu=1.0), 3)
        1.0
    """
    return 4 / (a.mu * (k + 1))


def cclip_threshold(a: CoordinateMoment, k: float) -> np.ndarray:
    """τ_{k,i} = B_i k^(1/α), as proved.

    Example:
        >>> cclip_threshold(CoordinateMoment(alpha=2.0, B=(1.0, 2.0), mu=1.0), 4).tolist()
        [2.0, 4.0]

    Source: thesis, 4.7.5; acclip, F.2.
    """
    return np.asarray(a.B) * k ** (1 / a.alpha)


def cclip_bound(a: CoordinateMoment, k: int) -> float:
    """E f(x̄_k) - f* <= 16 ‖B‖_2² / (μ (k+1)^(2(α-1)/α)).

    Example:
        >>> round(cclip_bound(CoordinateMoment(alpha=2.0, B=(3.0, 4.0), mu=1.0), 15), 9)
        25.0

    Source: thesis, Theorem 4.5.1; acclip, Theorem 3.
    """
    whole("k", k, least=1)
    return 16 * a.norm(2) ** 2 / (a.mu * (k + 1) ** (2 * (a.alpha - 1) / a.alpha))
