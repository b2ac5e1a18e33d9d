"""Clipping, and the moments of a clipped gradient: Lemmas 4.7.1 to 4.7.5."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from mindgap.base.check import fail
from mindgap.base.checked import Count, NonNegative, Order, Positive, Vectors
from mindgap.lab.theory.assumptions import CoordinateMoment
from mindgap.lab.theory.noise import NoiseLaw

# (GClip) and (CClip) on arrays, and exact moments of a clipped gradient in one dimension.


def clip_global(g: Vectors, tau: Any) -> Any:
    """min{τ/‖g‖, 1} g along the last axis (thesis, (GClip)); shape of ``g``. A gradient of 0 stays
    0. The twin for coordinates is ``clip_coordinates``.

    Args:
        g: gradients, shape (..., d).
        tau: τ, a number or of shape (...).

    Example:
        >>> clip_global(np.array([3.0, 4.0]), 1.0).round(12).tolist()
        [0.6, 0.8]
    """
    norm = np.sqrt((g * g).sum(-1, keepdims=True))
    tau = np.asarray(tau, dtype=float)[..., None]
    # τ/max{‖g‖, τ} is min{τ/‖g‖, 1}; tiny keeps it finite where both are 0.
    return g * (tau / np.maximum(np.maximum(norm, tau), np.finfo(float).tiny))


def clip_coordinates(g: Any, tau: Any) -> Any:
    """min{τ_i/|g_i|, 1} g_i in every coordinate of gradients g (thesis, (CClip)); τ is a number or
    has one entry per coordinate.

    Example:
        >>> clip_coordinates(np.array([3.0, -0.5]), 1.0).tolist()
        [1.0, -0.5]
    """
    return np.clip(g, -np.asarray(tau), np.asarray(tau))


class ClippedMoments(NamedTuple):
    """Exact moments of ĝ = clip(m + ξ, τ) for one coordinate: mean, E ĝ² and E(ĝ - m)².

    Example:
        >>> ClippedMoments(mean=0.0, second=0.25, error=0.25).second
        0.25
    """

    mean: float  # E ĝ
    second: float  # E ĝ²
    error: float  # E(ĝ - m)²


def clipped_moments(law: NoiseLaw, mean: float, tau: NonNegative) -> ClippedMoments:
    """E ĝ, E ĝ² and E(ĝ - m)² of ĝ, the scalar gradient m + ξ clipped to [-τ, τ], by exact sums or
    quadrature (thesis, Lemma 4.7.1).

    Args:
        law: of the noise ξ, with a single scale.
        mean: m, the true gradient.
        tau: τ.

    Example:
        >>> from mindgap.lab.theory.noise import TwoPoint
        >>> clipped_moments(TwoPoint(0.5, scale=2.0), mean=0.0, tau=0.5)  # ±1 clipped to ±1/2
        ClippedMoments(mean=0.0, second=0.25, error=0.25)
    """
    kinks = (-tau - mean, tau - mean, -mean)  # the ξ at which ĝ is -τ, τ and 0

    def clipped(noise: np.ndarray) -> np.ndarray:
        """ĝ, ``mean`` + noise clipped to [-τ, τ], for values of the noise."""
        return np.clip(mean + noise, -tau, tau)

    return ClippedMoments(
        law.expect(clipped, kinks),
        law.expect(lambda x: clipped(x) ** 2, kinks),
        law.expect(lambda x: (clipped(x) - mean) ** 2, kinks),
    )


# Lemma 4.7.1 (= Lemma 2 of acclip) and Lemma 4.7.5: second moment and bias of a clipped gradient.
# *Differs from the papers*. Lemma 4.7.1 refers to Assumption 4.4.1, which bounds the noise; its
# proof uses E‖g‖^α <= G^α (Assumption 4.4.3). Lemma 2 of acclip prints the bias bound for E‖ĝ -
# ∇f‖², which also contains the variance and is false; the proof bounds ‖E ĝ - ∇f‖². Lemma 4.7.5
# prints B^α τ^(2-2α) for the second moment where Lemma 5 of acclip and the proof have B^α τ^(2-α).


def clipped_second_moment_bound(alpha: Order, G: Positive, tau: Positive) -> float:
    """E‖ĝ‖² <= G^α τ^(2-α), the right side; the same with B_i and τ_i for one coordinate of CClip.

    Args:
        alpha: α.
        G: E‖g‖^α <= G^α.
        tau: τ, the threshold.

    Example:
        >>> clipped_second_moment_bound(2.0, 3.0, 100.0)
        9.0

    Source: thesis, Lemmas 4.7.1 and 4.7.5; acclip, Lemmas 2 and 5.
    """
    return G**alpha * tau ** (2 - alpha)


def clipped_bias_bound(alpha: Order, G: Positive, tau: Positive) -> float:
    """‖E ĝ - ∇f‖² <= G^(2α) τ^(-2(α-1)), the right side (thesis, Lemmas 4.7.1 and 4.7.5; acclip,
    Lemmas 2 and 5). The arguments are those of ``clipped_second_moment_bound``.

    Example:
        >>> clipped_bias_bound(2.0, 2.0, 4.0)
        1.0
    """
    return G ** (2 * alpha) * tau ** (-2 * (alpha - 1))


def printed_coordinate_second_moment(alpha: Order, B: Positive, tau: Positive) -> float:
    """B^α τ^(2-2α), the bound of E ĝ_i² as Lemma 4.7.5 prints it. It is false: the proof has 2 - α
    in the exponent (``clipped_second_moment_bound``).

    Example:
        >>> printed_coordinate_second_moment(2.0, 1.0, 10.0)
        0.01
    """
    return B**alpha * tau ** (2 - 2 * alpha)


# Lemmas 4.7.2 and 4.7.3: clipped gradients when the true gradient is small, and the direction when
# it is not.


def small_gradient_second_moment_bound(
    alpha: Order, sigma: Positive, tau: Positive, norm: NonNegative
) -> float:
    """E‖ĝ‖² <= 2‖∇f‖² + 4 σ^α τ^(2-α), the right side, when ‖∇f‖ <= τ/2 (thesis, Lemma 4.7.2).

    Args:
        alpha: α.
        sigma: σ, where E‖g - ∇f‖^α <= σ^α.
        tau: τ, the threshold.
        norm: ‖∇f‖.

    Example:
        >>> small_gradient_second_moment_bound(2.0, 1.0, 2.0, 1.0)
        6.0
    """
    _refuse_large_gradient(tau, norm)
    return 2 * norm**2 + 4 * sigma**alpha * tau ** (2 - alpha)


def small_gradient_bias_bound(
    alpha: Order, sigma: Positive, tau: Positive, norm: NonNegative
) -> float:
    """‖E ĝ - ∇f‖² <= 4 σ^(2α) τ^(-2(α-1)), the right side, when ‖∇f‖ <= τ/2 (thesis, Lemma 4.7.2).

    Args:
        alpha: α.
        sigma: σ, where E‖g - ∇f‖^α <= σ^α.
        tau: τ, the threshold.
        norm: ‖∇f‖.

    Example:
        >>> small_gradient_bias_bound(2.0, 1.0, 2.0, 1.0)
        1.0
    """
    _refuse_large_gradient(tau, norm)
    return 4 * sigma ** (2 * alpha) * tau ** (-2 * (alpha - 1))


def _refuse_large_gradient(tau: float, norm: float) -> None:
    """Raise a RuleError where ``norm``, ‖∇f‖, is above τ/2, as Lemma 4.7.2 excludes."""
    if norm > tau / 2:
        fail("norm", f"must be at most tau/2 = {tau / 2:g}", norm)


def direction_bound(v: np.ndarray, gradient: np.ndarray) -> Any:
    """Lemma 4.7.3: ⟨v/‖v‖, ∇f⟩ >= ‖∇f‖/3 - 8‖v - ∇f‖/3, the right side for a direction ``v`` and
    the true gradient; vectors along the last axis.

    Example:
        >>> round(float(direction_bound(np.array([1.0, 0.0]), np.array([3.0, 0.0]))), 6)
        -4.333333
    """
    return np.linalg.norm(gradient, axis=-1) / 3 - 8 * np.linalg.norm(v - gradient, axis=-1) / 3


# Lemma 4.7.4 (= Lemma 4 of acclip) with Corollaries 4.5.1 and 3: what a coordinate-wise moment says
# about the norm. *Differs from the papers*: the upper bound d^(α/2) ‖B‖_α^α holds but is never
# attained for d > 1. For α <= 2 the 2-norm is at most the α-norm, so E‖g‖^α <= E Σ|g_i|^α <=
# ‖B‖_α^α without any power of d, and this one is attained in the limit of rare independent jumps.
# The factor d of Corollary 4.5.1 falls away with it: GClip's bound is 16‖B‖_α²/(μ(k+1)^r), which at
# α = 2 equals CClip's. The gap between the two is d^(2/α-1) for equal B_i, not d^(2/α).


def norm_moment_upper(constants: CoordinateMoment, *, printed: bool = False) -> float:
    """‖B‖_α^α, an upper bound of E‖g‖^α; with ``printed=True`` the lemma's d^(α/2) ‖B‖_α^α (thesis,
    Lemma 4.7.4).

    From below d^(α/2-1) ‖B‖_α^α holds, attained when all coordinates move together.

    Example:
        >>> a = CoordinateMoment(alpha=2.0, B=(1.0, 1.0), mu=1.0)
        >>> norm_moment_upper(a), norm_moment_upper(a, printed=True)
        (2.0, 4.0)
    """
    bound = math.fsum(b**constants.alpha for b in constants.B)
    return bound * (constants.dimension ** (constants.alpha / 2) if printed else 1.0)


def gclip_coordinate_bound(
    constants: CoordinateMoment, k: Count, *, printed: bool = False
) -> float:
    """Corollary 4.5.1 on GClip: E f(x̄_k) - f* <= 16‖B‖_α²/(μ(k+1)^(2(α-1)/α)), the right side.

    Args:
        constants: α, B and μ.
        k: number of steps, at least 1.
        printed: whether to return the bound as printed, which is d times as large.

    Example:
        >>> a = CoordinateMoment(alpha=2.0, B=(1.0, 1.0), mu=1.0)
        >>> gclip_coordinate_bound(a, 15), gclip_coordinate_bound(a, 15, printed=True)
        (2.0, 4.0)

    Source: thesis, Corollary 4.5.1; acclip, Corollary 1.
    """
    decay = (k + 1) ** (2 * (constants.alpha - 1) / constants.alpha)
    norm_square = norm_moment_upper(constants) ** (2 / constants.alpha)  # ‖B‖_α²
    factor = constants.dimension if printed else 1
    return 16 * norm_square * factor / (constants.mu * decay)
