"""The small training loop that drives every optimizer through its contracts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

#: Shapes of the problem's three parameters.
SHAPES: list[tuple[int, ...]] = [(3, 2), (), (5,)]
#: The minimum of the loss: every entry of parameter i is ``TARGETS[i]`` there.
TARGETS = [0.5, -1.0, 2.0]

#: The three parameters, in the order of :data:`SHAPES`.
Params = list[Any]


def start(dtype: torch.dtype = torch.float64, seed: int = 0) -> Params:
    """The parameters of the contracts' problem: a matrix, a number and a vector."""
    generator = torch.Generator().manual_seed(seed)
    # Drawn in float64 and then rounded, so that every dtype begins at the same values.
    return [
        torch.nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype))
        for s in SHAPES
    ]


def loss_of(params: Sequence[Any], used: Sequence[int] = (0, 1, 2)) -> Tensor:
    """The contracts' loss: Σᵢ (i + 1) Σ √(|pᵢ - tᵢ|² + 1), with the targets tᵢ of :data:`TARGETS`.

    Args:
        params: the three parameters, real or complex.
        used: numbers i of the parameters that enter.
    """
    terms = [((params[i] - TARGETS[i]).abs().square() + 1).sqrt().sum() * (i + 1) for i in used]
    return torch.stack([term.to(torch.float64) for term in terms]).sum()


def closure_of(
    optimizer: Any, params: Params, loss: Callable[[Any], Any] = loss_of, sign: float = 1.0
) -> Callable[[], Any]:
    """What ``step`` of an optimizer takes as its closure.

    The loss of the closure is ``sign`` times ``loss(params)``.
    """

    def closure() -> Any:
        """The value of the loss; the gradients are cleared before and computed in place."""
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
    """Take so many steps of an ordinary training loop, which move ``params`` in place.

    Args:
        case: its ``closure`` says whether a step needs one.
        optimizer: of the parameters.
        params: which the loss is computed from.
        steps: how many.
        loss: parameters -> a scalar.
        sign: by which the loss is multiplied; -1 ascends.
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
    """Raise an error where two lists of tensors differ.

    By default they must be equal bit for bit; else |a - b| <= ``atol`` + ``rtol`` |b| must hold.
    """
    for tensor, expected in zip(first, second, strict=True):
        torch.testing.assert_close(tensor, expected, rtol=rtol, atol=atol)


def to_evaluate(optimizer: Any) -> None:
    """Put the parameters where they are to be evaluated, for schedule-free methods and the like.

    Optimizers without ``eval()`` are left alone.
    """
    if hasattr(optimizer, "eval"):
        optimizer.eval()
