"""The last line of every rule: move the parameters, with the weight decay that stands outside the rule."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mindgap.base.tensors import widen


def descend_(params: Sequence[Tensor], updates: Sequence[Tensor], lr: float | Tensor,
             shrink: float | Tensor = 0.0) -> None:
    """x ← (1 − s)·x − η·u, rounded once for 16-bit parameters.

    Args:
        updates: u, temporaries that may be overwritten.
        lr: η, a number or a 0-dim tensor (which is never read on the host).

    Example:
        >>> x = [torch.tensor([1.0])]
        >>> descend_(x, [torch.tensor([2.0])], 0.25, shrink=0.25)
        >>> x
        [tensor([0.2500])]
    """
    xs, us = list(params), list(updates)
    narrow = xs[0].dtype in (torch.bfloat16, torch.float16)
    moved = [widen(x) for x in xs] if narrow else xs
    if isinstance(shrink, Tensor):
        torch._foreach_mul_(moved, 1.0 - shrink.to(moved[0].device, moved[0].dtype))
    elif shrink:
        torch._foreach_mul_(moved, 1.0 - shrink)
    if isinstance(lr, Tensor):
        torch._foreach_mul_(us, lr.to(moved[0].device, moved[0].dtype))
        torch._foreach_sub_(moved, us)
    else:
        torch._foreach_add_(moved, us, alpha=-lr)
    if narrow:
        torch._foreach_copy_(xs, moved)
