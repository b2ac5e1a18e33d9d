"""Lemma 4.7.4 (= Lemma 4 of acclip) with Corollaries 4.5.1 and 3: what a coordinate-wise moment says about the norm.

*Differs from the papers*: the upper bound d^(α/2) ‖B‖_α^α holds but is never attained for d > 1. For α <= 2 the
2-norm is at most the α-norm, so E‖g‖^α <= E Σ|g_i|^α <= ‖B‖_α^α without any power of d, and this one is attained
in the limit of rare independent jumps. The factor d of Corollary 4.5.1 falls away with it: GClip's bound is
16‖B‖_α²/(μ(k+1)^r), which at α = 2 equals CClip's. The gap between the two is d^(2/α-1) for equal B_i, not d^(2/α).
"""

from __future__ import annotations

import math

import numpy as np

from mindgap.base.check import between, whole
from mindgap.lab.theory.assumptions import CoordinateMoment


def norm_moment_lower(a: CoordinateMoment) -> float:
    """d^(α/2-1) ‖B‖_α^α, attained when all coordinates move together (and E|g_i|^α = B_i^α).

    Example:
        >>> norm_moment_lower(CoordinateMoment(alpha=2.0, B=(1.0, 1.0), mu=1.0))
        2.0

    Source: thesis, Lemma 4.7.4.
    """
    return a.dimension ** (a.alpha / 2 - 1) * math.fsum(b**a.alpha for b in a.B)


def norm_moment_upper(a: CoordinateMoment, *, printed: bool = False) -> float:
    """E‖g‖^α <= ‖B‖_α^α; with ``printed=True`` the lemma's d^(α/2) ‖B‖_α^α.

    Example:
        >>> a = CoordinateMoment(alpha=2.0, B=(1.0, 1.0), mu=1.0)
        >>> norm_moment_upper(a), norm_moment_upper(a, printed=True)
        (2.0, 4.0)

    Source: thesis, Lemma 4.7.4.
    """
    value = math.fsum(b**a.alpha for b in a.B)
    return value * (a.dimension ** (a.alpha / 2) if printed else 1.0)


def rare_jump_norm_moment(alpha: float, dimension: int, probability: float) -> float:
    """E‖g‖^α, exactly, for d independent coordinates that are p^(-1/α) with probability p and 0 otherwise (B_i = 1).

    A sum over the binomial number of jumps: Σ_n P(N = n) (n^(1/2) p^(-1/α))^α.

    Example:
        >>> round(rare_jump_norm_moment(1.5, 10, 1e-6), 4)                      # ‖B‖_α^α = 10 in the limit
        10.0
    """
    between("alpha", alpha, 1, 2, ends="(]")
    whole("dimension", dimension, least=1)
    between("probability", probability, 0, 1, ends="(]")
    from scipy.stats import binom

    n = np.arange(dimension + 1)
    return float(np.sum(binom.pmf(n, dimension, probability) * n ** (alpha / 2)) / probability)


def gclip_coordinate_bound(a: CoordinateMoment, k: int, *, printed: bool = False) -> float:
    """Corollary 4.5.1: E f(x̄_k) - f* <= 16‖B‖_α²/(μ(k+1)^(2(α-1)/α)); times d as printed.

    Example:
        >>> a = CoordinateMoment(alpha=2.0, B=(1.0, 1.0), mu=1.0)
        >>> gclip_coordinate_bound(a, 15), gclip_coordinate_bound(a, 15, printed=True)
        (2.0, 4.0)

    Source: thesis, Corollary 4.5.1; acclip, Corollary 1.
    """
    whole("k", k, least=1)
    rate = (k + 1) ** (2 * (a.alpha - 1) / a.alpha)
    return 16 * norm_moment_upper(a) ** (2 / a.alpha) * (a.dimension if printed else 1) / (a.mu * rate)
