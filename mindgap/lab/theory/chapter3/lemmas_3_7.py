"""Lemmas 3.7.1 to 3.7.4: how fast a gradient can grow, and the three error terms of the stochastic proof.

The expectations of Lemmas 3.7.2 to 3.7.4 are computed as exact sums over a finite noise law.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mindgap.base.check import fail
from mindgap.lab.theory.assumptions import BoundedNoise, RelaxedSmooth
from mindgap.lab.theory.chapter3.section_3_4 import StochasticClippedStep

Array = np.ndarray


def gradient_growth_bound(a: RelaxedSmooth, norm: Array | float) -> Array | float:
    """Lemma 3.7.1: ‖∇f(x⁺)‖ <= 4 (L0/L1 + ‖∇f(x)‖) whenever ‖x⁺ - x‖ <= min{1/L1, 1}.

    Grönwall's inequality gives e in place of 4, and less: e·(L0/L1 + ‖∇f(x)‖) - L0/L1.

    Example:
        >>> gradient_growth_bound(RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0), 2.0)
        12.0
    """
    return 4 * (a.L0 / a.need_l1() + norm)


@dataclass(frozen=True)
class ErrorTerms:
    """Left and right sides of Lemmas 3.7.2, 3.7.3 and 3.7.4 at one point.

    Example:
        >>> ErrorTerms(left=(0.0, 0.1, 0.2), right=(1.0, 1.0, 1.0)).left[2]
        0.2
    """

    left: tuple[float, float, float]
    right: tuple[float, float, float]


def error_terms(a: RelaxedSmooth, noise: BoundedNoise, step: StochasticClippedStep, gradient: Array, values: Array,
                weights: Array) -> ErrorTerms:
    """The three terms T1, T2, T3 of (3.13) and their bounds, as exact sums (thesis, Lemmas 3.7.2, 3.7.3 and 3.7.4).

    Args:
        a: the constants.
        noise: τ.
        step: h(g) with η inside (3.11).
        gradient: ∇f(x), shape (d,).
        values: support of the noise, shape (m, d), norms at most τ.
        weights: probabilities, shape (m,), with mean zero noise.

    Example:
        >>> a, noise = RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0), BoundedNoise(tau=1.0)
        >>> t = error_terms(a, noise, StochasticClippedStep(1 / 128, 1.0, 1.0), np.array([3.0]),
        ...                 np.array([[-1.0], [1.0]]), np.array([0.5, 0.5]))
        >>> all(left <= right for left, right in zip(t.left, t.right))
        True
    """
    if not np.allclose(weights @ values, 0, atol=1e-9 * noise.tau) or not np.isclose(weights.sum(), 1):
        fail("weights", "must be probabilities that make the noise unbiased", weights)
    n = float(np.linalg.norm(gradient))
    h = step(np.linalg.norm(gradient + values, axis=1))
    inner = values @ gradient
    c = 5 * a.L0 + 4 * a.L1 * n
    mean_h = float(weights @ h)
    left = (
        float(-weights @ (h * inner)),
        float(c * (weights @ (h**2 * inner))),
        float(c / 2 * (weights @ (h**2 * (values**2).sum(1)))),
    )
    eta, tau = step.eta, noise.tau
    right = (
        mean_h * n**2 / 4,
        9 * eta**2 * tau * a.L0**2 / a.need_l1() + mean_h * n**2 / 8,
        (5 * a.L0 + 2 * a.L1 * tau) * eta**2 * tau**2 + mean_h * n**2 / 8,
    )
    return ErrorTerms(left, right)
