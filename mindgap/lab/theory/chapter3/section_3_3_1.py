"""3.3.1: clipped and normalised gradient descent take the same step up to a factor two.

*Differs from the paper*: the printed chain is h_c/2 <= h_n <= 2 h_c; the right half holds without its 2, because
min{1/β, 1/‖g‖} >= 1/(‖g‖ + β).
"""

from __future__ import annotations

from typing import Any

from mindgap.base.check import positive
from mindgap.lab.theory.chapter3.thm_3_4_1 import ClippedStep


def normalized_step(eta_n: float, beta: float, norm: Any) -> Any:
    """h_n = η_n / (‖∇f‖ + β) of (3.6).

    Example:
        >>> normalized_step(1.0, 1.0, 3.0)
        0.25
    """
    return positive("eta_n", eta_n) / (norm + positive("beta", beta))


def matching_clipped_step(eta_n: float, beta: float) -> ClippedStep:
    """The clipped step with γ η_c = η_n and η_c = η_n/β: h_c/2 <= h_n <= h_c for every gradient.

    Example:
        >>> matching_clipped_step(eta_n=1.0, beta=2.0)
        ClippedStep(eta=0.5, gamma=2.0)

    Source: thesis, 3.3.1.
    """
    positive("eta_n", eta_n)
    return ClippedStep(eta_n / positive("beta", beta), beta)
