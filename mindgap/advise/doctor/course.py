"""One run of a patient, followed step by step: losses, norms, moves, modes, and the state before
the first loss that is not finite.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.advise.doctor.chart import middle
from mindgap.advise.doctor.patient import MOST_VALID, Patient
from mindgap.base.restoring import undisturbed

#: Updates in which the user's gradient is compared with fresh ones, within so many batches.
COMPARED, MOST_COMPARED = 8, 64
#: Steps in a row whose loss is not finite, after which a run ends.
PATIENCE = 5


@dataclass
class Course:
    """What was seen in one run."""

    losses: list[float] = field(default_factory=list)  # of each step, as the user's step returns it
    rates: list[float] = field(default_factory=list)  # learning rate of the first group
    norms: list[float] = field(default_factory=list)  # gradient norm that the optimizer was given
    held: list[tuple[int, float]] = field(default_factory=list)  # (step, held-out loss)
    moved: dict[str, float] = field(default_factory=dict)  # parameter -> path length / norm
    grown: dict[str, float] = field(default_factory=dict)  # parameter -> norm at the end / start
    error: BaseException | None = None  # what the user's code raised
    error_step: int = -1
    broken: int = -1  # step of the first loss or weight that is not finite; -1: none
    before: dict[str, Tensor] | None = None  # the state before that step
    updates: int = 0  # calls of optimizer.step
    doubled: float = 0.0  # share of compared steps that kept the gradient of the step before
    added: int = 1  # batches per update whose gradients were added and not averaged
    stuck: list[str] = field(default_factory=list)  # held and with a gradient, yet without a move
    shrunk: float = 1.0  # norm that the optimizer got over that of the fresh gradient
    wrong_mode: list[str] = field(default_factory=list)  # modules in evaluation mode while training

    @property
    def final(self) -> float:
        """Mean loss of the last tenth of the steps; infinite where the run broke."""
        if not self.losses or self.broken >= 0:
            return math.inf
        recent = self.losses[-max(1, len(self.losses) // 10) :]
        mean = sum(recent) / len(recent)
        return mean if math.isfinite(mean) else math.inf

    @property
    def held_final(self) -> float:
        """The last held-out loss; ``final`` where none was computed."""
        return self.held[-1][1] if self.held else self.final

    def mean(self, begin: float, end: float) -> float:
        """Mean of the finite losses between two shares of the run."""
        count = len(self.losses)
        first = int(begin * count)
        part = self.losses[first : max(first + 1, int(end * count))]
        finite = [loss for loss in part if math.isfinite(loss)]
        return sum(finite) / len(finite) if finite else math.inf


def held_out(patient: Patient, batches: list[Any] | None = None) -> float:
    """Mean loss in evaluation mode; nothing of the model changes."""
    chosen = (batches or patient.valid or patient.train)[:MOST_VALID]
    values = []
    with undisturbed(patient.model), around(patient):
        patient.model.eval()
        for batch in chosen:
            with torch.no_grad():
                values.append(float(patient.value(batch)))
    mean = sum(values) / len(values)
    return mean if math.isfinite(mean) else math.inf


@contextmanager
def around(patient: Patient) -> Iterator[None]:
    """The context managers that a cure put around the loss."""
    with ExitStack() as stack:
        for mode in patient.modes:
            stack.enter_context(mode())
        yield


def gradient(patient: Patient, batch: Any) -> list[Tensor]:
    """A fresh gradient of the user's loss at the present weights; nothing changes."""
    free = [p for p in patient.model.parameters() if p.requires_grad]
    with undisturbed(patient.model), around(patient), torch.enable_grad():
        value = patient.value(batch)
        found = torch.autograd.grad(value, free, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, free)]


def single_output(patient: Patient, batch: Any) -> Tensor | None:
    """The model's output on a batch, in its present mode; None unless the loss calls the model once
    and gets a tensor.
    """
    outputs: list[Any] = []
    handle = patient.model.register_forward_hook(lambda model, given, out: outputs.append(out))
    try:
        with torch.no_grad():
            patient.value(batch)
    finally:
        handle.remove()
    return outputs[0] if len(outputs) == 1 and isinstance(outputs[0], Tensor) else None


def norm(tensors: Sequence[Tensor]) -> float:
    """Euclidean norm of all entries."""
    if not tensors:
        return 0.0
    parts = [t.detach().to_dense() if t.is_sparse else t.detach() for t in tensors]
    return float(torch.stack([p.abs().double().square().sum() for p in parts]).sum().sqrt())


def follow(patient: Patient, steps: int, *, watch: bool = False) -> Course:
    """Train for some steps; returns what was seen, also where the user's code raises an error.

    Args:
        watch: also compare gradients, follow moves and modes, keep the state before a break.
    """
    course = Course()
    if patient.step is None:
        patient.model.train()
    observer = _Observer(patient, course) if watch else None
    checks = {0, steps // 10, steps // 4, steps // 2, 3 * steps // 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(steps):
            if step in checks and (watch or step == 0):
                _check(course, patient, step)
            try:
                value = _follow_step(patient, step, course, observer)
            except Exception as error:
                course.error, course.error_step = error, step
                break
            if math.isfinite(value):
                course.broken = -1  # it recovered: a bad batch, not a broken model
            elif course.broken < 0:
                course.broken = step
                course.before = observer.state if observer is not None else None
            if not any(map(math.isfinite, course.losses[-PATIENCE:])) and step >= PATIENCE - 1:
                break
    if observer is not None:
        observer.close()
    if course.error is None:
        _check(course, patient, len(course.losses))
    return course


def _follow_step(patient: Patient, step: int, course: Course, observer: _Observer | None) -> float:
    """Make a step with its scheduler and write it down; returns the loss."""
    batch = patient.train[step % len(patient.train)]
    scheduler = patient.scheduler
    if observer is not None:
        observer.before(step, batch)
    course.rates.append(float(patient.optimizer.param_groups[0]["lr"]))
    epoch = getattr(scheduler, "last_epoch", None)
    value = _step(patient, batch, step, course)
    course.losses.append(value)
    if observer is not None:
        observer.after(step)
    if scheduler is not None and scheduler.last_epoch == epoch:  # the user's step did not step it
        try:
            scheduler.step()
        except TypeError:  # ReduceLROnPlateau wants the loss
            scheduler.step(value)
    return value


def _check(course: Course, patient: Patient, step: int) -> None:
    """Note the held-out loss; infinity where it cannot be computed."""
    try:
        course.held.append((step, held_out(patient)))
    except Exception:
        course.held.append((step, math.inf))


def _step(patient: Patient, batch: Any, step: int, course: Course) -> float:
    """One step as the user's loop takes it, or as it would with accumulation, clipping and warm-up;
    returns the loss of the batch.
    """
    if patient.step is not None:
        return _user_step(patient, batch)
    optimizer = patient.optimizer
    if step % patient.accumulate == 0:
        optimizer.zero_grad(set_to_none=True)
    with around(patient):
        value = patient.value(batch)
        (value / patient.accumulate).backward()
    if (step + 1) % patient.accumulate == 0:
        if patient.clip is not None:
            _clip(patient, patient.clip, course)
        rates = [group["lr"] for group in optimizer.param_groups]
        if patient.warmup > step:
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * (step + 1) / patient.warmup
        optimizer.step()
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate
    return float(value.detach())


def _user_step(patient: Patient, batch: Any) -> float:
    """The user's own step; returns the loss that it gives, else the loss of the batch after it."""
    assert patient.step is not None
    given = patient.step(batch)
    if isinstance(given, Tensor):
        return float(given.detach().double().mean())
    if isinstance(given, (int, float)):
        return float(given)
    with torch.no_grad(), undisturbed(patient.model):
        return float(patient.value(batch))


def _clip(patient: Patient, limit: float, course: Course) -> None:
    """Clip the gradient's norm; a gradient that is not finite is dropped.

    Args:
        limit: the largest norm; below 0: the median of the norms so far, which ``course`` keeps.
    """
    groups = patient.optimizer.param_groups
    grads = [p.grad for group in groups for p in group["params"] if p.grad is not None]
    size = norm(grads)
    if limit < 0:
        course.norms.append(size)
        known = [n for n in course.norms if math.isfinite(n)]
        limit = middle(known) if known else 1.0
    if not math.isfinite(size):
        patient.optimizer.zero_grad(set_to_none=True)
    elif size > limit > 0:
        for grad in grads:
            grad.mul_(limit / size)


@dataclass(frozen=True)
class _Comparison:
    """The gradient that the optimizer got beside fresh ones of the same batches."""

    kept: bool  # it still holds the gradient of the step before
    added: int  # batches whose gradients were added and not averaged
    shrunk: float  # its norm over that of the fresh mean


class _Observer:
    """Follows what the optimizer and the modules do."""

    def __init__(self, patient: Patient, course: Course) -> None:
        self.patient, self.course = patient, course
        self.named = patient.named
        self.small = sum(p.numel() for p in self.named.values()) < 5_000_000
        self.first_norms = {name: norm([p]) for name, p in self.named.items()}
        self.state: dict[str, Tensor] | None = None  # of the model, before the present step
        self.batch: Any = None  # of the last step
        self.fresh: list[list[Tensor]] = []  # gradients of the batches since the last update
        self.previous: Tensor | None = None  # the gradient that the last update used
        self.comparisons: list[_Comparison] = []
        self.before_step: dict[str, Tensor] = {}  # parameters, where this step's move is read
        self.moves_read = 0
        self.path = dict.fromkeys(self.named, 0.0)  # parameter -> sum of relative moves
        self.late_path: dict[str, float] = {}  # the same after step 20
        self.training = False  # between ``before`` and ``after``
        self.handles: list[Any] = [patient.optimizer.register_step_pre_hook(self._compare)]
        for name, module in patient.model.named_modules():
            if isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)):
                self.handles.append(module.register_forward_pre_hook(partial(self._mode, name)))

    def _mode(self, name: str, module: nn.Module, _: Any) -> None:
        if self.training and not module.training and name not in self.course.wrong_mode:
            self.course.wrong_mode.append(name)

    def before(self, step: int, batch: Any) -> None:
        """Keep what the step may change, and the fresh gradient of its batch."""
        if self.small or step % 10 == 0:
            self.state = {n: v.detach().clone() for n, v in self.patient.model.state_dict().items()}
        if len(self.comparisons) < COMPARED and step < MOST_COMPARED:
            try:
                self.fresh.append(gradient(self.patient, batch))
            except Exception:
                self.fresh.append([])
        if step < 3 or step % 8 == 0:
            self.before_step = {n: p.detach().clone() for n, p in self.named.items()}
        self.training, self.batch = True, batch

    def _compare(self, *_: Any) -> None:
        """Before an optimizer's step: note whether the gradients are those of the batches since the
        last step, kept from before, added up or shrunk.
        """
        self.course.updates += 1
        held = {id(p) for group in self.patient.optimizer.param_groups for p in group["params"]}
        free = [p for p in self.patient.model.parameters() if p.requires_grad]
        given = {i: p.grad for i, p in enumerate(free) if p.grad is not None and id(p) in held}
        self.course.norms.append(norm(list(given.values())))
        fresh, self.fresh = self.fresh, []
        if not fresh or not all(fresh) or not given:
            return
        got = torch.cat([_flatten(grad) for grad in given.values()])
        each = [torch.cat([_flatten(grads[i]) for i in given]) for grads in fresh]
        total = torch.stack(each).sum(0)
        if not bool(got.isfinite().all()) or not bool(total.isfinite().all()):
            return
        last, self.previous = self.previous, got
        small = 1e-3 * float(got.norm()) + 1e-12
        kept = (
            last is not None
            and len(last) == len(got)
            and float((got - total - last).norm()) < small
            and float(last.norm()) > 10 * small
        )
        count = len(fresh)
        added = count if count > 1 and float((got - total).norm()) < small else 1
        shrunk = float(got.norm()) / max(float((total / count).norm()), 1e-30)
        self.comparisons.append(_Comparison(kept, added, shrunk))

    def after(self, step: int) -> None:
        """Add the step's moves, relative to the parameters' norms, where they are read."""
        self.training = False
        self.moves_read += bool(self.before_step)
        for name, before in self.before_step.items():
            p = self.named[name]
            if before.shape == p.shape:
                moved = norm([p.detach() - before])
                share = moved / max(norm([before]), 1e-12) if math.isfinite(moved) else 0.0
                self.path[name] += share
                if step > 20:
                    self.late_path[name] = self.late_path.get(name, 0.0) + share
        self.before_step = {}

    def close(self) -> None:
        """Remove the hooks and write what was seen into the course."""
        for handle in self.handles:
            handle.remove()
        course = self.course
        course.moved = {n: length / max(1, self.moves_read) for n, length in self.path.items()}
        for name, p in self.named.items():
            course.grown[name] = norm([p]) / max(self.first_norms[name], 1e-12)
        course.stuck = self._stuck()
        later = self.comparisons[1:]
        if later:
            course.doubled = sum(c.kept for c in later) / len(later)
        if self.comparisons:
            course.added = max(c.added for c in self.comparisons)
            course.shrunk = middle(c.shrunk for c in self.comparisons)

    def _stuck(self) -> list[str]:
        """Parameters that the optimizer holds, that have a gradient, and that no longer move."""
        still = [name for name, length in self.late_path.items() if length == 0]
        moving = any(length > 1e-4 for length in self.late_path.values())
        if self.moves_read < 8 or not moving or not still:
            return []
        groups = self.patient.optimizer.param_groups
        held = {id(p) for group in groups if group["lr"] for p in group["params"]}
        names = [n for n, p in self.patient.model.named_parameters() if p.requires_grad]
        try:
            sizes = [float(g.abs().max()) for g in gradient(self.patient, self.batch)]
        except Exception:
            return []
        least = 1e-4 * max(sizes, default=0.0)
        graded = {n for n, size in zip(names, sizes) if math.isfinite(size) and size > least > 0}
        return [name for name in still if name in graded and id(self.named[name]) in held]


def _flatten(tensor: Tensor) -> Tensor:
    """All entries in a row, in float32; complex ones as pairs."""
    tensor = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).flatten().float()
