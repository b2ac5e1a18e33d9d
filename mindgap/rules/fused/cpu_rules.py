"""Steps on the CPU, where a norm is a number at once, so that all scalars are Python's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from mindgap.base.check import fail
from mindgap.base.tensors import robust_norm
from mindgap.rules.fused import cpu
from mindgap.rules.fused.plan import Job, Outcome, Plan, Policy, chunk_table
from mindgap.rules.fused.program import NORM, Pass, Program, program_of
from mindgap.rules.schedule import unit_draw

_NOTHING = Outcome()
#: The numbers w of a rule: one row for all tensors, or one per tensor.
Row = tuple[float, float, float, float]
#: Those where nothing is clipped, corrected or counted.
_PLAIN: Row = (1.0, 1.0, 1.0, 0.0)


def _run(job: Job, this: Pass, w: Row | list[Row] = _PLAIN) -> np.ndarray:
    """Launch a pass over a job's tensors; returns the sums by chunk."""
    plan = job.plan
    kept = plan.kept.get("cpu")
    if kept is None:
        table = chunk_table(plan.sizes, cpu.CHUNK)
        dtype = cpu.DTYPES[plan.dtype]
        kept = plan.kept["cpu"] = (table, np.zeros(len(table)), dtype, np.zeros((1, 4), dtype))
    table, sums, dtype, marks = kept
    if len(table):
        numbers = job.launches.get(this.rule)
        if numbers is None:
            lr = float(job["lr"])
            numbers = job.launches[this.rule] = tuple(
                np.array((lr, 1.0 - lr * job["decay"], *this.numbers), dtype)
            )
        if isinstance(w, list):
            marks = np.array(w, dtype)
        else:
            marks[0] = w
        cpu.launch(this.rule, plan.addresses(this.lists), table, marks, numbers, sums)
    return sums


def _length(sums: np.ndarray, plan: Plan, name: str) -> float:
    square = float(np.add.reduce(sums))
    # Sums of float64 squares leave their range beyond 1e±150; float32 squares never do.
    if 1e-280 < square < 1e300 or math.isnan(square):
        return math.sqrt(square)
    return float(robust_norm(plan.tensors(name), wide=True))


def _lengths(plan: Plan, sums: np.ndarray, name: str) -> list[float]:
    """Norm of each tensor of a plan, from the chunks' sums of squares."""
    squares = np.zeros(len(plan.sizes))
    np.add.at(squares, plan.kept["cpu"][0][:, 0], sums)
    lengths = np.sqrt(squares)
    for i in np.flatnonzero(~((squares > 1e-280) & (squares < 1e300)) & ~np.isnan(squares)):
        lengths[i] = float(robust_norm([plan.tensors(name)[i]], wide=True))
    return lengths.tolist()


def _join_norms(parts: Sequence[float]) -> float:
    if len(parts) == 1:
        return parts[0]
    return math.nan if any(map(math.isnan, parts)) else math.hypot(*parts)  # hypot(∞, NaN) is ∞


def window_quantiles(window: np.ndarray, *levels: float) -> tuple[int, list[float]]:
    """How many entries n of a window are positive, and of these the order statistics of rank
    ⌈q·(n+1)⌉; ∞ for none.

    Example:
        >>> (
        ...     window_quantiles(np.array([0.0, 3.0, 1.0, 2.0]), 0.5, 0.9),
        ...     window_quantiles(np.zeros(4), 0.9),
        ... )
        ((3, [2.0, 3.0]), (0, [inf]))
    """
    count = int(np.count_nonzero(window))
    if not count:
        return 0, [math.inf] * len(levels)
    seen = np.sort(window)[len(window) - count :]
    return count, [float(seen[min(math.ceil(q * (count + 1)), count) - 1]) for q in levels]


def _push(window: np.ndarray, norm: float) -> None:
    window[:-1] = window[1:]
    window[-1] = norm if 0.0 < norm < math.inf else 0.0


def _entries(plan: Plan, window: Tensor, name: str) -> np.ndarray:
    """A window as an array over the same memory, kept with the plan as long as that memory is the
    window's.

    ``share_memory_()`` and ``window.data = ...`` free the memory of a tensor that stays the same
    object.
    """
    memory = window.data_ptr(), window.dtype, window.shape
    kept = plan.kept.get(name)
    if kept is None or kept[0] is not window or kept[1] != memory:
        kept = plan.kept[name] = (window, memory, window.numpy())
    return kept[2]


def _follow_quantile(entries: np.ndarray, norm: float, q: float) -> float:
    """The quantile before this norm, which then enters the window; ∞ where it does not reach
    the quantile.
    """
    if cpu.push_below(entries, norm, norm, q):
        return math.inf
    _, (level,) = window_quantiles(entries, q)
    _push(entries, norm)
    return level


def _front(norm: float, policy: Policy, plan: Plan) -> tuple[float, Outcome]:
    """What the policy makes of the norm of all gradients: the factor on them, and what to
    report.
    """
    if policy.nonfinite != "propagate" and not math.isfinite(norm):
        if policy.nonfinite == "raise":
            fail("gradients", "must be finite (nonfinite='raise')", norm)
        return 1.0, Outcome(skipped=True)
    scale, spike, threshold = 1.0, None, policy.clip
    if policy.window is not None:
        entries = _entries(plan, policy.window, "policy window")
        auto = policy.clip == "auto"
        # A norm of at most four times the 0.9 quantile is no spike, and most are not above the
        # quantile itself.
        if cpu.push_below(entries, norm if auto else norm / 4.0, norm, policy.quantile):
            high = math.inf
        else:
            count, (low, high) = window_quantiles(entries, 1.0 - policy.quantile, policy.quantile)
            if policy.guard and count >= policy.spike_after:
                wide = max(high / low, 2.0)
                limit = high * wide * wide
                spike = (norm, low, limit) if norm > limit else None
            _push(entries, norm)
        threshold = high if auto else policy.clip
        if spike and policy.guard == "skip":
            return 1.0, Outcome(skipped=True, spike=spike)
        scale = min(high / norm, 1.0) if spike else 1.0
    if threshold is None and spike is None:
        return 1.0, _NOTHING
    notes: dict[str, Any] = {}
    if threshold == "unit":
        scale = 1.0 / norm if norm else 1.0
        notes = {"direction": norm, "share": 0.0}
    elif threshold is not None:
        assert not isinstance(threshold, str)
        length = norm + policy.eps
        ratio = threshold / length if length else math.inf
        scale = min(scale, 1.0 if ratio > 1.0 else ratio) if ratio == ratio else ratio
        notes = {"direction": norm, "share": float(norm > threshold)}
    return scale, Outcome(notes, spike=spike)


def gradient_norm(jobs: Sequence[Job]) -> tuple[float, list[np.ndarray]]:
    """The norm of all gradients, and each job's sums of squares."""
    summed = [_run(job, NORM) for job in jobs]
    return _join_norms([_length(sums, job.plan, "grad") for job, sums in zip(jobs, summed)]), summed


def run(jobs: Sequence[Job], policy: Policy) -> Outcome:
    """One step of all jobs."""
    programs = [program_of(job) for job in jobs]
    scale, outcome, summed = 1.0, _NOTHING, None
    if policy.looks:
        norm, summed = gradient_norm(jobs)
        scale, outcome = _front(norm, policy, jobs[0].plan)
        if outcome.skipped:
            return outcome
    first = (scale, 1.0, 1.0, 0.0)
    if programs[0].kind:
        # What is said of the gradient counts: the rule's own norm may be that of a state.
        notes = _with_norm(jobs, programs, scale, first, summed)
        return Outcome({**notes, **outcome.notes}, spike=outcome.spike)
    for job, program in zip(jobs, programs):
        _run(job, program.step, _corrections(job, scale) if job.record.counts else first)
    return outcome


def _corrections(job: Job, scale: float) -> Row | list[Row]:
    """w = (c, 1/(1−β₁^k), 1/(1−β₂^k)) per tensor; for section 3.1 of acclip the last is of k−1,
    and k = 1 is marked. For means over events the fourth is the weight of the newest, 1/k or more.
    """
    steps = job.plan.steps
    assert steps is not None
    counts = steps.numpy()
    counts += 1
    k = float(counts[0])
    beta = job["beta"]
    beta2 = job["beta2"]
    earlier = job["form"] == "second_moment"
    least = job.record.numbers.get("event_rate")
    if (counts == counts[0]).all():
        return _bias_corrections(k, scale, beta, beta2, earlier, least)
    return [_bias_corrections(k, scale, beta, beta2, earlier, least) for k in counts.tolist()]


def _bias_corrections(
    k: float, scale: float, beta: float, beta2: float, earlier: bool, least: float | None
) -> Row:
    """Scale, corrections of the first and of the second moment at step k, and the rate of events
    (at least ``least``), or 1 at the first step where there is none.
    """
    before = k - 1.0 if earlier else k
    second = 1.0 if before == 0.0 else 1.0 / (1.0 - beta2**before)
    last = float(k == 1.0) if least is None else max(least, 1.0 / k)
    return scale, 1.0 / (1.0 - beta**k), second, last


def _with_norm(
    jobs: Sequence[Job], programs: Sequence[Program], scale: float, first: Row, summed: Any
) -> dict[str, Any]:
    """Steps whose factor follows from a norm of the gradient or of its average."""
    scope, kind = jobs[0].record.scope, programs[0].kind
    own: list[list[float]] = []
    by_group: dict[int, list[int]] = {}
    for i, (job, program) in enumerate(zip(jobs, programs)):
        this = program.first
        assert this is not None
        if this is NORM:
            sums = _run(job, this) if summed is None else summed[i]
        else:
            sums = _run(job, this, first)
        name = this.lists[0]
        own.append(
            _lengths(job.plan, sums, name) if scope == "tensor" else [_length(sums, job.plan, name)]
        )
        by_group.setdefault(job.group, []).append(i)
    total = _join_norms([n for part in own for n in part])
    shares, terms = [], []
    for places in by_group.values():
        # What the front did to the gradient, the norm of the bare gradient does not know yet.
        late = scale if programs[places[0]].first is NORM else 1.0
        whole = total if scope == "all" else _join_norms([n for i in places for n in own[i]])
        numbers, window = jobs[places[0]].record.numbers, jobs[places[0]].record.window
        level: Any = numbers.get("level")
        if window is not None:
            entries = _entries(jobs[places[0]].plan, window, "rule window")
            level = _follow_quantile(entries, whole * late, numbers["quantile"])
        clipped = []
        for i in places:
            job, program = jobs[i], programs[i]
            rate = late
            if program.rated:
                rate *= float(job["lr"]) * (job["sign"] if program.step.lists[1] == "grad" else 1.0)
            draw = unit_draw(job["seed"], job.k) if kind == "interpolate" else 0.0
            lengths = [late * n for n in (own[i] if scope == "tensor" else (whole,))]
            rows = [(rate * _factor(kind, n, level, numbers), draw, 0.0, 0.0) for n in lengths]
            if kind == "clip":
                clipped += [n > level for n in lengths]
            if program.rated:
                terms.append(([abs(row[0]) for row in rows], own[i]))
            _run(job, program.step, rows if len(rows) > 1 else rows[0])
        if kind == "clip":
            shares.append(sum(clipped) / len(clipped))
    notes: dict[str, Any] = {"direction": total}
    if shares:
        notes["share"] = sum(shares) / len(shares)
    if len(terms) == len(jobs):
        notes["update"] = terms
    return notes


def _factor(kind: str, length: float, level: float, numbers: Any) -> float:
    """The factor on a direction of that length; infinities and NaN pass through, as in torch."""
    if kind == "clip":
        return 1.0 if length <= level and length < math.inf else level / length
    size = numbers["p"] * length + numbers["q"] if kind == "interpolate" else length + level
    return 1.0 / size if size else 0.0
