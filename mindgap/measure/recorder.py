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
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.base.batches import tensors_in

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
TRIED = 5
#: Ordinary losses in a row after which an incident is over.
QUIET = 5
#: States that may exist at once: two that follow the run, one of the worst incident so far and one
#: of the present one.
STATES = 4
#: Batches that may wait in the log at least, where memory is enough for quick notes.
LOGGED = 200
#: Share of the memory of the machine (or of the GPU) that may be used, where none is named.
SHARE = 0.1
#: A loss is unusual if it exceeds the median by so many times the reach of the range above it.
LOSS_SPIKE = 3.0
#: The same for gradient norms, over the largest of the range.
NORM_SPIKE = 5.0
#: What a schedule may change in a group of an optimizer.
SETTINGS = ("lr", "weight_decay")


def leaves_range(history: Iterable[float], value: float) -> float:
    """How many times a loss exceeds the reach of the losses before it; 0 where it is ordinary,
    infinite where it is not finite.

    Example:
        >>> usual = [1.0, 1.2, 0.9, 1.1] * 10
        >>> leaves_range(usual, 1.3), leaves_range(usual, 5.0) > 3, leaves_range(usual, math.nan)
        (0.0, True, inf)
    """
    return LossRange(history).times(value)


class LossRange:
    """Median and reach of some losses."""

    def __init__(self, history: Iterable[float]) -> None:
        known = sorted(v for v in history if math.isfinite(v))
        self.middle, self.reach = 0.0, math.inf
        if len(known) >= 3:
            self.middle = middle = known[len(known) // 2]
            reach = max(known[-1] - middle, 0.5 * (middle - known[0]), 0.15 * abs(middle), 1e-12)
            # A short history says little about the range.
            self.reach = reach if len(known) >= 12 else max(reach, 3 * abs(middle))

    def times(self, value: float) -> float:
        """As :func:`leaves_range`."""
        if not math.isfinite(value):
            return math.inf
        times = (value - self.middle) / self.reach
        return times if times > LOSS_SPIKE else 0.0


@dataclass(slots=True)
class Seen:
    """One call of the loss."""

    batch: Any  # a reference; None where the loop names no batch
    key: Any  # what names the batch, such as its index
    loss: Any  # a number, or a tensor that is read later
    versions: tuple[int, ...] = ()  # of the batch's tensors, to notice that they were overwritten
    random: Tensor | None = None  # state of torch's generator before the call
    cast: tuple[str, torch.dtype] | None = None  # autocast, where it was on
    bytes: int = 0  # of the batch


@dataclass(slots=True)
class Step:
    """One step of the optimizer."""

    number: int
    seen: list[Seen]
    settings: list[dict[str, Any]] = field(default_factory=list)  # rates of each group
    norms: Any = None  # gradient norm of each parameter, as the optimizer was given it
    bytes: int = 0  # of the batches

    @property
    def loss(self) -> float:
        """Mean over the batches of the step."""
        if len(self.seen) == 1:
            return float(self.seen[0].loss)
        values = [float(s.loss) for s in self.seen]
        return sum(values) / len(values) if values else math.nan


@dataclass
class State:
    """Everything that a replay needs, before a step."""

    step: int
    parameters: list[Tensor]
    buffers: list[Tensor]
    modes: list[bool]
    optimizer: dict[str, Any]
    random: Tensor
    bytes: int


@dataclass
class Incident:
    """The step at which something left its range, with the state before and the steps since."""

    step: int
    kind: str  # "loss" or "gradient"
    severity: float  # times the range, at its worst; infinite where a number is not finite
    state: State | None
    steps: list[Step]
    history: list[float]  # what was usual before: losses, or gradient norms
    at_once: bool = False  # not finite at this very step
    broke: int = -1  # the first step since at which a number was not finite
    after: list[float] = field(default_factory=list)  # losses since
    quiet: int = 0  # ordinary losses in a row, up to now


class Recorder:
    """Keeps the last steps.

    Args:
        model: whose states are kept.
        optimizer: whose states are kept.
        memory: bytes that states and batches may take together; None for a tenth of the memory of
            the machine, or of the GPU that holds the model.

    Attributes:
        why_not: why no state is kept; empty where states are kept.
        tensors: parameters of the model and of the optimizer.
    """

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, memory: float | None = None
    ) -> None:
        self.model, self.optimizer = model, optimizer
        held = [p for group in optimizer.param_groups for p in group["params"]]
        self.tensors = list({id(p): p for p in [*model.parameters(), *held]}.values())
        self._memory = memory
        cuda = bool(self.tensors) and self.tensors[0].is_cuda
        self.kind = "cuda" if cuda else "cpu"
        self._generator = torch.default_generator
        if cuda:
            self._generator = torch.cuda.default_generators[self.tensors[0].get_device()]
        self._tried = 0
        self.inside = False  # whether the optimizer's step is under way
        self.why_not = ""
        self.states: deque[State] = deque()
        self.steps: deque[Step] = deque(maxlen=HISTORY)
        self.incident: Incident | None = None
        self._present: Incident | None = None  # not over yet
        self._losses: deque[float] = deque(maxlen=HISTORY + LAG)
        self._sums: deque[float] = deque(maxlen=HISTORY)
        self._open: list[Seen] = []
        self._unread: list[Step] = []
        self._begun: tuple[Tensor | None, Any] | None = None
        self._bytes = self._open_bytes = 0
        self._room = math.inf  # bytes that batches may take beside the states
        self.kept = 0  # states so far
        self._largest = 0  # bytes of a batch so far
        #: What a loop did since the last ``digest``: calls of the loss as (loss, batch, versions of
        #: its tensors, state of the generator, autocast), steps as (number, settings, norms). A
        #: loop of short steps has no time for more.
        self.log: list[tuple[Any, ...]] = []
        #: Whether calls of the loss may go to the log, instead of to ``begin`` and ``see``.
        self.quick = False
        self.draws = False  # whether the loss draws random numbers

    # What the loop does.

    def random(self) -> Tensor:
        """State of torch's generator."""
        return self._generator.get_state()

    def cast(self) -> tuple[str, torch.dtype] | None:
        """Autocast, where it is on."""
        if not torch.is_autocast_enabled(self.kind):
            return None
        return self.kind, torch.get_autocast_dtype(self.kind)

    def begin(self) -> None:
        """Before a call of the loss: the random numbers and the precision that it will use."""
        if self.why_not:
            return
        self.digest()
        if not self.states:
            self.keep_state(self._next_number())
        random = self.random() if self.draws or self._tried < TRIED else None
        self._begun = random, self.cast()

    def see(self, loss: Any, batch: Any, key: Any = None) -> None:
        """After a call of the loss."""
        value = loss.detach() if isinstance(loss, Tensor) and loss.requires_grad else loss
        self.digest()
        if self.why_not:
            self._open.append(Seen(None, key, value))
            return
        if not self.states:
            self.keep_state(self._next_number())
        random, cast = self._begun or (None, None)
        if self._begun is not None:
            self._begun = None
            if random is not None and not self.draws:
                self._tried += 1
                self.draws = not torch.equal(random, self.random())
            self._prepare()
        size = size_of(batch)
        seen = Seen(batch, key, value, versions_of(batch), random, cast, size)
        if self.inside and self.steps:  # the optimizer calls the loss itself, as under Lightning
            last = self.steps[-1]
            last.seen.append(seen)
            last.bytes, last.norms = last.bytes + size, None
            self._bytes += size
        else:
            self._open.append(seen)
            self._open_bytes += size

    @property
    def told(self) -> tuple[Any, Any] | None:
        """Loss and name of the newest call since the last step."""
        if self.log and len(self.log[-1]) == 5:
            return self.log[-1][0], None
        return (self._open[-1].loss, self._open[-1].key) if self._open and not self.log else None

    def _prepare(self) -> None:
        """Decide whether calls of the loss may go to the log: a state is kept, it is known whether
        the loss draws random numbers, and the log's batches fit into memory.
        """
        ready = bool(self.states) and (self.draws or self._tried >= TRIED) and not self.why_not
        self.quick = ready and self._bytes + LOGGED * self._largest < self._room

    def digest(self) -> None:
        """Make steps out of the log."""
        if not self.log:
            return
        log, self.log = self.log, []
        for entry in log:
            if len(entry) == 3:
                self._note_step(*entry)
                continue
            loss, batch, versions, random, cast = entry
            size = size_of(batch)
            if size > self._largest:
                self._largest = size
            self._open.append(Seen(batch, None, loss, versions, random, cast, size))
            self._open_bytes += size
        self._prepare()

    def _note_step(self, number: int, settings: list[dict[str, Any]], norms: Any) -> None:
        """Make a step of the open calls of the loss; the oldest step makes room for it."""
        steps = self.steps
        made = Step(number, self._open, settings, norms, self._open_bytes)
        self._open, self._open_bytes = [], 0
        dropped = steps[0].bytes if len(steps) == HISTORY else 0
        self._bytes += made.bytes - dropped
        steps.append(made)
        self._unread.append(made)
        if self._bytes > self._room and self.states:
            self._forget()

    @property
    def waits(self) -> int:
        """Steps whose losses were not looked at yet, about."""
        return len(self._unread) + len(self.log) // 2

    def limit(self) -> float:
        """Bytes that may be used."""
        if self._memory is None:
            if self.tensors and self.tensors[0].is_cuda:
                total = torch.cuda.get_device_properties(self.tensors[0].device).total_memory
            else:
                try:
                    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
                except (AttributeError, ValueError, OSError):
                    total = 8 * 2**30
            self._memory = SHARE * total
        return self._memory

    def keep_state(self, step: int) -> None:
        """A copy of everything as it is before a step; the oldest of three is dropped."""
        self.digest()
        try:
            state = self._copied(step)
        except Exception as error:  # a model or optimizer that cannot be copied
            first = str(error).strip().splitlines()
            self.why_not = f"the state cannot be copied ({type(error).__name__}: {first[:1]})"
            return
        if STATES * state.bytes > self.limit():
            self.why_not = (
                f"a state takes {state.bytes / 1e6:.0f} MB, and {STATES} of them do not fit into "
                f"memory={self.limit():.3g} bytes"
            )
            self.states.clear()
            return
        self.states.append(state)
        self.kept += 1
        self._room = self.limit() - STATES * state.bytes
        if len(self.states) > 2:
            self._forget()
        self._prepare()

    def _copied(self, step: int) -> State:
        """A copy of model, optimizer and random numbers as they are before a step."""
        parameters = [tensor.detach().clone() for tensor in self.tensors]
        buffers = [buffer.detach().clone() for buffer in self.model.buffers()]
        modes = [module.training for module in self.model.modules()]
        kept = packed(self.optimizer, {id(tensor): tensor for tensor in self.tensors})
        moments = [tensor for held in kept["state"].values() for tensor in _tensors(held)]
        size = sum(tensor.nbytes for tensor in [*parameters, *buffers, *moments])
        return State(step, parameters, buffers, modes, kept, self.random(), size)

    def _forget(self) -> None:
        """Drop the older state and the batches before the other."""
        self.states.popleft()
        self._prepare()
        begin = self.states[0].step if self.states else math.inf
        incidents = [i for i in (self.incident, self._present) if i is not None]
        needed = {id(step) for incident in incidents for step in incident.steps}
        for step in self.steps:
            if step.number >= begin:
                break
            if step.bytes and id(step) not in needed:
                self._bytes -= step.bytes
                step.bytes = 0
                for call in step.seen:
                    call.batch, call.random = None, None

    # Incidents.

    def flush(self, final: bool = False) -> None:
        """Read the losses that wait, and set an incident aside where one left its range.

        Args:
            final: also read a loss whose step never came, because the loop ended in an error.
        """
        self.digest()
        if final:
            self._keep_worse(self._present)
            if self._open:
                self._note_step(self._next_number(), [], None)
                self.inside = True
        unread, self._unread = self._unread, []
        read_losses(unread)
        steps = [step for step in unread if step.seen]
        usual = LossRange(self._history())
        if self._present is None and len(self._losses) >= 4 * LAG:
            losses = [step.loss for step in steps]
            if losses and math.isfinite(sum(losses)) and not usual.times(max(losses)):
                self._losses.extend(losses)
                return
        for step in steps:
            if len(self._losses) < 4 * LAG:
                usual = LossRange(self._history())
            self._judge(step.number, step.loss, usual)

    def _judge(self, step: int, loss: float, usual: LossRange) -> None:
        """Count a loss as usual, as a part of the present incident, or as the begin of one."""
        severity = usual.times(loss)
        present = self._present
        if present is not None and step > present.step:
            present.after.append(loss)
            present.quiet = 0 if severity else present.quiet + 1
        if severity:
            self.note(step, "loss", severity)
        elif present is None:
            self._losses.append(loss)
        if present is not None and (present.quiet >= QUIET or len(present.after) >= AFTER):
            self._close(present)

    def _next_number(self) -> int:
        return self.steps[-1].number + 1 if self.steps else 0

    def _history(self) -> list[float]:
        """The losses that form the range: not the newest, unless there are few."""
        known = list(self._losses)
        return known[:-LAG] if len(known) > 3 * LAG else known

    def note_gradient(self, step: int, norm: float) -> None:
        """The gradient norm of a step."""
        severity = 0.0
        if not math.isfinite(norm):
            severity = math.inf
        elif len(self._sums) >= 20 and norm > NORM_SPIKE * max(self._sums):
            severity = norm / max(max(self._sums), 1e-300)
        if severity:
            self.flush()
            self.note(step, "gradient", severity)
        elif self._present is None and math.isfinite(norm):
            self._sums.append(norm)

    def note(self, step: int, kind: str, severity: float) -> None:
        """Something left its range: an incident begins, or goes on."""
        present = self._present
        if present is not None:
            present.severity = max(present.severity, severity)
            if severity == math.inf and present.broke < 0:
                present.broke = step
            near = present.step < step <= present.step + APPROACH
            if kind == "loss" and present.kind == "gradient" and near and not present.at_once:
                # The gradient was only the first sign: what it did to the loss says more.
                fresh = self._opened(step, kind, severity)
                fresh.severity, fresh.broke = present.severity, present.broke
                self._present = fresh
                if self.incident is present:
                    self.incident = fresh
            return
        self._present = self._opened(step, kind, severity)
        if self.incident is None:
            self.incident = self._present

    def _opened(self, step: int, kind: str, severity: float) -> Incident:
        """An incident that begins at a step, with the state and the steps to replay it from."""
        before = [state for state in self.states if state.step <= step]
        early = [state for state in before if state.step <= step - APPROACH]
        state = early[-1] if early else next(iter(before), None)
        begin = state.step if state is not None else step
        steps = [known for known in self.steps if begin <= known.number <= step]
        history = self._history() if kind == "loss" else list(self._sums)
        broke = step if severity == math.inf else -1
        return Incident(step, kind, severity, state, steps, history, broke == step, broke)

    def _keep_worse(self, present: Incident | None) -> None:
        """Keep the worse of two incidents."""
        worst = self.incident.severity if self.incident is not None else -math.inf
        if present is not None and present.severity > worst:
            self.incident = present

    def _close(self, present: Incident) -> None:
        """The incident is over; the worse of two is kept."""
        self._keep_worse(present)
        self._present = None
        if present.quiet < QUIET:  # the run goes on at another level
            finite = [loss for loss in present.after if math.isfinite(loss)]
            self._losses.clear()
            self._losses.extend(finite)
            self._sums.clear()


def read_losses(steps: list[Step]) -> None:
    """Turn losses that are tensors into numbers, with one wait for the device."""
    waiting = [call for step in steps for call in step.seen if isinstance(call.loss, Tensor)]
    if not waiting:
        return
    try:
        if any(call.loss.is_cuda for call in waiting):
            losses = torch.stack([call.loss for call in waiting]).tolist()
        else:
            losses = [call.loss for call in waiting]
        losses = list(map(float, losses))
    except (RuntimeError, TypeError):  # of different shapes, kinds or devices
        device = waiting[0].loss.device
        firsts = [call.loss.reshape(-1)[0].double().to(device) for call in waiting]
        losses = torch.stack(firsts).tolist()
    for call, loss in zip(waiting, losses):
        call.loss = loss


def settings_of(
    groups: list[dict[str, Any]], known: list[dict[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """What a schedule may change, per group of an optimizer.

    Args:
        groups: the optimizer's groups.
        known: the answer at an earlier step, which is returned where nothing has changed.

    Example:
        >>> groups = [{"lr": 0.1, "params": []}]
        >>> first = settings_of(groups)
        >>> first, settings_of(groups, first) is first
        ([{'lr': 0.1}], True)
    """
    if known is not None and len(known) == len(groups):
        pairs = zip(groups, known)
        if all(group.get(n) is value for group, held in pairs for n, value in held.items()):
            return known
    # A rate that is a tensor changes in place.
    return [
        {n: v.detach().clone() if isinstance(v := g[n], Tensor) else v for n in SETTINGS if n in g}
        for g in groups
    ]


def packed(optimizer: torch.optim.Optimizer, own: Mapping[int, Tensor]) -> dict[str, Any]:
    """What an optimizer holds, copied; parameters stay the same objects."""
    kind = type(optimizer)
    custom = getattr(kind, "__getstate__", None) is not torch.optim.Optimizer.__getstate__
    held = optimizer.__getstate__() if custom else dict(optimizer.__dict__)
    skipped = (
        "step",
        "_optimizer_step_pre_hooks",
        "_optimizer_step_post_hooks",
        "profile_hook_step",
    )
    kept = {
        k: v for k, v in held.items() if k not in skipped and not k.startswith("_zero_grad_pro")
    }
    return {k: _cloned(v, own) for k, v in kept.items()}


def twin(optimizer: torch.optim.Optimizer, kept: Mapping[str, Any]) -> torch.optim.Optimizer:
    """A second optimizer over the same parameters in a kept state, without anybody's hooks."""
    own = {id(p): p for g in optimizer.param_groups for p in g["params"]}
    made = object.__new__(type(optimizer))
    made.__setstate__({k: _cloned(v, own) for k, v in kept.items()})
    for name in list(made.__dict__):
        if name.startswith("_optimizer_") and name.endswith("_hooks"):
            made.__dict__[name] = type(made.__dict__[name])()
    return made


def _cloned(value: Any, own: Mapping[int, Tensor]) -> Any:
    """A copy of what an optimizer holds; the tensors of ``own``, by id, stay the same objects."""
    if isinstance(value, Tensor):
        return value if id(value) in own else value.detach().clone()
    if isinstance(value, Mapping):
        made = copy.copy(value)
        if isinstance(made, dict):
            for k in list(made):
                made[k] = _cloned(made[k], own)
        return made
    if type(value) in (list, tuple):
        return type(value)(_cloned(v, own) for v in value)
    if value is None or isinstance(value, (int, float, str, bool, Callable)):  # type: ignore[arg-type]
        return value
    return copy.deepcopy(value, dict(own))


def versions_of(batch: Any) -> tuple[int, ...]:
    """Versions of a batch's tensors, which tell whether they were overwritten since.

    Example:
        >>> x = torch.zeros(2)
        >>> versions_of((x, [x]))
        (0, 0)
    """
    try:
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
    for tensor in _tensors(batch):  # at every step: a generator would take twice as long
        size += tensor.nbytes
    return size


def _tensors(batch: Any) -> list[Tensor] | tuple[Tensor, ...]:
    """The tensors of a batch, in order; the usual kinds of batches are answered quickly."""
    if isinstance(batch, Tensor):
        return (batch,)
    if type(batch) in (tuple, list):
        for part in batch:
            if type(part) is not Tensor:
                break
        else:
            return batch
    return [] if batch is None else list(tensors_in(batch))
