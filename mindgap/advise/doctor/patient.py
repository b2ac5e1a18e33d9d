"""What the user hands over, and fresh copies of it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from statistics import median_high
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from mindgap.advise.training import Factory, call_factory
from mindgap.base.batches import pair
from mindgap.base.check import error_words, fail
from mindgap.base.objective import Objective
from mindgap.base.restoring import seed_everything
from mindgap.base.rng import stream_seed

#: Most training batches that are read, and most validation batches per evaluation.
MOST_BATCHES, MOST_VALID = 400, 8
#: Names of a mapping that ``problem`` may return.
PARTS = ("model", "loss", "train", "valid", "optimizer", "scheduler", "step")


class BatchesError(Exception):
    """The user's batches raised an error when they were read; its text is that error in words.

    Args:
        name: the part of :data:`PARTS` that was read.
        error: what it raised.
    """

    def __init__(self, name: str, error: BaseException) -> None:
        super().__init__(error_words(error))
        self.name = name


@dataclass
class Patient:
    """One copy of the user's training, with what a cure may change. The *standard step* is
    zero_grad, loss, backward and ``optimizer.step``.
    """

    model: nn.Module
    loss: Callable[[Any, Any], Tensor]  # of model and batch
    train: list[Any]  # batches
    valid: list[Any]  # empty: none was given, and too few batches to hold some out
    optimizer: torch.optim.Optimizer
    scheduler: Any = None
    step: Callable[[Any], Any] | None = None  # the user's own; None: the standard step
    given: frozenset[str] = frozenset()  # the parts that the user gave
    clip: float | None = None  # the standard step clips norms here; -1: at their median
    warmup: int = 0  # the standard step raises the rate over so many steps
    accumulate: int = 1  # the standard step adds up so many batches
    contexts: list[Any] = field(default_factory=list)  # context managers around every loss
    numbers: list[int] = field(default_factory=list)  # the user's number of each training batch

    @property
    def named_parameters(self) -> dict[str, nn.Parameter]:
        """The model's parameters by their names."""
        return dict(self.model.named_parameters())

    def value(self, batch: Any) -> Tensor:
        """The user's loss, one number."""
        return Objective(self.model, self.loss).value(batch)


class Admission:
    """Builds copies of the user's training that start at the same weights.

    Args:
        problem: the user's function, as ``recommend`` takes it. It returns ``((model, loss),
            batches, ...)``, where the rest may hold validation batches, an optimizer, a scheduler
            and a step function in any order, or a mapping with the names in :data:`PARTS`.
        seed: seeds the random states before every call.
    """

    def __init__(self, problem: Factory, seed: int) -> None:
        if not callable(problem):
            fail("problem", "must be a function that builds model, loss and batches", problem)
        self.problem, self.seed = problem, seed
        self._first_states: list[Any] = []  # of model, optimizer and scheduler

    def fresh(self) -> Patient:
        """Call the user's function and return a new copy of the training at the first weights,
        without gradients.

        Where the function returns the same objects again, these get back the states that model,
        optimizer and scheduler had after the first call, which are kept for that. Seeds the global
        generators before the call and once more after it, each time alike.
        """
        seed_everything(stream_seed(self.seed, "start"))
        patient = _read_parts(call_factory(self.problem, self.seed))
        parts = (patient.model, patient.optimizer, patient.scheduler)
        for part, state in zip(parts, self._first_states):
            with suppress(Exception):  # a part whose state does not load stays as it was built
                part.load_state_dict(copy.deepcopy(state))
        if not self._first_states:
            with torch.no_grad():
                self._first_states = [copy.deepcopy(part.state_dict()) for part in parts[:2]]
            with suppress(Exception):  # there may be no scheduler, or one without a state
                self._first_states.append(copy.deepcopy(patient.scheduler.state_dict()))
        for p in patient.model.parameters():
            p.grad = None
        seed_everything(stream_seed(self.seed, "steps"))
        return patient


def _read_parts(returned: Any) -> Patient:
    """Build the patient from what the user's function returned: a tuple or a mapping of model,
    loss, training batches and optional parts. A faulty part raises an error that names it.

    Lazy modules get their shapes. Without validation batches every tenth training batch is held
    out where there are ten or more. Without an optimizer AdamW at 1e-3 is made.
    """
    parts = _named_parts(returned)
    given = frozenset(name for name, part in parts.items() if part is not None)
    loss = _loss_of_batches(parts["loss"])
    Objective(parts["model"], loss)  # checks both
    train = _list_batches("train", parts["train"])
    if not train:
        fail("train", "must hold at least one batch", train)
    if all(isinstance(x, Tensor) and not len(x) for x, _ in map(pair, train)):
        fail("train", "must hold at least one sample", f"{len(train)} empty batches")
    model = getattr(parts["model"], "_orig_mod", parts["model"])  # of torch.compile
    if any(isinstance(p, UninitializedParameter) for p in model.parameters()):
        with torch.no_grad():  # lazy modules learn their shapes from a first batch
            loss(model, train[0])
    numbers = list(range(len(train)))
    valid = _list_batches("valid", parts["valid"]) if "valid" in given else []
    if "valid" not in given and len(train) >= 10:
        held_out = _choose_held_out(train)
        valid = [train[i] for i in held_out]
        numbers = [i for i in numbers if i not in held_out]
    optimizer = parts.get("optimizer")
    if optimizer is None:
        trainable = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trainable or [torch.zeros(1)], lr=1e-3)
    elif not isinstance(optimizer, torch.optim.Optimizer):
        fail("optimizer", "must be a torch.optim.Optimizer", optimizer)
    elif not optimizer.param_groups or any("lr" not in group for group in optimizer.param_groups):
        names = [sorted(group) for group in optimizer.param_groups or ()]
        fail("optimizer", "must have groups with a learning rate lr", names)
    scheduler = parts.get("scheduler")
    if scheduler is not None and (
        isinstance(scheduler, type) or not callable(getattr(scheduler, "step", None))
    ):
        fail("scheduler", "must be an object with a method step", scheduler)
    step = parts.get("step")
    if step is not None and not callable(step):
        fail("step", "must be a function of one batch that trains on it", step)
    return Patient(
        model,
        loss,
        [train[i] for i in numbers],
        valid,
        optimizer,
        scheduler,
        step,
        given,
        numbers=numbers,
    )


def _named_parts(returned: Any) -> dict[str, Any]:
    """What the user's function returned, by the names in :data:`PARTS`. Raises an error where it
    is neither such a mapping nor a tuple ``((model, loss), batches, ...)``.
    """
    rule = (
        "must return ((model, loss), batches, ...) or a mapping with model, loss, train and, where "
        "you have them, valid, optimizer, scheduler, step"
    )
    if isinstance(returned, Mapping):
        if not {"model", "loss", "train"} <= set(returned) <= set(PARTS):
            fail("problem", rule, sorted(map(str, returned)))
        return dict(returned)
    if not isinstance(returned, tuple) or len(returned) < 2:
        fail("problem", rule, type(returned).__name__)
    objective, train, *others = returned
    if isinstance(objective, Objective):
        objective = objective.model, objective.loss
    if not isinstance(objective, tuple) or len(objective) != 2:
        fail("problem", rule, type(objective).__name__)
    model, loss = objective
    named = {_part_name(part): part for part in others}
    return {"model": model, "loss": loss, "train": train, **named}


def _choose_held_out(train: list[Any]) -> list[int]:
    """Numbers of every tenth batch, without those whose largest entry is more than 50 times the
    median one: an outlier stays in training.
    """
    largest = [_largest_entry(batch) for batch in train]
    usual = median_high(largest)
    return [i for i in range(9, len(train), 10) if largest[i] <= 50 * usual]


def _loss_of_batches(loss: Any) -> Any:
    """The user's loss as a function of (model, batch). A criterion of (output, target), as torch.nn
    has them, is called with the model's output on all parts of a batch but the last, which is the
    target. Any other loss is returned as it is.
    """
    functional = getattr(loss, "__module__", "") == "torch.nn.functional"
    if not (isinstance(loss, nn.Module) or functional):
        return loss

    def of_batch(model: nn.Module, batch: Any) -> Tensor:
        """The criterion ``loss`` of the model's output on a batch and its last part."""
        parts = tuple(batch.values()) if isinstance(batch, Mapping) else tuple(batch)
        value: Tensor = loss(model(*parts[:-1]), parts[-1])
        return value

    return of_batch


def _largest_entry(batch: Any) -> float:
    """Largest absolute number of a batch; infinite where one is not finite. Sparse, quantized and
    nested tensors and those without memory are not read.
    """
    parts = [
        part
        for part in pair(batch)
        if part is not None and part.is_floating_point() and _is_dense(part) and part.numel()
    ]
    peaks = [float(part.detach().abs().max()) for part in parts]
    return max((peak if math.isfinite(peak) else math.inf for peak in peaks), default=0.0)


def _is_dense(tensor: Tensor) -> bool:
    """Whether a tensor's numbers lie in memory, each at its own place."""
    return tensor.layout is torch.strided and not tensor.is_meta and not tensor.is_nested


def _part_name(part: Any) -> str:
    """The name in :data:`PARTS` of what stands behind model, loss and batches in a tuple, by its
    kind; what is of none of the others is the step.
    """
    if part is None or isinstance(part, Iterable):
        return "valid"
    if isinstance(part, torch.optim.Optimizer):
        return "optimizer"
    return "scheduler" if hasattr(part, "last_epoch") else "step"


def _list_batches(name: str, batches: Any) -> list[Any]:
    """The first :data:`MOST_BATCHES` batches; batches that can be read once only are refused."""
    if isinstance(batches, Iterator) or not isinstance(batches, Iterable):
        fail(
            name,
            "must be batches that can be read more than once (a list or a DataLoader)",
            type(batches).__name__,
        )
    try:
        return list(islice(iter(batches), MOST_BATCHES))
    except (Exception, SystemExit) as error:  # of the user's data
        raise BatchesError(name, error) from error
