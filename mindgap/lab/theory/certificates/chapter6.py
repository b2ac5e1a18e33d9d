"""Chapter 6: the sawtooth of 6.7.2, a map that is not continuous, the identity before (6.10)."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from mindgap.lab.theory.certificate import Certificate


def _orbit(n: int) -> list[Fraction]:
    """f(θ_0), ..., f(θ_n) of the sawtooth (6.11), slope n/(n+1) right of 0 and -1/(n+1) left of it,
    under θ <- θ - f'(θ) from θ_0 = 0.2/(n+1), in fractions.
    """
    theta, values = Fraction(1, 5 * (n + 1)), []
    for _ in range(n + 1):
        values.append(Fraction(n, n + 1) * theta if theta > 0 else -theta / (n + 1))
        theta -= Fraction(n, n + 1) if theta > 0 else Fraction(-1, n + 1)
    return values


def section_6_7_2_jump(n: int = 5) -> Certificate:
    """|f(θ_0) - f(θ_1)| = (0.8n - 0.2)/(n+1)² for the printed function, 19/180 at n = 5; 6.7.2
    prints at least 1/2.
    """
    values = _orbit(n)
    return Certificate(
        instance={"n": n, "θ_0": Fraction(1, 5 * (n + 1))},
        assumptions={"n is a positive integer": n >= 1, "θ_0 = 0.2/(n+1)": True},
        measured=abs(values[0] - values[1]),
        printed=Fraction(1, 2),
        claim="at least",
        method="fractions; the map iterated",
    )


def section_6_7_2_values(n: int = 4) -> Certificate:
    """f(θ_4) = f(θ_0) for n = 4: a period of n + 1 points has at most n values, where 6.7.2 prints
    n + 1.
    """
    values = _orbit(n)
    return Certificate(
        instance={"n": n, "θ_0": Fraction(1, 5 * (n + 1))},
        assumptions={"n is a positive integer": n >= 1, "θ_0 = 0.2/(n+1)": True},
        measured=len(set(values)),
        printed=n + 1,
        claim="at least",
        method="fractions; distinct values in one period",
    )


def theorem_6_4_4() -> Certificate:
    """Theorem 6.4.4 without continuity: for F(θ) = θ/2 for θ > 0 and F(0) = 1 on [0, 1] no law is
    invariant.

    Nothing is mapped to 0, so an invariant μ has μ({0}) = 0. Only 0 is mapped into (1/2, 1], so
    μ((1/2, 1]) = 0; and F⁻¹((2^-(k+1), 2^-k]) = (2^-k, 2^-(k-1)] for k >= 1, so every such interval
    has mass 0. The total is 0.
    """
    halves = [Fraction(1, 2**k) for k in range(6)]

    def F(theta: Fraction) -> Fraction:
        """θ/2 to the right of 0, else 1."""
        return theta / 2 if theta > 0 else Fraction(1)

    return Certificate(
        instance={"X": "[0, 1]", "F": "θ/2 for θ > 0, F(0) = 1", "θ_1": 1},
        assumptions={
            "X is compact": True,
            "F maps X to itself": F(Fraction(0)) <= 1 and all(0 <= F(h) <= 1 for h in halves),
            "F halves: it maps each dyadic interval onto the next": all(
                F(a) == b for a, b in pairwise(halves)
            ),
        },
        measured=Fraction(0),  # the total mass of an invariant measure
        printed=Fraction(1),
        claim="equal to",
        method="countably many sets of mass 0",
    )


def identity_before_6_10() -> Certificate:
    """The identity before (6.10), E‖∇f‖² = η E⟨∇f - g, f'' g⟩, fails for f = x²/2, noise ±1 and
    η = 1/2.

    x ← x/2 - ξ/2 leaves the uniform law on [-1, 1] invariant. There E f'² = 1/3, and the printed
    right side is -1/2.
    """
    eta = Fraction(1, 2)
    second_moment, noise_moment = Fraction(1, 3), Fraction(1)  # E x² of the uniform law, and E ξ²
    after_step = second_moment / 4 + noise_moment / 4  # E x² after a step
    return Certificate(
        instance={"f": "x²/2", "noise": "±1 with probability 1/2", "η": eta, "μ": "uniform"},
        assumptions={
            "X = [-1, 1] is compact and F maps it to itself": True,
            "E g = f'": True,
            "E f is invariant: E x² stays 1/3": after_step == second_moment,
            "E‖∇f‖² > 0": second_moment > 0,
        },
        measured=second_moment,
        printed=eta * -noise_moment,  # E[-ξ (x + ξ)] = -E ξ²
        claim="equal to",
        method="fractions; moments of the uniform law",
    )
