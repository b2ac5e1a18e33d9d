"""When an optimizer takes the fused form, and the plans it keeps for it.

The engine reads the parameter groups, the states and one ``FusedRecord`` per group; it returns what
happened and leaves counting and reporting to the optimizer.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from mindgap.base.check import RuleError, fail
from mindgap.base.tensors import is_sharded, local, placed, robust_norm
from mindgap.optim.norms import new_window
from mindgap.optim.sides import memories_of, spacing_and_count
from mindgap.rules.fused.cpu_rules import gradient_norm, run as _cpu_run
from mindgap.rules.fused.plan import (
    NARROW,
    FusedRecord,
    Job,
    JudgedEntries,
    Outcome,
    Plan,
    Policy,
    obstacle,
)
from mindgap.rules.fused.program import program_of

Groups = Sequence[dict[str, Any]]
Read = Callable[[dict[str, Any]], FusedRecord]
Objection = Callable[[dict[str, Any], str, Tensor, Tensor], str | None]

#: Kinds of numbers that cannot change while they stay the same object, as tensors can.
_CONSTANT_TYPES = (float, int, str, type(None))


def state_of(state: Any, p: Tensor, name: str) -> Tensor:
    """A parameter's named state. Where it does not exist, zeros are written into ``state``, in
    float32 for 16-bit parameters and else in the parameter's dtype.

    Args:
        state: the optimizer's mapping from parameter to its states by name.
        p: the parameter.
    """
    states = state[p]
    if states.get(name) is None:
        states[name] = torch.zeros_like(p, dtype=torch.float32 if p.dtype in NARROW else None)
    return states[name]


class FusedSteps:
    """Decides at each step whether the fused form can be used, and uses it.

    ``fused=None`` uses it wherever it can and says nothing where it cannot; ``fused=True`` raises
    there, with the reason. Plans (the tensors of a group that share device and dtypes, and their
    addresses) are kept between steps. Every step compares them with the groups, the states and the
    memory of every tensor, and makes them anew where something differs; it also looks again at what
    spoke against the fused form.
    """

    def __init__(self) -> None:
        #: Whether the last step was made here.
        self.used = False
        #: Whether kernels are used without a trial, because this is the trial.
        self.trusting = False
        #: What an engine counts for the report, by the index of the plan; it outlives the plans.
        self._lasting_counts: dict[int, Any] = {}
        self.forget()

    def forget(self) -> None:
        """Drop all plans, and what was kept to see whether they still hold."""
        #: (index of the group, plan); None where none were made.
        self._plans: list[tuple[int, Plan]] | None = None
        #: The last norms of all gradients, on the plans' device.
        self._window: Tensor | None = None
        #: What large gradients are judged by, on the plans' device.
        self._judged: JudgedEntries | None = None
        #: Whether the parameters lie on several devices.
        self._spread = False
        #: The jobs of the last step, one per plan.
        self._jobs: list[Job] = []
        #: What the plans were made for: the states' names and the parameters of each group, the
        #: parameters without a gradient, and the keys and values of the optimizer's state.
        self._state_names: list[tuple[str, ...]] = []
        self._members: list[list[Tensor]] = []
        self._absent: list[Tensor] = []
        self._states: tuple[list[Tensor], list[dict[str, Any]]] = ([], [])
        #: Group, place and parameter that last could not take the fused form.
        self._unfit: tuple[int, int, Tensor] | None = None
        #: Launches of the last step on CUDA, its settings, and its outcome.
        self._tape: Any = None
        self._taped_settings: list[Any] | None = None
        self._taped_outcome: Outcome | None = None

    def step(
        self, groups: Groups, state: Any, record_of: Read, policy: Policy, objection: Objection
    ) -> Outcome | None:
        """Make one step of the parameters in the fused form, in place. It uses the plans of the
        last step (the tensors of a group that share device and dtypes, and their addresses), or
        makes new ones where these no longer fit.

        Args:
            groups: the optimizer's parameter groups.
            state: the optimizer's mapping from parameter to its states by name.
            record_of: gives a group's record, which names its rule, settings and states.
            policy: what to do about the norm of all gradients; its window is put in here.
            objection: says why a rule's kernels must not be used for a group, a parameter and its
                gradient.

        Returns:
            What the step did, or None where the optimizer must make the step itself. Then nothing
            has changed but new states of zeros and step counts taken over from the device.

        Raises:
            RuleError: the fused form or ``capturable`` was asked for and cannot be used; or a
                gradient is not finite with ``nonfinite="raise"``, and states that this step made
                are gone again.
        """
        # Whether a group insists on the fused form, so that a refusal is an error.
        asked_for = self.used = False
        #: States by name before the step, where it may yet be refused.
        states_before: dict[Tensor, set[str]] | None = None
        for group in groups:
            if group["fused"] or group.get("capturable"):
                asked_for = True
            elif group["fused"] is False or group["foreach"] is not None:
                self._leave(groups)
                return None
        records = [record_of(group) for group in groups]
        refusals = [record.refusal for record in records if record.refusal is not None]
        reason = refusals[0] if refusals else None
        if reason is None and not self._current(groups, state, records):
            if _is_captured(groups):  # new plans need memory, and zeros made here would be replayed
                if self._plans is not None or asked_for:
                    rule = "must run outside the CUDA graph before it is captured there"
                    fail("step", rule, "a captured step with other tensors than the last one")
                return None
            # What the device counted goes into the groups before new plans are made of them.
            self.follow_device(groups)
            records = [record_of(group) for group in groups]
            if policy.nonfinite == "raise":
                states_before = {p: set(states) for p, states in state.items()}
            reason = self._build(groups, state, records, objection)
        if reason is None and self._spread and policy.looks:
            reason = "the parameters lie on several devices"
        if reason is not None and asked_for:
            argument = "fused" if any(group["fused"] for group in groups) else "capturable"
            fail(argument, f"cannot be True here: {reason}", True)
        if reason is not None or not self._plans:
            self._leave(groups)
            return None
        device = self._plans[0][1].device
        if policy.judge is not None:
            window, judged = self._window_of(groups[0], device), partial(self._entries_of, groups)
            policy = policy._replace(window=window, judged=judged)
        elif policy.clip == "auto" or policy.guard is not None:
            policy = policy._replace(window=self._window_of(groups[0], device))
        # Before the kernels where the step is certain: they push what was just read of the tensors
        # out of the cache.
        certain = policy.nonfinite == "propagate" and policy.guard != "skip"
        if certain:
            self._raise_versions()
        try:
            outcome = self._run(self._plans, records, policy)
        except RuleError:  # of nonfinite="raise"
            if states_before is not None:
                self._drop_new(state, states_before)
            raise
        if not certain and not outcome.skipped:
            self._raise_versions()
        if not self._plans[0][1].lasting:
            self.forget()
        self.used = True
        return outcome

    def _window_of(self, first_group: dict[str, Any], device: torch.device) -> Tensor:
        """The memory of the last norms of all gradients, on the device.

        The first group keeps it as ``norms``. It is made here where it lacks and moved where it
        lies on another device, and the group then gets the new tensor.
        """
        window: Tensor | None = first_group.get("norms")
        if window is None or window is not self._window:
            if window is None or window.device != device:
                window = new_window(device) if window is None else window.to(device)
                first_group["norms"] = window
            self._window = window
        return window

    def _entries_of(self, groups: Groups, device: torch.device) -> JudgedEntries:
        """What large gradients are judged by on the device: the numbers and the direction that the
        first group remembers, made where they lack, and where the entries of each parameter lie.
        """
        head, known = groups[0], self._judged
        # By identity: a checkpoint or a move to another device puts other tensors in their place.
        if (
            known is None
            or head.get("evidence") is not known.evidence
            or head.get("sides") is not known.sides
            or head["betas"][1] is not known.beta2
        ):
            # Parameters lie one after another among the entries; ``end`` is where the next begins.
            kept, places, end = memories_of(groups, device), {}, 0
            for p in (p for group in groups for p in group["params"]):
                spacing, count = spacing_and_count(p)
                places[p] = (end, spacing, count)
                end += count
            known = JudgedEntries(kept.evidence, kept.sides, places, head["betas"][1])
            self._judged = known
        return known

    def _drop_new(self, state: Any, states_before: Mapping[Tensor, set[str]]) -> None:
        """Delete the states that a refused step made, and all plans.

        Args:
            state: the optimizer's mapping from parameter to its states by name; changed in place.
            states_before: the names of each parameter's states before that step.
        """
        for p in list(state):
            for name in state[p].keys() - states_before.get(p, set()):
                del state[p][name]
            if p not in states_before:
                del state[p]
        self.forget()

    def _leave(self, groups: Groups) -> None:
        """Drop the plans. Before, the groups take over the step numbers that the device counted."""
        if self._plans is not None:
            self.follow_device(groups)
            self.forget()

    def _current(
        self, groups: Groups, state: Mapping[Tensor, Any], records: Sequence[FusedRecord]
    ) -> bool:
        """Whether the plans still describe the groups, their gradients and states: same objects in
        the same order, at the same addresses.
        """
        if self._plans is None or self._state_names != [record.states for record in records]:
            return False
        for group, members in zip(groups, self._members):
            if not _same_objects(group["params"], members):
                return False
        for p in self._absent:
            if p.grad is not None:
                return False
        if any(self._state_names) and not (
            _same_objects(state, self._states[0]) and _same_objects(state.values(), self._states[1])
        ):
            return False
        return all(plan.fresh() for _, plan in self._plans)

    def _build(
        self, groups: Groups, state: Any, records: Sequence[FusedRecord], objection: Objection
    ) -> str | None:
        """Make the plans of all groups and keep them here: per group, device and dtypes one, with
        the tensors that the kernels will work on. States that lack are made of zeros.

        Args:
            groups: the optimizer's parameter groups.
            state: the optimizer's mapping from parameter to its states by name.
            records: per group its rule, settings and states.
            objection: says why a rule's kernels must not be used for a group, a parameter and its
                gradient.

        Returns:
            Why the fused form is impossible, or None. None without new plans means that the
            optimizer itself must first make some states (``FusedRecord.started``).
        """
        unfit = self._unfit
        self.forget()
        # The parameter that could not take the fused form at the last step mostly still cannot:
        # then the others need no look.
        obstacle_found = unfit and _lasting_obstacle(unfit, groups, state, records)
        if obstacle_found:
            self._unfit = unfit
            return obstacle_found
        plans: list[tuple[int, Plan]] = []
        for i, (group, record) in enumerate(zip(groups, records)):
            # By device, dtypes and whether sharded, one entry per parameter: its tensors
            # (parameter, gradient, *states), and the mapping that holds the states.
            rows: dict[Any, list[tuple[Tensor, ...]]] = defaultdict(list)
            state_dicts: dict[Any, list[dict[str, Any]]] = defaultdict(list)
            for j, p in enumerate(group["params"]):
                if p.grad is None:
                    self._absent.append(p)
                    continue
                if not _has_states(state, p, record.started):
                    return None
                obstacle_found, row = _obstacle_and_tensors(p, state, record)
                if obstacle_found is not None:
                    self._unfit = (i, j, p)
                    return obstacle_found
                local_p, local_grad, *_ = row
                kind = (local_p.device, local_p.dtype, local_grad.dtype, is_sharded(p))
                rows[kind].append(row)
                state_dicts[kind].append(state[p] if record.states or record.counts else {})
            for kind, members in rows.items():
                lasting, counts = not kind[3], record.counts  # kind[3]: sharded
                plan = Plan(members, record.states, state_dicts[kind], lasting, counts)
                plans.append((i, plan))
            self._members.append(list(group["params"]))
        scopes = {record.scope for record in records} - {None}
        self._spread = len({plan.device for _, plan in plans}) > 1
        if scopes and self._spread:
            return "the parameters lie on several devices"
        if two_windows([(i, plan.device.type) for i, plan in plans], records):
            return "a threshold that follows a quantile needs one dtype per group on CUDA"
        # One trial per plan: its kernels depend on nothing else of its parameters.
        for i, plan in () if self.trusting else plans:
            obstacle_found = objection(
                groups[i],
                program_of(Job(plan, records[i])).rules,
                plan.owners[0],
                plan.tensors("grad")[0],
            )
            if obstacle_found is not None:
                return obstacle_found
        all_lasting = all(plan.lasting for _, plan in plans)
        for index, (_, plan) in enumerate(plans):
            plan.lasting, plan.lasting_counts, plan.index = all_lasting, self._lasting_counts, index
        self._plans, self._state_names = plans, [record.states for record in records]
        self._states = (list(state), list(state.values()))
        return None

    def _raise_versions(self) -> None:
        """Tell autograd that the parameters change."""
        for _, plan in self._plans or ():
            increment_version(plan.owners)

    def _run(
        self, plans: list[tuple[int, Plan]], records: Sequence[FusedRecord], policy: Policy
    ) -> Outcome:
        """Make the step in place with the kernels of the plans' devices; ``records`` has one entry
        per group. The jobs of the last step are used again where their records allow it.
        """
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
        """Make the step without waiting for the device. Its kernel launches are recorded (a tape),
        and a step with the same settings and memory only repeats them.
        """
        from mindgap.rules.fused import cuda, cuda_rules

        settings = _step_settings(jobs, policy)
        taped = (
            settings is not None
            and self._tape is not None
            and settings == self._taped_settings
            and self._tape.fits()
        )
        if taped and cuda_rules.counted(jobs):  # which also counts the step on the host
            self._tape.play()
            return self._taped_outcome  # type: ignore[return-value]
        self._tape = None
        with cuda.Tape() as tape:
            outcome = cuda_rules.run(jobs, policy)
        if settings is not None:
            self._tape, self._taped_settings, self._taped_outcome = tape, settings, outcome
        return outcome

    def gradient_norm(self) -> float | Tensor | None:
        """Norm of the last step's gradients over all parameters: a number, or on CUDA a 0-dim
        tensor. None without plans (those of sharded parameters last for one step), where the
        parameters lie on several devices, and while a CUDA graph is captured.
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
        """Take over what the device counted by itself, in place: the steps of graph replays into
        each group's ``k``, and the gradients seen per parameter into the plans. Waits for the
        device.
        """
        steps_ahead: dict[int, int] = {}
        for i, plan in self._plans or ():
            if "cuda" in plan.engine_data and i < len(groups):
                from mindgap.rules.fused import cuda_rules

                steps = cuda_rules.follow(plan)
                if steps is not None:
                    steps_ahead.setdefault(i, steps)
        # A group whose plan counts no steps goes on as the first one that does.
        for i, group in enumerate(groups if steps_ahead else ()):
            group["k"] += steps_ahead.get(i, next(iter(steps_ahead.values())))


def two_windows(plans: Sequence[tuple[int, str]], records: Sequence[FusedRecord]) -> bool:
    """Whether a group with a window of norms has several plans on CUDA, each of which would push
    the step's norm into that window.

    Args:
        plans: pairs (index of the group, kind of the device).
        records: one per group.
    """
    by_group = Counter(i for i, kind in plans if kind == "cuda" and records[i].window is not None)
    return any(count > 1 for count in by_group.values())


def _same_objects(first: Any, second: Any) -> bool:
    """Whether two collections hold the same objects in the same order."""
    return len(first) == len(second) and all(map(is_, first, second))


def _is_captured(groups: Groups) -> bool:
    """Whether a CUDA graph of this step is being captured."""
    on_cuda = any(p.is_cuda for group in groups for p in group["params"])
    return on_cuda and torch.cuda.is_current_stream_capturing()


def _has_states(state: Any, p: Tensor, names: tuple[str, ...]) -> bool:
    """Whether a parameter already has all the named states."""
    return not names or all(state.get(p, {}).get(name) is not None for name in names)


def _lasting_obstacle(
    unfit: tuple[int, int, Tensor], groups: Groups, state: Any, records: Sequence[FusedRecord]
) -> str | None:
    """Why a parameter that could not take the fused form still cannot. None where it can, or where
    this place holds another parameter now or one without a gradient.

    Args:
        unfit: index of the group, index of the parameter in it, and the parameter.
    """
    i, j, p = unfit
    unmoved = i < len(groups) and j < len(groups[i]["params"]) and groups[i]["params"][j] is p
    if not unmoved or p.grad is None or not _has_states(state, p, records[i].started):
        return None
    return _obstacle_and_tensors(p, state, records[i])[0]


def _obstacle_and_tensors(
    p: Tensor, state: Any, record: FusedRecord
) -> tuple[str | None, tuple[Tensor, ...]]:
    """Whether the kernels can work on a parameter with a gradient, and on which tensors.

    Returns:
        Why the parameter cannot take the fused form, or None; and this process's tensors
        (parameter, gradient, *states), empty where the reason does not lie in them. States that
        lack are made of zeros and written into ``state``.
    """
    from mindgap.rules.fused import cpu, cuda

    grad = p.grad
    assert grad is not None
    if is_sharded(p):
        if record.scope is not None:
            return "norms over a device mesh are taken by collectives", ()
        grad = local(placed(grad, p))
    local_p, kind = local(p), p.device.type
    if kind not in ("cpu", "cuda"):
        return f"there are no kernels for the device {kind}", ()
    kernels: Any = cpu if kind == "cpu" else cuda
    why = (
        kernels.unavailable()
        or obstacle(local_p, grad, {})
        or kernels.wrong_dtype(local_p.dtype, grad.dtype)
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
    # Only now, so that a refusal above leaves no states behind.
    states = {name: local(state_of(state, p, name)) for name in record.states}
    return obstacle(local_p, grad, states), (local_p, grad, *states.values())


def _step_settings(jobs: Sequence[Job], policy: Policy) -> list[Any] | None:
    """Everything that a step's launches depend on besides the tensors' memory and the step number,
    in a list that is compared with that of the next step. None where a step must not be repeated
    from its launches: something may change unseen, or ``nonfinite="raise"`` reads the norm.
    """
    if policy.nonfinite == "raise":
        return None
    values: list[Any] = [policy.nonfinite, policy.clip, policy.guard, _address(policy.window)]
    if policy.judged is not None:
        entries = policy.judged(jobs[0].plan.device)
        # β₂ of the first group counts even where that group has no gradient, and so no job.
        values += [_address(entries.evidence), _address(entries.sides), float(entries.beta2)]
    for job in jobs:
        if not job.plan.lasting:
            return None
        values += [
            job.plan.moves,
            job.record.rule,
            _address(job.record.window),
            *job.record.numbers.values(),
        ]
    return values if all(map(_is_constant, values)) else None


def _address(tensor: Tensor | None) -> int:
    """Address of a tensor's memory; 0 for None."""
    return 0 if tensor is None else tensor.data_ptr()


def _is_constant(value: Any) -> bool:
    """Whether a value cannot change while it stays the same object."""
    return isinstance(value, _CONSTANT_TYPES)
