"""Theorem 5.5.2: algorithms that see gradients only need at least Δ/(8δ) calls for a (δ, ε)-stationary point.

The resisting oracle answers ∇f = 1 to everything (L = 1). Afterwards it shows a function of F(Δ, 1) that rises
wherever the algorithm has been and where it ended, with no kink within δ of any of these points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from mindgap.base.check import fail, positive
from mindgap.lab.theory.chapter5.piecewise import Number, PiecewiseLinear, exact_points
from mindgap.lab.theory.chapter5.thm_5_3_1 import Adversary, Defeat, LipschitzClass


def gradient_call_bound(Delta: float, delta: float) -> float:
    """Δ/(8δ), the number of gradient calls below which no algorithm is safe.

    Args:
        Delta: f(x_0) - inf f <= Δ.
        delta: δ.

    Example:
        >>> gradient_call_bound(Delta=4.0, delta=0.01)
        50.0

    Source: thesis, Theorem 5.5.2.
    """
    return positive("Delta", Delta) / (8 * positive("delta", delta))


def _zigzag(x: list[Fraction], close: Fraction, valley: Fraction, start: Fraction) -> PiecewiseLinear:
    """Rise at every point; where the next point is further than ``close``, fall back to the same height before it.

    The valley before a point lies ``valley`` to its left. Values at the points never fall, and rise by at most
    ``close`` from one to the next; no valley is deeper than ``valley`` below the first point.
    """
    breaks = [x[0] - valley]
    for a, b in pairwise(x):
        if b - a > close:
            breaks += [b - valley - (b - a) / 2, b - valley]
    return PiecewiseLinear(tuple(breaks), tuple([Fraction(-1), Fraction(1)] * ((len(breaks) + 1) // 2)), anchor=start)


def plateau_function(points: Sequence[Number], delta: Number, start: Number) -> PiecewiseLinear:
    """A 1-Lipschitz function with f(start) = 0 that rises with slope 1 within 1.25 δ of every point.

    f(start) - inf f is at most 5δ(K-1) + 1.25δ for K distinct points.

    Example:
        >>> f = plateau_function([0.0, 100.0], delta=1.0, start=0.0)
        >>> [float(f.distance(x, 1.0)) for x in (0.0, 100.0)], float(f.infimum)
        ([1.0, 1.0], -1.25)

    Source: thesis, 5.7.6, with the repairs listed at :class:`GradientAdversary`.
    """
    radius = Fraction(5, 4) * Fraction(delta)
    return _zigzag(exact_points(points), 4 * radius, radius, Fraction(start))


def separated_pair(points: Sequence[Number], delta: Number, start: Number) -> tuple[PiecewiseLinear, PiecewiseLinear]:
    """Two functions with slope 1 at every point that share no (δ, ε)-stationary point for any ε < 1.

    Their kinks are more than 2δ apart, so no point is within δ of both. For K points both satisfy
    f(start) - inf f <= 8δK.

    Example:
        >>> f, g = separated_pair([0.0, 3.0, 50.0], delta=1.0, start=0.0)
        >>> min(abs(a - b) for a in f.kinks for b in g.kinks) > 2
        True

    Source: thesis, 5.7.6.

    *Differs from the paper.* The paper shifts one function by 1.5δ, which leaves points within δ of both.
    """
    x = exact_points(points)
    wide = Fraction(delta) * (1 + Fraction(1, 2 * len(x)))
    near = Fraction(5, 4) * Fraction(delta)
    return (
        _zigzag(x, 8 * wide, near + 2 * wide, Fraction(start)),
        _zigzag(x, 8 * wide, near, Fraction(start)),
    )


class GradientAdversary(Adversary):
    """The resisting oracle of 5.7.6, against any algorithm that sees gradients only (L = 1).

    Args:
        Delta: Δ.
        delta: δ.
        start: x_0, asked for before anything else.
        calls: how many answers it gives, the start's included; by default the most that the theorem allows,
            ⌊Δ/(8δ)⌋.

    Example:
        >>> def sign_descent(oracle, x):
        ...     while True:
        ...         x = x - 0.3 * oracle(x)
        >>> defeat = GradientAdversary(Delta=4.0, delta=0.01, start=0.0).play(sign_descent)
        >>> defeat.best_distance, defeat.consistent, defeat.in_class, len(defeat.queries)
        (1.0, True, True, 50)

    Source: thesis, Theorem 5.5.2 and 5.7.6.

    *Differs from the paper.* The printed function falls by half of every large gap, so its infimum is not where the
    proof says and it leaves F(Δ, 1) as soon as two queries are far apart; its kinks can be arbitrarily close, not 4δ
    apart; and its copy shifted by 1.5δ has common (δ, ε)-stationary points with it. The functions here keep the
    constant Δ/(8δ). As in 5.3.1 the function is chosen after the queries: every run with a fixed seed is defeated.
    """

    #: ∇f(x) = 1
    answer = 1.0

    def __init__(self, Delta: float, delta: float, start: float, calls: int | None = None) -> None:
        most = math.floor(gradient_call_bound(Delta, delta) * (1 + 1e-12))
        calls = most if calls is None else calls
        if not 1 <= calls <= most:
            fail("calls", f"must lie between 1 and Δ/(8δ) = {most}", calls)
        super().__init__(LipschitzClass(1.0, Delta), start, calls)
        self.delta = delta

    def pair(self) -> tuple[PiecewiseLinear, PiecewiseLinear]:
        """Two functions of the class that give every answer and share no (δ, ε)-stationary point."""
        return separated_pair(self.queries, self.delta, self.start)

    def show(self, output: float) -> Defeat:
        """A function under which neither a query nor the output is (δ, ε)-stationary for any ε < 1."""
        f = plateau_function([*self.queries, output], self.delta, self.start)
        answered = all(f.subdifferential(x) == (1, 1) for x in self.queries)
        best = min(f.distance(x, self.delta) for x in [*self.queries, output])
        return Defeat(f, tuple(self.queries), output, float(f.distance(output, self.delta)), float(best), answered,
                      self.constants.holds(f, self.start))
