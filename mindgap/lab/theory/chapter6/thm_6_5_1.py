"""Theorem 6.5.1: at an invariant distribution a small enough step lowers the expected loss.

With f twice differentiable, E g(θ) = ∇f(θ) and F(θ) = θ - ηg(θ), Taylor's formula along the step gives

    E f(F(θ)) - E f(θ) = -η E‖∇f(θ)‖² + η² E ∫₀¹ (1-s) ⟨g, ∇²f(θ - sηg) g⟩ ds.

At an invariant distribution the left side is zero; with step cη it is negative for small c.
"""

from __future__ import annotations

from dataclasses import dataclass

from mindgap.base.check import fail, non_negative, positive
from mindgap.base.checked import Positive


@dataclass(frozen=True)
class InvariantDistribution:
    """What the theorem needs to know of an invariant distribution of θ -> θ - ηg(θ).

    Args:
        eta: η, the step size.
        grad_square: E‖∇f(θ)‖², positive: the distribution is not carried by stationary points.
        second_moment: E‖g(θ)‖², not below ``grad_square``.
        curvature: a bound of ‖∇²f‖ on all segments [θ, θ - ηg(θ)].

    Example:
        >>> InvariantDistribution(eta=0.5, grad_square=0.0, second_moment=1.0, curvature=1.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: grad_square must be positive and finite, got 0.0

    Source: thesis, Theorem 6.5.1.
    """

    eta: Positive
    grad_square: Positive
    second_moment: float
    curvature: Positive

    def __post_init__(self) -> None:
        if positive("second_moment", self.second_moment) < self.grad_square * (1 - 1e-12):
            fail("second_moment", f"must be at least E‖∇f‖² = {self.grad_square:g}", self.second_moment)

    @property
    def ratio(self) -> float:
        """c = 2 E‖∇f‖² / (η B E‖g‖²): every step η' < cη lowers the expected loss.

        For a quadratic with B equal to its curvature the ratio is exactly 1 at an invariant distribution.

        *Differs from the paper.* The paper only says that some c exists; this one comes from the corrected expansion.
        """
        return 2 * self.grad_square / (self.eta * self.curvature * self.second_moment)

    def change_bound(self, c: float) -> float:
        """-cη E‖∇f‖² + c²η² B E‖g‖²/2, an upper bound of E f(θ - cηg) - E f(θ); negative for 0 < c < ratio."""
        step = non_negative("c", c) * self.eta
        return -step * self.grad_square + step**2 * self.curvature * self.second_moment / 2


def quadratic_invariant(curvature: float, eta: float, sigma: float) -> dict[str, float]:
    """The invariant law of θ -> θ - η(λθ + ξ), Var ξ = σ²: both sides of the two expansions in closed form.

    ``grad_square`` is E‖∇f‖². ``corrected`` is η E ∫₀¹ (1-s)⟨g, Hg⟩ ds, which equals it. ``printed`` is the right
    side of 6.5.2 and 6.7.7, η E⟨∇f - g, Hg⟩, which is negative.

    Args:
        curvature: λ > 0.
        eta: η with 0 < ηλ < 2, else there is no invariant law.
        sigma: standard deviation of ξ.

    Example:
        >>> law = quadratic_invariant(curvature=1.0, eta=0.5, sigma=1.0)
        >>> {k: round(v, 4) for k, v in law.items()}
        {'variance': 0.3333, 'grad_square': 0.3333, 'second_moment': 1.3333, 'corrected': 0.3333, 'printed': -0.5}

    Source: thesis, 6.5.2 and 6.7.7.

    *Differs from the paper.* 6.7.7 has the sign of E[f(θ) - f(F(θ))] reversed, replaces g by g - ∇f in front of the
    Hessian, and forgets the weight (1-s). "Clearly, both sides are positive" (6.5.2) does not hold as printed.
    """
    positive("curvature", curvature)
    positive("sigma", sigma)
    if not 0 < eta * curvature < 2:
        fail("eta", f"must lie in (0, {2 / curvature:g}) for an invariant law", eta)
    variance = eta * sigma**2 / (curvature * (2 - eta * curvature))
    grad_square = curvature**2 * variance
    second_moment = grad_square + sigma**2
    return {
        "variance": variance,
        "grad_square": grad_square,
        "second_moment": second_moment,
        "corrected": eta * curvature * second_moment / 2,
        "printed": -eta * curvature * sigma**2,
    }
