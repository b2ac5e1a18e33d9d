"""The rules as sequences of CPU kernels. On the CPU a norm is a number at once, so all scalars are Python's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mindgap.base.tensors import robust_norm
from mindgap.rules.fused import cpu
from mindgap.rules.fused.plan import Job, Plan, chunk_table
from mindgap.rules.schedule import unit_draw


def _run(plan: Plan, name: str, lists: tuple[str, ...], numbers: Sequence[float] | np.ndarray) -> np.ndarray:
    """Launch a kernel over a plan; returns the sums by chunk."""
    kept = plan.kept.get("cpu")
    if kept is None:
        table = chunk_table(plan.sizes, cpu.CHUNK)
        kept = plan.kept["cpu"] = (table, np.zeros(len(table)), cpu.DTYPES[plan.dtype])
    table, sums, dtype = kept
    if len(table):
        cpu.launch(name, plan.addresses(lists), table, np.asarray(numbers, dtype=dtype), sums)
    return sums


def _length(sums: np.ndarray, plan: Plan, lists: str) -> float:
    square = float(sums.sum())
    # Sums of float64 squares leave their range beyond 1e±150; float32 squares never do.
    if 1e-280 < square < 1e300 or math.isnan(square):
        return math.sqrt(square)
    return float(robust_norm(plan.tensors(lists), wide=True))


def norms(plan: Plan, sums: np.ndarray, name: str, *, by_tensor: bool) -> np.ndarray:
    """Norm over a plan (one entry), or of each of its tensors, from the chunks' sums of squares."""
    if not by_tensor:
        return np.array([_length(sums, plan, name)])
    table = plan.kept["cpu"][0]
    squares = np.zeros(len(plan.sizes))
    np.add.at(squares, table[:, 0], sums)
    lengths = np.sqrt(squares)
    for i in np.flatnonzero(~((squares > 1e-280) & (squares < 1e300)) & ~np.isnan(squares)):
        lengths[i] = float(robust_norm([plan.tensors(name)[i]], wide=True))
    return lengths


def square_norm(jobs: Sequence[Job]) -> float:
    """Norm of all gradients."""
    return _joined([_length(_run(j.plan, "square_sum", ("grad",), [0.0]), j.plan, "grad") for j in jobs])


def _joined(parts: Sequence[float]) -> float:
    return parts[0] if len(parts) == 1 else math.hypot(*parts)


def _keep(job: Job) -> tuple[float, float]:
    lr = float(job.lr)
    return lr, 1.0 - lr * job.decay


def scaled(jobs: Sequence[Job], scope: str, kind: str, on_gradient: bool) -> dict[str, Any]:
    """GClip (``kind="clip"``) and NormalizedSGD (``"normalize"``): x ← x − η·c(‖d‖)·d."""
    own, names = [], []
    for job in jobs:
        averaged = job.beta > 0 and not on_gradient
        names.append("momentum" if averaged else "grad")
        if averaged:
            sums = _run(job.plan, "average_sum", ("momentum", "grad"), [job.beta, job.sign * (1.0 - job.beta)])
        else:
            sums = _run(job.plan, "square_sum", ("grad",), [0.0])
        own.append(norms(job.plan, sums, names[-1], by_tensor=scope == "tensor"))
    total = _joined([float(n) for part in own for n in part]) if len(own) > 1 or len(own[0]) > 1 else float(own[0][0])
    shares, terms = [], []
    for job, part, name in zip(jobs, own, names):
        length = np.array([total]) if scope == "all" else part
        level = job.numbers["level"]
        with np.errstate(divide="ignore", invalid="ignore"):
            if kind == "clip":
                factor = np.minimum(level / length, 1.0)
                shares.append(float((length > level).mean()))
            else:
                factor = np.where(length + level == 0, 0.0, 1.0 / (length + level))
        lr, keep = _keep(job)
        count = len(job.plan.sizes)
        if job.beta > 0 and on_gradient:
            rests = np.broadcast_to(job.sign * (1.0 - job.beta) * factor, count)
            numbers = np.concatenate([[job.beta, lr, keep], rests])
            _run(job.plan, "average_step", ("param", "momentum", "grad"), numbers)
            continue
        sign = job.sign if name == "grad" else 1.0
        numbers = np.concatenate([[keep], np.broadcast_to(sign * lr * factor, count)])
        _run(job.plan, "scaled_step", ("param", name), numbers)
        terms.append((lr * factor, part))
    notes: dict[str, Any] = {"direction": total}
    if shares:
        notes["share"] = sum(shares) / len(shares)
    if len(terms) == len(jobs):
        notes["update"] = terms
    return notes


def coordinate(jobs: Sequence[Job], on_gradient: bool) -> dict[str, Any]:
    """CClip: x ← x − η·min{τ/|m|, 1}·m."""
    for job in jobs:
        lr, keep = _keep(job)
        tau = float(job.numbers["level"])
        if job.beta == 0:
            _run(job.plan, "held_step", ("param", "grad"), [job.sign * lr, keep, tau])
            continue
        name = "held_average_step" if on_gradient else "average_held_step"
        rest = job.sign * (1.0 - job.beta)
        _run(job.plan, name, ("param", "momentum", "grad"), [lr, keep, tau, job.beta, rest])
    return {}


def adaptive(jobs: Sequence[Job]) -> dict[str, Any]:
    """ACClip: x ← x − η·min{τ/(|m|+ε), 1}·m."""
    for job in jobs:
        lr, keep = _keep(job)
        beta2, alpha, eps = job.numbers["beta2"], job.numbers["alpha"], job.numbers["eps"]
        normalized = job.numbers["normalized"]
        name = {1.0: "adaptive_first", 2.0: "adaptive_second"}.get(alpha, "adaptive_any")
        weights = [job.beta, job.sign * (1.0 - job.beta), beta2, 1.0 - beta2]
        rest = [eps, 1.0, alpha, 1.0 / alpha, float(normalized)]
        _run(job.plan, name, ("param", "grad", "momentum", "moment"), [lr, keep, *weights, *rest])
    return {}


def interpolated(jobs: Sequence[Job]) -> dict[str, Any]:
    """StochasticINGD: m ← β·m + (1−β)·g, x ← x − m/(p‖m‖+q), y on the segment."""
    own = []
    for job in jobs:
        rest = job.sign * (1.0 - job.beta)
        if job.decay:
            # The decay is added to the gradient, whose sign it follows back.
            numbers = [job.beta, rest, job.sign * job.decay]
            sums = _run(job.plan, "average_decay_sum", ("m", "grad", "param"), numbers)
        else:
            sums = _run(job.plan, "average_sum", ("m", "grad"), [job.beta, rest])
        own.append(_length(sums, job.plan, "m"))
    total = _joined(own)
    terms = []
    for job, part in zip(jobs, own):
        size = job.numbers["p"] * total + job.numbers["q"]
        eta = float(job.lr) / size if size != 0 else 0.0
        draw = unit_draw(job.numbers["seed"], job.numbers["k"])
        _run(job.plan, "interpolate", ("param", "x", "m"), [eta, draw])
        terms.append((eta, part))
    return {"direction": total, "update": terms}
