"""Theorem 5.5.1: Stochastic INGD's parameters from (L, σ, Δ, δ, ε), and the output rule."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mindgap.base.check import fail, whole
from mindgap.base.checked import NonNegative, Positive


@dataclass(frozen=True)
class StochasticTarget:
    """F(Δ, L) seen through gradients with variance at most σ², and the (δ, ε)-stationary point asked for.

    Args:
        L: Lipschitz constant of f, positive.
        sigma: σ, E‖g - ∂f‖² <= σ², zero or positive.
        Delta: Δ >= f(x_1) - inf f, positive.
        delta: δ, positive.
        epsilon: ε, positive and below L (every point is L-stationary).

    Example:
        >>> StochasticTarget(L=1.0, sigma=-1.0, Delta=1.0, delta=1.0, epsilon=0.5)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: sigma must be zero or positive, and finite, got -1.0

    Source: thesis, Assumption 5.3.1, 2. and Theorem 5.5.1.
    """

    L: Positive
    sigma: NonNegative
    Delta: Positive
    delta: Positive
    epsilon: Positive

    def __post_init__(self) -> None:
        if not self.epsilon < self.L:
            fail("epsilon", f"must be below L = {self.L:g}", self.epsilon)

    @property
    def G(self) -> float:
        """G = √(L² + σ²), so that E‖g‖² <= G²."""
        return math.hypot(self.L, self.sigma)


@dataclass(frozen=True)
class StochasticRule:
    """What Algorithm 3 is run with.

    Attributes:
        beta: weight of the old direction.
        p, q: step size η_t = 1/(p‖m_t‖ + q).
        K: how far back the output lies.
        T: number of steps.

    Example:
        >>> StochasticRule(beta=0.9, p=1.0, q=4.0, K=3, T=10).output_index(drawn=8)
        5

    Source: thesis, Alg. 3.
    """

    beta: float
    p: float
    q: float
    K: int
    T: int

    def output_index(self, drawn: int) -> int:
        """max(i - K, 1) for an i drawn uniformly from 1, ..., T (Alg. 3, l. 8-10)."""
        if not 1 <= whole("drawn", drawn, least=1) <= self.T:
            fail("drawn", f"must lie between 1 and T = {self.T}", drawn)
        return max(drawn - self.K, 1)


def stochastic_rule(constants: StochasticTarget) -> StochasticRule:
    """β, p, q, K, T of Theorem 5.5.1, with whole K and T that keep the proof.

    1 - β = ε²/(64G²); K = 64G² ln(16G/ε)/ε² rounded up; p = K/δ, so that K steps of at most 1/p stay within δ;
    q = 4Gp; T = 256 q Δ/ε² · max{1, Gδ/(8Δ)} rounded up.

    Args:
        constants: (L, σ, Δ, δ, ε).

    Example:
        >>> rule = stochastic_rule(StochasticTarget(L=1.0, sigma=0.0, Delta=1.0, delta=1.0, epsilon=0.5))
        >>> rule.K, rule.T, rule.p, rule.q
        (888, 3637248, 888.0, 3552.0)

    Source: thesis, Theorem 5.5.1 and 5.7.3.

    *Differs from the paper.* The paper has K = pδ, which is not whole: rounding it down loses β^K <= ε/(16G),
    rounding it up leaves the δ-ball. Here K is rounded up and p follows from it.
    """
    c, G = constants, constants.G
    K = math.ceil(64 * G**2 * math.log(16 * G / c.epsilon) / c.epsilon**2)
    p = K / c.delta
    q = 4 * G * p
    T = math.ceil(256 * q * c.Delta / c.epsilon**2 * max(1.0, G * c.delta / (8 * c.Delta)))
    return StochasticRule(1 - c.epsilon**2 / (64 * G**2), p, q, K, T)


def printed_rule(constants: StochasticTarget) -> dict[str, float]:
    """G, β, p, q, K, T exactly as stated, without rounding.

    Example:
        >>> rule = printed_rule(StochasticTarget(L=1.0, sigma=0.0, Delta=1.0, delta=1.0, epsilon=0.5))
        >>> round(rule["K"], 3), round(rule["T"])
        (887.228, 3634087)

    Source: thesis, Theorem 5.5.1.
    """
    c, G = constants, constants.G
    logarithm = math.log(16 * G / c.epsilon)
    p = 64 * G**2 * logarithm / (c.delta * c.epsilon**2)
    T = 2**16 * G**3 * c.Delta * logarithm / (c.epsilon**4 * c.delta) * max(1.0, G * c.delta / (8 * c.Delta))
    return {"G": G, "beta": 1 - c.epsilon**2 / (64 * G**2), "p": p, "q": 4 * G * p, "K": p * c.delta, "T": T}


def mean_direction_bound(constants: StochasticTarget) -> float:
    """ε/4, an upper bound of (1/T) Σ_t E‖m_t‖ (5.8).

    Example:
        >>> mean_direction_bound(StochasticTarget(L=1.0, sigma=0.0, Delta=1.0, delta=1.0, epsilon=0.5))
        0.125

    Source: thesis, Theorem 5.5.1.
    """
    return constants.epsilon / 4


def mean_distance_bound(constants: StochasticTarget) -> float:
    """ε/3, an upper bound of E d(0, ∂f(x_out + δB)) at the output; so x_out is (δ, ε)-stationary with chance 2/3.

    Example:
        >>> mean_distance_bound(StochasticTarget(L=1.0, sigma=0.0, Delta=1.0, delta=1.0, epsilon=0.75))
        0.25

    Source: thesis, last display of 5.7.5.
    """
    return constants.epsilon / 3


def three_terms(constants: StochasticTarget, rule: StochasticRule) -> tuple[float, float, float]:
    """4qΔ/T, 2βG²/(T(1-β)) and 2(1-β)G²/β: the right side of (5.14), whose sum is at most ε²/17.

    Example:
        >>> c = StochasticTarget(L=1.0, sigma=0.0, Delta=1.0, delta=1.0, epsilon=0.5)
        >>> sum(three_terms(c, stochastic_rule(c))) <= 0.5**2 / 17
        True

    Source: thesis, (5.14) and (5.15).
    """
    G2, keep = constants.G**2, rule.beta
    return 4 * rule.q * constants.Delta / rule.T, 2 * keep * G2 / (rule.T * (1 - keep)), 2 * (1 - keep) * G2 / keep
