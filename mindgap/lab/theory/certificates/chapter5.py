"""Chapter 5: Theorem 5.3.1's range of ε, and the functions of 5.7.6."""

from __future__ import annotations

from fractions import Fraction

from mindgap.lab.theory.certificate import Certificate


def theorem_5_3_1() -> Certificate:
    """L = 1/2 and ε = 7/10: every generalized gradient has norm at most L, so every point is
    ε-stationary and every algorithm meets one at once.
    """
    L, epsilon = Fraction(1, 2), Fraction(7, 10)
    return Certificate(
        instance={"L": L, "ε": epsilon, "f": "any function of F(Δ, L)", "T": 1},
        assumptions={"ε in [0, 1)": 0 <= epsilon < 1, "L > 0": L > 0},
        measured=L,  # the largest distance of 0 to ∂f(x) that a function of the class has
        printed=epsilon,
        claim="above",
        method="fractions; ‖g‖ <= L for every f, x and g in ∂f(x)",
    )


def section_5_7_6_infimum() -> Certificate:
    """The function that 5.7.6 prints goes below its stated infimum -2δ: with queries 0 and 20 and
    δ = 1 it falls from 2 at x = 2 to -6 at the midpoint 10.
    """
    delta, gap, Delta = Fraction(1), Fraction(20), Fraction(16)
    at_midpoint = 2 * delta - (gap / 2 - 2 * delta)  # slope 1 up to 2δ, then -1
    return Certificate(
        instance={"queries": "0 and 20", "δ": delta, "Δ": Delta},
        assumptions={"K = 2 <= Δ/(8δ)": Delta / (8 * delta) >= 2, "gap above 4δ": gap > 4 * delta},
        measured=at_midpoint,
        printed=-2 * delta,
        claim="at least",
        method="fractions; f' = 1 up to 2δ, then -1 up to the midpoint",
    )
