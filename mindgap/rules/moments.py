"""Exponential moving averages of gradients and of their powers, in place."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mindgap.base.tensors import widen


def average_(memory: Sequence[Tensor], gradients: Sequence[Tensor], beta: float, sign: float = 1.0) -> None:
    """m ← β·m + (1−β)·s·g (acclip, Alg. 1, l. 3; thesis, Alg. 1, l. 3 and Alg. 3, l. 7).

    Example:
        >>> m = [torch.tensor([1.0])]
        >>> average_(m, [torch.tensor([3.0])], 0.5)
        >>> m
        [tensor([2.])]
    """
    torch._foreach_mul_(list(memory), beta)
    torch._foreach_add_(list(memory), [widen(g) for g in gradients], alpha=sign * (1.0 - beta))


def average_power_(memory: Sequence[Tensor], gradients: Sequence[Tensor], beta: float, alpha: float) -> None:
    """τ^α ← β·τ^α + (1−β)·|g|^α (thesis, Alg. 1, l. 4; acclip, (ACClip)).

    Example:
        >>> v = [torch.tensor([1.0])]
        >>> average_power_(v, [torch.tensor([-3.0])], 0.5, 2.0)
        >>> v
        [tensor([5.])]
    """
    torch._foreach_mul_(list(memory), beta)
    powers = torch._foreach_abs([widen(g) for g in gradients])
    if alpha != 1.0:
        torch._foreach_pow_(powers, alpha)
        # A finite gradient whose power overflows must not make the moment infinite for ever.
        torch._foreach_clamp_max_(powers, torch.finfo(powers[0].dtype).max)
    torch._foreach_add_(list(memory), powers, alpha=1.0 - beta)


def follow_median_(medians: Sequence[Tensor], values: Sequence[Tensor], step: float) -> None:
    """Move each running median of |value| by half a step towards it, in logarithms; zeros move nothing.

    The first value other than zero becomes the median. Where f is the density of log|value| at its median, the
    estimate's variance is step/(8·f) (stochastic approximation with a constant step, to first order).

    Example:
        >>> medians = [torch.tensor([1.0, 1.0, 0.0, 2.0])]
        >>> follow_median_(medians, [torch.tensor([9.0, -0.1, -5.0, 0.0])], 0.2)
        >>> [round(float(m), 3) for m in medians[0]]
        [1.105, 0.905, 5.0, 2.0]
    """
    up, down = math.exp(step / 2.0), math.exp(-step / 2.0)
    for m, v in zip(medians, values):
        size = v.abs()
        moved = torch.where(size > m, m * up, torch.where(size < m, m * down, m))
        m.copy_(torch.where(size == 0, m, torch.where(m == 0, size, moved)))
