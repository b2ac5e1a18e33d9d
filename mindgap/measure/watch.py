"""What the monitor reads at every step of somebody's loop: loss, gradient norm, and what was
unusual about them.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.base.tensors import robust_norm
from mindgap.measure.gradients import NonFiniteError

#: Steps whose gradient norms form the running range.
HISTORY = 200
#: Steps after which spikes are looked for.
LEAST_HISTORY = 20
#: A gradient is a spike when it exceeds the largest of the running range by this factor.
SPIKE = 5.0
#: If the largest parameter grew by this factor in a few dozen steps, the updates threw it away.
THROWN = 100.0
#: An update longer than this share of the parameters is called the cause of a spike, and of numbers
#: that are not finite.
LONG_FOR_SPIKE, LONG_FOR_NAN = 0.1, 1.0
#: The parameters' own largest entries are read at every fourth reading of the gradients, or less
#: often.
READINGS_PER_LOOK = 4
#: On a GPU norms are read together, once per so many steps, because each reading waits for the
#: device. As many steps at least lie between two readings of the parameters' largest entries.
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

    # Fields that many methods use: ``_unread``, norms that are not read yet; ``_recent_norms``, the
    # running range; ``_largest_entries``, those of the parameters before some steps, with the step;
    # ``_steps_not_finite``, steps in a row, up to now, without a finite gradient, and
    # ``_times_not_finite``, how often such a row began; ``_step``, the number of the coming step.

    def __init__(self, model: nn.Module, nonfinite: str = "note") -> None:
        named = list(model.named_parameters())  # frozen ones too: they may be unfrozen later
        self._names, self._parameters = [n for n, _ in named], [p for _, p in named]
        self.raises = nonfinite == "raise"
        self._recent_norms: deque[float] = deque(maxlen=HISTORY)  # finite ones, the running range
        self._unread: list[_UnreadNorms] = []
        #: (step, modulus of the largest entry of each parameter before it), the last few; on a GPU
        #: they are not waited for unless a sentence needs them.
        self._largest_entries: deque[tuple[int, Tensor]] = deque(maxlen=3)
        # The next step at which these may be read, and how often gradients were read so far.
        self._next_look = self._readings = 0
        # Steps in a row, up to now, whose gradient was not finite; and how often such a row began.
        self._steps_not_finite = self._times_not_finite = 0
        # The number of the coming step, and whether the loop ever told a loss.
        self._step, self._loss_is_observed = 0, False
        self._batch: Any = None  # what names the present batch
        self._loss: Any = math.nan  # its loss, a number or a tensor
        self._last_update = (-1, math.nan)  # (step, length of its update over the parameters)
        self.loss = self.gradient_norm = math.nan  # of the newest step that was read
        #: gradient norm of each parameter at the newest step; None where it was not read
        self.norms: Tensor | None = None
        self._norms_read: list[tuple[int, float]] = []  # what ``pop_norms_read`` hands on

    def pop_norms_read(self) -> list[tuple[int, float]]:
        """(step, gradient norm) of each step that was read since the last call of this method."""
        norms_read, self._norms_read = self._norms_read, []
        return norms_read

    def observe(self, loss: Any, batch: Any = None) -> None:
        """Note the loss of the loop's present batch, to be read with the next step.

        Args:
            loss: a number, or a tensor, which is read later.
            batch: what names the batch, such as its index; None where the loop does not say.
        """
        self._batch = batch
        self._loss = loss.detach() if isinstance(loss, Tensor) and loss.requires_grad else loss
        self._loss_is_observed = True

    def note_update(self, relative: float) -> None:
        """Note the length of the newest step's update over that of the parameters."""
        self._last_update = (self._step - 1, relative)

    def before_step(self, step: int | None = None, optimizer: Any = None) -> list[str]:
        """Compute the norms of the gradients that the step is about to use, and read those that are
        ready; on a GPU these are norms of some steps before.

        Args:
            step: its number, where not every step is read; None for the one after the last.
            optimizer: where a ``GradScaler`` leaves the scale to it (fused kernels), the norms are
                divided by that, and are zero at a step that the scaler skips.

        Returns:
            Sentences about what is unusual in the norms that were read.

        Raises:
            NonFiniteError: a gradient that is not finite, with ``nonfinite="raise"``.
        """
        present = [(i, p.grad) for i, p in enumerate(self._parameters) if p.grad is not None]
        self.norms = None
        if step is not None:
            self._step = step
        if present:
            gradients = [g.coalesce().values() if g.is_sparse else g for _, g in present]
            norms = _norm_of_each(gradients)
            if norms.device.type == "cpu" and not math.isfinite(float(norms.sum())):
                # Squares overflow before their root does.
                norms = torch.stack([robust_norm([g], wide=True) for g in gradients])
            norms = _without_loss_scale(norms, optimizer)
            if len(present) < len(self._parameters):  # zero for parameters without a gradient
                places = torch.tensor([i for i, _ in present], device=norms.device)
                norms = norms.new_zeros(len(self._parameters)).index_copy_(0, places, norms)
            self._unread.append(_UnreadNorms(self._step, self._batch, self._loss, norms))
            self.norms = norms
            self._readings += 1
            # Now and then the parameters' largest entries are noted, for the cause of a NaN.
            if self._step >= self._next_look and self._readings % READINGS_PER_LOOK == 1:
                self._next_look = self._step + FLUSH
                tensors = [p.detach() for p in self._nonempty_parameters()]
                self._largest_entries.append((self._step, _norm_of_each(tensors, math.inf)))
        self._step += 1
        on_cpu = not present or present[0][1].device.type == "cpu"
        if on_cpu or self.raises:
            return self.flush()
        return self.flush(spare=1) if len(self._unread) > FLUSH else []

    def flush(self, spare: int = 0) -> list[str]:
        """Read the norms that wait. Afterwards ``loss`` and ``gradient_norm`` are those of the last
        step read.

        Args:
            spare: how many of the newest are left waiting, because a GPU may not have computed them
                yet.

        Returns:
            Sentences about what is unusual in the norms that were read.

        Raises:
            NonFiniteError: a gradient that is not finite, with ``nonfinite="raise"``.
        """
        count = max(0, len(self._unread) - spare)
        ready, self._unread = self._unread[:count], self._unread[count:]
        events = []
        for unread in ready:
            self.loss, norms = unread.read()
            self.gradient_norm = math.hypot(*norms)
            self._norms_read.append((unread.step, self.gradient_norm))
            sentence = self._describe_unusual(unread.step, unread.batch, norms)
            if sentence:
                events.append(sentence)
            if math.isfinite(self.gradient_norm):
                self._recent_norms.append(self.gradient_norm)
        return events

    def _describe_unusual(self, step: int, batch: Any, norms: list[float]) -> str:
        """A sentence on the gradients of a step that are not finite, are finite again, or exceed
        the running range; empty where all is usual, or after many sentences of the same kind.
        Counts the steps that are not finite.

        Args:
            batch: what names the batch; None where the loop does not say.
            norms: gradient norm of each parameter.
        """
        place = f"step {step}" + (f", batch {batch}" if batch is not None else "")
        not_finite = [i for i, norm in enumerate(norms) if not math.isfinite(norm)]
        if not_finite:
            count = sum(p.requires_grad for p in self._parameters)
            return self._describe_not_finite(place, step, not_finite, count)
        # The gradient is finite here; ``steps`` before it were not.
        steps, self._steps_not_finite = self._steps_not_finite, 0
        if steps > 1 and _deserves_sentence(self._times_not_finite):
            return f"{place}: the gradient is finite again after {steps} steps in which it was not"
        norm = self.gradient_norm
        if len(self._recent_norms) < LEAST_HISTORY or norm <= SPIKE * max(self._recent_norms):
            return ""
        median, largest = self._median_and_largest()
        loudest = norms.index(max(norms))
        share = (norms[loudest] / norm) ** 2  # of the squared norm
        times = f"{norm / median:.3g} times" if median else "above"
        return (
            f"{place}: the gradient norm {norm:.3g} is {times} the running median {median:.3g} "
            f"(largest {largest:.3g}); {100 * share:.0f} % of it is in {self._names[loudest]}; "
            f"{self._cause_of_spike(step)}"
        )

    def _describe_not_finite(self, place: str, step: int, not_finite: list[int], count: int) -> str:
        """A sentence on gradients that are not finite; empty in the steps right after such a one,
        and after many sentences. Counts the steps in a row, and how often such a row began.

        Args:
            place: step and batch in words.
            not_finite: places of the parameters whose gradients are not finite.
            count: number of all parameters.

        Raises:
            NonFiniteError: with ``nonfinite="raise"``.
        """
        self._steps_not_finite += 1
        begins = self._steps_not_finite == 1
        self._times_not_finite += int(begins)
        if not self.raises and not (begins and _deserves_sentence(self._times_not_finite)):
            return ""
        # Three names are enough for a sentence.
        names = ", ".join(self._names[i] for i in not_finite[:3])
        names += f" and {len(not_finite) - 3} more" if len(not_finite) > 3 else ""
        times = self._times_not_finite
        again = f" (this began for the {times}th time)" if times > 3 else ""
        history = "there is no earlier gradient to compare with"
        if self._recent_norms:
            median, largest = self._median_and_largest()
            history = f"the gradient norms so far had median {median:.3g}, largest {largest:.3g}"
        sentence = (
            f"{place}: the gradient of {names} is not finite ({len(not_finite)} of {count} "
            f"parameters){again}; {history}; {self._cause_of_nan(step)}"
        )
        if self.raises:
            raise NonFiniteError(sentence)
        return sentence

    def _median_and_largest(self) -> tuple[float, float]:
        """Median and largest of the gradient norms so far."""
        ordered = sorted(self._recent_norms)
        return ordered[len(ordered) // 2], ordered[-1]

    def _cause_of_nan(self, step: int) -> str:
        """The likeliest cause of gradients that are not finite at a step, in words. In order:
        parameters that are not finite, growth of the parameters, a long update before, growth of
        the gradients before, the backward pass (where the loss is finite), this batch.
        """
        #: (step, largest modulus of all parameters before it)
        peaks = [
            (number, float(entries.max()))
            for number, entries in self._largest_entries
            if number <= step
        ]
        # Only on a CPU the parameters are still those of the step: on a GPU norms are read later.
        if step == self._step - 1:
            largest = [float(p.detach().abs().max()) for p in self._nonempty_parameters()]
            # Python's maximum would lose a NaN that is not the first.
            peaks.append((step, max(largest) if all(map(math.isfinite, largest)) else math.nan))
        if any(not math.isfinite(peak) for _, peak in peaks):
            return "an earlier step is the likely cause: a parameter itself is no longer finite"
        last_step = -1  # before all, where no parameters were read
        if peaks:
            (first_step, first_peak), (last_step, last_peak) = peaks[0], peaks[-1]
            if last_peak > THROWN * first_peak > 0:
                return (
                    "the updates before are the likely cause: they took the largest parameter from "
                    f"{first_peak:.3g} at step {first_step} to {last_peak:.3g}; lower the step"
                )
        last_update = self._update_before(step)
        if last_update > LONG_FOR_NAN:
            return (
                "the update before is the likely cause: it moved the parameters by "
                f"{100 * last_update:.0f} % of their length; lower the step"
            )
        if self._recent_norms and self._recent_norms[-1] > SPIKE * self._median_and_largest()[0]:
            return "divergence is the likely cause: the gradients grew in the steps before"
        if math.isfinite(self.loss):
            return "an overflow in the backward pass is the likely cause: the loss is finite"
        finite = "every parameter is finite"
        if peaks and last_step < step:
            finite = f"every parameter was finite at step {last_step}"
        suspect = "this batch or the forward pass"
        if self._loss_is_observed:
            suspect = "the loss of this batch"
        return f"{suspect} is the likely cause: {finite}"

    def _nonempty_parameters(self) -> list[nn.Parameter]:
        """The parameters that take gradients and have entries."""
        return [p for p in self._parameters if p.requires_grad and p.numel()]

    def _update_before(self, step: int) -> float:
        """Relative length of the update just before a step; NaN where it was not read."""
        update_step, relative = self._last_update
        return relative if update_step == step - 1 else math.nan

    def _cause_of_spike(self, step: int) -> str:
        """The likeliest cause of a spike of the gradient norm at a step, in words. In order: growth
        of the norms before (the last is above 1.5 times the one two before it, and above twice the
        running median), a long update before, else a rare batch.
        """
        # There are ``LEAST_HISTORY`` norms at least, else no spike would have been noticed.
        last_but_two, _, last = list(self._recent_norms)[-3:]
        median, _ = self._median_and_largest()
        if last > 1.5 * last_but_two > 0 and last > 2 * median:
            return (
                "divergence is the likely cause: the gradients grew in the steps before; lower "
                "the step"
            )
        if self._update_before(step) > LONG_FOR_SPIKE:
            return (
                "the update before is the likely cause: it moved the parameters by "
                f"{100 * self._update_before(step):.0f} % of their length"
            )
        return "a rare batch is the likely cause: its gradient alone is large"


class _UnreadNorms:
    """Loss and gradient norms of a step. Those of a GPU are on their way to the CPU, so that
    reading them later does not wait for the steps queued since.

    Args:
        batch: what names the batch; None where the loop does not say.
        loss: a number, or a tensor on any device.
        norms: of the gradient of each parameter, shape (parameters,).
    """

    __slots__ = ("_copied", "_loss", "_norms", "batch", "step")

    def __init__(self, step: int, batch: Any, loss: Any, norms: Tensor) -> None:
        self.step, self.batch, self._loss, self._norms = step, batch, loss, norms
        self._copied: Any = None  # event of the device at which the copy is done
        if norms.is_cuda:
            if isinstance(loss, Tensor):  # it travels behind the norms, in one copy
                loss_on_device = loss.detach().reshape(-1)[:1].to(norms)
                self._loss, norms = None, torch.cat([norms, loss_on_device])
            self._norms = norms.to("cpu", non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(norms.device))

    def read(self) -> tuple[float, list[float]]:
        """The loss and the gradient norm of each parameter; a GPU may have to be waited for."""
        if self._copied is not None:
            self._copied.synchronize()
        values = self._norms.tolist()
        if self._loss is None:  # it was copied from the device as the last of the norms
            return values[-1], values[:-1]
        return float(self._loss), values


def _norm_of_each(tensors: list[Tensor], order: float = 2.0) -> Tensor:
    """The norm of each tensor, in at least float32 on the first one's device, shape (tensors,).

    Args:
        order: of the norm: 2 for Euclidean, infinity for the largest modulus.
    """
    # A norm of float16 entries is infinite from 65,520 on if it is summed in their own precision.
    kinds = {t.dtype for t in tensors}
    narrow = kinds <= {torch.float16, torch.bfloat16, torch.float32} and kinds != {torch.float32}
    norms = list(torch._foreach_norm(tensors, order, dtype=torch.float32 if narrow else None))
    first = norms[0]
    if any(n.dtype != torch.float32 or n.device != first.device for n in norms):
        norms = [n.double().to(first.device) for n in norms]
    return torch.stack(norms).detach()


def _without_loss_scale(norms: Tensor, optimizer: Any) -> Tensor:
    """Norms of gradients divided by the loss scale that a ``GradScaler`` has left to the optimizer,
    if it has; zeros where it found entries that are not finite, because the step is then skipped.
    """
    scale, found = getattr(optimizer, "grad_scale", None), getattr(optimizer, "found_inf", None)
    if scale is not None:
        norms = norms / scale.to(norms.device)
    if found is not None:
        norms = torch.where(found.to(norms.device) > 0, torch.zeros_like(norms), norms)
    return norms


def _deserves_sentence(times: int) -> bool:
    """Whether a repeated event gets a sentence: the first three times, then the 10th, 100th, ...

    Example:
        >>> [times for times in range(1, 200) if _deserves_sentence(times)]
        [1, 2, 3, 10, 100]
    """
    return times <= 3 or 10 ** round(math.log10(times)) == times
