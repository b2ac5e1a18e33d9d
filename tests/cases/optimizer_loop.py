"""The small training loop that the optimizer contract drives every record of
``cases.optimizers`` with.
"""

from __future__ import annotations

import torch

SHAPES = [(3, 2), (), (5,)]
TARGETS = [0.5, -1.0, 2.0]


def start(dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype))
        for s in SHAPES
    ]


def loss_of(params, used=(0, 1, 2)):
    """A smooth function with a minimum; parameters outside ``used`` do not enter."""
    parts = [((params[i] - TARGETS[i]).abs().square() + 1).sqrt().sum() * (i + 1) for i in used]
    return torch.stack([p.to(torch.float64) if not p.is_complex() else p.real for p in parts]).sum()


def drive(case, optimizer, params, steps=1, *, loss=loss_of, sign=1.0):
    """Steps of an ordinary training loop; returns the last loss."""
    value = None
    for _ in range(steps):

        def closure():
            optimizer.zero_grad()
            value = sign * loss(params)
            value.backward()
            return value

        if case.closure:
            value = optimizer.step(closure)
        else:
            value = closure()
            optimizer.step()
    return value


def values(params):
    return [p.detach().clone() for p in params]


def assert_same(first, second, **tolerance):
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, **(tolerance or {"rtol": 0, "atol": 0}))


def to_evaluate(optimizer):
    """Put the parameters where they are to be evaluated."""
    if hasattr(optimizer, "eval"):
        optimizer.eval()
