"""The function of thesis 5.7.6 as printed, and its copy shifted by 1.5δ: literal, and not doing
what is said.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

from mindgap.lab.theory import PiecewiseLinear


def printed_function(points, delta, shift=0) -> PiecewiseLinear:
    """f' = -1 left of x_1 - 2δ; 1 within 2δ of a point; -1 on [x_i + 2δ, mid]; 1 on [mid,
    x_{i+1} - 2δ] and beyond.
    """
    x, d, c = sorted({Fraction(p) for p in points}), Fraction(delta), Fraction(shift)
    breaks, slopes = [x[0] - 2 * d], [Fraction(-1), Fraction(1)]
    for a, b in pairwise(x):
        if a + 2 * d < (a + b) / 2:
            breaks += [a + 2 * d, (a + b) / 2]
            slopes += [Fraction(-1), Fraction(1)]
    return PiecewiseLinear(tuple(b + c for b in breaks), tuple(slopes), anchor=x[0] + c)
