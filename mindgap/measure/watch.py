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
#: If the largest parameter grew by this factor in a few dozen steps, the updates threw it away.
THROWN = 100.0
#: The parameters' own size is read with every so-manyth reading of the gradients, at most.
LOOKS = 4
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
        is in weight; a rare batch is the likely cause: its gradient alone is large'
    """

    def __init__(self, model: nn.Module, nonfinite: str = "note") -> None:
        named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        self._names, self._parameters = [n for n, _ in named], [p for _, p in named]
        self.raises = nonfinite == "raise"
        self._norms: deque[float] = deque(maxlen=HISTORY)
        self._waiting: list[_Waiting] = []
        #: (step, modulus of the largest entry of each parameter before it), the last few, read only
        #: when needed.
        self._largest: deque[tuple[int, Tensor]] = deque(maxlen=3)
        self._look_next = self._readings = 0
        self._bad = 0  # steps in a row, up to now, whose gradient was not finite
        self._episodes = 0  # how often that began
        self._step = 0
        self._batch: Any = None
        self._loss_told = False
        self._loss: Any = math.nan
        self._last_update = (-1, math.nan)  # (step, its update over the parameters)
        self.gradient_norm = math.nan
        self.loss = math.nan
        #: gradient norm of each parameter at the newest step; None where it was not read
        self.norms: Tensor | None = None
        self._read: list[tuple[int, float]] = []

    def take_read(self) -> list[tuple[int, float]]:
        """Steps and gradient norms that were read since the last call."""
        read, self._read = self._read, []
        return read

    def observe(self, loss: Any, batch: Any = None) -> None:
        """The loss of the loop's present batch, and the batch's index where the loop knows it."""
        self._batch = batch
        self._loss = loss.detach() if isinstance(loss, Tensor) and loss.requires_grad else loss
        self._loss_told = True

    def note_update(self, relative: float) -> None:
        """The last update's length over that of the parameters."""
        self._last_update = (self._step - 1, relative)

    def before_step(self, step: int | None = None) -> list[str]:
        """Read the gradients that the step is about to use; sentences about what is unusual.

        Args:
            step: its number, where not every step is read; else the one after the last.

        Raises:
            NonFiniteError: a gradient that is not finite, with ``nonfinite="raise"``.
        """
        held = [(i, p.grad) for i, p in enumerate(self._parameters) if p.grad is not None]
        self.norms = None
        if step is not None:
            self._step = step
        if held:
            norms = _stacked([g.coalesce().values() if g.is_sparse else g for _, g in held])
            if len(held) < len(self._parameters):
                each, norms = norms, torch.zeros(len(self._parameters), device=norms.device)
                norms[torch.tensor([i for i, _ in held], device=each.device)] = each
            self._waiting.append(_Waiting(self._step, self._batch, self._loss, norms))
            self.norms = norms
            self._readings += 1
            if self._step >= self._look_next and self._readings % LOOKS == 1:
                self._look_next = self._step + FLUSH
                own = [p.detach() for p in self._full()]
                self._largest.append((self._step, _stacked(own, math.inf)))
        self._step += 1
        on_cpu = not held or held[0][1].device.type == "cpu"
        if on_cpu or self.raises:
            return self.flush()
        return self.flush(spare=1) if len(self._waiting) > FLUSH else []

    def flush(self, spare: int = 0) -> list[str]:
        """Look at the norms that wait to be read, except the newest ``spare``, which a GPU may not
        have computed yet.
        """
        count = max(0, len(self._waiting) - spare)
        waiting, self._waiting = self._waiting[:count], self._waiting[count:]
        events = []
        for waits in waiting:
            self.loss, norms = waits.read()
            self.gradient_norm = math.sqrt(sum(norm * norm for norm in norms))
            self._read.append((waits.step, self.gradient_norm))
            if sentence := self._unusual(waits.step, waits.batch, norms):
                events.append(sentence)
            if math.isfinite(self.gradient_norm):
                self._norms.append(self.gradient_norm)
        return events

    def _unusual(self, step: int, batch: Any, norms: list[float]) -> str:
        """A sentence on gradients that are not finite or far above the running median; empty where
        all is usual.

        Args:
            batch: what names the batch; None where the loop does not say.
            norms: gradient norm of each parameter.
        """
        where = f"step {step}" + (f", batch {batch}" if batch is not None else "")
        broken = [i for i, norm in enumerate(norms) if not math.isfinite(norm)]
        if broken:
            return self._not_finite(where, step, broken, len(norms))
        lasted, self._bad = self._bad, 0
        if lasted > 1 and _is_told(self._episodes):
            return f"{where}: the gradient is finite again after {lasted} steps in which it was not"
        total = self.gradient_norm
        if len(self._norms) < LEAST_HISTORY or total <= SPIKE * max(self._norms):
            return ""
        middle, largest = self._usual()
        top = max(range(len(norms)), key=norms.__getitem__)
        share = (norms[top] / total) ** 2
        times = f"{total / middle:.3g} times" if middle else "above"
        return (
            f"{where}: the gradient norm {total:.3g} is {times} the running median {middle:.3g} "
            f"(largest {largest:.3g}); {100 * share:.0f} % of it is in {self._names[top]}; "
            f"{self._cause_of_spike(step)}"
        )

    def _not_finite(self, where: str, step: int, broken: list[int], count: int) -> str:
        """A sentence on gradients that are not finite; empty where one was said lately.

        Args:
            where: step and batch in words.
            broken: places of the parameters, of ``count``.

        Raises:
            NonFiniteError: with ``nonfinite="raise"``.
        """
        self._bad += 1
        self._episodes += self._bad == 1
        if not self.raises and not (self._bad == 1 and _is_told(self._episodes)):
            return ""
        named = ", ".join(self._names[i] for i in broken[:3])
        named += f" and {len(broken) - 3} more" if len(broken) > 3 else ""
        times = f" (this began for the {self._episodes}th time)" if self._episodes > 3 else ""
        usual = "there is no earlier gradient to compare with"
        if self._norms:
            middle, largest = self._usual()
            usual = f"the gradient norms so far had median {middle:.3g}, largest {largest:.3g}"
        sentence = (
            f"{where}: the gradient of {named} is not finite ({len(broken)} of {count} "
            f"parameters){times}; {usual}; {self._cause_of_nan(step)}"
        )
        if self.raises:
            raise NonFiniteError(sentence)
        return sentence

    def _usual(self) -> tuple[float, float]:
        """Median and largest of the gradient norms so far."""
        ordered = sorted(self._norms)
        return ordered[len(ordered) // 2], ordered[-1]

    def _cause_of_nan(self, step: int) -> str:
        """The likeliest cause of gradients that are not finite, in words, from the sizes seen
        before.
        """
        known = [(k, float(peaks.max())) for k, peaks in self._largest if k <= step]
        # On a GPU the norms are read some steps later, when the parameters have moved on.
        if step == self._step - 1:
            known.append((step, max(float(p.detach().abs().max()) for p in self._full())))
        if any(not math.isfinite(peak) for _, peak in known):
            return "an earlier step is the likely cause: a parameter itself is no longer finite"
        if len(known) > 1 and known[-1][1] > THROWN * known[0][1] > 0:
            return (
                "the updates before are the likely cause: they took the largest parameter from "
                f"{known[0][1]:.3g} at step {known[0][0]} to {known[-1][1]:.3g}; lower the step"
            )
        before = self._update_before(step)
        if before > 1.0:
            return (
                "the update before is the likely cause: it moved the parameters by "
                f"{100 * before:.0f} % of their length; lower the step"
            )
        if self._norms and self._norms[-1] > SPIKE * self._usual()[0]:
            return "divergence is the likely cause: the gradients grew in the steps before"
        if math.isfinite(self.loss):
            return "an overflow in the backward pass is the likely cause: the loss is finite"
        seen = "every parameter is finite"
        if known and known[-1][0] < step:
            seen = f"every parameter was finite at step {known[-1][0]}"
        what = "the loss of this batch" if self._loss_told else "this batch or the forward pass"
        return f"{what} is the likely cause: {seen}"

    def _full(self) -> list[nn.Parameter]:
        """The parameters that have entries."""
        return [p for p in self._parameters if p.numel()]

    def _update_before(self, step: int) -> float:
        """Relative length of the update just before a step; NaN where it was not read."""
        made, relative = self._last_update
        return relative if made == step - 1 else math.nan

    def _cause_of_spike(self, step: int) -> str:
        """The likeliest cause of a spike, in words."""
        recent = list(self._norms)[-3:]
        grew = len(recent) == 3 and recent[-1] > 1.5 * recent[0] > 0
        if grew and recent[-1] > 2 * self._usual()[0]:
            return (
                "divergence is the likely cause: the gradients grew in the steps before; lower "
                "the step"
            )
        if self._update_before(step) > 0.1:
            return (
                "the update before is the likely cause: it moved the parameters by "
                f"{100 * self._update_before(step):.0f} % of their length"
            )
        return "a rare batch is the likely cause: its gradient alone is large"


class _Waiting:
    """Loss and gradient norms of a step. Those of a GPU are on their way to the CPU, so that
    reading them later does not wait for the steps queued since.
    """

    __slots__ = ("_event", "_loss", "_norms", "batch", "step")

    def __init__(self, step: int, batch: Any, loss: Any, norms: Tensor) -> None:
        self.step, self.batch, self._loss, self._norms = step, batch, loss, norms
        self._event: Any = None
        if norms.is_cuda:
            if isinstance(loss, Tensor):
                seen = loss.detach().reshape(-1)[:1].to(norms)
                self._loss, norms = None, torch.cat([norms, seen])
            self._norms = norms.to("cpu", non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record(torch.cuda.current_stream(norms.device))

    def read(self) -> tuple[float, list[float]]:
        """Loss and norms."""
        if self._event is not None:
            self._event.synchronize()
        values = self._norms.tolist()
        return (values.pop() if self._loss is None else float(self._loss)), values


def _stacked(tensors: list[Tensor], order: float = 2.0) -> Tensor:
    """The norm of each tensor, in float32 on the first one's device."""
    norms = list(torch._foreach_norm(tensors, order))
    first = norms[0]
    if any(n.dtype != torch.float32 or n.device != first.device for n in norms):
        norms = [n.float().to(first.device) for n in norms]
    return torch.stack(norms).detach()


def _is_told(times: int) -> bool:
    """Whether a repeated event gets a sentence: the first three times, then the 10th, 100th, ...

    Example:
        >>> [times for times in range(1, 200) if _is_told(times)]
        [1, 2, 3, 10, 100]
    """
    return times <= 3 or 10 ** round(math.log10(times)) == times
