"""Theorem 5.4.1: deterministic INGD finds a (δ, ε)-stationary point; its parameters and its number of calls."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mindgap.base.check import fail, non_negative, positive, whole
from mindgap.base.checked import Positive, Share


@dataclass(frozen=True)
class NonsmoothTarget:
    """F(Δ, L) with the point asked for: (δ, ε)-stationary with probability 1 - γ.

    Args:
        L: Lipschitz constant of f, positive.
        Delta: Δ >= f(x_1) - inf f, positive.
        delta: δ, positive.
        epsilon: ε, positive and below L (every point is L-stationary).
        gamma: γ, in (0, 1); the probability of failure.

    Example:
        >>> NonsmoothTarget(L=1.0, Delta=1.0, delta=0.1, epsilon=1.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: epsilon must be below L = 1, got 1.0

    Source: thesis, (5.2) and Theorem 5.4.1.
    """

    L: Positive
    Delta: Positive
    delta: Positive
    epsilon: Positive
    gamma: Share = 0.1

    def __post_init__(self) -> None:
        if not self.epsilon < self.L:
            fail("epsilon", f"must be below L = {self.L:g}", self.epsilon)


def ingd_inner_steps(constants: NonsmoothTarget) -> int:
    """K = 48 L²/ε², rounded up: the length of one inner loop.

    Example:
        >>> ingd_inner_steps(NonsmoothTarget(L=1.0, Delta=1.0, delta=0.1, epsilon=0.5))
        192

    Source: thesis, Theorem 5.4.1.
    """
    return math.ceil(48 * constants.L**2 / constants.epsilon**2 * (1 - 1e-15))


def ingd_outer_steps(constants: NonsmoothTarget) -> int:
    """T = 4Δ/(εδ), rounded up, at least 1: every outer step but the last lowers f by more than εδ/4.

    Example:
        >>> ingd_outer_steps(NonsmoothTarget(L=1.0, Delta=1.0, delta=0.1, epsilon=0.5))
        80

    Source: thesis, Theorem 5.4.1.

    *Differs from the paper.* Without rounding the statement asks for less than one step when 4Δ < εδ.
    """
    return max(1, math.ceil(4 * constants.Delta / (constants.epsilon * constants.delta) * (1 - 1e-15)))


def ingd_calls_printed(constants: NonsmoothTarget) -> float:
    """192 Δ L²/(ε³ δ) · log(4Δ/(γδε)), as stated.

    Example:
        >>> round(ingd_calls_printed(NonsmoothTarget(L=1.0, Delta=1.0, delta=0.1, epsilon=0.5)))
        102676

    Source: thesis, Theorem 5.4.1.
    """
    c = constants
    return 192 * c.Delta * c.L**2 / (c.epsilon**3 * c.delta) * math.log(4 * c.Delta / (c.gamma * c.delta * c.epsilon))


def ingd_gradient_calls(constants: NonsmoothTarget) -> int:
    """T K (1 + ⌊log₁₆(T/γ)⌋), what the proof gives for the number of gradient calls.

    By Markov's inequality an inner loop fails with probability at most 1/16, so among T outer steps all together
    none restarts more than log₁₆(T/γ) times, with probability 1 - γ; the first pass is not a restart.

    Example:
        >>> c = NonsmoothTarget(L=1.0, Delta=1.0, delta=0.1, epsilon=0.5)
        >>> ingd_gradient_calls(c), round(ingd_calls_printed(c))
        (46080, 102676)

    Source: thesis, Lemma 5.7.2 and the proof of Theorem 5.4.1.

    *Differs from the paper.* The stated count has log(1/γ) passes where the proof has 1 + log(1/γ), and is negative
    or zero for 4Δ <= γδε. It counts gradients; the values f(x_{t,k}) of the descent test cost as many calls again.
    """
    outer = ingd_outer_steps(constants)
    restarts = math.floor(math.log(outer / constants.gamma) / math.log(16))
    return outer * ingd_inner_steps(constants) * (1 + restarts)


def ingd_beta(norm: float, L: float) -> float:
    """β = (4L² - ‖m‖²)/(4L² + 2‖m‖²), the weight of the old direction (Alg. 2, l. 15).

    Example:
        >>> ingd_beta(1.0, 1.0)
        0.5

    Source: thesis, Alg. 2, l. 15.
    """
    square = non_negative("norm", norm) ** 2
    return (4 * positive("L", L) ** 2 - square) / (4 * L**2 + 2 * square)


def direction_square_bound(k: int, L: float) -> float:
    """3L²/(k+2), an upper bound of E‖m_{t,k}‖², with m = 0 after the loop breaks.

    Example:
        >>> direction_square_bound(1, 2.0)
        4.0

    Source: thesis, proof of Lemma 5.7.2.
    """
    return 3 * positive("L", L) ** 2 / (whole("k", k, least=1) + 2)


def one_inner_step_radius(smoothness: float, epsilon: float) -> float:
    """3ε/(2L): on an L-smooth function the descent test passes at once for every δ below this.

    f(x - δm/‖m‖) - f(x) <= -δ‖m‖ + Lδ²/2 < -δ‖m‖/4 when δ < 3‖m‖/(2L), and ‖m‖ > ε.

    Args:
        smoothness: Lipschitz constant of the gradient, positive.
        epsilon: ε, positive.

    Example:
        >>> round(one_inner_step_radius(2.0, 0.1), 9)
        0.075

    Source: thesis, Remark 5.4.1.

    *Differs from the paper.* The remark says "always"; on Lx²/2 a larger δ fails the test.
    """
    return 3 * positive("epsilon", epsilon) / (2 * positive("smoothness", smoothness))
