"""What the monitor reads at every step of somebody's loop: loss, gradient norm, and what was
unusual about them.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.measure.gradients import NonFiniteError

#: Steps whose gradient norms form the running range.
HISTORY = 200
#: Steps after which spikes are looked for.
LEAST_HISTORY = 20
#: A gradient is a spike when it exceeds the largest of the running range by this factor.
SPIKE = 5.0
#: On a GPU norms are read together, once per so many steps: each reading waits for the device.
FLUSH = 10


class LoopWatch:
    """Loss and gradient norm of every step, and sentences about spikes and numbers that are not
    finite.

    Args:
        model: whose gradients are read; its parameters' names appear in the sentences.
        nonfinite: ``"note"`` writes a sentence, ``"raise"`` stops before the optimizer's step.

    Example:
        >>> model = nn.Linear(1, 1, bias=False)
        >>> watch = LoopWatch(model)
        >>> for size in [1.0] * 30 + [100.0]:
        ...     model.weight.grad = torch.full((1, 1), size)
        ...     events = watch.before_step()
        >>> events[0]
        'step 30: the gradient norm 100 is 100 times the running median 1 (largest 1); 100 % of it
        in weight; likely a rare batch: its gradient alone is large'
    """

    def __init__(self, model: nn.Module, nonfinite: str = "note") -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._names, self._parameters = [n for n, _ in named], [p for _, p in named]
        self._nonfinite = nonfinite
        self._norms: deque[float] = deque(maxlen=HISTORY)
        self._waiting: list[tuple[int, Any, float, Tensor]] = []
        self._step, self._batch, self._losses = 0, -1, 0
        self._loss: Any = math.nan
        self._last_update = math.nan
        self.gradient_norm = math.nan
        self.loss = math.nan

    def observe(self, loss: Any, batch: Any = None) -> None:
        """The loss of the loop's present batch, and the batch's index where the loop knows it."""
        self._batch = self._batch + 1 if batch is None else batch
        self._losses += 1
        self._loss = loss.detach() if isinstance(loss, Tensor) else loss

    def note_update(self, relative: float) -> None:
        """The last update's length over that of the parameters."""
        self._last_update = relative

    def before_step(self) -> list[str]:
        """Read the gradients that the step is about to use; sentences about what is unusual.

        Raises:
            NonFiniteError: a gradient that is not finite, with ``nonfinite="raise"``.
        """
        held = [(i, p.grad) for i, p in enumerate(self._parameters) if p.grad is not None]
        if held:
            plain = [g.coalesce().values() if g.is_sparse else g for _, g in held]
            each = torch.stack(
                [n.float().to(held[0][1].device) for n in torch._foreach_norm(plain)]
            )
            norms = torch.zeros(len(self._parameters), device=each.device)
            norms[torch.tensor([i for i, _ in held], device=each.device)] = each
            batch = self._batch if self._losses else self._step
            self._waiting.append((self._step, batch, self._loss, norms.detach()))
        self._step += 1
        on_cpu = not held or held[0][1].device.type == "cpu"
        if on_cpu or self._nonfinite == "raise" or len(self._waiting) >= FLUSH:
            return self.flush()
        return []

    def flush(self) -> list[str]:
        """Look at the norms that wait to be read."""
        waiting, self._waiting = self._waiting, []
        events = []
        for step, batch, loss, norms in waiting:
            values = norms.tolist()
            self.loss = float(loss)
            self.gradient_norm = math.sqrt(sum(v * v for v in values))
            if sentence := self._unusual(step, batch, values):
                events.append(sentence)
            if math.isfinite(self.gradient_norm):
                self._norms.append(self.gradient_norm)
        return events

    def _unusual(self, step: int, batch: Any, values: list[float]) -> str:
        where = f"step {step}" + (f", batch {batch}" if batch != step else "")
        odd = [i for i, v in enumerate(values) if not math.isfinite(v)]
        if odd:
            named = ", ".join(self._names[i] for i in odd[:3]) + (
                f" and {len(odd) - 3} more" if len(odd) > 3 else ""
            )
            sentence = (
                f"{where}: the gradient of {named} is not finite ({len(odd)} of {len(values)} "
                "parameters); "
                f"{self._range()}; {self._cause_of_nan(odd, values)}"
            )
            if self._nonfinite == "raise":
                raise NonFiniteError(sentence)
            return sentence
        ordered = sorted(self._norms)
        if len(ordered) < LEAST_HISTORY or self.gradient_norm <= SPIKE * ordered[-1]:
            return ""
        middle, top = ordered[len(ordered) // 2], max(range(len(values)), key=values.__getitem__)
        share = (values[top] / self.gradient_norm) ** 2
        times = (
            f"{self.gradient_norm / middle:.3g} times the running median"
            if middle
            else "above the running median"
        )
        return (
            f"{where}: the gradient norm {self.gradient_norm:.3g} is {times} {middle:.3g} (largest "
            f"{ordered[-1]:.3g}); "
            f"{share:.0%} of it in {self._names[top]}; {self._cause_of_spike()}".replace("%", " %")
        )

    def _range(self) -> str:
        if not self._norms:
            return "no earlier gradient to compare with"
        ordered = sorted(self._norms)
        return (
            f"gradient norms so far: median {ordered[len(ordered) // 2]:.3g}, largest "
            f"{ordered[-1]:.3g}"
        )

    def _cause_of_nan(self, odd: list[int], values: list[float]) -> str:
        if any(not bool(self._parameters[i].detach().isfinite().all()) for i in range(len(values))):
            return "likely an earlier step: a parameter itself is no longer finite"
        if not math.isnan(self.loss) and math.isfinite(self.loss):
            return "likely an overflow in the backward pass: the loss is finite"
        if self._norms and self._norms[-1] > SPIKE * sorted(self._norms)[len(self._norms) // 2]:
            return "likely divergence: the gradients grew in the steps before"
        if len(odd) == len(values) and math.isnan(self.loss) and self._losses:
            return "likely the loss of this batch: it is not finite itself"
        return "likely this batch or the forward pass: every parameter is finite"

    def _cause_of_spike(self) -> str:
        recent = list(self._norms)[-3:]
        middle = sorted(self._norms)[len(self._norms) // 2]
        if len(recent) == 3 and recent[-1] > 1.5 * recent[0] > 0 and recent[-1] > 2 * middle:
            return "likely divergence: the gradients grew in the steps before; lower the step"
        if self._last_update > 0.1:
            return (
                f"likely the update before: it moved the parameters by {self._last_update:.0%} of "
                "their length"
            )
        return "likely a rare batch: its gradient alone is large"
