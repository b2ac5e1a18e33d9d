"""Runs of clipped methods: exact second moments of GClip on rare jumps, where the rates are
attained; sampled runs.

The upper bounds of chapter 4 are worst cases over all laws with a given α-moment. A single law with
a nicer tail converges faster, so an exponent measured on it says little. For a threshold τ the
worst law is a rare jump of a size near τ: clipped away it is pure bias, let through it is pure
variance. Here that family is solved exactly.

The stochastic gradient is a·x with probability 1-p and -J with probability p, which is unbiased for
f(x) = μ(x - b)²/2 with a = μ/(1-p) and b = pJ/μ, and p = (G/J)^α makes the jump's share of the
α-moment G^α. Clipping acts on the jump alone (it gives -min{J, τ_k} whatever x is), so the iterate
obeys a linear recursion with random coefficients, and E x_k, E x_k² and the second moment of any
weighted average follow without sampling.

This is GClip as long as |a x_k| <= τ_k. From x_0 = 0 that can fail only right after a jump in the
first few steps; a test compares the recursion with runs of the method itself, and so does the study
of the exponent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mindgap.base.check import between, fail, one_of, whole
from mindgap.lab.theory.chapter4.clipped_gradient import clip_coordinates, clip_global

Array = np.ndarray
Values = float | Array


@dataclass(frozen=True)
class RareJump:
    """The problem and its constants, one entry per (law, schedule) pair; all arrays broadcast
    together.

    Example:
        >>> problem = RareJump(alpha=np.array(2.0), jump=np.array(10.0))
        >>> round(float(problem.probability), 9), round(float(problem.optimum), 9)
        (0.01, 0.1)
    """

    alpha: Array  # α in (1, 2]
    jump: Array  # J > G
    G: float = 1.0  # the jump's α-moment
    mu: float = 1.0  # strong convexity, also the smoothness

    def __post_init__(self) -> None:
        for a in np.ravel(self.alpha):
            between("alpha", float(a), 1, 2, ends="(]")
        if not (np.asarray(self.jump) > self.G).all():
            fail("jump", f"must be above G = {self.G:g}", float(np.min(self.jump)))

    @property
    def probability(self) -> Array:
        """p = (G/J)^α."""
        return (self.G / self.jump) ** self.alpha

    @property
    def slope(self) -> Array:
        """a = μ/(1-p), the gradient's factor when there is no jump."""
        return self.mu / (1 - self.probability)

    @property
    def optimum(self) -> Array:
        """b = pJ/μ."""
        return self.probability * self.jump / self.mu


def averaged_error(
    problem: RareJump,
    step: Callable[[int], float],
    threshold: Callable[[int], Array],
    horizons: list[int],
) -> Array:
    """E f(x̄_K) - f*, exactly, for the k-weighted average of Theorem 4.4.2 started at x_0 = 0.

    Args:
        problem: the laws, whose arrays broadcast to the problem's shape.
        step: η_k for k = 1, 2, ....
        threshold: τ_k, one number or one for every entry of the problem.
        horizons: increasing K at which to report.

    Returns:
        shape (len(horizons), *problem shape).

    Example:
        >>> p = RareJump(alpha=np.array([2.0]), jump=np.array([10.0]))
        >>> e = averaged_error(p, lambda k: 4 / (k + 1), lambda k: k**0.5, [1, 100])
        >>> e[0].round(12).tolist()  # x̄_1 = x_0 = 0, so f = b²/2
        [0.005]
    """
    p, b = problem.probability, problem.optimum
    # With S = Σ_{j<=k} j x_{j-1}: E x (``mean``), E x² (``square``), E S (``sum_mean``), E xS
    # (``cross``) and E S² (``sum_square``), each one entry per problem.
    mean = square = sum_mean = cross = sum_square = np.zeros(
        np.broadcast(problem.alpha, problem.jump).shape
    )
    errors = []
    reported = {whole("horizon", horizon, least=1) for horizon in horizons}
    for k in range(1, max(reported) + 1):
        move = step(k) * np.minimum(problem.jump, threshold(k))  # of x by a clipped jump
        factor = 1 - step(k) * problem.slope  # on x without a jump
        # S grows by k·x; then x becomes factor·x (probability 1-p) or x + move (p).
        sum_square = sum_square + 2 * k * cross + k * k * square
        sum_mean = sum_mean + k * mean
        cross = cross + k * square  # the S in it has grown; the next line lets x move
        cross = (1 - p) * factor * cross + p * (cross + move * sum_mean)
        square_after_jump = square + 2 * move * mean + move * move
        square = (1 - p) * factor * factor * square + p * square_after_jump
        mean = (1 - p) * factor * mean + p * (mean + move)
        if k in reported:
            weight = k * (k + 1) / 2  # Σ j, so x̄_k = S/weight
            distance = sum_square / weight**2 - 2 * b * sum_mean / weight + b * b  # E(x̄_k - b)²
            errors.append(problem.mu / 2 * distance)
    return np.stack(errors)


def mean_square_gradient(
    problem: RareJump, eta: Values, tau: Values, horizon: Values, offset: Values
) -> Array:
    """(1/K) Σ_{k<K} E‖∇f(x_k)‖², exactly, for a constant step and threshold, from x_0 = b + offset.

    All arguments broadcast with the problem's arrays, and the result has their shape.

    Args:
        problem: the laws.
        eta: step η.
        tau: threshold τ; only the jump is clipped.
        horizon: K.
        offset: x_0 - b; f(x_0) - f* = μ offset²/2.

    Example:
        >>> p = RareJump(alpha=np.array([2.0]), jump=np.array([10.0]))
        >>> mean_square_gradient(
        ...     p, np.array([0.1]), np.array([100.0]), np.array([1]), np.array([2.0])
        ... ).tolist()
        [4.0]

    The recursion of (E x, E x²) is affine with constant coefficients; the sum over k is taken in
    closed form from its fixed point and its two decay factors, so the cost does not depend on K.
    """
    p, slope, optimum = problem.probability, problem.slope, problem.optimum  # p, a and b
    steps = np.asarray(horizon, dtype=float)
    move = eta * np.minimum(problem.jump, tau)  # of x by a clipped jump
    # With m = E x and s = E x²: m <- r m + p·move, s <- t s + 2 p move m + p move².
    r = (1 - p) * (1 - eta * slope) + p
    t = (1 - p) * (1 - eta * slope) ** 2 + p
    m0 = optimum + offset
    s0 = m0 * m0
    # The fixed points of the two recursions.
    m_fixed = p * move / (1 - r)
    s_fixed = (2 * p * move * m_fixed + p * move * move) / (1 - t)
    # m_k = m_fixed + (m0 - m_fixed) r^k, and s_k = s_fixed + A r^k + (s0 - s_fixed - A) t^k, where
    # A r^k is what the mean's own decay adds.
    A = 2 * p * move * (m0 - m_fixed) / (r - t)
    sum_r = -np.expm1(steps * np.log(r)) / (1 - r)  # Σ_{k<K} r^k
    sum_t = -np.expm1(steps * np.log(t)) / (1 - t)
    sum_m = m_fixed * steps + (m0 - m_fixed) * sum_r
    sum_s = s_fixed * steps + A * sum_r + (s0 - s_fixed - A) * sum_t
    # E‖∇f(x_k)‖² = μ² (s_k - 2 b m_k + b²).
    return problem.mu**2 * (sum_s - 2 * optimum * sum_m + optimum * optimum * steps) / steps


# Projected GClip and CClip over many runs at once, with the k-weighted average of Theorem 4.4.2.
# The problems are f(x) = μ‖x - x*‖²/2 on a box; runs lie along the first axis, coordinates along
# the last.


def weighted_average_runs(
    gradient: Callable[[Array, int], Array],
    x0: Array,
    step: Callable[[int], float],
    threshold: Callable[[int], Array | float],
    horizons: list[int],
    *,
    method: str,
    box: tuple[float, float] | None = None,
) -> Array:
    """Run projected GClip or CClip and return x̄_K = Σ_{j<=K} j x_{j-1} / Σ j of every run, at each
    of the horizons (thesis, Theorem 4.4.2 and (proj-GClip)).

    ``averaged_error`` has the same average's error for ``RareJump``, without sampling.

    Args:
        gradient: stochastic gradient of all runs, ``gradient(x, k)`` with x of shape (runs, d).
        x0: starting points, shape (runs, d).
        step: η_k for k = 1, 2, ....
        threshold: τ_k, a number (gclip) or a number or vector (cclip).
        horizons: increasing K.
        method: "gclip" or "cclip".
        box: lower and upper limits of every coordinate for the projection; None for none.

    Returns:
        shape (len(horizons), runs, d).

    Example:
        >>> out = weighted_average_runs(
        ...     lambda x, k: x - 1,
        ...     np.zeros((1, 1)),
        ...     lambda k: 4 / (k + 1),
        ...     lambda k: 10.0,
        ...     [1, 50],
        ...     method="gclip",
        ... )
        >>> float(out[0, 0, 0]), abs(float(out[1, 0, 0]) - 1) < 0.01
        (0.0, True)
    """
    one_of("method", method, ("gclip", "cclip"))
    clip = clip_global if method == "gclip" else clip_coordinates
    reported = {whole("horizon", horizon, least=1) for horizon in horizons}
    x, weighted_sum, averages = np.array(x0, dtype=float), np.zeros(x0.shape), []
    for k in range(1, max(reported) + 1):
        weighted_sum += k * x
        if k in reported:
            averages.append(weighted_sum / (k * (k + 1) / 2))  # over Σ_{j<=k} j
        x = x - step(k) * clip(gradient(x, k), threshold(k))
        if box is not None:
            x = np.clip(x, *box)
    return np.stack(averages)
