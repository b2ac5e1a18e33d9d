"""Exponential moving averages of gradients and of their powers, in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mindgap.base.tensors import widen


def average_(memory: Sequence[Tensor], gradients: Sequence[Tensor], beta: float, sign: float = 1.0) -> None:
    """m ← β·m + (1−β)·s·g.

    Args:
        memory: m, written to.
        gradients: g.
        beta: β in [0, 1).
        sign: s, −1 to ascend.

    Example:
        >>> m = [torch.tensor([1.0])]
        >>> average_(m, [torch.tensor([3.0])], 0.5)
        >>> m
        [tensor([2.])]

    Source:
        acclip, Alg. 1, l. 3; thesis, Alg. 1, l. 3 and Alg. 3, l. 7.
    """
    torch._foreach_mul_(list(memory), beta)
    torch._foreach_add_(list(memory), [widen(g) for g in gradients], alpha=sign * (1.0 - beta))


def average_power_(memory: Sequence[Tensor], gradients: Sequence[Tensor], beta: float, alpha: float) -> None:
    """τ^α ← β·τ^α + (1−β)·|g|^α.

    Args:
        memory: τ^α, written to.
        gradients: g.
        beta: β₂ in [0, 1).
        alpha: α in (0, 2].

    Example:
        >>> v = [torch.tensor([1.0])]
        >>> average_power_(v, [torch.tensor([-3.0])], 0.5, 2.0)
        >>> v
        [tensor([5.])]

    Source:
        thesis, Alg. 1, l. 4; acclip, (ACClip).
    """
    torch._foreach_mul_(list(memory), beta)
    wide = [widen(g) for g in gradients]
    if alpha == 2.0:
        torch._foreach_addcmul_(list(memory), wide, wide, value=1.0 - beta)
        return
    powers = torch._foreach_abs(wide)
    if alpha != 1.0:
        torch._foreach_pow_(powers, alpha)
    torch._foreach_add_(list(memory), powers, alpha=1.0 - beta)
