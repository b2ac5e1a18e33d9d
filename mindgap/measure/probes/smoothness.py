"""Local smoothness along an update, with the same batches and the same random numbers at every
point.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mindgap.base.check import fail, positive, whole
from mindgap.base.objective import Objective
from mindgap.base.tensors import as_real, euclidean_norm, flatten, unflatten
from mindgap.measure.gradients import GradientPasses, NonFiniteError, gradient_passes
from mindgap.measure.probe import Probe, Reading


@dataclass(frozen=True)
class LocalSmoothness:
    """How fast the gradient changes along a step."""

    value: float  # the largest of ``ratios``: the estimate of the local smoothness
    gammas: tuple[float, ...]  # where along the step, ending at 1
    #: ||g(x + gamma d) - g(x)|| / ||gamma d||, with the displacement that rounding left
    ratios: tuple[float, ...]
    #: d'(g(x + d) - g(x)) / ||d||^2 with what rounding left of d: the mean curvature in the step's
    #: direction, with its sign
    curvature: float
    curvature_error: float  # its standard error over the batches (NaN with one batch)
    #: what the nearest point would read if the loss were linear: the larger of a repeated
    #: evaluation's difference and one rounding of the gradient, divided by the shortest
    #: displacement.
    noise_floor: float
    gradient_norm: float  # ||g(x)|| on the same batches
    #: losses at x and at x + d.
    loss: float
    loss_after: float
    displacement: float  # ||d||, of what rounding left of d

    @property
    def interval(self) -> tuple[float, float]:
        """``value`` plus and minus the noise floor."""
        return max(0.0, self.value - self.noise_floor), self.value + self.noise_floor


def local_smoothness(
    objective: Objective,
    batches: Iterable[Any],
    step: Sequence[Tensor] | Tensor,
    *,
    points: int = 4,
    seed: int = 0,
    train: bool | None = None,
) -> LocalSmoothness:
    """Smoothness of the mean loss along ``step``, from where the model stands (thesis, 3.2 and Fig.
    3-1).

    With d the step and g the mean gradient over the batches,
    L = max over gamma in {1/n, 2/n, ..., 1} of ||g(x + gamma d) - g(x)|| / (gamma ||d||).
    All gradients use the same batches, the same random states and the same module modes; means and
    differences are accumulated in float64. Costs ``points`` + 2 passes over the batches.

    Args:
        objective, batches: the problem; every batch has equal weight.
        step: d = x_(k+1) - x_k, one tensor per parameter (those that take gradients, in order) or
            flat.
        points: n, how many points of the step to look at, at least 4; the end is always among them.
        seed: names the random numbers (dropout, shuffling).
        train: put the model into training or evaluation mode; None leaves it as it is.

    Example:
        >>> from torch import nn
        >>> problem = Objective(
        ...     nn.Linear(1, 1, bias=False).double(), lambda m, b: 1.5 * m.weight.square().sum() * b
        ... )
        >>> reading = local_smoothness(problem, [torch.tensor(2.0)], [torch.ones(1, 1)])
        >>> round(reading.value, 9), round(reading.curvature, 9)
        (6.0, 6.0)

    *Differs from the paper*: its released code takes one midpoint, sums where it should average,
    and compares gradients of different random chunks; with clipping on that alone makes a
    correlation of smoothness and gradient norm. See ``docs/measure.md``.
    """
    whole("points", points, least=4, most=10_000)
    with gradient_passes(objective, batches, seed=seed, train=train, move=True) as passes:
        return local_smoothness_in(passes, step, points=points)


def local_smoothness_in(
    passes: GradientPasses, step: Sequence[Tensor] | Tensor, *, points: int = 4
) -> LocalSmoothness:
    """Smoothness of the mean loss along a step, by passes that are already open, with
    ``move=True``; ``local_smoothness`` opens its own and has the formula.

    Args:
        step: d, one tensor per parameter, or flat.
        points: n, how many points of the step to look at.
    """
    if any(p.is_meta for p in passes.parameters):
        fail("model", "must hold numbers", "parameters on the meta device")
    direction = _step_per_parameter(step, passes.parameters)
    length = euclidean_norm(direction)
    if not (length > 0 and math.isfinite(length)):
        fail("step", "must be finite and not zero", f"a step of length {length:g}")
    parameters_before = [as_real(p.detach()).clone() for p in passes.parameters]

    def displacement_now() -> list[Tensor]:
        """How far the parameters stand from where they were, in float64."""
        return [
            as_real(p.detach()).double() - before.double()
            for p, before in zip(passes.parameters, parameters_before)
        ]

    with passes.moved(direction):
        whole_step = displacement_now()  # what rounding leaves of d
    start = _means_at_point(passes, whole_step)
    # A second evaluation differs where the loss is not deterministic.
    repeated = _means_at_point(passes, whole_step).gradient
    gradient_norm = euclidean_norm(start.gradient)
    not_repeatable = euclidean_norm([a - b for a, b in zip(repeated, start.gradient)])
    del repeated  # frees the memory of a gradient in float64
    # Of the points that rounding leaves apart from the start, one entry each.
    gammas, ratios, displacements, losses = [], [], [], []
    last_slopes: list[float] = []  # of the batches at the last point
    for gamma in ((i + 1) / points for i in range(points)):
        with passes.moved(direction, gamma):
            displacement = euclidean_norm(displacement_now())
            if displacement == 0:  # rounded away
                continue
            means = _means_at_point(passes, whole_step)
        change_of_gradient = [a.sub_(b) for a, b in zip(means.gradient, start.gradient)]
        gammas.append(gamma)
        ratios.append(euclidean_norm(change_of_gradient) / displacement)
        displacements.append(displacement)
        losses.append(means.loss)
        last_slopes = means.slopes
    if not ratios:
        fail(
            "step",
            "must be large enough to change the parameters in their precision",
            f"length {length:g}",
        )
    # Of each batch.
    curvatures = (np.array(last_slopes) - np.array(start.slopes)) / displacements[-1] ** 2
    batches = len(curvatures)
    error = float(curvatures.std(ddof=1) / math.sqrt(batches)) if batches > 1 else math.nan
    rounding = max(torch.finfo(p.dtype).eps for p in passes.parameters) * gradient_norm
    return LocalSmoothness(
        value=max(ratios),
        gammas=tuple(gammas),
        ratios=tuple(ratios),
        curvature=float(curvatures.mean()),
        curvature_error=error,
        noise_floor=max(not_repeatable, rounding) / displacements[0],
        gradient_norm=gradient_norm,
        loss=start.loss,
        loss_after=losses[-1],
        displacement=displacements[-1],
    )


@dataclass(frozen=True)
class RaySmoothness:
    """Readings at neighbouring points of one ray."""

    #: ||g|| between the two points of each reading (geometric mean)
    gradient_norms: tuple[float, ...]
    smoothness: tuple[float, ...]  # ||g(b) - g(a)|| / ||b - a|| for neighbouring points a, b
    losses: tuple[float, ...]  # at the nearer point of each reading, one loss each
    distances: tuple[float, ...]  # distance of the nearer point from the start
    noise_floor: float  # what one rounding of the gradient adds to the first reading


def smoothness_along_ray(
    objective: Objective,
    batches: Iterable[Any],
    *,
    points: int = 20,
    growth: float = 10.0,
    seed: int = 0,
) -> RaySmoothness:
    """Smoothness at growing gradients, all read in one direction: up the gradient from where the
    model stands.

    Along a path of gradient descent the gradient turns towards flat directions, so that the
    smoothness read along it falls with the gradient norm even for a quadratic. Here the direction d
    = g/||g|| stays fixed: a quadratic reads ||H d|| everywhere. The steps lengthen until the
    gradient norm has grown by ``growth``, or the points are used up, or the loss is no longer
    finite. One pass over the batches per point. Source: thesis, 3.2 (smoothness against gradient
    norm); the ray is ours.

    Args:
        objective, batches: the problem; every batch has equal weight.
        points: readings at most, at least 3.
        growth: stop when the gradient norm exceeds this many times its start.
        seed: names the random numbers (dropout, shuffling).

    Example:
        >>> from torch import nn
        >>> problem = Objective(
        ...     nn.Linear(1, 1, bias=False).double(), lambda m, b: 1.5 * m.weight.square().sum() * b
        ... )
        >>> read = smoothness_along_ray(problem, [torch.tensor(2.0)])
        >>> (
        ...     sorted({round(value, 6) for value in read.smoothness}),
        ...     read.gradient_norms[-1] > 3 * read.gradient_norms[0],
        ... )
        ([6.0], True)
    """
    whole("points", points, least=3, most=10_000)
    positive("growth", growth)
    with gradient_passes(objective, batches, seed=seed, move=True) as passes:
        # ``near`` and ``far`` are the means at the two points of a reading, ``norm`` the gradient
        # norm at the first. The slopes along the ray are not needed, so any direction serves.
        near = _means_at_point(passes, [torch.zeros_like(p) for p in passes.parameters])
        norm = first_norm = euclidean_norm(near.gradient)
        if not norm > 0:
            fail("gradient", "must not be zero for a ray to start", norm)
        direction = unflatten(flatten(near.gradient) / norm, passes.parameters)

        def mean_at(distance: float) -> _Means:
            """Mean gradient and loss at a distance from the start along ``direction``."""
            with passes.moved(direction, distance):
                return _means_at_point(passes, direction)

        # The first step shall change the gradient by a tenth of itself, as a short trial predicts,
        # within bounds relative to the parameters' norm that precision sets.
        scale = max(euclidean_norm(passes.parameters), 1.0)
        trial = 1e-3 * scale
        at_trial = mean_at(trial).gradient
        steepness = euclidean_norm([a.sub_(b) for a, b in zip(at_trial, near.gradient)]) / trial
        step = 0.1 * norm / steepness if steepness > 0 else 0.1 * scale
        step = min(max(step, 1e-4 * scale), 10 * scale)
        readings, distance = [], 0.0
        for _ in range(points):
            try:
                far = mean_at(distance + step)
            except NonFiniteError:
                break
            far_norm = euclidean_norm(far.gradient)
            change = euclidean_norm([a - b for a, b in zip(far.gradient, near.gradient)])
            if not math.isfinite(change):
                break
            # In the order of the fields of ``RaySmoothness``.
            readings.append((math.sqrt(norm * far_norm), change / step, near.loss, distance))
            near, norm, distance = far, far_norm, distance + step
            if norm > growth * first_norm and len(readings) >= 10:  # enough to fit a line
                break
            step *= 1.15  # so that 20 steps reach 100 times as far as the first
        if not readings:
            fail(
                "loss",
                "must be finite near the point",
                "NaN or infinity at the first step of the ray",
            )
    rounding = max(torch.finfo(p.dtype).eps for p in passes.parameters) * first_norm
    norms, values, losses, distances = (tuple(column) for column in zip(*readings))
    first_step = distances[1] if len(distances) > 1 else step
    return RaySmoothness(
        gradient_norms=norms,
        smoothness=values,
        losses=losses,
        distances=distances,
        noise_floor=rounding / first_step,
    )


def _step_per_parameter(
    step: Sequence[Tensor] | Tensor, parameters: Sequence[Tensor]
) -> list[Tensor]:
    """A step as one tensor per parameter, on the parameters' devices; an error where the shapes do
    not fit.

    Args:
        step: one tensor per parameter, or one flat tensor.
    """
    if isinstance(step, Tensor):
        total = sum(as_real(p).numel() for p in parameters)
        if step.numel() != total:
            fail("step", f"must have {total} numbers, one per parameter", step.numel())
        step = unflatten(step.detach().reshape(-1), parameters)
    if not isinstance(step, (list, tuple)) or not all(isinstance(d, Tensor) for d in step):
        fail("step", "must be a tensor, or one tensor per parameter", step)
    if len(step) != len(parameters) or any(d.shape != p.shape for d, p in zip(step, parameters)):
        fail("step", "must have the parameters' shapes", [tuple(d.shape) for d in step])
    return [d.detach().to(p.device) for d, p in zip(step, parameters)]


class _Means(NamedTuple):
    """Means over the batches at one point."""

    gradient: list[Tensor]  # in float64, complex numbers as pairs
    loss: float
    slopes: list[float]  # <g_b, d> of every batch b, for a direction d


def _means_at_point(passes: GradientPasses, direction: Sequence[Tensor]) -> _Means:
    """Mean gradient and loss over the batches in float64, and the slope of every batch along a
    direction, in one pass where the parameters stand.

    Args:
        direction: one tensor per parameter.
    """
    along = [as_real(d).double() for d in direction]
    total: list[Tensor] = []
    losses, slopes = [], []
    for item in passes.gradients():
        parts = [as_real(part) for part in item.gradient]
        slopes.append(sum(torch.sum(part.double() * d) for part, d in zip(parts, along)))
        losses.append(item.loss.double())
        if not total:  # a copy: the gradient belongs to the pass
            total = [part.to(torch.float64, copy=True) for part in parts]
        else:
            torch._foreach_add_(total, [part.double() for part in parts])
    mean_loss = float(torch.stack(losses).mean())
    return _Means([part.div_(len(losses)) for part in total], mean_loss, [float(v) for v in slopes])


class SmoothnessProbe(Probe):
    """Local smoothness along the updates of a run.

    Args:
        every: run at every ``every``-th reading of the monitor.
        points: points of each update to look at; each costs a pass over the batches.

    Example:
        >>> from torch import nn
        >>> problem = Objective(
        ...     nn.Linear(1, 1, bias=False).double(), lambda m, b: 1.5 * m.weight.square().sum() * b
        ... )
        >>> with Reading(problem, [torch.tensor(2.0)], update=[torch.ones(1, 1)]) as at:
        ...     round(SmoothnessProbe().read(at)["value"], 9)
        6.0
    """

    name, needs = "smoothness", frozenset({"gradients", "update"})

    def __init__(self, every: int = 1, *, points: int = 4) -> None:
        super().__init__(every)
        self.points = whole("points", points, least=4)

    def read(self, at: Reading) -> dict[str, float]:
        """Smoothness, curvature along the update, noise floor and gradient norm; NaN for a step
        that moved nothing.
        """
        largest_entries = [float(d.abs().max()) for d in at.update if d.numel()]
        if not all(map(math.isfinite, largest_entries)):
            raise NonFiniteError("update must be finite, got NaN or infinity")
        names = ("value", "curvature", "noise_floor", "gradient_norm")
        if not any(largest_entries):
            return dict.fromkeys(names, math.nan)
        reading = local_smoothness_in(at.passes, at.update, points=self.points)
        return {name: getattr(reading, name) for name in names}

    def cost(self, batches: int) -> float:
        # A gradient per point, and two where the step begins.
        return (self.points + 2.0) * batches
