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
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindgap.base.check import fail
from mindgap.rules.fused import cuda
from mindgap.rules.fused.arithmetic import RULES
from mindgap.rules.fused.plan import Job, Outcome, Plan, Policy
from mindgap.rules.fused.program import NORM, Pass, Program, program_of
from mindgap.rules.schedule import draw_base

#: Width of the single program that adds up the chunks' sums.
WIDE = 8192
#: Norms that the device remembers for a report, as many as a window of ``mindgap.optim.norms``
#: holds.
WINDOW = 128
#: Tables held back for captures: memory cannot be allocated while a graph is being captured.
RESERVE = 4
_KINDS = {"clip": 0, "normalize": 1, "interpolate": 2}

_HERE = nullcontext()


class _Tables:
    """Device memory of a plan: where its chunks are, its addresses, and its scalars."""

    def __init__(self, plan: Plan) -> None:
        sizes = np.array(plan.sizes, dtype=np.int64)
        counts = -(-sizes // cuda.BLOCK)
        self.chunks = int(counts.sum())
        self.n = len(sizes)
        device = plan.device

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        self.tensor_of = _to(np.repeat(np.arange(self.n, dtype=np.int32), counts), device)
        self.first_of = _to(np.cumsum(counts) - counts, device)
        self.sizes = _to(sizes, device)
        self.sums = zeros(max(self.chunks, 1))
        #: The front's factor as numbers w of a rule.
        self.row, self.fronted = _to(np.array([1.0, 1.0, 1.0, 0.0]), device), False
        #: A rule's own norms, and its numbers w.
        self.out, self.marks = zeros(3), zeros(4 * (self.n if plan.steps is not None else 1))
        self.own, self.factor = self.out[0], self.out[2]
        known = plan.ledger.get(plan.place)
        if known is None or known.stats.device != device:
            known = plan.ledger[plan.place] = Counts(device)
        self.counts: Counts = known
        self.flag = torch.ones((), dtype=torch.int32, device=device)
        self.counter = torch.zeros((), dtype=torch.int64, device=device)
        self.counting = False
        self.host_k = -1
        self.steps: Tensor | None = None
        self.host_steps: Tensor | None = None
        self._addresses: dict[tuple[str, ...], tuple[np.ndarray, Tensor, bool, bool]] = {}
        self._spare: dict[tuple[str, ...], list[tuple[Tensor, Tensor]]] = {}
        self._captured: list[Any] = []

    def follow_count(self, k: int) -> None:
        """Let the device count steps from k; it follows the host's number where steps were made
        elsewhere.
        """
        if not self.counting or k != self.host_k + 1:
            self.counter.fill_(k - 1)
        self.counting, self.host_k = True, k

    def follow_steps(self, steps: Tensor) -> Tensor:
        """The gradients seen per tensor, on the device; the host's numbers count where they
        were changed.
        """
        if self.steps is None:
            self.steps = _to(steps.double().numpy(), self.sums.device)
        elif not torch.equal(steps, self.host_steps):  # type: ignore[arg-type]
            self.steps.copy_(steps)
        self.host_steps = steps.add_(1).clone()
        return self.steps

    def addresses(self, plan: Plan, names: tuple[str, ...]) -> tuple[Tensor, bool]:
        """The plan's addresses on the device, and whether all are multiples of 16 bytes."""
        rows = plan.addresses(names)
        kept = self._addresses.get(names)
        # A table made during a capture is filled by the graph's replays only: it serves no step
        # outside the capture.
        if kept is None or kept[0] is not rows or (kept[3] and not _capturing(plan)):
            captured = _capturing(plan)
            table = self._upload(rows, names, plan, captured)
            kept = self._addresses[names] = (rows, table, not (rows % 16).any(), captured)
        return kept[1], kept[2]

    def _upload(
        self, rows: np.ndarray, names: tuple[str, ...], plan: Plan, captured: bool
    ) -> Tensor:
        """The table of addresses on the device; during a capture one of those held back."""
        device = plan.device
        if captured:
            if cuda.Tape.running is not None:
                cuda.Tape.running.whole = False
            # A replay copies from this pinned memory again: it must live, unchanged, as long as the
            # graph.
            host, table = self._spare[names].pop()
            host.numpy()[...] = rows
            table.copy_(host, non_blocking=True)
            self._captured.append((host, table))
            return table
        if names not in self._spare and plan.lasting:
            blank = torch.empty(rows.shape, dtype=torch.int64, device="cpu")
            pairs = [
                (blank.pin_memory() if device.type == "cuda" else blank, blank.to(device))
                for _ in range(RESERVE)
            ]
            self._spare[names] = pairs
        return _to(rows, device)


class Counts:
    """What the device counts for the report; it outlives the plan."""

    def __init__(self, device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(*shape, dtype=torch.float64, device=device)

        #: Norm, steps left out, steps that the front clipped, spikes; and the rule's own count of
        #: clipped steps.
        self.stats, self.tally, self.spikes = zeros(4), zeros(1), zeros(64, 4)
        #: The last norms, and behind them how many there were.
        self.history = zeros(WINDOW + 1)
        # Lasting views: a report knows memory by the object.
        self.norm, self.skips, self.clips = self.stats[0], self.stats[1], self.stats[2]
        self.norms = self.history[:WINDOW]


def _capturing(plan: Plan) -> bool:
    return plan.device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return tensor.clone()
    return tensor.pin_memory().to(device, non_blocking=True)


def tables(plan: Plan) -> _Tables:
    """The plan's device memory, made when first asked for."""
    kept = plan.kept.get("cuda")
    if kept is None:
        kept = plan.kept["cuda"] = _Tables(plan)
    return kept


@lru_cache(None)
def _types() -> dict[torch.dtype, Any]:
    import triton.language as tl

    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def _type(plan: Plan, name: str) -> Any:
    """Triton's name for the dtype of a plan's list; all states are float32."""
    return _types()[{"param": plan.dtype, "grad": plan.grad_dtype}.get(name, torch.float32)]


def _rate(job: Job, like: Tensor) -> tuple[float, Tensor, bool]:
    """A step size as a number, or as memory for the kernel to read."""
    lr = job["lr"]
    if isinstance(lr, Tensor) and lr.device == like.device:
        return 0.0, lr, True
    return float(lr), like, False


def _on(plan: Plan) -> Any:
    if plan.device.type != "cuda" or torch._C._cuda_getDevice() == plan.device.index:
        return _HERE
    return torch.cuda.device(plan.device)


def _launch(
    job: Job, this: Pass, sums: Tensor, flag: Tensor | None, marks: Tensor, *, each: bool = False
) -> None:
    """Walk through a job's tensors with a rule."""
    plan, held, rule = job.plan, tables(job.plan), RULES[this.rule]
    if not held.chunks:
        return
    rows, aligned = held.addresses(plan, this.lists)
    lr, lr_at, read = _rate(job, held.out)
    kinds = [_type(plan, name) for name in this.lists[:3]]
    numbers = tuple(map(float, this.numbers))
    with _on(plan):
        cuda.launch(
            this.rule,
            held.chunks,
            (
                rows,
                held.tensor_of,
                held.first_of,
                held.sizes,
                marks,
                lr_at,
                held.flag if flag is None else flag,
                sums,
            ),
            (held.n, lr, float(job["decay"]), *numbers, *(0.0,) * (9 - len(numbers))),
            D0=kinds[0],
            D1=kinds[min(1, len(kinds) - 1)],
            D2=kinds[-1],
            LISTS=rule.lists,
            OUTPUTS=rule.outputs,
            SUMS=rule.sums,
            EACH=each,
            LR_AT=read,
            GUARD=flag is not None,
            ALIGNED=aligned,
            BLOCK=cuda.BLOCK,
        )


def _shared_sums(jobs: Sequence[Job]) -> tuple[Tensor, list[tuple[int, int]]]:
    """One buffer for the sums of all jobs, kept with the first plan, and each job's part of it."""
    ends = np.cumsum([tables(job.plan).chunks for job in jobs]).tolist()
    parts = list(zip([0, *ends[:-1]], ends))
    if len(jobs) == 1:
        return tables(jobs[0].plan).sums, parts
    kept = jobs[0].plan.kept
    if "shared" not in kept or kept["shared"].numel() != max(ends[-1], 1):
        kept["shared"] = torch.zeros(
            max(ends[-1], 1), dtype=torch.float64, device=jobs[0].plan.device
        )
    return kept["shared"], parts


def _sum_squares(
    jobs: Sequence[Job], passes: Sequence[Pass], flag: Tensor | None
) -> tuple[Tensor, list[tuple[int, int]]]:
    """Sums of squares by chunk, of all jobs in one buffer."""
    sums, parts = _shared_sums(jobs)
    row = tables(jobs[0].plan).row
    for job, this, (begin, end) in zip(jobs, passes, parts):
        _launch(job, this, sums if end - begin == sums.numel() else sums[begin:end], flag, row)
    return sums, parts


def _front(jobs: Sequence[Job], policy: Policy, sums: Tensor, end: int) -> None:
    """Launch the kernel that turns the sums of squares into norm, clip factor and flag."""
    held = tables(jobs[0].plan)
    counts = held.counts
    clip = {None: 0, "auto": 2, "unit": 3}.get(policy.clip, 1)  # type: ignore[arg-type]
    number = float(policy.clip) if clip == 1 else 0.0  # type: ignore[arg-type]
    window = counts.history if policy.window is None else policy.window
    with _on(jobs[0].plan):
        cuda.launch(
            "front",
            1,
            (
                sums,
                held.row,
                counts.stats,
                window,
                counts.history,
                counts.spikes,
                held.flag,
                held.counter,
            ),
            (end, number, policy.eps, policy.quantile, float(policy.spike_after)),
            NONFINITE=policy.nonfinite != "propagate",
            CLIP=clip,
            SPIKES={None: 0, "clip": 1, "skip": 2}[policy.guard],
            COUNT=jobs[0].record.rule != "interpolated",
            WIDE=WIDE,
            WINDOW=WINDOW,
        )


def run(jobs: Sequence[Job], policy: Policy) -> Outcome:
    """One step of all jobs."""
    programs = [program_of(job) for job in jobs]
    lead = tables(jobs[0].plan)
    if lead.fronted and not policy.looks:
        lead.row[0] = 1.0
    lead.fronted = policy.looks
    if policy.looks and programs[0].kind != "interpolate":
        lead.follow_count(jobs[0].k)
    notes: dict[str, Any] = {}
    flag, skips, spikes, summed = None, None, None, None
    if policy.looks:
        summed = _sum_squares(jobs, [NORM] * len(jobs), None)
        if policy.nonfinite == "raise" and not math.isfinite(norm := float(summed[0].sum().sqrt())):
            fail("gradients", "must be finite (nonfinite='raise')", norm)
        _front(jobs, policy, summed[0], summed[1][-1][1])
        if policy.nonfinite == "skip" or policy.guard == "skip":
            flag, skips = lead.flag, lead.counts.skips
        if policy.clip is not None:
            counts = lead.counts
            notes = {
                "direction": [(1.0, counts.norm)],
                "tallies": [counts.clips],
                "norms": counts.norms,
            }
        spikes = lead.counts.spikes if policy.guard else None
    if programs[0].kind:
        own = _with_norm(
            jobs, programs, flag, summed, looked=policy.looks, remember=policy.clip is None
        )
        return Outcome({**own, **notes}, skips=skips, spikes=spikes)
    for job, program in zip(jobs, programs):
        marks = _corrections(job, lead, flag) if job.record.counts else lead.row
        _launch(job, program.step, lead.sums, flag, marks, each=job.record.counts)
    return Outcome(notes, skips=skips, spikes=spikes)


def _corrections(job: Job, lead: _Tables, flag: Tensor | None) -> Tensor:
    held, steps = tables(job.plan), job.plan.steps
    assert steps is not None
    seen = held.follow_steps(steps)
    logs = [math.log(beta) if beta else -1e30 for beta in (job["beta"], job["beta2"])]
    with _on(job.plan):
        cuda.launch(
            "correct",
            1,
            (lead.row, held.marks, seen, held.flag if flag is None else flag),
            (held.n, *logs, float(job.record.numbers.get("event_rate") or 0.0)),
            EARLIER=job["form"] == "second_moment",
            EVENTS=job.record.numbers.get("event_rate") is not None,
            GUARD=flag is not None,
            WIDE=1024,
        )
    return held.marks


def _with_norm(
    jobs: Sequence[Job],
    programs: Sequence[Program],
    flag: Tensor | None,
    summed: Any,
    *,
    looked: bool,
    remember: bool,
) -> dict[str, Any]:
    """Steps whose factor follows from a norm of the gradient or of its average."""
    lead, kind = tables(jobs[0].plan), programs[0].kind
    firsts = [program.first for program in programs]
    known = summed is not None and all(first is NORM for first in firsts)
    sums, parts = summed if known else _sum_squares(jobs, firsts, flag)  # type: ignore[arg-type]
    for i, (job, program, (begin, end)) in enumerate(zip(jobs, programs, parts)):
        held, late = tables(job.plan), looked and program.first is NORM
        lr, lr_at, read = _rate(job, held.out)
        span = [
            part
            for part, other in zip(parts, jobs)
            if job.record.scope == "all" or other.group == job.group
        ]
        numbers, window = job.record.numbers, job.record.window
        level = float(numbers.get("level", 0.0))
        q = float(numbers.get("quantile", 0.0))
        base = 2**40
        if kind == "interpolate":
            level, q, base = float(job["p"]), float(job["q"]), draw_base(job["seed"])
            held.follow_count(job.k)
        sign = job["sign"] if program.rated and program.step.lists[1] == "grad" else 1.0
        with _on(job.plan):
            cuda.launch(
                "factor",
                1,
                (
                    sums,
                    lead.row,
                    held.out,
                    held.marks,
                    held.counts.tally,
                    lead.counts.history,
                    lead.counts.history if window is None else window,
                    lr_at,
                    held.flag if flag is None else flag,
                    held.counter,
                ),
                (begin, end, span[0][0], span[-1][1], lr, level, sign, q, base),
                KIND=_KINDS[kind],
                LATE=late,
                RATED=program.rated,
                WINDOWED=window is not None,
                REMEMBER=remember and i == 0,
                COUNT=kind == "interpolate",
                LR_AT=read,
                GUARD=flag is not None,
                WIDE=WIDE,
                WINDOW=WINDOW,
            )
    every = [tables(job.plan) for job in jobs]
    for job, program, held in zip(jobs, programs, every):
        _launch(job, program.step, held.sums, flag, held.marks)
    notes: dict[str, Any] = {"direction": [(1.0, held.own) for held in every]}
    if remember:
        notes["norms"] = lead.counts.norms
    if kind == "clip":
        notes["tallies"] = [held.counts.tally for held in every]
    if all(program.rated for program in programs):
        notes["update"] = [(held.factor, held.own) for held in every]
    return notes


def counted(job: Job) -> bool:
    """Whether the device counts the next step by itself as the host does; notes that it was
    made.
    """
    held, k = tables(job.plan), job.k
    if held.counting and k != held.host_k + 1:
        return False
    if held.steps is not None:
        if not torch.equal(job.plan.steps, held.host_steps):  # type: ignore[arg-type]
            return False
        held.host_steps.add_(1)  # type: ignore[union-attr]
        job.plan.steps.add_(1)  # type: ignore[union-attr]
    held.host_k = k
    return True


def follow(plan: Plan) -> int | None:
    """Take over what the device counted otherwise than the host: graph replays and skipped steps.

    Returns how many steps it is ahead, if it counts them. Steps that were made elsewhere since
    count too: the host's numbers are moved, not replaced.
    """
    held = plan.kept.get("cuda")
    if held is None:
        return None
    if held.steps is not None:
        counted = held.steps.to("cpu", torch.float32)
        plan.steps.add_(counted - held.host_steps)  # type: ignore[union-attr]
        held.host_steps = counted
    if not held.counting:
        return None
    ahead = int(held.counter) - held.host_k
    held.host_k += ahead
    return ahead
