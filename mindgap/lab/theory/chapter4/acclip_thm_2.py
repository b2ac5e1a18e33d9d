"""Theorem 2, Corollary 3 and Theorem 5 of acclip: clipped methods on smooth non-convex functions with E‖g‖^α <= G^α.

*Differs from the paper*: all three statements lost the factor L that the proof of Theorem 2 carries in
4 G^(2α/(3α-2)) (L f0/K)^((2α-2)/(3α-2)). The statement's step has K + 1 where the proof has K, which would exceed the
bound by a factor ((K+1)/K)^(α/(3α-2)) at most; the proof's K is used. Corollary 3 and Theorem 5 say "Assumption 1" for
Assumption 2, and Corollary 3's √d falls away (see ``lemma_4_7_4``).
"""

from __future__ import annotations

from dataclasses import dataclass

from mindgap.base.check import fail, whole
from mindgap.base.checked import Order, Positive
from mindgap.lab.theory.chapter4.thm_4_4_1 import ConstantClip


@dataclass(frozen=True)
class SmoothMoment:
    """L-smooth f with E‖g(x)‖^α <= G^α everywhere and f(x0) - f* = Δ.

    For CClip, G stands for ‖B‖_2; for GClip under coordinate-wise moments, for ‖B‖_α.

    Example:
        >>> SmoothMoment(alpha=1.0, G=1.0, L=1.0, delta=1.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: alpha must lie in (1, 2], got 1.0

    Source: acclip, Assumption 1 and Definition 4.
    """

    alpha: Order
    G: Positive
    L: Positive
    delta: Positive


def moment_nonconvex_parameters(a: SmoothMoment, K: int) -> ConstantClip:
    """η = (f0/(G²K))^(α/(3α-2)) / L^((2α-2)/(3α-2)) and τ = G (ηL)^(-1/α).

    Example:
        >>> p = moment_nonconvex_parameters(SmoothMoment(alpha=2.0, G=1.0, L=1.0, delta=1.0), K=100)
        >>> round(p.eta, 9), round(p.tau, 9)
        (0.1, 3.16227766)

    Source: acclip, Theorem 2 and E.
    """
    whole("K", K, least=1)
    al = a.alpha
    eta = (a.delta / (a.G**2 * K)) ** (al / (3 * al - 2)) / a.L ** ((2 * al - 2) / (3 * al - 2))
    return ConstantClip(eta, a.G * (eta * a.L) ** (-1 / al))


def moment_nonconvex_bound(a: SmoothMoment, K: int, *, printed: bool = False) -> float:
    """(1/K) Σ E‖∇f(x_{k-1})‖² <= 4 G^(2α/(3α-2)) (L f0/K)^((2α-2)/(3α-2)); without L as printed.

    Example:
        >>> round(moment_nonconvex_bound(SmoothMoment(alpha=2.0, G=1.0, L=4.0, delta=1.0), K=100), 9)
        0.8
        >>> round(moment_nonconvex_bound(SmoothMoment(alpha=2.0, G=1.0, L=4.0, delta=1.0), K=100, printed=True), 9)
        0.4

    Source: acclip, Theorem 2 with the proof's L.
    """
    whole("K", K, least=1)
    al = a.alpha
    base = (1.0 if printed else a.L) * a.delta / K
    return 4 * a.G ** (2 * al / (3 * al - 2)) * base ** ((2 * al - 2) / (3 * al - 2))


def coordinate_moment(alpha: float, B: tuple[float, ...], *, method: str) -> float:
    """The G that Corollary 3 (``method="gclip"``: ‖B‖_α) and Theorem 5 (``"cclip"``: ‖B‖_2) put into Theorem 2.

    Example:
        >>> coordinate_moment(2.0, (3.0, 4.0), method="cclip")
        5.0

    Source: acclip, Corollary 3 (without its √d) and Theorem 5.
    """
    if method not in ("gclip", "cclip"):
        fail("method", "must be 'gclip' or 'cclip'", method)
    a = alpha if method == "gclip" else 2.0
    return sum(b**a for b in B) ** (1 / a)
