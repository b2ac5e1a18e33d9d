"""Theorems 6.4.1 to 6.4.4 and 6.5.1: time averages, their limits, and steps at an invariant
distribution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from mindgap.base.check import fail, positive
from mindgap.base.checked import Count, Positive, Share

# Theorem 6.4.1: the time-averaged one-step change of a bounded function falls like 1/√n.


@dataclass(frozen=True)
class BoundedValues:
    """φ ∘ F takes values in [-M, M]; the statement is asked for with probability 1 - δ (thesis,
    Theorem 6.4.1).

    Example:
        >>> BoundedValues(M=-1.0, delta=0.05)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: M must be positive and finite, got -1.0
    """

    M: Positive
    delta: Share


def one_step_change_bound(constants: BoundedValues, n: Count) -> float:
    """2M/n + M √(2 ln(2/δ)/n): what |E_{θ~μ_n}[φ(θ) - φ(F(θ))]| stays below with probability 1 - δ.

    The sum telescopes up to φ(F(θ_0)) - φ(F(θ_n)), at most 2M, and martingale differences with
    conditional range 2M, for which Azuma and Hoeffding give the second term. Source: thesis, (6.6)
    and 6.7.1, with the constants that the proof implies.

    Example:
        >>> round(one_step_change_bound(BoundedValues(M=1.0, delta=0.05), 10_000), 4)
        0.0274

    *Differs from the paper.* The paper states O(log(1/δ)/√n); its proof gives √log(2/δ). The
    paper's φ(θ_0) in the telescoped sum must be φ(F(θ_0)): φ is bounded on the image of F only, and
    θ_0 need not lie there.
    """
    return 2 * constants.M / n + constants.M * math.sqrt(2 * math.log(2 / constants.delta) / n)


def one_step_change(values: np.ndarray, expected_next: np.ndarray) -> np.ndarray:
    """|(1/n) Σ_t (φ(θ_t) - E φ(F(θ_t)))| for n = 1, 2, ..., along the last axis (thesis, left side
    of (6.6)).

    Args:
        values: φ(θ_t), shape (..., n).
        expected_next: E[φ(F(θ_t)) | θ_t], the mean over the randomness of one update, same shape.

    Example:
        >>> import numpy as np
        >>> one_step_change(np.array([1.0, 0.0, 1.0]), np.array([0.0, 1.0, 0.0])).round(3)
        array([1.   , 0.   , 0.333])
    """
    differences = np.asarray(values, dtype=float) - np.asarray(expected_next, dtype=float)
    return np.abs(differences.cumsum(axis=-1)) / np.arange(1, differences.shape[-1] + 1)


# Theorems 6.4.3 and 6.4.4: time averages without a limit, and what the empirical measures do
# converge to. The thesis takes its example from a note of Yoccoz. A smaller one does: the shift on
# sequences of zeros and ones, which is θ -> 3θ mod 1 on Cantor's set, started at a sequence whose
# blocks double in length.


def block_average(n: Count) -> Fraction:
    """The share of ones among the first n symbols of a sequence whose blocks double: it swings
    between 1/3 and 2/3 for ever.

    Block j holds 2^j equal symbols, zeros for even j and ones for odd j, j = 0, 1, .... Under the
    shift the share is (1/n) Σ_{k<n} φ(θ_k) with φ = the first symbol.

    Example:
        >>> [str(block_average(2**j - 1)) for j in (2, 3, 4, 5)]
        ['2/3', '2/7', '2/3', '10/31']

    Source: thesis, Theorem 6.4.3.
    """
    # Block j begins after 2^j - 1 symbols and ends after 2^(j+1) - 1; the last one is cut off at n.
    # Only odd blocks hold ones; ``start`` symbols precede block j, and it ends after 2·start + 1.
    starts_of_ones = (2**j - 1 for j in range(1, n.bit_length(), 2))
    ones = sum(min(2 * start + 1, n) - start for start in starts_of_ones)
    return Fraction(ones, n)


def limit_weights(last_symbol: int) -> tuple[Fraction, Fraction]:
    """(weight of 000..., weight of 111...) in the limit of μ_n, where n runs over the ends of the
    blocks of that symbol.

    Along n = 2^j - 1 the measures μ_n converge to a law on the two fixed points of the shift:
    invariant, as Theorem 6.4.4 says, and not ergodic. Source: thesis, Theorem 6.4.4.

    Args:
        last_symbol: 0 or 1, the symbol of the last block.

    Example:
        >>> limit_weights(1)
        (Fraction(1, 3), Fraction(2, 3))

    *Differs from the paper.* The paper calls the limit ergodic; its proof shows that it is
    invariant.
    """
    return (Fraction(1, 3), Fraction(2, 3)) if last_symbol else (Fraction(2, 3), Fraction(1, 3))


def halving_map(theta: float) -> float:
    """F(θ) = θ/2 for θ > 0 and F(0) = 1: maps [0, 1] into itself and has no invariant distribution.

    Its empirical measures converge to the point mass at 0, which F moves to 1. So Theorem 6.4.4
    needs F to be continuous; gradient descent on a function with kinks is not. Source: thesis,
    Theorem 6.4.4 (counter-example to the statement without continuity).

    Example:
        >>> halving_map(1.0), halving_map(0.0)
        (0.5, 1.0)
    """
    return theta / 2 if theta > 0 else 1.0


# Theorem 6.5.1: at an invariant distribution a small enough step lowers the expected loss.
# With f twice differentiable, E g(θ) = ∇f(θ) and F(θ) = θ - ηg(θ), Taylor's formula along the step
# gives
#     E f(F(θ)) - E f(θ) = -η E‖∇f(θ)‖² + η² E ∫₀¹ (1-s) ⟨g, ∇²f(θ - sηg) g⟩ ds.
# At an invariant distribution the left side is zero; with step cη it is negative for small c.


@dataclass(frozen=True)
class InvariantDistribution:
    """What the theorem needs to know of an invariant distribution of θ -> θ - ηg(θ) (thesis,
    Theorem 6.5.1).

    Example:
        >>> InvariantDistribution(eta=0.5, grad_square=0.0, second_moment=1.0, curvature=1.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: grad_square must be positive and finite, got 0.0
    """

    eta: Positive  # η, the step size
    #: E‖∇f(θ)‖², positive: the distribution is not carried by stationary points
    grad_square: Positive
    second_moment: float  # E‖g(θ)‖², not below ``grad_square``
    curvature: Positive  # a bound of ‖∇²f‖ on all segments [θ, θ - ηg(θ)]

    def __post_init__(self) -> None:
        if positive("second_moment", self.second_moment) < self.grad_square * (1 - 1e-12):
            fail(
                "second_moment",
                f"must be at least E‖∇f‖² = {self.grad_square:g}",
                self.second_moment,
            )

    @property
    def ratio(self) -> float:
        """c = 2 E‖∇f‖² / (η B E‖g‖²): every step η' < cη lowers the expected loss.

        For a quadratic with B equal to its curvature the ratio is exactly 1 at an invariant
        distribution.

        *Differs from the paper.* The paper only says that some c exists; this one comes from the
        corrected expansion.
        """
        return 2 * self.grad_square / (self.eta * self.curvature * self.second_moment)
