"""The update of one coordinate, rule by rule, as plain functions of numbers.

Both compilers take these functions as they stand: ``cpu`` hands their code to Numba and ``cuda`` to Triton, each with
its own meaning of the four primitives below. So they are written without literals (a literal 1.0 would turn float32
arithmetic into float64 in Numba) and without branches (Triton's values are whole blocks).

A rule is a function of one entry of each of its lists, of the numbers ``w`` that depend on a norm, and of the numbers
``n``, of which the first two are the step size η and what weight decay keeps, 1 − η·w. It returns the new entries of
the first list and of the lists after the second; the second is only read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
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


def same(x: Number, exponent: Number) -> Number:
    """x to the power 1."""
    return x


def squared(x: Number, exponent: Number) -> Number:
    """x to the power 2."""
    return x * x


def rooted(x: Number, exponent: Number) -> Number:
    """x to the power 1/2."""
    return root(x)


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


def clipped(m: Number, tau: Number, eps: Number, one: Number) -> Number:
    """min{τ/(|m|+ε), 1}·m; m itself at 0/0: thesis, Alg. 1, l. 5.

    Example:
        >>> clipped(4.0, 2.0, 0.0, 1.0), clipped(0.0, 0.0, 0.0 + 1e-300, 1.0)
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


def whole(step: Number, tau: Number, eps: Number) -> Number:
    """The step as it is: Algorithm 1 of acclip."""
    return step


def divided(step: Number, tau: Number, eps: Number) -> Number:
    """The step divided by its threshold."""
    return step / (tau + eps)


# -- the rules: of the entries, w and n


def average(m, g, w, n):  # type: ignore[no-untyped-def]
    """m ← β·m + r·g, n = (β, r)."""
    return blend(m, g, n[0], n[1])


def average_decay(m, g, y, w, n):  # type: ignore[no-untyped-def]
    """m ← β·m + r·(g + s·y), n = (β, r, s)."""
    return blend(m, g + n[2] * y, n[0], n[1])


def scaled(x, d, w, n):  # type: ignore[no-untyped-def]
    """x ← (1−ηw)·x − c·d, w = (c,)."""
    return moved(x, d, w[0], n[1])


def average_step(x, g, m, w, n):  # type: ignore[no-untyped-def]
    """m ← β·m + r·c·g, then x ← (1−ηw)·x − η·m, w = (c,), n = (η, keep, β, r)."""
    m = blend(m, w[0] * g, n[2], n[3])
    return moved(x, m, n[0], n[1]), m


def held_step(x, g, w, n):  # type: ignore[no-untyped-def]
    """x ← (1−ηw)·x − η·s·g held in [−τ, τ], n = (η, keep, τ, β, r, s)."""
    return moved(x, n[5] * held(g, n[2]), n[0], n[1])


def average_held(x, g, m, w, n):  # type: ignore[no-untyped-def]
    """m ← β·m + r·g, then a step with m held in [−τ, τ], n = (η, keep, τ, β, r)."""
    m = blend(m, g, n[3], n[4])
    return moved(x, held(m, n[2]), n[0], n[1]), m


def held_average(x, g, m, w, n):  # type: ignore[no-untyped-def]
    """g is held in [−τ, τ] and then averaged, n = (η, keep, τ, β, r)."""
    m = blend(m, held(g, n[2]), n[3], n[4])
    return moved(x, m, n[0], n[1]), m


def adaptive(x, g, m, v, w, n):  # type: ignore[no-untyped-def]
    """acclip, Alg. 1, n = (η, keep, β₁, r₁, β₂, r₂, α, 1/α, ε, 1)."""
    m = blend(m, g, n[2], n[3])
    v = blend(v, raised(magnitude(g), n[6]), n[4], n[5])
    tau = lowered(v, n[7])
    return moved(x, finished(clipped(m, tau, n[8], n[9]), tau, n[8]), n[0], n[1]), m, v


def interpolate(p, m, x, w, n):  # type: ignore[no-untyped-def]
    """x ← x − c·m and p between the old x and the new, w = (c, place)."""
    step = w[0] * m
    return x - w[1] * step, x - step


#: Names that variants of a rule give their own meaning; here that of α = 1 and Algorithm 1.
raised, lowered, finished = same, same, whole


@dataclass(frozen=True)
class Rule:
    """A rule as a kernel is made of it.

    Attributes:
        function: of the entries, w and n; None where nothing is written.
        lists: how many lists of tensors it walks through.
        outputs: how many of them it writes.
        sums: whether the squares of the first list are added up afterwards.
        uses: meanings of the names ``raised``, ``lowered`` and ``finished``.
    """

    function: Any
    lists: int
    outputs: int = 1
    sums: bool = False
    uses: dict[str, Any] = field(default_factory=dict)


_POWERS = {"first": (same, same), "second": (squared, rooted), "any": (power, power)}

RULES = {
    "norm": Rule(None, 1, 0, sums=True),
    "average": Rule(average, 2, sums=True),
    "average_decay": Rule(average_decay, 3, sums=True),
    "scaled": Rule(scaled, 2),
    "average_step": Rule(average_step, 3, 2),
    "held_step": Rule(held_step, 2),
    "average_held": Rule(average_held, 3, 2),
    "held_average": Rule(held_average, 3, 2),
    "interpolate": Rule(interpolate, 3, 2),
    **{
        f"adaptive_{order}_{form}": Rule(adaptive, 4, 3, uses={"raised": up, "lowered": down, "finished": last})
        for order, (up, down) in _POWERS.items()
        for form, last in {"algorithm": whole, "first_moment": divided}.items()
    },
}
FORMULAS = (same, squared, rooted, blend, held, clipped, moved, whole, divided)
