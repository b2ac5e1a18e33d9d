"""Lemma 4.7.1 (= Lemma 2 of acclip) and Lemma 4.7.5: second moment and bias of a clipped gradient.

*Differs from the papers*. Lemma 4.7.1 refers to Assumption 4.4.1, which bounds the noise; its proof uses E‖g‖^α <= G^α
(Assumption 4.4.3). Lemma 2 of acclip prints the bias bound for E‖ĝ - ∇f‖², which also contains the variance and is
false; the proof bounds ‖E ĝ - ∇f‖². Lemma 4.7.5 prints B^α τ^(2-2α) for the second moment where Lemma 5 of acclip and
the proof have B^α τ^(2-α).
"""

from __future__ import annotations

from mindgap.base.check import between, positive


def clipped_second_moment_bound(alpha: float, G: float, tau: float) -> float:
    """E‖ĝ‖² <= G^α τ^(2-α); the same with B_i and τ_i for one coordinate of CClip.

    Args:
        alpha: 1 < α <= 2.
        G: E‖g‖^α <= G^α.
        tau: threshold.

    Example:
        >>> clipped_second_moment_bound(2.0, 3.0, 100.0)
        9.0

    Source: thesis, Lemmas 4.7.1 and 4.7.5; acclip, Lemmas 2 and 5.
    """
    between("alpha", alpha, 1, 2, ends="(]")
    return positive("G", G) ** alpha * positive("tau", tau) ** (2 - alpha)


def clipped_bias_bound(alpha: float, G: float, tau: float) -> float:
    """‖E ĝ - ∇f‖² <= G^(2α) τ^(-2(α-1)).

    Example:
        >>> clipped_bias_bound(2.0, 2.0, 4.0)
        1.0

    Source: thesis, Lemmas 4.7.1 and 4.7.5; acclip, Lemmas 2 and 5.
    """
    between("alpha", alpha, 1, 2, ends="(]")
    return positive("G", G) ** (2 * alpha) * positive("tau", tau) ** (-2 * (alpha - 1))


def printed_coordinate_second_moment(alpha: float, B: float, tau: float) -> float:
    """The second moment bound as Lemma 4.7.5 prints it: B^α τ^(2-2α). Refuted by a test.

    Example:
        >>> printed_coordinate_second_moment(2.0, 1.0, 10.0)
        0.01
    """
    between("alpha", alpha, 1, 2, ends="(]")
    return positive("B", B) ** alpha * positive("tau", tau) ** (2 - 2 * alpha)
