"""The rules as sequences of CUDA kernels. Every scalar stays on the device; nothing here waits for it.

Buffers and tables are made at the first step and kept with the plan, so that a step can be captured in a CUDA graph
after one step outside: with a tensor lr the captured step follows the tensor's value.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindgap.rules.fused import cuda
from mindgap.rules.fused.plan import Job, Plan
from mindgap.rules.schedule import draw_base

#: Width of the single program that adds up the chunks' sums.
WIDE = 4096
#: Tables held back for captures: memory cannot be allocated while a graph is being captured.
RESERVE = 4


_HERE = nullcontext()


class _Tables:
    """Device memory of a plan: where its chunks are, its addresses, and its scalars."""

    def __init__(self, plan: Plan) -> None:
        sizes = np.array(plan.sizes, dtype=np.int64)
        counts = -(-sizes // cuda.BLOCK)
        self.chunks = int(counts.sum())
        self.n = len(sizes)
        device = plan.device
        self.tensor_of = _to(np.repeat(np.arange(self.n, dtype=np.int32), counts), device)
        self.first_of = _to(np.cumsum(counts) - counts, device)
        self.sizes = _to(sizes, device)
        self.sums = torch.zeros(max(self.chunks, 1), dtype=torch.float64, device=device)
        self.numbers = torch.zeros(8, dtype=torch.float64, device=device)
        self.own, self.step = self.numbers[0], self.numbers[2]
        self.tally = torch.zeros((), dtype=torch.float64, device=device)
        self.skips = torch.zeros((), dtype=torch.float64, device=device)
        self.flag = torch.ones((), dtype=torch.int32, device=device)
        self.counter: Tensor | None = None
        self.host_k = -1
        self._addresses: dict[tuple[str, ...], tuple[np.ndarray, Tensor, bool, bool]] = {}
        self._spare: dict[tuple[str, ...], list[tuple[Tensor, Tensor]]] = {}
        self._captured: list[Any] = []

    def addresses(self, plan: Plan, names: tuple[str, ...]) -> tuple[Tensor, bool]:
        """The plan's addresses on the device, and whether all are multiples of 16 bytes."""
        rows = plan.addresses(names)
        kept = self._addresses.get(names)
        # A table made during a capture is filled by the graph's replays only: it serves no step outside the capture.
        if kept is None or kept[0] is not rows or (kept[3] and not _capturing(plan)):
            captured = _capturing(plan)
            table = self._upload(rows, names, plan, captured)
            kept = self._addresses[names] = (rows, table, not (rows % 16).any(), captured)
        return kept[1], kept[2]

    def _upload(self, rows: np.ndarray, names: tuple[str, ...], plan: Plan, captured: bool) -> Tensor:
        device = plan.device
        if captured:
            if cuda.Tape.running is not None:
                cuda.Tape.running.whole = False
            # A replay copies from this pinned memory again: it must live, unchanged, as long as the graph.
            host, table = self._spare[names].pop()
            host.numpy()[...] = rows
            table.copy_(host, non_blocking=True)
            self._captured.append((host, table))
            return table
        if names not in self._spare and plan.lasting:
            blank = torch.empty(rows.shape, dtype=torch.int64, device="cpu")
            pairs = [(blank.pin_memory() if device.type == "cuda" else blank, blank.to(device)) for _ in range(RESERVE)]
            self._spare[names] = pairs
        return _to(rows, device)


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
def _type(dtype: torch.dtype) -> Any:
    import triton.language as tl

    return {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]


def _rate(job: Job, like: Tensor) -> tuple[float, Tensor, bool]:
    """A step size as a number, or as memory for the kernel to read."""
    lr = job["lr"]
    if isinstance(lr, Tensor) and lr.device.type == like.device.type:
        return 0.0, lr, True
    return float(lr), like, False


def _on(plan: Plan) -> Any:
    if plan.device.type != "cuda" or torch._C._cuda_getDevice() == plan.device.index:
        return _HERE
    return torch.cuda.device(plan.device)


def _sums(
    job: Job, form: int, lists: tuple[str, ...], numbers: Sequence[float], sums: Tensor, guard: Tensor | None
) -> None:
    plan, held = job.plan, tables(job.plan)
    if not held.chunks:
        return
    rows, aligned = held.addresses(plan, lists)
    flag = held.flag if guard is None else guard
    with _on(plan):
        cuda.launch(
            "sum", held.chunks, (rows, held.tensor_of, held.first_of, held.sizes, sums, flag), (held.n, *numbers),
            P=_type(plan.dtype), G=_type(plan.grad_dtype), FORM=form, GUARD=guard is not None, ALIGNED=aligned,
            BLOCK=cuda.BLOCK,
        )  # fmt: skip


def _shared_sums(jobs: Sequence[Job]) -> tuple[Tensor, list[tuple[int, int]]]:
    """One buffer for the sums of all jobs, kept with the first plan, and each job's part of it."""
    ends = np.cumsum([tables(job.plan).chunks for job in jobs]).tolist()
    parts = list(zip([0, *ends[:-1]], ends))
    if len(jobs) == 1:
        return tables(jobs[0].plan).sums, parts
    kept = jobs[0].plan.kept
    if "shared" not in kept or kept["shared"].numel() != max(ends[-1], 1):
        kept["shared"] = torch.zeros(max(ends[-1], 1), dtype=torch.float64, device=jobs[0].plan.device)
    return kept["shared"], parts


def _part(sums: Tensor, begin: int, end: int) -> Tensor:
    return sums if end - begin == sums.numel() else sums[begin:end]


def gradient_norm(jobs: Sequence[Job]) -> float:
    """Norm of all gradients (waits for the device)."""
    sums, parts = _shared_sums(jobs)
    for job, (begin, end) in zip(jobs, parts):
        _sums(job, 0, ("grad",), (0.0, 0.0, 0.0), _part(sums, begin, end), None)
    return float(sums.sum().sqrt())


def guard(jobs: Sequence[Job]) -> tuple[Tensor, Tensor]:
    """A flag on the device, 0 where a gradient is not finite, and the count of such steps so far."""
    held = tables(jobs[0].plan)
    sums, parts = _shared_sums(jobs)
    for job, (begin, end) in zip(jobs, parts):
        _sums(job, 0, ("grad",), (0.0, 0.0, 0.0), _part(sums, begin, end), None)
    with _on(jobs[0].plan):
        cuda.launch("flag", 1, (sums, held.flag, held.skips), (parts[-1][1],), WIDE=WIDE)
    return held.flag, held.skips


def _factors(
    jobs: Sequence[Job], sums: Tensor, parts: list[tuple[int, int]], kind: int, together: bool, flag: Tensor | None
) -> None:
    """Each job's numbers from the sums: over all jobs, or over its own only."""
    for job, (begin, end) in zip(jobs, parts):
        held = tables(job.plan)
        lr, lr_at, lr_read = _rate(job, held.numbers)
        first, last = (0, parts[-1][1]) if together else (begin, end)
        level = float(job["p"] if kind == 2 else job["level"])
        q, base, counter = 0.0, 2**40, held.first_of
        if kind == 2:
            q, base, counter = float(job["q"]), draw_base(job["seed"]), _counter(job, held)
        decay = 0.0 if kind == 2 else job["decay"]
        with _on(job.plan):
            cuda.launch(
                "factor", 1, (sums, held.numbers, held.tally, lr_at, held.flag if flag is None else flag, counter),
                (begin, end, first, last, lr, level, float(decay), _sign(job), q, base),
                KIND=kind, LR_AT=lr_read, GUARD=flag is not None, WIDE=WIDE,
            )  # fmt: skip


def _sign(job: Job) -> float:
    # Momentum has the sign already.
    return job["sign"] if not job.record.numbers.get("beta") else 1.0


def _counter(job: Job, held: _Tables) -> Tensor:
    """The step number in device memory; it follows the host's where steps were made outside the kernels."""
    k = job["k"]
    if held.counter is None:
        held.counter = torch.full((), k - 1, dtype=torch.int64, device=job.plan.device)
    elif k != held.host_k + 1:
        held.counter.fill_(k - 1)
    held.host_k = k
    return held.counter


def counted(job: Job) -> bool:
    """Whether the device counts the next step as its number k by itself, or does not count; notes that it was made."""
    held, k = tables(job.plan), int(job.record.numbers.get("k", 0))
    if held.counter is not None and k != held.host_k + 1:
        return False
    held.host_k = k
    return True


def device_step(plan: Plan) -> int | None:
    """The step number that the device has reached (graph replays included), where it keeps one. Waits for it."""
    held = plan.kept.get("cuda")
    return None if held is None or held.counter is None else int(held.counter)


def _launch(
    job: Job,
    name: str,
    lists: tuple[str, ...],
    flag: Tensor | None,
    memory: tuple[Tensor, ...],
    numbers: tuple[float, ...] = (),
    **constants: Any,
) -> None:
    """Launch an element-wise kernel over a plan; ``memory`` is what it reads besides the plan's tables."""
    plan, held = job.plan, tables(job.plan)
    if not held.chunks:
        return
    rows, aligned = held.addresses(plan, lists)
    with _on(plan):
        cuda.launch(
            name,
            held.chunks,
            (rows, held.tensor_of, held.first_of, held.sizes, *memory, held.flag if flag is None else flag),
            (held.n, *numbers),
            P=_type(plan.dtype),
            GUARD=flag is not None,
            ALIGNED=aligned,
            BLOCK=cuda.BLOCK,
            **constants,
        )


def _notes(jobs: Sequence[Job], **more: Any) -> dict[str, Any]:
    held = [tables(job.plan) for job in jobs]
    return {"direction": [(1.0, h.own) for h in held], "update": [(h.step, h.own) for h in held], **more}


def scaled(jobs: Sequence[Job], flag: Tensor | None = None) -> dict[str, Any]:
    """GClip (kind "clip") and NormalizedSGD ("normalize"): x ← x − η·c(‖d‖)·d."""
    scope, kind, on_gradient = jobs[0].record.scope, jobs[0]["kind"], jobs[0]["order"] == "gradient"
    sums, parts = _shared_sums(jobs)
    for job, (begin, end) in zip(jobs, parts):
        averaged = job["beta"] > 0 and not on_gradient
        numbers = (float(job["beta"]), job["sign"] * (1.0 - job["beta"]), 0.0)
        summed = ("grad", "momentum") if averaged else ("grad",)
        _sums(job, 1 if averaged else 0, summed, numbers, _part(sums, begin, end), flag)
    _factors(jobs, sums, parts, 0 if kind == "clip" else 1, scope == "all", flag)
    for job in jobs:
        held = tables(job.plan)
        if job["beta"] > 0 and on_gradient:
            lr, lr_at, read = _rate(job, held.numbers)
            rest = job["sign"] * (1.0 - job["beta"])
            constants = {"G": _type(job.plan.grad_dtype), "LR_AT": read}
            lists = ("param", "momentum", "grad")
            _launch(job, "average", lists, flag, (held.numbers, lr_at), (lr, float(job["beta"]), rest), **constants)
        else:
            name = "momentum" if job["beta"] > 0 else "grad"
            dtype = torch.float32 if job["beta"] > 0 else job.plan.grad_dtype
            _launch(job, "scaled", ("param", name), flag, (held.numbers,), D=_type(dtype))
    notes = _notes(jobs)
    if kind == "clip":
        notes["tallies"] = [tables(job.plan).tally for job in jobs]
    if on_gradient and any(job["beta"] > 0 for job in jobs):
        del notes["update"]
    return notes


def coordinate(jobs: Sequence[Job], flag: Tensor | None = None) -> dict[str, Any]:
    """CClip: x ← x − η·min{τ/|m|, 1}·m."""
    for job in jobs:
        held = tables(job.plan)
        lr, lr_at, read = _rate(job, held.numbers)
        form = 0 if job["beta"] == 0 else (2 if job["order"] == "gradient" else 1)
        lists = ("param", "grad") if form == 0 else ("param", "grad", "momentum")
        sign = job["sign"] if form == 0 else 1.0
        numbers = (float(job["level"]), float(job["beta"]), job["sign"] * (1.0 - job["beta"]), sign)
        constants = {"G": _type(job.plan.grad_dtype), "FORM": form, "LR_AT": read}
        _launch(job, "held", lists, flag, (lr_at,), (lr, float(job["decay"]), *numbers), **constants)
    return {}


def adaptive(jobs: Sequence[Job], flag: Tensor | None = None) -> dict[str, Any]:
    """ACClip: x ← x − η·min{τ/(|m|+ε), 1}·m."""
    for job in jobs:
        held = tables(job.plan)
        lr, lr_at, read = _rate(job, held.numbers)
        beta2, alpha, eps = job["beta2"], float(job["alpha"]), float(job["eps"])
        weights = (float(job["beta"]), job["sign"] * (1.0 - job["beta"]), float(beta2), 1.0 - beta2)
        mode = {1.0: 1, 2.0: 2}.get(alpha, 0)
        constants = {"G": _type(job.plan.grad_dtype), "MODE": mode, "LR_AT": read}
        lists = ("param", "grad", "momentum", "moment")
        numbers = (lr, float(job["decay"]), *weights, alpha, 1.0 / alpha, eps)
        normalized = job["form"] == "first_moment"
        _launch(job, "adaptive", lists, flag, (lr_at,), numbers, NORMALIZED=normalized, **constants)
    return {}


def interpolated(jobs: Sequence[Job], flag: Tensor | None = None) -> dict[str, Any]:
    """StochasticINGD: m ← β·m + (1−β)·g, x ← x − m/(p‖m‖+q), y on the segment."""
    sums, parts = _shared_sums(jobs)
    for job, (begin, end) in zip(jobs, parts):
        lists = ("grad", "m", "param") if job["decay"] else ("grad", "m")
        numbers = (float(job["beta"]), job["sign"] * (1.0 - job["beta"]), job["sign"] * job["decay"])
        _sums(job, 2 if job["decay"] else 1, lists, numbers, _part(sums, begin, end), flag)
    _factors(jobs, sums, parts, 2, True, flag)
    for job in jobs:
        held = tables(job.plan)
        _launch(job, "interpolate", ("param", "x", "m"), flag, (held.numbers,))
    return _notes(jobs)
