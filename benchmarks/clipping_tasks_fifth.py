"""Thirteen tasks that judge the fifth try of ``clip="auto"``: written before anything ran on them.

Their *tail* says what large gradients are, as in ``clipping_tasks.py``: ``noise``, ``signal`` or
``none``.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from clipping_tasks import (
    Batch,
    Params,
    Task,
    bad_targets,
    cauchy,
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

SPLIT = "fifth"


def uneven_errors(name: str) -> Task:
    """Student-t errors of 1.6 degrees whose size grows with the first input."""
    inputs, width, batch = 10, 48, 48
    shapes = dense((inputs, width, width, 1))

    def world(g: torch.Generator) -> Params:
        return initial(dense((inputs, 24, 1)), {"w0": 2.0, "w1": 2.0})(g)

    def clean(w: Params, g: torch.Generator, size: int) -> Batch:
        x = normal(g, size, inputs)
        return x, mlp(w, x, 2, act="tanh").squeeze(-1)

    def draw(w: Params, g: torch.Generator) -> Batch:
        x, y = clean(w, g, batch)
        return x, y + (0.2 + x[:, 0].square()) * student(g, 1.6, batch)

    def loss(p: Params, b: Batch) -> Tensor:
        return (mlp(p, b[0], 3, act="tanh").squeeze(-1) - b[1]).square().mean()

    init = initial(shapes, {"w0": 1.4, "w1": 1.4})
    return Task(
        name, "noise", SPLIT, 2000, shapes, init, world, draw, loss, lambda w, g: clean(w, g, 2048)
    )


def corrupted_autoencoder(name: str) -> Task:
    """Sixteen sensors on a curve; 1 of 100 readings to be rebuilt is off by a Cauchy error."""
    inputs, width, batch = 16, 64, 64
    shapes = dense((inputs, width, 4, width, inputs))

    def world(g: torch.Generator) -> Params:
        return initial(dense((2, 32, inputs)), {"w0": 2.0, "w1": 2.0})(g)

    def clean(w: Params, g: torch.Generator, size: int) -> Batch:
        x = mlp(w, normal(g, size, 2), 2, act="tanh")
        return x, x

    def draw(w: Params, g: torch.Generator) -> Batch:
        x, y = clean(w, g, batch)
        hit = torch.rand(batch, inputs, generator=g) < 0.01
        return x, y + torch.where(hit, 5 * cauchy(g, batch, inputs), 0.0)

    def loss(p: Params, b: Batch) -> Tensor:
        return (mlp(p, b[0], 4) - b[1]).square().mean()

    init = initial(shapes, {f"w{i}": 1.4 for i in range(3)})
    return Task(
        name, "noise", SPLIT, 2000, shapes, init, world, draw, loss, lambda w, g: clean(w, g, 2048)
    )


def small_prizes(g: torch.Generator, size: int) -> Tensor:
    """40 in 1 of 300 samples, less its mean."""
    return 40.0 * (torch.rand(size, generator=g) < 1 / 300).float() - 40 / 300


def two_rare_classes(name: str) -> Task:
    """Two of three classes have one sample in a hundred each, whose losses count forty times."""
    inputs, width, batch, rare = 16, 48, 32, 0.01
    shapes = dense((inputs, width, width, 3))

    def world(g: torch.Generator) -> Params:
        return {"centers": 1.5 * normal(g, 3, inputs) / math.sqrt(inputs) * 2}

    def draw(
        w: Params, g: torch.Generator, size: int = batch, share: float = rare, weight: float = 40.0
    ) -> Batch:
        u = torch.rand(size, generator=g)
        y = (u < share).long() + 2 * ((u >= share) & (u < 2 * share)).long()
        x = normal(g, size, inputs) + w["centers"][y]
        return x, y, torch.where(y > 0, weight, 1.0)

    def loss(p: Params, b: Batch) -> Tensor:
        losses = F.cross_entropy(mlp(p, b[0], 3), b[1], reduction="none")
        return (b[2] * losses).mean()

    init = initial(shapes, {"w0": 1.4, "w1": 1.4})
    return Task(
        name,
        "signal",
        SPLIT,
        2000,
        shapes,
        init,
        world,
        draw,
        loss,
        lambda w, g: draw(w, g, 4096, 1 / 3, 1.0),
    )


def peaks(name: str) -> Task:
    """Targets without noise that are near 0 but for a high and a low peak: large ones of both sides
    can be learnt."""
    inputs, width, batch = 3, 64, 64
    shapes = dense((inputs, width, width, 1))

    def world(g: torch.Generator) -> Params:
        return {"centers": 0.8 * normal(g, 2, inputs)}

    def draw(w: Params, g: torch.Generator, size: int = batch) -> Batch:
        x = normal(g, size, inputs)
        near = torch.exp(-4 * (x[:, None] - w["centers"]).square().sum(-1))
        return x, 10 * (near[:, 0] - near[:, 1])

    def loss(p: Params, b: Batch) -> Tensor:
        return (mlp(p, b[0], 3).squeeze(-1) - b[1]).square().mean()

    init = initial(shapes, {"w0": 1.4, "w1": 1.4})
    return Task(
        name, "signal", SPLIT, 2000, shapes, init, world, draw, loss, lambda w, g: draw(w, g, 4096)
    )


FIFTH: dict[str, Task] = {
    task.name: task
    for task in (
        regression("fifth: bad targets 0.3 %", bad_targets(0.003), "noise", SPLIT, 20, 64, 32),
        linear("fifth: linear, bad targets 5 %", bad_targets(0.05), SPLIT),
        uneven_errors("fifth: uneven errors, Student t 1.6"),
        policy("fifth: returns, Student t 1.4", SPLIT, 1.4),
        corrupted_autoencoder("fifth: autoencoder, bad readings 1 %"),
        language("fifth: attention with spikes", SPLIT, "attention", 100, 24, 10, spikes=0.01),
        claims("fifth: claims, Pareto 2.3", SPLIT, 2.3, 48),
        regression("fifth: small prizes", small_prizes, "signal", SPLIT, 10, 48, 64),
        two_rare_classes("fifth: two rare classes"),
        peaks("fifth: peaks"),
        language("fifth: text, GRU", SPLIT, "gru", 150, 24, 14, 12),
        pinn("fifth: physics-informed, one wave and a half", SPLIT, 1.5),
        classification("fifth: twenty classes, 10 % wrong", SPLIT, 0.1, 20),
    )
}
