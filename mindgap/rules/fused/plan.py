"""What a fused step works on: the optimizer's record, the tensors, where they lie, and how they
are cut into chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from operator import is_, itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

#: The address of a tensor's memory, and the state ``step`` of a parameter's states: functions that
#: ``map`` calls from C.
_POINTER: Any = torch._C.TensorBase.data_ptr
_COUNTER = itemgetter("step")
#: Dtypes whose states are float32.
NARROW = (torch.bfloat16, torch.float16)


class FusedRecord(NamedTuple):
    """All that the fused engine reads of an optimizer, for one parameter group at one step."""

    rule: str = ""  # which entry of ``program.PROGRAMS`` makes the step
    #: the rule's numbers at this step; ``of`` adds ``lr``, ``decay`` and ``sign``.
    numbers: Mapping[str, Any] = MappingProxyType({})
    #: names of the states that the rule reads or writes, one tensor per parameter each.
    states: tuple[str, ...] = ()
    #: over which parameters the rule takes a norm (``settings.SCOPES``); None where it takes none.
    scope: str | None = None
    #: states that the optimizer itself must have made before (the others start at zero).
    started: tuple[str, ...] = ()
    #: whether the rule needs the number of gradients that each parameter has seen, its state
    #: ``step``.
    counts: bool = False
    #: whether all numbers are Python's: none is a tensor, which may change unseen.
    plain: bool = True
    #: the last norms, from which the rule takes its threshold; None where it takes none.
    window: Tensor | None = None
    k: int = 0  # number of the step, from 1
    refusal: str | None = None  # why these settings have no fused form; None where they have one

    @classmethod
    def of(
        cls, rule: str, group: Mapping[str, Any], numbers: Mapping[str, Any], **fields: Any
    ) -> FusedRecord:
        """A record of a group for its next step, with the settings that every group has.

        A number that is a tensor is read if it lies on the CPU, and makes the record a refusal if
        it lies elsewhere.

        Args:
            rule: key of ``program.PROGRAMS``.
            group: the parameter group; ``lr``, ``weight_decay``, ``maximize`` and ``k`` are read.
            numbers: the rule's own ones, by name.
            fields: other fields of the record.

        Example:
            >>> group = {"lr": 0.1, "weight_decay": 0.0, "maximize": False}
            >>> FusedRecord.of("scaled", group, {"beta": 0.9}).numbers
            {'lr': 0.1, 'decay': 0.0, 'sign': 1.0, 'beta': 0.9}
        """
        sign = -1.0 if group["maximize"] else 1.0
        filled = {"lr": group["lr"], "decay": group["weight_decay"], "sign": sign, **numbers}
        for name, value in numbers.items():
            if isinstance(value, Tensor):  # a function of the step may return one
                if value.device.type != "cpu" or value.numel() != 1:
                    fields["refusal"] = f"{name} is a tensor"
                else:
                    filled[name] = value.item()
        no_tensor = not isinstance(group["lr"], Tensor)
        return cls(rule, filled, plain=no_tensor, k=group.get("k", 0) + 1, **fields)


#: How many fields of a record, from the first, can be compared as they are.
_NUMBERED = FusedRecord._fields.index("window")


class JudgedEntries(NamedTuple):
    """What the kernels need to judge large gradients (``mindgap.optim.sides``) on a device."""

    evidence: Tensor  # seven numbers
    sides: Tensor  # the remembered direction, one entry per entry that is read
    #: per parameter the place of its first entry there, and the distance and number of its entries.
    places: Mapping[Tensor, tuple[int, int, int]]
    beta2: float  # weight of the past in the running mean of squared norms


class Policy(NamedTuple):
    """What to do about the norm of all gradients before the rule."""

    nonfinite: str = "propagate"  # ``"propagate"``, ``"skip"`` or ``"raise"``
    #: threshold: a number, ``"auto"`` for a quantile of the window, ``"unit"`` to divide by the
    #: norm whatever it is, ``"noise"`` for what ``judge`` says, or None.
    clip: float | str | None = None
    guard: str | None = None  # what to do about a spike: ``"clip"``, ``"skip"``, or None
    window: Tensor | None = None  # the last norms, oldest first, zeros for none
    eps: float = 1e-6  # added to the norm before dividing a threshold that is a number by it
    quantile: float = 0.9  # the quantile that ``"auto"`` follows
    spike_after: int = 20  # norms that must have been seen before one can be a spike
    #: of the norm of all gradients on the CPU: the factor on them, and whether the step is bounded.
    judge: Callable[[float], tuple[float, bool]] | None = None
    judged: Callable[[torch.device], JudgedEntries] | None = None  # what CUDA's kernels judge by

    @property
    def looks(self) -> bool:
        """Whether it needs the norm before the rule is applied."""
        return self.nonfinite != "propagate" or self.clip is not None or self.guard is not None


class Outcome(NamedTuple):
    """What a fused step did."""

    notes: Mapping[str, Any] = MappingProxyType({})  # norms, shares and counts for the report
    skipped: bool = False  # the step was left out
    bounded: bool = False  # AdamW's step was held at the running mean of |g|
    skips: Tensor | None = None  # such steps, counted on the device by themselves
    #: a spike at this step: its norm, the lower quantile of the norms before, and the limit.
    spike: tuple[float, float, float] | None = None
    spikes: Tensor | None = None  # the same with step numbers, kept on the device


def same_memory_order(first: Tensor, second: Tensor) -> bool:
    """Whether walking through the memory of both tensors, without holes, visits elements of the
    same indices in the same order.

    Example:
        >>> a = torch.zeros(2, 3)
        >>> same_memory_order(a.t(), torch.ones(3, 2)), same_memory_order(a.t(), a.clone().t())
        (False, True)
        >>> same_memory_order(a[:, :2], a[:, :2])
        False
    """
    if first.is_contiguous() and second.is_contiguous():
        return True
    if first.stride() != second.stride() or first.shape != second.shape:
        return False
    order = sorted(range(first.dim()), key=lambda d: first.stride()[d], reverse=True)
    return first.permute(order).is_contiguous()


def obstacle(p: Tensor, grad: Tensor, states: Mapping[str, Tensor]) -> str | None:
    """Why kernels that walk through bare memory cannot work on a parameter, its gradient and its
    states (by name); None where they can.

    Example:
        >>> p = torch.zeros(3)
        >>> obstacle(p, torch.zeros(3), {"momentum": torch.zeros(4)})
        'momentum has shape (4,) where its parameter has (3,)'
    """
    state_dtype = torch.float32 if p.dtype in NARROW else p.dtype
    if p.is_complex():
        return "a parameter is complex"
    for name, t in (("a parameter", p), ("a gradient", grad), *states.items()):
        if type(t) is not Tensor and type(t) is not torch.nn.Parameter:
            return f"{name} is a tensor subclass ({type(t).__name__})"
        if t.layout != torch.strided:
            return f"{name} is not dense"
        if t.device != p.device:
            return f"{name} lies on {t.device} and its parameter on {p.device}"
        if t.shape != p.shape:
            return f"{name} has shape {tuple(t.shape)} where its parameter has {tuple(p.shape)}"
        if t.is_neg() or t.is_conj():
            return f"{name} is negated or conjugated when it is read"
        if t.is_inference() and t is not grad:
            return f"{name} is an inference tensor"
        if name in states and t.dtype != state_dtype:
            return f"{name} has {t.dtype} where {state_dtype} is needed"
        if not same_memory_order(p, t):
            return (
                f"{name} of shape {tuple(t.shape)} has holes in memory, or another order than its "
                "parameter"
            )
        try:
            missing = t.numel() and not t.data_ptr()
        except RuntimeError:  # a wrapper of torch.func
            missing = True
        if missing and p.device.type != "meta":
            return f"{name} has no memory of its own"
    return None


@lru_cache(64)
def chunk_table(sizes: tuple[int, ...], chunk: int) -> np.ndarray:
    """The elements of tensors of these sizes as rows (tensor, start, length) of at most ``chunk``
    elements each.

    Example:
        >>> chunk_table((5, 0, 2), 4).tolist()
        [[0, 0, 4], [0, 4, 1], [2, 0, 2]]
    """
    rows_by_tensor = []
    for i, size in enumerate(sizes):
        starts = np.arange(0, size, chunk, dtype=np.int64)
        rows_by_tensor.append(
            np.stack([np.full_like(starts, i), starts, np.minimum(size - starts, chunk)], axis=1)
        )
    return np.concatenate(rows_by_tensor) if rows_by_tensor else np.zeros((0, 3), dtype=np.int64)


class Forms:
    """Notices when tensors no longer have the type, dtype, device, sizes, strides and flags that
    they had.

    torch.compile's guards compare all of it in C, at 0.1 µs per tensor. They also fail for reasons
    that do not matter here (the grad mode, one tensor given twice), so a failure is checked again
    in Python.

    Example:
        >>> a = torch.zeros(2, 3)
        >>> forms = Forms([a])
        >>> (
        ...     forms.match([torch.ones(2, 3)]),
        ...     forms.match([torch.ones(3, 2).t()]),
        ...     forms.match([a.double()]),
        ... )
        (True, False, False)
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        #: ``_form`` of each tensor.
        self._known = [_form(t) for t in tensors]
        try:
            from torch._C._dynamo.guards import TensorGuards

            sizes, strides = [list(t.shape) for t in tensors], [list(t.stride()) for t in tensors]
            dimensions: dict[str, Any] = {
                "dynamic_dims_sizes": sizes,
                "dynamic_dims_strides": strides,
            }
            self._check: Any = TensorGuards(*tensors, **dimensions).check
        except Exception:  # no public name: another torch may not have it; ``match`` then compares
            self._check = lambda *tensors: False

    def match(self, tensors: Sequence[Any]) -> bool:
        """Whether the tensors have the forms (type, dtype, device, sizes, strides and flags) of
        those that this was made of, in their order; False also where one is None.
        """
        if self._check(*tensors):
            return True
        return [None if t is None else _form(t) for t in tensors] == self._known


def _form(t: Tensor) -> tuple[Any, ...]:
    """All that a kernel relies on of a tensor besides its memory; equal forms need no new plan."""
    strides = t.stride() if t.layout == torch.strided else None
    return (
        type(t),
        t.dtype,
        t.device,
        t.layout,
        t.shape,
        strides,
        t.is_neg(),
        t.is_conj(),
        t.is_inference(),
    )


class Plan:
    """The tensors of one group that share device and dtypes, and where they lie.

    Args:
        rows: per parameter of this process its tensor, its gradient and its states.
        names: of the states.
        state_dicts: per parameter the optimizer's mapping from name to state, from which the states
            are taken anew at every step. With ``counts`` they get a new tensor as ``step``.
        lasting: whether the plan is kept for further steps, at which the parameters give the
            gradients anew.
        counts: whether to count the gradients that each parameter has seen.
    """

    def __init__(
        self,
        rows: Sequence[tuple[Tensor, ...]],
        names: tuple[str, ...],
        state_dicts: list[Any],
        lasting: bool = True,
        counts: bool = False,
    ) -> None:
        # Parameters, gradients and states, each a list with one tensor per parameter.
        self.owners, grads, *states = (list(column) for column in zip(*rows))
        self.states, self.state_dicts, self.lasting = names, state_dicts, lasting
        self.device = self.owners[0].device
        self.dtype = self.owners[0].dtype
        self.grad_dtype = grads[0].dtype
        self.on_cuda = self.device.type == "cuda"
        self.sizes = tuple(p.numel() for p in self.owners)
        everything = [*self.owners, *(t for tensors in states for t in tensors), *grads]
        # Pieces of DTensors have no gradients and states of their own, so these are kept here.
        self._pieces = (
            None if lasting else dict(zip(("param", *names, "grad"), (self.owners, *states, grads)))
        )
        # What ``fresh`` compares: forms and addresses of all tensors, in the order of
        # ``everything``; and what ``addresses`` has made of them, by names of lists.
        self._forms = Forms(everything)
        self._getters = [itemgetter(name) for name in names]
        self._pointers = list(map(_POINTER, everything))
        self._rows: dict[tuple[str, ...], Any] = {}
        #: Gradients seen, in one tensor of which the states ``step`` are views; None where nothing
        #: is counted.
        self.steps: Tensor | None = None
        #: These views, one 0-dim tensor per parameter, which the optimizer's states get below.
        self._counters: list[Tensor] = []
        if counts:
            counts_so_far = [float(state.get("step", 0.0)) for state in state_dicts]
            self.steps = torch.tensor(counts_so_far, dtype=torch.float32, device="cpu")
            self._counters = [self.steps[i] for i in range(len(state_dicts))]
            self._counts_at = list(map(_POINTER, self._counters))  # their addresses
            for state, counter in zip(state_dicts, self._counters):
                state["step"] = counter
        #: How often gradients were found at other addresses.
        self.moves = 0
        #: What an engine wants to keep with the plan (device tables, buffers), by its name for it.
        self.engine_data: dict[Any, Any] = {}
        #: What an engine counts for the report, by the index of the plan; it outlives the plans.
        self.lasting_counts: dict[int, Any] = {}
        #: Place of this plan among all plans of the optimizer.
        self.index = 0

    def fresh(self) -> bool:
        """Whether the plan still describes the tensors' memory. Where only gradients have moved it
        does: the plan takes their new addresses over, and ``moves`` grows by 1.

        Runs at every step for every tensor, so it walks through them in C and not in Python.
        """
        everything: list[Any] = self.owners.copy()
        try:
            for getter in self._getters:
                everything += map(getter, self.state_dicts)
            if self._counters:
                counters = list(map(_COUNTER, self.state_dicts))
                if (
                    not all(map(is_, counters, self._counters))
                    or list(map(_POINTER, counters)) != self._counts_at
                ):
                    return False
        except KeyError:
            return False
        everything += [p.grad for p in self.owners]
        if not self._forms.match(everything):
            return False
        pointers = list(map(_POINTER, everything))
        if pointers != self._pointers:
            # Parameters and states must lie where they did; gradients need some memory, unless they
            # are empty.
            first_gradient = len(everything) - len(self.owners)
            if pointers[:first_gradient] != self._pointers[:first_gradient] or not all(
                address or not size for address, size in zip(pointers[first_gradient:], self.sizes)
            ):
                return False
            self._pointers = pointers
            self.moves += 1
            self._rows.clear()
        return True

    def addresses(self, names: tuple[str, ...]) -> np.ndarray:
        """The tensors' addresses (int64): one row for each named list (``param``, ``grad`` or a
        state), one column per parameter. The same array until a gradient moves.
        """
        rows = self._rows.get(names)
        if rows is None:
            table = np.array(self._pointers, dtype=np.int64).reshape(len(self.states) + 2, -1)
            order = ("param", *self.states, "grad")
            rows = self._rows[names] = table[[order.index(name) for name in names]]
        return rows

    def tensors(self, name: str) -> list[Tensor]:
        """The tensors of a list (``param``, ``grad`` or the name of a state), one per parameter."""
        if self._pieces is not None:
            return self._pieces[name]
        if name == "param":
            return self.owners
        if name == "grad":
            return [p.grad for p in self.owners]
        return [states[name] for states in self.state_dicts]


class Job:
    """One plan with the record of its group, and the group's place; kept as long as neither
    changes.

    Attributes:
        k: number of the step.
        group: the group's place.
        program: the passes of its step (``program.program_of``); None until they are asked for.
        launches: room for what an engine hands to its kernels, by rule.
    """

    __slots__ = ("group", "k", "launches", "plan", "program", "record")

    def __init__(self, plan: Plan, record: FusedRecord, group: int = 0) -> None:
        self.plan, self.record, self.group, self.k = plan, record, group, record.k
        self.program: Any = None
        self.launches: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """A number of the record."""
        return self.record.numbers[name]

    def renewed(self, record: FusedRecord) -> Job:
        """The job for the next step, whose record this is: this job itself, with its step number
        ``k`` changed, if the record differs in nothing else; else a new job.
        """
        own = self.record
        # The fields before ``window`` are compared by value; without tensors among their numbers
        # equal means unchanged. ``k`` alone may differ.
        unchanged = (
            own[:_NUMBERED] == record[:_NUMBERED]
            and own.window is record.window
            and own.plain
            and record.plain
        )
        if not unchanged:
            return Job(self.plan, record, self.group)
        self.k = record.k
        return self
