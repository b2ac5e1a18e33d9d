"""What a monitor knows of a run, for whoever draws conclusions from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.measure.recorder import Recorder, State, Step
from mindgap.record.schema import Row


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
    norms: dict[int, float] = field(default_factory=dict)  # of the gradients the optimizer got
    rates: dict[int, float] = field(default_factory=dict)  # lr of the optimizer's first group
    moves: dict[int, float] = field(default_factory=dict)  # length of update over parameters
    recent: list[Step] = field(default_factory=list)  # the last steps, with their batches
    states: list[State] = field(default_factory=list)  # kept states, the oldest first
    tensors: list[Tensor] = field(default_factory=list)  # whose values a state's parameters are


def history_of(
    recorder: Recorder,
    loss: Callable[[Any, Any], Tensor],
    batches: list[Any],
    rows: list[Row],
    *,
    steps: int,
    moves: dict[int, float],
) -> History:
    """The history of a run from a monitor's recorder and rows; where both know a step, the
    recorder counts.

    Args:
        loss: the user's own, ``loss(model, batch)``.
        batches: the measuring batches.
        rows: the monitor's readings.
        steps: of the optimizer so far.
        moves: step -> length of its update over that of the parameters.
    """
    recent, states = list(recorder.steps), list(recorder.states)
    incident = recorder.incident
    if incident is not None:  # the recorder may have forgotten its steps and its state since
        recent = [*incident.steps, *recent]
        if incident.state is not None:
            states.append(incident.state)
    history = History(
        recorder.model,
        loss,
        recorder.optimizer,
        batches,
        steps,
        moves=moves,
        recent=sorted({step.number: step for step in recent}.values(), key=lambda s: s.number),
        states=sorted(states, key=lambda state: state.step),
        tensors=recorder.tensors,
    )
    # Rows first, so that what the recorder knows of the same step takes their place.
    for row in rows:
        number = int(row["step"])
        history.norms[number] = float(row["loop_gradient_norm"])
        if "loop_loss" in row:
            history.losses[number] = float(row["loop_loss"])
        if "lr" in row:
            history.rates[number] = float(row["lr"])
    for step in history.recent:
        if step.calls:
            history.losses[step.number] = step.loss
        if step.settings and "lr" in step.settings[0]:
            history.rates[step.number] = float(step.settings[0]["lr"])
        if step.norms is not None:
            history.norms[step.number] = float(torch.linalg.vector_norm(step.norms.double()))
    return history
