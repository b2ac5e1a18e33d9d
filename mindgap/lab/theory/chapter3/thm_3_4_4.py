"""Theorem 3.4.4: stochastic clipped gradient descent with bounded noise.

*Differs from the paper* in two places.

1. The step is printed as min{1/(16 η L1 (‖g‖ + τ)), η}; the proof needs 1/(16 L1 (‖g‖ + τ)), as its inequality
   4 L1 ‖∇f‖ h <= 1/4 and (3.15) show. As printed it diverges (a test).
2. The proof sums E[h_k ‖∇f‖²/4] <= Δ and goes on with the factor 1/4 lost, then asks for E[min ‖∇f‖] <= 2ε where
   Markov's inequality needs ε/2. Markov's inequality on the sum itself gives, with all factors kept, the bound of
   ``clipped_sgd_bound``: if every ‖∇f(x_k)‖ > ε for k < T, the sum is above T·min{η ε², ε/(32 L1)}/4, and its
   expectation is at most Δ. ``printed_bound`` is the theorem as stated; no proof of it is known to us.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from mindgap.base.check import whole
from mindgap.lab.theory.assumptions import BoundedNoise, RelaxedSmooth, accuracy
from mindgap.lab.theory.function import namespace


@dataclass(frozen=True)
class StochasticClippedStep:
    """h(g) = min{1/(16 L1 (‖g‖ + τ)), η}.

    Example:
        >>> step = StochasticClippedStep(eta=0.05, L1=1.0, tau=1.0)
        >>> [round(float(step(n)), 9) for n in (0.0, 1.5)]
        [0.05, 0.025]
    """

    eta: Any
    L1: Any
    tau: Any

    def __call__(self, norm: Any) -> Any:
        """The effective step for stochastic gradients of that norm."""
        limit = 1 / (16 * self.L1 * (norm + self.tau))
        return namespace(norm).minimum(limit, limit * 0 + self.eta)


def clipped_sgd_step(a: RelaxedSmooth, noise: BoundedNoise, horizon: int) -> StochasticClippedStep:
    """η = min{1/(20 L0), 1/(128 L1 τ), 1/√T} and the step built from it.

    Args:
        a: L0 and L1 > 0.
        noise: τ.
        horizon: T, the number of iterations planned.

    Example:
        >>> a = RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0)
        >>> clipped_sgd_step(a, BoundedNoise(tau=0.1), horizon=100).eta
        0.05

    Source: thesis, Theorem 3.4.4 and (3.11), with the step of the proof.
    """
    whole("horizon", horizon, least=1)
    eta = min(1 / (20 * a.L0), 1 / (128 * a.need_l1() * noise.tau), 1 / math.sqrt(horizon))
    return StochasticClippedStep(eta, a.L1, noise.tau)


def noisy_delta(a: RelaxedSmooth, noise: BoundedNoise) -> float:
    """Δ = f(x0) - f* + (5 L0 + 2 L1 τ) τ² + 9 τ L0²/L1.

    Example:
        >>> noisy_delta(RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0), BoundedNoise(tau=1.0))
        17.0
    """
    tau = noise.tau
    return a.delta + (5 * a.L0 + 2 * a.L1 * tau) * tau**2 + 9 * tau * a.L0**2 / a.need_l1()


def clipped_sgd_bound(a: RelaxedSmooth, noise: BoundedNoise, epsilon: float) -> float:
    """Iterations after which ‖∇f(x_k)‖ <= ε has happened with probability at least 1/2, as the proof gives it.

    Δ·max{64 Δ/ε⁴, 160 L0/ε², 1024 L1 τ/ε², 256 L1/ε}.

    Example:
        >>> a = RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0)
        >>> clipped_sgd_bound(a, BoundedNoise(tau=1.0), epsilon=1.0)
        18496.0

    Source: thesis, 3.7.4.
    """
    accuracy(epsilon)
    d = noisy_delta(a, noise)
    return d * max(64 * d / epsilon**4, 160 * a.L0 / epsilon**2, 1024 * a.L1 * noise.tau / epsilon**2,
                   256 * a.L1 / epsilon)


def printed_bound(a: RelaxedSmooth, noise: BoundedNoise, epsilon: float) -> float:
    """The theorem as stated: Δ·max{128 L1/ε, 4Δ/ε⁴, (80 L0 + 512 L1 τ)/ε²}.

    Example:
        >>> a = RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0)
        >>> printed_bound(a, BoundedNoise(tau=1.0), epsilon=1.0)
        10064.0

    Source: thesis, Theorem 3.4.4.
    """
    accuracy(epsilon)
    d = noisy_delta(a, noise)
    return d * max(128 * a.L1 / epsilon, 4 * d / epsilon**4, (80 * a.L0 + 512 * a.L1 * noise.tau) / epsilon**2)
