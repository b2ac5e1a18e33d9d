"""Noise laws with exact constants: sampler, absolute moments, tail index, expectations; per
coordinate.

Expectations under heavy tails are not estimated by sample means here: every law has its absolute
moments in closed form, and ``expect`` computes the expectation of a function of one coordinate by
an exact sum or by quadrature. Needs numpy and scipy, no torch.

Notation: ξ is one coordinate, s its scale. All laws have mean zero.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

import numpy as np

from mindgap.base.check import fail, positive
from mindgap.base.checked import Order, Range, Share, check_arguments

Array = np.ndarray
Scale = float | Sequence[float] | Array


def _scales(scale: Any) -> Array:
    """The scales as a float64 array: of no axis for a number, of one axis for a vector.

    Raises:
        RuleError: a scale is not positive and finite, or there is none.
    """
    array = np.asarray(scale, dtype=float)
    if array.ndim > 1 or array.size == 0:
        fail("scale", "must be a number or a vector", scale)
    if not (np.isfinite(array).all() and (array > 0).all()):
        fail("scale", "must be positive and finite", scale)
    return array


class NoiseLaw(ABC):
    """Independent coordinates of one shape and a scale each; mean zero.

    ``scale`` is one number for all coordinates or a vector with one number per coordinate, in which
    case the last axis of every sample has that length.

    Example:
        >>> law = Bounded(scale=[1.0, 2.0])  # one of the laws below
        >>> law.sample(np.random.default_rng(0), (5, 2)).shape, law.moment(1.0).tolist()
        ((5, 2), [0.5, 1.0])
    """

    scale: Scale

    def __post_init__(self) -> None:
        _scales(self.scale)

    @property
    def tail_index(self) -> float:
        """The largest a with E|ξ|^p finite for all p < a; infinite for laws with all moments."""
        return math.inf

    @abstractmethod
    def unit_moment(self, p: float) -> float:
        """E|ξ|^p at scale one; infinite where it does not exist."""

    @abstractmethod
    def unit_sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Independent samples at scale one, an array of that shape; advances ``rng``."""

    @abstractmethod
    def unit_expect(self, function: Callable[[Array], Array], kinks: Sequence[float]) -> float:
        """E[function(ξ)] at scale one, exact or by quadrature; ``kinks`` are points where the
        function bends.
        """

    def sample(self, rng: np.random.Generator, shape: int | tuple[int, ...] = ()) -> Array:
        """Independent samples; advances ``rng``.

        Args:
            rng: numpy's generator.
            shape: of the result; with a vector of scales the last axis must have its length.
        """
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        scales = _scales(self.scale)
        if scales.ndim and (not shape or shape[-1] != scales.size):
            fail("shape", f"must end with the number of scales, {scales.size}", shape)
        return scales * self.unit_sample(rng, shape)

    def moment(self, p: float) -> Any:
        """E|ξ_i|^p of every coordinate, exact: a number, or a vector where ``scale`` is one.

        Args:
            p: positive; from the tail index on the moment is infinite.
        """
        positive("p", p)
        scales = _scales(self.scale)
        value = scales**p * self.unit_moment(p)
        return float(value) if value.ndim == 0 else value

    def expect(self, function: Callable[[Array], Array], kinks: Sequence[float] = ()) -> float:
        """E[function(ξ)] of one coordinate with a single scale; exact or by quadrature, never
        by sampling.

        Args:
            function: acts on an array of points, entry by entry.
            kinks: points where the function bends; the quadrature is split there.
        """
        scales = _scales(self.scale)
        if scales.ndim:
            fail("scale", "must be one number for expect", self.scale)
        unit = float(scales)
        return self.unit_expect(
            lambda points: function(unit * points), [kink / unit for kink in kinks]
        )


@cache
def _gauss(n: int) -> tuple[Array, Array]:
    """The n Gauss-Legendre nodes and their weights on [-1, 1]; finding them costs far more than
    using them.
    """
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return nodes, weights


def _integrate(
    density: Callable[[Array], Array],
    function: Callable[[Array], Array],
    kinks: Sequence[float],
    interval: tuple[float, float],
) -> float:
    """∫ function · density over an interval, by Gauss-Legendre quadrature on pieces.

    Pieces end at the kinks, and at -1, 0 and 1, where densities bend. A finite piece takes 200
    nodes. An infinite one takes 600 after the map x = edge ± (t^(-m) - 1) to t in (0, 1], m = 12,
    by which a tail x^(-a-1) becomes t^(ma-1), smooth at t = 0.

    Args:
        density: acts on an array of points, as ``function`` does.
        function: what is integrated against the density.
        kinks: points where the function bends; those outside the interval are left out.
        interval: (lower, upper) end; each may be infinite.
    """
    lower, upper = interval
    inner_breaks = {k for k in (*map(float, kinks), -1.0, 0.0, 1.0) if lower < k < upper}
    points = sorted(inner_breaks | {end for end in interval if math.isfinite(end)})
    nodes, weights = _gauss(200)
    total = 0.0
    for start, end in itertools.pairwise(points):
        x = 0.5 * (end - start) * nodes + 0.5 * (start + end)
        total += 0.5 * (end - start) * float(np.sum(weights * function(x) * density(x)))
    nodes, weights = _gauss(600)
    t, t_weights, power = 0.5 * (nodes + 1), 0.5 * weights, 12.0  # t on (0, 1), and m
    x_per_t = power * t ** (-power - 1)  # |dx/dt|
    tails = []  # (where a tail begins, its direction)
    if not math.isfinite(lower):
        tails.append((points[0], -1.0))
    if not math.isfinite(upper):
        tails.append((points[-1], 1.0))
    for edge, sign in tails:
        x = edge + sign * (t**-power - 1)
        total += float(np.sum(t_weights * x_per_t * function(x) * density(x)))
    return total


@dataclass(frozen=True, eq=False)
class Gaussian(NoiseLaw):
    """N(0, s²): E|ξ|^p = s^p 2^(p/2) Γ((p+1)/2) / √π.

    Example:
        >>> round(Gaussian(scale=2.0).moment(2), 12), Gaussian().tail_index
        (4.0, inf)
        >>> round(Gaussian().expect(lambda x: x**4), 12)
        3.0
    """

    scale: Scale = 1.0

    def unit_moment(self, p: float) -> float:
        """E|ξ|^p of N(0, 1), the class's formula."""
        return 2 ** (p / 2) * math.gamma((p + 1) / 2) / math.sqrt(math.pi)

    def unit_sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return rng.standard_normal(shape)

    def unit_expect(self, function: Callable[[Array], Array], kinks: Sequence[float]) -> float:
        """E[function(ξ)] at scale one, by quadrature on [-12, 12]; beyond, the mass is below 1e-32.
        Besides the kinks it is split at every odd number, so that pieces are short.
        """
        return _integrate(
            lambda x: np.exp(-x * x / 2) / math.sqrt(2 * math.pi),
            function,
            [*kinks, *range(-11, 12, 2)],
            (-12.0, 12.0),
        )


@dataclass(frozen=True, eq=False)
class Student(NoiseLaw):
    """Student's t with ``df`` degrees of freedom; tail index df.

    E|ξ|^p = s^p df^(p/2) Γ((p+1)/2) Γ((df-p)/2) / (√π Γ(df/2)) for p < df.

    Example:
        >>> round(Student(df=3.0).moment(2), 12), Student(df=1.5).moment(2)
        (3.0, inf)
    """

    df: Annotated[float, Range(1, math.inf, "()")]
    scale: Scale = 1.0

    @property
    def tail_index(self) -> float:
        return self.df

    def unit_moment(self, p: float) -> float:
        """E|ξ|^p at scale 1, the class's formula in logarithms; infinite from p = df on."""
        if p >= self.df:
            return math.inf
        log_numerator = (
            (p / 2) * math.log(self.df) + math.lgamma((p + 1) / 2) + math.lgamma((self.df - p) / 2)
        )
        return math.exp(log_numerator - 0.5 * math.log(math.pi) - math.lgamma(self.df / 2))

    def unit_sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return rng.standard_t(self.df, shape)

    def unit_expect(self, function: Callable[[Array], Array], kinks: Sequence[float]) -> float:
        """By quadrature with the density e^log_factor (1 + x²/df)^(-(df+1)/2)."""
        df = self.df
        log_factor = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
        return _integrate(
            lambda x: np.exp(log_factor - (df + 1) / 2 * np.log1p(x * x / df)),
            function,
            kinks,
            (-math.inf, math.inf),
        )


@dataclass(frozen=True, eq=False)
class SymmetricPareto(NoiseLaw):
    """P(|ξ| > x) = (s/x)^a for x >= s, with a fair sign; E|ξ|^p = s^p a/(a-p) for p < a.

    Example:
        >>> round(SymmetricPareto(index=1.5).moment(1.2), 12)
        5.0
    """

    index: Annotated[float, Range(1, math.inf, "()")]
    scale: Scale = 1.0

    @property
    def tail_index(self) -> float:
        return self.index

    def unit_moment(self, p: float) -> float:
        """E|ξ|^p at scale 1; infinite from the tail index on."""
        return self.index / (self.index - p) if p < self.index else math.inf

    def unit_sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """sign(u) |u|^(-1/a) of uniform numbers u on (-1, 1]: sign and size of one number are
        independent. Advances ``rng``.
        """
        uniform = 1.0 - 2.0 * rng.random(shape)
        sign = np.where(uniform < 0, -1.0, 1.0)
        size = np.maximum(np.abs(uniform), np.finfo(float).tiny)  # never 0
        return sign * size ** (-1.0 / self.index)

    def unit_expect(self, function: Callable[[Array], Array], kinks: Sequence[float]) -> float:
        """By quadrature with the density (a/2) |x|^(-a-1) for |x| >= 1, else 0."""
        a = self.index

        def density(x: Array) -> Array:
            """(a/2) |x|^(-a-1) for |x| >= 1, else 0, with a the tail index."""
            # The maximum keeps the power finite where it is not taken.
            return np.where(np.abs(x) >= 1, 0.5 * a * np.maximum(np.abs(x), 1.0) ** (-a - 1), 0.0)

        return _integrate(density, function, kinks, (-math.inf, math.inf))


@dataclass(frozen=True, eq=False)
class Stable(NoiseLaw):
    """Symmetric α-stable with characteristic function exp(-|s t|^a), 1 < a <= 2.

    E|ξ|^p = s^p 2^p Γ((1+p)/2) Γ(1-p/a) / (√π Γ(1-p/2)) for p < a; a = 2 is N(0, 2s²). Sampled by
    the formula of Chambers, Mallows and Stuck.

    Example:
        >>> round(Stable(index=2.0).moment(2), 12), Stable(index=1.5).moment(1.5)
        (2.0, inf)
    """

    index: Order
    scale: Scale = 1.0

    @property
    def tail_index(self) -> float:
        return math.inf if self.index == 2 else self.index  # index 2 is the Gaussian law

    def unit_moment(self, p: float) -> float:
        """E|ξ|^p at scale 1 in closed form; infinite from p = index on, unless the index is 2."""
        if self.index == 2:
            return 2**p * math.gamma((1 + p) / 2) / math.sqrt(math.pi)
        if p >= self.index:
            return math.inf
        return (
            2**p
            * math.gamma((1 + p) / 2)
            * math.gamma(1 - p / self.index)
            / (math.sqrt(math.pi) * math.gamma(1 - p / 2))
        )

    def unit_sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """By Chambers, Mallows and Stuck: from a uniform angle on (-π/2, π/2) and an exponential
        number. Advances ``rng``.
        """
        angle = np.pi * (rng.random(shape) - 0.5)
        exponential = rng.standard_exponential(shape)
        index = self.index
        return (
            np.sin(index * angle)
            / np.cos(angle) ** (1 / index)
            * (np.cos((1 - index) * angle) / exponential) ** ((1 - index) / index)
        )

    def unit_expect(self, function: Callable[[Array], Array], kinks: Sequence[float]) -> float:
        """Refused: the density has no closed form, and the moments above are exact."""
        fail(
            "law", "must have a closed density for expect (Stable has none; use its moments)", self
        )


@dataclass(frozen=True, eq=False)
class TwoPoint(NoiseLaw):
    """The centred two-point law of 4.7.6: ξ = s·(p - z) with z ~ Bernoulli(p).

    It takes s·p with probability 1-p and -s·(1-p) with probability p, so every expectation is a sum
    of two terms.

    Example:
        >>> TwoPoint(probability=0.5, scale=2.0).expect(lambda x: x**2)  # ±1
        1.0
    """

    probability: Share
    scale: Scale = 1.0

    def unit_moment(self, p: float) -> float:
        """E|ξ|^p at scale 1: p is the order of the moment here, not the law's probability."""
        probability = self.probability
        return probability * (1 - probability) ** p + (1 - probability) * probability**p

    def unit_sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        is_rare = rng.random(shape) < self.probability  # z, which is 1 with probability p
        return self.probability - is_rare

    def unit_expect(self, function: Callable[[Array], Array], kinks: Sequence[float]) -> float:
        """The sum over the two values: p - 1, which has probability p, and p, which has 1 - p."""
        probability = self.probability
        values = function(np.array([probability - 1.0, probability]))
        return float(probability * values[0] + (1 - probability) * values[1])


@dataclass(frozen=True, eq=False)
class Bounded(NoiseLaw):
    """Uniform on [-s, s] in every coordinate; in d dimensions the norm never exceeds ``radius(d)``.

    Example:
        >>> Bounded(scale=3.0).moment(2), Bounded(scale=3.0).radius(4)
        (3.0, 6.0)
    """

    scale: Scale = 1.0

    def radius(self, dimension: int = 1) -> float:
        """The bound τ of the norm (Assumption 3.4.2): ‖s‖₂ for a vector of scales, s·√d for one.

        Args:
            dimension: d, used with a single scale only.
        """
        scales = _scales(self.scale)
        if scales.ndim:
            return float(np.linalg.norm(scales))
        return float(scales) * math.sqrt(dimension)

    def unit_moment(self, p: float) -> float:
        return 1 / (p + 1)  # E|ξ|^p of the uniform law on [-1, 1]

    def unit_sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return rng.uniform(-1.0, 1.0, shape)

    def unit_expect(self, function: Callable[[Array], Array], kinks: Sequence[float]) -> float:
        """By quadrature with the density 1/2 on [-1, 1]."""
        return _integrate(lambda x: np.full_like(x, 0.5), function, kinks, (-1.0, 1.0))


check_arguments(__name__)
