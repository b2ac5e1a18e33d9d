"""Yardsticks for small problems: y*(x), Phi(x) and grad Phi(x) over all samples, to solver accuracy."""

from __future__ import annotations

import torch
from torch import Tensor

from mindgap.base.check import fail, positive, whole
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
    check_point(problem, x, y)
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
        hessian, _ = oracle.operator(x, y, FULL)
        step = conjugate_gradients(oracle.ops, hessian, gradient, products=2 * len(y), tol=1e-13)
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


def check_point(problem: BilevelProblem, x: Tensor, y: Tensor | None = None) -> None:
    """Refuse what is not a problem with flat vectors of its size."""
    if not isinstance(problem, BilevelProblem):
        fail("problem", "must be a BilevelProblem", type(problem).__name__)
    for name, value, pack in (("x", x, problem.pack_x), ("y", y, problem.pack_y)):
        if value is None and name == "y":
            continue
        if not isinstance(value, Tensor):
            fail(name, f"must be a flat tensor of {pack.dim} numbers", type(value).__name__)
        if value.shape != (pack.dim,) or value.dtype != pack.dtype:
            fail(name, f"must be a flat tensor of {pack.dim} numbers in {pack.dtype}", tuple(value.shape))


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
    y = lower_solution(problem, x, y, tol=tol)
    return float(problem.loss("upper", x, y))


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
    y = lower_solution(problem, x, y, tol=tol)
    oracle = TorchOracle(problem)
    f_x, f_y = oracle.upper(x, y, FULL)
    hessian, mixed = oracle.operator(x, y, FULL)
    return f_x - mixed(conjugate_gradients(oracle.ops, hessian, f_y, products=2 * len(y), tol=1e-13))
