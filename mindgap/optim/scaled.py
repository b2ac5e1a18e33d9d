"""The step that GClip and NormalizedSGD share: a direction times one number for each scope of the norm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mindgap.base.tensors import blocks, robust_norm, widen
from mindgap.optim.optimizer import Batch, RuleOptimizer
from mindgap.rules.descend import descend_
from mindgap.rules.moments import average_

#: Norm (0-dim, or one entry a tensor) and a batch's number (τ, b) -> factor of the direction, of the norm's shape.
Coefficient = Callable[[Tensor, Any], Tensor]


def scaled_update(
    optimizer: RuleOptimizer,
    batches: Sequence[Batch],
    coefficient: Coefficient,
    numbers: Sequence[Any],
    *,
    scope: str,
    on_gradient: bool,
) -> list[tuple[Tensor, Tensor]]:
    """x ← x − η·c(‖d‖)·d with d the momentum, or its gradient-first form.

    Args:
        optimizer: whose states and groups (``lr``, ``beta``, ``weight_decay``) are used.
        batches: parameters with gradients.
        coefficient: c.
        numbers: its second argument, one for each batch.
        scope: over which parameters a norm is taken.
        on_gradient: c multiplies the gradient before it enters the momentum, instead of the momentum.

    Returns:
        For each batch the norm and the factor that was applied.
    """
    directions, raws = [], []
    for batch in batches:
        beta = batch.group["beta"]
        if beta and not on_gradient:
            memory = optimizer._states(batch, "momentum")
            for m, g in blocks(memory, batch.grads, single=batch.single):
                average_(m, g, beta, batch.sign)
            directions.append(memory)
            raws.append(optimizer._raw_states(batch, "momentum"))
        else:
            directions.append(batch.grads)
            raws.append(optimizer._raw_grads(batch))
    norms, own, total = scoped_norms(raws, scope)
    factors = [coefficient(norm, number) for norm, number in zip(norms, numbers)]
    scales = []
    for batch, direction, factor in zip(batches, directions, factors):
        group, lr = batch.group, batch.group["lr"]
        beta, shrink = group["beta"], lr * group["weight_decay"] if group["weight_decay"] else 0.0
        if beta and on_gradient:
            memory = optimizer._states(batch, "momentum")
            for c, (m, g) in _with_factor(factor, memory, direction, single=batch.single):
                average_(m, torch._foreach_mul([widen(t) for t in g], c), beta, batch.sign)
            for p, m in blocks(batch.params, memory, single=batch.single):
                descend_(p, torch._foreach_mul(m, 1.0), lr, shrink)
            continue
        # Momentum has the sign already; a bare gradient gets it here, so that nothing is copied to be negated.
        sign = 1.0 if beta else batch.sign
        scale = factor * (lr.to(factor.device) if isinstance(lr, Tensor) else lr)
        scales.append(scale)
        for c, (p, d) in _with_factor(scale, batch.params, direction, single=batch.single):
            updates = torch._foreach_mul([widen(t) for t in d], c if sign > 0 else -c)
            descend_(p, updates, 1.0, shrink)
    optimizer._note(direction=total)
    if len(scales) == len(batches):
        optimizer._note(update=list(zip(scales, own)))
    return list(zip(norms, factors))


def _with_factor(
    factor: Tensor, *lists: Sequence[Tensor], single: bool
) -> Iterator[tuple[Tensor, tuple[list[Tensor], ...]]]:
    """Blocks together with their factor in the block's dtype: one factor for all, or one a tensor."""
    if factor.dim() == 0:
        parts = ((factor, block) for block in blocks(*lists, single=single))
    else:
        parts = ((c, block) for c, *row in zip(factor, *lists) for block in blocks(*([t] for t in row), single=single))
    for c, block in parts:
        yield c.to(block[0][0].device, widen(block[0][0][:0] if block[0][0].dim() else block[0][0]).dtype), block


def scoped_norms(raws: Sequence[Sequence[Tensor]], scope: str) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """For each list the norm that counts for it (0-dim, or one entry a tensor), its own norm, and the norm of all.

    Example:
        >>> norms, own, total = scoped_norms([[torch.tensor([3.0])], [torch.tensor([4.0])]], "all")
        >>> [float(n) for n in norms], [float(n) for n in own], float(total)
        ([5.0, 5.0], [3.0, 4.0], 5.0)
        >>> [float(n) for n in scoped_norms([[torch.tensor([3.0])], [torch.tensor([4.0])]], "group")[0]]
        [3.0, 4.0]
    """
    if scope == "tensor":
        own = [torch.stack([robust_norm([t], wide=True) for t in raw]) for raw in raws]
    else:
        own = [robust_norm(raw, wide=True) for raw in raws]
    single = len(own) == 1 and scope != "tensor"
    total = own[0] if single else robust_norm([n.to(own[0].device) for n in own])
    return ([total] * len(own) if scope == "all" else own), own, total
