"""Step sizes for a problem at hand: the lower level's curvature gives lr_y and lr_z, that of
Phi a range for lr_x.
"""

from __future__ import annotations

import math
from typing import overload

import torch
from torch import Tensor

from mindgap.base.check import fail, whole
from mindgap.bilevel.backends.oracles import TorchOracle
from mindgap.bilevel.backends.trial import try_problem
from mindgap.bilevel.core.directions import (
    conjugate_gradients,
    hypergradient_at,
    largest_eigenvalue,
)
from mindgap.bilevel.core.settings import check_count
from mindgap.bilevel.core.types import Backend, Product
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import Sample, row
from mindgap.bilevel.method import Method
from mindgap.bilevel.tools.horizon import RacedSteps, race_steps, samples_of
from mindgap.bilevel.tools.step_advice import StepAdvice

#: Share of 1 / L that lr_y takes, for the largest lower curvature L.
LR_SHARE = 0.4
#: Distance of the two hypergradients that give the curvature of Phi, relative to 1 + ||x||; no
#: first step is to be longer.
NEARBY = 0.01


@overload
def suggest_steps(
    problem: BilevelProblem,
    method: None = None,
    *,
    steps: None = None,
    seed: int = 0,
    batches: int = 8,
    products: int = 20,
    backend: None = None,
) -> StepAdvice: ...


@overload
def suggest_steps(
    problem: BilevelProblem,
    method: str | Method,
    *,
    steps: int,
    seed: int = 0,
    backend: Backend | None = None,
) -> RacedSteps: ...


def suggest_steps(
    problem: BilevelProblem,
    method: str | Method | None = None,
    *,
    steps: int | None = None,
    seed: int = 0,
    batches: int = 8,
    products: int = 20,
    backend: Backend | None = None,
) -> StepAdvice | RacedSteps:
    """Propose steps: for one method and a number of iterations from a race of short runs, or for
    all methods from the curvature at the start alone.

    *With a method and steps*: the lower level is solved for a while at the start; its largest
    curvature gives lr_y and lr_z, and a line along the hypergradient says how far x has to go.
    Short runs from there at rates a factor of 4 apart, and longer ones from the problem's own start
    with other seeds, decide on lr_x. It costs about as many oracle calls as one run (``runs`` says
    how many) and tells what it tried (``print(advice)``). A short run cannot see what happens late:
    look at the first run with these steps before you trust them.

    *Without*: power iteration on ``batches`` lower minibatches gives the largest eigenvalue L of H;
    lr_y = lr_z = 0.4 / L. Then y goes some steps towards y*(x), and two hypergradients a small
    distance apart give the curvature of Phi along its gradient. About ``batches * products + 300``
    oracle calls.

    Args:
        problem: the losses must be differentiable twice.
        method: a key of ``METHODS``, or a method whose other settings are kept.
        steps: iterations that the run will have.
        seed: of the minibatches and the power iteration's start.
        batches: minibatches looked at; without a method only.
        products: Hessian products per minibatch and per hypergradient; without a method only.
        backend: who runs the short runs; eager torch if not given.

    Example:
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> problem = example_problem()
        >>> advice = suggest_steps(problem)
        >>> least, largest = advice.lr_x_range
        >>> round(advice.curvature, 4), round(advice.lr_y, 4), least < advice.lr_x < largest
        (2.0, 0.2, True)
        >>> raced = suggest_steps(problem, "soba", steps=200)
        >>> sorted(raced.settings), raced.steps, len(raced.tried) > 2
        (['lr_x', 'lr_y'], 200, True)
    """
    if not isinstance(problem, BilevelProblem):
        fail("problem", "must be a BilevelProblem", type(problem).__name__)
    if method is not None or steps is not None or backend is not None:
        if method is None or steps is None:
            fail("method" if method is None else "steps", "must be given for a race", None)
        return race_steps(problem, method, steps, seed=seed, backend=backend)
    whole("seed", seed)
    check_count("batches", batches, most=10_000)
    check_count("products", products, most=10_000)
    oracle = TorchOracle(problem)
    try_problem(oracle, seed)
    x, y = oracle.start
    lower = samples_of(oracle, seed, "lower", 0, batches)
    upper = row(problem.upper_data.draw(seed, "upper", 0, 1), 0)

    def largest_curvature(y: Tensor) -> float:
        # The largest eigenvalue of H at (x, y) over the lower minibatches
        generator = torch.Generator().manual_seed(seed % 2**63)
        v = torch.randn(y.shape, generator=generator, dtype=y.dtype).to(y.device)
        hessians = (oracle.operator(x, y, sample)[0] for sample in lower)
        return max(largest_eigenvalue(hessian, v, products) for hessian in hessians)

    curvature = largest_curvature(y)
    if not (math.isfinite(curvature) and curvature > 0):
        fail("lower", "must have positive curvature in y at the start", curvature)
    y_near = _descend(oracle, x, y, lower, LR_SHARE / curvature)  # near y*(x)
    curvature = max(curvature, largest_curvature(y_near))
    lr_y = LR_SHARE / curvature

    def solve(hessian: Product, v: Tensor) -> Tensor:
        # H^-1 v
        return conjugate_gradients(oracle, hessian, v, products=products)[0]

    def hypergradients(x: Tensor, y: Tensor) -> Tensor:
        # One hypergradient per lower minibatch: (minibatches, d_x)
        return torch.stack([hypergradient_at(oracle, x, y, s, upper, solve) for s in lower])

    y_near = _descend(oracle, x, y, lower, lr_y)
    hypergradients_near = hypergradients(x, y_near)
    mean = hypergradients_near.mean(0)
    norm = float(mean.norm())
    # Single minibatches, and a y that is not solved yet, give longer directions than the mean.
    longest = float(torch.cat([hypergradients_near, hypergradients(x, y)]).norm(dim=1).max())
    if norm == 0.0 or not math.isfinite(norm):
        fail("upper", "must have a finite hypergradient that is not zero at the start", norm)
    distance = NEARBY * (1.0 + float(x.norm()))
    x_moved = x - distance * mean / norm
    y_moved = _descend(oracle, x_moved, y_near, lower, lr_y)
    change = hypergradients(x_moved, y_moved).mean(0) - mean
    upper_curvature = float(change.norm()) / distance
    if not (math.isfinite(upper_curvature) and math.isfinite(longest)):
        fail("upper", "must have finite hypergradients near the start", upper_curvature)
    # A tenth of what the curvature allows, and no first step longer than the distance.
    lr_x = min(0.1 / max(upper_curvature, 1e-12), distance / max(longest, norm))
    lr_x_range = lr_x / 30, lr_x * 10
    return StepAdvice(lr_y, lr_y, lr_x, lr_x_range, curvature, norm, upper_curvature, problem.dim_x)


def _descend(oracle: TorchOracle, x: Tensor, y: Tensor, samples: list[Sample], lr: float) -> Tensor:
    """y after 8 rounds of lower steps at x, one step per sample, without projection."""
    for sample in samples * 8:
        y = y - lr * oracle.lower(x, y, sample)
    return y
