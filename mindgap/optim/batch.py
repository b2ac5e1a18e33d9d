"""What one step of an optimizer works on: the parameters of one group and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from mindgap.base.tensors import widen
from mindgap.optim.settings import plain_number


@dataclass
class Batch:
    """The parameters of one group that have a gradient, as plain real tensors of this process.

    The fields from ``rate`` on are filled under torch.compile only: looked up inside the graph,
    they would be built into it, and a new learning rate would compile it anew.
    """

    group: dict[str, Any]  # the settings
    owners: list[Tensor]  # the parameters as the user gave them: complex, or DTensors
    params: list[Tensor]  # their real numbers in this process, in the same memory
    grads: list[Tensor]  # the gradients' real numbers, likewise
    k: int  # number of the step, from 1
    scale: Tensor | None = None  # 0-dim factor on each gradient, which clips its norm; None for 1
    #: 0-dim: whether ``clip="noise"`` finds that large gradients are noise; None elsewhere.
    noisy: Tensor | None = None
    rate: Tensor | None = None  # the step size, 0-dim float64
    #: states by name, one real tensor per parameter.
    memory: dict[str, list[Tensor]] = field(default_factory=dict)
    #: by name of a state, which parameters had it before this step.
    started: dict[str, list[bool]] = field(default_factory=dict)
    #: pairs (number of gradients seen, indices of the parameters that have seen so many).
    rows: list[tuple[Any, list[int]]] | None = None

    @property
    def compiled(self) -> bool:
        """Whether torch.compile follows this step."""
        return self.rate is not None

    @property
    def sign(self) -> float:
        """Factor on the gradients: −1 to maximize, else 1."""
        return -1.0 if self.group["maximize"] else 1.0

    @property
    def single(self) -> bool:
        """Whether the plain loop was asked for."""
        return self.group["foreach"] is False

    @property
    def lr(self) -> float | Tensor:
        """η as a number, or as a 0-dim tensor that shares memory with the one given."""
        lr = self.group["lr"] if self.rate is None else self.rate
        return lr.reshape(()) if isinstance(lr, Tensor) and lr.dim() else lr

    @property
    def shrink(self) -> float | Tensor:
        """η·w, the part of the parameters that decoupled weight decay takes away."""
        decay = plain_number(self.group["weight_decay"])
        return self.lr * decay if decay else 0.0

    def scaled(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """A block of the gradients in at least float32, times ``scale``, as new tensors. Without a
        scale, gradients that are not 16-bit ones come back themselves.
        """
        widened = [widen(g) for g in gradients]
        if self.scale is None:
            return widened
        return list(torch._foreach_mul(widened, self.scale.to(widened[0].device, widened[0].dtype)))
