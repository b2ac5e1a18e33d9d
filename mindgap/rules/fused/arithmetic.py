"""The update of one coordinate, rule by rule, as plain functions of numbers.

Both compilers take these functions as they stand: ``cpu`` hands their code to Numba and ``cuda`` to
Triton, each with its own meaning of the four primitives below. So they are written without literals
(a literal 1.0 would turn float32 arithmetic into float64 in Numba) and without branches (Triton's
values are whole blocks).

A rule is a function of one entry of each of its lists, of the numbers ``w`` that depend on a norm,
and of the numbers ``n``, of which the first two are the step size η and what weight decay keeps, 1
− η·w. It returns the new entries of the first list and of the lists after the second; the second is
only read.
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


def same(x: Number, exponent: Number, most: Number) -> Number:
    """x to the power 1."""
    return x


def squared(x: Number, exponent: Number, most: Number) -> Number:
    """x to the power 2, at most the largest finite number: an overflow must not make an average
    infinite for ever.
    """
    return least(x * x, most)


def raised_to(x: Number, exponent: Number, most: Number) -> Number:
    """x to a power, at most the largest finite number."""
    return least(power(x, exponent), most)


def rooted(x: Number, exponent: Number, most: Number) -> Number:
    """x to the power 1/2."""
    return root(x)


def lowered_to(x: Number, exponent: Number, most: Number) -> Number:
    """x to a power."""
    return power(x, exponent)


def least(x: Number, most: Number) -> Number:
    """min{x, most}; NaN stays NaN."""
    return select(x > most, most, x)


def quotient(x: Number, y: Number) -> Number:
    """x/y for y > 0."""
    return x / y


def quotient_or_zero(x: Number, y: Number) -> Number:
    """x/y, and 0 for 0/y."""
    return select(x == x - x, x, x / y)


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
    x = select(x > tau, tau, x)
    return select(x < -tau, -tau, x)


def clipped(m: Number, tau: Number, eps: Number, one: Number) -> Number:
    """min{τ/(|m|+ε), 1}·m: thesis, Alg. 1, l. 5.

    Example:
        >>> clipped(4.0, 2.0, 0.0, 1.0), clipped(0.0, 0.0, 1e-300, 1.0)
        (2.0, 0.0)
    """
    return least(tau / (magnitude(m) + eps), one) * m


def clipped_or_zero(m: Number, tau: Number, eps: Number, one: Number) -> Number:
    """The same for ε = 0, with 0 at 0/0."""
    return select(m == m - m, m, clipped(m, tau, eps, one))


def moved(x: Number, update: Number, lr: Number, keep: Number) -> Number:
    """(1 − η·w)·x − η·u.

    Example:
        >>> moved(1.0, 2.0, 0.25, 0.75)
        0.25
    """
    return keep * x - lr * update


def product(x: Number, w: Number) -> Number:
    """w·x."""
    return w * x


def bare(x: Number, w: Number) -> Number:
    """x, where w is known to be 1."""
    return x


def whole(step: Number, tau: Number, eps: Number) -> Number:
    """The step as it is: Algorithm 1 of acclip."""
    return step


def divided(step: Number, tau: Number, eps: Number) -> Number:
    """The step divided by its threshold."""
    return quotient(step, tau + eps)


def divided_or_zero(step: Number, tau: Number, eps: Number) -> Number:
    """The same for ε = 0, with 0 at 0/0."""
    return quotient_or_zero(step, tau + eps)


def free(g: Number, x: Number, decay: Number) -> Number:
    """A gradient without weight decay."""
    return g


def pulled(g: Number, x: Number, decay: Number) -> Number:
    """A gradient with coupled weight decay, g + w·x."""
    return g + decay * x


def followed(median: Number, size: Number, up: Number, down: Number) -> Number:
    """A running median moved towards |value|; the first value other than zero becomes the median.

    Example:
        >>> followed(1.0, 9.0, 1.5, 0.5), followed(0.0, 5.0, 1.5, 0.5), followed(2.0, 0.0, 1.5, 0.5)
        (1.5, 5.0, 2.0)
    """
    later = select(size > median, median * up, select(size < median, median * down, median))
    return select(size == size - size, median, select(median == median - median, size, later))


def known_or(value: Number, otherwise: Number) -> Number:
    """A value above zero, else another one."""
    return select(value > value - value, value, otherwise)


def mean_of_events(mean: Number, size: Number, rate: Number) -> Number:
    """A running mean of sizes other than zero; the first one becomes the mean.

    Example:
        >>> mean_of_events(1.0, 9.0, 0.5), mean_of_events(0.0, 5.0, 0.5)
        (5.0, 5.0)
        >>> mean_of_events(2.0, 0.0, 0.5)
        2.0
    """
    later = select(mean == mean - mean, size, mean + rate * (size - mean))
    return select(size == size - size, mean, later)


# -- the rules: of the entries, w = (c, ...) with c the factor that clips the gradient, and n


def average(m, g, w, n):  # type: ignore[no-untyped-def]
    """m ← β·m + r·c·g, n = (η, keep, β, r)."""
    return blend(m, g, n[2], n[3] * w[0])


def average_decay(m, g, y, w, n):  # type: ignore[no-untyped-def]
    """m ← β·m + r·(c·g + s·y), n = (η, keep, β, r, s)."""
    return blend(m, w[0] * g + n[4] * y, n[2], n[3])


def scaled(x, d, w, n):  # type: ignore[no-untyped-def]
    """x ← (1−ηw)·x − c·d."""
    return moved(x, d, w[0], n[1])


def average_step(x, g, m, w, n):  # type: ignore[no-untyped-def]
    """m ← β·m + r·c·g, then x ← (1−ηw)·x − η·m, n = (η, keep, β, r)."""
    m = blend(m, g, n[2], n[3] * w[0])
    return moved(x, m, n[0], n[1]), m


def held_step(x, g, w, n):  # type: ignore[no-untyped-def]
    """x ← (1−ηw)·x − η·s·g held in [−τ, τ], n = (η, keep, β, r, s, τ)."""
    return moved(x, held(g, n[5] / w[0]), n[0] * n[4] * w[0], n[1])


def average_held(x, g, m, w, n):  # type: ignore[no-untyped-def]
    """m ← β·m + r·g, then a step with m held in [−τ, τ]; n as above."""
    m = blend(m, g, n[2], n[3] * w[0])
    return moved(x, held(m, n[5]), n[0], n[1]), m


def held_average(x, g, m, w, n):  # type: ignore[no-untyped-def]
    """g is held in [−τ, τ] and then averaged; n as above."""
    m = blend(m, held(g, n[5] / w[0]), n[2], n[3] * w[0])
    return moved(x, m, n[0], n[1]), m


def held_auto_step(x, g, q, w, n):  # type: ignore[no-untyped-def]
    """As ``held_step`` with τ a multiple of a running median, n = (η, keep, β, r, s, multiple,
    up, down, ∞).
    """
    g = w[0] * g
    tau = select(q > q - q, n[5] * q, n[8])
    return moved(x, n[4] * held(g, tau), n[0], n[1]), followed(q, magnitude(g), n[6], n[7])


def held_auto_average(x, g, m, q, w, n):  # type: ignore[no-untyped-def]
    """As ``held_average`` with τ a multiple of a running median; n as above."""
    g = w[0] * g
    m = blend(m, held(g, select(q > q - q, n[5] * q, n[8])), n[2], n[3])
    return moved(x, m, n[0], n[1]), m, followed(q, magnitude(g), n[6], n[7])


def adaptive(x, g, m, v, w, n):  # type: ignore[no-untyped-def]
    """acclip, Alg. 1; w = (c, 1/(1−β₁^k), 1/(1−β₂^k)), n = (η, keep, β₁, r₁, β₂, r₂, ε, most,
    α, 1/α, 1).
    """
    g = times(g, w[0])
    m = blend(m, g, n[2], n[3])
    v = blend(v, raised(magnitude(g), n[8], n[7]), n[4], n[5])
    tau = lowered(times(v, w[2]), n[9], n[7])
    return (
        moved(x, finished(bounded(times(m, w[1]), tau, n[6], n[10]), tau, n[6]), n[0], n[1]),
        m,
        v,
    )


def second_moment(x, g, m, v, w, n):  # type: ignore[no-untyped-def]
    """acclip, 3.1; w = (c, 1/(1−β₁^k), 1/(1−β₂^(k−1)), k = 1), n = (η, keep, β₁, r₁, β₂, r₂, ε,
    most, c, bound).
    """
    g = w[0] * g
    m = blend(m, g, n[2], n[3])
    before = select(w[3] > w[3] - w[3], g * g, w[2] * v)
    step = n[8] * held(over(w[1] * m, n[6] + root(n[4] * before)), n[9])
    return moved(x, step, n[0], n[1]), m, blend(v, least(g * g, n[7]), n[4], n[5])


def adam(x, g, m, v, w, n):  # type: ignore[no-untyped-def]
    """AdamW; w = (c, 1/(1−β₁^k), 1/(1−β₂^k)), n = (η, keep, β₁, r₁, β₂, r₂, ε, most)."""
    g = w[0] * g
    m = blend(m, g, n[2], n[3])
    v = blend(v, least(g * g, n[7]), n[4], n[5])
    return moved(x, over(w[1] * m, root(w[2] * v) + n[6]), n[0], n[1]), m, v


def adam_events(x, g, m, v, q, w, n):  # type: ignore[no-untyped-def]
    """AdamW on gradients held at a multiple of the running mean q of |g| over events.

    w = (c, 1/(1−β₁^k), 1/(1−β₂^k), weight of |g| in the mean), n as ``adam`` and the multiple.
    """
    g = w[0] * g
    h = held(g, known_or(n[8] * q, magnitude(g)))
    m = blend(m, h, n[2], n[3])
    v = blend(v, least(h * h, n[7]), n[4], n[5])
    x = moved(x, over(w[1] * m, root(w[2] * v) + n[6]), n[0], n[1])
    return x, m, v, mean_of_events(q, magnitude(g), w[3])


def adam_largest(x, g, m, v, s, w, n):  # type: ignore[no-untyped-def]
    """AdamW with the largest v so far (amsgrad); w and n as ``adam``."""
    g = w[0] * g
    m = blend(m, g, n[2], n[3])
    v = blend(v, least(g * g, n[7]), n[4], n[5])
    s = select(v <= s, s, v)
    return moved(x, over(w[1] * m, root(w[2] * s) + n[6]), n[0], n[1]), m, v, s


def descent(x, g, w, n):  # type: ignore[no-untyped-def]
    """x ← x − η·(s·c·g + w·x), n = (η, keep, s, w)."""
    return x - n[0] * coupled(n[2] * (w[0] * g), x, n[3])


def heavy_ball(x, g, m, w, n):  # type: ignore[no-untyped-def]
    """torch's SGD with momentum, n = (η, keep, s, w, μ, 1−d)."""
    m = n[4] * m + n[5] * coupled(n[2] * (w[0] * g), x, n[3])
    return x - n[0] * m, m


def nesterov(x, g, m, w, n):  # type: ignore[no-untyped-def]
    """torch's SGD with Nesterov momentum; n as above."""
    u = coupled(n[2] * (w[0] * g), x, n[3])
    m = n[4] * m + n[5] * u
    return x - n[0] * (u + n[4] * m), m


def interpolate(p, m, x, w, n):  # type: ignore[no-untyped-def]
    """x ← x − c·m and p between the old x and the new, w = (c, place)."""
    step = w[0] * m
    return x - w[1] * step, x - step


#: Names that variants of a rule give their own meaning; here that of α = 1, Algorithm 1, ε > 0 and
#: no weight decay.
raised = same
lowered = same
finished = whole
coupled = free
over = quotient
bounded = clipped
times = product


@dataclass(frozen=True)
class Rule:
    """A rule as a kernel is made of it."""

    function: Any  # of the entries, w and n; None where nothing is written
    lists: int  # how many lists of tensors it walks through
    outputs: int = 1  # how many of them it writes
    sums: bool = False  # whether the squares of the first list are added up afterwards
    #: meanings of ``raised``, ``lowered``, ``finished``, ``coupled``, ``over``, ``bounded`` and
    #: ``times``.
    uses: dict[str, Any] = field(default_factory=dict)


_POWERS = {"first": (same, same), "second": (squared, rooted), "any": (raised_to, lowered_to)}
#: With ε = 0 a quotient may be 0/0.
_ZEROS = {
    "": {"over": quotient, "bounded": clipped},
    "_zero": {"over": quotient_or_zero, "bounded": clipped_or_zero},
}

RULES = {
    "norm": Rule(None, 1, 0, sums=True),
    "average": Rule(average, 2, sums=True),
    "average_decay": Rule(average_decay, 3, sums=True),
    "scaled": Rule(scaled, 2),
    "average_step": Rule(average_step, 3, 2),
    "held_step": Rule(held_step, 2),
    "average_held": Rule(average_held, 3, 2),
    "held_average": Rule(held_average, 3, 2),
    "held_auto_step": Rule(held_auto_step, 3, 2),
    "held_auto_average": Rule(held_auto_average, 4, 3),
    "interpolate": Rule(interpolate, 3, 2),
    **{
        f"{f.__name__}{name}": Rule(f, lists, lists - 1, uses={"coupled": how})
        for f, lists in ((descent, 2), (heavy_ball, 3), (nesterov, 3))
        for name, how in {"": free, "_decay": pulled}.items()
    },
    **{
        f"{form}_{order}{end}{unscaled}": Rule(
            adaptive,
            4,
            3,
            uses={"raised": up, "lowered": down, "finished": last, "times": how, **zero},
        )
        for order, (up, down) in _POWERS.items()
        for end, zero in _ZEROS.items()
        for form, last in {
            "algorithm": whole,
            "first_moment": divided_or_zero if end else divided,
        }.items()
        for unscaled, how in {"": product, "_bare": bare}.items()
    },
    **{
        f"{f.__name__}{end}": Rule(f, 4, 3, uses=zero)
        for f in (second_moment, adam)
        for end, zero in _ZEROS.items()
    },
    **{
        f"{f.__name__}{end}": Rule(f, 5, 4, uses=zero)
        for f in (adam_events, adam_largest)
        for end, zero in _ZEROS.items()
    },
}
#: In the order in which they use each other.
FORMULAS = (
    *(least, quotient, quotient_or_zero, same, squared, raised_to, rooted, lowered_to, blend, held),
    *(
        clipped,
        clipped_or_zero,
        moved,
        product,
        bare,
        whole,
        divided,
        divided_or_zero,
        free,
        pulled,
        followed,
        known_or,
        mean_of_events,
    ),
)
