"""Lemma 3.2.1: polynomials of degree three or more are (L0, L1)-smooth and not L-smooth.

*Differs from the paper*: the lemma needs a_d != 0 (otherwise the degree is smaller and f may be L-smooth).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindgap.base.check import fail, positive
from mindgap.lab.theory.function import Function


@dataclass(frozen=True)
class Polynomial(Function):
    """f(x) = Σ_i a_i x^i with a_d != 0.

    Args:
        coefficients: a_0, a_1, ..., a_d.

    Example:
        >>> f = Polynomial((0.0, 0.0, 0.0, 0.0, 0.25))              # x⁴/4
        >>> float(f.gradient(2.0)), float(f.curvature(2.0))
        (8.0, 12.0)
    """

    coefficients: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.coefficients) < 2 or not self.coefficients[-1]:
            fail("coefficients", "must be a_0 .. a_d with d >= 1 and a_d not zero", self.coefficients)

    @property
    def degree(self) -> int:
        """d."""
        return len(self.coefficients) - 1

    def value(self, x: Any) -> Any:
        return _horner(self.coefficients, x)

    def gradient(self, x: Any) -> Any:
        return _horner(_derivative(self.coefficients), x)

    def curvature(self, x: Any) -> Any:
        """f''(x)."""
        return _horner(_derivative(_derivative(self.coefficients)), x)


def _derivative(a: Sequence[float]) -> tuple[float, ...]:
    return tuple(i * c for i, c in enumerate(a))[1:] or (0.0,)


def _horner(a: Sequence[float], x: Any) -> Any:
    total = x * 0 + a[-1]
    for c in reversed(a[:-1]):
        total = total * x + c
    return total


def polynomial_l0(f: Polynomial, L1: float) -> float:
    """The smallest L0 with |f''| <= L0 + L1 |f'| on the whole line; finite for every L1 > 0 when the degree is >= 3.

    sup(|f''| - L1 |f'|) is attained where one of the four signed combinations is stationary, or where f' or f''
    changes sign: finitely many candidates, all roots of polynomials.

    Example:
        >>> round(polynomial_l0(Polynomial((0.0, 0.0, 0.0, 0.0, 0.25)), L1=2.0), 9)     # 4/L1² for x⁴/4
        1.0

    Source: thesis, Lemma 3.2.1.
    """
    positive("L1", L1)
    if f.degree < 3:
        fail("f", "must have degree 3 or more", f.degree)
    first = np.array(_derivative(f.coefficients))
    second = np.array(_derivative(first.tolist()))
    third = np.array(_derivative(second.tolist()))
    candidates: list[np.ndarray] = [np.zeros(1)]
    for sign in (-1.0, 1.0):
        mixed = sign * L1 * second
        mixed[: len(third)] += third
        candidates.append(np.roots(mixed[::-1]))
    candidates += [np.roots(first[::-1]), np.roots(second[::-1])]
    points = np.concatenate([c[np.abs(c.imag) < 1e-7 * (1 + np.abs(c))].real for c in candidates])
    return max(0.0, float(np.max(np.abs(f.curvature(points)) - L1 * np.abs(f.gradient(points)))))
