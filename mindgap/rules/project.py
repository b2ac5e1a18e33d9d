"""Euclidean projections of a list of tensors, taken as one vector, onto simple sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mindgap.base.check import fail, number, positive
from mindgap.base.tensors import blocks, local, robust_norm
from mindgap.rules.steps import clip_coefficient


@dataclass(frozen=True)
class Ball:
    """Projection onto {x : ‖x‖ ≤ radius}, the norm taken over all parameters together (thesis, (proj-GClip)).

    Example:
        >>> x = [torch.tensor([3.0]), torch.tensor([4.0])]
        >>> Ball(1.0)(x)
        >>> x
        [tensor([0.6000]), tensor([0.8000])]
    """

    radius: float

    def __post_init__(self) -> None:
        positive("radius", self.radius)

    def __call__(self, parameters: Sequence[Tensor]) -> None:
        factor = clip_coefficient(robust_norm(parameters, wide=True), float(self.radius))
        for (block,) in blocks([local(p) for p in parameters]):
            torch._foreach_mul_(block, factor.to(block[0].device, block[0].dtype))


@dataclass(frozen=True)
class Box:
    """Projection onto {x : low ≤ x_i ≤ high for all i}.

    Example:
        >>> x = [torch.tensor([3.0, -4.0])]
        >>> Box(-1.0, 2.0)(x)
        >>> x
        [tensor([ 2., -1.])]
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not number("low", self.low) <= number("high", self.high):
            fail("low", f"must not exceed high = {self.high!r}", self.low)

    def __call__(self, parameters: Sequence[Tensor]) -> None:
        for (block,) in blocks([local(p) for p in parameters]):
            torch._foreach_clamp_min_(block, float(self.low))
            torch._foreach_clamp_max_(block, float(self.high))
