"""The small training loop that drives every optimizer through its contracts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

SHAPES: list[tuple[int, ...]] = [(3, 2), (), (5,)]
TARGETS = [0.5, -1.0, 2.0]

Params = list[Any]


def start(dtype: torch.dtype = torch.float64, seed: int = 0) -> Params:
    """The parameters of the contracts' problem: a matrix, a number and a vector."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype))
        for s in SHAPES
    ]


def loss_of(params: Sequence[Any], used: Sequence[int] = (0, 1, 2)) -> Tensor:
    """A smooth function with a minimum; parameters outside ``used`` do not enter."""
    parts = [((params[i] - TARGETS[i]).abs().square() + 1).sqrt().sum() * (i + 1) for i in used]
    return torch.stack([p.to(torch.float64) if not p.is_complex() else p.real for p in parts]).sum()


def closure_of(
    optimizer: Any, params: Params, loss: Callable[[Any], Any] = loss_of, sign: float = 1.0
) -> Callable[[], Any]:
    """A closure for ``step``: gradients are cleared, ``sign`` times the loss is differentiated and
    returned.
    """

    def closure() -> Any:
        optimizer.zero_grad()
        value = sign * loss(params)
        value.backward()
        return value

    return closure


def drive(
    case: Any,
    optimizer: Any,
    params: Params,
    steps: int = 1,
    *,
    loss: Callable[[Any], Any] = loss_of,
    sign: float = 1.0,
) -> None:
    """Steps of an ordinary training loop on ``sign`` times the loss.

    Args:
        case: its ``closure`` says whether a step needs one.
    """
    closure = closure_of(optimizer, params, loss, sign)
    for _ in range(steps):
        if case.closure:
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()


def values(params: Params) -> list[Tensor]:
    """Copies of the parameters."""
    return [p.detach().clone() for p in params]


def assert_same(
    first: Sequence[Any], second: Sequence[Any], *, rtol: float = 0.0, atol: float = 0.0
) -> None:
    """Refuse lists of tensors that differ: bit for bit, or by more than ``rtol`` and ``atol``."""
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


def to_evaluate(optimizer: Any) -> None:
    """Put the parameters where they are to be evaluated (schedule-free methods and the like)."""
    if hasattr(optimizer, "eval"):
        optimizer.eval()
