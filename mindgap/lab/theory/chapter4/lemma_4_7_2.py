"""Lemmas 4.7.2 and 4.7.3: clipped gradients when the true gradient is small, and the direction when it is not."""

from __future__ import annotations

from typing import Any

import numpy as np

from mindgap.base.check import between, fail, non_negative, positive


def small_gradient_second_moment_bound(alpha: float, sigma: float, tau: float, norm: float) -> float:
    """E‖ĝ‖² <= 2‖∇f‖² + 4 σ^α τ^(2-α) when ‖∇f‖ <= τ/2.

    Args:
        alpha: 1 < α <= 2.
        sigma: E‖g - ∇f‖^α <= σ^α.
        tau: threshold.
        norm: ‖∇f(x)‖.

    Example:
        >>> small_gradient_second_moment_bound(2.0, 1.0, 2.0, 1.0)
        6.0

    Source: thesis, Lemma 4.7.2.
    """
    _check(alpha, sigma, tau, norm)
    return 2 * norm**2 + 4 * sigma**alpha * tau ** (2 - alpha)


def small_gradient_bias_bound(alpha: float, sigma: float, tau: float, norm: float) -> float:
    """‖E ĝ - ∇f‖² <= 4 σ^(2α) τ^(-2(α-1)) when ‖∇f‖ <= τ/2.

    Example:
        >>> small_gradient_bias_bound(2.0, 1.0, 2.0, 1.0)
        1.0

    Source: thesis, Lemma 4.7.2.
    """
    _check(alpha, sigma, tau, norm)
    return 4 * sigma ** (2 * alpha) * tau ** (-2 * (alpha - 1))


def _check(alpha: float, sigma: float, tau: float, norm: float) -> None:
    between("alpha", alpha, 1, 2, ends="(]")
    positive("sigma", sigma)
    positive("tau", tau)
    non_negative("norm", norm)
    if norm > tau / 2:
        fail("norm", f"must be at most tau/2 = {tau / 2:g}", norm)


def direction_bound(v: np.ndarray, gradient: np.ndarray) -> Any:
    """Lemma 4.7.3: ⟨v/‖v‖, ∇f⟩ >= ‖∇f‖/3 - 8‖v - ∇f‖/3, the right side; vectors along the last axis.

    Example:
        >>> round(float(direction_bound(np.array([1.0, 0.0]), np.array([3.0, 0.0]))), 6)
        -4.333333

    Source: thesis, Lemma 4.7.3.
    """
    return np.linalg.norm(gradient, axis=-1) / 3 - 8 * np.linalg.norm(v - gradient, axis=-1) / 3
