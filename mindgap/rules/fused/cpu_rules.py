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

def _run(job: Job, name: str, lists: tuple[str, ...], n: Sequence[float], w: np.ndarray | None = None) -> np.ndarray:
    """Launch a rule's kernel over a job's tensors; returns the sums by chunk."""
    plan = job.plan
    kept = plan.kept.get("cpu")
    if kept is None:
        table = chunk_table(plan.sizes, cpu.CHUNK)
        dtype = cpu.DTYPES[plan.dtype]
        kept = plan.kept["cpu"] = (table, np.zeros(len(table)), dtype, np.zeros((1, 1), dtype))
    table, sums, dtype, nothing = kept
    if len(table):
        marks = nothing if w is None else w.astype(dtype)
        cpu.launch(name, plan.addresses(lists), table, marks, tuple([dtype(number) for number in n]), sums)
    return sums


def _length(sums: np.ndarray, plan: Plan, name: str) -> float:
    square = float(sums.sum())
    # Sums of float64 squares leave their range beyond 1e±150; float32 squares never do.
    if 1e-280 < square < 1e300 or math.isnan(square):
        return math.sqrt(square)
    return float(robust_norm(plan.tensors(name), wide=True))


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


def gradient_norm(jobs: Sequence[Job]) -> float:
    """Norm of all gradients."""
    return _joined([_length(_run(job, "norm", ("grad",), [0.0]), job.plan, "grad") for job in jobs])


def _joined(parts: Sequence[float]) -> float:
    return parts[0] if len(parts) == 1 else math.hypot(*parts)


def _common(job: Job) -> tuple[float, float, float, float]:
    """Step size, what weight decay keeps, β, and the gradient's weight in the average."""
    lr, beta = float(job["lr"]), job["beta"]
    return lr, 1.0 - lr * job["decay"], beta, job["sign"] * (1.0 - beta)


def scaled(jobs: Sequence[Job]) -> dict[str, Any]:
    """GClip (kind "clip") and NormalizedSGD ("normalize"): x ← x − η·c(‖d‖)·d."""
    scope, own, names = jobs[0].record.scope, [], []
    for job in jobs:
        _, _, beta, rest = _common(job)
        averaged = beta > 0 and job["order"] == "momentum"
        names.append("momentum" if averaged else "grad")
        sums = _run(job, *(("average", ("momentum", "grad"), [beta, rest]) if averaged else ("norm", ("grad",), [0.0])))
        own.append(norms(job.plan, sums, names[-1], by_tensor=scope == "tensor"))
    total = _joined([float(n) for part in own for n in part])
    shares, terms = [], []
    for job, part, name in zip(jobs, own, names):
        length = np.array([total]) if scope == "all" else part
        level = job["level"]
        with np.errstate(divide="ignore", invalid="ignore"):
            if job["kind"] == "clip":
                factor = np.minimum(level / length, 1.0)
                shares.append(float((length > level).mean()))
            else:
                factor = np.where(length + level == 0, 0.0, 1.0 / (length + level))
        lr, keep, beta, rest = _common(job)
        if beta > 0 and name == "grad":
            _run(job, "average_step", ("param", "grad", "momentum"), [lr, keep, beta, rest], factor[:, None])
            continue
        sign = job["sign"] if name == "grad" else 1.0
        _run(job, "scaled", ("param", name), [lr, keep], sign * lr * factor[:, None])
        terms.append((lr * factor, part))
    notes: dict[str, Any] = {"direction": total}
    if shares:
        notes["share"] = sum(shares) / len(shares)
    if len(terms) == len(jobs):
        notes["update"] = terms
    return notes


def coordinate(jobs: Sequence[Job]) -> dict[str, Any]:
    """CClip: x ← x − η·min{τ/|m|, 1}·m."""
    for job in jobs:
        lr, keep, beta, rest = _common(job)
        name = "held_step" if not beta else "held_average" if job["order"] == "gradient" else "average_held"
        lists = ("param", "grad", "momentum") if beta else ("param", "grad")
        _run(job, name, lists, [lr, keep, job["level"], beta, rest, job["sign"]])
    return {}


def adaptive(jobs: Sequence[Job]) -> dict[str, Any]:
    """ACClip: x ← x − η·min{τ/(|m|+ε), 1}·m."""
    for job in jobs:
        lr, keep, beta, rest = _common(job)
        beta2, alpha = job["beta2"], job["alpha"]
        order = {1.0: "first", 2.0: "second"}.get(alpha, "any")
        numbers = [lr, keep, beta, rest, beta2, 1.0 - beta2, alpha, 1.0 / alpha, job["eps"], 1.0]
        _run(job, f"adaptive_{order}_{job['form']}", ("param", "grad", "momentum", "moment"), numbers)
    return {}


def interpolated(jobs: Sequence[Job]) -> dict[str, Any]:
    """StochasticINGD: m ← β·m + (1−β)·g, x ← x − m/(p‖m‖+q), y on the segment."""
    own = []
    for job in jobs:
        _, _, beta, rest = _common(job)
        # The decay is added to the gradient, whose sign it follows back.
        name, lists = ("average_decay", ("m", "grad", "param")) if job["decay"] else ("average", ("m", "grad"))
        own.append(_length(_run(job, name, lists, [beta, rest, job["sign"] * job["decay"]]), job.plan, "m"))
    total = _joined(own)
    terms = []
    for job, part in zip(jobs, own):
        size = job["p"] * total + job["q"]
        eta = float(job["lr"]) / size if size != 0 else 0.0
        draw = unit_draw(job["seed"], job["k"])
        _run(job, "interpolate", ("param", "m", "x"), [0.0], np.array([[eta, draw]]))
        terms.append((eta, part))
    return {"direction": total, "update": terms}
