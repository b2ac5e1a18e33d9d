"""GD, Nesterov's method and heavy-ball on quadratics, mode by mode: exact worst cases without matrices.

On f = Σ λ_i x_i²/2 every mode runs alone, and the worst start of length D puts everything into one mode. So the
worst gap over all quadratics with spectrum in [μ, L] is D²/2 · max_λ λ a_k(λ)², a_k the amplitude of a mode that
starts at 1. Everything here is that amplitude, for a whole grid of λ at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mindgap.base.check import fail, one_of, positive, whole
from mindgap.base.checked import NonNegative, Positive


@dataclass(frozen=True)
class SmoothConvex:
    """f is L-smooth and μ-strongly convex (μ = 0: convex), and ‖x_0 - x*‖ = D.

    Args:
        L: smoothness, positive.
        mu: strong convexity, zero or positive, at most L.
        D: distance of the start from a minimiser, positive.

    Example:
        >>> SmoothConvex(L=1.0, mu=2.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: mu must be at most L = 1, got 2.0

    Source: thesis, Definitions 2.1.3 and 2.1.4.
    """

    L: Positive
    mu: NonNegative = 0.0
    D: Positive = 1.0

    def __post_init__(self) -> None:
        if self.mu > self.L:
            fail("mu", f"must be at most L = {self.L:g}", self.mu)

    @property
    def Q(self) -> float:
        """L/μ, the condition number."""
        return self.L / positive("mu", self.mu)


METHODS = ("gd", "nesterov", "heavy-ball")


def parameters(method: str, constants: SmoothConvex) -> tuple[float, float]:
    """(α, β) for strongly convex f: 1/L for GD, Theorem 2.1.3 for Nesterov, Polyak's for heavy-ball.

    Example:
        >>> [round(p, 6) for p in parameters("nesterov", SmoothConvex(L=4.0, mu=1.0))]
        [0.25, 0.333333]

    Source: thesis, (2.3) and Theorem 2.1.3; Polyak's choice is optimal on quadratics.
    """
    one_of("method", method, METHODS)
    root = math.sqrt(constants.Q)
    if method == "gd":
        return 1 / constants.L, 0.0
    if method == "nesterov":
        return 1 / constants.L, (root - 1) / (root + 1)
    return 4 / (math.sqrt(constants.L) + math.sqrt(constants.mu)) ** 2, ((root - 1) / (root + 1)) ** 2


def amplitudes(method: str, curvature: np.ndarray, alpha: float, beta: float | None) -> Iterator[np.ndarray]:
    """a_0, a_1, ... for every curvature: what is left of a mode that starts at 1.

    Nesterov's (2.4) is read at y_k, with y_0 = x_0; ``beta=None`` takes the momentum (k)/(k+3) for convex f.

    Args:
        method: a name of ``METHODS``.
        curvature: λ, any shape.
        alpha: step size.
        beta: momentum.

    Example:
        >>> run = amplitudes("gd", np.array([1.0, 2.0]), 0.5, 0.0)
        >>> [next(run).tolist() for _ in range(3)]
        [[1.0, 1.0], [0.5, 0.0], [0.25, 0.0]]

    Source: thesis, (2.3) and (2.4).
    """
    one_of("method", method, METHODS)
    x = y = np.ones_like(np.asarray(curvature, dtype=float))
    shrink = 1 - alpha * np.asarray(curvature, dtype=float)
    yield y
    step = 0
    previous = x
    while True:
        momentum = (step / (step + 3.0)) if beta is None else beta
        if method == "heavy-ball":
            x, previous = shrink * x + momentum * (x - previous), x
            yield x
        elif method == "gd":
            x = shrink * x
            yield x
        else:
            new = shrink * x
            x = (1 + momentum) * new - momentum * y
            y = new
            yield y
        step += 1


def spectrum(constants: SmoothConvex, points: int = 2001) -> np.ndarray:
    """Curvatures from μ to L, dense at the low end on a logarithmic scale (from 1e-9 L where μ = 0)."""
    whole("points", points, least=2)
    return np.geomspace(max(constants.mu, 1e-9 * constants.L), constants.L, points)


def worst_gap(method: str, constants: SmoothConvex, steps: int, *, alpha: float | None = None) -> np.ndarray:
    """max f(x_k) - f* over quadratics with spectrum in [μ, L], for k = 0, ..., steps.

    Args:
        method: a name of ``METHODS``.
        constants: L, μ, D.
        steps: how far.
        alpha: another step size than the rule's.

    Example:
        >>> worst_gap("gd", SmoothConvex(L=1.0, mu=0.5), 2).round(6)
        array([0.5     , 0.0625  , 0.015625])

    Source: thesis, 2.1.1 (the sup over a class, here quadratics).
    """
    curvature = spectrum(constants)
    rule = parameters(method, constants) if constants.mu > 0 else (1 / constants.L, None if method == "nesterov" else 0)
    run = amplitudes(method, curvature, rule[0] if alpha is None else alpha, rule[1])
    return np.array([(curvature * next(run) ** 2).max() for _ in range(steps + 1)]) * constants.D**2 / 2


def iterations(method: str, constants: SmoothConvex, epsilon: float, most: int = 10**6) -> int:
    """The first k with worst gap at most ε (and, because momentum ripples, at every later k up to 1.2 k + 20).

    Example:
        >>> iterations("gd", SmoothConvex(L=1.0, mu=0.1), 1e-3)
        19

    Source: thesis, T_ε of 2.1.1.
    """
    positive("epsilon", epsilon)
    curvature = spectrum(constants)
    rule = parameters(method, constants) if constants.mu > 0 else (1 / constants.L, None if method == "nesterov" else 0)
    first = -1
    for k, a in enumerate(amplitudes(method, curvature, *rule)):
        if (curvature * a**2).max() * constants.D**2 / 2 > epsilon:
            first = -1
        elif first < 0:
            first = k
        if first >= 0 and k >= 1.2 * first + 20:
            return first
        if k > most:
            fail("epsilon", f"must be reachable in {most} steps", epsilon)
    raise AssertionError("amplitudes never ends")
