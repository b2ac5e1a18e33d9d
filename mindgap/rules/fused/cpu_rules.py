"""Steps on the CPU, where a norm is a number at once, so that all scalars are Python's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from mindgap.base.check import fail
from mindgap.base.tensors import robust_norm
from mindgap.rules.fused import cpu
from mindgap.rules.fused.plan import Job, Outcome, Plan, Policy, chunk_table
from mindgap.rules.fused.program import NORM, Pass, Program, program_of
from mindgap.rules.schedule import unit_draw

_NO_NOTES = Outcome()
#: The four numbers w of a rule (see ``arithmetic``): the factor on the gradient first.
Factors = tuple[float, float, float, float]
#: Those where nothing is clipped, corrected or counted.
_NO_FACTORS: Factors = (1.0, 1.0, 1.0, 0.0)
#: Sums of squares in float64 are exact enough between these; beyond, a norm is taken with care.
_LEAST_SQUARE, _LARGEST_SQUARE = 1e-280, 1e300


class _Arrays(NamedTuple):
    """What the CPU engine keeps with a plan."""

    chunks: np.ndarray  # rows (tensor, start, length)
    sums: np.ndarray  # sums of squares by chunk, in float64
    dtype: Any  # NumPy's dtype of the parameters
    factors: np.ndarray  # memory for the factors of a rule that has one row for all tensors


def _run_pass(job: Job, rule_pass: Pass, w: Factors | list[Factors] = _NO_FACTORS) -> np.ndarray:
    """Run a rule over a job's tensors, in place.

    The plan's first pass makes its arrays, and a rule's first pass makes the rule's numbers; both
    are kept.

    Args:
        job: a plan (tensors of one group that share dtypes) with the settings of its group.
        rule_pass: names the rule, the lists of tensors that it takes, and its numbers.
        w: the rule's factors for all tensors, or a list with one entry per tensor.

    Returns:
        Sums of squares by chunk, in an array that the plan's next pass overwrites.
    """
    plan = job.plan
    arrays = plan.engine_data.get("cpu")
    if arrays is None:
        chunks, dtype = chunk_table(plan.sizes, cpu.CHUNK), cpu.DTYPES[plan.dtype]
        arrays = _Arrays(chunks, np.zeros(len(chunks)), dtype, np.zeros((1, 4), dtype))
        plan.engine_data["cpu"] = arrays
    chunks, sums, dtype, factors = arrays
    if len(chunks):
        numbers = job.launches.get(rule_pass.rule)
        if numbers is None:
            lr = float(job["lr"])
            numbers = job.launches[rule_pass.rule] = tuple(
                np.array((lr, 1.0 - lr * job["decay"], *rule_pass.numbers), dtype)
            )
        if isinstance(w, list):
            factors = np.array(w, dtype)
        else:
            factors[0] = w
        addresses = plan.addresses(rule_pass.lists)
        cpu.launch(rule_pass.rule, addresses, chunks, factors, numbers, sums)
    return sums


def _norm(plan: Plan, sums: np.ndarray, name: str) -> float:
    """Norm over all tensors of a plan's list ``name``, from the chunks' sums of squares. Where
    these overflow or vanish, it is computed anew from the tensors.
    """
    square = float(np.add.reduce(sums))
    if _LEAST_SQUARE < square < _LARGEST_SQUARE or math.isnan(square):
        return math.sqrt(square)
    return float(robust_norm(plan.tensors(name), wide=True))


def _norms_by_tensor(plan: Plan, sums: np.ndarray, name: str) -> list[float]:
    """Norm of each tensor of a plan's list ``name``, from the chunks' sums of squares. Where these
    overflow or vanish, it is computed anew from the tensor.
    """
    squares = np.zeros(len(plan.sizes))
    np.add.at(squares, plan.engine_data["cpu"].chunks[:, 0], sums)
    norms = np.sqrt(squares)
    usable = ((squares > _LEAST_SQUARE) & (squares < _LARGEST_SQUARE)) | np.isnan(squares)
    for i in np.flatnonzero(~usable):
        norms[i] = float(robust_norm([plan.tensors(name)[i]], wide=True))
    return norms.tolist()


def _join_norms(norms: Sequence[float]) -> float:
    """Norm of a vector from the norms of its parts; NaN if one of them is NaN."""
    if len(norms) == 1:
        return norms[0]
    return math.nan if any(map(math.isnan, norms)) else math.hypot(*norms)  # hypot(∞, NaN) is ∞


def window_quantiles(window: np.ndarray, *levels: float) -> tuple[int, list[float]]:
    """How many entries n of a window are positive, and of these the order statistics of rank
    ⌈q·(n+1)⌉ for each level q; ∞ where n is 0.

    Args:
        window: the last norms, with zeros for none.
        levels: q of each quantile, in [0, 1].

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
    ordered = np.sort(window)[len(window) - count :]
    return count, [float(ordered[min(math.ceil(q * (count + 1)), count) - 1]) for q in levels]


def _push(window: np.ndarray, norm: float) -> None:
    """Forget the oldest norm of a window and add one, as 0 where it is 0 or not finite."""
    window[:-1] = window[1:]
    window[-1] = norm if 0.0 < norm < math.inf else 0.0


def _window_array(plan: Plan, window: Tensor, name: str) -> np.ndarray:
    """A window of norms as a NumPy array over the same memory.

    The plan keeps it under ``name`` and it is made anew when the window's memory is another one:
    ``share_memory_()`` and ``window.data = ...`` free the memory of a tensor that stays the same
    object.
    """
    memory = window.data_ptr(), window.dtype, window.shape
    known_window, known_memory, array = plan.engine_data.get(name, (None, None, None))
    if known_window is not window or known_memory != memory:
        array = window.numpy()
        plan.engine_data[name] = (window, memory, array)
    return array


def _threshold_from_window(window: np.ndarray, norm: float, q: float) -> float:
    """The window's q-quantile before this norm; the norm then enters the window in place. ∞ where
    the norm does not reach the quantile: nothing is clipped, and the number need not be known.
    """
    if cpu.push_below(window, norm, norm, q):
        return math.inf
    _, (threshold,) = window_quantiles(window, q)
    _push(window, norm)
    return threshold


def _quantile_and_spike(
    norm: float, policy: Policy, plan: Plan
) -> tuple[float, tuple[float, float, float] | None]:
    """The threshold from the policy's window of last norms, and whether the norm is a spike. The
    norm then enters the window in place.

    Returns:
        The window's upper quantile, or ∞ where the norm can reach neither threshold nor limit, so
        that the number is not needed; and (norm, lower quantile, limit) of a spike, else None.
    """
    assert policy.window is not None
    window = _window_array(plan, policy.window, "policy window")
    # The limit is Q₉·max{Q₉/Q₁, 2}²: a norm of at most four times the upper quantile is no spike,
    # and most are not above the quantile itself.
    bound = norm if policy.clip == "auto" else norm / 4.0
    if cpu.push_below(window, bound, norm, policy.quantile):
        return math.inf, None
    spike, high = _spike(window, norm, policy)
    _push(window, norm)
    return high, spike


def _apply_policy(norm: float, policy: Policy, plan: Plan) -> tuple[float, Outcome]:
    """Apply the policy to the norm of all gradients, which enters the policy's window in place.

    Args:
        norm: over all gradients.
        plan: keeps the window as an array.

    Returns:
        The factor on all gradients, and what to report of the step; ``skipped`` there means that
        the step must be left out.

    Raises:
        RuleError: the norm is not finite and the policy is ``"raise"``.
    """
    if policy.nonfinite != "propagate" and not math.isfinite(norm):
        if policy.nonfinite == "raise":
            fail("gradients", "must be finite (nonfinite='raise')", norm)
        return 1.0, Outcome(skipped=True)
    if policy.judge is not None:
        return _judge(norm, policy, plan)
    factor, spike, threshold = 1.0, None, policy.clip
    if policy.window is not None:
        high, spike = _quantile_and_spike(norm, policy, plan)
        if spike and policy.guard == "skip":
            return 1.0, Outcome(skipped=True, spike=spike)
        factor = min(high / norm, 1.0) if spike else 1.0
        if threshold == "auto":
            threshold = high
    if threshold is None and spike is None:
        return 1.0, _NO_NOTES
    notes: dict[str, Any] = {}
    if threshold == "unit":
        factor = 1.0 / norm if norm else 1.0
        notes = {"direction": norm, "share": 0.0}
    elif threshold is not None:
        assert not isinstance(threshold, str)
        divisor = norm + policy.eps
        ratio = threshold / divisor if divisor else math.inf
        # NaN passes through, which ``min`` might drop.
        factor = ratio if math.isnan(ratio) else min(factor, ratio, 1.0)
        notes = {"direction": norm, "share": float(norm > threshold)}
    return factor, Outcome(notes, spike=spike)


def _judge(norm: float, policy: Policy, plan: Plan) -> tuple[float, Outcome]:
    """``_apply_policy`` where the policy judges large gradients. One that its guard calls a spike
    is skipped or clipped, and not judged.
    """
    assert policy.judge is not None
    factor, bounded, spike = 1.0, False, None
    if policy.guard:
        assert policy.window is not None
        window = _window_array(plan, policy.window, "policy window")
        spike, high = _spike(window, norm, policy)
        if spike:
            _push(window, norm)  # else the judge does
            if policy.guard == "skip":
                return 1.0, Outcome(skipped=True, spike=spike)
            factor = min(high / norm, 1.0)
    if spike is None:
        factor, bounded = policy.judge(norm)
    notes = {"direction": norm, "share": float(factor < 1.0)}
    return factor, Outcome(notes, bounded=bounded, spike=spike)


def _spike(
    window: np.ndarray, norm: float, policy: Policy
) -> tuple[tuple[float, float, float] | None, float]:
    """Whether the policy's guard calls the norm a spike: with the window's quantiles Q₁ (lower) and
    Q₉ (upper) the limit is Q₉·max{Q₉/Q₁, 2}².

    Returns:
        (norm, Q₁, limit) of a spike, else None; and Q₉.
    """
    count, (low, high) = window_quantiles(window, 1.0 - policy.quantile, policy.quantile)
    if not policy.guard or count < policy.spike_after:
        return None, high
    usual_ratio = max(high / low, 2.0)
    limit = high * usual_ratio * usual_ratio
    return ((norm, low, limit) if norm > limit else None), high


def gradient_norm(jobs: Sequence[Job]) -> tuple[float, list[np.ndarray]]:
    """The norm of the gradients of all jobs, and each job's sums of squares by chunk, in arrays
    that the next pass of its plan overwrites.
    """
    sums = [_run_pass(job, NORM) for job in jobs]
    return _join_norms([_norm(job.plan, s, "grad") for job, s in zip(jobs, sums)]), sums


def run(jobs: Sequence[Job], policy: Policy) -> Outcome:
    """Make one step of all jobs, in place, unless the policy skips it; returns what the report is
    to know of it. A norm that the policy needs is taken first and enters the policy's window.

    Args:
        jobs: plans (tensors of one group that share dtypes), each with the settings of its group.
        policy: what to do about the norm of all gradients before the rule.

    Raises:
        RuleError: the norm is not finite and the policy's ``nonfinite`` is ``"raise"``.
    """
    programs = [program_of(job) for job in jobs]
    factor, outcome, gradient_sums = 1.0, _NO_NOTES, None
    if policy.looks:
        norm, gradient_sums = gradient_norm(jobs)
        factor, outcome = _apply_policy(norm, policy, jobs[0].plan)
        if outcome.skipped:
            return outcome
    uncorrected = (factor, 1.0, 1.0, 0.0)
    if programs[0].kind:
        # What the policy noted counts: the rule's own norm may be that of a state.
        notes = _step_with_norm(jobs, programs, uncorrected, gradient_sums)
        return Outcome({**notes, **outcome.notes}, spike=outcome.spike)
    for job, program in zip(jobs, programs):
        w = _corrections(job, factor, outcome.bounded) if job.record.counts else uncorrected
        _run_pass(job, program.step, w)
    return outcome


def _corrections(job: Job, factor: float, bounded: bool) -> Factors | list[Factors]:
    """Count this step's gradients in the plan's ``steps``, in place, and compute the bias
    corrections.

    Args:
        factor: the policy's factor on the gradients.
        bounded: whether the policy bounds the step (of the rule ``adam_bounded``).

    Returns:
        The factors w of the step: one row if all tensors have seen equally many gradients, else a
        list with one row per tensor.
    """
    steps = job.plan.steps
    assert steps is not None
    counts = steps.numpy()
    counts += 1
    beta, beta2, earlier = job["beta"], job["beta2"], job["form"] == "second_moment"
    numbers, k = job.record.numbers, float(counts[0])
    if (counts == k).all():
        last = _last_factor(k, numbers, bounded)
        return _bias_corrections(k, factor, beta, beta2, earlier, last)
    return [
        _bias_corrections(k, factor, beta, beta2, earlier, _last_factor(k, numbers, bounded))
        for k in counts.tolist()
    ]


def _last_factor(k: float, numbers: Mapping[str, Any], bounded: bool) -> float:
    """The last factor w of a rule with two averages, after k gradients.

    With the number ``event_rate`` it is max{event_rate, 1/k}, the weight of the newest entry in a
    running mean; with ``abs_beta`` (βₐ) it is 1/(1−βₐ^k) if the step is bounded, else 0; with none
    of them it is 1 at k = 1 and else 0.
    """
    if "event_rate" in numbers:
        return float(max(numbers["event_rate"], 1.0 / k))
    if "abs_beta" in numbers:
        return 1.0 / (1.0 - numbers["abs_beta"] ** k) if bounded else 0.0
    return float(k == 1.0)


def _bias_corrections(
    k: float, factor: float, beta: float, beta2: float, earlier: bool, last: float
) -> Factors:
    """The factors w of a rule with two averages: the policy's factor, 1/(1−β₁^k), 1/(1−β₂^k), and
    the last one as given.

    Args:
        k: gradients that the tensor has seen, this one included.
        beta: β₁.
        earlier: correct by β₂^(k−1), for a second moment of before this gradient (section 3.1 of
            acclip).
    """
    beta2_exponent = k - 1.0 if earlier else k
    second = 1.0 if beta2_exponent == 0.0 else 1.0 / (1.0 - beta2**beta2_exponent)
    return factor, 1.0 / (1.0 - beta**k), second, last


def _direction_norms(
    job: Job, program: Program, uncorrected: Factors, gradient_sums: np.ndarray | None
) -> list[float]:
    """Norms of the direction that a rule scales: one per tensor with ``scope="tensor"``, else one.

    Runs the program's first pass, which may let the gradient enter a momentum in place. A pass that
    only sums the gradients' squares is not run where ``gradient_sums`` (by chunk) has them.
    """
    norm_pass = program.first
    assert norm_pass is not None
    if norm_pass is not NORM:
        sums = _run_pass(job, norm_pass, uncorrected)
    else:
        sums = _run_pass(job, norm_pass) if gradient_sums is None else gradient_sums
    if job.record.scope == "tensor":
        return _norms_by_tensor(job.plan, sums, norm_pass.lists[0])
    return [_norm(job.plan, sums, norm_pass.lists[0])]


def _step_with_norm(
    jobs: Sequence[Job],
    programs: Sequence[Program],
    uncorrected: Factors,
    gradient_sums: list[np.ndarray] | None,
) -> dict[str, Any]:
    """Make a step in place whose factor follows from a norm of the gradient or of its average. A
    norm that gives its own threshold enters the group's window.

    Args:
        jobs: plans (tensors of one group that share dtypes), each with the settings of its group.
        programs: per job the passes of its step.
        uncorrected: the factors of a rule without corrections: the policy's, then 1, 1 and 0.
        gradient_sums: per job the gradients' sums of squares by chunk, where the policy has taken
            them; else None.

    Returns:
        Notes for the report (``Tally.note``): ``direction``, the norm of all directions, and where
        they apply ``share``, which share of the norms was clipped, and ``update``, pairs (factors,
        norms) per job.
    """
    scope = jobs[0].record.scope
    norms_by_job: list[list[float]] = []
    jobs_by_group: dict[int, list[int]] = {}
    for i, (job, program) in enumerate(zip(jobs, programs)):
        sums = None if gradient_sums is None else gradient_sums[i]
        norms_by_job.append(_direction_norms(job, program, uncorrected, sums))
        jobs_by_group.setdefault(job.group, []).append(i)
    total = _join_norms([n for norms in norms_by_job for n in norms])
    # Per group the share of clipped norms; per job its factors and norms, for the norm of the step.
    shares, updates = [], []
    for indices in jobs_by_group.values():
        first = jobs[indices[0]]
        # Where the norm is of the gradients themselves, the policy's factor has yet to scale them.
        pending = uncorrected[0] if programs[indices[0]].first is NORM else 1.0
        group_norm = total
        if scope != "all":
            group_norm = _join_norms([n for i in indices for n in norms_by_job[i]])
        numbers = first.record.numbers
        # The threshold, or the damping of "normalize".
        level: Any = numbers.get("level")
        if first.record.window is not None:
            window = _window_array(first.plan, first.record.window, "rule window")
            level = _threshold_from_window(window, group_norm * pending, numbers["quantile"])
        clipped: list[bool] = []
        for i in indices:
            job, program = jobs[i], programs[i]
            multiplier = pending  # goes with the factor of the norm into the kernel
            if program.rated:
                # The step size too; a momentum has the sign of ``maximize`` already.
                sign = job["sign"] if program.step.lists[1] == "grad" else 1.0
                multiplier *= float(job["lr"]) * sign
            draw = unit_draw(job["seed"], job.k) if program.kind == "interpolate" else 0.0
            unscaled = norms_by_job[i] if scope == "tensor" else [group_norm]
            norms = [pending * norm for norm in unscaled]
            factors = [multiplier * _norm_factor(program.kind, n, level, numbers) for n in norms]
            if program.kind == "clip":
                clipped += [norm > level for norm in norms]
            if program.rated:
                updates.append(([abs(factor) for factor in factors], norms_by_job[i]))
            rows = [(factor, draw, 0.0, 0.0) for factor in factors]
            _run_pass(job, program.step, rows if len(rows) > 1 else rows[0])
        if clipped:
            shares.append(sum(clipped) / len(clipped))
    notes: dict[str, Any] = {"direction": total}
    if shares:
        notes["share"] = sum(shares) / len(shares)
    if len(updates) == len(jobs):
        notes["update"] = updates
    return notes


def _norm_factor(kind: str, norm: float, level: Any, numbers: Mapping[str, Any]) -> float:
    """The factor on a direction of that norm, by the rule's kind: min{level/norm, 1} for "clip",
    1/(norm + level) for "normalize", 1/(p·norm + q) for "interpolate" with p and q from
    ``numbers``. A divisor of 0 gives 0; infinities and NaN pass through, as in torch.
    """
    if kind == "clip":
        return 1.0 if norm <= level and norm < math.inf else level / norm
    divisor = numbers["p"] * norm + numbers["q"] if kind == "interpolate" else norm + level
    return 1.0 / divisor if divisor else 0.0
