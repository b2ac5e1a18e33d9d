"""Sections 3.3.1 and 3.4: steps and bounds of gradient descent, clipped or not, exact or
stochastic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindgap.base.check import fail
from mindgap.base.checked import Count, Positive
from mindgap.lab.theory.assumptions import BoundedNoise, RelaxedSmooth, accuracy
from mindgap.lab.theory.function import namespace

# Theorem 3.4.1: clipped gradient descent under (L0, L1)-smoothness.
# *Differs from the paper*: the statement says "L-smoothness in S"; the proof uses (L0,
# L1)-smoothness (Assumption 3.3.3). In the proof, "when ε <= ‖∇f‖ <= L0/L1 the step is η" fails for
# L1 < 1/10 and ‖∇f‖ > 10 L0; the decrease is then ‖∇f‖/2 >= 5 L0, so the theorem stands.


@dataclass(frozen=True)
class ClippedStep:
    """h_c(g) = min{η, γη/‖g‖} of (3.5).

    Example:
        >>> step = ClippedStep(eta=0.1, gamma=2.0)
        >>> [round(float(step(n)), 9) for n in (1.0, 4.0)]
        [0.1, 0.05]
    """

    eta: Any  # η, the step for gradients of norm γ or less
    gamma: Any  # γ, the norm above which a gradient is clipped

    def __call__(self, norm: Any) -> Any:
        """The effective step for gradients of that norm."""
        # η γ/max{‖g‖, γ}; ``norm * 0`` makes γ an array or a tensor as ``norm`` is.
        return self.eta * self.gamma / namespace(norm).maximum(norm, norm * 0 + self.gamma)


def clipped_gd_step(constants: RelaxedSmooth) -> ClippedStep:
    """η = 1/(10 L0) and γ = min{1/η, 1/(10 L1 η)} (thesis, Theorem 3.4.1).

    Example:
        >>> clipped_gd_step(RelaxedSmooth(L0=1.0, L1=2.0, delta=1.0))
        ClippedStep(eta=0.1, gamma=0.5)
    """
    eta = 1 / (10 * constants.L0)
    return ClippedStep(eta, 1 / eta if constants.L1 <= 0.1 else 1 / (10 * constants.L1 * eta))


def clipped_gd_bound(constants: RelaxedSmooth, epsilon: Positive) -> float:
    """Most iterations until ‖∇f(x_t)‖ <= ε: 20 L0 Δ/ε² + 20 max{1, L1²} Δ/L0 (thesis, Theorem
    3.4.1).

    Example:
        >>> clipped_gd_bound(RelaxedSmooth(L0=1.0, L1=2.0, delta=1.0), epsilon=0.5)
        160.0
    """
    return (
        20 * constants.L0 * constants.delta / epsilon**2
        + 20 * max(1.0, constants.L1**2) * constants.delta / constants.L0
    )


# 3.3.1: clipped and normalised gradient descent take the same step up to a factor two.
# *Differs from the paper*: the printed chain is h_c/2 <= h_n <= 2 h_c; the right half holds without
# its 2, because min{1/β, 1/‖g‖} >= 1/(‖g‖ + β).


def matching_clipped_step(eta_n: Positive, beta: Positive) -> ClippedStep:
    """The clipped step with γ η_c = η_n and η_c = η_n/β: h_c/2 <= h_n <= h_c for every gradient
    (thesis, 3.3.1).

    Example:
        >>> matching_clipped_step(eta_n=1.0, beta=2.0)
        ClippedStep(eta=0.5, gamma=2.0)
    """
    return ClippedStep(eta_n / beta, beta)


# Theorem 3.4.2: no fixed step is fast on the whole class; it must be short for one function and
# then fails on another. *Differs from the paper*: with x0 = 1 + Δ'/ε the slow function has f(x0) -
# f* = 2Δ' + 5ε/4, so the proof's line gives (Δ - 5ε/4) where the theorem has (Δ - 5ε/8). The
# theorem is true all the same: T_ε ends at ‖∇f‖ <= ε, at x = 2 sin 10° = 0.347, and the steps from
# 1 to there pay for more than the difference (``fixed_step_count``). The exponential function needs
# L0 >= L1, not L0 >= 1 (see ``hard_functions``), and the slow one ε <= L0/3. With
# ``HyperbolicCosine`` in place of the exponential function the same argument holds for every L0 and
# L1 (a test).


def fixed_step_lower_bound(constants: RelaxedSmooth, epsilon: float) -> float:
    """Least iterations to ‖∇f‖ <= ε of the best fixed step on the worst function: L1 M (Δ - 5ε/4) /
    (8 ε² (log M + 1)).

    Args:
        constants: L0 >= L1 >= 1, M > 1 and Δ are used.
        epsilon: accuracy, at most L0/3.

    Example:
        >>> a = RelaxedSmooth(L0=1.0, L1=1.0, delta=1.125, M=math.e)
        >>> round(fixed_step_lower_bound(a, epsilon=0.1), 9)  # e·1/(8·0.01·2)
        16.989261428
        >>> fixed_step_lower_bound(a, epsilon=1.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: epsilon must be below 0.333333, got 1.0

    Source: thesis, 3.7.2: what the proof's own line gives, a little less than Theorem 3.4.2.
    """
    M = constants.need_m()
    if not constants.L1 >= 1:
        fail("L1", "must be at least 1", constants.L1)
    if not constants.L0 >= constants.L1:
        fail("L0", f"must be at least L1 = {constants.L1:g}", constants.L0)
    if not M > 1:
        fail("M", "must be above 1", M)
    accuracy(epsilon, below=constants.L0 / 3 * (1 + 1e-12))
    return (
        constants.L1 * M * (constants.delta - 1.25 * epsilon) / (8 * epsilon**2 * (math.log(M) + 1))
    )


def fixed_step_count(delta: float, epsilon: Positive, h: Positive) -> float:
    """Fewest steps of length h that the slow function of 3.7.2 allows: (Δ + 0.0554 ε)/(4 ε² h).

    T_ε ends at |x| <= 2 sin 10°, where ε(3x - x³) = ε. The distance from x0 = 1 + (Δ - 5ε/4)/(2ε)
    to there is Δ/(2ε) + 3/8 - 2 sin 10°, and a step covers at most 2εh.

    Example:
        >>> round(fixed_step_count(delta=3.0, epsilon=0.1, h=0.112), 3)
        670.88

    Source: thesis, 3.7.2; with h <= (2 log M + 2)/(M L1) it gives Theorem 3.4.2 as printed.
    """
    distance = delta / (2 * epsilon) + 0.375 - 2 * math.sin(math.radians(10))
    return distance / (2 * epsilon * h)


# Theorem 3.4.3: gradient descent with a fixed step, when the gradient is bounded by M on the
# sublevel set.


def gd_step(constants: RelaxedSmooth) -> float:
    """h = 1 / (2 (M L1 + L0)) (thesis, Theorem 3.4.3).

    Example:
        >>> gd_step(RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0, M=9.0))
        0.05
    """
    return 1 / (2 * (constants.need_m() * constants.L1 + constants.L0))


def gd_bound(constants: RelaxedSmooth, epsilon: Positive) -> float:
    """Most iterations until ‖∇f(x_t)‖ <= ε: 4 (M L1 + L0) Δ / ε² (thesis, Theorem 3.4.3).

    The proof's own inequality gives 8/3 in place of 4; ``ToothedSlope`` needs more than 2.

    Example:
        >>> round(gd_bound(RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0, M=9.0), epsilon=0.1), 9)
        4000.0
    """
    return 4 * (constants.need_m() * constants.L1 + constants.L0) * constants.delta / epsilon**2


# Theorem 3.4.4: stochastic clipped gradient descent with bounded noise.
# *Differs from the paper* in two places.
# 1. The step is printed as min{1/(16 η L1 (‖g‖ + τ)), η}; the proof needs 1/(16 L1 (‖g‖ + τ)), as
# its inequality
#    4 L1 ‖∇f‖ h <= 1/4 and (3.15) show. With the printed step a run may never arrive within the
#    theorem's own T (``certificates.chapter3.theorem_3_4_4_step``).
# 2. The proof sums E[h_k ‖∇f‖²/4] <= Δ and goes on with the factor 1/4 lost, then asks for E[min
# ‖∇f‖] <= 2ε where
#    Markov's inequality needs ε/2. Markov's inequality on the sum itself gives, with all factors
#    kept, the bound of ``clipped_sgd_bound``: if every ‖∇f(x_k)‖ > ε for k < T, the sum is above
#    T·min{η ε², ε/(32 L1)}/4, and its expectation is at most Δ. The theorem as stated has Δ·max{128
#    L1/ε, 4Δ/ε⁴, (80 L0 + 512 L1 τ)/ε²}; no proof of it is known to us.


@dataclass(frozen=True)
class StochasticClippedStep:
    """h(g) = min{1/(16 L1 (‖g‖ + τ)), η}.

    Example:
        >>> step = StochasticClippedStep(eta=0.05, L1=1.0, tau=1.0)
        >>> [round(float(step(n)), 9) for n in (0.0, 1.5)]
        [0.05, 0.025]
    """

    eta: Any  # η, the longest step
    L1: Any  # constant of (L0, L1)-smoothness
    tau: Any  # τ, bound of the noise

    def __call__(self, norm: Any) -> Any:
        """The effective step for stochastic gradients of that norm."""
        limit = 1 / (16 * self.L1 * (norm + self.tau))
        # ``limit * 0`` makes η an array or a tensor as ``limit`` is.
        return namespace(norm).minimum(limit, limit * 0 + self.eta)


def clipped_sgd_step(
    constants: RelaxedSmooth, noise: BoundedNoise, horizon: Count
) -> StochasticClippedStep:
    """The step h(g) = min{1/(16 L1 (‖g‖ + τ)), η} with η = min{1/(20 L0), 1/(128 L1 τ), 1/√T}.

    Args:
        constants: L0 and L1 > 0 are used.
        noise: τ.
        horizon: T, the number of iterations planned.

    Example:
        >>> a = RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0)
        >>> clipped_sgd_step(a, BoundedNoise(tau=0.1), horizon=100).eta
        0.05

    Source: thesis, Theorem 3.4.4 and (3.11), with the step of the proof.
    """
    eta = min(
        1 / (20 * constants.L0), 1 / (128 * constants.need_l1() * noise.tau), 1 / math.sqrt(horizon)
    )
    return StochasticClippedStep(eta, constants.L1, noise.tau)


def noisy_delta(constants: RelaxedSmooth, noise: BoundedNoise) -> float:
    """Δ = f(x0) - f* + (5 L0 + 2 L1 τ) τ² + 9 τ L0²/L1.

    Example:
        >>> noisy_delta(RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0), BoundedNoise(tau=1.0))
        17.0
    """
    tau = noise.tau
    return (
        constants.delta
        + (5 * constants.L0 + 2 * constants.L1 * tau) * tau**2
        + 9 * tau * constants.L0**2 / constants.need_l1()
    )


def clipped_sgd_bound(constants: RelaxedSmooth, noise: BoundedNoise, epsilon: Positive) -> float:
    """Iterations after which ‖∇f(x_k)‖ <= ε has happened with probability at least 1/2: Theorem
    3.4.4 as proved, for the steps of ``clipped_sgd_step``.

    Δ·max{64 Δ/ε⁴, 160 L0/ε², 1024 L1 τ/ε², 256 L1/ε} with Δ of ``noisy_delta``. Source: thesis,
    3.7.4.

    Example:
        >>> a = RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0)
        >>> clipped_sgd_bound(a, BoundedNoise(tau=1.0), epsilon=1.0)
        18496.0
    """
    delta = noisy_delta(constants, noise)
    return delta * max(
        64 * delta / epsilon**4,
        160 * constants.L0 / epsilon**2,
        1024 * constants.L1 * noise.tau / epsilon**2,
        256 * constants.L1 / epsilon,
    )


# Theorem 3.4.5: stochastic gradient descent with a fixed step and bounded noise.
# *Differs from the paper*: the statement lost a square. The proof ends with P{(1/T) Σ‖∇f‖² > 2A/√T}
# <= 1/2 where A = f(x0) - f* + (5 L0 + 4 L1 M)(M + τ)²/2, which asks for T >= 4A²/ε⁴; printed is
# (... )/ε⁴ without the square. A slope longer than the noise is large refutes the printed bound (a
# test). M must bound the gradient everywhere, not only on the sublevel set, because the iteration
# may climb; the theorem does not list it.


def sgd_step(constants: RelaxedSmooth, noise: BoundedNoise, horizon: Count) -> float:
    """h = min{1/√T, 1/(L1 (M + τ))} (thesis, Theorem 3.4.5).

    Example:
        >>> sgd_step(
        ...     RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0, M=1.0), BoundedNoise(tau=1.0), horizon=100
        ... )
        0.1
    """
    return min(1 / math.sqrt(horizon), 1 / (constants.need_l1() * (constants.need_m() + noise.tau)))


def sgd_bound(constants: RelaxedSmooth, noise: BoundedNoise, epsilon: Positive) -> float:
    """Iterations after which ‖∇f(x_k)‖ <= ε has happened with probability at least 1/2: Theorem
    3.4.5 as proved, for the fixed step of ``sgd_step``.

    max{(2A)²/ε⁴, L1² (M + τ)²} with 2A = 2(f(x0) - f*) + (5 L0 + 4 L1 M)(M + τ)². The second term
    makes 1/√T the smaller of the two in ``sgd_step``, which the proof takes for granted.

    Example:
        >>> sgd_bound(
        ...     RelaxedSmooth(L0=1.0, L1=1.0, delta=2.0, M=1.0), BoundedNoise(tau=1.0), epsilon=1.0
        ... )
        1600.0
    """
    M = constants.need_m()
    largest = M + noise.tau  # of ‖g‖
    two_A = 2 * constants.delta + (5 * constants.L0 + 4 * constants.need_l1() * M) * largest**2
    return max(two_A**2 / epsilon**4, (constants.L1 * largest) ** 2)


# Lemmas 3.7.1 to 3.7.4: how fast a gradient can grow, and the three error terms of the stochastic
# proof. The expectations of Lemmas 3.7.2 to 3.7.4 are computed as exact sums over a finite noise
# law.

Array = np.ndarray


def gradient_growth_bound(constants: RelaxedSmooth, norm: Array | float) -> Array | float:
    """Lemma 3.7.1: ‖∇f(x⁺)‖ <= 4 (L0/L1 + ‖∇f(x)‖) whenever ‖x⁺ - x‖ <= min{1/L1, 1}, the right
    side for ``norm``, ‖∇f(x)‖.

    Grönwall's inequality gives e in place of 4, and less: e·(L0/L1 + ‖∇f(x)‖) - L0/L1.

    Example:
        >>> gradient_growth_bound(RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0), 2.0)
        12.0
    """
    return 4 * (constants.L0 / constants.need_l1() + norm)


def error_terms(
    constants: RelaxedSmooth,
    noise: BoundedNoise,
    step: StochasticClippedStep,
    gradient: Array,
    values: Array,
    weights: Array,
) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """The three terms T1, T2, T3 of (3.13), and the three bounds of Lemmas 3.7.2, 3.7.3 and 3.7.4,
    as exact sums over a noise that takes m values.

    With g = ∇f + ξ and c = 5 L0 + 4 L1 ‖∇f‖: T1 = -E h⟨∇f, ξ⟩, T2 = c E h²⟨∇f, ξ⟩ and T3 =
    (c/2) E h²‖ξ‖².

    Args:
        constants: of the function; L0 and L1 > 0 are used.
        noise: τ.
        step: h(g) with η inside (3.11).
        gradient: ∇f(x), shape (d,).
        values: support of the noise ξ, shape (m, d), norms at most τ.
        weights: probabilities, shape (m,), with mean zero noise.

    Returns:
        ((T1, T2, T3), (their bounds)).

    Example:
        >>> a, noise = RelaxedSmooth(L0=1.0, L1=1.0, delta=1.0), BoundedNoise(tau=1.0)
        >>> terms, bounds = error_terms(
        ...     a,
        ...     noise,
        ...     StochasticClippedStep(1 / 128, 1.0, 1.0),
        ...     np.array([3.0]),
        ...     np.array([[-1.0], [1.0]]),
        ...     np.array([0.5, 0.5]),
        ... )
        >>> all(left <= right for left, right in zip(terms, bounds))
        True
    """
    unbiased = np.allclose(weights @ values, 0, atol=1e-9 * noise.tau)
    if not unbiased or not np.isclose(weights.sum(), 1):
        fail("weights", "must be probabilities that make the noise unbiased", weights)
    norm = float(np.linalg.norm(gradient))
    # h of every value of the noise.
    steps = step(np.linalg.norm(gradient + values, axis=1))
    products = values @ gradient  # ⟨∇f, ξ⟩ of every value
    c = 5 * constants.L0 + 4 * constants.L1 * norm
    mean_step = float(weights @ steps)  # E h
    terms = (
        float(-weights @ (steps * products)),
        float(c * (weights @ (steps**2 * products))),
        float(c / 2 * (weights @ (steps**2 * (values**2).sum(1)))),
    )
    eta, tau = step.eta, noise.tau
    bounds = (
        mean_step * norm**2 / 4,
        9 * eta**2 * tau * constants.L0**2 / constants.need_l1() + mean_step * norm**2 / 8,
        (5 * constants.L0 + 2 * constants.L1 * tau) * eta**2 * tau**2 + mean_step * norm**2 / 8,
    )
    return terms, bounds
