"""Dense derivatives of a weighted linear softmax, and Newton's method: exact lower solutions of small problems."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def softmax_derivatives(features: Tensor, labels: Tensor, weights: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient (classes, d) and Hessian (classes·d, classes·d) of mean_i weights_i ℓ(Y; a_i, t_i) at Y (classes, d).

    Example:
        >>> a, t = torch.eye(2, dtype=torch.float64), torch.tensor([0, 1])
        >>> gradient, hessian = softmax_derivatives(a, t, torch.ones(2), torch.zeros(2, 2, dtype=torch.float64))
        >>> gradient.tolist()
        [[-0.25, 0.25], [0.25, -0.25]]
        >>> hessian[0].tolist()
        [0.125, 0.0, -0.125, 0.0]
    """
    classes, width = y.shape
    chances = torch.softmax(features @ y.T, 1)
    share = weights.to(y.dtype) / len(labels)
    gradient = (share[:, None] * (chances - one_hot(labels, classes))).T @ features
    hessian = y.new_zeros(classes, width, classes, width)
    for a in range(classes):
        for b in range(a + 1):
            part = share * chances[:, a] * (float(a == b) - chances[:, b])
            block = features.T @ (features * part[:, None])
            hessian[a, :, b], hessian[b, :, a] = block, block
    return gradient, hessian.view(y.numel(), y.numel())


def newton(
    derivatives: Callable[[Tensor], tuple[Tensor, Tensor]], value: Callable[[Tensor], float], start: Tensor
) -> Tensor:
    """Minimise a strongly convex function of a flat vector by Newton's method with halving.

    Args:
        derivatives: gradient and dense Hessian at a point.
        value: the function, for the halving.
        start: where to begin.

    Example:
        >>> def at(y):
        ...     return y.exp() + y, torch.diag(y.exp() + 1)
        >>> y = newton(at, lambda y: float((y.exp() + y.square() / 2).sum()), torch.zeros(1, dtype=torch.float64))
        >>> round(float(y), 6)  # e^y = -y
        -0.567143
    """
    y = start
    for _ in range(200):
        gradient, hessian = derivatives(y)
        if float(gradient.norm()) <= 1e-12 * max(1.0, float(y.norm())):
            break
        direction = torch.linalg.solve(hessian, gradient)
        before, slope, step = value(y), float(gradient @ direction), 1.0
        # Near the minimum rounding hides any decrease: there the full step is right.
        while step > 1e-8 and slope > 1e-12 and value(y - step * direction) > before - 0.1 * step * slope:
            step /= 2
        y = y - step * direction
    return y
