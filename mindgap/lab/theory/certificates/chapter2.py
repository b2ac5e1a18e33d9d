"""Chapter 2: Table 2.1."""

from __future__ import annotations

from fractions import Fraction
from math import isqrt

from mindgap.lab.theory.certificate import Certificate


def table_2_1(constant: Fraction = Fraction(1, 1000)) -> Certificate:
    """Table 2.1 prints Ω(L/√ε) steps for convex functions; Nesterov's method needs fewer when L is
    large.

    It has f(y_k) - f* <= 2 L D²/(k+1)² on every convex L-smooth function, so √(2L/ε) steps are
    enough (D = 1). For any constant c the printed lower bound c·L/√ε exceeds that as soon as
    L > 2/c².

    Args:
        constant: c, the constant behind Ω.
    """
    L = Fraction(200) / constant**2  # a hundred times the 2/c² above
    epsilon = Fraction(1, 10_000)
    enough = isqrt(int(2 * L / epsilon)) + 1  # steps; 2L/ε is whole here
    return Certificate(
        instance={"L": L, "ε": epsilon, "D": 1, "constant of Ω": constant},
        assumptions={
            "L-smooth and convex": L > 0,
            "ε below L D²/2: the start is not good enough": epsilon < L / 2,
            "Nesterov's bound is at most ε after the count": 2 * L / (enough + 1) ** 2 <= epsilon,
        },
        measured=enough,
        printed=constant * L * 100,  # 1/√ε = 100
        claim="at least",
        method="fractions; Nesterov's own guarantee against the printed lower bound",
    )
