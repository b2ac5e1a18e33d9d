"""One run of a patient, followed step by step: losses, norms, moves, modes, and the state before
the first loss that is not finite.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

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
    seconds: float = 0.0

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
        return self.held[-1][1] if self.held else self.final

    def mean(self, begin: float, end: float) -> float:
        """Mean of the finite losses between two shares of the run."""
        n = len(self.losses)
        part = self.losses[int(begin * n) : max(int(begin * n) + 1, int(end * n))]
        finite = [v for v in part if math.isfinite(v)]
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


def norm(tensors: list[Tensor]) -> float:
    """Euclidean norm of all entries."""
    if not tensors:
        return 0.0
    parts = [t.detach().to_dense() if t.is_sparse else t.detach() for t in tensors]
    return float(torch.stack([p.abs().double().square().sum() for p in parts]).sum().sqrt())


def follow(patient: Patient, steps: int, *, watch: bool = False, until: float = math.inf) -> Course:
    """Train for some steps.

    Args:
        watch: also compare gradients, follow moves and modes, keep the state before a break.
        until: moment (``time.perf_counter``) at which the run ends early.
    """
    course, begun = Course(), time.perf_counter()
    model, optimizer = patient.model, patient.optimizer
    if patient.step is None:
        model.train()
    eyes = _Eyes(patient, course) if watch else None
    bad = 0
    checks = {0, steps // 10, steps // 4, steps // 2, 3 * steps // 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(steps):
            if k in checks and (watch or k == 0):
                _check(course, patient, k)
            batch = patient.train[k % len(patient.train)]
            if eyes is not None:
                eyes.before(k, batch)
            course.rates.append(float(optimizer.param_groups[0]["lr"]))
            epoch = getattr(patient.scheduler, "last_epoch", None)
            try:
                value = _step(patient, batch, k, course)
            except Exception as error:
                course.error, course.error_step = error, k
                break
            course.losses.append(value)
            if eyes is not None:
                eyes.after(k)
            if patient.scheduler is not None and patient.scheduler.last_epoch == epoch:
                try:
                    _step_scheduler(patient.scheduler, value)
                except Exception as error:
                    course.error, course.error_step = error, k
                    break
            bad = 0 if math.isfinite(value) else bad + 1
            if bad and course.broken < 0:
                course.broken = k
                course.before = eyes.state if eyes is not None else None
            if course.broken >= 0 and not bad:
                course.broken = -1  # it recovered: a bad batch, not a broken model
            if bad >= PATIENCE or time.perf_counter() > until:
                break
    if eyes is not None:
        eyes.close()
    if course.error is None:
        _check(course, patient, len(course.losses))
    course.seconds = time.perf_counter() - begun
    return course


def _step_scheduler(scheduler: Any, loss: float) -> None:
    try:
        scheduler.step()
    except TypeError:  # ReduceLROnPlateau wants the loss
        scheduler.step(loss)


def _check(course: Course, patient: Patient, step: int) -> None:
    try:
        course.held.append((step, held_out(patient)))
    except Exception:
        course.held.append((step, math.inf))


def _step(patient: Patient, batch: Any, k: int, course: Course) -> float:
    """One step as the user's loop takes it, or as it would with accumulation, clipping and warm-up;
    returns the loss of the batch.
    """
    if patient.step is not None:
        given = patient.step(batch)
        if isinstance(given, Tensor):
            return float(given.detach().double().mean())
        if isinstance(given, (int, float)):
            return float(given)
        with torch.no_grad(), undisturbed(patient.model):
            return float(patient.value(batch))
    optimizer = patient.optimizer
    if k % patient.accumulate == 0:
        optimizer.zero_grad(set_to_none=True)
    with around(patient):
        value = patient.value(batch)
        (value / patient.accumulate).backward()
    if (k + 1) % patient.accumulate:
        return float(value.detach())
    grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    if patient.clip is not None:
        size = norm(grads)
        limit = patient.clip
        if limit < 0:  # the median of the norms so far
            course.norms.append(size)
            known = sorted(n for n in course.norms if math.isfinite(n))
            limit = known[len(known) // 2] if known else 1.0
        if not math.isfinite(size):
            optimizer.zero_grad(set_to_none=True)
        elif size > limit > 0:
            for g in grads:
                g.mul_(limit / size)
    rates = [g["lr"] for g in optimizer.param_groups]
    if patient.warmup > k:
        for g in optimizer.param_groups:
            g["lr"] = g["lr"] * (k + 1) / patient.warmup
    optimizer.step()
    for g, rate in zip(optimizer.param_groups, rates):
        g["lr"] = rate
    return float(value.detach())


class _Eyes:
    """Follows what the optimizer and the modules do."""

    def __init__(self, patient: Patient, course: Course) -> None:
        self.patient, self.course = patient, course
        self.named = patient.named
        self.state: dict[str, Tensor] | None = None
        self.start = {n: float(p.detach().abs().double().norm()) for n, p in self.named.items()}
        self.small = sum(p.numel() for p in self.named.values()) < 5_000_000
        self.last: dict[str, Tensor] = {}
        self.path = dict.fromkeys(self.named, 0.0)
        self.watched = 0
        self.late: dict[str, float] = {}  # moves after step 20
        self.fresh: list[list[Tensor]] = []
        self.previous: list[Tensor] | None = None
        self.votes: list[tuple[bool, int, float]] = []
        self.handles: list[Any] = [optimizer_hook(patient.optimizer, self._stepping)]
        for name, module in patient.model.named_modules():
            if isinstance(module, (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)):
                self.handles.append(module.register_forward_pre_hook(self._mode(name)))
        self.looking = False
        self.fresh_batch: list[Any] = []

    def _mode(self, name: str) -> Any:
        def look(module: nn.Module, _: Any) -> None:
            if self.looking and not module.training and name not in self.course.wrong_mode:
                self.course.wrong_mode.append(name)

        return look

    def before(self, k: int, batch: Any) -> None:
        if self.small or k % 10 == 0:
            self.state = {n: v.detach().clone() for n, v in self.patient.model.state_dict().items()}
        if len(self.votes) < COMPARED and k < MOST_COMPARED:
            try:
                self.fresh.append(gradient(self.patient, batch))
            except Exception:
                self.fresh.append([])
        if k < 3 or k % 8 == 0:
            self.last = {n: p.detach().clone() for n, p in self.named.items()}
        self.looking = True
        self.fresh_batch = [batch]

    def _stepping(self, *_: Any) -> None:
        """Before an optimizer's step: note whether the gradients are those of the batches since the
        last step, kept from before, added up or shrunk.
        """
        course = self.course
        course.updates += 1
        own = {id(p) for g in self.patient.optimizer.param_groups for p in g["params"]}
        free = [p for p in self.patient.model.parameters() if p.requires_grad]
        pairs = [(i, p.grad) for i, p in enumerate(free) if p.grad is not None and id(p) in own]
        course.norms.append(norm([g for _, g in pairs]))
        if not self.fresh or any(not f for f in self.fresh) or not pairs:
            self.fresh = []
            return
        got = torch.cat([_flatten(g) for _, g in pairs])
        each = [torch.cat([_flatten(f[i]) for i, _ in pairs]) for f in self.fresh]
        total = torch.stack(each).sum(0)
        k = len(each)
        self.fresh = []
        if not bool(got.isfinite().all()) or not bool(total.isfinite().all()):
            return
        last = self.previous
        self.previous = [got]
        small = 1e-3 * float(got.norm()) + 1e-12
        kept = (
            last is not None
            and len(last[0]) == len(got)
            and float((got - total - last[0]).norm()) < small
            and float(last[0].norm()) > 10 * small
        )
        added = k if k > 1 and float((got - total).norm()) < small else 1
        fair = total / k
        shrunk = float(got.norm()) / max(float(fair.norm()), 1e-30)
        self.votes.append((kept, added, shrunk))

    def after(self, k: int) -> None:
        self.looking = False
        if self.last:
            self.watched += 1
            for n, p in self.named.items():
                if n in self.last and self.last[n].shape == p.shape:
                    step = float((p.detach() - self.last[n]).abs().double().norm())
                    size = float(self.last[n].abs().double().norm())
                    share = step / max(size, 1e-12) if math.isfinite(step) else 0.0
                    self.path[n] += share
                    if k > 20:
                        self.late[n] = self.late.get(n, 0.0) + share
            self.last = {}

    def close(self) -> None:
        for handle in self.handles:
            handle.remove()
        course = self.course
        course.moved = {n: length / max(1, self.watched) for n, length in self.path.items()}
        for n, p in self.named.items():
            course.grown[n] = float(p.detach().abs().double().norm()) / max(self.start[n], 1e-12)
        course.stuck = self._stuck()
        if len(self.votes) > 1:
            course.doubled = sum(kept for kept, _, _ in self.votes[1:]) / len(self.votes[1:])
        if self.votes:
            course.added = max(added for _, added, _ in self.votes)
            ratios = sorted(shrunk for _, _, shrunk in self.votes)
            course.shrunk = ratios[len(ratios) // 2]

    def _stuck(self) -> list[str]:
        """Parameters that the optimizer holds, that have a gradient, and that no longer move."""
        if (
            self.watched < 8
            or not self.fresh_batch
            or not any(v > 1e-4 for v in self.late.values())
        ):
            return []
        still = [n for n, v in self.late.items() if v == 0]
        if not still:
            return []
        held = {id(p) for g in self.patient.optimizer.param_groups if g["lr"] for p in g["params"]}
        names = [n for n, p in self.patient.model.named_parameters() if p.requires_grad]
        try:
            sizes = [float(g.abs().max()) for g in gradient(self.patient, self.fresh_batch[0])]
        except Exception:
            return []
        top = max(sizes, default=0.0)
        moving = {n for n, s in zip(names, sizes) if math.isfinite(s) and s > 1e-4 * top > 0}
        return [n for n in still if n in moving and id(self.named[n]) in held]


def _flatten(t: Tensor) -> Tensor:
    t = t.detach()
    t = t.to_dense() if t.is_sparse else t
    return (torch.view_as_real(t) if t.is_complex() else t).flatten().float()


def optimizer_hook(optimizer: torch.optim.Optimizer, hook: Any) -> Any:
    """Call the hook before every step of the optimizer."""
    return optimizer.register_step_pre_hook(hook)
