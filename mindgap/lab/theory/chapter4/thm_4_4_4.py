"""Theorem 4.4.4: on smooth non-convex functions no method beats k^(-(α-1)/(3α-2)); the scaled zero-chain.

*Differs from the paper*: p is printed as (5000ε)^α/(G - 4√(ΔL))^α; the moment bound needs the exponent α/(α-1), as the
next display of the proof has it (equal only at α = 2). With the printed p the number of steps grows like ε^(-2-α), not
ε^(-(3α-2)/(α-1)). The last display drops the 2 of 2p and the 1 of d - 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mindgap.base.check import fail
from mindgap.base.checked import Order, Positive
from mindgap.lab.theory.chapter4.lemma_4_7_9 import ChainOracle, ZeroChain


@dataclass(frozen=True)
class HardChain:
    """f(x) = (Lλ²/152) f_d(x/λ) with λ = 304ε/L, d = ⌊ΔL/(7296ε²)⌋, and its probability-p oracle.

    f is L-smooth, f(0) - f* <= Δ, E‖g‖^α <= G^α, and E‖∇f(x_k)‖ >= ε for every zero-respecting method and all
    k <= (d-1)/(2p).

    Args:
        alpha: 1 < α <= 2.
        L: smoothness.
        delta: Δ.
        G: moment, above 4√(ΔL).
        epsilon: accuracy; small enough that d >= 1 and p <= 1.

    Raises:
        RuleError: when a constant is out of range.

    Example:
        >>> hard = HardChain(alpha=2.0, L=1.0, delta=7296.0, G=1e4, epsilon=0.25)
        >>> hard.dimension, hard.steps > 10
        (16, True)

    Source: thesis, 4.7.7.
    """

    alpha: Order
    L: Positive
    delta: Positive
    G: float
    epsilon: Positive

    def __post_init__(self) -> None:
        floor = 4 * math.sqrt(self.delta * self.L)
        if floor >= self.G:
            fail("G", f"must be above 4*sqrt(delta*L) = {floor:g}", self.G)
        if self.dimension < 1:
            fail("epsilon", f"must be at most sqrt(delta*L/7296) = {math.sqrt(self.delta * self.L / 7296):g}",
                 self.epsilon)
        if self.probability > 1:
            fail("G", "must be large enough that p <= 1", self.G)

    @property
    def dimension(self) -> int:
        """d = ⌊ΔL/(7296ε²)⌋."""
        return int(self.delta * self.L / (7296 * self.epsilon**2) * (1 + 1e-12))

    @property
    def scale(self) -> float:
        """λ = 304ε/L."""
        return 304 * self.epsilon / self.L

    @property
    def probability(self) -> float:
        """p with 5000 ε^α p^(1-α) = (G - 4√(ΔL))^α."""
        margin = self.G - 4 * math.sqrt(self.delta * self.L)
        return (5000 * (self.epsilon / margin) ** self.alpha) ** (1 / (self.alpha - 1))

    @property
    def steps(self) -> float:
        """(d-1)/(2p): for so long every zero-respecting method stays at gradient norm ε in expectation."""
        return (self.dimension - 1) / (2 * self.probability)

    @property
    def oracle(self) -> ChainOracle:
        """The unscaled oracle."""
        return ChainOracle(ZeroChain(self.dimension), self.probability)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """∇f(x) = 2ε ∇f_d(x/λ)."""
        return 2 * self.epsilon * ZeroChain(self.dimension).gradient(x / self.scale)

    def stochastic_gradient(self, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        """g(x) = 2ε g_d(x/λ)."""
        return 2 * self.epsilon * self.oracle.gradient(x / self.scale, z)

    def value(self, x: np.ndarray) -> np.ndarray:
        """f(x)."""
        return self.L * self.scale**2 / 152 * ZeroChain(self.dimension).value(x / self.scale)

    def unfinished(self, k: int) -> float:
        """P(fewer than d successes in k draws): a lower bound of P(prog_0(x_k) < d), exact for the best method."""
        from scipy.stats import binom

        return float(binom.cdf(self.dimension - 1, k, self.probability))


def nonconvex_lower_bound_steps(alpha: float, L: float, delta: float, G: float, epsilon: float) -> float:
    """Stochastic gradients that E‖∇f‖ <= ε needs: (d-1)/(2p) of ``HardChain``, of order ε^(-(3α-2)/(α-1)).

    Example:
        >>> nonconvex_lower_bound_steps(2.0, 1.0, 7296.0, 1e4, 0.25) > 10
        True

    Source: thesis, Theorem 4.4.4.
    """
    return HardChain(alpha, L, delta, G, epsilon).steps
