"""One backward sweep of torch's engine, for callers whose arguments are known to be right.

``torch.autograd.grad`` looks at its arguments before it calls the engine (tensors? sizes equal?
nested? overridden?). On a problem whose derivatives take a few hundred microseconds those looks are
a sixth of an iteration.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

#: The engine's entry that ``torch.autograd.grad`` calls; None where torch has none of that name.
_ENGINE: Any = getattr(
    getattr(torch.autograd.Variable, "_execution_engine", None), "run_backward", None
)


def sweep(
    ends: Sequence[Tensor],
    inputs: Sequence[Tensor],
    along: Sequence[Tensor],
    *,
    create_graph: bool = False,
    retain_graph: bool = False,
) -> tuple[Tensor | None, ...]:
    """Derivatives of ``sum <end, along>`` in the inputs, None for an input that does not enter.

    Args:
        ends: tensors with a graph.
        inputs: leaves of it.
        along: one tensor of the same shape for each end.
        create_graph: whether the result can be differentiated again.
        retain_graph: whether the graph is kept for another sweep; always so with ``create_graph``.

    Example:
        >>> x, y = torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)
        >>> sweep([(x * x).sum()], [x, y], [torch.tensor(1.0)])
        (tensor([2., 2.]), None)
    """
    keep = create_graph or retain_graph
    if _ENGINE is None or any(
        type(end) is not Tensor for end in ends
    ):  # a subclass may have its own way
        return torch.autograd.grad(ends, inputs, along, keep, create_graph, allow_unused=True)
    found: tuple[Tensor | None, ...] = _ENGINE(
        tuple(ends),
        tuple(along),
        keep,
        create_graph,
        tuple(inputs),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return found


def times(value: float, loss: Tensor) -> Tensor:
    """A number in the form of a loss, made once for each form.

    Example:
        >>> times(-1.0, torch.tensor(3.0)) is times(-1.0, torch.tensor(5.0))
        True
    """
    return _constant(value, loss.shape, loss.dtype, loss.device)


@lru_cache(maxsize=64)
def _constant(value: float, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full(shape, value, dtype=dtype, device=device)
