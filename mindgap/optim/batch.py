"""What one step of an optimizer works on: the parameters of one group and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mindgap.base.tensors import widen
from mindgap.optim.settings import scalar


@dataclass
class Batch:
    """The parameters of one group that have a gradient, as plain real tensors of this process.

    ``scale`` is what clipping the gradient's norm multiplies each gradient by; None for nothing.
    """

    group: dict[str, Any]
    owners: list[Tensor]
    params: list[Tensor]
    grads: list[Tensor]
    k: int
    scale: Tensor | None = None

    @property
    def sign(self) -> float:
        return -1.0 if self.group["maximize"] else 1.0

    @property
    def single(self) -> bool:
        """Whether the plain loop was asked for."""
        return self.group["foreach"] is False

    @property
    def lr(self) -> float | Tensor:
        """η as a number or a 0-dim tensor."""
        return scalar(self.group["lr"])

    @property
    def shrink(self) -> float | Tensor:
        """η·w, the part of the parameters that decoupled weight decay takes away."""
        return self.lr * self.group["weight_decay"] if self.group["weight_decay"] else 0.0

    def scaled(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """A block of the gradients in at least float32, after clipping."""
        wide = [widen(g) for g in gradients]
        if self.scale is None:
            return wide
        return list(torch._foreach_mul(wide, self.scale.to(wide[0].device, wide[0].dtype)))
