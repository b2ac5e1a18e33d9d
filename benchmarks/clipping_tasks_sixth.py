"""Tasks of the sixth try of ``clip="auto"``: five with faults for development, and fourteen that
judge, written before anything ran on these.

Their *tail* says what large gradients are, as in ``clipping_tasks.py``: ``noise``, ``signal``,
``none``, or ``fault``: now and then the loss of a whole batch is multiplied by a large number.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from clipping_tasks import (
    TASKS as EARLIER,
    Batch,
    Params,
    Task,
    bad_targets,
    claims,
    classification,
    dense,
    initial,
    language,
    linear,
    mlp,
    normal,
    pinn,
    policy,
    regression,
    student,
)
from torch import Tensor

DEVELOP, SPLIT = "develop 6", "sixth"


def with_faults(task: Task, name: str, split: str, share: float, factor: float) -> Task:
    """The task with a share of its batches whose loss is multiplied by a factor."""

    def draw(w: Params, g: torch.Generator) -> Batch:
        hit = (torch.rand((), generator=g) < share).float()
        return (*task.draw(w, g), 1.0 + (factor - 1.0) * hit)

    def score(p: Params, b: Batch) -> Tensor:
        return (task.score or task.loss)(p, b[:-1])

    return replace(
        task,
        name=name,
        split=split,
        tail="fault",
        draw=draw,
        loss=lambda p, b: b[-1] * task.loss(p, b[:-1]),
        held_out=lambda w, g: (*task.held_out(w, g), torch.ones(())),
        score=score,
    )


def rare_prizes(g: torch.Generator, size: int) -> Tensor:
    """90 in 1 of 1,500 samples, less its mean."""
    return 90.0 * (torch.rand(size, generator=g) < 1 / 1500).float() - 90 / 1500


def three_rare_classes(name: str) -> Task:
    """Three of five classes have one sample in 150 each, whose losses count thirty times."""
    inputs, width, batch = 20, 64, 48
    shapes = dense((inputs, width, width, 5))

    def world(g: torch.Generator) -> Params:
        return {"centers": 3.0 * normal(g, 5, inputs) / math.sqrt(inputs)}

    def draw(w: Params, g: torch.Generator, size: int = batch, rare: float = 1 / 150) -> Batch:
        shares = torch.tensor([(1 - 3 * rare) / 2] * 2 + [rare] * 3)
        y = torch.multinomial(shares, size, replacement=True, generator=g)
        x = normal(g, size, inputs) + w["centers"][y]
        return x, y, torch.where(y > 1, 30.0 if rare < 0.1 else 1.0, 1.0)

    def loss(p: Params, b: Batch) -> Tensor:
        losses = F.cross_entropy(mlp(p, b[0], 3), b[1], reduction="none")
        return (b[2] * losses).mean()

    def held_out(w: Params, g: torch.Generator) -> Batch:
        return draw(w, g, 4096, 1 / 5)

    init = initial(shapes, {"w0": 1.4, "w1": 1.4})
    return Task(name, "signal", SPLIT, 2000, shapes, init, world, draw, loss, held_out)


def no_noise(g: torch.Generator, size: int) -> Tensor:
    return 0.1 * normal(g, size)


SIXTH: dict[str, Task] = {
    task.name: task
    for task in (
        with_faults(EARLIER["classes"], "classes, 1 in 40 × 10³", DEVELOP, 1 / 40, 1e3),
        with_faults(EARLIER["classes"], "classes, 1 in 150 × 10⁴", DEVELOP, 1 / 150, 1e4),
        with_faults(
            EARLIER["clean regression"], "clean regression, 1 in 40 × 10³", DEVELOP, 1 / 40, 1e3
        ),
        with_faults(
            EARLIER["text, attention"], "text, attention, 1 in 100 × 10⁴", DEVELOP, 1 / 100, 1e4
        ),
        with_faults(
            EARLIER["judge: diffusion"], "diffusion, 1 in 60 × 100", DEVELOP, 1 / 60, 100.0
        ),
        # the judging tasks
        regression("sixth: bad targets 2 %, wide", bad_targets(0.02), "noise", SPLIT, 12, 96, 48),
        linear("sixth: linear, Student t 1.4", lambda g, n: student(g, 1.4, n), SPLIT),
        regression(
            "sixth: Student t 1.6, tanh",
            lambda g, n: 0.5 * student(g, 1.6, n),
            "noise",
            SPLIT,
            24,
            48,
            32,
            "tanh",
        ),
        policy("sixth: returns, Student t 1.6", SPLIT, 1.6),
        claims("sixth: claims, Pareto 2.7", SPLIT, 2.7, 32),
        regression("sixth: rare prizes", rare_prizes, "signal", SPLIT, 14, 64, 48),
        three_rare_classes("sixth: three rare classes"),
        classification("sixth: eight classes, 5 % wrong", SPLIT, 0.05, 8),
        pinn("sixth: physics-informed, two waves and a half", SPLIT, 2.5),
        language("sixth: text, small attention", SPLIT, "attention", 80, 24, 12),
        with_faults(
            classification("", SPLIT, 0.0, 12), "sixth: twelve classes, faults", SPLIT, 1 / 50, 1e3
        ),
        with_faults(
            regression("", no_noise, "none", SPLIT, 10, 48, 48, "tanh"),
            "sixth: tanh regression, faults",
            SPLIT,
            1 / 200,
            1e5,
        ),
        with_faults(
            language("", SPLIT, "gru", 100, 24, 10, 12), "sixth: GRU, faults", SPLIT, 1 / 80, 1e3
        ),
        with_faults(linear("", no_noise, SPLIT), "sixth: linear, faults", SPLIT, 1 / 100, 1e4),
    )
}
