"""A small quadratic for exact tests, as torch problem and as numpy oracles of the same samples."""

from __future__ import annotations

import torch
from references.bilevel_oracles import Level, Oracles

from mindgap.lab.tasks.problems.quadratic import Quadratic, quadratic_problem


def small_quadratic(lower=256, upper=128, dim_y=6, dim_x=3, seed=0, **constants) -> Quadratic:
    return quadratic_problem(
        lower=lower, upper=upper, dim_y=dim_y, dim_x=dim_x, seed=seed, **constants
    )


QUADRATIC = small_quadratic(seed=4)
PROBLEM = QUADRATIC.problem(16)


class Point:
    """A quadratic, its problem, a point x, the lower solution there and the true hypergradient."""

    quadratic = small_quadratic(seed=2)
    problem = quadratic.problem(16)
    x = torch.tensor([0.3, -1.2, 0.8], dtype=torch.float64)
    y = quadratic.y_star(x)
    truth = quadratic.hypergradient(x)


def numpy_oracles(quadratic: Quadratic) -> Oracles:
    levels = []
    for in_y, in_x in (quadratic.lower_samples, quadratic.upper_samples):
        (p, r, a), (q, s, b) = in_y.numpy().transpose(1, 0, 2), in_x.numpy().transpose(1, 0, 2)
        levels.append(Level(p, q, s, r, a, b))
    return Oracles(*levels)
