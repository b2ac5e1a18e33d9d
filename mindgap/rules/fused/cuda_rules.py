"""Steps on CUDA. Every scalar stays on the device; nothing here waits for it.

Buffers and tables are made at the first step and kept with the plan, so that a step can be captured
in a CUDA graph after one step outside: with a tensor lr the captured step follows the tensor's
value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mindgap.base.check import fail
from mindgap.rules.fused import cuda
from mindgap.rules.fused.arithmetic import RULES
from mindgap.rules.fused.plan import Job, JudgedEntries, Outcome, Plan, Policy
from mindgap.rules.fused.program import NORM, Pass, Program, program_of
from mindgap.rules.schedule import draw_base

#: Chunk sums that a kernel with a single program adds up at once.
WIDE = 8192
#: Tensors whose bias corrections are computed at once.
TENSORS_AT_ONCE = 1024
#: Norms that the device remembers for a report, as many as a window of ``mindgap.optim.norms``
#: holds.
WINDOW = 128
#: Spikes that the device remembers for a report; the kernel ``policy`` holds the same number.
SPIKES = 64
#: Tables set aside for captures: pinned memory cannot be allocated while a graph is captured.
RESERVE = 4
#: Numbers n of a rule behind the step size and what weight decay keeps; unused ones are 0.
RULE_NUMBERS = 9
#: The log of β = 0: exp(k·LOG_ZERO) is 0 for every k ≥ 1, and no product with it is NaN.
LOG_ZERO = -1e30
#: A start of the random draws that no rule reads. It needs 64 bits, as a real one does, so that
#: Triton compiles the kernel once.
UNUSED_DRAW_BASE = 2**40
#: What the kernels call the words of a policy and of a program. A clip that is a number has code 1.
_CLIP_CODES: dict[Any, int] = {None: 0, "auto": 2, "unit": 3, "noise": 4}
_SPIKE_CODES = {None: 0, "clip": 1, "skip": 2}
_KIND_CODES = {"clip": 0, "normalize": 1, "interpolate": 2}

_NO_SWITCH = nullcontext()
#: First chunk of a job in the shared buffer of sums, and the one behind its last.
ChunkRange = tuple[int, int]


class PlanMemory:
    """Everything that the kernels keep on the device for one plan; sums, norms and factors are
    float64.

    Each tensor is cut into chunks of ``cuda.BLOCK`` elements; ``chunk_tables`` says for each chunk
    which tensor it is of, for each tensor its first chunk, and for each tensor its size. "Factors"
    are the four numbers w of a rule (see ``arithmetic``), which change with norms and step counts.

    Attributes:
        chunk_sums: sums of squares by chunk.
        policy_factors: (c, 1, 1, 0) with the factor c that the policy puts on the gradients; the
            last is 1 where AdamW's ``clip="noise"`` finds that large ones are noise.
        policy_ran: whether the last step had a policy, which wrote c.
        rule_factors: the factors that a rule computes from its own norm, or per tensor from the
            step count.
        norm_output: what the kernel ``norm_factor`` writes: the norm of this plan's direction, the
            norm that the factor follows from, and the factor.
        own_norm, norm_factor: views of the first and the last of these.
        counts: what the report reads; it outlives the plan.
        step_flag: 1 where the present step is made, 0 where it is left out.
        device_step, host_step: the step number as counted by the device and by the host;
            ``counts_steps`` is True once the device counts.
        gradient_counts, host_gradient_counts: the gradients that each tensor has seen, likewise;
            None before the first step of a rule that needs them.
    """

    def __init__(self, plan: Plan) -> None:
        device, tensor_count = plan.device, len(plan.sizes)
        sizes = np.array(plan.sizes, dtype=np.int64)
        chunks_per_tensor = -(-sizes // cuda.BLOCK)  # rounded up
        self.tensor_count, self.chunk_count = tensor_count, int(chunks_per_tensor.sum())
        tensor_of_chunk = np.repeat(np.arange(tensor_count, dtype=np.int32), chunks_per_tensor)
        first_chunk = np.cumsum(chunks_per_tensor) - chunks_per_tensor
        self.chunk_tables = [_to_device(t, device) for t in (tensor_of_chunk, first_chunk, sizes)]
        self.chunk_sums = _zeros(device, max(self.chunk_count, 1))

        self.policy_factors = _to_device(np.array([1.0, 1.0, 1.0, 0.0]), device)
        self.policy_ran = False
        self.rule_factors = _zeros(device, 4 * (1 if plan.steps is None else tensor_count))
        self.norm_output = _zeros(device, 3)
        # Lasting views: a report knows memory by the object.
        self.own_norm, self.norm_factor = self.norm_output[0], self.norm_output[2]
        self.counts = _report_counts(plan)

        self.step_flag = torch.ones((), dtype=torch.int32, device=device)
        self.device_step = torch.zeros((), dtype=torch.int64, device=device)
        self.counts_steps, self.host_step = False, -1  # -1: no step yet
        self.gradient_counts: Tensor | None = None
        self.host_gradient_counts: Tensor | None = None
        # By names of lists: the table in use, and those set aside for captures, as pairs (pinned
        # memory, memory on the device); then all pairs that graphs use, which keeps them alive.
        self._address_tables: dict[tuple[str, ...], _AddressTable] = {}
        self._spare_tables: dict[tuple[str, ...], list[tuple[Tensor, Tensor]]] = {}
        self._tables_of_graphs: list[tuple[Tensor, Tensor]] = []

    def follow_count(self, k: int) -> None:
        """Let the device count this step as step k: a kernel of the step adds one to
        ``device_step``, which is set to k − 1 here where it is not that already.
        """
        if not self.counts_steps or k != self.host_step + 1:
            self.device_step.fill_(k - 1)
        self.counts_steps, self.host_step = True, k

    def follow_gradient_counts(self, steps: Tensor) -> Tensor:
        """The number of gradients that each tensor has seen before this step, on the device.

        Adds one to each entry of the host's own numbers ``steps``, in place. Where somebody has
        changed these since the last step, they are copied to the device before.
        """
        if self.gradient_counts is None:
            self.gradient_counts = _to_device(steps.double().numpy(), self.chunk_sums.device)
        elif not torch.equal(steps, self.host_gradient_counts):  # type: ignore[arg-type]
            self.gradient_counts.copy_(steps)
        self.host_gradient_counts = steps.add_(1).clone()
        return self.gradient_counts

    def address_table(self, plan: Plan, names: tuple[str, ...]) -> _AddressTable:
        """The table of addresses of the named lists (``param``, ``grad``, states) on the device,
        copied anew where the plan's addresses have changed. A table that a CUDA graph fills is not
        used outside the capture, and a launch with one is not kept on the tape.
        """
        addresses, table = plan.addresses(names), self._address_tables.get(names)
        capturing = _is_capturing(plan)
        # A table made during a capture is filled by the graph's replays only: it serves no step
        # outside the capture.
        if table is None or table.source is not addresses or (table.captured and not capturing):
            upload = self._upload_in_capture if capturing else self._upload
            copied = upload(addresses, names, plan)
            table = _AddressTable(addresses, copied, not (addresses % 16).any(), capturing)
            self._address_tables[names] = table
        if table.captured and cuda.Tape.running is not None:
            cuda.Tape.running.whole = False
        return table

    def _upload(self, addresses: np.ndarray, names: tuple[str, ...], plan: Plan) -> Tensor:
        """A copy of the addresses on the device, one row per list. Also sets ``RESERVE`` tables
        aside for captures to come, as pairs (pinned memory, memory on the device).
        """
        if plan.lasting:
            spare = self._spare_tables.setdefault(names, [])
            while len(spare) < RESERVE:
                host = torch.empty(addresses.shape, dtype=torch.int64, device="cpu")
                table = torch.empty_like(host, device=plan.device)
                spare.append((host.pin_memory() if plan.on_cuda else host, table))
        return _to_device(addresses, plan.device)

    def _upload_in_capture(
        self, addresses: np.ndarray, names: tuple[str, ...], plan: Plan
    ) -> Tensor:
        """A copy of the addresses in one of the tables set aside, which each replay of the CUDA
        graph fills anew; an error where none is left.
        """
        spare = self._spare_tables.get(names)
        if not spare:
            rule = f"must run outside CUDA graphs at least once per {RESERVE} captured steps"
            fail("step", rule, "a captured step for which no table is left")
        # A replay copies from this pinned memory again: it must live, unchanged, as long as the
        # graph.
        host, table = spare.pop()
        host.numpy()[...] = addresses
        table.copy_(host, non_blocking=True)
        self._tables_of_graphs.append((host, table))
        return table


class _AddressTable(NamedTuple):
    """Addresses of a plan's lists of tensors, copied to the device."""

    source: np.ndarray  # the plan's own array, known by the object
    table: Tensor  # one row per list, one column per tensor
    aligned: bool  # whether all addresses are multiples of 16 bytes
    captured: bool  # whether the table belongs to a CUDA graph


class ReportCounts:
    """What the device counts for the report; it outlives the plan.

    Attributes:
        stats: the norm of all gradients, steps left out, steps that the policy clipped, spikes.
        norm, skips, clips: the first three of them.
        rule_clips: steps that the rule itself clipped.
        spikes: the last spikes, as rows (step, norm, usual low, limit).
        history: the last norms as a ring, and behind them how many there were in all.
        norms: the ring alone.
    """

    def __init__(self, device: torch.device) -> None:
        self.stats, self.rule_clips = _zeros(device, 4), _zeros(device, 1)
        self.spikes, self.history = _zeros(device, SPIKES, 4), _zeros(device, WINDOW + 1)
        # Lasting views: a report knows memory by the object.
        self.norm, self.skips, self.clips = self.stats[0], self.stats[1], self.stats[2]
        self.norms = self.history[:WINDOW]


def _report_counts(plan: Plan) -> ReportCounts:
    """The counts for a plan, which the optimizer keeps by the plan's index; new ones (zeros) where
    it has none on this device.
    """
    counts = plan.lasting_counts.get(plan.index)
    if counts is None or counts.stats.device != plan.device:
        counts = plan.lasting_counts[plan.index] = ReportCounts(plan.device)
    return counts


def _zeros(device: torch.device, *shape: int) -> Tensor:
    """Zeros in float64 on a device."""
    return torch.zeros(*shape, dtype=torch.float64, device=device)


def _is_capturing(plan: Plan) -> bool:
    """Whether a CUDA graph is being captured."""
    return plan.on_cuda and torch.cuda.is_current_stream_capturing()


def _to_device(array: np.ndarray, device: torch.device) -> Tensor:
    """A copy of an array on the device. The CPU does not wait until it has arrived there."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor.clone()
    return tensor.pin_memory().to(device, non_blocking=True)


def memory_of(plan: Plan) -> PlanMemory:
    """The plan's device memory, made when first asked for."""
    memory = plan.engine_data.get("cuda")
    if memory is None:
        memory = plan.engine_data["cuda"] = PlanMemory(plan)
    return memory


@lru_cache(None)
def _triton_types() -> dict[torch.dtype, Any]:
    """Triton's names for the dtypes that the kernels take; imports Triton."""
    import triton.language as tl

    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def _triton_type(plan: Plan, name: str) -> Any:
    """Triton's name for the dtype of a plan's list; all states are float32."""
    return _triton_types()[{"param": plan.dtype, "grad": plan.grad_dtype}.get(name, torch.float32)]


def _step_size(job: Job, placeholder: Tensor) -> tuple[float, Tensor, bool]:
    """The step size as a kernel takes it: as a number, or where it is a tensor on the device as
    memory, so that a captured step follows its value.

    Args:
        placeholder: any tensor on the device.

    Returns:
        The number (0 where the memory counts), the memory (the placeholder where the number
        counts), and whether the kernel reads the memory.
    """
    lr = job["lr"]
    if isinstance(lr, Tensor) and lr.device == placeholder.device:
        return 0.0, lr, True
    return float(lr), placeholder, False


def _current_device(plan: Plan) -> Any:
    """A context in which the plan's device is the current one."""
    if not plan.on_cuda or torch._C._cuda_getDevice() == plan.device.index:
        return _NO_SWITCH
    return torch.cuda.device(plan.device)


def _launch_rule(
    job: Job,
    rule_pass: Pass,
    sums: Tensor,
    flag: Tensor | None,
    factors: Tensor,
    *,
    factors_per_tensor: bool = False,
) -> None:
    """Launch the kernel that applies a rule to all tensors of a job, in place.

    Args:
        job: a plan (tensors of one group that share dtypes) with the settings of its group.
        rule_pass: names the rule, the lists of tensors that it takes, and its numbers n.
        sums: where the sums of squares by chunk go, if the rule takes them.
        flag: device memory that is 0 where the step is left out; None for a step that is certain.
        factors: the rule's numbers w, four for all tensors or four per tensor, on the device.
        factors_per_tensor: whether they are four per tensor.
    """
    plan, memory, rule = job.plan, memory_of(job.plan), RULES[rule_pass.rule]
    if not memory.chunk_count:
        return
    addresses = memory.address_table(plan, rule_pass.lists)
    lr, lr_memory, lr_in_memory = _step_size(job, memory.norm_output)
    dtypes = [_triton_type(plan, name) for name in rule_pass.lists[:3]]
    numbers = tuple(map(float, rule_pass.numbers))
    padding = (0.0,) * (RULE_NUMBERS - len(numbers))
    with _current_device(plan):
        cuda.launch(
            rule_pass.rule,
            memory.chunk_count,
            (
                addresses.table,
                *memory.chunk_tables,
                factors,
                lr_memory,
                memory.step_flag if flag is None else flag,
                sums,
            ),
            (memory.tensor_count, lr, float(job["decay"]), *numbers, *padding),
            # Of the first three lists; a rule with fewer repeats its last one.
            D0=dtypes[0],
            D1=dtypes[min(1, len(dtypes) - 1)],
            D2=dtypes[-1],
            LISTS=rule.lists,
            OUTPUTS=rule.outputs,
            SUMS=rule.sums,
            EACH=factors_per_tensor,
            LR_AT=lr_in_memory,
            GUARD=flag is not None,
            ALIGNED=addresses.aligned,
            BLOCK=cuda.BLOCK,
        )


def _shared_sums(jobs: Sequence[Job]) -> tuple[Tensor, list[ChunkRange]]:
    """One buffer on the device for the sums by chunk of all jobs, kept with the first plan, and
    each job's range of chunks in it.
    """
    ends = np.cumsum([memory_of(job.plan).chunk_count for job in jobs]).tolist()
    ranges = list(zip([0, *ends[:-1]], ends))
    first_plan, length = jobs[0].plan, max(ends[-1], 1)
    if len(jobs) == 1:
        return memory_of(first_plan).chunk_sums, ranges
    if "shared" not in first_plan.engine_data or first_plan.engine_data["shared"].numel() != length:
        first_plan.engine_data["shared"] = _zeros(first_plan.device, length)
    return first_plan.engine_data["shared"], ranges


def _sum_squares(
    jobs: Sequence[Job], passes: Sequence[Pass], flag: Tensor | None
) -> tuple[Tensor, list[ChunkRange]]:
    """Launch each job's pass that adds up squares, such as ``NORM``; one that averages also writes
    its states.

    Args:
        passes: one per job.
        flag: device memory that is 0 where the kernels must do nothing; None: they always work.

    Returns:
        The sums of squares on the device, one per chunk for all jobs, and each job's range in them.
    """
    sums, ranges = _shared_sums(jobs)
    factors = memory_of(jobs[0].plan).policy_factors
    for job, rule_pass, (begin, end) in zip(jobs, passes, ranges):
        # A view is made only where there are several jobs: it takes time at every step.
        part = sums if end - begin == sums.numel() else sums[begin:end]
        _launch_rule(job, rule_pass, part, flag, factors)
    return sums, ranges


def _launch_policy(jobs: Sequence[Job], policy: Policy, sums: Tensor, end: int) -> None:
    """Launch the kernel that applies the policy to the norm of all gradients.

    It writes, in the memory of the first job's plan, the factor on the gradients, the flag that
    says whether to step, and what the report counts; the norm enters the policy's window.

    Args:
        sums: sums of the gradients' squares by chunk.
        end: how many of them count, from the first.
    """
    memory = memory_of(jobs[0].plan)
    counts, clip_code = memory.counts, _CLIP_CODES.get(policy.clip, 1)
    threshold = float(policy.clip) if clip_code == 1 else 0.0  # type: ignore[arg-type]
    # Where nothing is judged, the kernel takes any memory and reads none of it.
    judging, entry_count, beta2 = (counts.history,) * 3, 0, 0.0
    if policy.judged is not None:
        judged = policy.judged(jobs[0].plan.device)
        entries = _gathered_entries(jobs, judged)
        judging = (judged.evidence, judged.sides, entries)
        entry_count, beta2 = entries.numel(), float(judged.beta2)
    with _current_device(jobs[0].plan):
        cuda.launch(
            "policy",
            1,
            (
                sums,
                memory.policy_factors,
                counts.stats,
                counts.history if policy.window is None else policy.window,
                counts.history,
                counts.spikes,
                memory.step_flag,
                memory.device_step,
                *judging,
            ),
            (
                end,
                threshold,
                policy.eps,
                policy.quantile,
                float(policy.spike_after),
                entry_count,
                1.0 - beta2,
                math.log(beta2) if beta2 else LOG_ZERO,
            ),
            NONFINITE=policy.nonfinite != "propagate",
            CLIP=clip_code,
            SPIKES=_SPIKE_CODES[policy.guard],
            COUNT=jobs[0].record.rule != "interpolated",
            WIDE=WIDE,
            WINDOW=WINDOW,
        )


def _gathered_entries(jobs: Sequence[Job], judged: JudgedEntries) -> Tensor:
    """Launch the kernels that copy the gradients' entries by which large gradients are judged.

    Returns:
        The entries of all parameters on the device, as float32 in the order of ``judged.sides``; 0
        for a parameter without a gradient. They are kept with the first plan.
    """
    first_plan = jobs[0].plan
    entries = first_plan.engine_data.get("entries")
    if entries is None:
        entries = torch.zeros(len(judged.sides), dtype=torch.float32, device=first_plan.device)
        first_plan.engine_data["entries"] = entries
    for job in jobs:
        plan = job.plan
        tables = plan.engine_data.get("entry tables")
        if tables is None:
            tables = plan.engine_data["entry tables"] = _entry_tables(plan, judged)
        count = tables[0].numel()
        if count:
            # The gradients' addresses, a table that the pass ``NORM`` has made already.
            addresses = memory_of(plan).address_table(plan, NORM.lists)
            with _current_device(plan):
                cuda.launch(
                    "gather",
                    -(-count // cuda.BLOCK),
                    (addresses.table, *tables, entries),
                    (count,),
                    DTYPE=_triton_type(plan, "grad"),
                    BLOCK=cuda.BLOCK,
                )
    return entries


def _entry_tables(plan: Plan, judged: JudgedEntries) -> list[Tensor]:
    """Per entry of a plan's gradients that is read: its tensor, its offset there, and its place
    among the entries of all parameters; on the device.
    """
    tensors, offsets, places = [], [], []
    for i, p in enumerate(plan.owners):
        # Every ``spacing``-th element in memory, ``count`` of them.
        first_place, spacing, count = judged.places[p]
        index = np.arange(count, dtype=np.int64)
        tensors.append(np.full(count, i, dtype=np.int32))
        offsets.append(index * spacing)
        places.append((first_place + index).astype(np.int32))
    return [_to_device(np.concatenate(rows), plan.device) for rows in (tensors, offsets, places)]


def run(jobs: Sequence[Job], policy: Policy) -> Outcome:
    """Make one step of all jobs in place, unless the policy skips it; returns what the report is to
    know of it, as tensors on the device that are not waited for.

    Args:
        jobs: plans (tensors of one group that share dtypes), each with the settings of its group.
        policy: what to do about the norm of all gradients before the rule.

    Raises:
        RuleError: the norm is not finite and ``nonfinite`` is ``"raise"``, which alone waits.
    """
    programs = [program_of(job) for job in jobs]
    shared = memory_of(jobs[0].plan)  # has what is computed from all gradients
    if shared.policy_ran and not policy.looks:  # drop the factor of the last step
        shared.policy_factors[0] = 1.0
    shared.policy_ran = policy.looks
    if policy.looks and programs[0].kind != "interpolate":
        shared.follow_count(jobs[0].k)
    notes: dict[str, Any] = {}
    # The flag of a step that may be left out, what the report counts, and the gradients' sums of
    # squares with each job's range in them, which a rule may use again.
    flag, skips, spikes, summed = None, None, None, None
    if policy.looks:
        summed = _sum_squares(jobs, [NORM] * len(jobs), None)
        sums, ranges = summed
        if policy.nonfinite == "raise":
            norm = float(sums.sum().sqrt())
            if not math.isfinite(norm):
                fail("gradients", "must be finite (nonfinite='raise')", norm)
        _, end = ranges[-1]
        _launch_policy(jobs, policy, sums, end)
        if policy.nonfinite == "skip" or policy.guard == "skip":
            flag, skips = shared.step_flag, shared.counts.skips
        if policy.clip is not None:
            counts = shared.counts
            notes = {
                "direction": [(1.0, counts.norm)],
                "tallies": [counts.clips],
                "norms": counts.norms,
            }
        spikes = shared.counts.spikes if policy.guard else None
    if programs[0].kind:
        own_notes = _step_with_norm(jobs, programs, flag, summed, policy)
        # What the policy noted counts: the rule's own norm may be that of a state.
        return Outcome({**own_notes, **notes}, skips=skips, spikes=spikes)
    for job, program in zip(jobs, programs):
        per_tensor = job.record.counts
        factors = _launch_corrections(job, shared, flag) if per_tensor else shared.policy_factors
        _launch_rule(
            job, program.step, shared.chunk_sums, flag, factors, factors_per_tensor=per_tensor
        )
    return Outcome(notes, skips=skips, spikes=spikes)


def _launch_corrections(job: Job, shared: PlanMemory, flag: Tensor | None) -> Tensor:
    """Launch the kernel that counts one more gradient per tensor and computes the bias corrections
    1/(1−β^k); the host's counts in the plan grow too.

    Args:
        shared: memory of the first job, which has the policy's factor.
        flag: device memory that is 0 where the step is left out; None for a step that is certain.

    Returns:
        Memory on the device that the kernel fills, four factors w per tensor.
    """
    memory, steps, numbers = memory_of(job.plan), job.plan.steps, job.record.numbers
    assert steps is not None
    gradient_counts = memory.follow_gradient_counts(steps)
    logs = [math.log(beta) if beta else LOG_ZERO for beta in (job["beta"], job["beta2"])]
    bounded = "abs_beta" in numbers
    rate = math.log(job["abs_beta"]) if bounded else float(numbers.get("event_rate") or 0.0)
    with _current_device(job.plan):
        cuda.launch(
            "corrections",
            1,
            (
                shared.policy_factors,
                memory.rule_factors,
                gradient_counts,
                memory.step_flag if flag is None else flag,
            ),
            (memory.tensor_count, *logs, rate),
            EARLIER=job["form"] == "second_moment",
            EVENTS=numbers.get("event_rate") is not None,
            BOUNDED=bounded,
            GUARD=flag is not None,
            WIDE=TENSORS_AT_ONCE,
        )
    return memory.rule_factors


def _step_with_norm(
    jobs: Sequence[Job],
    programs: Sequence[Program],
    flag: Tensor | None,
    summed: tuple[Tensor, list[ChunkRange]] | None,
    policy: Policy,
) -> dict[str, Any]:
    """Make a step in place whose factor follows from a norm of the gradient or of its average.

    Args:
        jobs: plans (tensors of one group that share dtypes), each with the settings of its group.
        programs: per job the passes of its step.
        flag: device memory that is 0 where the step is left out; None for a step that is certain.
        summed: the gradients' sums of squares and each job's range in them, where the policy has
            taken them; else None.

    Returns:
        Notes for the report, as memory on the device (``Tally.note``): ``direction``, and where
        they apply ``norms``, ``tallies`` and ``update``.
    """
    shared, kind = memory_of(jobs[0].plan), programs[0].kind
    norm_passes = [program.first for program in programs]
    if summed is None or any(norm_pass is not NORM for norm_pass in norm_passes):
        summed = _sum_squares(jobs, norm_passes, flag)  # type: ignore[arg-type]
    remember = policy.clip is None  # else the policy keeps the norms for the report
    for i, program in enumerate(programs):
        # The sums are of gradients that the policy's factor has yet to scale.
        late = policy.looks and program.first is NORM
        _launch_norm_factor(i, jobs, program, flag, summed, late=late, remember=remember and i == 0)
    memories = [memory_of(job.plan) for job in jobs]
    for job, program, memory in zip(jobs, programs, memories):
        _launch_rule(job, program.step, memory.chunk_sums, flag, memory.rule_factors)
    notes: dict[str, Any] = {"direction": [(1.0, memory.own_norm) for memory in memories]}
    if remember:
        notes["norms"] = shared.counts.norms
    if kind == "clip":
        notes["tallies"] = [memory.counts.rule_clips for memory in memories]
    if all(program.rated for program in programs):
        notes["update"] = [(memory.norm_factor, memory.own_norm) for memory in memories]
    return notes


def _launch_norm_factor(
    place: int,
    jobs: Sequence[Job],
    program: Program,
    flag: Tensor | None,
    summed: tuple[Tensor, list[ChunkRange]],
    *,
    late: bool,
    remember: bool,
) -> None:
    """Launch the kernel that turns sums of squares into the factor on one job's direction. It
    writes norm and factor into the memory of the job's plan, and counts for the report.

    Args:
        place: index of the job among all jobs.
        flag: device memory that is 0 where the step is left out; None for a step that is certain.
        summed: sums of squares by chunk of all jobs, and each job's range in them.
        late: whether the sums are of gradients that the policy's factor has yet to scale.
        remember: whether the norm enters the history of the report.
    """
    job, (sums, ranges) = jobs[place], summed
    shared, memory = memory_of(jobs[0].plan), memory_of(job.plan)
    lr, lr_memory, lr_in_memory = _step_size(job, memory.norm_output)
    # The chunks of all tensors that the rule's norm is taken over: of all jobs, or of the group.
    counted_ranges = [
        chunk_range
        for chunk_range, other in zip(ranges, jobs)
        if job.record.scope == "all" or other.group == job.group
    ]
    numbers, window = job.record.numbers, job.record.window
    if program.kind == "interpolate":
        # The kernel has one pair of numbers for all kinds: here p and q of 1/(p·norm + q).
        level, quantile, base = float(job["p"]), float(job["q"]), draw_base(job["seed"])
        memory.follow_count(job.k)
    else:
        level, quantile = float(numbers.get("level", 0.0)), float(numbers.get("quantile", 0.0))
        base = UNUSED_DRAW_BASE
    # A momentum has the sign of ``maximize`` already; a bare gradient gets it with the factor.
    sign = job["sign"] if program.rated and program.step.lists[1] == "grad" else 1.0
    with _current_device(job.plan):
        cuda.launch(
            "norm_factor",
            1,
            (
                sums,
                shared.policy_factors,
                memory.norm_output,
                memory.rule_factors,
                memory.counts.rule_clips,
                shared.counts.history,
                shared.counts.history if window is None else window,
                lr_memory,
                memory.step_flag if flag is None else flag,
                memory.device_step,
            ),
            (
                *ranges[place],
                counted_ranges[0][0],
                counted_ranges[-1][1],
                lr,
                level,
                sign,
                quantile,
                base,
            ),
            KIND=_KIND_CODES[program.kind],
            LATE=late,
            RATED=program.rated,
            WINDOWED=window is not None,
            REMEMBER=remember,
            COUNT=program.kind == "interpolate",
            LR_AT=lr_in_memory,
            GUARD=flag is not None,
            WIDE=WIDE,
            WINDOW=WINDOW,
        )


def counted(jobs: Sequence[Job]) -> bool:
    """Add the next step to the host's counts, because it is made by repeating the launches of the
    last one. Returns False, with nothing counted, where the counts of the device would then differ
    from the host's.
    """
    for job in jobs:
        memory = memory_of(job.plan)
        if memory.counts_steps and job.k != memory.host_step + 1:
            return False
        counts = memory.gradient_counts
        if counts is not None and not torch.equal(job.plan.steps, memory.host_gradient_counts):  # type: ignore[arg-type]
            return False
    for job in jobs:
        memory = memory_of(job.plan)
        if memory.gradient_counts is not None:
            memory.host_gradient_counts.add_(1)  # type: ignore[union-attr]
            job.plan.steps.add_(1)  # type: ignore[union-attr]
        memory.host_step = job.k
    return True


def follow(plan: Plan) -> int | None:
    """Take over what the device counted otherwise than the host, because of graph replays and
    skipped steps. Waits for the device.

    The plan's numbers of gradients are moved in place by the difference, not replaced, so that
    steps that were made elsewhere since still count.

    Returns:
        How many steps the device's own number is ahead of the host's; None where it counts none.
    """
    memory = plan.engine_data.get("cuda")
    if memory is None:
        return None
    if memory.gradient_counts is not None:
        device_counts = memory.gradient_counts.to("cpu", torch.float32)
        plan.steps.add_(device_counts - memory.host_gradient_counts)  # type: ignore[union-attr]
        memory.host_gradient_counts = device_counts
    if not memory.counts_steps:
        return None
    steps_ahead = int(memory.device_step) - memory.host_step
    memory.host_step += steps_ahead
    return steps_ahead
