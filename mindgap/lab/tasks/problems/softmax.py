"""Dense derivatives of a weighted linear softmax, and Newton's method: exact lower solutions of
small problems.

Both take leading axes: many small problems of one shape are solved side by side.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from mindgap.base.checked import check_arguments


def softmax_derivatives(
    features: Tensor, labels: Tensor, weights: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradient (classes, d) and Hessian (classes·d, classes·d) of mean_i weights_i ℓ(Y; a_i, t_i)
    at Y, with ℓ the cross-entropy of softmax(Y a_i).

    The four arguments may have leading axes, all the same ones: one entry per problem.

    Args:
        features: a_i, (..., n, d).
        labels: t_i, (..., n), 0..classes-1.
        weights: one per sample, (..., n).
        y: Y, (..., classes, d).

    Example:
        >>> a, t = torch.eye(2, dtype=torch.float64), torch.tensor([0, 1])
        >>> gradient, hessian = softmax_derivatives(
        ...     a, t, torch.ones(2), torch.zeros(2, 2, dtype=torch.float64)
        ... )
        >>> gradient.tolist()
        [[-0.25, 0.25], [0.25, -0.25]]
        >>> (hessian[0] + 0.0).tolist()
        [0.125, 0.0, -0.125, 0.0]
    """
    *problems, classes, width = y.shape
    probabilities = torch.softmax(features @ y.mT, -1)  # p_i, (..., n, classes)
    mean_weights = (weights.to(y.dtype) / labels.shape[-1])[..., None]  # w_i = weights_i/n
    gradient = (mean_weights * (probabilities - one_hot(labels, classes))).mT @ features
    # -sum_i w_i (p_i ⊗ a_i)(p_i ⊗ a_i)', and to each class' diagonal block sum_i w_i p_ic a_i a_i'
    joint = (probabilities[..., :, None] * features[..., None, :]).flatten(-2)
    hessian = -((mean_weights * joint).mT @ joint).view(*problems, classes, width, classes, width)
    # The diagonal blocks, (..., classes, d, d), added where both classes of the Hessian agree.
    blocks = (
        features.mT[..., None, :, :] * (mean_weights * probabilities).mT[..., :, None, :]
    ) @ features[..., None, :, :]
    hessian.diagonal(dim1=-4, dim2=-2).add_(blocks.movedim(-3, -1))
    return gradient, hessian.view(*problems, classes * width, classes * width)


def lbfgs(value: Callable[[Tensor], Tensor], start: Tensor, **limits: float) -> Tensor:
    """The minimiser of a smooth function by L-BFGS with a strong Wolfe line search, detached.

    Args:
        value: the function, to a scalar.
        start: where to begin; it is not changed.
        limits: settings of ``torch.optim.LBFGS``, such as ``max_iter``.

    Example:
        >>> lbfgs(lambda y: (y - 3).square().sum(), torch.zeros(1)).round()
        tensor([3.])
    """
    y = start.detach().clone().requires_grad_()
    solver = torch.optim.LBFGS([y], line_search_fn="strong_wolfe", **limits)  # type: ignore[arg-type]

    def closure() -> Tensor:
        """The function's value at y; leaves its gradient in ``y.grad``. The solver moves y and
        calls it again.
        """
        solver.zero_grad()
        loss = value(y)
        loss.backward()
        return loss

    solver.step(closure)
    return y.detach()


def newton(
    derivatives: Callable[[Tensor], tuple[Tensor, Tensor]],
    value: Callable[[Tensor], Tensor],
    start: Tensor,
) -> Tensor:
    """Minimise strongly convex functions of a flat vector by Newton's method with halving.

    A step is halved until the value falls by a tenth of what the slope promises (Armijo's rule).

    A problem is solved when its gradient's norm is at most 1e-12 of its point's norm (or of 1,
    where that is less). After 200 steps the points are returned, solved or not.

    Args:
        derivatives: gradients (..., d) and dense Hessians (..., d, d) at points (..., d).
        value: the function, for the halving; one number per problem, (...).
        start: where to begin, (..., d); leading axes count problems, each with steps of its own.

    Returns:
        The minimisers, shape of ``start``.

    Example:
        >>> def at(y):
        ...     return y.exp() + y, torch.diag_embed(y.exp() + 1)
        >>> y = newton(
        ...     at,
        ...     lambda y: (y.exp() + y.square() / 2).sum(-1),
        ...     torch.zeros(1, dtype=torch.float64),
        ... )
        >>> round(float(y), 6)  # e^y = -y
        -0.567143
    """
    y = start
    for _ in range(200):
        gradient, hessian = derivatives(y)
        unsolved = gradient.norm(dim=-1) > 1e-12 * y.norm(dim=-1).clamp(min=1.0)
        if not bool(unsolved.any()):
            break
        direction = torch.linalg.solve(hessian, gradient[..., None])[..., 0]
        start_value, slope = value(y), (gradient * direction).sum(-1)
        step = torch.ones_like(slope)
        while True:
            # Near the minimum, where the slope is small, rounding hides any decrease: there the
            # full step is right. And no step is halved without end.
            may_halve = (step > 1e-8) & (slope > 1e-12)
            allowed = start_value - 0.1 * step * slope
            too_high = may_halve & (value(y - step[..., None] * direction) > allowed)
            if not bool(too_high.any()):
                break
            step = torch.where(too_high, step / 2, step)
        # Problems that are solved stay where they are.
        y = torch.where(unsolved[..., None], y - step[..., None] * direction, y)
    return y


check_arguments(__name__)
