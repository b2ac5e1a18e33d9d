"""The update of one coordinate, rule by rule, as plain functions of numbers.

Both compilers take these functions as they stand: ``cpu`` hands their code to Numba and ``cuda`` to Triton, each with
its own meaning of the four primitives below. So they are written without literals (a literal 1.0 would turn float32
arithmetic into float64 in Numba) and without branches (Triton's values are whole blocks).
"""

from __future__ import annotations

import math
from typing import Any

Number = Any


def select(condition: Number, first: Number, second: Number) -> Number:
    """``first`` where the condition holds, else ``second`` (also where a NaN is compared)."""
    return first if condition else second


def magnitude(x: Number) -> Number:
    """|x|."""
    return abs(x)


def root(x: Number) -> Number:
    """√x."""
    return math.sqrt(x)


def power(x: Number, exponent: Number) -> Number:
    """x to a power, for x ≥ 0."""
    return x**exponent


def blend(memory: Number, value: Number, beta: Number, rest: Number) -> Number:
    """β·m + r·g with r = ±(1−β): acclip, Alg. 1, l. 3.

    Example:
        >>> blend(1.0, 3.0, 0.5, 0.5)
        2.0
    """
    return beta * memory + rest * value


def held(x: Number, tau: Number) -> Number:
    """min{τ/|x|, 1}·x, which is x inside [−τ, τ]; NaN stays NaN: acclip, (CClip).

    Example:
        >>> held(3.0, 1.0), held(-0.5, 1.0)
        (1.0, -0.5)
    """
    return select(x > tau, tau, select(x < -tau, -tau, x))


def adaptive(m: Number, tau: Number, eps: Number, one: Number) -> Number:
    """min{τ/(|m|+ε), 1}·m; m itself at 0/0: thesis, Alg. 1, l. 5.

    Example:
        >>> adaptive(4.0, 2.0, 0.0, 1.0), adaptive(0.0, 0.0, 0.0 + 1e-300, 1.0)
        (2.0, 0.0)
    """
    ratio = tau / (magnitude(m) + eps)
    return select(ratio < one, ratio, one) * m


def moved(x: Number, update: Number, lr: Number, keep: Number) -> Number:
    """(1 − η·w)·x − η·u.

    Example:
        >>> moved(1.0, 2.0, 0.25, 0.75)
        0.25
    """
    return keep * x - lr * update
