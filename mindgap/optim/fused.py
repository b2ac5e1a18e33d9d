"""When an optimizer takes the fused form, and the plans it keeps for it.

The engine reads the parameter groups, the states and one ``FusedRecord`` per group; it returns what
happened and leaves counting and reporting to the optimizer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from mindgap.base.check import RuleError, fail
from mindgap.base.tensors import is_sharded, local, placed, robust_norm
from mindgap.optim.norms import new_window
from mindgap.rules.fused.cpu_rules import gradient_norm, run as _cpu_run
from mindgap.rules.fused.plan import NARROW, FusedRecord, Job, Outcome, Plan, Policy, obstacle
from mindgap.rules.fused.program import program_of

Groups = Sequence[dict[str, Any]]
Read = Callable[[dict[str, Any]], FusedRecord]
Objection = Callable[[dict[str, Any], str, Tensor, Tensor], str | None]

#: Kinds of numbers that cannot change while they stay the same object, as tensors can.
_LASTING = (float, int, str, type(None))


def state_of(state: Any, p: Tensor, name: str) -> Tensor:
    """A parameter's state, made of zeros where it does not exist (in float32 for 16-bit
    parameters).
    """
    home = state[p]
    if home.get(name) is None:
        home[name] = torch.zeros_like(p, dtype=torch.float32 if p.dtype in NARROW else None)
    return home[name]


class FusedSteps:
    """Decides at each step whether the fused form can be used, and uses it.

    ``fused=None`` uses it wherever it can and says nothing where it cannot; ``fused=True`` raises
    there, with the reason. Plans are kept between steps. Every step compares them with the groups,
    the states and the memory of every tensor, and makes them anew where something differs; it also
    looks again at what spoke against the fused form.
    """

    def __init__(self) -> None:
        #: Whether the last step was made here.
        self.used = False
        #: Whether kernels are used without a trial, because this is the trial.
        self.trusting = False
        self._ledger: dict[int, Any] = {}
        self.forget()

    def forget(self) -> None:
        """Drop all plans."""
        self._plans: list[tuple[int, Plan]] | None = None
        #: The last norms of all gradients, on the plans' device.
        self._window: Tensor | None = None
        #: Whether the parameters lie on several devices.
        self._spread = False
        self._jobs: list[Job] = []
        self._shape: list[tuple[str, ...]] = []
        self._members: list[list[Tensor]] = []
        self._absent: list[Tensor] = []
        self._states: tuple[list[Tensor], list[dict[str, Any]]] = ([], [])
        self._culprit: tuple[int, int, Tensor] | None = None
        self._tape: Any = None
        self._taped: Any = None

    def step(
        self, groups: Groups, state: Any, read: Read, policy: Policy, objection: Objection
    ) -> Outcome | None:
        """Make one step in the fused form; None where the optimizer must make it itself, with
        nothing changed.

        Args:
            read: gives a group's record.
            policy: what to do about the norm of all gradients; its window is made here.
            objection: says why a rule's kernels must not be used for a group, a parameter and its
                gradient.
        """
        wanted = self.used = False
        known: dict[Tensor, set[str]] | None = None
        for group in groups:
            if group["fused"] or group.get("capturable"):
                wanted = True
            elif group["fused"] is False or group["foreach"] is not None:
                self._leave(groups)
                return None
        records = [read(group) for group in groups]
        reason = _refusal(records)
        if reason is None and not self._current(groups, state, records):
            self.follow_device(groups)
            records = [read(group) for group in groups]
            if policy.nonfinite == "raise":
                known = {p: set(home) for p, home in state.items()}
            reason = self._build(groups, state, records, objection)
        if reason is None and self._spread and policy.looks:
            reason = "the parameters lie on several devices"
        if reason is not None and wanted:
            asked = "fused" if any(group["fused"] for group in groups) else "capturable"
            fail(asked, f"cannot be True here: {reason}", True)
        if reason is not None or not self._plans:
            self._leave(groups)
            return None
        if policy.clip == "auto" or policy.guard is not None:
            window = groups[0].get("norms")
            if window is None or window is not self._window:
                device = self._plans[0][1].device
                if window is None or window.device != device:
                    window = groups[0]["norms"] = (
                        new_window(device) if window is None else window.to(device)
                    )
                self._window = window
            policy = policy._replace(window=window)
        # Before the kernels where the step is certain: they push what was just read of the tensors
        # out of the cache.
        certain = policy.nonfinite == "propagate" and policy.guard != "skip"
        if certain:
            self._raise_versions()
        try:
            outcome = self._run(self._plans, records, policy)
        except RuleError:  # of nonfinite="raise"
            if known is not None:
                self._drop_new(state, known)
            raise
        if not certain and not outcome.skipped:
            self._raise_versions()
        if not self._plans[0][1].lasting:
            self.forget()
        self.used = True
        return outcome

    def _drop_new(self, state: Any, known: Mapping[Tensor, set[str]]) -> None:
        """Take away the states that a refused step made."""
        for p in list(state):
            for name in state[p].keys() - known.get(p, set()):
                del state[p][name]
            if p not in known:
                del state[p]
        self.forget()

    def _leave(self, groups: Groups) -> None:
        """Hand the step over to the optimizer, with the numbers that the device counted."""
        if self._plans is not None:
            self.follow_device(groups)
            self.forget()

    def _current(
        self, groups: Groups, state: Mapping[Tensor, Any], records: Sequence[FusedRecord]
    ) -> bool:
        if self._plans is None or self._shape != [record.states for record in records]:
            return False
        for group, members in zip(groups, self._members):
            if not _same(group["params"], members):
                return False
        for p in self._absent:
            if p.grad is not None:
                return False
        if any(self._shape) and not (
            _same(state, self._states[0]) and _same(state.values(), self._states[1])
        ):
            return False
        return all(plan.fresh() for _, plan in self._plans)

    def _build(
        self, groups: Groups, state: Any, records: Sequence[FusedRecord], objection: Objection
    ) -> str | None:
        """Make the plans; returns why that is impossible. No plans without a reason: not at
        this step.
        """
        culprit = self._culprit
        self.forget()
        if culprit is not None:
            i, j, p = culprit
            there = i < len(groups) and j < len(groups[i]["params"]) and groups[i]["params"][j] is p
            if there and p.grad is not None and _has(state, p, records[i].started):
                why = _unfit(p, state, records[i])[0]
                if why is not None:
                    self._culprit = culprit
                    return why
        plans: list[tuple[int, Plan]] = []
        for i, (group, record) in enumerate(zip(groups, records)):
            by_kind: dict[Any, tuple[list[tuple[Tensor, ...]], list[dict[str, Any]]]] = {}
            for j, p in enumerate(group["params"]):
                if p.grad is None:
                    self._absent.append(p)
                    continue
                if not _has(state, p, record.started):
                    return None
                why, row = _unfit(p, state, record)
                if why is not None:
                    self._culprit = (i, j, p)
                    return why
                kind = (row[0].device, row[0].dtype, row[1].dtype, is_sharded(p))
                by_kind.setdefault(kind, ([], []))[0].append(row)
                by_kind[kind][1].append(state[p] if record.states or record.counts else {})
            for kind, (rows, homes) in by_kind.items():
                plans.append(
                    (i, Plan(rows, record.states, homes, lasting=not kind[3], counts=record.counts))
                )
            self._members.append(list(group["params"]))
        scopes = {record.scope for record in records} - {None}
        self._spread = len({plan.device for _, plan in plans}) > 1
        if scopes and self._spread:
            return "the parameters lie on several devices"
        if two_windows([(i, plan.device.type) for i, plan in plans], records):
            return "a threshold that follows a quantile needs one dtype per group on CUDA"
        for i, plan in () if self.trusting else plans:
            why = objection(
                groups[i],
                program_of(Job(plan, records[i])).rules,
                plan.owners[0],
                plan.tensors("grad")[0],
            )
            if why is not None:
                return why
        lasting = all(plan.lasting for _, plan in plans)
        for place, (_, plan) in enumerate(plans):
            plan.lasting, plan.ledger, plan.place = lasting, self._ledger, place
        self._plans, self._shape = plans, [record.states for record in records]
        self._states = (list(state), list(state.values()))
        return None

    def _raise_versions(self) -> None:
        """Tell autograd that the parameters change."""
        for _, plan in self._plans or ():
            increment_version(plan.owners)

    def _run(
        self, plans: list[tuple[int, Plan]], records: Sequence[FusedRecord], policy: Policy
    ) -> Outcome:
        if self._jobs:
            self._jobs = [job.renewed(records[job.group]) for job in self._jobs]
        else:
            self._jobs = [Job(plan, records[i], i) for i, plan in plans]
        on_cuda = [job for job in self._jobs if job.plan.on_cuda]
        if not on_cuda:
            return _cpu_run(self._jobs, policy)
        if len(on_cuda) < len(self._jobs):
            _cpu_run([job for job in self._jobs if not job.plan.on_cuda], policy)
        return self._run_on_cuda(on_cuda, policy)

    def _run_on_cuda(self, jobs: list[Job], policy: Policy) -> Outcome:
        """As on the CPU without waiting for the device; a step like the last one makes its
        launches again.
        """
        from mindgap.rules.fused import cuda, cuda_rules

        settings = _settings(jobs, policy)
        taped = (
            settings is not None
            and self._tape is not None
            and settings == self._taped[0]
            and self._tape.fits()
        )
        if taped and all(map(cuda_rules.counted, jobs)):
            self._tape.play()
            return self._taped[1]
        self._tape = None
        with cuda.Tape() as tape:
            outcome = cuda_rules.run(jobs, policy)
        if settings is not None:
            self._tape, self._taped = tape, (settings, outcome)
        return outcome

    def gradient_norm(self) -> float | Tensor | None:
        """Norm of the last step's gradients over all parameters; None where other processes or
        devices hold a part.
        """
        plans = [plan for _, plan in self._plans or ()]
        if not plans or self._spread:
            return None
        if not plans[0].on_cuda:
            return gradient_norm(self._jobs)[0]
        if torch.cuda.is_current_stream_capturing():
            return None
        return robust_norm([g for plan in plans for g in plan.tensors("grad")], wide=True)

    def follow_device(self, groups: Groups) -> None:
        """Take over what the device counted, which graph replays and skipped steps change
        (waits for it).
        """
        ahead: dict[int, int] = {}
        for i, plan in self._plans or ():
            if "cuda" in plan.kept and i < len(groups):
                from mindgap.rules.fused import cuda_rules

                more = cuda_rules.follow(plan)
                if more is not None:
                    ahead.setdefault(i, more)
        for i, group in enumerate(groups if ahead else ()):
            group["k"] += ahead.get(i, next(iter(ahead.values())))


def two_windows(plans: Sequence[tuple[int, str]], records: Sequence[FusedRecord]) -> bool:
    """Whether a group with a window of norms has several plans (group, kind of device) on CUDA."""
    by_group = Counter(i for i, kind in plans if kind == "cuda" and records[i].window is not None)
    return any(count > 1 for count in by_group.values())


def _refusal(records: Sequence[FusedRecord]) -> str | None:
    for record in records:
        if record.refusal is not None:
            return record.refusal
    return None


def _same(first: Any, second: Any) -> bool:
    """Whether two collections hold the same objects in the same order."""
    return len(first) == len(second) and all(map(is_, first, second))


def _has(state: Any, p: Tensor, names: tuple[str, ...]) -> bool:
    return not names or all(state.get(p, {}).get(name) is not None for name in names)


def _unfit(p: Tensor, state: Any, record: FusedRecord) -> tuple[str | None, tuple[Tensor, ...]]:
    """Why a parameter cannot take the fused form, and the tensors of this process that the
    kernels would work on.
    """
    from mindgap.rules.fused import cpu, cuda

    grad = p.grad
    assert grad is not None
    if is_sharded(p):
        if record.scope is not None:
            return "norms over a device mesh are taken by collectives", ()
        grad = local(placed(grad, p))
    plain, kind = local(p), p.device.type
    if kind not in ("cpu", "cuda"):
        return f"there are no kernels for the device {kind}", ()
    kernels: Any = cpu if kind == "cpu" else cuda
    why = (
        kernels.unavailable()
        or obstacle(plain, grad, {})
        or kernels.wrong_dtype(plain.dtype, grad.dtype)
    )
    if why is None and record.scope == "tensor" and kind == "cuda":
        why = "the CUDA kernels take norms over all parameters or over a group"
    if why is not None:
        return why, ()
    step = state[p].get("step") if record.counts else None
    if step is not None and (
        not isinstance(step, Tensor) or step.dtype != torch.float32 or step.dim()
    ):
        return "the state step is not a float32 number", ()
    states = {name: local(state_of(state, p, name)) for name in record.states}
    return obstacle(plain, grad, states), (plain, grad, *states.values())


def _settings(jobs: Sequence[Job], policy: Policy) -> list[Any] | None:
    """All that a step depends on besides memory and the step number; None where it may change
    unseen.
    """
    if policy.nonfinite == "raise":
        return None
    values: list[Any] = [policy.nonfinite, policy.clip, policy.guard, _place(policy.window)]
    for job in jobs:
        if not job.plan.lasting:
            return None
        values += [
            job.plan.moves,
            job.record.rule,
            _place(job.record.window),
            *job.record.numbers.values(),
        ]
    return values if all(map(_lasting, values)) else None


def _place(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _lasting(value: Any) -> bool:
    return isinstance(value, _LASTING)
