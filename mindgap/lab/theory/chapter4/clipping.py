"""(GClip) and (CClip) on arrays, and exact moments of a clipped gradient in one dimension."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from mindgap.base.check import non_negative
from mindgap.base.checked import Vectors
from mindgap.lab.theory.noise import NoiseLaw


def clip_global(g: Vectors, tau: Any) -> Any:
    """min{τ/‖g‖, 1} g along the last axis; τ is a number or has the leading shape.

    Example:
        >>> clip_global(np.array([3.0, 4.0]), 1.0).round(12).tolist()
        [0.6, 0.8]

    Source: thesis, (GClip).
    """
    norm = np.sqrt((g * g).sum(-1, keepdims=True))
    tau = np.asarray(tau, dtype=float)[..., None]
    return g * (tau / np.maximum(np.maximum(norm, tau), np.finfo(float).tiny))


def clip_coordinates(g: Any, tau: Any) -> Any:
    """min{τ_i/|g_i|, 1} g_i in every coordinate.

    Example:
        >>> clip_coordinates(np.array([3.0, -0.5]), 1.0).tolist()
        [1.0, -0.5]

    Source: thesis, (CClip).
    """
    return np.clip(g, -np.asarray(tau), np.asarray(tau))


class ClippedMoments(NamedTuple):
    """Exact moments of ĝ = clip(m + ξ, τ) for one coordinate: mean, E ĝ² and E(ĝ - m)².

    Example:
        >>> ClippedMoments(mean=0.0, second=0.25, error=0.25).second
        0.25
    """

    mean: float
    second: float
    error: float


def clipped_moments(law: NoiseLaw, mean: float, tau: float) -> ClippedMoments:
    """E ĝ, E ĝ² and E(ĝ - m)² of the clipped scalar gradient m + ξ, by exact sums or quadrature.

    Args:
        law: the noise ξ, one coordinate.
        mean: m, the true gradient.
        tau: threshold, zero or positive.

    Example:
        >>> from mindgap.lab.theory.noise import TwoPoint
        >>> clipped_moments(TwoPoint(0.5, scale=2.0), mean=0.0, tau=0.5)         # ±1 clipped to ±1/2
        ClippedMoments(mean=0.0, second=0.25, error=0.25)

    Source: thesis, Lemma 4.7.1.
    """
    non_negative("tau", tau)
    kinks = (-tau - mean, tau - mean, -mean)

    def clipped(x: np.ndarray) -> np.ndarray:
        return np.clip(mean + x, -tau, tau)

    return ClippedMoments(
        law.expect(clipped, kinks),
        law.expect(lambda x: clipped(x) ** 2, kinks),
        law.expect(lambda x: (clipped(x) - mean) ** 2, kinks),
    )
