"""GD, Nesterov's method and heavy-ball on quadratics, mode by mode: exact worst cases without
matrices.

On f = Σ λ_i x_i²/2 every mode runs alone, and the worst start of length D puts everything into one
mode. So the worst gap over all quadratics with spectrum in [μ, L] is D²/2 · max_λ λ a_k(λ)², a_k
the amplitude of a mode that starts at 1. Everything here is that amplitude, for a whole grid of λ
at once.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mindgap.base.check import fail, one_of, positive, whole
from mindgap.base.checked import NonNegative, Positive


@dataclass(frozen=True)
class SmoothConvex:
    """f is L-smooth and μ-strongly convex (μ = 0: convex), and ‖x_0 - x*‖ = D (thesis, Definitions
    2.1.3 and 2.1.4).

    Example:
        >>> SmoothConvex(L=1.0, mu=2.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: mu must be at most L = 1, got 2.0
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
    """(step α, momentum β) of a method of ``METHODS`` for strongly convex f, μ > 0: (1/L, 0) for
    GD, those of Theorem 2.1.3 for Nesterov, Polyak's 4/(√L+√μ)² and ((√Q-1)/(√Q+1))² for
    heavy-ball.

    Example:
        >>> [round(p, 6) for p in parameters("nesterov", SmoothConvex(L=4.0, mu=1.0))]
        [0.25, 0.333333]

    Source: thesis, (2.3) and Theorem 2.1.3; Polyak's choice is optimal on quadratics.
    """
    one_of("method", method, METHODS)
    root = math.sqrt(constants.Q)  # √Q, with Q = L/μ
    ratio = (root - 1) / (root + 1)
    if method == "gd":
        return 1 / constants.L, 0.0
    if method == "nesterov":
        return 1 / constants.L, ratio
    return 4 / (math.sqrt(constants.L) + math.sqrt(constants.mu)) ** 2, ratio**2


def amplitudes(
    method: str, curvature: np.ndarray, alpha: float, beta: float | None
) -> Iterator[np.ndarray]:
    """Yield a_0, a_1, ... without end: what is left of a mode that starts at 1 after k steps.

    A mode is f = λx²/2 in one variable. Steps are those of the thesis's (2.3) and (2.4); Nesterov's
    (2.4) is read at y_k, with y_0 = x_0.

    Args:
        method: a name of ``METHODS``.
        curvature: λ, one per mode; every a_k has this shape.
        alpha: step size.
        beta: momentum; None takes k/(k+3), for convex f. GD does not read it.

    Example:
        >>> run = amplitudes("gd", np.array([1.0, 2.0]), 0.5, 0.0)
        >>> [next(run).tolist() for _ in range(3)]
        [[1.0, 1.0], [0.5, 0.0], [0.25, 0.0]]
    """
    one_of("method", method, METHODS)
    gradient_factor = 1 - alpha * np.asarray(curvature, dtype=float)
    # ``y`` is a_k; ``x`` is where the gradient is taken, ``previous`` heavy-ball's last x.
    x = y = previous = np.ones_like(gradient_factor)
    for step in itertools.count():
        yield y
        momentum = step / (step + 3.0) if beta is None else beta
        if method == "gd":
            x = y = gradient_factor * x
        elif method == "nesterov":
            next_y = gradient_factor * x
            x, y = (1 + momentum) * next_y - momentum * y, next_y
        else:
            y = gradient_factor * x + momentum * (x - previous)
            x, previous = y, x


def spectrum(constants: SmoothConvex) -> np.ndarray:
    """2001 curvatures, evenly on a logarithmic scale from μ (from 1e-9 L where μ = 0) to L."""
    return np.geomspace(max(constants.mu, 1e-9 * constants.L), constants.L, 2001)


def worst_gap(
    method: str, constants: SmoothConvex, steps: int, *, alpha: float | None = None
) -> np.ndarray:
    """max f(x_k) - f* over quadratics with spectrum in [μ, L], for k = 0, ..., steps; shape (steps
    + 1,).

    Args:
        method: a name of ``METHODS``.
        constants: μ, L and the distance D of the start from the minimum.
        steps: the last k.
        alpha: another step size than the method's own; None for its own.

    Example:
        >>> worst_gap("gd", SmoothConvex(L=1.0, mu=0.5), 2).round(6)
        array([0.5     , 0.0625  , 0.015625])

    Source: thesis, 2.1.1 (the sup over a class, here quadratics).
    """
    curvature = spectrum(constants)
    step, momentum = _step_and_momentum(method, constants)
    run = amplitudes(method, curvature, step if alpha is None else alpha, momentum)
    largest = np.array([(curvature * next(run) ** 2).max() for _ in range(steps + 1)])
    return largest * constants.D**2 / 2


def _step_and_momentum(method: str, constants: SmoothConvex) -> tuple[float, float | None]:
    """(step, momentum) for :func:`amplitudes`: those of :func:`parameters` where μ > 0. For a
    convex f (μ = 0) the step is 1/L, and the momentum None, that is k/(k+3), for Nesterov's method
    and 0 for the others.
    """
    if constants.mu > 0:
        return parameters(method, constants)
    return 1 / constants.L, (None if method == "nesterov" else 0)


def iterations(method: str, constants: SmoothConvex, epsilon: Positive, most: int = 10**6) -> int:
    """T_ε of 2.1.1: the first k at which the worst gap over quadratics is at most ε.

    With momentum the gap ripples, so it must also stay at most ε at every later k up to 1.2 k + 20.

    Args:
        method: a name of ``METHODS``.
        constants: μ, L and D.
        epsilon: ε.
        most: steps after which the search is given up.

    Example:
        >>> iterations("gd", SmoothConvex(L=1.0, mu=0.1), 1e-3)
        19

    Raises:
        RuleError: ε is not reached in ``most`` steps.

    Source: thesis, T_ε of 2.1.1.
    """
    curvature = spectrum(constants)
    first_below = -1  # -1 while the gap is above ε
    run = amplitudes(method, curvature, *_step_and_momentum(method, constants))
    for k, amplitude in enumerate(run):
        worst = (curvature * amplitude**2).max() * constants.D**2 / 2
        if worst > epsilon:
            first_below = -1
        elif first_below < 0:
            first_below = k
        # The gap has stayed at most ε long enough.
        if first_below >= 0 and k >= 1.2 * first_below + 20:
            return first_below
        if k > most:
            fail("epsilon", f"must be reachable in {most} steps", epsilon)
    raise AssertionError("amplitudes never ends")


# Table 2.1, (2.3), Theorems 2.1.2 and 2.1.3: the steps that GD and Nesterov's method need, and
# lower bounds.


def gd_gap_printed(constants: SmoothConvex, k: int) -> float:
    """L/2 · (L/(μ+L))^(2k) D², the bound of GD's gap after k steps as the thesis states it after
    (2.3).

    Example:
        >>> gd_gap_printed(SmoothConvex(L=1.0, mu=1.0), 1)
        0.125

    *Differs from the paper.* Holds for (2.3), and is not what the cited theorem says: that one is
    ((Q-1)/(Q+1))^(2k) for step 2/(μ+L). For step 1/L, (1 - μ/L)^(2k) holds and is smaller.
    """
    ratio = constants.L / (constants.mu + constants.L)
    return constants.L / 2 * ratio ** (2 * whole("k", k)) * constants.D**2


def gd_convex_gap(constants: SmoothConvex, k: int) -> float:
    """L D²/(4k + 2), the exact worst gap of GD with step 1/L after k steps over convex functions.

    Source: Drori and Teboulle's bound behind "O(L/ε)" in thesis, Table 2.1.

    Example:
        >>> gd_convex_gap(SmoothConvex(L=2.0), 0)
        1.0
    """
    return constants.L * constants.D**2 / (4 * whole("k", k) + 2)


def nesterov_gap(constants: SmoothConvex, k: int) -> float:
    """(μ+L)/2 · D² exp(-(k-1)/√Q), an upper bound of f(y_k) - f* after k steps of (2.4) with
    Theorem 2.1.3's parameters.

    With y_0 = x_0, as the theorem needs and does not say, exp(-k/√Q) holds too. Source: thesis,
    Theorem 2.1.3.

    Example:
        >>> nesterov_gap(SmoothConvex(L=1.0, mu=1.0), 1)
        1.0
    """
    return (
        (constants.mu + constants.L)
        / 2
        * constants.D**2
        * math.exp(-(whole("k", k) - 1) / math.sqrt(constants.Q))
    )


def nesterov_convex_gap(constants: SmoothConvex, k: int) -> float:
    """2L D²/(k² + 5k + 6), the exact worst gap of Nesterov's method with momentum k/(k+3) after k
    >= 1 steps over convex functions.

    Source: the bound behind Nesterov's column in thesis, Table 2.1.

    Example:
        >>> nesterov_convex_gap(SmoothConvex(L=6.0), 1)
        1.0
    """
    k = whole("k", k, least=1)
    return 2 * constants.L * constants.D**2 / (k**2 + 5 * k + 6)


def iteration_bound(method: str, constants: SmoothConvex, epsilon: float) -> float:
    """The number of steps k after which a method's upper bound on the gap is at most ε: Table 2.1
    with its constants. A real number, at least 0.

    The bounds, solved for k: ``gd_convex_gap`` and ``nesterov_convex_gap`` where μ = 0; else L D²/2
    (1 - μ/L)^(2k) for GD and ``nesterov_gap`` for Nesterov's method.

    Args:
        method: "gd"; any other name is Nesterov's method.
        constants: L, μ and D.
        epsilon: ε.

    Example:
        >>> iteration_bound("gd", SmoothConvex(L=1.0), 1e-2)
        24.5

    *Differs from the paper.* The table has L/√ε for Nesterov's method and for the lower bound on
    convex functions; √(L/ε) D holds for both. The strongly convex entry of (2.3)'s text has L‖x_0 -
    x*‖/ε inside the logarithm where the square of the distance belongs.
    """
    L, mu, D = constants.L, constants.mu, constants.D
    ratio = L * D**2 / positive("epsilon", epsilon)
    if mu == 0 and method == "gd":
        bound = (ratio - 2) / 4
    elif mu == 0:
        # The root of k² + 5k + 6 = 2·ratio; below ratio 3 the start is good enough.
        bound = (-5 + math.sqrt(25 - 4 * (6 - 2 * ratio))) / 2 if ratio > 3 else 0.0
    elif method == "gd":
        # With μ = L one step reaches the minimum.
        bound = math.log(ratio / 2) / (-2 * math.log1p(-mu / L)) if mu < L else 1.0
    else:
        bound = math.sqrt(constants.Q) * math.log((mu + L) * D**2 / (2 * epsilon)) + 1
    return max(0.0, bound)


class Chain:
    """Nesterov's worst function in l²: after k steps of any method in the span of its gradients, k
    coordinates.

    f(x) = (L-μ)/8 · (x_1² + Σ (x_i - x_{i+1})² - 2x_1) + μ/2 ‖x‖², minimised by x*_i = q^i with q =
    (√Q-1)/(√Q+1). The first d coordinates stand for all as long as fewer than d - 1 steps are taken
    from 0. Source: thesis, Theorem 2.1.2 (the function is Nesterov's).

    Args:
        constants: L and μ > 0; D is not used.
        dimension: d, at least 2.

    Example:
        >>> f = Chain(SmoothConvex(L=9.0, mu=1.0), 50)
        >>> round(f.q, 6), round(f.distance_square(np.zeros(50)), 6)
        (0.5, 0.333333)
    """

    def __init__(self, constants: SmoothConvex, dimension: int) -> None:
        self.constants = constants
        self.dimension = whole("dimension", dimension, least=2)
        root = math.sqrt(constants.Q)
        self.q = (root - 1) / (root + 1)
        self.minimiser = self.q ** np.arange(1.0, dimension + 1)  # x*, its first d coordinates

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """∇f(x) = (L-μ)/4 (A x - e_1) + μx along the last axis, A the matrix with 2 on the diagonal
        and -1 beside it, for x whose last coordinate is zero. Shape of ``x``.
        """
        chain_term = 2.0 * x  # A x - e_1
        chain_term[..., 1:] -= x[..., :-1]
        chain_term[..., :-1] -= x[..., 1:]
        chain_term[..., 0] -= 1.0
        return (self.constants.L - self.constants.mu) / 4 * chain_term + self.constants.mu * x

    def distance_square(self, x: np.ndarray) -> float:
        """‖x - x*‖², the coordinates beyond the d-th included."""
        tail = self.q ** (2 * self.dimension + 2) / (1 - self.q**2)
        return float(((x - self.minimiser) ** 2).sum() + tail)

    def lower_bound(self, k: int) -> float:
        """q^(2k) ‖x_0 - x*‖² for x_0 = 0: no method in the span is closer after k steps."""
        return self.q ** (2 * whole("k", k)) * self.q**2 / (1 - self.q**2)
