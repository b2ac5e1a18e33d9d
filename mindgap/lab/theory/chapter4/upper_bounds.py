"""Thresholds, steps and upper bounds of GClip and CClip (the thesis' chapter 4 and acclip)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mindgap.base.check import one_of
from mindgap.base.checked import Count, Order, Positive
from mindgap.lab.theory.assumptions import CoordinateMoment, HeavyTail, StronglyConvexMoment

# Theorem 4.4.1: GClip on smooth non-convex functions when the noise has a bounded α-moment.
# *Differs from the paper*, whose statement is false in several ways and whose proof shows what is
# true:
# * Case 2 of the proof drops a factor τ from ⟨∇f, ĝ⟩, so the descent there is η τ‖∇f‖/12, not
#   η‖∇f‖/12: the quantity that is bounded is min{‖∇f‖², τ‖∇f‖/3}, not min{‖∇f‖², ‖∇f‖}. With a
#   small σ the threshold is small, and the stated bound with its last term put right (below) is
#   refuted by a long slope.
# * The condition η <= 1/(L (12σ)^(α/(α-1))) comes from the same slip (σ has a unit). Case 2 rather
#   needs the τ >= 16σ that the proof mentions, that is η <= 1/(16^α L), which η <= 1/(4L) does not
#   give. The proof's own steps need more: with 8/3 of Lemma 4.7.3 ‖∇f‖/3 - 8σ/3 >= ‖∇f‖/6 asks for
#   ‖∇f‖ >= 16σ, and E[⟨∇f, g⟩; ‖g‖ <= τ] is taken for P(‖g‖ <= τ)‖∇f‖². With ⟨∇f, g⟩ >= ‖∇f‖² -
#   ‖∇f‖‖g - ∇f‖ there, and the sharp 4/3 in Lemma 4.7.3, case 2 gives E⟨∇f, ĝ⟩ >= ‖∇f‖(τ/3 - 8σ/3)
#   >= τ‖∇f‖/6 for τ >= 16σ.
# * The last term of the bound is printed as 20 f0 L^.. (F0/(Kσ²))^(2(α-1)/(3α-2)); the proof's
#   20 f0/(ηK) is 20 σ^(2α/(3α-2)) (L f0/K)^(2(α-1)/(3α-2)). As printed it falls with σ, and is
#   refuted by a large σ, or whenever σ² > 20 f0 (``certificates.chapter4.theorem_4_4_1``).

#: Case 2 needs τ >= 16σ.
THRESHOLD_RATIO = 16.0


@dataclass(frozen=True)
class ConstantClip:
    """A constant step and a constant threshold: the ``lr`` and ``tau`` of GClip.

    Example:
        >>> ConstantClip(eta=0.1, tau=2.0)
        ConstantClip(eta=0.1, tau=2.0)
    """

    eta: Any  # η, the step
    tau: Any  # τ, the threshold


def gclip_nonconvex_parameters(constants: HeavyTail, K: Count) -> ConstantClip:
    """η = min{1/(16^α L), (f0/(σ²K))^(α/(3α-2)) / L^((2α-2)/(3α-2))} and τ = σ (ηL)^(-1/α).

    ``moment_nonconvex_parameters`` has G, the moment of g, for σ, the moment of the noise, and
    needs no minimum.

    Args:
        constants: α, σ, L and f0, its ``delta``.
        K: number of steps.

    Example:
        >>> p = gclip_nonconvex_parameters(
        ...     HeavyTail(alpha=2.0, sigma=1.0, L=1.0, delta=1.0), K=10**8
        ... )
        >>> round(p.eta, 9), round(p.tau, 6)
        (0.0001, 100.0)

    Source: thesis, Theorem 4.4.1 with the conditions that its proof needs.
    """
    alpha, sigma, L = constants.alpha, constants.sigma, constants.L
    decay = (constants.delta / (sigma**2 * K)) ** (alpha / (3 * alpha - 2))
    rate = decay / L ** ((2 * alpha - 2) / (3 * alpha - 2))
    eta = min(1 / (THRESHOLD_RATIO**alpha * L), rate)
    return ConstantClip(eta, sigma * (eta * L) ** (-1 / alpha))


def gclip_nonconvex_bound(constants: HeavyTail, K: int) -> float:
    """(1/K) Σ E min{‖∇f(x_k)‖², τ‖∇f(x_k)‖/3} <= 20 f0/(ηK), k = 0 .. K-1 (thesis, Theorem 4.4.1 as
    proved in 4.7.1).

    That is max{20·16^α L f0/K, 20 σ^(2α/(3α-2)) (L f0/K)^((2α-2)/(3α-2))}.

    Example:
        >>> round(
        ...     gclip_nonconvex_bound(HeavyTail(alpha=2.0, sigma=1.0, L=1.0, delta=1.0), K=10**8), 9
        ... )
        0.002
    """
    return 20 * constants.delta / (gclip_nonconvex_parameters(constants, K).eta * K)


# Theorem 2, Corollary 3 and Theorem 5 of acclip: clipped methods on smooth non-convex functions
# with E‖g‖^α <= G^α. *Differs from the paper*: all three statements lost the factor L that the
# proof of Theorem 2 carries in 4 G^(2α/(3α-2)) (L f0/K)^((2α-2)/(3α-2)). The statement's step has K
# + 1 where the proof has K, which would exceed the bound by a factor ((K+1)/K)^(α/(3α-2)) at most;
# the proof's K is used. Corollary 3 and Theorem 5 say "Assumption 1" for Assumption 2, and
# Corollary 3's √d falls away (see ``norm_moment_upper``).


@dataclass(frozen=True)
class SmoothMoment:
    """L-smooth f with E‖g(x)‖^α <= G^α everywhere and f(x0) - f* = Δ (acclip, Assumption 1 and
    Definition 4).

    For CClip, G stands for ‖B‖_2; for GClip under coordinate-wise moments, for ‖B‖_α.

    Example:
        >>> SmoothMoment(alpha=2.0, G=1.0, L=4.0, delta=1.0).L
        4.0
    """

    alpha: Order  # α
    G: Positive
    L: Positive
    delta: Positive  # Δ


def moment_nonconvex_parameters(constants: SmoothMoment, K: Count) -> ConstantClip:
    """η = (f0/(G²K))^(α/(3α-2)) / L^((2α-2)/(3α-2)) and τ = G (ηL)^(-1/α) (acclip, Theorem 2 and
    E). The twin of ``gclip_nonconvex_parameters``, with G for σ.

    Args:
        constants: α, G, L and f0, its ``delta``.
        K: number of steps.

    Example:
        >>> p = moment_nonconvex_parameters(SmoothMoment(alpha=2.0, G=1.0, L=1.0, delta=1.0), K=100)
        >>> round(p.eta, 9), round(p.tau, 9)
        (0.1, 3.16227766)
    """
    alpha, G, L = constants.alpha, constants.G, constants.L
    decay = (constants.delta / (G**2 * K)) ** (alpha / (3 * alpha - 2))
    eta = decay / L ** ((2 * alpha - 2) / (3 * alpha - 2))
    return ConstantClip(eta, G * (eta * L) ** (-1 / alpha))


def moment_nonconvex_bound(constants: SmoothMoment, K: Count, *, printed: bool = False) -> float:
    """(1/K) Σ_{k<=K} E‖∇f(x_{k-1})‖² <= 4 G^(2α/(3α-2)) (L f0/K)^((2α-2)/(3α-2)), the right side.

    Args:
        constants: α, G, L and f0, its ``delta``.
        K: number of steps.
        printed: whether to return the bound as printed, which lacks L.

    Example:
        >>> round(
        ...     moment_nonconvex_bound(SmoothMoment(alpha=2.0, G=1.0, L=4.0, delta=1.0), K=100), 9
        ... )
        0.8
        >>> round(
        ...     moment_nonconvex_bound(
        ...         SmoothMoment(alpha=2.0, G=1.0, L=4.0, delta=1.0), K=100, printed=True
        ...     ),
        ...     9,
        ... )
        0.4

    Source: acclip, Theorem 2 with the proof's L.
    """
    alpha, G = constants.alpha, constants.G
    base = (1.0 if printed else constants.L) * constants.delta / K  # L f0/K
    return 4 * G ** (2 * alpha / (3 * alpha - 2)) * base ** ((2 * alpha - 2) / (3 * alpha - 2))


def coordinate_moment(alpha: float, B: tuple[float, ...], *, method: str) -> float:
    """The G that Corollary 3 and Theorem 5 put into Theorem 2: ‖B‖_α or ‖B‖_2.

    Args:
        alpha: α.
        B: bounds of the coordinates, E|g_i|^α <= B_i^α.
        method: "gclip" for ‖B‖_α (Corollary 3), "cclip" for ‖B‖_2 (Theorem 5).

    Example:
        >>> coordinate_moment(2.0, (3.0, 4.0), method="cclip")
        5.0

    Source: acclip, Corollary 3 (without its √d) and Theorem 5.
    """
    one_of("method", method, ("gclip", "cclip"))
    order = alpha if method == "gclip" else 2.0
    return sum(b**order for b in B) ** (1 / order)


# Theorem 4.4.2 (= Theorem 1 of acclip): projected GClip on strongly convex functions, with
# k-weighted averaging. *Differs from the papers*. The threshold is printed as τ_k = G k^(α-1); the
# proofs use τ_k = G k^(1/α).
# (proj-GClip) is printed without its projection. In the proof, dividing by K(K+1)/2 gives twice the
# printed 8G²K⁻¹(K+1)^((2-α)/α), and the last display of 4.7.2 has the exponent (2-α)/α for
# (2-2α)/α. The constant 16 is right nevertheless: the two terms add up to 6 G² k^((2-α)/α)/μ where
# the text uses 8, and the sum to (α/2)(K+1)^(2/α), which is enough for K >= 3; for K <= 2 the
# averaged point lies in the domain, where f - f* <= G²/(2μ).


def gclip_step(constants: StronglyConvexMoment, k: Any) -> Any:
    """η_k = 4/(μ(k+1)), k = 1, 2, ...; CClip's step is the same.

    Example:
        >>> gclip_step(StronglyConvexMoment(alpha=1.5, G=1.0, mu=2.0), 1)
        1.0

    Source: thesis, Theorem 4.4.2.
    """
    return 4 / (constants.mu * (k + 1))


def gclip_threshold(constants: StronglyConvexMoment, k: Any) -> Any:
    """τ_k = G k^(1/α), as proved (thesis, 4.7.2; acclip, D).

    Example:
        >>> gclip_threshold(StronglyConvexMoment(alpha=2.0, G=3.0, mu=1.0), 4)
        6.0
    """
    return constants.G * k ** (1 / constants.alpha)


def gclip_bound(constants: StronglyConvexMoment, k: Count) -> float:
    """E f(x̄_k) - f* <= 16 G² / (μ (k+1)^(2(α-1)/α)) with x̄_k = Σ_{j<=k} j x_{j-1} / Σ j, the right
    side. CClip's twin, ``cclip_bound``, has ‖B‖_2 for G.

    Args:
        constants: α, G and μ.
        k: number of steps, at least 1.

    Example:
        >>> gclip_bound(StronglyConvexMoment(alpha=2.0, G=1.0, mu=1.0), 15)
        1.0

    Source: thesis, Theorem 4.4.2; acclip, Theorem 1.
    """
    alpha = constants.alpha
    return 16 * constants.G**2 / (constants.mu * (k + 1) ** (2 * (alpha - 1) / alpha))


# Theorem 4.5.1 (= Theorem 3 of acclip): CClip under coordinate-wise moments, strongly convex.
# *Differs from the papers*: the threshold is printed as B k^(α-1), the proofs use B_i k^(1/α).
# "Independent of d" means that the bound depends on d only through ‖B‖_2.


def cclip_threshold(constants: CoordinateMoment, k: float) -> np.ndarray:
    """τ_{k,i} = B_i k^(1/α), as proved (thesis, 4.7.5; acclip, F.2).

    Example:
        >>> cclip_threshold(CoordinateMoment(alpha=2.0, B=(1.0, 2.0), mu=1.0), 4).tolist()
        [2.0, 4.0]
    """
    return np.asarray(constants.B) * k ** (1 / constants.alpha)


def cclip_bound(constants: CoordinateMoment, k: Count) -> float:
    """E f(x̄_k) - f* <= 16 ‖B‖_2² / (μ (k+1)^(2(α-1)/α)), the right side, x̄_k the average of
    ``gclip_bound`` (thesis, Theorem 4.5.1; acclip, Theorem 3).

    Args:
        constants: α, B and μ.
        k: number of steps, at least 1.

    Example:
        >>> round(cclip_bound(CoordinateMoment(alpha=2.0, B=(3.0, 4.0), mu=1.0), 15), 9)
        25.0
    """
    alpha = constants.alpha
    return 16 * constants.norm(2) ** 2 / (constants.mu * (k + 1) ** (2 * (alpha - 1) / alpha))
