"""Theorems 5.3.1 and 5.5.2: resisting oracles, which show a fitting function after the last
query.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from mindgap.base.check import between, fail, positive, whole
from mindgap.base.checked import Positive
from mindgap.lab.theory.chapter5.stationarity import Number, PiecewiseLinear, exact_points

# Theorem 5.3.1: no algorithm finds an ε-stationary point of a Lipschitz function in finitely many
# calls. The resisting oracle answers f = 0 and ∇f = L to everything. Afterwards it shows a function
# of the class that agrees with all its answers and is not stationary anywhere the algorithm has
# been, nor where it ended.


@dataclass(frozen=True)
class LipschitzClass:
    """F(Δ, L): L-Lipschitz, directionally differentiable, f(x_0) - inf f <= Δ (thesis, (5.2)).

    Example:
        >>> LipschitzClass(L=1.0, Delta=-2.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: Delta must be positive and finite, got -2.0
    """

    L: Positive
    Delta: Positive

    def contains(self, f: PiecewiseLinear, start: Number) -> bool:
        """Whether a function of one variable belongs to the class with x_0 = ``start``, exactly."""
        rise = f.value(start) - f.infimum
        return f.lipschitz <= Fraction(self.L) and rise <= Fraction(self.Delta)


class OutOfCalls(Exception):
    """Raised by an oracle that has answered as often as agreed; ``play`` takes the last query as
    the output.

    Example:
        >>> oracle = ValueAdversary(LipschitzClass(L=1.0, Delta=1.0), start=0.0, calls=1)
        >>> oracle(0.0)
        (0.0, 1.0)
        >>> oracle(0.5)
        Traceback (most recent call last):
        mindgap.lab.theory.chapter5.adversaries.OutOfCalls

    Source: thesis, Theorem 5.3.1 ("for any finite iteration T").
    """


@dataclass(frozen=True)
class Defeat:
    """What an adversary shows at the end (thesis, 5.7.3 and 5.7.6).

    Example:
        >>> adversary = ValueAdversary(LipschitzClass(L=2.0, Delta=1.0), start=0.0, calls=3)
        >>> adversary.show(output=7.0).output_distance
        2.0
    """

    function: PiecewiseLinear  # a function of the class that agrees with every answer
    queries: tuple[float, ...]  # the points asked for, in order, the start first
    output: float  # the point the algorithm returned
    output_distance: float  # d(0, ∂f(output + δB)), with δ = 0 for Theorem 5.3.1
    best_distance: float  # the smallest such distance over queries and output
    consistent: bool  # whether the function gives every answer that was given, exactly
    in_class: bool  # whether the function belongs to F(Δ, L), exactly


def resisting_function(
    points: Sequence[Number], constants: LipschitzClass, theta: Fraction
) -> PiecewiseLinear:
    """f_θ of Lemma 5.7.1: zero with slope L at every point, with a valley to the left of each.

    δ is the least distance of two points, or Δ/L where that is less. Valleys lie at x_k - θδ, peaks
    at (x_k + x_{k+1})/2 - θδ. For two values of θ no stationary point is shared.

    Args:
        points: the queried points x_k, in any order, repetitions allowed.
        constants: L and Δ.
        theta: θ in (0, 1/2).

    Example:
        >>> f = resisting_function([0.0, 1.0], LipschitzClass(L=2.0, Delta=1.0), Fraction(1, 4))
        >>> f.value(0.0), f.value(1.0), [str(k) for k in f.kinks]
        (Fraction(0, 1), Fraction(0, 1), ['-1/8', '3/8', '7/8'])

    *Differs from the paper.* The last piece is printed for x >= x_K + θδ, which leaves a gap; it
    starts at x_K - θδ.
    """
    between("theta", float(theta), 0, 0.5, ends="()")
    distinct, slope = exact_points(points), Fraction(constants.L)
    distances = [right - left for left, right in pairwise(distinct)]
    shift = theta * min([*distances, Fraction(constants.Delta) / slope])  # θδ
    breaks = [distinct[0] - shift]  # a valley, then peak and valley in turn
    for left, right in pairwise(distinct):
        breaks += [(left + right) / 2 - shift, right - shift]
    # As many pieces as breaks and one: falling to each valley, rising through the point after it.
    slopes = tuple([-slope, slope] * len(distinct))
    return PiecewiseLinear(tuple(breaks), slopes, anchor=distinct[0])


class Adversary(ABC):
    """An oracle that gives one answer to every query and shows a fitting function at the end.

    Args:
        constants: the class of functions.
        start: x_0, which counts as the first query.
        calls: how many answers the oracle gives, the start's included.
    """

    answer: Any  # the one answer to every query, set by a subclass

    def __init__(self, constants: LipschitzClass, start: float, calls: int) -> None:
        self.constants = constants
        self.calls = whole("calls", calls, least=1)
        self.start = float(*exact_points([start]))  # refused unless finite
        self.queries = [self.start]  # every point asked for, the start first
        self._start_is_free = True  # until the algorithm asks for the start

    def __call__(self, x: float, direction: float = 0.0) -> Any:
        """Return the same answer, whatever x and direction, and append x to ``queries``. The first
        query at the start is not appended: it counted from the beginning.

        Raises:
            OutOfCalls: all answers have been given.
        """
        if x == self.start and self._start_is_free:
            self._start_is_free = False
            return self.answer
        if len(self.queries) >= self.calls:
            raise OutOfCalls
        self.queries.append(float(*exact_points([x])))
        return self.answer

    def play(self, algorithm: Callable[[Any, float], float]) -> Defeat:
        """Let an algorithm run until it returns a point or the calls are spent, then show the
        function.

        Args:
            algorithm: takes this oracle and the start, returns its output; where the calls run out,
                the last query is the output.
        """
        try:
            output = float(algorithm(self, self.start))
        except OutOfCalls:
            output = self.queries[-1]
        return self.show(output)

    @abstractmethod
    def show(self, output: float) -> Defeat:
        """End the game with a function under which neither a query nor the output is stationary."""

    def _defeat(
        self, function: PiecewiseLinear, output: float, delta: Number, consistent: bool
    ) -> Defeat:
        """The end of the game with a function that the adversary has chosen.

        Args:
            function: the function.
            output: the point the algorithm returned.
            delta: δ of the distances d(0, ∂f(x + δB)).
            consistent: whether the function gives every answer that was given.
        """
        distances = [function.distance(x, delta) for x in (*self.queries, output)]
        return Defeat(
            function,
            queries=tuple(self.queries),
            output=output,
            output_distance=float(distances[-1]),
            best_distance=float(min(distances)),
            consistent=consistent,
            in_class=self.constants.contains(function, self.start),
        )


class ValueAdversary(Adversary):
    """The resisting oracle of 5.7.3, against any algorithm that sees values and gradients.

    Call it with a point (and, as Assumption 5.3.1 has it, a direction, which does not matter here)
    to get ``(value, gradient)``; :meth:`show` ends the game. Source: thesis, Theorem 5.3.1 and
    5.7.3.

    Args:
        start: x_0, asked for before anything else.
        calls: T, how many answers it gives, the start's included.

    Example:
        >>> def gradient_descent(oracle, x):
        ...     while True:
        ...         x = x - 0.1 * oracle(x)[1]
        >>> defeat = ValueAdversary(LipschitzClass(L=1.0, Delta=1.0), start=0.0, calls=50).play(
        ...     gradient_descent
        ... )
        >>> defeat.best_distance, defeat.consistent, defeat.in_class, len(defeat.queries)
        (1.0, True, True, 50)

    *Differs from the paper.* The theorem says ε in [0, 1); a function of F(Δ, L) has no point that
    is not ε-stationary when ε >= L, and the proof is for ε < L. It also speaks of randomised
    algorithms, while the function is chosen after the queries: what is shown is that every run,
    with its seed fixed, is defeated.
    """

    @property
    def answer(self) -> tuple[float, float]:
        """f(x) = 0 and ∇f(x) = L."""
        return 0.0, self.constants.L

    def family(self, count: int) -> Iterator[PiecewiseLinear]:
        """f_θ for ``count`` values of θ, evenly over (0, 1/2): all agree with the answers, no two
        share a stationary point.
        """
        for i in range(whole("count", count, least=1)):
            yield resisting_function(self.queries, self.constants, Fraction(i + 1, 2 * (count + 1)))

    def show(self, output: float) -> Defeat:
        """End the game with a function under which neither a query nor the output is ε-stationary
        for any ε < L.

        The stationary points of f_θ move with θ, and the output is one for at most one θ per piece.
        So among 2T values of θ one leaves the output alone.
        """
        exact_points([output])  # refuses one that is not finite
        for f in self.family(2 * len(set(self.queries))):
            if f.distance(output) > 0:
                break
        else:
            fail("output", "must be left alone by some member of the family", output)
        L = self.constants.L
        consistent = all(f.value(x) == 0 and f.subdifferential(x) == (L, L) for x in self.queries)
        return self._defeat(f, output, 0, consistent)


# Theorem 5.5.2: algorithms that see gradients only need at least Δ/(8δ) calls for a (δ,
# ε)-stationary point. The resisting oracle answers ∇f = 1 to everything (L = 1). Afterwards it
# shows a function of F(Δ, 1) that rises wherever the algorithm has been and where it ended, with no
# kink within δ of any of these points.


def gradient_call_bound(Delta: float, delta: float) -> float:
    """Δ/(8δ), the number of gradient calls below which no algorithm is safe (thesis, Theorem
    5.5.2).

    Example:
        >>> gradient_call_bound(Delta=4.0, delta=0.01)
        50.0
    """
    return positive("Delta", Delta) / (8 * positive("delta", delta))


def _zigzag(
    points: list[Fraction], most_rise: Fraction, to_valley: Fraction, start: Fraction
) -> PiecewiseLinear:
    """A function with slopes -1 and 1 that rises at every point and is 0 at ``start``.

    Between two points further apart than ``most_rise`` it falls as far as it rises. Values at the
    points never fall, and rise by at most ``most_rise`` from one to the next. No valley is deeper
    than ``to_valley`` below the first point.

    Args:
        points: distinct, increasing.
        most_rise: the largest distance over which f may rise all the way.
        to_valley: how far to the left of a point the valley before it lies.
        start: where f is 0.
    """
    breaks = [points[0] - to_valley]  # a valley, then peak and valley in turn
    for left, right in pairwise(points):
        if right - left > most_rise:
            valley = right - to_valley
            breaks += [valley - (right - left) / 2, valley]
    slopes = tuple([Fraction(-1), Fraction(1)] * ((len(breaks) + 1) // 2))
    return PiecewiseLinear(tuple(breaks), slopes, anchor=start)


def plateau_function(points: Sequence[Number], delta: Number, start: Number) -> PiecewiseLinear:
    """A 1-Lipschitz function with f(start) = 0 that rises with slope 1 within 1.25 δ of every
    point.

    f(start) - inf f is at most 5δ(K-1) + 1.25δ for K distinct points. Source: thesis, 5.7.6, with
    the repairs listed at :class:`GradientAdversary`.

    Example:
        >>> f = plateau_function([0.0, 100.0], delta=1.0, start=0.0)
        >>> [float(f.distance(x, 1.0)) for x in (0.0, 100.0)], float(f.infimum)
        ([1.0, 1.0], -1.25)
    """
    radius = Fraction(5, 4) * Fraction(delta)
    return _zigzag(exact_points(points), 4 * radius, radius, Fraction(start))


def separated_pair(
    points: Sequence[Number], delta: Number, start: Number
) -> tuple[PiecewiseLinear, PiecewiseLinear]:
    """Two functions with slope 1 at every point that share no (δ, ε)-stationary point for any ε < 1
    (thesis, 5.7.6).

    Their kinks are more than 2δ apart, so no point is within δ of both. For K points both satisfy
    f(start) - inf f <= 8δK. ``plateau_function`` makes a single one.

    Args:
        points: the queries, in any order, repetitions allowed.
        delta: δ.
        start: where both functions are 0.

    Example:
        >>> f, g = separated_pair([0.0, 3.0, 50.0], delta=1.0, start=0.0)
        >>> min(abs(a - b) for a in f.kinks for b in g.kinks) > 2
        True

    *Differs from the paper.* The paper shifts one function by 1.5δ, which leaves points within δ of
    both.
    """
    distinct = exact_points(points)
    wider = Fraction(delta) * (1 + Fraction(1, 2 * len(distinct)))  # a little more than δ
    radius = Fraction(5, 4) * Fraction(delta)  # no kink is nearer to a point
    # The first one's valleys and peaks lie 2·wider, more than 2δ, to the left of the second one's.
    return (
        _zigzag(distinct, 8 * wider, radius + 2 * wider, Fraction(start)),
        _zigzag(distinct, 8 * wider, radius, Fraction(start)),
    )


class GradientAdversary(Adversary):
    """The resisting oracle of 5.7.6, against any algorithm that sees gradients only (L = 1).

    Args:
        Delta: Δ of the class F(Δ, 1).
        delta: δ, the radius of the stationarity that is asked for.
        start: x_0, asked for before anything else.
        calls: how many answers it gives, the start's included; by default the most that the theorem
            allows, ⌊Δ/(8δ)⌋.

    Example:
        >>> def sign_descent(oracle, x):
        ...     while True:
        ...         x = x - 0.3 * oracle(x)
        >>> defeat = GradientAdversary(Delta=4.0, delta=0.01, start=0.0).play(sign_descent)
        >>> defeat.best_distance, defeat.consistent, defeat.in_class, len(defeat.queries)
        (1.0, True, True, 50)

    Source: thesis, Theorem 5.5.2 and 5.7.6.

    *Differs from the paper.* The printed function falls by half of every large gap, so its infimum
    is not where the proof says and it leaves F(Δ, 1) as soon as two queries are far apart; its
    kinks can be arbitrarily close, not 4δ apart; and its copy shifted by 1.5δ has common (δ,
    ε)-stationary points with it. The functions here keep the constant Δ/(8δ). As in 5.3.1 the
    function is chosen after the queries: every run with a fixed seed is defeated.
    """

    #: ∇f(x) = 1
    answer = 1.0

    def __init__(self, Delta: float, delta: float, start: float, calls: int | None = None) -> None:
        # Where Δ/(8δ) is whole, rounding must not take one off.
        most = math.floor(gradient_call_bound(Delta, delta) * (1 + 1e-12))
        calls = most if calls is None else calls
        if not 1 <= calls <= most:
            fail("calls", f"must lie between 1 and Δ/(8δ) = {most}", calls)
        super().__init__(LipschitzClass(1.0, Delta), start, calls)
        self.delta = delta

    def pair(self) -> tuple[PiecewiseLinear, PiecewiseLinear]:
        """Two functions of the class that give every answer and share no (δ, ε)-stationary
        point.
        """
        return separated_pair(self.queries, self.delta, self.start)

    def show(self, output: float) -> Defeat:
        """End the game with a function under which neither a query nor the output is (δ,
        ε)-stationary for any ε < 1.
        """
        f = plateau_function([*self.queries, output], self.delta, self.start)
        consistent = all(f.subdifferential(x) == (1, 1) for x in self.queries)
        return self._defeat(f, output, self.delta, consistent)
