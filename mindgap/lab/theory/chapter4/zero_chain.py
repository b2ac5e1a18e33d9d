"""Theorem 4.4.4 with Lemmas 4.7.9 and 4.7.10: the zero-chain, its oracle, and the lower bound
they give.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from mindgap.base.check import fail
from mindgap.base.checked import Count, Order, Positive, Range, Vectors
from mindgap.lab.theory.function import Function, namespace

# Lemmas 4.7.9 and 4.7.10: the zero-chain f_d and its probability-p oracle.
# A gradient of f_d shows at most one coordinate beyond those that are already large; the oracle
# shows it only with probability p. A method that moves only along gradients it has seen needs about
# d/p of them to finish the chain. *Differs from the paper*: prog is 0 for a vector without large
# entries (the text says "in [d]"). The proof of Lemma 4.7.10 loses a factor two between its first
# two lines; the lemma holds with constants 1 and 1 in place of 2 and 2, because only one coordinate
# is noisy and (u + v)^(α/2) <= u^(α/2) + v^(α/2).

_ROOT = math.sqrt(2 * math.pi * math.e)  # Φ(∞)

#: Smoothness constant of f_d (Lemma 4.7.9, 2).
CHAIN_SMOOTHNESS = 152

#: β of the prog_β by which the oracle tells the next coordinate (thesis, 4.7.7).
LARGE_ENTRY = 0.25


def psi(x: Any) -> Any:
    """Ψ(x) = exp(1 - 1/(2x-1)²) for x > 1/2, else 0; entry by entry, for numpy or torch.

    Example:
        >>> psi(np.array([0.5, 1.0])).tolist()
        [0.0, 1.0]
    """
    xp = namespace(x)
    # u = 2x - 1; 1 where the branch is not taken, so that autograd never divides by 0.
    u = xp.where(x > 0.5, 2 * x - 1, x * 0 + 1)
    return xp.where(x > 0.5, xp.exp(1 - 1 / (u * u)), x * 0)


def psi_slope(x: Any) -> Any:
    """Ψ'(x) = 4 Ψ(x)/(2x-1)³ for x > 1/2, else 0.

    Example:
        >>> psi_slope(np.array([0.0, 1.0])).tolist()
        [0.0, 4.0]
    """
    u = namespace(x).where(x > 0.5, 2 * x - 1, x * 0 + 1)
    return 4 * psi(x) / (u * u * u)


def phi(x: Any) -> Any:
    """Φ(x) = √e ∫_{-∞}^x e^(-t²/2) dt = √(2πe)·(1/2) erfc(-x/√2), entry by entry, for numpy or
    torch (thesis, 4.7.7).

    Example:
        >>> round(float(phi(np.array(0.0))), 9) == round(math.sqrt(2 * math.pi * math.e) / 2, 9)
        True
    """
    xp = namespace(x)
    if xp is np:
        from scipy.special import erfc
    else:
        erfc = xp.special.erfc
    return _ROOT / 2 * erfc(-x / math.sqrt(2))


def phi_slope(x: Any) -> Any:
    """Φ'(x) = √e e^(-x²/2).

    Example:
        >>> float(phi_slope(np.array(1.0)))
        1.0
    """
    return namespace(x).exp(0.5 - x * x / 2)


def prog(x: np.ndarray, beta: float) -> Any:
    """prog_β(x): the highest index (from 1) with |x_i| > β along the last axis, 0 if there is none
    (thesis, 4.7.7).

    Example:
        >>> prog(np.array([[0.0, 2.0, 0.1], [0.0, 0.0, 0.0]]), 1.0).tolist()
        [2, 0]
    """
    index = np.arange(1, x.shape[-1] + 1)
    return (index * (np.abs(x) > beta)).max(-1)


@dataclass(frozen=True)
class ZeroChain(Function):
    """f_d(x) = -Ψ(1)Φ(x_1) + Σ_{i>=2} [Ψ(-x_{i-1})Φ(-x_i) - Ψ(x_{i-1})Φ(x_i)] (thesis, 4.7.7).

    Properties (Lemma 4.7.9): f_d(0) - inf f_d <= 12 d; 152-smooth; ‖∇f_d‖_∞ <= 23;
    prog_0(∇f_d(x)) <= prog_{1/2}(x) + 1; prog_1(x) < d implies ‖∇f_d(x)‖ >= 1.

    Example:
        >>> f = ZeroChain(3)
        >>> np.flatnonzero(f.gradient(np.zeros(3))).tolist()  # only the first coordinate shows
        [0]
    """

    dimension: Count

    def value(self, x: Vectors) -> Any:
        """f_d along the last axis, which falls away."""
        previous, current = x[..., :-1], x[..., 1:]  # x_{i-1} and x_i for i >= 2
        chain = psi(-previous) * phi(-current) - psi(previous) * phi(current)
        return chain.sum(-1) - phi(x[..., 0])

    def gradient(self, x: Vectors) -> Any:
        """∇f along the last axis, shape of ``x``.

        Entry x_i stands in term i of the sum (as ``current``) and in term i+1 (as ``previous``);
        its derivative adds both.
        """
        xp = namespace(x)
        previous, current = x[..., :-1], x[..., 1:]
        # Derivatives by x_1, by each ``current`` and by each ``previous`` entry.
        by_first = -phi_slope(x[..., :1])  # of the term -Ψ(1)Φ(x_1), with Ψ(1) = 1
        by_current = -phi_slope(current) * (psi(-previous) + psi(previous))
        by_previous = -psi_slope(-previous) * phi(-current) - psi_slope(previous) * phi(current)
        return xp.concatenate([by_first, by_current], -1) + xp.concatenate(
            [by_previous, x[..., :1] * 0], -1
        )


@dataclass(frozen=True)
class ChainOracle:
    """g_d(x)_i = (1 + 1{i = prog_{1/4}(x) + 1}(z/p - 1)) ∂_i f_d(x) with z ~ Bernoulli(p).

    In words: the entry after the last large one is multiplied by z/p, all others are exact.

    Example:
        >>> oracle = ChainOracle(ZeroChain(2), probability=0.5)
        >>> int(np.count_nonzero(oracle.gradient(np.zeros(2), np.array(0))))
        0

    Source: thesis, 4.7.7, Lemma 4.7.10.
    """

    chain: ZeroChain
    probability: Annotated[float, Range(0, 1, "(]")]  # p

    def gradient(self, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        """The stochastic gradient at points ``x``, (..., d), for draws ``z`` (0 or 1), (...)."""
        return self.with_noise(self.chain.gradient(x), x, z)

    def with_noise(self, exact: np.ndarray, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        """The stochastic gradient from an exact gradient (or a multiple of it) that is already
        known: the entry after the last large one times z/p. Shape of ``exact``.

        Args:
            exact: the gradients at ``x``, shape (..., d).
            x: points, shape (..., d).
            z: draws of Bernoulli(p), 0 or 1, shape (...).
        """
        next_entry = np.arange(1, self.chain.dimension + 1) == (prog(x, LARGE_ENTRY) + 1)[..., None]
        return np.where(next_entry, (z / self.probability)[..., None], 1.0) * exact

    def moment(self, x: np.ndarray, alpha: Order) -> np.ndarray:
        """E‖g_d(x)‖^α of every point, an exact sum over z = 0 and z = 1.

        Args:
            x: shape (..., d).
            alpha: α in (1, 2].

        Returns:
            Shape (...).
        """
        p = self.probability
        power_if_0, power_if_1 = (
            np.linalg.norm(self.gradient(x, np.full(x.shape[:-1], z)), axis=-1) ** alpha
            for z in (0, 1)
        )
        return (1 - p) * power_if_0 + p * power_if_1


# Theorem 4.4.4: on smooth non-convex functions no method beats k^(-(α-1)/(3α-2)); the scaled
# zero-chain. *Differs from the paper*: p is printed as (5000ε)^α/(G - 4√(ΔL))^α; the moment bound
# needs the exponent α/(α-1), as the next display of the proof has it (equal only at α = 2). With
# the printed p the number of steps grows like ε^(-2-α), not ε^(-(3α-2)/(α-1)). The last display
# drops the 2 of 2p and the 1 of d - 1.


@dataclass(frozen=True)
class HardChain:
    """f(x) = (Lλ²/152) f_d(x/λ) with λ = 304ε/L, d = ⌊ΔL/(7296ε²)⌋, and its probability-p oracle
    (thesis, 4.7.7).

    f is L-smooth, f(0) - f* <= Δ, E‖g‖^α <= G^α, and E‖∇f(x_k)‖ >= ε for every zero-respecting
    method (one that moves only along coordinates it has seen) and all k <= (d-1)/(2p). By Lemma
    4.7.9: 152 is the smoothness of f_d, 304 = 2·152 makes ‖∇f‖ >= 2ε, and 7296 = 12·2·304 keeps
    f(0) - f* within Δ, because f_d(0) - inf f_d <= 12d.

    ``lifted._chain_value`` has ``value`` and ``stochastic_gradient`` once more, for autograd.

    Example:
        >>> hard = HardChain(alpha=2.0, L=1.0, delta=7296.0, G=1e4, epsilon=0.25)
        >>> hard.dimension, hard.steps > 10
        (16, True)
    """

    alpha: Order  # α of the moment, in (1, 2]
    L: Positive  # smoothness of f
    delta: Positive  # Δ, a bound of f(0) - f*
    G: float  # moment, above 4√(ΔL)
    epsilon: Positive  # accuracy; small enough that d >= 1 and p <= 1

    def __post_init__(self) -> None:
        excluded_moment = 4 * math.sqrt(self.delta * self.L)
        if excluded_moment >= self.G:
            fail("G", f"must be above 4*sqrt(delta*L) = {excluded_moment:g}", self.G)
        if self.dimension < 1:
            fail(
                "epsilon",
                f"must be at most sqrt(delta*L/7296) = {math.sqrt(self.delta * self.L / 7296):g}",
                self.epsilon,
            )
        if self.probability > 1:
            fail("G", "must be large enough that p <= 1", self.G)

    @property
    def dimension(self) -> int:
        """d = ⌊ΔL/(7296ε²)⌋."""
        # Where the quotient is whole, rounding must not take one off.
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
        """(d-1)/(2p): for so long every zero-respecting method stays at gradient norm ε in
        expectation.
        """
        return (self.dimension - 1) / (2 * self.probability)

    @property
    def oracle(self) -> ChainOracle:
        """The oracle of f_d, unscaled."""
        return ChainOracle(ZeroChain(self.dimension), self.probability)

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """∇f(x) = 2ε ∇f_d(x/λ)."""
        return 2 * self.epsilon * ZeroChain(self.dimension).gradient(x / self.scale)

    def stochastic_gradient(self, x: np.ndarray, z: np.ndarray) -> np.ndarray:
        """g(x) = 2ε g_d(x/λ) for draws ``z`` of Bernoulli(p), as ``ChainOracle.gradient`` takes
        them.
        """
        return 2 * self.epsilon * self.oracle.gradient(x / self.scale, z)

    def value(self, x: np.ndarray) -> np.ndarray:
        """f(x) = (Lλ²/152) f_d(x/λ)."""
        factor = self.L * self.scale**2 / CHAIN_SMOOTHNESS
        return factor * ZeroChain(self.dimension).value(x / self.scale)

    def unfinished_probability(self, k: int) -> float:
        """P(fewer than d successes in k draws of Bernoulli(p)): a lower bound of P(prog_0(x_k) <
        d), the probability that the chain is not finished, exact for the best method.
        """
        from scipy.stats import binom

        return float(binom.cdf(self.dimension - 1, k, self.probability))


def noise_probability(alpha: Order, sigma: Positive, epsilon: Positive) -> float:
    """p with which the oracle's noise has the α-moment σ^α: (2^(1/α)·46 ε/σ)^(α/(α-1)).

    Theorem 4.4.4 is stated for σ (Assumption 4.4.1), its proof bounds E‖g‖^α. The noise has one
    entry 2ε ∂_i f_d (z/p - 1) with |∂_i f_d| <= 23 (Lemma 4.7.9, 3), so E‖g - ∇f‖^α <= 2 (46ε)^α
    p^(1-α), for every σ that makes p <= 1. ``HardChain.probability`` is the p for E‖g‖^α <= G^α.

    Args:
        alpha: α in (1, 2].
        sigma: σ, a bound of (E‖g - ∇f‖^α)^(1/α).
        epsilon: ε of ``HardChain``, the accuracy asked for.

    Example:
        >>> round(noise_probability(2.0, sigma=46.0, epsilon=0.1), 9)  # 2·(4.6/46)²
        0.02

    Source: thesis, Theorem 4.4.4 and 4.7.7.
    """
    least_sigma = 2 ** (1 / alpha) * 46 * epsilon
    if not sigma >= least_sigma:
        fail("sigma", f"must be at least {least_sigma:g}", sigma)
    return float((least_sigma / sigma) ** (alpha / (alpha - 1)))


def nonconvex_lower_bound_steps(
    alpha: float, L: float, delta: float, G: float, epsilon: float
) -> float:
    """The number of stochastic gradients that E‖∇f‖ <= ε needs: (d-1)/(2p) of ``HardChain``, of
    order ε^(-(3α-2)/(α-1)). The arguments are those of ``HardChain``.

    Example:
        >>> nonconvex_lower_bound_steps(2.0, 1.0, 7296.0, 1e4, 0.25) > 10
        True

    Source: thesis, Theorem 4.4.4.
    """
    return HardChain(alpha, L, delta, G, epsilon).steps
