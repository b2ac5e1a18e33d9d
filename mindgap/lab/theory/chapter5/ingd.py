"""Theorems 5.4.1 and 5.5.1: the parameters of INGD and Stochastic INGD, and the calls that they
need.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from mindgap.base.check import fail, positive, whole
from mindgap.base.checked import NonNegative, Positive, Share
from mindgap.lab.theory.chapter5.stationarity import stationarity_radius

# Theorem 5.4.1: deterministic INGD finds a (δ, ε)-stationary point; its parameters and its number
# of calls.


@dataclass(frozen=True)
class NonsmoothTarget:
    """F(Δ, L) with the point asked for: (δ, ε)-stationary with probability 1 - γ (thesis, (5.2) and
    Theorem 5.4.1).

    Example:
        >>> NonsmoothTarget(L=1.0, Delta=1.0, delta=0.1, epsilon=1.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: epsilon must be below L = 1, got 1.0
    """

    L: Positive  # Lipschitz constant of f
    Delta: Positive  # Δ, a bound of f(x_0) - inf f
    delta: Positive  # δ, the radius
    epsilon: Positive  # ε, the accuracy, below L
    gamma: Share = 0.1  # γ, the probability of failure

    def __post_init__(self) -> None:
        if not self.epsilon < self.L:
            fail("epsilon", f"must be below L = {self.L:g}", self.epsilon)


def ingd_inner_steps(constants: NonsmoothTarget) -> int:
    """K = 48 L²/ε², rounded up: the length of one inner loop (thesis, Theorem 5.4.1).

    Example:
        >>> ingd_inner_steps(NonsmoothTarget(L=1.0, Delta=1.0, delta=0.1, epsilon=0.5))
        192
    """
    # Where the quotient is whole, rounding must not add one.
    return math.ceil(48 * constants.L**2 / constants.epsilon**2 * (1 - 1e-15))


def ingd_outer_steps(constants: NonsmoothTarget) -> int:
    """T = 4Δ/(εδ), rounded up, at least 1: every outer step but the last lowers f by more than
    εδ/4.

    Example:
        >>> ingd_outer_steps(NonsmoothTarget(L=1.0, Delta=1.0, delta=0.1, epsilon=0.5))
        80

    Source: thesis, Theorem 5.4.1.

    *Differs from the paper.* Without rounding the statement asks for less than one step when 4Δ <
    εδ.
    """
    steps = 4 * constants.Delta / (constants.epsilon * constants.delta)
    return max(1, math.ceil(steps * (1 - 1e-15)))  # rounding must not add one to a whole number


def ingd_calls_printed(constants: NonsmoothTarget) -> float:
    """192 Δ L²/(ε³ δ) · log(4Δ/(γδε)), the number of calls as stated (thesis, Theorem 5.4.1).

    Example:
        >>> round(ingd_calls_printed(NonsmoothTarget(L=1.0, Delta=1.0, delta=0.1, epsilon=0.5)))
        102676
    """
    L, Delta, delta, epsilon = constants.L, constants.Delta, constants.delta, constants.epsilon
    passes = math.log(4 * Delta / (constants.gamma * delta * epsilon))
    return 192 * Delta * L**2 / (epsilon**3 * delta) * passes


def ingd_gradient_calls(constants: NonsmoothTarget) -> int:
    """T K (1 + ⌊log₁₆(T/γ)⌋), what the proof gives for the number of gradient calls.

    T is ``ingd_outer_steps``, K ``ingd_inner_steps``. By Markov's inequality an inner loop fails
    with probability at most 1/16. So with probability 1 - γ none of the T outer steps restarts its
    inner loop more than log₁₆(T/γ) times; the first pass is not a restart. Source: thesis, Lemma
    5.7.2 and the proof of Theorem 5.4.1.

    Example:
        >>> c = NonsmoothTarget(L=1.0, Delta=1.0, delta=0.1, epsilon=0.5)
        >>> ingd_gradient_calls(c), round(ingd_calls_printed(c))
        (46080, 102676)

    *Differs from the paper.* The stated count has log(1/γ) passes where the proof has 1 + log(1/γ),
    and is negative or zero for 4Δ <= γδε. It counts gradients; the values f(x_{t,k}) of the descent
    test cost as many calls again.
    """
    outer = ingd_outer_steps(constants)
    restarts = math.floor(math.log(outer / constants.gamma) / math.log(16))  # per outer step
    return outer * ingd_inner_steps(constants) * (1 + restarts)


def direction_square_bound(k: int, L: float) -> float:
    """3L²/(k+2), an upper bound of E‖m_{t,k}‖², where m_{t,k} = 0 after the inner loop has ended
    (thesis, proof of Lemma 5.7.2).

    Example:
        >>> direction_square_bound(1, 2.0)
        4.0
    """
    return 3 * positive("L", L) ** 2 / (whole("k", k, least=1) + 2)


def one_inner_step_radius(smoothness: float, epsilon: float) -> float:
    """3ε/(2L): on an L-smooth function (``smoothness`` L) the descent test passes at once for every
    δ below this (thesis, Remark 5.4.1).

    f(x - δm/‖m‖) - f(x) <= -δ‖m‖ + Lδ²/2 < -δ‖m‖/4 when δ < 3‖m‖/(2L), and ‖m‖ > ε.

    Example:
        >>> round(one_inner_step_radius(2.0, 0.1), 9)
        0.075

    *Differs from the paper.* The remark says "always"; on Lx²/2 a larger δ fails the test.
    """
    return 3 * positive("epsilon", epsilon) / (2 * positive("smoothness", smoothness))


# Theorem 5.5.1: Stochastic INGD's parameters from (L, σ, Δ, δ, ε), and the output rule.


@dataclass(frozen=True)
class StochasticTarget:
    """F(Δ, L) seen through gradients with variance at most σ², and the (δ, ε)-stationary point
    asked for.

    Example:
        >>> StochasticTarget(L=1.0, sigma=-1.0, Delta=1.0, delta=1.0, epsilon=0.5)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: sigma must be zero or positive, and finite, got -1.0

    Source: thesis, Assumption 5.3.1, 2. and Theorem 5.5.1.
    """

    L: Positive  # Lipschitz constant of f
    sigma: NonNegative  # σ
    Delta: Positive  # Δ, a bound of f(x_0) - inf f
    delta: Positive  # δ, the radius
    epsilon: Positive  # ε, the accuracy, below L

    def __post_init__(self) -> None:
        if not self.epsilon < self.L:
            fail("epsilon", f"must be below L = {self.L:g}", self.epsilon)

    @property
    def G(self) -> float:
        """G = √(L² + σ²), so that E‖g‖² <= G²."""
        return math.hypot(self.L, self.sigma)


@dataclass(frozen=True)
class StochasticRule:
    """What Algorithm 3 is run with (thesis, Alg. 3).

    Example:
        >>> StochasticRule(beta=0.9, p=1.0, q=4.0, K=3, T=10).output_index(drawn=8)
        5
    """

    beta: float  # β, weight of the old direction
    p: float  # the step size is η_t = 1/(p‖m_t‖ + q)
    q: float  # likewise
    K: int  # how far back the output lies
    T: int  # number of steps

    def output_index(self, drawn: int) -> int:
        """max(i - K, 1), the step whose point is the output (Alg. 3, l. 8-10).

        Args:
            drawn: i, drawn uniformly from 1, ..., T by the caller.
        """
        if not 1 <= whole("drawn", drawn, least=1) <= self.T:
            fail("drawn", f"must lie between 1 and T = {self.T}", drawn)
        return max(drawn - self.K, 1)


def stochastic_rule(constants: StochasticTarget) -> StochasticRule:
    """β, p, q, K, T of Theorem 5.5.1, with whole K and T that keep the proof (thesis, 5.7.3).

    1 - β = ε²/(64G²); K = 64G² ln(16G/ε)/ε² rounded up; p = K/δ, so that K steps of at most 1/p
    stay within δ; q = 4Gp; T = 256 q Δ/ε² · max{1, Gδ/(8Δ)} rounded up.

    Example:
        >>> rule = stochastic_rule(
        ...     StochasticTarget(L=1.0, sigma=0.0, Delta=1.0, delta=1.0, epsilon=0.5)
        ... )
        >>> rule.K, rule.T, rule.p, rule.q
        (888, 3637248, 888.0, 3552.0)

    *Differs from the paper.* The paper has K = pδ, which is not whole: rounding it down loses β^K
    <= ε/(16G), rounding it up leaves the δ-ball. Here K is rounded up and p follows from it.
    """
    G, Delta, delta, epsilon = constants.G, constants.Delta, constants.delta, constants.epsilon
    beta = 1 - epsilon**2 / (64 * G**2)
    K = math.ceil(64 * G**2 * math.log(16 * G / epsilon) / epsilon**2)
    p = K / delta
    q = 4 * G * p
    T = math.ceil(256 * q * Delta / epsilon**2 * max(1.0, G * delta / (8 * Delta)))
    return StochasticRule(beta, p, q, K, T)


def deterministic_rule(constants: NonsmoothTarget) -> StochasticRule:
    """β, p, q, K, T of Algorithm 3 with q = 0 and exact gradients: T of order L²Δ/(ε³δ), up to a
    logarithm (thesis, the remark on q = 0 at the end of 5.5). β, p and K are those of
    ``stochastic_rule`` without noise.

    The thesis gives no constants; these follow from its (5.9). While ‖m_t‖ >= ε/4, dividing (5.9)
    by p‖m_t‖ and a²/b >= 2a - b give mean ‖m_t‖ <= 4(1-β)L²/ε + 2pΔ/T + 2L/(T(1-β)), at most 3ε/16
    with 1-β = ε²/(64L²), T = max{32pΔ/ε, 2048L³/ε³}. So some ‖m_t‖ < ε/4 before T.

    Example:
        >>> rule = deterministic_rule(NonsmoothTarget(L=1.0, Delta=1.0, delta=1.0, epsilon=0.5))
        >>> rule.q, rule.K, rule.T
        (0.0, 888, 56832)
    """
    L, Delta, epsilon = constants.L, constants.Delta, constants.epsilon
    rule = stochastic_rule(StochasticTarget(L, 0.0, Delta, constants.delta, epsilon))
    T = math.ceil(max(32 * rule.p * Delta / epsilon, 2048 * (L / epsilon) ** 3))
    return replace(rule, q=0.0, T=T)


def smooth_target(constants: StochasticTarget, smoothness: Positive) -> StochasticTarget:
    """What Stochastic INGD is asked for so that an ε-stationary point of a smooth function comes
    out: (ε/(3L'), ε/3)-stationarity (Proposition 5.3.1), which costs ε⁻⁵ (thesis, end of 5.5).

    Args:
        constants: ``epsilon`` is the accuracy asked for; ``delta`` is replaced.
        smoothness: L', the Lipschitz constant of the gradient.

    Example:
        >>> c = StochasticTarget(L=1.0, sigma=0.0, Delta=1.0, delta=9.0, epsilon=0.6)
        >>> found = smooth_target(c, smoothness=2.0)
        >>> round(found.delta, 9), round(found.epsilon, 9)
        (0.1, 0.2)
    """
    delta, epsilon = stationarity_radius(smoothness, constants.epsilon)
    return replace(constants, delta=delta, epsilon=epsilon)


def mean_direction_bound(constants: StochasticTarget) -> float:
    """ε/4, an upper bound of (1/T) Σ_t E‖m_t‖ (5.8) (thesis, Theorem 5.5.1).

    Example:
        >>> mean_direction_bound(
        ...     StochasticTarget(L=1.0, sigma=0.0, Delta=1.0, delta=1.0, epsilon=0.5)
        ... )
        0.125
    """
    return constants.epsilon / 4
