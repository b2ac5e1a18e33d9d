"""What limits a run where it stands: x itself, the lower level or the linear system."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from mindgap.bilevel.backends.trial import tried_oracle
from mindgap.bilevel.core.directions import conjugate_gradients, neumann_series
from mindgap.bilevel.core.types import State
from mindgap.bilevel.data.sample import FULL, Sample, row
from mindgap.bilevel.registry import lower_variable_of
from mindgap.bilevel.tools.exact import lower_solution

ADVICE = {
    "x": "x is behind: raise lr_x or take more steps",
    "lower": "the lower level is behind: raise lr_y or take more inner steps",
    "system": "the linear system is behind: raise lr_z (or solves, terms, eta)",
}


class Part(NamedTuple):
    """The norm of one part of the hypergradient, and its standard error over minibatches."""

    norm: float
    error: float


@dataclass(frozen=True)
class Limits:
    """The direction f_x - Jz at (x, y, z) is grad Phi(x) plus what y's distance from y*(x) adds
    plus what z's distance from H^-1 f_y adds.

    Where the direction is larger than both errors, x has still to follow it. Where it is smaller, x
    waits for the level with the larger error: grad Phi and that error cancel.
    """

    gradient: Part  # grad Phi(x)
    x: Part  # the direction
    lower: Part  # the error that y adds
    system: Part  # the error that z adds; zero for methods without a linear system or series

    @property
    def largest(self) -> str:
        """The part that limits: "x", "lower" or "system"."""
        return max(ADVICE, key=lambda name: getattr(self, name).norm)

    @property
    def clear(self) -> bool:
        """Whether the largest part is above the others by two standard errors."""
        _, second, largest = sorted((self.x, self.lower, self.system))
        return largest.norm - second.norm > 2.0 * math.hypot(largest.error, second.error)

    @property
    def message(self) -> str:
        """What limits and what to change, as a sentence, with the norm and error of each part."""
        advice = ADVICE[self.largest] if self.clear else "no part is clearly the largest"
        parts = ((name, getattr(self, name)) for name in ("gradient", *ADVICE))
        return f"{advice} ({', '.join(f'{n} {p.norm:.3g} ± {p.error:.2g}' for n, p in parts)})"


def limits_of(state: State, batches: int = 16) -> Limits:
    """Measure the three parts over all data, by exact solves; small problems only.

    Args:
        state: where the run stands.
        batches: minibatches of each level for the standard errors.

    Raises:
        RuntimeError: when the lower problem is not solved.

    Example:
        >>> from mindgap.bilevel import SOBA, solve
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> found = solve(example_problem(), SOBA(lr_x=1e-4, lr_y=0.4), 60)
        >>> found.limits.largest
        'x'
    """
    problem, method = state.problem, state.method
    oracle = tried_oracle(problem)
    names = "x", lower_variable_of(method)
    x, y = (state.oracle.to_torch(state.values[name]).detach() for name in names)
    y_star = lower_solution(problem, x, y)

    def exact_z(point: Tensor) -> Tensor:
        """H^-1 f_y at a point, over all data."""
        hessian, _ = oracle.operator(x, point, FULL)
        f_y = oracle.upper_y(x, point, FULL)
        return conjugate_gradients(oracle, hessian, f_y, products=2 * len(point), tol=1e-10)[0]

    z_at_y_star, z_at_y = exact_z(y_star), exact_z(y)
    z = z_at_y  # of a method with neither a linear system nor a Neumann series
    if "z" in state.values:
        z = state.oracle.to_torch(state.values["z"]).detach()
    elif hasattr(method, "terms") and hasattr(method, "eta"):
        hessian, _ = oracle.operator(x, y, FULL)
        is_random = "k" in method.plan().period[0].samples  # a product of at most N - 1 factors
        f_y, products = oracle.upper_y(x, y, FULL), method.terms - is_random
        z = neumann_series(oracle, hessian, f_y, products, method.eta)
    count = min(batches, problem.upper_data.batches, problem.lower_data.batches)
    upper = problem.upper_data.draw(0, "upper.limits", 0, count)
    lower = problem.lower_data.draw(0, "lower.limits", 0, count)
    minibatches = [(row(upper, i), row(lower, i)) for i in range(count)]

    def part_of(*terms: tuple[float, Tensor, Tensor]) -> Part:
        """Norm and standard error of a sum of sign·(f_x - Jv), one term per (sign, y, v): the norm
        over all data, the error over minibatches.
        """

        def direction_on(upper_sample: Sample, lower_sample: Sample) -> Tensor:
            """The signed sum of f_x - Jv on an upper and a lower sample."""
            total = torch.zeros_like(x)
            for sign, y_at, v in terms:
                f_x = oracle.upper_x(x, y_at, upper_sample)
                total = total + sign * (f_x - oracle.mixed(x, y_at, v, lower_sample))
            return total

        directions = torch.stack([direction_on(*samples) for samples in minibatches])
        variance = directions.var(0).sum() if count > 1 else torch.zeros(())
        return Part(float(direction_on(FULL, FULL).norm()), float((variance / count).sqrt()))

    return Limits(
        gradient=part_of((1.0, y_star, z_at_y_star)),
        x=part_of((1.0, y, z)),
        lower=part_of((1.0, y, z_at_y), (-1.0, y_star, z_at_y_star)),
        system=part_of((1.0, y, z), (-1.0, y, z_at_y)),
    )
