"""Steps on x, and loops of steps on y at a fixed x, in the variants the methods use."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from mindgap.base.check import fail
from mindgap.bilevel.core.settings import (
    check_settings,
    non_negative,
    one_of_texts,
    positive,
    within,
)
from mindgap.bilevel.core.types import Array, Ops, Oracle, Scalar
from mindgap.bilevel.data.sample import Sample

PlainStep = Literal["plain", "normalised", "clipped"]
X_STEPS: tuple[str, ...] = get_args(PlainStep)


def step_size(ops: Ops, step: str, d: Array, lr: Scalar, eps: float = 1e-10) -> Scalar:
    """What multiplies the direction of x: ``lr``, ``lr / (||d|| + eps)`` or ``lr min(1, 1 / (||d||
    + eps))``.

    "normalised" (SLIP, BO-REP) takes the global norm over all of x; "clipped" is the same far away
    and plain near a stationary point.
    """
    if step == "plain":
        return lr
    if step == "normalised":
        return lr / (ops.norm(d) + eps)
    return lr * ops.minimum(1.0 / (ops.norm(d) + eps), 1.0)


@dataclass(frozen=True)
class AdamStep:
    """Adam's direction as a step on x, y or z, on every backend; the method's own rate multiplies
    it.

    Args:
        beta1, beta2: decay of the first and second moment, in [0, 1).
        eps: added to the root of the second moment.
        weight_decay: decoupled, as in AdamW: the direction gets ``weight_decay * value``.

    Example:
        >>> from mindgap.bilevel.backends.ops import TorchOps
        >>> step = AdamStep()
        >>> d, _ = step.direction(
        ...     TorchOps(),
        ...     step.init(TorchOps(), torch.zeros(2)),
        ...     torch.tensor([4.0, -0.1]),
        ...     torch.zeros(2),
        ... )
        >>> [round(float(v), 3) for v in d]
        [1.0, -1.0]

    Source: Kingma, Ba 2015; Loshchilov, Hutter 2019.
    """

    beta1: float = within(0, 1, "[)", 0.9)
    beta2: float = within(0, 1, "[)", 0.999)
    eps: float = positive(1e-8)
    weight_decay: float = non_negative(0.0)

    def __post_init__(self) -> None:
        check_settings(self)

    def init(self, ops: Ops, value: Array) -> dict[str, Array]:
        """The memory before the first step."""
        return {"m": ops.zeros_like(value), "s": ops.zeros_like(value), "k": ops.scalar(0.0, value)}

    def direction(
        self, ops: Ops, memory: dict[str, Array], d: Array, value: Array
    ) -> tuple[Array, dict[str, Array]]:
        """The direction to move along, and the memory after."""
        m, s = (
            ops.mix(memory["m"], d, 1.0 - self.beta1),
            ops.mix(memory["s"], d * d, 1.0 - self.beta2),
        )
        k = memory["k"] + 1.0
        found = (m / (1.0 - self.beta1**k)) / ((s / (1.0 - self.beta2**k)) ** 0.5 + self.eps)
        return (found + self.weight_decay * value if self.weight_decay else found), {
            "m": m,
            "s": s,
            "k": k,
        }


@dataclass(frozen=True)
class MomentumStep:
    """Heavy-ball momentum as torch's SGD has it, ``m <- beta m + d``, on every backend.

    Args:
        beta: in [0, 1).
        weight_decay: added to the direction before the momentum.

    Example:
        >>> from mindgap.bilevel.backends.ops import TorchOps
        >>> step = MomentumStep(beta=0.5)
        >>> step.direction(TorchOps(), {"m": torch.ones(1)}, torch.ones(1), torch.zeros(1))[0]
        tensor([1.5000])
    """

    beta: float = within(0, 1, "[)", 0.9)
    weight_decay: float = non_negative(0.0)

    def __post_init__(self) -> None:
        check_settings(self)

    def init(self, ops: Ops, value: Array) -> dict[str, Array]:
        """The memory before the first step."""
        return {"m": ops.zeros_like(value)}

    def direction(
        self, ops: Ops, memory: dict[str, Array], d: Array, value: Array
    ) -> tuple[Array, dict[str, Array]]:
        """The direction to move along, and the memory after."""
        m = self.beta * memory["m"] + (d + self.weight_decay * value if self.weight_decay else d)
        return m, {"m": m}


class TorchStep:
    """Any ``torch.optim`` optimizer as the upper step (torch only; its state travels with the
    method's state).

    Args:
        optimizer: the class.
        scheduler: makes a learning-rate scheduler of the optimizer; it steps once per step on x.
        settings: the optimizer's keyword arguments. The method's ``lr_x`` is not used.

    Example:
        >>> TorchStep(torch.optim.Adam, lr=0.1)
        TorchStep(Adam, lr=0.1)
    """

    def __init__(
        self,
        optimizer: type[torch.optim.Optimizer],
        *,
        scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]
        | None = None,
        **settings: Any,
    ) -> None:
        if scheduler is not None and not callable(scheduler):
            fail("scheduler", "must be a function from an optimizer to a scheduler", scheduler)
        self.scheduler = scheduler
        if not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)):
            fail("optimizer", "must be a torch.optim.Optimizer class", optimizer)
        self.optimizer = optimizer
        self.settings = settings

    def __repr__(self) -> str:
        settings = (f"{k}={v!r}" for k, v in self.settings.items())
        return f"TorchStep({', '.join([self.optimizer.__name__, *settings])})"

    def start(self, x: Tensor) -> torch.optim.Optimizer:
        """The optimizer on a copy of x."""
        try:
            return self.optimizer([torch.nn.Parameter(x.detach().clone())], **self.settings)
        except (TypeError, ValueError) as error:
            fail("x_step", f"must be an optimizer that takes its settings ({error})", self)

    def start_scheduler(
        self, optimizer: torch.optim.Optimizer
    ) -> torch.optim.lr_scheduler.LRScheduler | None:
        """The scheduler of the optimizer, if there is one."""
        return None if self.scheduler is None else self.scheduler(optimizer)

    def __call__(self, x: Tensor, d: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
        """One step of the optimizer from x along d."""
        parameter: Tensor = optimizer.param_groups[0]["params"][0]
        with torch.no_grad():
            parameter.copy_(x)
            parameter.grad = d.detach().clone()
            optimizer.step()
            return parameter.detach().clone()


MemoryStep = AdamStep | MomentumStep
XStep = PlainStep | AdamStep | MomentumStep | TorchStep
YStep = Literal["plain"] | AdamStep | MomentumStep


def check_lower_step(name: str, y_step: YStep) -> None:
    """Refuse what is not a step on y and z."""
    if not isinstance(y_step, MemoryStep):
        one_of_texts(name, y_step, ("plain",))


def check_step(name: str, x_step: XStep) -> None:
    """Refuse what is not an upper step.

    Example:
        >>> check_step("x_step", "normalized")
        Traceback (most recent call last):
        mindgap.base.check.RuleError: x_step must be one of 'plain', 'normalised', 'clipped' ...
    """
    if not isinstance(x_step, (TorchStep, AdamStep, MomentumStep)):
        one_of_texts(name, x_step, X_STEPS)


def project_ball(ops: Ops, v: Array, centre: Array, radius: float) -> Array:
    """The nearest point to ``v`` in the ball around ``centre``; an infinite radius leaves it where
    it is.

    Example:
        >>> from mindgap.bilevel.backends.ops import TorchOps
        >>> project_ball(TorchOps(), torch.tensor([3.0, 4.0]), torch.zeros(2), 1.0)
        tensor([0.6000, 0.8000])
    """
    if math.isinf(radius):
        return v
    away = v - centre
    # The floor only keeps the quotient finite at the centre, where the factor is 1 anyway.
    return centre + ops.minimum(radius / ops.maximum(ops.norm(away), 1e-30), 1.0) * away


def descend(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sample,
    lr: Scalar,
    *,
    length: Scalar = None,
    exponent: float = 0.0,
) -> Array:
    """Steps ``y -= lr / (i + 1)^exponent g_y(x, y; S_i)``, projected if the problem says so.

    Args:
        samples: one per step.
        lr: the first step.
        length: how many of the samples are used; all if not given.
        exponent: how the step falls within the loop.
    """
    inputs: tuple[Any, ...] = (samples,)
    if exponent:
        inputs = samples, np.arange(1.0, len(samples.which) + 1) ** -exponent

    def step(y: Array, sample: Sample, fall: Scalar = None) -> Array:
        return oracle.move_y(y, oracle.lower(x, y, sample), lr if fall is None else lr * fall)

    return oracle.loop(step, y, inputs, length=length)


def descend_average(
    oracle: Oracle, x: Array, y: Array, samples: Sample, lr: Scalar, radius: float, count: int
) -> Array:
    """Projected steps in the ball B(y, R) around the start; returns the mean of the ``count``
    iterates after the start.

    Source: UpdateLower of BO-REP (Hao, Gong, Liu 2024).
    """
    centre, project = y, oracle.project_y

    def step(carry: tuple[Array, Array], sample: Sample) -> tuple[Array, Array]:
        y, total = carry
        y = project_ball(oracle, oracle.move(y, oracle.lower(x, y, sample), lr), centre, radius)
        y = y if project is None else project(y)
        return y, total + y

    _, total = oracle.loop(step, (y, oracle.zeros_like(y)), (samples,))
    return total / count


def epoch_sgd_lengths(first: int, epochs: int) -> list[int]:
    """Steps in each epoch of epoch-SGD: T_{s+1} = 2 T_s.

    Example:
        >>> epoch_sgd_lengths(4, 3)
        [4, 8, 16]
    """
    return [first * 2**s for s in range(epochs)]


def epoch_sgd(
    oracle: Oracle, x: Array, y: Array, samples: list[Sample], lr: float, radius: float
) -> Array:
    """Epochs of averaged projected descent, each with half the step and a ball smaller by the root
    of two.

    T_{s+1} = 2 T_s, alpha_{s+1} = alpha_s / 2, D_{s+1} = D_s / sqrt 2.

    Args:
        samples: the samples of each epoch (their number is T_s).

    Source: initialisation refinement of BO-REP, after Hazan & Kale 2014 and Ghadimi & Lan 2013.
    """
    for s, part in enumerate(samples):
        y = descend_average(
            oracle, x, y, part, lr / 2**s, radius / math.sqrt(2) ** s, len(part.which)
        )
    return y
