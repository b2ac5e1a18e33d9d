"""One run of a patient, followed step by step: losses, norms, moves, modes, and the state before
the first loss that is not finite.
"""

from __future__ import annotations

import math
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from statistics import median_high
from typing import Any

import torch
from torch import Tensor, nn

from mindgap.advise.doctor.patient import MOST_VALID, Patient
from mindgap.base.check import error_words, fail
from mindgap.base.objective import Objective
from mindgap.base.restoring import undisturbed
from mindgap.base.tensors import flatten

#: Updates in which the user's gradient is compared with fresh ones, all within so many first steps.
COMPARED, LAST_COMPARED = 8, 64
#: Steps in a row whose loss is not finite, after which a run ends; steps at the beginning in which
#: a parameter may stand still before it counts as stuck.
PATIENCE, EARLY_STEPS = 5, 20
#: Entries of a model whose state is kept at every step; a larger one's every ten steps.
SMALL_MODEL = 5_000_000
#: Modules that act otherwise in evaluation mode.
MODAL = (nn.modules.batchnorm._BatchNorm, nn.modules.dropout._DropoutNd)


@dataclass
class Course:
    """What was seen in one run."""

    losses: list[float] = field(default_factory=list)  # of each step, as the user's step returns it
    rates: list[float] = field(default_factory=list)  # of each step, of the first group
    norms: list[float] = field(default_factory=list)  # gradient norm that the optimizer was given
    held_out_losses: list[tuple[int, float]] = field(default_factory=list)  # (step, loss)
    #: parameter -> length of its path per step, over its norm
    relative_moves: dict[str, float] = field(default_factory=dict)
    #: parameter -> its norm at the end over that at the start
    weight_growth: dict[str, float] = field(default_factory=dict)
    error: BaseException | None = None  # what the user's code raised
    error_step: int = -1
    held_out_error: str = ""  # what the last held-out loss raised, in words
    broke_at: int = -1  # step of the first loss or weight that is not finite; -1: none
    state_before_break: dict[str, Tensor] | None = None  # the model's, before that step
    updates: int = 0  # calls of optimizer.step
    doubled_share: float = 0.0  # share of compared steps that kept the gradient of the step before
    added_batches: int = 1  # batches per update whose gradients were added and not averaged
    #: parameters with a gradient, in the optimizer, that do not move
    stuck_parameters: list[str] = field(default_factory=list)
    kept_norm_share: float = 1.0  # gradient norm that the optimizer got over the fresh one's
    evaluating_modules: list[str] = field(default_factory=list)  # modules not in training mode

    @property
    def final(self) -> float:
        """Mean loss of the last tenth of the steps; infinite where the run broke."""
        if not self.losses or self.broke_at >= 0:
            return math.inf
        recent = self.losses[-max(1, len(self.losses) // 10) :]
        mean = sum(recent) / len(recent)
        return mean if math.isfinite(mean) else math.inf

    @property
    def final_held_out(self) -> float:
        """The last held-out loss; ``final`` where none was computed."""
        return self.held_out_losses[-1][1] if self.held_out_losses else self.final

    def mean(self, begin: float, end: float) -> float:
        """Mean of the finite training losses between two moments of the run; infinite where none is
        finite. At least one loss is looked at.

        Args:
            begin, end: moments as shares of the run, from 0 to 1.
        """
        count = len(self.losses)
        first = int(begin * count)
        part = self.losses[first : max(first + 1, int(end * count))]
        finite = [loss for loss in part if math.isfinite(loss)]
        return sum(finite) / len(finite) if finite else math.inf


def held_out_loss(patient: Patient, batches: list[Any] | None = None) -> float:
    """Mean loss of the first ``MOST_VALID`` batches in evaluation mode; infinite where it is not a
    finite number. The model's weights, buffers and modes stay as they are.

    Args:
        batches: by default the validation batches, or the training batches where there are none.
    """
    evaluated = (batches or patient.valid or patient.train)[:MOST_VALID]
    with undisturbed(patient.model), loss_contexts(patient), torch.no_grad():
        patient.model.eval()
        mean = sum(float(patient.value(batch)) for batch in evaluated) / len(evaluated)
    return mean if math.isfinite(mean) else math.inf


@contextmanager
def loss_contexts(patient: Patient) -> Iterator[None]:
    """A block inside the context managers that a cure puts around every call of the loss."""
    with ExitStack() as stack:
        for context in patient.contexts:
            stack.enter_context(context())
        yield


def gradient(patient: Patient, batch: Any) -> list[Tensor]:
    """A fresh gradient of the user's loss at the present weights, one tensor per trainable
    parameter; nothing changes.
    """
    with undisturbed(patient.model), loss_contexts(patient):
        return Objective(patient.model, patient.loss).value_and_grad(batch)[1]


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
    """Euclidean norm of all entries, also of sparse and complex tensors; 0 of no tensor."""
    if not tensors:
        return 0.0
    parts = [t.detach().to_dense() if t.is_sparse else t.detach() for t in tensors]
    return float(torch.stack([p.abs().double().square().sum() for p in parts]).sum().sqrt())


def follow(patient: Patient, steps: int, *, watch: bool = False) -> Course:
    """Train the patient in place for some steps and return what was seen. An error of the user's
    code ends the run and is kept in the course, and ``PATIENCE`` losses in a row that are not
    finite end it, too.

    Args:
        watch: also compare gradients, follow moves and modes, keep the state before a break, and
            take held-out losses on the way. The first and the last one are always taken.
    """
    course = Course()
    if patient.step is None:
        try:
            patient.model.train()
        except (Exception, SystemExit) as error:
            course.error, course.error_step = error, 0
            return course
    observer = _Observer(patient, course) if watch else None
    held_out_steps = {0, steps // 10, steps // 4, steps // 2, 3 * steps // 4}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for step in range(steps):
            if step in held_out_steps and (watch or step == 0):
                _note_held_out_loss(course, patient, step)
            try:
                loss = _follow_step(patient, step, course, observer)
            except (Exception, SystemExit) as error:
                course.error, course.error_step = error, step
                break
            if math.isfinite(loss):
                course.broke_at = -1  # it recovered: a bad batch, not a broken model
            elif course.broke_at < 0:
                course.broke_at = step
                course.state_before_break = observer.state if observer is not None else None
            elif step - course.broke_at >= PATIENCE - 1:
                break
    if observer is not None:
        observer.close()
    if course.error is None:
        _note_held_out_loss(course, patient, len(course.losses))
    return course


def _follow_step(patient: Patient, step: int, course: Course, observer: _Observer | None) -> float:
    """Make one training step, append its loss and learning rate to the course, and return the loss.
    The scheduler is stepped here unless the user's own step did so.
    """
    batch = patient.train[step % len(patient.train)]
    scheduler = patient.scheduler
    if observer is not None:
        observer.before(step, batch)
    course.rates.append(_learning_rate(patient.optimizer))
    epoch_before = getattr(scheduler, "last_epoch", None)
    loss = _take_step(patient, batch, step, course)
    course.losses.append(loss)
    if observer is not None:
        observer.after(step)
    if scheduler is not None and getattr(scheduler, "last_epoch", None) == epoch_before:
        try:
            scheduler.step()
        except TypeError:  # ReduceLROnPlateau wants the loss
            scheduler.step(loss)
    return loss


def _note_held_out_loss(course: Course, patient: Patient, step: int) -> None:
    """Append the step and the held-out loss to the course; infinity where the loss raises, with
    the error in words.
    """
    course.held_out_error = ""
    try:
        course.held_out_losses.append((step, held_out_loss(patient)))
    except (Exception, SystemExit) as error:
        course.held_out_losses.append((step, math.inf))
        course.held_out_error = error_words(error)


def _learning_rate(optimizer: torch.optim.Optimizer) -> float:
    """The learning rate of the first group.

    Raises:
        RuleError: it is no finite number.
    """
    value = optimizer.param_groups[0]["lr"]
    try:
        rate = math.nan if isinstance(value, str) else float(value)
    except (TypeError, ValueError, RuntimeError):  # a list, None, a tensor of several numbers
        rate = math.nan
    if not math.isfinite(rate):
        fail("lr", "must be a finite number in the optimizer's groups", value)
    return rate


def _take_step(patient: Patient, batch: Any, step: int, course: Course) -> float:
    """Train on one batch by the user's own step, or by zero_grad, loss, backward and
    ``optimizer.step`` with the patient's accumulation, clipping and warm-up of the learning rate.
    Returns the loss of the batch.
    """
    if patient.step is not None:
        return _user_step(patient, batch)
    optimizer = patient.optimizer
    if step % patient.accumulate == 0:
        optimizer.zero_grad(set_to_none=True)
    with loss_contexts(patient):
        loss = patient.value(batch)
        (loss / patient.accumulate).backward()
    if (step + 1) % patient.accumulate == 0:
        if patient.clip is not None:
            _clip_gradients(patient, patient.clip, course)
        rates = [group["lr"] for group in optimizer.param_groups]
        if patient.warmup > step:  # for this step only: the rates are put back below
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * (step + 1) / patient.warmup
        optimizer.step()
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate
    return float(loss.detach())


def _user_step(patient: Patient, batch: Any) -> float:
    """Make the user's own step. Returns the loss that it returns (a tensor's mean, a number), else
    the loss of the batch after the step.
    """
    assert patient.step is not None
    returned = patient.step(batch)
    if isinstance(returned, Tensor) and _is_readable(returned):
        return float(returned.detach().double().mean())
    if isinstance(returned, (int, float)):
        return float(returned)
    with torch.no_grad(), undisturbed(patient.model):
        return float(patient.value(batch))


def _is_readable(tensor: Tensor) -> bool:
    """Whether a tensor holds real numbers, one or more, whose mean can be taken."""
    strided = tensor.layout is torch.strided and not tensor.is_meta
    return strided and tensor.numel() > 0 and not tensor.is_complex()


def _clip_gradients(patient: Patient, limit: float, course: Course) -> None:
    """Scale the gradient in place so that its norm is at most a limit. A gradient that is not
    finite is set to None, so that the step moves nothing.

    Args:
        limit: the largest norm. Below 0 it is the median of the norms so far: the present norm is
            then appended to ``course.norms``, and those that are not finite do not count.
    """
    groups = patient.optimizer.param_groups
    grads = [p.grad for group in groups for p in group["params"] if p.grad is not None]
    gradient_norm = norm(grads)
    if limit < 0:
        course.norms.append(gradient_norm)
        finite = [n for n in course.norms if math.isfinite(n)]
        limit = median_high(finite) if finite else 1.0
    if not math.isfinite(gradient_norm):
        patient.optimizer.zero_grad(set_to_none=True)
    elif gradient_norm > limit > 0:
        for grad in grads:
            grad.mul_(limit / gradient_norm)


@dataclass(frozen=True)
class _Comparison:
    """The gradient that the optimizer got beside fresh ones of the same batches."""

    doubled: bool  # it still holds the gradient of the step before
    added_batches: int  # batches whose gradients were added and not averaged; 1: none were
    kept_norm_share: float  # its norm over that of the mean of the fresh ones


class _Observer:
    """Follows what the optimizer and the modules do at every step, and writes it into a course."""

    def __init__(self, patient: Patient, course: Course) -> None:
        self.patient, self.course = patient, course
        self.parameters = patient.named_parameters
        self.first_norms = {name: norm([p]) for name, p in self.parameters.items()}
        size = sum(p.numel() for p in self.parameters.values())
        self.state_period = 1 if size < SMALL_MODEL else 10  # steps between two kept states
        self.state: dict[str, Tensor] | None = None  # of the model, before the present step
        self.last_batch: Any = None
        self.fresh_gradients: list[list[Tensor]] = []  # of the batches since the last update
        self.previous_gradient: Tensor | None = None  # the one that the last update used
        self.comparisons: list[_Comparison] = []
        self.values_before: dict[str, Tensor] = {}  # parameters, where this step's move is read
        self.moves_read = 0
        self.path_lengths = dict.fromkeys(self.parameters, 0.0)  # name -> sum of relative moves
        #: name -> the same sum, of the steps after ``EARLY_STEPS``
        self.late_path_lengths: defaultdict[str, float] = defaultdict(float)
        self.inside_step = False  # between ``before`` and ``after``
        self.handles: list[Any] = [patient.optimizer.register_step_pre_hook(self._compare)]
        for name, module in patient.model.named_modules():
            if isinstance(module, MODAL):
                note_mode = partial(self._note_mode, name)
                self.handles.append(module.register_forward_pre_hook(note_mode))

    def _note_mode(self, name: str, module: nn.Module, _: Any) -> None:
        """Hook before a module runs: note that it is in evaluation mode while training."""
        noted = self.course.evaluating_modules
        if self.inside_step and not module.training and name not in noted:
            noted.append(name)

    def before(self, step: int, batch: Any) -> None:
        """Keep what the coming step may change: the model's state every ``state_period`` steps, the
        fresh gradient of the batch until enough are compared (an empty list where it raises), and
        the parameters' values in the first three steps and every eighth one.
        """
        if step % self.state_period == 0:
            state = self.patient.model.state_dict()
            self.state = {name: value.detach().clone() for name, value in state.items()}
        if len(self.comparisons) < COMPARED and step < LAST_COMPARED:
            try:
                self.fresh_gradients.append(gradient(self.patient, batch))
            except (Exception, SystemExit):
                self.fresh_gradients.append([])
        if step < 3 or step % 8 == 0:
            self.values_before = {n: p.detach().clone() for n, p in self.parameters.items()}
        self.inside_step, self.last_batch = True, batch

    def _compare(self, *_: Any) -> None:
        """Hook before ``optimizer.step``: count the call, note the gradient's norm, and compare the
        gradient with the fresh ones of the batches since the last call, which are then forgotten.

        The comparison says whether the gradient still holds that of the call before, whether those
        of several batches are added up without division, and how much of the norm is left. There is
        none where a gradient is unknown or not finite.
        """
        self.course.updates += 1
        trained = {id(p) for group in self.patient.optimizer.param_groups for p in group["params"]}
        trainable = [p for p in self.patient.model.parameters() if p.requires_grad]
        # By the parameter's place among the trainable ones, as fresh gradients have them.
        grads = {
            i: p.grad for i, p in enumerate(trainable) if p.grad is not None and id(p) in trained
        }
        self.course.norms.append(norm(list(grads.values())))
        fresh, self.fresh_gradients = self.fresh_gradients, []
        if not fresh or not all(fresh) or not grads:  # an empty list: the fresh one is unknown
            return
        if any(len(each) != len(trainable) for each in fresh):  # a model that changes its tensors
            return
        used = _flatten(grads.values())
        fresh_sum = torch.stack([_flatten(each[i] for i in grads) for each in fresh]).sum(0)
        if not bool(used.isfinite().all()) or not bool(fresh_sum.isfinite().all()):
            return
        previous, self.previous_gradient = self.previous_gradient, used
        rounding = 1e-3 * float(used.norm()) + 1e-12
        # What was used is the fresh gradient plus the one before, which is not next to nothing.
        doubled = (
            previous is not None
            and len(previous) == len(used)
            and float((used - fresh_sum - previous).norm()) < rounding
            and float(previous.norm()) > 10 * rounding
        )
        added_up = len(fresh) > 1 and float((used - fresh_sum).norm()) < rounding
        fresh_norm = float((fresh_sum / len(fresh)).norm())
        self.comparisons.append(
            _Comparison(
                doubled,
                added_batches=len(fresh) if added_up else 1,
                kept_norm_share=float(used.norm()) / max(fresh_norm, 1e-30),
            )
        )

    def after(self, step: int) -> None:
        """Add the lengths of the step's moves, over the parameters' norms, to the path lengths, in
        steps where ``before`` kept the values. A move that is not finite counts as none.
        """
        self.inside_step = False
        self.moves_read += bool(self.values_before)
        for name, before in self.values_before.items():
            parameter = self.parameters[name]
            if before.shape == parameter.shape:
                length = norm([parameter.detach() - before])
                relative = length / max(norm([before]), 1e-12) if math.isfinite(length) else 0.0
                self.path_lengths[name] += relative
                if step > EARLY_STEPS:
                    self.late_path_lengths[name] += relative
        self.values_before = {}

    def close(self) -> None:
        """Remove the hooks and write what was seen into the course."""
        for handle in self.handles:
            handle.remove()
        course, comparisons = self.course, self.comparisons
        reads = max(1, self.moves_read)
        course.relative_moves = {name: path / reads for name, path in self.path_lengths.items()}
        for name, p in self.parameters.items():
            course.weight_growth[name] = norm([p]) / max(self.first_norms[name], 1e-12)
        course.stuck_parameters = self._stuck_parameters()
        if comparisons:
            course.added_batches = max(each.added_batches for each in comparisons)
            course.kept_norm_share = median_high(each.kept_norm_share for each in comparisons)
        if comparisons[1:]:  # the first one has no step before it
            course.doubled_share = sum(c.doubled for c in comparisons[1:]) / len(comparisons[1:])

    def _stuck_parameters(self) -> list[str]:
        """Names of the parameters in the optimizer that no longer move after ``EARLY_STEPS``, while
        others do, although they have a gradient on the last batch (an entry of more than 1e-4 of
        the largest one of all). Empty where fewer than eight moves were read.
        """
        unmoved = [name for name, length in self.late_path_lengths.items() if length == 0]
        others_move = any(length > 1e-4 for length in self.late_path_lengths.values())
        if self.moves_read < 8 or not others_move or not unmoved:
            return []
        groups = self.patient.optimizer.param_groups
        trained = {id(p) for group in groups if group["lr"] for p in group["params"]}
        # By name and in this order ``gradient`` gives one tensor per trainable parameter.
        names = [n for n, p in self.patient.model.named_parameters() if p.requires_grad]
        try:
            peaks = [float(g.abs().max()) for g in gradient(self.patient, self.last_batch)]
        except Exception:
            return []
        least = 1e-4 * max(peaks, default=0.0)
        with_gradient = {
            name for name, peak in zip(names, peaks) if math.isfinite(peak) and peak > least > 0
        }
        return [n for n in unmoved if n in with_gradient and id(self.parameters[n]) in trained]


def _flatten(tensors: Iterable[Tensor]) -> Tensor:
    """All entries in a row, in float32; those of sparse tensors with their zeros."""
    return flatten([t.detach().to_dense() if t.is_sparse else t.detach() for t in tensors]).float()
