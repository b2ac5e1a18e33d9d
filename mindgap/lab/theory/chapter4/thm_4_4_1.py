"""Theorem 4.4.1: GClip on smooth non-convex functions when the noise has a bounded α-moment.

*Differs from the paper*, whose statement is false in several ways and whose proof shows what is true:

* Case 2 of the proof drops a factor τ from ⟨∇f, ĝ⟩, so the descent there is η τ‖∇f‖/12, not η‖∇f‖/12: the quantity
  that is bounded is min{‖∇f‖², τ‖∇f‖/3}, not min{‖∇f‖², ‖∇f‖}. With a small σ the threshold is small, and the stated
  bound with its last term put right (below) is refuted by a long slope.
* The condition η <= 1/(L (12σ)^(α/(α-1))) comes from the same slip (σ has a unit). Case 2 rather needs the τ >= 16σ
  that the proof mentions, that is η <= 1/(16^α L), which η <= 1/(4L) does not give. The proof's own steps need more:
  with 8/3 of Lemma 4.7.3 ‖∇f‖/3 - 8σ/3 >= ‖∇f‖/6 asks for ‖∇f‖ >= 16σ, and E[⟨∇f, g⟩; ‖g‖ <= τ] is taken for
  P(‖g‖ <= τ)‖∇f‖². With ⟨∇f, g⟩ >= ‖∇f‖² - ‖∇f‖‖g - ∇f‖ there, and the sharp 4/3 in Lemma 4.7.3, case 2 gives
  E⟨∇f, ĝ⟩ >= ‖∇f‖(τ/3 - 8σ/3) >= τ‖∇f‖/6 for τ >= 16σ.
* The last term of the bound is printed as 20 f0 L^.. (F0/(Kσ²))^(2(α-1)/(3α-2)); the proof's 20 f0/(ηK) is
  20 σ^(2α/(3α-2)) (L f0/K)^(2(α-1)/(3α-2)). As printed it falls with σ, and is refuted by a large σ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mindgap.base.check import whole
from mindgap.lab.theory.assumptions import HeavyTail

#: Case 2 needs τ >= 16σ.
THRESHOLD_RATIO = 16.0


@dataclass(frozen=True)
class ConstantClip:
    """A constant step and a constant threshold: the ``lr`` and ``tau`` of GClip.

    Example:
        >>> ConstantClip(eta=0.1, tau=2.0)
        ConstantClip(eta=0.1, tau=2.0)
    """

    eta: Any
    tau: Any


def gclip_nonconvex_parameters(a: HeavyTail, K: int) -> ConstantClip:
    """η = min{1/(16^α L), (f0/(σ²K))^(α/(3α-2)) / L^((2α-2)/(3α-2))} and τ = σ (ηL)^(-1/α).

    Args:
        a: α, σ, L and Δ = f0.
        K: iterations planned.

    Example:
        >>> p = gclip_nonconvex_parameters(HeavyTail(alpha=2.0, sigma=1.0, L=1.0, delta=1.0), K=10**8)
        >>> round(p.eta, 9), round(p.tau, 6)
        (0.0001, 100.0)

    Source: thesis, Theorem 4.4.1 with the conditions that its proof needs.
    """
    whole("K", K, least=1)
    al = a.alpha
    rate = (a.delta / (a.sigma**2 * K)) ** (al / (3 * al - 2)) / a.L ** ((2 * al - 2) / (3 * al - 2))
    eta = min(1 / (THRESHOLD_RATIO**al * a.L), rate)
    return ConstantClip(eta, a.sigma * (eta * a.L) ** (-1 / al))


def gclip_nonconvex_bound(a: HeavyTail, K: int) -> float:
    """(1/K) Σ E min{‖∇f(x_k)‖², τ‖∇f(x_k)‖/3} <= 20 f0/(ηK), k = 0 .. K-1.

    That is max{20·16^α L f0/K, 20 σ^(2α/(3α-2)) (L f0/K)^((2α-2)/(3α-2))}.

    Example:
        >>> round(gclip_nonconvex_bound(HeavyTail(alpha=2.0, sigma=1.0, L=1.0, delta=1.0), K=10**8), 9)
        0.002

    Source: thesis, 4.7.1.
    """
    return 20 * a.delta / (gclip_nonconvex_parameters(a, K).eta * K)


def printed_bound(a: HeavyTail, K: int, *, last_term_as_proved: bool = False) -> float:
    """The stated bound of (1/K) Σ E min{‖∇f‖, ‖∇f‖²}, with its last term as printed or as proved.

    Example:
        >>> a = HeavyTail(alpha=2.0, sigma=10.0, L=1.0, delta=1.0)
        >>> round(printed_bound(a, 10**8), 4), round(printed_bound(a, 10**8, last_term_as_proved=True), 4)
        (0.0029, 0.02)
    """
    whole("K", K, least=1)
    al, f0 = a.alpha, a.delta
    e = (2 * al - 2) / (3 * al - 2)
    if last_term_as_proved:
        last = a.sigma ** (2 * al / (3 * al - 2)) * (a.L * f0 / K) ** e
    else:
        last = f0 * a.L**e * (f0 / (K * a.sigma**2)) ** e
    return 20 * max(4 * a.L * f0 / K, a.L * (12 * a.sigma) ** (al / (al - 1)) * f0 / K, last)
