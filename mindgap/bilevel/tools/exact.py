"""Hypergradients, and yardsticks for small problems: y*(x), Phi(x) and grad Phi(x) over all
samples.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import Tensor

from mindgap.base.calls import call
from mindgap.base.check import check_call, fail, one_of, positive, whole
from mindgap.base.tensors import binary_scale, rounding
from mindgap.bilevel.backends.oracles import TorchOps, TorchOracle
from mindgap.bilevel.backends.trial import tried_oracle
from mindgap.bilevel.core.directions import (
    NegativeCurvature,
    conjugate_gradients,
    conjugate_gradients_by_numbers,
    hypergradient_at,
    neumann_series,
)
from mindgap.bilevel.core.settings import check_count
from mindgap.bilevel.core.types import Product
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import FULL, Sample

#: ``(v -> Hv, v) -> H^-1 v``
LinearSolver = Callable[[Product, Tensor], Tensor]
SolverName = Literal["cg", "neumann"]
SOLVERS: tuple[str, ...] = get_args(SolverName)
#: Share of the predicted fall of the loss that a Newton step must reach, and the shortest part of
#: the step that is tried.
ARMIJO, LEAST_STEP = 1e-4, 1e-10


def flat_vector(problem: BilevelProblem, name: str, value: Any) -> Tensor:
    """x or y (``name``) as a flat tensor on the problem's device, from a tensor or an array."""
    if not isinstance(problem, BilevelProblem):
        fail("problem", "must be a BilevelProblem", type(problem).__name__)
    pack = problem.pack_x if name == "x" else problem.pack_y
    rule = f"must be a flat tensor or array of {pack.dim} numbers"
    if hasattr(value, "__array__") and not isinstance(value, Tensor):
        try:
            value = torch.as_tensor(np.array(value))  # an array of NumPy or JAX
        except Exception as error:
            fail(name, f"{rule} ({error})", type(value).__name__)
    if not isinstance(value, Tensor):
        fail(name, rule, type(value).__name__)
    if value.shape != (pack.dim,) or value.dtype != pack.dtype or value.layout is not torch.strided:
        got = f"{value.dtype} of shape {tuple(value.shape)}"
        fail(name, f"must be a flat vector of {pack.dim} numbers in {pack.dtype}", got)
    try:
        return value.to(pack.device)
    except (RuntimeError, NotImplementedError) as error:  # a tensor without numbers, say
        fail(name, f"must be a vector that can be moved to {pack.device} ({error})", value.device)


def check_sample(name: str, sample: Sample) -> Sample:
    """``sample``, refused unless it is a Sample; ``name`` is the argument's, for the message."""
    kinds = (int, np.integer, np.ndarray, type(None))
    if not isinstance(sample, Sample) or not isinstance(sample.which, kinds):
        fail(name, "must be a Sample, such as FULL", sample)
    return sample


def linear_solver(
    kind: SolverName | LinearSolver, *, products: int, eta: float | None
) -> LinearSolver:
    """The function (v -> Hv, v) -> H^-1 v for a name, or a user's own with its result checked.

    Args:
        products: Hessian products of "cg" and "neumann".
        eta: step of "neumann".
    """
    check_count("products", products)
    if callable(kind) and not isinstance(kind, type):
        check_call("solver", kind, "a function of (v -> Hv, v)", None, None)

        def checked_solver(hessian: Product, v: Tensor) -> Tensor:
            """What the user's function returns, refused where it has not the shape of v."""
            z = call("solver", kind, hessian, v)
            if not isinstance(z, Tensor) or z.shape != v.shape:
                fail("solver", f"must return a tensor of shape {tuple(v.shape)}", z)
            return z

        return checked_solver
    one_of("solver", kind, SOLVERS)
    if kind == "neumann":
        step = positive("eta", eta)
        return lambda hessian, v: neumann_series(TorchOps(), hessian, v, products, step)

    def cg(hessian: Product, v: Tensor) -> Tensor:
        """H^-1 v by conjugate gradients; warns where they met negative curvature."""
        negative: Tensor | bool
        if v.device.type == "cpu":
            z, negative = conjugate_gradients_by_numbers(hessian, v, products)
        else:
            z, negative = conjugate_gradients(TorchOps(), hessian, v, products=products)
        if bool(negative):
            warnings.warn(
                f"conjugate gradients met negative curvature within {products} products and "
                "stopped there: the lower level is not strongly convex at this point",
                NegativeCurvature,
                stacklevel=4,
            )
        return z

    return cg


def hypergradient(
    problem: BilevelProblem,
    x: Any,
    y: Any,
    *,
    lower: Sample = FULL,
    upper: Sample = FULL,
    solver: SolverName | LinearSolver = "cg",
    products: int = 20,
    eta: float | None = None,
) -> Tensor:
    """``f_x - J z`` with ``z`` an estimate of H^-1 f_y, at any point (x, y): the gradient of Phi
    where y = y*(x).

    Args:
        problem: the two levels.
        x, y: flat vectors (of torch, NumPy or JAX).
        lower: sample of H and J; all samples if not given.
        upper: sample of f_x and f_y; all samples if not given.
        solver: "cg"; "neumann" (needs ``eta`` <= 1/L); or a function ``(v -> Hv, v) -> z``.
        products: Hessian products of "cg" and "neumann".
        eta: step of "neumann".

    Warns:
        NegativeCurvature: when "cg" meets a direction p with p'Hp <= 0; it stops there.

    Example:
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> x = y = torch.tensor([3.0])
        >>> hypergradient(example_problem(), x, y, products=1)
        tensor([4.])

    Source: approximate implicit differentiation as compared in Ji, Yang, Liang 2021, section 2.
    """
    x, y = flat_vector(problem, "x", x), flat_vector(problem, "y", y)
    solve = linear_solver(solver, products=products, eta=eta)
    samples = check_sample("lower", lower), check_sample("upper", upper)
    return hypergradient_at(tried_oracle(problem), x, y, *samples, solve)


def implicit_solution(
    problem: BilevelProblem,
    x: Tensor,
    y: Tensor,
    *,
    lower: Sample = FULL,
    solver: SolverName | LinearSolver = "cg",
    products: int = 20,
    eta: float | None = None,
) -> Tensor:
    """y as a function of x that autograd can differentiate: ``loss(x, implicit_solution(problem, x,
    y)).backward()``.

    The value is ``y`` itself (found by any means: an optimizer of yours, :func:`lower_solution`);
    the first derivative is that of y*(x) by the implicit function theorem, dy*/dx = -H^-1 J', with
    the inverse by ``solver``. There is no second one.

    Args:
        problem: the lower level is used; any loss may follow.
        x: flat vector, with or without ``requires_grad``.
        y: flat vector near y*(x).
        lower: sample of H and J; all samples if not given.
        solver: "cg"; "neumann" (needs ``eta`` <= 1/L); or a function ``(v -> Hv, v) -> z``.
        products: Hessian products of "cg" and "neumann".
        eta: step of "neumann".

    Example:
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> problem = example_problem()
        >>> x = torch.tensor([3.0], requires_grad=True)
        >>> (implicit_solution(problem, x, torch.tensor([3.0])) - 1.0).square().sum().backward()
        >>> x.grad
        tensor([4.])

    Source: implicit differentiation of an argmin, as in jaxopt's ``custom_root`` (Blondel et al.
    2022).
    """
    flat_vector(problem, "x", x)
    solve = linear_solver(solver, products=products, eta=eta)
    y, lower = flat_vector(problem, "y", y).detach(), check_sample("lower", lower)
    return cast("Tensor", _Implicit.apply(x, y, problem, lower, solve))  # type: ignore[no-untyped-call]


class _Implicit(torch.autograd.Function):
    """The identity in y with the derivative of the argmin in x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, problem: BilevelProblem, lower: Sample, solve: LinearSolver
    ) -> Tensor:
        """A copy of y; keeps what the backward pass needs."""
        ctx.save_for_backward(x, y)
        ctx.rest = problem, lower, solve
        return y.clone()

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        """The gradient in x, -J H^-1 v, for the gradient v in y; None for the other arguments."""
        if torch.is_grad_enabled():  # a second derivative would leave out this part in silence
            fail("create_graph", "must be False behind implicit_solution", True)
        x, y = ctx.saved_tensors
        problem, lower, solve = ctx.rest
        with torch.enable_grad():
            hessian, mixed = tried_oracle(problem).operator(x.detach(), y, lower)
            z = solve(hessian, v)
        return -mixed(z), None, None, None, None


def lower_solution(
    problem: BilevelProblem, x: Any, y: Any = None, *, tol: float | None = None, most: int = 100
) -> Tensor:
    """y*(x) by Newton's method with conjugate gradients and backtracking, over all lower samples.

    Args:
        problem: g must be strongly convex in y.
        x: flat vector.
        y: where to start; the problem's start if not given.
        tol: stop when ||g_y|| is below ``tol`` times its value at the start of the search, or below
            ``tol`` and no step halves it any more; 1e-10 in float64 and 1e-5 in float32 if not
            given.
        most: most Newton steps.

    Raises:
        RuntimeError: when the tolerance is not reached.

    Example:
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> lower_solution(example_problem(), torch.tensor([3.0]))
        tensor([3.])
    """
    x = flat_vector(problem, "x", x)
    point = problem.pack_y.start if y is None else flat_vector(problem, "y", y)
    point = point.detach().clone()
    tol = (1e-10 if x.dtype == torch.float64 else 1e-5) if tol is None else positive("tol", tol)
    whole("most", most, least=1)
    oracle = tried_oracle(problem)
    gradient = oracle.lower(x, point, FULL)
    start_norm, norm_before = float(gradient.norm()), math.inf
    target = tol * max(start_norm, 1.0)
    for _ in range(most):
        gradient_norm = float(gradient.norm())
        # A loss of a small scale has a small gradient anywhere: rounding alone ends its descent.
        ends = gradient_norm <= target and gradient_norm > norm_before / 2
        if gradient_norm <= tol * start_norm or ends:
            return point
        norm_before = gradient_norm
        hessian, _ = oracle.operator(x, point, FULL)
        newton_step, _ = conjugate_gradients(
            oracle, hessian, gradient, products=2 * len(point), tol=rounding(x)
        )
        if not bool(newton_step.any()):  # negative curvature at once: go down the gradient
            newton_step = gradient
        # Halve the step until the loss falls enough (Armijo's rule), or the gradient shrinks: near
        # the solution the loss no longer resolves the progress.
        old_point, old_loss = point, float(problem.loss("lower", x, point))
        slope, length = float(gradient @ newton_step), 1.0
        while length > LEAST_STEP:
            point = old_point - length * newton_step
            gradient = oracle.lower(x, point, FULL)
            falls = float(problem.loss("lower", x, point)) <= old_loss - ARMIJO * length * slope
            if falls or float(gradient.norm()) < gradient_norm:
                break
            length /= 2
    if float(gradient.norm()) <= target:
        return point
    raise RuntimeError(
        f"the lower problem was not solved in {most} Newton steps (||g_y|| = "
        f"{float(gradient.norm()):.3g})"
    )


def hyper_objective(
    problem: BilevelProblem, x: Any, y: Any = None, *, tol: float | None = None
) -> float:
    """Phi(x) = f(x, y*(x)) over all samples.

    Args:
        x: flat vector.
        y: a guess of y*(x); the problem's start if not given.
        tol: of ||g_y|| in :func:`lower_solution`, which finds y*(x).

    Example:
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> hyper_objective(example_problem(), torch.tensor([3.0]))
        4.0
    """
    y = lower_solution(problem, x, y, tol=tol)
    return float(problem.loss("upper", flat_vector(problem, "x", x), y))


def exact_hypergradient(
    problem: BilevelProblem, x: Any, y: Any = None, *, tol: float | None = None
) -> Tensor:
    """grad Phi(x) = f_x - J H^-1 f_y at y*(x), over all samples, the inverse by conjugate
    gradients.

    Args:
        x: flat vector (of torch, NumPy or JAX, such as ``solution.state.x``).
        y: a guess of y*(x); the problem's start if not given.
        tol: of ||g_y|| in :func:`lower_solution`, which finds y*(x).

    Raises:
        RuntimeError: when the lower problem or the linear system with its Hessian is not solved, or
            the Hessian is not positive definite there.

    Example:
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> exact_hypergradient(example_problem(), torch.tensor([3.0]))
        tensor([4.])
    """
    y = lower_solution(problem, x, y, tol=tol)
    x = flat_vector(problem, "x", x)
    oracle = tried_oracle(problem)
    f_x, f_y = oracle.upper(x, y, FULL)
    hessian, mixed = oracle.operator(x, y, FULL)
    return f_x - mixed(_solve_accurately(oracle, hessian, f_y))


def _solve_accurately(oracle: TorchOracle, hessian: Product, v: Tensor) -> Tensor:
    """z = H^-1 v by conjugate gradients; NaN where v is not finite.

    They begin again on the residual v - Hz, until three passes in a row do not halve it: where H is
    ill conditioned, rounding ends a single pass too early.

    Raises:
        RuntimeError: H is not positive definite, or the residual stays above ``sqrt(eps) ||v||``.
    """
    best, scale = torch.zeros_like(v), binary_scale(v)
    z, v = best, v / scale
    residual, v_norm = v, float(v.norm())
    if not math.isfinite(v_norm):
        return torch.full_like(v, math.nan)
    least, idle = v_norm, 0  # the least residual so far, and passes that did not halve it
    while least > 1e-13 * v_norm and idle < 3:
        step, negative = conjugate_gradients(
            oracle, hessian, residual, products=2 * len(v), tol=rounding(v)
        )
        if bool(negative) and residual is v:
            raise RuntimeError(
                "the Hessian of the lower level is not positive definite at its solution"
            )
        z = z + step
        residual = v - hessian(z)
        residual_norm = float(residual.norm())
        idle = 0 if residual_norm < least / 2 else idle + 1
        if residual_norm < least:
            best, least = z, residual_norm
    if least > torch.finfo(v.dtype).eps ** 0.5 * v_norm:
        raise RuntimeError(
            "the linear system of the hypergradient was not solved: its residual is "
            f"{least / v_norm:.2g} of its right side"
        )
    return best * scale
