"""Formulas as the papers print them, where the print is wrong and only tests use it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from mindgap.base.check import whole
from mindgap.lab.theory.assumptions import (
    BoundedNoise,
    HeavyTail,
    RelaxedSmooth,
    StronglyConvexMoment,
    accuracy,
)
from mindgap.lab.theory.chapter3.section_3_2 import DeepLinear
from mindgap.lab.theory.chapter3.section_3_4 import StochasticClippedStep
from mindgap.lab.theory.chapter4.upper_bounds import ConstantClip, gclip_step, gclip_threshold  # noqa: F401
from mindgap.lab.theory.chapter5.ingd import StochasticTarget


def printed_gradient(net: DeepLinear, layer: int, w: np.ndarray) -> np.ndarray:
    """∇_{vec(W_i)} as printed: ((W_ℓ⋯W_{i+1}) ⊗ (W_{i-1}⋯W_1 X)ᵀ)ᵀ vec(f(X) - Y), half of the
    gradient.

    Args:
        net: the network.
        layer: i, counted from 1.
        w: one flat point.

    Example:
        >>> net = DeepLinear(np.ones((1, 1)), np.ones((1, 1)), hidden=(1,))
        >>> printed_gradient(net, 1, np.array([2.0, 3.0])).tolist()
        [15.0]
    """
    weights, inputs, residual = net._forward(w)
    above = np.eye(net.widths[-1])
    for W in reversed(weights[layer:]):
        above = above @ W
    return np.kron(above, inputs[layer - 1].T).T @ residual.reshape(-1)


def printed_step(step: StochasticClippedStep) -> StochasticClippedStep:
    """The step as printed in the theorem and in (3.11), with its extra η: 1/(16 η L1 (‖g‖ + τ)).

    Example:
        >>> printed_step(StochasticClippedStep(eta=0.1, L1=1.0, tau=1.0)).L1
        0.1
    """
    return StochasticClippedStep(step.eta, step.eta * step.L1, step.tau)


def printed_sgd_bound(a: RelaxedSmooth, noise: BoundedNoise, epsilon: float) -> float:
    """The theorem as stated: (f(x0) - f* + (5 L0 + 4 L1 M)(M + τ)²)/ε⁴.

    Example:
        >>> printed_sgd_bound(
        ...     RelaxedSmooth(L0=1.0, L1=1.0, delta=2.0, M=1.0), BoundedNoise(tau=1.0), epsilon=1.0
        ... )
        38.0

    Source: thesis, Theorem 3.4.5.
    """
    accuracy(epsilon)
    M = a.need_m()
    return (a.delta + (5 * a.L0 + 4 * a.need_l1() * M) * (M + noise.tau) ** 2) / epsilon**4


def printed_parameters(a: HeavyTail, K: int) -> ConstantClip:
    """As stated: η = min{1/(4L), 1/(L(12σ)^(α/(α-1))), (f0/(σ²K))^(α/(3α-2))/L^((2α-2)/(3α-2))}, τ
    = σ(ηL)^(-1/α).

    Example:
        >>> printed_parameters(HeavyTail(alpha=2.0, sigma=0.01, L=1.0, delta=1.0), K=100).eta
        0.25
    """
    whole("K", K, least=1)
    al = a.alpha
    rate = (a.delta / (a.sigma**2 * K)) ** (al / (3 * al - 2)) / a.L ** (
        (2 * al - 2) / (3 * al - 2)
    )
    eta = min(1 / (4 * a.L), 1 / (a.L * (12 * a.sigma) ** (al / (al - 1))), rate)
    return ConstantClip(eta, a.sigma * (eta * a.L) ** (-1 / al))


def printed_nonconvex_bound(a: HeavyTail, K: int, *, last_term_as_proved: bool = False) -> float:
    """The stated bound of (1/K) Σ E min{‖∇f‖, ‖∇f‖²}, with its last term as printed or as proved.

    Example:
        >>> a = HeavyTail(alpha=2.0, sigma=10.0, L=1.0, delta=1.0)
        >>> [
        ...     round(printed_nonconvex_bound(a, 10**8, last_term_as_proved=proved), 4)
        ...     for proved in (False, True)
        ... ]
        [0.0029, 0.02]
    """
    whole("K", K, least=1)
    al, f0 = a.alpha, a.delta
    e = (2 * al - 2) / (3 * al - 2)
    if last_term_as_proved:
        last = a.sigma ** (2 * al / (3 * al - 2)) * (a.L * f0 / K) ** e
    else:
        last = f0 * a.L**e * (f0 / (K * a.sigma**2)) ** e
    return 20 * max(4 * a.L * f0 / K, a.L * (12 * a.sigma) ** (al / (al - 1)) * f0 / K, last)


def printed_threshold(a: StronglyConvexMoment, k: Any) -> Any:
    """τ_k = G k^(α-1), as printed in the theorem; a test shows its rate to be slower.

    Example:
        >>> printed_threshold(StronglyConvexMoment(alpha=2.0, G=3.0, mu=1.0), 4)
        12.0
    """
    return a.G * k ** (a.alpha - 1)


def one_step_terms(a: StronglyConvexMoment, k: Any, tau: Any) -> Any:
    """k·(4 G^(2α) τ^(2-2α)/μ + η_k G^α τ^(2-α)/2): what the proof bounds by 8 G² k^((2-α)/α)/μ at
    step k.

    Example:
        >>> a = StronglyConvexMoment(alpha=2.0, G=1.0, mu=1.0)
        >>> round(float(one_step_terms(a, 4, gclip_threshold(a, 4))), 9)
        5.6

    Source: thesis, 4.7.2.
    """
    al, G = a.alpha, a.G
    return k * (
        4 * G ** (2 * al) * tau ** (2 - 2 * al) / a.mu
        + gclip_step(a, k) * G**al * tau ** (2 - al) / 2
    )


def printed_rule(c: StochasticTarget) -> dict[str, float]:
    """G, β, p, q, K, T exactly as stated, without rounding (thesis, Theorem 5.5.1).

    Example:
        >>> rule = printed_rule(
        ...     StochasticTarget(L=1.0, sigma=0.0, Delta=1.0, delta=1.0, epsilon=0.5)
        ... )
        >>> round(rule["K"], 3), round(rule["T"])
        (887.228, 3634087)
    """
    G, logarithm = c.G, math.log(16 * c.G / c.epsilon)
    p = 64 * G**2 * logarithm / (c.delta * c.epsilon**2)
    T = 2**16 * G**3 * c.Delta * logarithm / (c.epsilon**4 * c.delta)
    return {
        "G": G,
        "beta": 1 - c.epsilon**2 / (64 * G**2),
        "p": p,
        "q": 4 * G * p,
        "K": p * c.delta,
        "T": T * max(1.0, G * c.delta / (8 * c.Delta)),
    }
