"""Theorem 5.3.1: no algorithm finds an ε-stationary point of a Lipschitz function in finitely many calls.

The resisting oracle answers f = 0 and ∇f = L to everything. Afterwards it shows a function of the class that agrees
with all its answers and is not stationary anywhere the algorithm has been, nor where it ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from mindgap.base.check import between, fail, whole
from mindgap.base.checked import Positive
from mindgap.lab.theory.chapter5.piecewise import Number, PiecewiseLinear, exact_points


@dataclass(frozen=True)
class LipschitzClass:
    """F(Δ, L): L-Lipschitz, directionally differentiable, f(x_0) - inf f <= Δ.

    Args:
        L: the Lipschitz constant, positive.
        Delta: Δ, positive.

    Example:
        >>> LipschitzClass(L=1.0, Delta=-2.0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: Delta must be positive and finite, got -2.0

    Source: thesis, (5.2).
    """

    L: Positive
    Delta: Positive

    def holds(self, f: PiecewiseLinear, start: Number) -> bool:
        """Whether a function of one variable belongs to the class, exactly."""
        low = f.infimum
        return f.lipschitz <= Fraction(self.L) and f.value(start) - low <= Fraction(self.Delta)


class OutOfCalls(Exception):
    """Raised by an oracle that has answered as often as agreed; ``play`` takes the last query as the output.

    Example:
        >>> oracle = ValueAdversary(LipschitzClass(L=1.0, Delta=1.0), start=0.0, calls=1)
        >>> oracle(0.0)
        (0.0, 1.0)
        >>> oracle(0.5)
        Traceback (most recent call last):
        mindgap.lab.theory.chapter5.thm_5_3_1.OutOfCalls

    Source: thesis, Theorem 5.3.1 ("for any finite iteration T").
    """


@dataclass(frozen=True)
class Defeat:
    """What an adversary shows at the end.

    Attributes:
        function: a function of the class that agrees with every answer.
        queries: the points asked for, in order, the start first.
        output: the point the algorithm returned.
        output_distance: d(0, ∂f(output + δB)), with δ = 0 for Theorem 5.3.1.
        best_distance: the smallest such distance over queries and output.
        consistent: whether the function gives every answer that was given, exactly.
        in_class: whether the function belongs to F(Δ, L), exactly.

    Example:
        >>> adversary = ValueAdversary(LipschitzClass(L=2.0, Delta=1.0), start=0.0, calls=3)
        >>> adversary.show(output=7.0).output_distance
        2.0

    Source: thesis, 5.7.3 and 5.7.6.
    """

    function: PiecewiseLinear
    queries: tuple[float, ...]
    output: float
    output_distance: float
    best_distance: float
    consistent: bool
    in_class: bool


def resisting_function(points: Sequence[Number], constants: LipschitzClass, theta: Fraction) -> PiecewiseLinear:
    """f_θ of Lemma 5.7.1: zero with slope L at every point, valleys θδ to the left of them.

    δ is the least distance of two points, at most Δ/L. Valleys lie at x_k - θδ, peaks at (x_k + x_{k+1})/2 - θδ;
    for two values of θ no stationary point is shared.

    Args:
        points: the queried points, in any order, repetitions allowed.
        constants: L and Δ.
        theta: θ in (0, 1/2).

    Example:
        >>> f = resisting_function([0.0, 1.0], LipschitzClass(L=2.0, Delta=1.0), Fraction(1, 4))
        >>> f.value(0.0), f.value(1.0), [str(k) for k in f.kinks]
        (Fraction(0, 1), Fraction(0, 1), ['-1/8', '3/8', '7/8'])

    Source: thesis, Lemma 5.7.1.

    *Differs from the paper.* The last piece is printed for x >= x_K + θδ, which leaves a gap; it starts at x_K - θδ.
    """
    between("theta", float(theta), 0, 0.5, ends="()")
    x, slope = exact_points(points), Fraction(constants.L)
    gap = min([b - a for a, b in pairwise(x)] + [Fraction(constants.Delta) / slope])
    shift = theta * gap
    breaks = [x[0] - shift]
    for a, b in pairwise(x):
        breaks += [(a + b) / 2 - shift, b - shift]
    return PiecewiseLinear(tuple(breaks), tuple([-slope, slope] * len(x)), anchor=x[0])


class Adversary(ABC):
    """An oracle that gives one answer to every query and shows a fitting function at the end."""

    answer: Any

    def __init__(self, constants: LipschitzClass, start: float, calls: int) -> None:
        self.constants = constants
        self.calls = whole("calls", calls, least=1)
        self.start = float(exact_points([start])[0])
        self.queries = [self.start]
        self._start_paid = True

    def __call__(self, x: float, direction: float = 0.0) -> Any:
        """The answer, whatever x."""
        if x == self.start and self._start_paid:
            self._start_paid = False  # asked for already, before the algorithm began
            return self.answer
        if len(self.queries) >= self.calls:
            raise OutOfCalls
        self.queries.append(float(exact_points([x])[0]))
        return self.answer

    def play(self, algorithm: Callable[[Any, float], float]) -> Defeat:
        """Let an algorithm run until it returns a point or the calls are spent, then show the function."""
        try:
            output = float(algorithm(self, self.start))
        except OutOfCalls:
            output = self.queries[-1]
        return self.show(output)

    @abstractmethod
    def show(self, output: float) -> Defeat:
        """A function under which neither a query nor the output is stationary."""


class ValueAdversary(Adversary):
    """The resisting oracle of 5.7.3, against any algorithm that sees values and gradients.

    Call it with a point (and, as Assumption 5.3.1 has it, a direction, which does not matter here) to get
    ``(value, gradient)``; :meth:`show` ends the game.

    Args:
        constants: L and Δ.
        start: x_0, asked for before anything else.
        calls: T, how many answers it gives, the start's included.

    Example:
        >>> def gradient_descent(oracle, x):
        ...     while True:
        ...         x = x - 0.1 * oracle(x)[1]
        >>> defeat = ValueAdversary(LipschitzClass(L=1.0, Delta=1.0), start=0.0, calls=50).play(gradient_descent)
        >>> defeat.best_distance, defeat.consistent, defeat.in_class, len(defeat.queries)
        (1.0, True, True, 50)

    Source: thesis, Theorem 5.3.1 and 5.7.3.

    *Differs from the paper.* The theorem says ε in [0, 1); a function of F(Δ, L) has no point that is not
    ε-stationary when ε >= L, and the proof is for ε < L. It also speaks of randomised algorithms, while the function
    is chosen after the queries: what is shown is that every run, with its seed fixed, is defeated.
    """

    @property
    def answer(self) -> tuple[float, float]:
        """f(x) = 0 and ∇f(x) = L."""
        return 0.0, self.constants.L

    def family(self, count: int) -> list[PiecewiseLinear]:
        """Functions f_θ for ``count`` values of θ: all agree with the answers, no two share a stationary point."""
        return list(self._members(whole("count", count, least=1)))

    def _members(self, count: int) -> Iterator[PiecewiseLinear]:
        for i in range(count):
            yield resisting_function(self.queries, self.constants, Fraction(i + 1, 2 * (count + 1)))

    def show(self, output: float) -> Defeat:
        """A function under which neither a query nor the output is ε-stationary for any ε < L.

        The stationary points move with θ, and a point meets at most one θ per piece; so among 2T values of θ one
        leaves the output alone.
        """
        exact_points([output])
        for f in self._members(2 * len(set(self.queries))):
            if f.distance(output) > 0:
                break
        else:
            fail("output", "must be left alone by some member of the family", output)
        answered = all(f.value(x) == 0 and f.subdifferential(x) == (self.constants.L,) * 2 for x in self.queries)
        best = min(f.distance(x) for x in [*self.queries, output])
        return Defeat(f, tuple(self.queries), output, float(f.distance(output)), float(best), answered,
                      self.constants.holds(f, self.start))
