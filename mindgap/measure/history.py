"""What a monitor knows of a run, for whoever draws conclusions from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.measure.recorder import State, Step


@dataclass
class History:
    """The records of a monitored run; every mapping goes from steps to numbers, and holds the steps
    that were read.
    """

    model: nn.Module
    loss: Callable[[Any, Any], Tensor]  # the user's own, without the monitor's notes
    optimizer: torch.optim.Optimizer
    batches: list[Any]  # the measuring batches
    steps: int  # of the optimizer so far
    losses: dict[int, float] = field(default_factory=dict)
    norms: dict[int, float] = field(default_factory=dict)  # gradients, as the optimizer got them
    rates: dict[int, float] = field(default_factory=dict)  # of the optimizer's first group
    moves: dict[int, float] = field(default_factory=dict)  # update over parameters
    recent: list[Step] = field(default_factory=list)  # the last steps, with their batches
    states: list[State] = field(default_factory=list)  # kept states, the oldest first
    tensors: list[Tensor] = field(default_factory=list)  # whose values a state's parameters are
