"""Yardsticks for small problems: y*(x), Phi(x) and grad Phi(x) over all samples, to solver accuracy."""

from __future__ import annotations

import torch
from torch import Tensor

from mindgap.base.check import positive, whole
from mindgap.bilevel.directions import conjugate_gradients
from mindgap.bilevel.oracles import TorchOracle
from mindgap.bilevel.problem import BilevelProblem
from mindgap.bilevel.sample import FULL


def lower_solution(
    problem: BilevelProblem, x: Tensor, y: Tensor | None = None, *, tol: float | None = None, most: int = 100
) -> Tensor:
    """y*(x) by Newton's method with conjugate gradients and backtracking, over all lower samples.

    Args:
        problem: g must be strongly convex in y.
        x: flat vector.
        y: where to start; the problem's start if not given.
        tol: stop when ||g_y|| is below ``tol`` times its value at the start of the search (at least ``tol``); 1e-10 in
            float64 and 1e-5 in float32 if not given.
        most: most Newton steps.

    Raises:
        RuntimeError: when the tolerance is not reached.

    Example:
        >>> import torch
        >>> problem = BilevelProblem(
        ...     upper=lambda x, y, b: (y - b).square().mean(), lower=lambda x, y, b: (y - x * b).square().mean(),
        ...     x=torch.ones(1), y=torch.zeros(1), upper_data=torch.ones(4), lower_data=torch.ones(4), batch_size=2)
        >>> lower_solution(problem, torch.tensor([3.0]))
        tensor([3.])
    """
    tol = (1e-10 if x.dtype == torch.float64 else 1e-5) if tol is None else positive("tol", tol)
    whole("most", most, least=1)
    oracle = TorchOracle(problem)
    y = problem.pack_y.start.clone() if y is None else y.detach().clone()
    gradient = oracle.lower(x, y, FULL)
    target = tol * max(float(gradient.norm()), 1.0)
    for _ in range(most):
        size = float(gradient.norm())
        if size <= target:
            return y
        step = conjugate_gradients(oracle, x, y, gradient, tol=1e-13)
        value, slope, length = float(problem.loss("lower", x, y)), float(gradient @ step), 1.0
        while length > 1e-10:
            trial = y - length * step
            new = oracle.lower(x, trial, FULL)
            # Near the solution the loss no longer resolves the progress that the gradient still shows.
            if float(problem.loss("lower", x, trial)) <= value - 1e-4 * length * slope or float(new.norm()) < size:
                break
            length /= 2
        y, gradient = trial, new
    if float(gradient.norm()) <= target:
        return y
    raise RuntimeError(
        f"the lower problem was not solved in {most} Newton steps (||g_y|| = {float(gradient.norm()):.3g})"
    )


def hyper_objective(problem: BilevelProblem, x: Tensor, y: Tensor | None = None, *, tol: float | None = None) -> float:
    """Phi(x) = f(x, y*(x)) over all samples.

    Args:
        x: flat vector.
        y: a guess of y*(x).
        tol: as in :func:`lower_solution`.

    Example:
        >>> import torch
        >>> problem = BilevelProblem(
        ...     upper=lambda x, y, b: (y - b).square().mean(), lower=lambda x, y, b: (y - x * b).square().mean(),
        ...     x=torch.ones(1), y=torch.zeros(1), upper_data=torch.ones(4), lower_data=torch.ones(4), batch_size=2)
        >>> hyper_objective(problem, torch.tensor([3.0]))
        4.0
    """
    return float(problem.loss("upper", x, lower_solution(problem, x, y, tol=tol)))


def exact_hypergradient(
    problem: BilevelProblem, x: Tensor, y: Tensor | None = None, *, tol: float | None = None
) -> Tensor:
    """grad Phi(x) = f_x - J H^-1 f_y at y*(x), over all samples, the inverse by conjugate gradients.

    Args:
        x: flat vector.
        y: a guess of y*(x).
        tol: as in :func:`lower_solution`.

    Example:
        >>> import torch
        >>> problem = BilevelProblem(
        ...     upper=lambda x, y, b: (y - b).square().mean(), lower=lambda x, y, b: (y - x * b).square().mean(),
        ...     x=torch.ones(1), y=torch.zeros(1), upper_data=torch.ones(4), lower_data=torch.ones(4), batch_size=2)
        >>> exact_hypergradient(problem, torch.tensor([3.0]))
        tensor([4.])
    """
    oracle = TorchOracle(problem)
    y = lower_solution(problem, x, y, tol=tol)
    f_x, f_y = oracle.upper(x, y, FULL)
    z = conjugate_gradients(oracle, x, y, f_y, tol=1e-13)
    return f_x - oracle.mixed(x, y, z, FULL)
