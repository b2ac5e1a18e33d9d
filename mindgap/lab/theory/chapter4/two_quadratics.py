"""Two lower bounds in one dimension: what a few samples cannot tell apart, and what fixed steps
let through.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from mindgap.base.check import fail, one_of
from mindgap.base.checked import Count, Order, Range
from mindgap.lab.theory.function import Function
from mindgap.lab.theory.noise import Stable, TwoPoint

# Theorem 4.4.3 (= 4.7.6, and Theorems 4 and 6 of acclip): no method beats k^(-2(α-1)/α), shown on
# two quadratics. The two problems f_ν(x) = (x - b_ν)²/2 with the two-point gradients (4.5) differ
# only in the frequency of a rare jump. Everything about them can be computed: the Bayes risk of
# guessing b from k samples is a sum over a binomial law. *Differs from the papers*: in the proof of
# Lemma 4.7.8 the line √(k(γε)²/(4γ^α)) lost a factor 2: (p0-p1)² = 4γ²ε², and the prefactor is k/8.
# Put right it is √(k(γε)²/γ^α) = ¼√(k(4ε)^(α/(α-1))), which implies the lemma. The next printed
# line is not equal to it. At α = 2 the choice of ε gives 1/2 + 1/4 = 3/4, not less; the exact
# probability is below.


@dataclass(frozen=True)
class BernoulliQuadratic(Function):
    """f_ν(x) = (x - b_ν)²/2 on [0, 1/2] with b_ν = (2-ν)ε, and gradients x - 1/(2γ) w.p. p_ν, x
    otherwise.

    Example:
        >>> f = BernoulliQuadratic(alpha=1.5, epsilon=1 / 16, nu=0)
        >>> f.b, f.gamma, f.probability, f.jump
        (0.125, 0.0625, 0.015625, 8.0)

    Source: thesis, (4.2), (4.4), (4.5).
    """

    alpha: Order  # α of the gradients' moment
    epsilon: Annotated[float, Range(0, 0.125, "(]")]  # ε, the distance of the two optima
    nu: int  # ν, which of the two problems: 0 or 1

    def __post_init__(self) -> None:
        one_of("nu", self.nu, (0, 1))

    @property
    def b(self) -> float:
        """The optimum b_ν = (2-ν)ε."""
        return (2 - self.nu) * self.epsilon

    @property
    def gamma(self) -> float:
        """γ = (4ε)^(1/(α-1))."""
        return (4 * self.epsilon) ** (1 / (self.alpha - 1))

    @property
    def probability(self) -> float:
        """p_ν = γ^α - 2νγε."""
        return self.gamma**self.alpha - 2 * self.nu * self.gamma * self.epsilon

    @property
    def jump(self) -> float:
        """1/(2γ)."""
        return 1 / (2 * self.gamma)

    @property
    def noise(self) -> TwoPoint:
        """χ_b = g(x) - ∇f(x), the centred two-point law."""
        return TwoPoint(self.probability, self.jump)

    def value(self, x: Any) -> Any:
        """f_ν(x) = (x - b_ν)²/2, entry by entry."""
        return (x - self.b) * (x - self.b) / 2

    def gradient(self, x: Any) -> Any:
        """f_ν'(x) = x - b_ν."""
        return x - self.b

    def stochastic_gradient(self, x: Any, jumps: Any) -> Any:
        """g(x) of (4.5) for Bernoulli(p_ν) draws ``jumps`` (0 or 1)."""
        return x - self.jump * jumps

    def sample_value(self, x: Any, batch: Any | None) -> Any:
        """x²/2 - x/(2γ)·(mean of the draws), whose gradient is g(x); f itself (up to a
        constant) for ``None``.
        """
        return self.value(x) if batch is None else x * x / 2 - self.jump * batch.mean() * x

    def moment(self, x: Any) -> Any:
        """E|g(x)|^α, an exact sum of two terms; at most 1 on [0, 1/2]."""
        p = self.probability
        return p * np.abs(x - self.jump) ** self.alpha + (1 - p) * np.abs(x) ** self.alpha


def hardest_epsilon(alpha: Order, k: Count) -> float:
    """ε = 1/(16 k^((α-1)/α)), at which k samples cannot tell the two problems apart (thesis,
    4.7.6).

    Example:
        >>> hardest_epsilon(2.0, 4)
        0.03125
    """
    return 1 / (16 * k ** ((alpha - 1) / alpha))


def strongly_convex_lower_bound(alpha: float, k: int) -> float:
    """max_ν E f_ν(x_k) >= ε²/64 = 2^(-14) k^(-2(α-1)/α) for every method with k stochastic
    gradients.

    Example:
        >>> strongly_convex_lower_bound(2.0, 1) == 2.0**-14
        True

    Source: thesis, Theorem 4.4.3 and 4.7.6; acclip, Theorems 4 and 6.
    """
    return hardest_epsilon(alpha, k) ** 2 / 64


def success_bound(alpha: float, epsilon: float, k: int) -> float:
    """Lemma 4.7.8: P(ν' = ν) <= 1/2 + √(k (4ε)^(α/(α-1))) (acclip, Lemma 7).

    Example:
        >>> success_bound(2.0, 1 / 16, 1)
        0.75
    """
    return 0.5 + (k * (4 * epsilon) ** (alpha / (alpha - 1))) ** 0.5


def bayes_risk(alpha: float, epsilon: float, k: Count) -> float:
    """The least E_ν E f_ν(x_k) of any method: half the posterior variance of b after k samples.

    ν is 0 or 1 with probability 1/2 each. With P_ν the probability of c jumps among k samples, it
    is (ε²/4) Σ_c P_0 P_1/(P_0 + P_1), an exact sum. Counts beyond 10,000 jumps are left out.

    Args:
        alpha: α.
        epsilon: ε.
        k: number of samples.

    Example:
        >>> bayes_risk(2.0, hardest_epsilon(2.0, 100), 100) > strongly_convex_lower_bound(2.0, 100)
        True

    Source: thesis, 4.7.6 (the proof bounds it from below).
    """
    from scipy.stats import binom

    counts = np.arange(min(k, 10_000) + 1)
    under_0, under_1 = (
        binom.pmf(counts, k, BernoulliQuadratic(alpha, epsilon, nu).probability) for nu in (0, 1)
    )
    total = under_0 + under_1
    # Where both underflow to 0, so does the product.
    terms = under_0 * under_1 / np.where(total > 0, total, 1.0)
    return epsilon**2 / 4 * float(terms.sum())


# Remark 4.4.1 and appendix A of acclip: fixed steps carry the noise's tail into every iterate.
# On f(x) = x²/2 the iterate is a fixed linear combination of the noise: x_k = A_k x_0 - Σ_j w_j
# ξ_j. With stable noise x_k is stable again, with the same index and an exact scale, so E|x_k|^p is
# infinite for every p >= the index, whatever the steps. *Differs from the papers*: appendix A
# bounds Σ η_j² E‖ξ_j‖² from below by (Σ η_j²) max_j E‖ξ_j‖², which is the wrong direction unless
# the noise is stationary, and loses the 1/2 of f; neither changes the conclusion.


def stable_iterate_law(law: Stable, steps: Sequence[float] | np.ndarray) -> Stable:
    """The exact law of x_k - x_0·Π(1 - η_i) after SGD on x²/2 under stable noise.

    It is stable with the noise's index a, and scale s·(Σ_j |w_j|^a)^(1/a) with w_j = η_j Π_{i>j}(1
    - η_i) (thesis, Remark 4.4.1).

    Args:
        law: of the noise, with a single scale s.
        steps: η_1, ..., η_k, all positive.

    Example:
        >>> stable_iterate_law(Stable(index=1.5), [1.0]).moment(2.0)
        inf
    """
    eta = np.asarray(steps, dtype=float)
    if eta.ndim != 1 or not eta.size or not (eta > 0).all():
        fail("steps", "must be a non-empty list of positive numbers", steps)
    # Π_{i>j} (1 - η_i) for every j; 1 for the last one.
    later_factors = np.concatenate([np.cumprod((1 - eta)[::-1])[::-1][1:], [1.0]])
    weights = np.abs(eta * later_factors)
    growth = float((weights**law.index).sum() ** (1 / law.index))
    return Stable(law.index, float(np.asarray(law.scale)) * growth)
