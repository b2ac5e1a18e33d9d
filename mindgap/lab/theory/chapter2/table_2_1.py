"""Table 2.1, (2.3), Theorems 2.1.2 and 2.1.3: the steps that GD and Nesterov's method need, and lower bounds."""

from __future__ import annotations

import math

import numpy as np

from mindgap.base.check import positive, whole
from mindgap.lab.theory.chapter2.quadratics import SmoothConvex


def gd_distance(constants: SmoothConvex, k: int) -> float:
    """(1 - μ/L)^k D, what ‖x_k - x*‖ is at most for GD with step 1/L; attained on μx²/2.

    Example:
        >>> gd_distance(SmoothConvex(L=2.0, mu=1.0), 3)
        0.125

    Source: the contraction of GD on μ-strongly convex, L-smooth functions (beside thesis, (2.3)).
    """
    return (1 - constants.mu / constants.L) ** whole("k", k) * constants.D


def gd_gap_printed(constants: SmoothConvex, k: int) -> float:
    """L/2 · (L/(μ+L))^(2k) D², as stated after (2.3).

    Example:
        >>> gd_gap_printed(SmoothConvex(L=1.0, mu=1.0), 1)
        0.125

    Source: thesis, display after (2.3).

    *Differs from the paper.* Holds for (2.3), and is not what the cited theorem says: that one is ((Q-1)/(Q+1))^(2k)
    for step 2/(μ+L). For step 1/L, (1 - μ/L)^(2k) holds and is smaller.
    """
    ratio = constants.L / (constants.mu + constants.L)
    return constants.L / 2 * ratio ** (2 * whole("k", k)) * constants.D**2


def gd_convex_gap(constants: SmoothConvex, k: int) -> float:
    """L D²/(4k + 2), the exact worst case of GD with step 1/L over convex functions.

    Source: Drori and Teboulle's bound behind "O(L/ε)" in thesis, Table 2.1.

    Example:
        >>> gd_convex_gap(SmoothConvex(L=2.0), 0)
        1.0
    """
    return constants.L * constants.D**2 / (4 * whole("k", k) + 2)


def nesterov_gap(constants: SmoothConvex, k: int) -> float:
    """(μ+L)/2 · D² exp(-(k-1)/√Q), what f(y_k) - f* is at most for (2.4) with Theorem 2.1.3's parameters.

    With y_0 = x_0, as the theorem needs and does not say, exp(-k/√Q) holds too.

    Example:
        >>> nesterov_gap(SmoothConvex(L=1.0, mu=1.0), 1)
        1.0

    Source: thesis, Theorem 2.1.3.
    """
    return (constants.mu + constants.L) / 2 * constants.D**2 * math.exp(-(whole("k", k) - 1) / math.sqrt(constants.Q))


def nesterov_convex_gap(constants: SmoothConvex, k: int) -> float:
    """2L D²/(k² + 5k + 6), the exact worst case with momentum k/(k+3) over convex functions, k >= 1.

    Source: the bound behind Nesterov's column in thesis, Table 2.1.

    Example:
        >>> nesterov_convex_gap(SmoothConvex(L=6.0), 1)
        1.0
    """
    k = whole("k", k, least=1)
    return 2 * constants.L * constants.D**2 / (k**2 + 5 * k + 6)


def iteration_bound(method: str, constants: SmoothConvex, epsilon: float) -> float:
    """The steps after which the bounds above are at most ε: Table 2.1 with its constants.

    Example:
        >>> iteration_bound("gd", SmoothConvex(L=1.0), 1e-2)
        24.5

    Source: thesis, Table 2.1.

    *Differs from the paper.* The table has L/√ε for Nesterov's method and for the lower bound on convex functions;
    √(L/ε) D holds for both. The strongly convex entry of (2.3)'s text has L‖x_0 - x*‖/ε inside the logarithm where
    the square of the distance belongs.
    """
    c, ratio = constants, constants.L * constants.D**2 / positive("epsilon", epsilon)
    if c.mu == 0:
        if method == "gd":
            return max(0.0, (ratio - 2) / 4)
        return max(0.0, (-5 + math.sqrt(25 - 4 * (6 - 2 * ratio))) / 2) if ratio > 3 else 0.0
    if method == "gd":
        return max(0.0, math.log(ratio / 2) / (-2 * math.log1p(-c.mu / c.L))) if c.mu < c.L else 1.0
    return max(0.0, math.sqrt(c.Q) * math.log((c.mu + c.L) * c.D**2 / (2 * epsilon)) + 1)


class Chain:
    """Nesterov's worst function in l²: after k steps of any method in the span of its gradients, k coordinates.

    f(x) = (L-μ)/8 · (x_1² + Σ (x_i - x_{i+1})² - 2x_1) + μ/2 ‖x‖², minimised by x*_i = q^i with
    q = (√Q-1)/(√Q+1). The first d coordinates stand for all as long as fewer than d - 1 steps are taken from 0.

    Args:
        constants: L and μ, 0 < μ < L.
        dimension: d.

    Example:
        >>> f = Chain(SmoothConvex(L=9.0, mu=1.0), 50)
        >>> round(f.q, 6), round(f.distance_square(np.zeros(50)), 6)
        (0.5, 0.333333)

    Source: thesis, Theorem 2.1.2 (the function is Nesterov's).
    """

    def __init__(self, constants: SmoothConvex, dimension: int) -> None:
        self.constants = constants
        self.dimension = whole("dimension", dimension, least=2)
        root = math.sqrt(constants.Q)
        self.q = (root - 1) / (root + 1)
        self.minimiser = self.q ** np.arange(1.0, dimension + 1)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """∇f(x) along the last axis, for x whose last coordinate is zero."""
        chain = 2.0 * x
        chain[..., 1:] -= x[..., :-1]
        chain[..., :-1] -= x[..., 1:]
        chain[..., 0] -= 1.0
        return (self.constants.L - self.constants.mu) / 4 * chain + self.constants.mu * x

    def distance_square(self, x: np.ndarray) -> float:
        """‖x - x*‖², the coordinates beyond the d-th included."""
        tail = self.q ** (2 * self.dimension + 2) / (1 - self.q**2)
        return float(((x - self.minimiser) ** 2).sum() + tail)

    def lower_bound(self, k: int) -> float:
        """q^(2k) ‖x_0 - x*‖² for x_0 = 0: no method in the span is closer after k steps."""
        return self.q ** (2 * whole("k", k)) * self.q**2 / (1 - self.q**2)
