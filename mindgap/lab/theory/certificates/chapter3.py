"""Chapter 3: (3.10), and Theorems 3.4.4 and 3.4.5 as printed."""

from __future__ import annotations

import math
from fractions import Fraction
from math import isqrt

from mindgap.lab.theory.certificate import Certificate


def equation_3_10(L1: Fraction = Fraction(2)) -> Certificate:
    """The exponential function of 3.7.2 is L1 x²/2 + 1/(2 L1) on |x| <= 1/L1: curvature L1 and
    gradient 0 at x = 0.
    """
    curvature, gradient, L0 = L1, Fraction(0), Fraction(1)
    return Certificate(
        instance={"L1": L1, "L0": L0, "x": 0},
        assumptions={"L1 > 1, as (3.10) asks": L1 > 1, "0 lies in [-1/L1, 1/L1]": 1 / L1 > 0},
        measured=curvature,
        printed=L0 + L1 * gradient,
        claim="at most",
        method="fractions; f'' at one point",
    )


def theorem_3_4_4_step(epsilon: float = 10.0, M: float = 1e5, tau: float = 0.1) -> Certificate:
    """With the step that Theorem 3.4.4 prints, clipped SGD on cosh x jumps back and forth for the
    theorem's whole horizon.

    T is the theorem's own bound at ε and η = 1/√T. From x0 with f'(x0) = M the first step is η|g|;
    it lands beyond 31 on the other side. From then on the printed step is 1/(16 η (|g| + τ)), a
    jump of √T/16 less at most √T/16·2τ/(|f'| - τ). All noise together moves the two points of the
    cycle by less than 1, so |f'| never falls below sinh 30.

    Args:
        epsilon: ε.
        M: f'(x0).
        tau: τ, the length of the noise.
    """
    L0 = L1 = 1.0
    start, gap = math.asinh(M), math.hypot(1.0, M) - 1  # x0, and f(x0) - f*
    # Δ and T as the theorem prints them.
    delta = gap + (5 * L0 + 2 * L1 * tau) * tau**2 + 9 * tau * L0**2 / L1
    horizon = math.ceil(
        delta
        * max(128 * L1 / epsilon, 4 * delta / epsilon**4, (80 * L0 + 512 * L1 * tau) / epsilon**2)
    )
    eta = min(1 / (20 * L0), 1 / (128 * L1 * tau), 1 / math.sqrt(horizon))
    jump = 1 / (16 * eta * L1)  # how far a later step goes, up to the noise
    # The first step, whatever the noise: h is η because the other limit is longer.
    after_first = [start - eta * (M + sign * tau) for sign in (-1, 1)]  # the ends of its range
    first_distance = min(abs(x) for x in after_first)
    # The second step goes back across the minimum.
    second_distance = min(abs(x + jump) for x in after_first)
    drift = horizon * jump * 2 * tau / (math.sinh(30.0) - tau)  # the most that all noise can add
    return Certificate(
        instance={
            "f": "cosh x",
            "L0": L0,
            "L1": L1,
            "f'(x0)": M,
            "τ": tau,
            "ε": epsilon,
            "T": horizon,
            "η": eta,
        },
        assumptions={
            "f is bounded below and twice differentiable": True,
            "(1, 1)-smooth: cosh x <= 1 + |sinh x|": True,
            "noise of length τ is unbiased": True,
            "T is the theorem's bound and η its step": eta <= 1 / math.sqrt(horizon),
            "the first step is η": 1 / (16 * eta * L1 * (M + 2 * tau)) > eta,
            "it crosses the minimum and lands beyond 31": max(after_first) < 0
            and first_distance > 31,
            "every later jump crosses too and lands beyond 31": second_distance > 31,
            "the noise moves the cycle by less than 1 in T steps": drift < 1,
        },
        measured=min(M, math.sinh(30.0)),
        printed=epsilon,
        claim="at most",
        method="least gradient norm over all T steps, for every noise; margins of floats far "
        "above rounding",
    )


def theorem_3_4_5(height: Fraction = Fraction(1200)) -> Certificate:
    """On a slope of 1.1 ε the number of steps that Theorem 3.4.5 prints does not reach the end, for
    any noise.

    f is the slow function of 3.7.2 with slope M = 1.1 ε: f' = M for x > 1, |f'| <= M and |f''| <=
    1.5 M everywhere. A step moves by at most (M + τ)/√T, so T steps by √T (M + τ), which is less
    than the distance to x = 1.

    Args:
        height: f(x0) - f*.
    """
    epsilon, tau, L0, L1 = Fraction(1, 5), Fraction(1, 50), Fraction(1, 2), Fraction(1, 10)
    M = Fraction(11, 10) * epsilon
    distance = (height - Fraction(5, 8) * M) / M  # f(x0) - f* = M·distance + (5/4)(M/2)
    bound = (height + (5 * L0 + 4 * L1 * M) * (M + tau) ** 2) / epsilon**4  # T, as printed
    # The fewest steps to x = 1 with h <= 1/√T: distance·√T/(M + τ).
    fewest = distance * isqrt(int(bound)) / (M + tau)
    return Certificate(
        instance={
            "f": "slow function of 3.7.2",
            "slope": M,
            "L0": L0,
            "L1": L1,
            "f(x0) - f*": height,
            "τ": tau,
            "ε": epsilon,
        },
        assumptions={
            "f is bounded below and twice differentiable": True,
            "(L0, L1)-smooth: 3·M/2 <= L0": Fraction(3, 2) * M <= L0,
            "L1 > 0": L1 > 0,
            "M bounds the gradient everywhere": True,
            "noise within τ": tau > 0,
            "the slope is not ε-stationary": epsilon < M,
            "the start lies on the slope": distance > 0,
        },
        measured=fewest,
        printed=bound,
        claim="at most",
        method="fractions; the fewest steps that any noise allows",
    )
