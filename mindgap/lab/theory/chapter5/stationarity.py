"""Piecewise linear functions of one variable in exact arithmetic: what the resisting oracles answer
with.

Breakpoints, slopes and values are fractions, so that two queries one rounding error apart still
differ and "agrees with every answer" is an equality, not a tolerance.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from mindgap.base.check import fail
from mindgap.base.checked import Count, Positive

if TYPE_CHECKING:
    from torch import Tensor


Number = float | Fraction


@dataclass(frozen=True)
class PiecewiseLinear:
    """f with ``f(anchor) = level`` and slope ``slopes[i]`` between ``breaks[i-1]`` and
    ``breaks[i]``.

    Example:
        >>> f = PiecewiseLinear((Fraction(0),), (Fraction(-1), Fraction(1)))  # |x|
        >>> (
        ...     f.value(-2.5),
        ...     f.subdifferential(0.0),
        ...     f.distance(0.5, delta=0.5),
        ...     f.distance(0.5, delta=0.25),
        ... )
        (Fraction(5, 2), (Fraction(-1, 1), Fraction(1, 1)), Fraction(0, 1), Fraction(1, 1))

    Source: thesis, Definitions 5.2.2 and 5.3.1, Lemma 5.3.2.
    """

    breaks: tuple[Fraction, ...]  # increasing points; the slope changes there
    slopes: tuple[Fraction, ...]  # one more than the breaks, from left to right
    anchor: Fraction = Fraction(0)  # a point where the value is known
    level: Fraction = Fraction(0)  # the value there

    def __post_init__(self) -> None:
        if len(self.slopes) != len(self.breaks) + 1:
            fail(
                "slopes",
                f"must be {len(self.breaks) + 1} for {len(self.breaks)} breaks",
                len(self.slopes),
            )
        if any(b >= c for b, c in pairwise(self.breaks)):
            fail("breaks", "must increase", [float(b) for b in self.breaks])

    @cached_property
    def _heights(self) -> tuple[Fraction, ...]:
        """f(b) - f(breaks[0]) for every break b, by summing slope times length; (0,) without
        breaks.
        """
        heights = [Fraction(0)]
        for i in range(1, len(self.breaks)):
            heights.append(heights[-1] + self.slopes[i] * (self.breaks[i] - self.breaks[i - 1]))
        return tuple(heights)

    @cached_property
    def _offset(self) -> Fraction:
        """f(breaks[0]), or f(0) without breaks: f(x) = ``_above_first_break(x)`` + this."""
        return self.level - self._above_first_break(self.anchor)

    def _above_first_break(self, x: Fraction) -> Fraction:
        """f(x) - f(breaks[0]); slope times x where there are no breaks."""
        if not self.breaks:
            return self.slopes[0] * x
        piece = bisect_right(self.breaks, x)
        nearest = max(piece - 1, 0)  # the break left of x; left of all, the first
        return self._heights[nearest] + self.slopes[piece] * (x - self.breaks[nearest])

    def value(self, x: Number) -> Fraction:
        """f(x), exactly."""
        return self._above_first_break(Fraction(x)) + self._offset

    def subdifferential(self, x: Number) -> tuple[Fraction, Fraction]:
        """(lower, upper) end of ∂f(x): equal where f is differentiable."""
        return self.goldstein(x, 0)

    def goldstein(self, x: Number, delta: Number) -> tuple[Fraction, Fraction]:
        """(lower, upper) end of the Goldstein set ∂f(x + δB), the hull of all slopes within δ of x
        (Definition 5.3.1). A break at distance δ counts with both its slopes.
        """
        centre, reach = Fraction(x), Fraction(delta)
        # Piece i lies between breaks i - 1 and i.
        first_piece = bisect_left(self.breaks, centre - reach)
        last_piece = bisect_right(self.breaks, centre + reach)
        slopes_within = self.slopes[first_piece : last_piece + 1]
        return min(slopes_within), max(slopes_within)

    def distance(self, x: Number, delta: Number = 0) -> Fraction:
        """d(0, ∂f(x + δB)): x is (δ, ε)-stationary when this is at most ε; δ = 0 gives
        ε-stationarity.
        """
        low, high = self.goldstein(x, delta)
        return max(low, -high, Fraction(0))  # 0 where 0 lies between low and high

    @property
    def lipschitz(self) -> Fraction:
        """The Lipschitz constant, max |slope|."""
        return max(abs(s) for s in self.slopes)

    @property
    def infimum(self) -> Fraction | float:
        """inf f; -inf where f falls without end on the left or on the right."""
        if self.slopes[0] > 0 or self.slopes[-1] < 0:
            return -math.inf
        return min((self.value(b) for b in self.breaks), default=self.level)

    @property
    def kinks(self) -> tuple[Fraction, ...]:
        """Breaks where the slope changes sign: the stationary points, if no slope is zero."""
        return tuple(
            b
            for b, left, right in zip(self.breaks, self.slopes, self.slopes[1:])
            if left * right <= 0  # the slopes on its two sides
        )

    def values(self, x: np.ndarray) -> np.ndarray:
        """f at many points, in float64; shape of ``x``. ``value`` is exact, at one point."""
        # Without breaks, 0 takes the place of the first: ``_above_first_break`` is 0 there.
        breaks = _floats(self.breaks or (Fraction(0),))
        pieces = np.searchsorted(breaks[: len(self.breaks)], x, side="right")
        # f is linear from the break on the left; left of all breaks, towards the first one.
        nearest = np.maximum(pieces - 1, 0)
        rise = _floats(self.slopes)[pieces] * (x - breaks[nearest])
        return _floats(self._heights)[nearest] + rise + float(self._offset)

    def gradients(self, x: np.ndarray) -> np.ndarray:
        """The right derivative of f at many points, in float64; shape of ``x``."""
        return _floats(self.slopes)[np.searchsorted(_floats(self.breaks), x, side="right")]


def _floats(numbers: Sequence[Fraction]) -> np.ndarray:
    """Fractions as an array in float64."""
    return np.array([float(number) for number in numbers])


def exact_points(points: Sequence[Number]) -> list[Fraction]:
    """Distinct points as fractions, increasing.

    Raises:
        RuleError: when there is none, or one is not finite.
    """
    if not points:
        fail("points", "must hold at least one point", points)
    for x in points:
        if not math.isfinite(x):
            fail("points", "must be finite", x)
    return sorted({Fraction(x) for x in points})


# Proposition 5.3.1 and Lemmas 5.2.1 to 5.3.2: the two notions of stationarity, and derivatives
# along a line.


def stationarity_radius(L: Positive, epsilon: Positive) -> tuple[float, float]:
    """(ε/(3L), ε/3): where ∇f is L-Lipschitz, every (ε/(3L), ε/3)-stationary point has ‖∇f‖ <= ε.

    Args:
        L: Lipschitz constant of ∇f.
        epsilon: ε.

    Returns:
        (δ, ε') of (δ, ε')-stationarity: 0 is within ε' of the hull of all gradients within δ.

    Example:
        >>> [round(r, 9) for r in stationarity_radius(L=2.0, epsilon=0.6)]
        [0.1, 0.2]

    Source: thesis, Proposition 5.3.1, 2.
    """
    return epsilon / (3 * L), epsilon / 3


def directional_derivative(
    function: Callable[[Tensor], Tensor], x: Tensor, d: Tensor, t: float = 2.0**-26
) -> Tensor:
    """f'(x; d) of Definition 5.2.3 as a one-sided quotient; exact up to rounding where f is
    piecewise linear.

    Args:
        function: f, of a batch of points.
        x, d: points and directions, float64.
        t: the step of the quotient (f(x + td) - f(x))/t.

    Example:
        >>> import torch
        >>> zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        >>> float(directional_derivative(lambda x: -x.abs().sum(-1), zero, one))
        -1.0

    Source: thesis, (5.1) and Lemma 5.2.1.
    """
    return (function(x + t * d) - function(x)) / t


def path_integral(
    function: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, nodes: Count = 4096
) -> Tensor:
    """∫₀¹ f'(x + t(y-x); y-x) dt by the midpoint rule, with derivatives from autograd. It is f(y) -
    f(x) by Lemma 5.2.2.

    The error is at most (number of kinks crossed) · (jump of the derivative) / nodes for a
    piecewise linear f. Source: thesis, Lemma 5.2.2.

    Args:
        function: f, which maps points of shape (nodes, d) to values of shape (nodes,).
        x: where the path begins, shape (d,), float64.
        y: where it ends.
        nodes: number of midpoints.

    Returns:
        A scalar.

    Example:
        >>> import torch
        >>> x, y = (
        ...     torch.tensor([-1.0], dtype=torch.float64),
        ...     torch.tensor([3.0], dtype=torch.float64),
        ... )
        >>> round(float(path_integral(lambda z: z.abs().sum(-1), x, y)), 6)
        2.0
    """
    import torch

    middle = (torch.arange(nodes, dtype=torch.float64) + 0.5) / nodes
    points = (x + middle[:, None] * (y - x)).requires_grad_()
    (gradient,) = torch.autograd.grad(function(points).sum(), points)
    return (gradient @ (y - x)).mean()
