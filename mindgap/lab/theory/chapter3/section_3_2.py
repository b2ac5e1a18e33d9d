"""Section 3.2: two kinds of functions that are not L-smooth, polynomials and deep linear
networks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mindgap.base.check import fail
from mindgap.base.checked import Positive, Vectors
from mindgap.lab.theory.function import Function, namespace

# Remark 3.2.1: any relation by which curvature grows with the gradient does. If ‖∇²f‖ <= ℓ(‖∇f‖)
# with ℓ increasing, the gradient u at most doubles within u/ℓ(2u), so a step of 1/(2 ℓ(2u)) gains
# (3/8) u²/ℓ(2u). A fixed step has to be safe at the steepest place, whose gradient is M.


def growth_bound(
    growth: Callable[[Any], Any], delta: Positive, epsilon: Positive, steepest: Positive
) -> float:
    """Most iterations until ‖∇f‖ <= ε with steps 1/(2 ℓ(2u)), u = ‖∇f(x)‖: (8/3) Δ max ℓ(2u)/u²
    over ε <= u <= M.

    Where ℓ grows no faster than u² the largest term is that of u = ε, and M falls out. The maximum
    is taken over 400 points.

    Args:
        growth: ℓ with ‖∇²f‖ <= ℓ(‖∇f‖), increasing; acts on an array.
        delta: Δ = f(x0) - f*.
        epsilon: ε.
        steepest: M, the largest gradient norm.

    Example:
        >>> round(growth_bound(lambda u: 1 + u, delta=3.0, epsilon=1.0, steepest=100.0), 6)
        24.0

    Source: thesis, Remark 3.2.1, which states no constant; the argument of 3.7.1.
    """
    u = np.geomspace(epsilon, max(steepest, epsilon), 400)
    return float(8 / 3 * delta * (growth(2 * u) / u**2).max())


#: A root of a polynomial with a smaller imaginary part, relative to 1 + |root|, counts as real: a
#: double root is known to about 1e-8, the root of a float's rounding.
REAL_ROOT = 1e-7

# Lemma 3.2.1: polynomials of degree three or more are (L0, L1)-smooth and not L-smooth.
# *Differs from the paper*: the lemma needs a_d != 0 (otherwise the degree is smaller and f may be
# L-smooth).


@dataclass(frozen=True)
class Polynomial(Function):
    """f(x) = Σ_i a_i x^i with a_d != 0.

    Example:
        >>> f = Polynomial((0.0, 0.0, 0.0, 0.0, 0.25))  # x⁴/4
        >>> float(f.gradient(2.0)), float(f.curvature(2.0))
        (8.0, 12.0)
    """

    coefficients: tuple[float, ...]  # a_0, a_1, ..., a_d

    def __post_init__(self) -> None:
        if len(self.coefficients) < 2 or not self.coefficients[-1]:
            fail(
                "coefficients", "must be a_0 .. a_d with d >= 1 and a_d not zero", self.coefficients
            )

    def value(self, x: Any) -> Any:
        """f(x), entry by entry."""
        return _horner(self.coefficients, x)

    def gradient(self, x: Any) -> Any:
        """f'(x), entry by entry."""
        return _horner(_derivative(self.coefficients), x)

    def curvature(self, x: Any) -> Any:
        """f''(x), entry by entry."""
        return _horner(_derivative(_derivative(self.coefficients)), x)


def _derivative(coefficients: Sequence[float]) -> tuple[float, ...]:
    """Coefficients of a polynomial's derivative."""
    return tuple(i * coefficient for i, coefficient in enumerate(coefficients))[1:] or (0.0,)


def _horner(coefficients: Sequence[float], x: Any) -> Any:
    """The value of a polynomial with coefficients a_0, a_1, ..., by Horner's rule; shape of
    ``x``.
    """
    total = x * 0 + coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def polynomial_l0(f: Polynomial, L1: Positive) -> float:
    """The smallest L0 with |f''| <= L0 + L1 |f'| on the whole line; finite for every L1 > 0 when
    the degree is >= 3.

    sup(|f''| - L1 |f'|) is attained where f'' ± L1 f' is stationary, or where f' or f'' changes
    sign: finitely many candidates, all roots of polynomials. Source: thesis, Lemma 3.2.1.

    Args:
        f: of degree 3 or more.
        L1: positive.

    Example:
        >>> round(
        ...     polynomial_l0(Polynomial((0.0, 0.0, 0.0, 0.0, 0.25)), L1=2.0), 9
        ... )  # 4/L1² for x⁴/4
        1.0
    """
    if len(f.coefficients) < 4:
        fail("f", "must have degree 3 or more", len(f.coefficients) - 1)
    # The coefficients of f', f'' and f''', lowest first; numpy.roots takes the highest first.
    first = _derivative(f.coefficients)
    second = np.array(_derivative(first))
    third = np.array(_derivative(_derivative(first)))
    # 0 is there in case that no root is real: any point may be a candidate.
    candidates = [np.zeros(1), np.roots(first[::-1]), np.roots(second[::-1])]
    for sign in (-1.0, 1.0):
        stationary = sign * L1 * second  # f''' ± L1 f''
        stationary[: len(third)] += third  # f''' has one coefficient less
        candidates.append(np.roots(stationary[::-1]))
    roots = np.concatenate(candidates)
    points = roots[np.abs(roots.imag) < REAL_ROOT * (1 + np.abs(roots))].real
    excess = np.abs(f.curvature(points)) - L1 * np.abs(f.gradient(points))
    return max(0.0, float(np.max(excess)))


# 3.2.3: the squared loss of a deep linear network, its gradient and its curvature.
# *Differs from the paper* in four places. The gradient of ‖Y - f(X)‖² carries a factor 2 that the
# display lost. The second term of the mixed derivative multiplies (f(X) - Y) by W_ℓ..W_{j+1} where
# only its transpose fits. And the function is *not* (L0, L1)-smooth on the whole space for any
# constants: on the valley w2·w1·x = y the gradient is zero while the curvature grows without bound
# (``valley``). What the section argues, and what can be measured, is weaker: the norms of gradient
# and Hessian are positively correlated over weights of varying size.


class DeepLinear(Function):
    """‖Y - W_ℓ ⋯ W_1 X‖²_F as a function of all weights in one flat vector (W_1 first, rows first)
    (thesis, 3.2.3).

    Args:
        X: inputs, shape (width_0, samples).
        Y: targets, shape (width_ℓ, samples).
        hidden: widths between input and output; one weight matrix more than hidden layers.

    Example:
        >>> net = DeepLinear(np.ones((1, 1)), np.ones((1, 1)), hidden=(1,))
        >>> w = np.array([2.0, 3.0])  # (1 - 3·2)² = 25
        >>> float(net.value(w)), net.gradient(w).tolist()
        (25.0, [30.0, 20.0])
    """

    def __init__(self, X: np.ndarray, Y: np.ndarray, hidden: tuple[int, ...]) -> None:
        if X.ndim != 2 or Y.ndim != 2 or X.shape[1] != Y.shape[1]:
            fail("X, Y", "must be matrices with one column per sample", (X.shape, Y.shape))
        self.X, self.Y = np.asarray(X, dtype=float), np.asarray(Y, dtype=float)
        self.widths = (X.shape[0], *hidden, Y.shape[0])
        # (rows, columns) of each W_l, which maps width_{l-1} numbers to width_l.
        self.shapes = [(rows, columns) for columns, rows in itertools.pairwise(self.widths)]
        self.dimension = sum(rows * columns for rows, columns in self.shapes)

    def matrices(self, w: Vectors) -> list[Any]:
        """W_1, ..., W_ℓ as views of the flat vector(s).

        Args:
            w: shape (..., dimension).

        Returns:
            W_l of shape (..., width_l, width_{l-1}).
        """
        parts, start = [], 0
        for rows, columns in self.shapes:
            end = start + rows * columns
            parts.append(w[..., start:end].reshape(*w.shape[:-1], rows, columns))
            start = end
        return parts

    def _forward(self, w: Any) -> tuple[list[Any], list[Any], Any]:
        """A forward pass at the weights ``w`` of shape (..., dimension).

        Returns:
            (weights W_1, ..., W_ℓ; inputs of every layer, then the output f(X); f(X) - Y).
        """
        xp = namespace(w)
        weights, inputs = self.matrices(w), [xp.asarray(self.X)]
        for W in weights:
            inputs.append(W @ inputs[-1])
        return weights, inputs, inputs[-1] - xp.asarray(self.Y)

    def value(self, x: Vectors) -> Any:
        """‖f(X) - Y‖²_F at flat weights of shape (..., dimension)."""
        _, _, residual = self._forward(x)
        return (residual * residual).sum((-1, -2))

    def gradient(self, x: Vectors) -> Any:
        """∇f by back propagation, flat in the order of the weights; shape of ``x``, which is
        (..., dimension).
        """
        weights, inputs, residual = self._forward(x)
        by_output = 2 * residual  # the derivative by a layer's output, from the last layer on
        parts: list[Any] = []
        for W, layer_input in zip(reversed(weights), reversed(inputs[:-1])):
            by_weight = by_output @ layer_input.swapaxes(-1, -2)
            parts.insert(0, by_weight.reshape(*x.shape[:-1], -1))
            by_output = W.swapaxes(-1, -2) @ by_output
        return namespace(x).concatenate(parts, -1)

    def hessian_norm(self, x: Any) -> float:
        """‖∇²f(x)‖, the spectral norm, at one point of shape (dimension,), from the exact dense
        Hessian by autograd.
        """
        import torch

        point = torch.as_tensor(x, dtype=torch.float64)
        hessian = torch.autograd.functional.hessian(lambda w: self.value(w), point)
        return float(torch.linalg.matrix_norm(hessian, 2))

    def valley(self, t: Positive) -> np.ndarray:
        """The flat weights (w1, w2) = (t, y/(x t)) of a scalar net, where loss and gradient are 0.

        The curvature there is 2x²t² + 2(y/t)², unbounded in t: no L0 and L1 can hold. The net must
        have one hidden layer and all widths 1; x and y are its first sample.
        """
        if self.widths != (1, 1, 1):
            fail("net", "must have widths (1, 1, 1) for the valley", self.widths)
        return np.array([t, self.Y[0, 0] / (self.X[0, 0] * t)])
