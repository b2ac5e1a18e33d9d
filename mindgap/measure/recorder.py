"""The flight recorder of a monitor: the last steps of a loop, and a state now and then, in bounded
memory.

A step keeps the loss, the batch (a reference, no copy), the learning rates and the gradient norms
per parameter. Two states (parameters, buffers, optimizer, random numbers) are kept, and the steps
since the older one, so that the run can be computed again from there. Where a number is not finite
or the loss or the gradient leaves its range, the state before and the steps since are set aside as
an :class:`Incident`.
"""

from __future__ import annotations

import copy
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mindgap.base.batches import tensors_in
from mindgap.base.check import error_words

#: Steps whose losses form the running range.
HISTORY = 200
#: The newest losses that do not count for the range, so that growth over a few steps is seen.
LAG = 8
#: Steps between two states at least.
SPACING = 10
#: Steps after which losses are looked at, unless a state is kept before.
LOOK = 50
#: Steps before an incident that a replay should cover where it can.
APPROACH = 5
#: Losses kept after an incident, to see whether the run recovers.
AFTER = 60
#: Calls of the loss after which it counts as one that draws no random numbers.
COMPARED_CALLS = 5
#: Gradient norms that must be known before one can count as a spike.
LEAST_NORMS = 20
#: Ordinary losses in a row after which an incident is over.
QUIET = 5
#: States that may exist at once: two that follow the run, one of the worst incident so far and one
#: of the present one.
STATES = 4
#: Batches that may wait in the log at least, where memory is enough for quick notes.
LOGGED = 200
#: Share of the memory of the machine (or of the GPU) that may be used, where none is named.
SHARE = 0.1
#: Bytes of the machine's memory where the system does not say.
ASSUMED_MEMORY = 8 * 2**30
#: A loss is unusual if it exceeds the median by so many times the reach of the range above it.
LOSS_SPIKE = 3.0
#: The same for gradient norms, over the largest of the range.
NORM_SPIKE = 5.0
#: What a schedule may change in a group of an optimizer.
SETTINGS = ("lr", "weight_decay")


class LossRange:
    """The range of some losses: their median, and how far above it a loss is still ordinary.

    The reach is the distance from the median to the largest loss, and at least half the distance to
    the smallest and 15 % of the median (of fewer than 12 losses three times the median). Losses
    that are not finite are left out.

    Example:
        >>> usual = LossRange([1.0, 1.2, 0.9, 1.1] * 10)
        >>> usual.excess(1.3), usual.excess(5.0) > 3, usual.excess(math.nan)
        (0.0, True, inf)
    """

    def __init__(self, losses: Iterable[float]) -> None:
        finite = sorted(loss for loss in losses if math.isfinite(loss))
        self.median, self.reach = 0.0, math.inf  # of fewer than three losses: any is ordinary
        if len(finite) >= 3:
            self.median = median = finite[len(finite) // 2]
            smallest, largest = finite[0], finite[-1]
            reach = max(largest - median, 0.5 * (median - smallest), 0.15 * abs(median), 1e-12)
            # A short history says little about the range.
            self.reach = reach if len(finite) >= 12 else max(reach, 3 * abs(median))

    def excess(self, loss: float) -> float:
        """Distance of a loss above the median over the reach. 0 where that is at most
        ``LOSS_SPIKE`` (the loss is ordinary), infinite where the loss is not finite.
        """
        if not math.isfinite(loss):
            return math.inf
        distance = (loss - self.median) / self.reach
        return distance if distance > LOSS_SPIKE else 0.0


@dataclass(slots=True)
class LossCall:
    """One call of the loss, with what is needed to repeat it."""

    batch: Any  # a reference; None where the loop names no batch
    key: Any  # what names the batch, such as its index
    loss: Any  # a number, or a tensor that is read later
    versions: tuple[int, ...] = ()  # of the batch's tensors, to notice that they were overwritten
    random_state: Tensor | None = None  # of torch's generator before the call
    autocast: tuple[str, torch.dtype] | None = None  # device type and dtype, where it was on
    bytes: int = 0  # of the batch


@dataclass(slots=True)
class Step:
    """One step of the optimizer."""

    number: int
    calls: list[LossCall]
    settings: list[dict[str, Any]] = field(default_factory=list)  # ``settings_of`` the groups
    norms: Tensor | None = None  # of the gradient of each parameter, as the optimizer was given it
    bytes: int = 0  # of the batches

    @property
    def loss(self) -> float:
        """Mean over the batches of the step."""
        if len(self.calls) == 1:
            return float(self.calls[0].loss)
        values = [float(call.loss) for call in self.calls]
        return sum(values) / len(values) if values else math.nan


@dataclass
class State:
    """A copy of everything that a replay needs, as it was before a step."""

    step: int
    parameters: list[Tensor]  # in the order of ``Recorder.tensors``
    buffers: list[Tensor]
    training_modes: list[bool]  # of each module of the model
    optimizer: dict[str, Any]  # its attributes
    random_state: Tensor
    bytes: int


@dataclass
class Incident:
    """The step at which something left its range, with the state before and the steps since."""

    step: int
    kind: str  # "loss" or "gradient"
    severity: float  # times the range, at its worst; infinite where a number is not finite
    state: State | None  # to replay it from; None where none was kept
    steps: list[Step]  # since that state
    history: list[float]  # what was usual before: losses, or gradient norms
    at_once: bool = False  # not finite at this very step
    first_not_finite: int = -1  # the first step since at which a number was not finite; -1: none
    losses_after: list[float] = field(default_factory=list)
    ordinary_in_a_row: int = 0  # ordinary losses in a row, up to now


class LoggedCall(NamedTuple):
    """A call of the loss that is noted quickly and made into a :class:`LossCall` later."""

    loss: Tensor
    batch: Any
    versions: tuple[int, ...]
    random_state: Tensor | None
    autocast: tuple[str, torch.dtype] | None


class LoggedStep(NamedTuple):
    """A step that is noted quickly and made into a :class:`Step` later."""

    number: int
    settings: list[dict[str, Any]]
    norms: Tensor | None


class Recorder:
    """Keeps the last steps of a loop, and two states of its model and optimizer.

    Args:
        model: whose states are kept.
        optimizer: whose states are kept.
        memory: bytes that states and batches may take together; None for a tenth of the memory of
            the machine, or of the GPU that holds the model.

    Attributes:
        why_no_state: why no state is kept; empty where states are kept.
        tensors: parameters of the model and of the optimizer.
        device_type: ``"cpu"`` or ``"cuda"``, where the first of these tensors lies.
        states_kept: number of states copied so far.
        incident: the worst incident so far; None where nothing left its range.
        in_optimizer_step: whether the optimizer's step is under way.
        loss_draws_random: whether the loss is known to draw random numbers.
        log: calls of the loss and steps since the last ``digest``. A loop of short steps has no
            time for more than an entry here.
        takes_log_entries: whether calls of the loss may go to the log, instead of to
            ``before_loss`` and ``after_loss``.
    """

    # Fields that many methods use: ``_open_incident``, the one that is not over yet; ``_losses``
    # and ``_gradient_norms``, the ordinary ones; ``_steps_to_read``, whose losses were not looked
    # at yet; ``_calls_compared``, before and after how many calls random states were compared;
    # ``_room_for_batches`` and ``_batch_bytes``, the bytes that batches may take and do take.

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, memory: float | None = None
    ) -> None:
        self.model, self.optimizer = model, optimizer
        trained = [p for group in optimizer.param_groups for p in group["params"]]
        self.tensors = list({id(p): p for p in [*model.parameters(), *trained]}.values())
        self._memory, self.why_no_state = memory, ""
        self.device_type, self._generator = "cpu", torch.default_generator
        if self.tensors and self.tensors[0].is_cuda:
            self.device_type = "cuda"
            self._generator = torch.cuda.default_generators[self.tensors[0].get_device()]
        self.states: deque[State] = deque()
        self.states_kept = 0
        self.steps: deque[Step] = deque(maxlen=HISTORY)
        self.incident: Incident | None = None
        self.log: list[LoggedCall | LoggedStep] = []
        self.in_optimizer_step = self.takes_log_entries = self.loss_draws_random = False
        self._calls_compared = 0  # calls before and after which random states were compared
        self._open_incident: Incident | None = None  # the one that is not over yet
        self._losses: deque[float] = deque(maxlen=HISTORY + LAG)  # ordinary ones
        self._gradient_norms: deque[float] = deque(maxlen=HISTORY)  # ordinary ones
        self._calls_since_step: list[LossCall] = []
        self._steps_to_read: list[Step] = []  # whose losses were not looked at yet
        #: random state and autocast before the present call of the loss
        self._before_call: tuple[Tensor | None, Any] = (None, None)
        # Bytes of batches: of all steps in memory, of calls since the last step, of the largest.
        self._batch_bytes = self._bytes_since_step = self._largest_batch = 0
        self._room_for_batches = math.inf  # bytes that batches may take beside the states

    # What the loop does.

    def random_state(self) -> Tensor:
        """State of torch's generator for the model's device."""
        return self._generator.get_state()

    def autocast(self) -> tuple[str, torch.dtype] | None:
        """Device type and dtype of autocast; None where it is off."""
        if not torch.is_autocast_enabled(self.device_type):
            return None
        return self.device_type, torch.get_autocast_dtype(self.device_type)

    def before_loss(self) -> None:
        """Note the precision and the random state that the coming call of the loss will use, for
        ``after_loss``. The random state is left out once the first calls have drawn no random
        numbers. Keeps the first state of the run, and nothing where no state is kept.
        """
        if self.why_no_state:
            return
        self.digest()
        if not self.states:
            self.keep_state(self._next_number())
        compares = self.loss_draws_random or self._calls_compared < COMPARED_CALLS
        self._before_call = (self.random_state() if compares else None), self.autocast()

    def after_loss(self, loss: Any, batch: Any, key: Any = None) -> None:
        """Note a call of the loss for the coming step, or for the present one where the optimizer
        itself calls the loss. Keeps the first state of the run; where no state is kept, only the
        loss and the key are noted.

        Args:
            loss: a number or a tensor, which is read later.
            batch: the batch (a reference is kept), or None.
            key: what names the batch, or None.
        """
        loss = loss.detach() if isinstance(loss, Tensor) and loss.requires_grad else loss
        self.digest()
        if self.why_no_state:
            self._calls_since_step.append(LossCall(None, key, loss))
            return
        if not self.states:
            self.keep_state(self._next_number())
        # What ``before_loss`` noted; nothing where it was not called.
        (random_state, autocast), self._before_call = self._before_call, (None, None)
        # Another state after the call than before: it drew random numbers.
        if random_state is not None and not self.loss_draws_random:
            self._calls_compared += 1
            self.loss_draws_random = not torch.equal(random_state, self.random_state())
            self._decide_on_log()
        size = size_of(batch)
        call = LossCall(batch, key, loss, versions_of(batch), random_state, autocast, size)
        if self.in_optimizer_step and self.steps:
            # The optimizer calls the loss itself, as under Lightning: the norms noted before are
            # not those of this call.
            last = self.steps[-1]
            last.calls.append(call)
            last.bytes, last.norms = last.bytes + size, None
            self._batch_bytes += size
        else:
            self._calls_since_step.append(call)
            self._bytes_since_step += size

    def newest_loss(self, *, of_present_step: bool = False) -> tuple[Any, Any] | None:
        """Mean loss of the calls since the last step, and what names the batch of the newest (None:
        nothing does); None where there was no call.

        Args:
            of_present_step: count the calls of the step that the optimizer is in, instead.
        """
        losses: list[Any] = []  # of the newest calls, while they are in the log
        calls: list[LossCall] = []
        if of_present_step:
            self.digest()
            calls = self.steps[-1].calls
        else:
            for entry in reversed(self.log):
                if not isinstance(entry, LoggedCall):
                    break
                losses.append(entry.loss)
            else:  # the step began before the log
                calls = self._calls_since_step
        key = calls[-1].key if calls and not losses else None
        losses += [call.loss for call in calls]
        if not losses:
            return None
        return losses[0] if len(losses) == 1 else sum(losses) / len(losses), key

    def _decide_on_log(self) -> None:
        """Set ``takes_log_entries``: calls of the loss may go to the log where a state is kept, it
        is known whether the loss draws random numbers, and ``LOGGED`` batches fit into memory.
        """
        knows_random = self.loss_draws_random or self._calls_compared >= COMPARED_CALLS
        ready = bool(self.states) and knows_random and not self.why_no_state
        log_bytes = LOGGED * self._largest_batch
        self.takes_log_entries = ready and self._batch_bytes + log_bytes < self._room_for_batches

    def digest(self) -> None:
        """Make steps out of the log, which is empty afterwards. Calls of the loss behind its last
        step wait for the next step.
        """
        if not self.log:
            return
        entries, self.log = self.log, []
        for entry in entries:  # this runs at every step, so that no attribute is read twice
            if isinstance(entry, LoggedStep):
                self._add_step(entry)
                continue
            loss, batch, versions, random_state, autocast = entry
            size = size_of(batch)
            if size > self._largest_batch:
                self._largest_batch = size
            self._bytes_since_step += size
            call = LossCall(batch, None, loss, versions, random_state, autocast, size)
            self._calls_since_step.append(call)
        self._decide_on_log()

    def _add_step(self, logged: LoggedStep) -> None:
        """Append to ``steps`` a step of the calls since the last one; of ``HISTORY`` steps the
        oldest leaves. Where the batches no longer fit into memory, the oldest state is dropped.
        """
        number, settings, norms = logged
        step = Step(number, self._calls_since_step, settings, norms, self._bytes_since_step)
        self._calls_since_step, self._bytes_since_step = [], 0
        steps = self.steps
        leaving_bytes = steps[0].bytes if len(steps) == HISTORY else 0
        self._batch_bytes += step.bytes - leaving_bytes
        steps.append(step)
        self._steps_to_read.append(step)
        if self._batch_bytes > self._room_for_batches and self.states:
            self._drop_oldest_state()

    @property
    def unread_steps(self) -> int:
        """About how many steps have losses that were not looked at yet; in the log a step has two
        entries, a call of the loss and the step itself.
        """
        return len(self._steps_to_read) + len(self.log) // 2

    def memory_limit(self) -> float:
        """Bytes that states and batches may take together: what the user gave, else ``SHARE`` of
        the device's memory, which is asked for once.
        """
        if self._memory is None:
            if self.device_type == "cuda":
                total = torch.cuda.get_device_properties(self.tensors[0].device).total_memory
            else:
                try:
                    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
                except (AttributeError, ValueError, OSError):
                    total = ASSUMED_MEMORY
            self._memory = SHARE * total
        return self._memory

    def keep_state(self, step: int) -> None:
        """Copy everything as it is before a step into ``states``, of which the newest two stay.
        Where the copy fails or ``STATES`` of its size do not fit into memory, no state is kept any
        more, and ``why_no_state`` says why.
        """
        self.digest()
        try:
            state = self._copy_state(step)
        except Exception as error:  # a model or optimizer that cannot be copied
            self.why_no_state = f"the state cannot be copied ({error_words(error)})"
            return
        if STATES * state.bytes > self.memory_limit():
            self.why_no_state = (
                f"a state takes {state.bytes / 1e6:.0f} MB, and {STATES} of them do not fit into "
                f"memory={self.memory_limit():.3g} bytes"
            )
            self.states.clear()
            return
        self.states.append(state)
        self.states_kept += 1
        self._room_for_batches = self.memory_limit() - STATES * state.bytes
        if len(self.states) > 2:
            self._drop_oldest_state()
        self._decide_on_log()

    def _copy_state(self, step: int) -> State:
        """A copy of model, optimizer and random numbers as they are before a step."""
        parameters = [tensor.detach().clone() for tensor in self.tensors]
        buffers = [buffer.detach().clone() for buffer in self.model.buffers()]
        modes = [module.training for module in self.model.modules()]
        attributes = copy_attributes(
            self.optimizer, {id(tensor): tensor for tensor in self.tensors}
        )
        moments = [tensor for state in attributes["state"].values() for tensor in _tensors(state)]
        size = sum(tensor.nbytes for tensor in [*parameters, *buffers, *moments])
        return State(step, parameters, buffers, modes, attributes, self.random_state(), size)

    def _drop_oldest_state(self) -> None:
        """Drop the oldest state. Steps before the next state can no longer be computed again, so
        their batches and random states are dropped, too, unless an incident needs them.
        """
        self.states.popleft()
        self._decide_on_log()
        next_state_step = self.states[0].step if self.states else math.inf
        incidents = [i for i in (self.incident, self._open_incident) if i is not None]
        needed = {id(step) for incident in incidents for step in incident.steps}
        for step in self.steps:
            if step.number >= next_state_step:
                break
            if step.bytes and id(step) not in needed:
                self._batch_bytes -= step.bytes
                step.bytes = 0
                for call in step.calls:
                    call.batch, call.random_state = None, None

    # Incidents.

    def flush(self, final: bool = False) -> None:
        """Read the losses of steps that wait, add the ordinary ones to the running range, and begin
        or continue an incident where one leaves it. A GPU is waited for.

        Args:
            final: also make a step of calls whose own never came, because the loop ended in an
                error, and let the open incident count as it is now.
        """
        self.digest()
        if final:
            self._keep_worse(self._open_incident)
            if self._calls_since_step:
                self._add_step(LoggedStep(self._next_number(), [], None))
                self.in_optimizer_step = True  # a call that follows joins this step
        unread, self._steps_to_read = self._steps_to_read, []
        read_losses(unread)
        steps = [step for step in unread if step.calls]
        usual_range = LossRange(self._usual_losses())
        enough_losses = 4 * LAG  # with fewer the range is made anew for each loss
        if self._open_incident is None and len(self._losses) >= enough_losses:
            losses = [step.loss for step in steps]
            if losses and math.isfinite(sum(losses)) and not usual_range.excess(max(losses)):
                self._losses.extend(losses)  # all are ordinary, as nearly always
                return
        for step in steps:
            if len(self._losses) < enough_losses:
                usual_range = LossRange(self._usual_losses())
            self._judge(step.number, step.loss, usual_range)

    def _judge(self, step: int, loss: float, usual_range: LossRange) -> None:
        """Count the loss of a step as usual, as a part of the open incident, or as the begin of
        one. The incident ends after ``QUIET`` ordinary losses in a row, or ``AFTER`` in all.

        Args:
            step: its number.
            usual_range: that of the losses before.
        """
        severity = usual_range.excess(loss)
        incident = self._open_incident
        if incident is not None and step > incident.step:
            incident.losses_after.append(loss)
            incident.ordinary_in_a_row = 0 if severity else incident.ordinary_in_a_row + 1
        if severity:
            self.note_unusual(step, "loss", severity)
        elif incident is None:
            self._losses.append(loss)
        if incident is not None and (
            incident.ordinary_in_a_row >= QUIET or len(incident.losses_after) >= AFTER
        ):
            self._end_incident(incident)

    def _next_number(self) -> int:
        """The number of the coming step."""
        return self.steps[-1].number + 1 if self.steps else 0

    def _usual_losses(self) -> list[float]:
        """The losses that form the range: all but the newest ``LAG``, or all where there are at
        most three times as many.
        """
        losses = list(self._losses)
        return losses[:-LAG] if len(losses) > 3 * LAG else losses

    def note_gradient(self, step: int, norm: float) -> None:
        """Judge the gradient norm of a step. One that is not finite, or above ``NORM_SPIKE`` times
        the largest of the range, begins an incident or continues the open one. Any other joins the
        range, unless an incident is open.
        """
        largest = max(self._gradient_norms, default=math.inf)
        spikes = len(self._gradient_norms) >= LEAST_NORMS and norm > NORM_SPIKE * largest
        if spikes or not math.isfinite(norm):
            self.flush()
            # The least number keeps a range of zeros from dividing by zero.
            severity = norm / max(largest, 1e-300) if math.isfinite(norm) else math.inf
            self.note_unusual(step, "gradient", severity)
        elif self._open_incident is None:
            self._gradient_norms.append(norm)

    def note_unusual(self, step: int, kind: str, severity: float) -> None:
        """Begin an incident with a loss or a gradient that left its range, or continue the open
        incident with it. Where the open incident began with a gradient that spiked, a loss within
        ``APPROACH`` steps begins it anew as an incident of the loss.

        Args:
            kind: ``"loss"`` or ``"gradient"``.
            severity: times the range; infinite where a number is not finite.
        """
        incident = self._open_incident
        if incident is None:
            self._open_incident = self._new_incident(step, kind, severity)
            if self.incident is None:
                self.incident = self._open_incident
            return
        incident.severity = max(incident.severity, severity)
        if severity == math.inf and incident.first_not_finite < 0:
            incident.first_not_finite = step
        soon_after = incident.step < step <= incident.step + APPROACH
        began_with_spike = incident.kind == "gradient" and not incident.at_once
        if kind == "loss" and began_with_spike and soon_after:
            # The gradient was only the first sign: what it did to the loss says more.
            self._open_incident = replace(
                self._new_incident(step, kind, severity),
                severity=incident.severity,
                first_not_finite=incident.first_not_finite,
            )
            if self.incident is incident:
                self.incident = self._open_incident

    def _new_incident(self, step: int, kind: str, severity: float) -> Incident:
        """An incident that begins at a step, with the state to replay it from and the steps since.
        The state is the newest that lies ``APPROACH`` steps or more before it, else the oldest
        before it; None where there is none.

        Args:
            step: its number.
            kind: ``"loss"`` or ``"gradient"``.
            severity: times the range; infinite where a number is not finite.
        """
        earlier = [state for state in self.states if state.step <= step]
        early_enough = [state for state in earlier if state.step <= step - APPROACH]
        state = early_enough[-1] if early_enough else next(iter(earlier), None)
        begin = state.step if state is not None else step
        steps = [recent for recent in self.steps if begin <= recent.number <= step]
        history = self._usual_losses() if kind == "loss" else list(self._gradient_norms)
        at_once = severity == math.inf
        first_not_finite = step if at_once else -1
        return Incident(step, kind, severity, state, steps, history, at_once, first_not_finite)

    def _keep_worse(self, incident: Incident | None) -> None:
        """Set ``self.incident``, the worst one, to this incident if it is more severe."""
        if incident is not None and (
            self.incident is None or incident.severity > self.incident.severity
        ):
            self.incident = incident

    def _end_incident(self, incident: Incident) -> None:
        """End the open incident, and keep it if it is the worst. Where the losses stayed unusual,
        those after it form a new range.
        """
        self._keep_worse(incident)
        self._open_incident = None
        if incident.ordinary_in_a_row < QUIET:
            self._losses.clear()
            self._losses.extend(filter(math.isfinite, incident.losses_after))
            self._gradient_norms.clear()


def read_losses(steps: list[Step]) -> None:
    """Turn the losses of the steps' calls that are tensors into numbers, in place, with one wait
    for the device. Of a tensor with several entries the first counts.
    """
    calls = [call for step in steps for call in step.calls if isinstance(call.loss, Tensor)]
    if not calls:
        return
    try:
        if any(call.loss.is_cuda for call in calls):
            losses = list(map(float, torch.stack([call.loss for call in calls]).tolist()))
        else:
            losses = [float(call.loss) for call in calls]
    except (RuntimeError, TypeError):  # losses of different shapes, dtypes or devices
        device = calls[0].loss.device
        first_entries = [call.loss.reshape(-1)[0].double().to(device) for call in calls]
        losses = torch.stack(first_entries).tolist()
    for call, loss in zip(calls, losses, strict=True):
        call.loss = loss


def settings_of(
    groups: list[dict[str, Any]], known: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """The settings of each group that a schedule may change, those of ``SETTINGS`` that it has.

    Args:
        groups: the ``param_groups`` of an optimizer.
        known: the answer at an earlier step, which is returned itself where nothing has changed.

    Example:
        >>> groups = [{"lr": 0.1, "params": []}]
        >>> first = settings_of(groups)
        >>> first, settings_of(groups, first) is first
        ([{'lr': 0.1}], True)
    """
    if known is not None and len(known) == len(groups):
        pairs = zip(groups, known, strict=True)
        # By identity: an equal value that is another object is only copied once more.
        if all(group.get(key) is value for group, old in pairs for key, value in old.items()):
            return known
    # A rate may be a tensor, which changes in place, so it is copied.
    return [{key: _clone(group[key], {}) for key in SETTINGS if key in group} for group in groups]


def copy_attributes(
    optimizer: torch.optim.Optimizer, shared: Mapping[int, Tensor]
) -> dict[str, Any]:
    """A copy of an optimizer's attributes (name -> value) without its hooks, for ``make_twin``.
    Where its class has a ``__getstate__`` of its own, what that gives is copied.

    Args:
        shared: id -> parameter; these tensors stay the same objects in the copy.
    """
    custom = type(optimizer).__getstate__ is not torch.optim.Optimizer.__getstate__
    attributes = optimizer.__getstate__() if custom else dict(optimizer.__dict__)
    left_out = (
        "step",  # a scheduler or a profiler may have wrapped it
        "_optimizer_step_pre_hooks",
        "_optimizer_step_post_hooks",
        "profile_hook_step",
        "grad_scale",  # a GradScaler sets both for the length of a step
        "found_inf",
    )
    return {
        name: _clone(value, shared)
        for name, value in attributes.items()
        if name not in left_out and not name.startswith("_zero_grad_pro")
    }


def make_twin(
    optimizer: torch.optim.Optimizer, attributes: Mapping[str, Any]
) -> torch.optim.Optimizer:
    """A second optimizer of the same kind over the same parameters, without anybody's hooks.

    Args:
        optimizer: the first one.
        attributes: what ``copy_attributes`` copied from it; they are copied again.
    """
    parameters = {id(p): p for group in optimizer.param_groups for p in group["params"]}
    # Without the class's own constructor, whose arguments are not known.
    second = object.__new__(type(optimizer))
    second.__setstate__({name: _clone(value, parameters) for name, value in attributes.items()})
    for name, value in list(second.__dict__.items()):
        if name.startswith("_optimizer_") and name.endswith("_hooks"):
            second.__dict__[name] = type(value)()
    return second


def _clone(value: Any, shared: Mapping[int, Tensor]) -> Any:
    """A copy of something that an optimizer holds, with whatever it contains. Functions stay the
    same objects, and so does what a mapping other than a dictionary contains.

    Args:
        shared: id -> tensor; these tensors stay the same objects, too.
    """
    if isinstance(value, Tensor):
        return value if id(value) in shared else value.detach().clone()
    if isinstance(value, Mapping):
        copied = copy.copy(value)  # of the same kind, such as the defaultdict of the states
        if isinstance(copied, dict):
            for key, item in copied.items():
                copied[key] = _clone(item, shared)
        return copied
    if type(value) in (list, tuple):
        return type(value)(_clone(item, shared) for item in value)
    if value is None or isinstance(value, (int, float, str, bool, Callable)):  # type: ignore[arg-type]
        return value
    # ``deepcopy`` takes its second argument for what is copied already.
    return copy.deepcopy(value, dict(shared))


def versions_of(batch: Any) -> tuple[int, ...]:
    """Version counters of a batch's tensors, in order, which torch raises when a tensor is written
    in place; empty for tensors of inference mode, which have none.

    Example:
        >>> x = torch.zeros(2)
        >>> versions_of((x, [x]))
        (0, 0)
    """
    try:
        # This runs at every step, so that the usual kind goes first.
        if type(batch) is tuple and len(batch) == 2:
            x, y = batch
            if type(x) is Tensor and type(y) is Tensor:
                return x._version, y._version
        return tuple([t._version for t in _tensors(batch)])
    except RuntimeError:  # tensors of inference mode have none
        return ()


def size_of(batch: Any) -> int:
    """Bytes of a batch's tensors.

    Example:
        >>> size_of((torch.zeros(2), {"y": torch.zeros(3)}))
        20
    """
    size = 0
    for tensor in _tensors(batch):  # runs at every step: ``sum`` would take twice as long
        size += tensor.nbytes
    return size


def _tensors(batch: Any) -> list[Tensor] | tuple[Tensor, ...]:
    """The tensors of a batch, in order. Batches that are a tensor, or a tuple or list of tensors
    alone, are answered quickly.
    """
    if isinstance(batch, Tensor):
        return (batch,)
    if type(batch) in (tuple, list):
        for part in batch:
            if type(part) is not Tensor:
                break
        else:  # all parts are tensors
            return batch
    return [] if batch is None else list(tensors_in(batch))
