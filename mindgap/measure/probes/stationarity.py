"""Goldstein stationarity: how close to zero a mean of gradients near a point can come, and what
that certifies.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mindgap.base.check import fail, non_negative, positive, whole
from mindgap.base.objective import Objective
from mindgap.base.rng import torch_stream
from mindgap.measure.gradients import gradient_passes, passes_mean
from mindgap.measure.min_norm import min_norm_weights
from mindgap.measure.probes.noise import chunks


@dataclass(frozen=True)
class GoldsteinDistance:
    """An upper bound on d(0, ∂f(x + δB))."""

    bound: float  # ‖Σ w_i g_i‖ at the best weights: never below the distance
    delta: float  # δ, the radius of the ball
    weights: NDArray[np.float64]  # w, one per sampled gradient; the first one is that at x itself
    #: error of the smallest norm over *these* gradients (its square lies within ``gap`` below
    #: ``bound²``); says nothing about gradients that were not sampled.
    gap: float
    #: the bound after 1, 2, ... gradients; flat at its end means that more samples did not help.
    curve: NDArray[np.float64]

    def certifies(self, epsilon: float) -> bool:
        """Whether x is shown to be (δ, ε)-stationary. False means "not shown", never "is not"."""
        return self.bound <= non_negative("epsilon", epsilon)

    @property
    def answer(self) -> str:
        """One plain sentence."""
        return (
            f"stationary within a ball of radius {self.delta:g}: shown for every epsilon of "
            f"{self.bound:.3g} and above "
            f"(the gradient at the point itself has norm {self.curve[0]:.3g}; {len(self.curve)} "
            "gradients)"
        )


def goldstein_distance(
    objective: Objective,
    batches: Iterable[Any],
    delta: float,
    *,
    samples: int = 32,
    epsilon: float = 0.0,
    seed: int = 0,
    train: bool | None = None,
) -> GoldsteinDistance:
    """Upper bound on d(0, ∂f(x + δB)), the smallest norm in the hull of the gradients within δ of
    x.

    Gradients of f (the mean over ``batches``, the same random numbers at every point) are taken at
    x and at points of the ball: in turn uniform in the ball, and uniform on the segment from x
    against the current smallest-norm point p, to x - δ p/‖p‖. On that segment either f falls by
    δ‖p‖/4 or some gradient opposes p: the argument of Algorithm 2. Every mean of these gradients is
    in the Goldstein subdifferential, so that the smallest is an upper bound. Source: thesis,
    Definition 5.3.1; Algorithm 2 for the segment.

    Args:
        objective: model and loss; x is the parameters' current value, which is put back.
        batches: the batches that define f.
        delta: δ > 0, the radius, in the Euclidean norm over all parameters that take gradients; at
            least ten roundings of their norm.
        samples: gradients at most; each is kept (one gradient of memory each) and costs one pass
            over the batches.
        epsilon: stop as soon as the bound is at or below this.
        seed: names the random points.
        train: training (True) or evaluation (False) mode; None keeps the model's own.

    Example:
        >>> class Line(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.x = torch.nn.Parameter(torch.tensor([0.05]))
        >>> distance = goldstein_distance(
        ...     Objective(Line(), lambda m, b: m.x.abs().sum()), [0], delta=0.1
        ... )
        >>> distance.bound, distance.certifies(0.01)
        (0.0, True)
    """
    positive("delta", delta)
    whole("samples", samples, least=1, most=100_000)
    non_negative("epsilon", epsilon)
    generator = torch_stream(seed, "goldstein")
    gradients: list[list[Tensor]] = []  # g_i, and ``gram`` holds ⟨g_i, g_j⟩
    gram = np.zeros((0, 0))
    curve: list[float] = []  # norm of the smallest mean after each gradient
    weights, gap = np.ones(1), 0.0
    with gradient_passes(objective, batches, seed=seed, train=train, move=True) as passes:
        # Rounding may carry a point out of a smaller ball, and the bound would not hold.
        rounding = max(torch.finfo(p.dtype).eps for p in passes.parameters)
        least = 10 * rounding * _norm([p.detach() for p in passes.parameters])
        if samples > 1 and delta < least:
            fail("delta", f"must be at least {least:.2g} in the parameters' precision", delta)
        # The first gradient is that at x, the others are on the segment and in the ball in turn.
        for i in range(samples):
            if i == 0:
                gradients.append(passes_mean(passes))
            else:
                if i % 2 == 1:
                    step = _step_on_segment(gradients, weights, delta, generator)
                else:
                    step = _step_in_ball(passes.parameters, delta, generator)
                with passes.moved(step):
                    gradients.append(passes_mean(passes))
            # The smallest mean of the gradients so far, by their inner products.
            gram = _extend_gram(gram, gradients)
            weights, gap = min_norm_weights(gram)
            curve.append(math.sqrt(max(float(weights @ gram @ weights), 0.0)))
            if curve[-1] <= epsilon:
                break
    return GoldsteinDistance(
        curve[-1], float(delta), weights, gap, np.minimum.accumulate(np.array(curve))
    )


def _step_on_segment(
    gradients: list[list[Tensor]],
    weights: NDArray[np.float64],
    delta: float,
    generator: torch.Generator,
) -> list[Tensor]:
    """A random step, one tensor per parameter: a uniform point of the segment from 0 to -δ p/‖p‖,
    where p = Σ w_i g_i is the mean of smallest norm so far. Zero where p is zero.

    Args:
        gradients: g_i, each with one tensor per parameter.
        weights: w_i.
        delta: δ.
    """
    point = [torch.zeros_like(part) for part in gradients[0]]
    for weight, gradient in zip(weights, gradients, strict=True):
        if weight:
            torch._foreach_add_(point, gradient, alpha=float(weight))
    norm = _norm(point)
    if norm == 0.0:
        return point
    fraction = float(torch.rand((), generator=generator, dtype=torch.float64))
    return [part * (-fraction * delta / norm) for part in point]


def _step_in_ball(parameters: list[Any], delta: float, generator: torch.Generator) -> list[Tensor]:
    """A random step, one tensor per parameter: a uniform point of the ball of radius δ around 0 in
    n dimensions, by a Gaussian direction and the length δ u^(1/n) for a uniform number u.
    """
    direction = [
        torch.randn(p.shape, generator=generator, dtype=torch.float64).to(p.device, p.dtype)
        for p in parameters
    ]
    size = sum(p.numel() for p in parameters)
    length = delta * float(torch.rand((), generator=generator, dtype=torch.float64)) ** (1 / size)
    scale = length / _norm(direction)
    return [part * scale for part in direction]


def _norm(tensors: list[Tensor]) -> float:
    """The Euclidean norm of all entries, accumulated in float64 chunk by chunk."""
    return math.sqrt(_inner(tensors, tensors))


def _inner(first: list[Tensor], second: list[Tensor]) -> float:
    """The inner product of all entries, accumulated in float64 chunk by chunk."""
    pairs = zip(chunks(first), chunks(second), strict=True)
    return sum(float(torch.dot(a.double(), b.double())) for a, b in pairs)


def _extend_gram(gram: NDArray[np.float64], gradients: list[list[Tensor]]) -> NDArray[np.float64]:
    """The Gram matrix ⟨g_i, g_j⟩ of all gradients, shape (gradients, gradients).

    Args:
        gram: that of all gradients but the last.
        gradients: g_i, each with one tensor per parameter.
    """
    row = [_inner(gradient, gradients[-1]) for gradient in gradients]
    larger = np.pad(gram, (0, 1))
    larger[-1], larger[:, -1] = row, row
    return larger
