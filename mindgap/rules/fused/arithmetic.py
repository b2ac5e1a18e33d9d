"""The update of one coordinate, rule by rule, as plain functions of numbers.

Both compilers take these functions as they stand: ``cpu`` hands their code to Numba and ``cuda`` to
Triton, each with its own meaning of the four primitives below. So they are written without literals
(a literal 1.0 would turn float32 arithmetic into float64 in Numba) and without branches (Triton's
values are whole blocks). ``x == x - x`` asks whether x is 0, and ``x > x - x`` for x above 0:
both are false for NaN.

A rule is a function of one entry of each of its lists of tensors, and of two tuples of numbers:

- ``w`` changes with norms and step counts: w[0] is the factor c on the gradient, and w[1] to w[3]
  are bias corrections or what the rule's docstring says.
- ``n`` is the same for all steps with the same settings: n[0] is the step size η, n[1] is 1 − η·λ,
  what decoupled weight decay λ keeps ("keep"), and the others stand in the rule's docstring.

It returns the new entries of the first list and of the lists after the second; the second is only
read. Entries: x parameter, g gradient, m and v averages of gradients and of their powers, q running
median or mean of |g|. Settings: β averages' decay, r = ±(1−β) with the sign s of ``maximize``, τ
threshold, ε ``eps``, α exponent of the moment, k number of the step.
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


def identity(x: Number, exponent: Number, largest: Number) -> Number:
    """x to the power 1, for α = 1; ``exponent`` and ``largest`` are not used."""
    return x


def square(x: Number, exponent: Number, largest: Number) -> Number:
    """x², at most the largest finite number: an overflow must not make an average infinite for
    ever.
    """
    return at_most(x * x, largest)


def any_power(x: Number, exponent: Number, largest: Number) -> Number:
    """x^exponent, at most the largest finite number."""
    return at_most(power(x, exponent), largest)


def square_root(x: Number, exponent: Number, largest: Number) -> Number:
    """x to the power 1/2, for α = 2."""
    return root(x)


def any_root(x: Number, exponent: Number, largest: Number) -> Number:
    """x^exponent, without a limit."""
    return power(x, exponent)


def at_most(x: Number, largest: Number) -> Number:
    """min{x, largest}; NaN stays NaN."""
    return select(x > largest, largest, x)


def at_least(x: Number, least: Number) -> Number:
    """max{x, least}; NaN stays NaN."""
    return select(x < least, least, x)


def quotient(x: Number, y: Number) -> Number:
    """x/y for y > 0."""
    return x / y


def quotient_or_zero(x: Number, y: Number) -> Number:
    """x/y, and 0 for 0/y: x = x − x holds for 0 alone."""
    return select(x == x - x, x, x / y)


def blend(memory: Number, value: Number, beta: Number, rest: Number) -> Number:
    """β·m + r·g with r = ±(1−β): acclip, Alg. 1, l. 3.

    Example:
        >>> blend(1.0, 3.0, 0.5, 0.5)
        2.0
    """
    return beta * memory + rest * value


def clamp(x: Number, tau: Number) -> Number:
    """min{τ/|x|, 1}·x, which is x inside [−τ, τ]; NaN stays NaN: acclip, (CClip).

    Example:
        >>> clamp(3.0, 1.0), clamp(-0.5, 1.0)
        (1.0, -0.5)
    """
    x = select(x > tau, tau, x)
    return select(x < -tau, -tau, x)


def clipped(m: Number, tau: Number, eps: Number, one: Number) -> Number:
    """min{τ/(|m|+ε), 1}·m, with the number 1 as an argument: thesis, Alg. 1, l. 5.

    Example:
        >>> clipped(4.0, 2.0, 0.0, 1.0), clipped(0.0, 0.0, 1e-300, 1.0)
        (2.0, 0.0)
    """
    return at_most(tau / (magnitude(m) + eps), one) * m


def clipped_or_zero(m: Number, tau: Number, eps: Number, one: Number) -> Number:
    """min{τ/|m|, 1}·m for ε = 0, with 0 at 0/0."""
    return select(m == m - m, m, clipped(m, tau, eps, one))


def decayed_step(x: Number, update: Number, lr: Number, keep: Number) -> Number:
    """(1 − η·λ)·x − η·u.

    Example:
        >>> decayed_step(1.0, 2.0, 0.25, 0.75)
        0.25
    """
    return keep * x - lr * update


def multiplied(x: Number, w: Number) -> Number:
    """w·x, where a bias correction or clip factor w may differ from 1."""
    return w * x


def unchanged(x: Number, w: Number) -> Number:
    """x, where w is known to be 1: one multiplication less."""
    return x


def undivided(step: Number, tau: Number, eps: Number) -> Number:
    """The clipped average as it is: Algorithm 1 of acclip."""
    return step


def divided_by_tau(step: Number, tau: Number, eps: Number) -> Number:
    """The clipped average divided by its threshold τ + ε: acclip's form "first_moment"."""
    return quotient(step, tau + eps)


def divided_by_tau_or_zero(step: Number, tau: Number, eps: Number) -> Number:
    """The clipped average divided by its threshold for ε = 0, with 0 at 0/0."""
    return quotient_or_zero(step, tau + eps)


def without_decay(g: Number, x: Number, decay: Number) -> Number:
    """A gradient without weight decay."""
    return g


def with_coupled_decay(g: Number, x: Number, decay: Number) -> Number:
    """A gradient with coupled weight decay, g + λ·x."""
    return g + decay * x


def updated_median(median: Number, magnitude_of_g: Number, up: Number, down: Number) -> Number:
    """A running median of |g| moved towards |g|: multiplied by ``up`` or ``down``. The first |g|
    other than zero becomes the median, and zeros move nothing.

    Example:
        >>> (
        ...     updated_median(1.0, 9.0, 1.5, 0.5),
        ...     updated_median(0.0, 5.0, 1.5, 0.5),
        ...     updated_median(2.0, 0.0, 1.5, 0.5),
        ... )
        (1.5, 5.0, 2.0)
    """
    # A value of 0 moves nothing; a median of 0 is not known yet.
    moved = select(
        magnitude_of_g > median, median * up, select(magnitude_of_g < median, median * down, median)
    )
    return select(
        magnitude_of_g == magnitude_of_g - magnitude_of_g,
        median,
        select(median == median - median, magnitude_of_g, moved),
    )


def positive_or(value: Number, otherwise: Number) -> Number:
    """A value above zero, else another one."""
    return select(value > value - value, value, otherwise)


def updated_event_mean(mean: Number, size: Number, rate: Number) -> Number:
    """A running mean of sizes other than zero; the first one becomes the mean.

    Example:
        >>> updated_event_mean(1.0, 9.0, 0.5), updated_event_mean(0.0, 5.0, 0.5)
        (5.0, 5.0)
        >>> updated_event_mean(2.0, 0.0, 0.5)
        2.0
    """
    blended = select(mean == mean - mean, size, mean + rate * (size - mean))
    return select(size == size - size, mean, blended)


# -- the rules: of the entries, w = (c, ...) with c the factor that clips the gradient, and n


def average(m, g, w, n):  # type: ignore[no-untyped-def]
    """m ← β·m + r·c·g, n = (η, keep, β, r)."""
    return blend(m, g, n[2], n[3] * w[0])


def average_decay(m, g, y, w, n):  # type: ignore[no-untyped-def]
    """m ← β·m + r·(c·g + s·y), n = (η, keep, β, r, s)."""
    return blend(m, w[0] * g + n[4] * y, n[2], n[3])


def scaled(x, d, w, n):  # type: ignore[no-untyped-def]
    """x ← (1−ηλ)·x − c·d, n = (η, keep); c = w[0] includes the step size η here."""
    return decayed_step(x, d, w[0], n[1])


def average_step(x, g, m, w, n):  # type: ignore[no-untyped-def]
    """m ← β·m + r·c·g, then x ← (1−ηλ)·x − η·m; c = w[0], n = (η, keep, β, r). Returns x and m."""
    m = blend(m, g, n[2], n[3] * w[0])
    return decayed_step(x, m, n[0], n[1]), m


def clamped_step(x, g, w, n):  # type: ignore[no-untyped-def]
    """x ← (1−ηλ)·x − η·s·(c·g clamped to [−τ, τ]), c = w[0], n = (η, keep, β, r, s, τ). Computed as
    c times (g clamped to ±τ/c).
    """
    return decayed_step(x, clamp(g, n[5] / w[0]), n[0] * n[4] * w[0], n[1])


def average_clamped(x, g, m, w, n):  # type: ignore[no-untyped-def]
    """m ← β·m + r·c·g, then x ← (1−ηλ)·x − η·(m clamped to [−τ, τ]), c = w[0], n = (η, keep, β, r,
    s, τ). ``clamped_average`` clamps before it averages.
    """
    m = blend(m, g, n[2], n[3] * w[0])
    return decayed_step(x, clamp(m, n[5]), n[0], n[1]), m


def clamped_average(x, g, m, w, n):  # type: ignore[no-untyped-def]
    """m ← β·m + r·(c·g clamped to [−τ, τ]), then x ← (1−ηλ)·x − η·m, c = w[0], n = (η, keep, β, r,
    s, τ). ``average_clamped`` averages before it clamps.
    """
    m = blend(m, clamp(g, n[5] / w[0]), n[2], n[3] * w[0])
    return decayed_step(x, m, n[0], n[1]), m


def auto_clamped_step(x, g, q, w, n):  # type: ignore[no-untyped-def]
    """x ← (1−ηλ)·x − η·s·(c·g clamped to ±multiple·q), where q is the running median of |c·g|,
    which then follows; c = w[0], n = (η, keep, β, r, s, multiple, up, down, ∞) with keep = 1−ηλ
    and the sign s of ``maximize``. Nothing is clamped before q is known (q = 0). Returns the new x
    and q.
    """
    g = w[0] * g
    # q > q − q asks whether q > 0; false for NaN.
    tau = select(q > q - q, n[5] * q, n[8])
    return decayed_step(x, n[4] * clamp(g, tau), n[0], n[1]), updated_median(
        q, magnitude(g), n[6], n[7]
    )


def auto_clamped_average(x, g, m, q, w, n):  # type: ignore[no-untyped-def]
    """m ← β·m + r·(c·g clamped to ±multiple·q), then x ← (1−ηλ)·x − η·m, where q is the running
    median of |c·g|, which then follows; c = w[0], n = (η, keep, β, r, s, multiple, up, down, ∞)
    with keep = 1−ηλ and r = ±(1−β). Nothing is clamped before q is known (q = 0). Returns the new
    x, m and q.
    """
    g = w[0] * g
    # q > q − q asks whether q > 0; false for NaN.
    m = blend(m, clamp(g, select(q > q - q, n[5] * q, n[8])), n[2], n[3])
    return decayed_step(x, m, n[0], n[1]), m, updated_median(q, magnitude(g), n[6], n[7])


def adaptive(x, g, m, v, w, n):  # type: ignore[no-untyped-def]
    """acclip, Alg. 1: averages m of c·g and v of |c·g|^α, threshold τ = (corrected v)^(1/α), x ←
    (1−ηλ)·x − η·(corrected m clipped at τ); w = (c, 1/(1−β₁^k), 1/(1−β₂^k)), n = (η, keep, β₁, r₁,
    β₂, r₂, ε, largest finite number, α, 1/α, 1) with keep = 1−ηλ, r₁ = ±(1−β₁) and r₂ = 1−β₂.
    Returns the new x, m and v.

    Each variant in ``RULES`` gives ``corrected``, ``moment_power``, ``moment_root``,
    ``clip_moment`` and ``final_step`` its own meaning; they stand in ``Rule.uses``.
    """
    g = corrected(g, w[0])
    m = blend(m, g, n[2], n[3])
    v = blend(v, moment_power(magnitude(g), n[8], n[7]), n[4], n[5])
    tau = moment_root(corrected(v, w[2]), n[9], n[7])
    # The direction is the corrected m, clipped at τ, and in one form divided by τ.
    return (
        decayed_step(
            x, final_step(clip_moment(corrected(m, w[1]), tau, n[6], n[10]), tau, n[6]), n[0], n[1]
        ),
        m,
        v,
    )


def second_moment(x, g, m, v, w, n):  # type: ignore[no-untyped-def]
    """acclip, 3.1: x ← (1−ηλ)·x − η·factor·(corrected m/(ε + √(β₂·corrected v)) clamped to ±bound),
    with the average m of c·g, and the average v of (c·g)² of before this gradient, or (c·g)² at k =
    1; w = (c, 1/(1−β₁^k), 1/(1−β₂^(k−1)), 1 at k = 1 else 0), n = (η, keep, β₁, r₁, β₂, r₂, ε,
    largest finite number, factor, bound) with keep = 1−ηλ, r₁ = ±(1−β₁) and r₂ = 1−β₂. Returns the
    new x, m and v.
    """
    g = w[0] * g
    m = blend(m, g, n[2], n[3])
    # w[3] > w[3] − w[3] asks whether w[3] > 0.
    v_corrected = select(w[3] > w[3] - w[3], g * g, w[2] * v)
    step = n[8] * clamp(divide(w[1] * m, n[6] + root(n[4] * v_corrected)), n[9])
    return decayed_step(x, step, n[0], n[1]), m, blend(v, at_most(g * g, n[7]), n[4], n[5])


def adam(x, g, m, v, w, n):  # type: ignore[no-untyped-def]
    """AdamW: m ← β₁·m + r₁·c·g, v ← β₂·v + r₂·(c·g)², x ← (1−ηλ)·x − η·w₁m/(√(w₂v) + ε); w = (c,
    w₁, w₂) with the corrections 1/(1−β₁^k) and 1/(1−β₂^k), n = (η, keep, β₁, r₁, β₂, r₂, ε, largest
    finite number, which caps (c·g)²) with keep = 1−ηλ, r₁ = ±(1−β₁) and r₂ = 1−β₂. Returns the new
    x, m and v.
    """
    g = w[0] * g
    m = blend(m, g, n[2], n[3])
    v = blend(v, at_most(g * g, n[7]), n[4], n[5])
    return decayed_step(x, divide(w[1] * m, root(w[2] * v) + n[6]), n[0], n[1]), m, v


def adam_events(x, g, m, v, q, w, n):  # type: ignore[no-untyped-def]
    """As ``adam`` with h in place of c·g: c·g clamped to ±multiple·q, where q is the running mean
    of |c·g| over the steps at which it was not zero. Where q is 0 (not known yet), h = c·g.

    w = (c, 1/(1−β₁^k), 1/(1−β₂^k), weight of |c·g| in the mean), n as ``adam`` and the multiple.
    Returns the new x, m, v and q.
    """
    g = w[0] * g
    h = clamp(g, positive_or(n[8] * q, magnitude(g)))
    m = blend(m, h, n[2], n[3])
    v = blend(v, at_most(h * h, n[7]), n[4], n[5])
    x = decayed_step(x, divide(w[1] * m, root(w[2] * v) + n[6]), n[0], n[1])
    return x, m, v, updated_event_mean(q, magnitude(g), w[3])


def adam_bounded(x, g, m, v, a, w, n):  # type: ignore[no-untyped-def]
    """As ``adam``, with a running mean of sizes, a ← βₐ·a + rₐ·|c·g|. Where w₃ > 0 the step is that
    of acclip's form "first_moment", η·w₁m/max{|w₁m|, w₃a}, else ``adam``'s; 0/0 is 0.

    w = (c, 1/(1−β₁^k), 1/(1−β₂^k), 1/(1−βₐ^k) or 0), n as ``adam``, βₐ and rₐ = 1−βₐ. Returns the
    new x, m, v and a.
    """
    g = w[0] * g
    m = blend(m, g, n[2], n[3])
    v = blend(v, at_most(g * g, n[7]), n[4], n[5])
    a = blend(a, magnitude(g), n[8], n[9])
    mean = w[1] * m
    bound = at_least(magnitude(mean), w[3] * a)
    # w[3] > w[3] − w[3] asks whether w[3] > 0.
    scale = select(w[3] > w[3] - w[3], bound, root(w[2] * v) + n[6])
    return decayed_step(x, quotient_or_zero(mean, scale), n[0], n[1]), m, v, a


def adam_largest(x, g, m, v, s, w, n):  # type: ignore[no-untyped-def]
    """As ``adam``, with the same w and n, and the largest v so far, s, in the place of v in the
    step (amsgrad). Returns the new x, m, v and s.
    """
    g = w[0] * g
    m = blend(m, g, n[2], n[3])
    v = blend(v, at_most(g * g, n[7]), n[4], n[5])
    s = select(v <= s, s, v)
    return decayed_step(x, divide(w[1] * m, root(w[2] * s) + n[6]), n[0], n[1]), m, v, s


def descent(x, g, w, n):  # type: ignore[no-untyped-def]
    """torch's SGD without momentum: x ← x − η·(s·c·g + λ·x), n = (η, keep, s, λ)."""
    return x - n[0] * with_decay(n[2] * (w[0] * g), x, n[3])


def heavy_ball(x, g, m, w, n):  # type: ignore[no-untyped-def]
    """torch's SGD with momentum: m ← μ·m + (1−d)·u and x ← x − η·m with u = s·c·g + λ·x and
    dampening d; c = w[0], n = (η, keep, s, λ, μ, 1−d). Returns the new x and m.
    """
    m = n[4] * m + n[5] * with_decay(n[2] * (w[0] * g), x, n[3])
    return x - n[0] * m, m


def nesterov(x, g, m, w, n):  # type: ignore[no-untyped-def]
    """torch's SGD with Nesterov momentum: m ← μ·m + (1−d)·u and x ← x − η·(u + μ·m) with u = s·c·g
    + λ·x, the sign s of ``maximize`` and dampening d; c = w[0], n = (η, keep, s, λ, μ, 1−d) with
    keep = 1, not used. Returns the new x and m.
    """
    u = with_decay(n[2] * (w[0] * g), x, n[3])
    m = n[4] * m + n[5] * u
    return x - n[0] * (u + n[4] * m), m


def interpolate(p, m, x, w, n):  # type: ignore[no-untyped-def]
    """x ← x − c·m for the state x, and the parameter p at a place in [0, 1) between the old x and
    the new; w = (c, place). Returns the new p and x.
    """
    step = w[0] * m
    return x - w[1] * step, x - step


#: Names that variants of a rule give their own meaning; here that of α = 1, Algorithm 1, ε > 0 and
#: no weight decay.
moment_power = identity
moment_root = identity
final_step = undivided
with_decay = without_decay
divide = quotient
clip_moment = clipped
corrected = multiplied


@dataclass(frozen=True)
class Rule:
    """A rule as a kernel is made of it."""

    function: Any  # of the entries, w and n; None where nothing is written
    lists: int  # how many lists of tensors it walks through
    outputs: int = 1  # how many of them it writes
    sums: bool = False  # whether the squares of the first list are added up afterwards
    #: the formulas that it calls by a name of its own, such as ``divide`` or ``moment_power`` (all
    #: of them stand below the rules), by that name.
    uses: dict[str, Any] = field(default_factory=dict)


_POWERS = {
    "first": (identity, identity),
    "second": (square, square_root),
    "any": (any_power, any_root),
}
#: With ε = 0 a quotient may be 0/0.
_ZEROS = {
    "": {"divide": quotient, "clip_moment": clipped},
    "_zero": {"divide": quotient_or_zero, "clip_moment": clipped_or_zero},
}

RULES = {
    "norm": Rule(None, 1, 0, sums=True),
    "average": Rule(average, 2, sums=True),
    "average_decay": Rule(average_decay, 3, sums=True),
    "scaled": Rule(scaled, 2),
    "average_step": Rule(average_step, 3, 2),
    "clamped_step": Rule(clamped_step, 2),
    "average_clamped": Rule(average_clamped, 3, 2),
    "clamped_average": Rule(clamped_average, 3, 2),
    "auto_clamped_step": Rule(auto_clamped_step, 3, 2),
    "auto_clamped_average": Rule(auto_clamped_average, 4, 3),
    "interpolate": Rule(interpolate, 3, 2),
    "adam_bounded": Rule(adam_bounded, 5, 4),
    **{
        f"{f.__name__}{name}": Rule(f, lists, lists - 1, uses={"with_decay": how})
        for f, lists in ((descent, 2), (heavy_ball, 3), (nesterov, 3))
        for name, how in {"": without_decay, "_decay": with_coupled_decay}.items()
    },
    **{
        f"{form}_{order}{end}{unscaled}": Rule(
            adaptive,
            4,
            3,
            uses={
                "moment_power": up,
                "moment_root": down,
                "final_step": last,
                "corrected": how,
                **zero,
            },
        )
        for order, (up, down) in _POWERS.items()
        for end, zero in _ZEROS.items()
        for form, last in {
            "algorithm": undivided,
            "first_moment": divided_by_tau_or_zero if end else divided_by_tau,
        }.items()
        for unscaled, how in {"": multiplied, "_bare": unchanged}.items()
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
    at_most,
    at_least,
    quotient,
    quotient_or_zero,
    identity,
    square,
    any_power,
    square_root,
    any_root,
    blend,
    clamp,
    clipped,
    clipped_or_zero,
    decayed_step,
    multiplied,
    unchanged,
    undivided,
    divided_by_tau,
    divided_by_tau_or_zero,
    without_decay,
    with_coupled_decay,
    updated_median,
    positive_or,
    updated_event_mean,
)
