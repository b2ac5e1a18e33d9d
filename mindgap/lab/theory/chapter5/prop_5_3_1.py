"""Proposition 5.3.1 and Lemmas 5.2.1 to 5.3.2: the two notions of stationarity, and derivatives along a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mindgap.base.check import positive, whole

if TYPE_CHECKING:
    from torch import Tensor


def stationarity_radius(L: float, epsilon: float) -> tuple[float, float]:
    """(ε/(3L), ε/3): a point that is stationary in this sense has ‖∇f‖ <= ε when ∇f is L-Lipschitz.

    Args:
        L: the Lipschitz constant of the gradient, positive.
        epsilon: ε, positive.

    Returns:
        δ and the accuracy that go into Definition 5.3.1.

    Example:
        >>> [round(r, 9) for r in stationarity_radius(L=2.0, epsilon=0.6)]
        [0.1, 0.2]

    Source: thesis, Proposition 5.3.1, 2.
    """
    positive("L", L)
    positive("epsilon", epsilon)
    return epsilon / (3 * L), epsilon / 3


def gradient_norm_bound(L: float, delta: float, epsilon: float) -> float:
    """ε + Lδ, what ‖∇f(x)‖ is at most when x is (δ, ε)-stationary and ∇f is L-Lipschitz; tight for Lx²/2.

    Example:
        >>> round(gradient_norm_bound(2.0, *stationarity_radius(2.0, 0.6)), 12)   # 2ε/3
        0.4

    Source: thesis, proof of Proposition 5.3.1.

    *Differs from the paper.* The paper's proof adds another ε/3 and concludes ε from (ε/(3L), ε/3); 2ε/3 holds, so
    (ε/(2L), ε/2) would do.
    """
    return positive("epsilon", epsilon) + positive("L", L) * positive("delta", delta)


def directional_derivative(function: Callable[[Tensor], Tensor], x: Tensor, d: Tensor, t: float = 2.0**-26) -> Tensor:
    """f'(x; d) of Definition 5.2.3 as a one-sided quotient; exact up to rounding where f is piecewise linear.

    Args:
        function: f, on the last axis.
        x, d: points and directions, float64.
        t: how far to go.

    Example:
        >>> import torch
        >>> zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
        >>> float(directional_derivative(lambda x: -x.abs().sum(-1), zero, one))
        -1.0

    Source: thesis, (5.1).
    """
    return (function(x + t * d) - function(x)) / t


def path_integral(function: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, nodes: int = 4096) -> Tensor:
    """∫₀¹ f'(x + t(y-x); y-x) dt by the midpoint rule, with derivatives from autograd: f(y) - f(x) by Lemma 5.2.2.

    The error is at most (number of kinks crossed) · (jump of the derivative) / nodes for a piecewise linear f.

    Example:
        >>> import torch
        >>> x, y = torch.tensor([-1.0], dtype=torch.float64), torch.tensor([3.0], dtype=torch.float64)
        >>> round(float(path_integral(lambda z: z.abs().sum(-1), x, y)), 6)
        2.0

    Source: thesis, Lemma 5.2.2.
    """
    import torch

    whole("nodes", nodes, least=1)
    middle = (torch.arange(nodes, dtype=torch.float64) + 0.5) / nodes
    points = (x + middle[:, None] * (y - x)).requires_grad_()
    (gradient,) = torch.autograd.grad(function(points).sum(), points)
    return (gradient @ (y - x)).mean()
