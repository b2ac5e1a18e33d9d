"""T1: iteration counts of GD, Nesterov's method and heavy-ball against Table 2.1 (thesis, chapter
2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import by_method, slope
from mindgap.lab.theory.chapter2.section_2_1 import (
    SmoothConvex,
    amplitudes,
    gd_gap_printed,
    iteration_bound,
    nesterov_gap,
    parameters,
    worst_gap,
)
from mindgap.record.schema import grouped

#: How far a fitted exponent may be from the stated one; the rule has it.
NEAR = 0.12


def rates_loop(trial: Trial) -> Iterator[Row]:
    """Steps that a method needs to accuracy ε on the worst quadratic, over conditioning, accuracy
    and smoothness, and one row about random quadratics.

    A row of the former, in the run of seed 0 alone, holds ``part`` (the axis: "Q", "1/ε" or "L"),
    ``at`` (the place on it), ``iterations`` and their ``bound``. The row with ``part`` "random"
    holds ``worst_ratio``, the largest gap over its bound.
    """
    name = trial["method"]
    # (class of functions, accuracy, axis, place on the axis)
    strongly_convex = [
        (SmoothConvex(1.0, 1 / Q), trial["epsilon"], "Q", Q) for Q in trial["conditions"]
    ]
    convex = [
        (SmoothConvex(1.0), accuracy, "1/ε", 1 / accuracy) for accuracy in trial["accuracies"]
    ]
    convex += [(SmoothConvex(L), trial["accuracies"][-1], "L", L) for L in trial["smoothness"]]
    # Heavy-ball has no rate on convex functions; the worst quadratic is the same for every seed.
    cells = strongly_convex if name == "heavy-ball" else strongly_convex + convex
    for constants, epsilon, axis, place in cells if trial.seed == 0 else []:
        with trial.timed():
            count, bound = _step_count(name, constants, epsilon, trial["step_factor"])
        yield {"part": axis, "at": place, "iterations": count, "bound": bound}
    with trial.timed():
        yield {"part": "random", "worst_ratio": _worst_random_ratio(trial)}


def _step_count(
    name: str, constants: SmoothConvex, epsilon: float, step_factor: float
) -> tuple[float, int]:
    """The step count of one method on the worst quadratic with these constants, and its bound.

    Args:
        name: of the method: "gd", "nesterov" or "heavy-ball", which takes Nesterov's bound.
        constants: L and μ of the class.
        epsilon: the accuracy of f.
        step_factor: multiplies the method's step.

    Returns:
        The first step from which the worst gap stays at most ε, infinite where that needs more than
        about 1.5 bounds or 40,000 steps; and the bound of Table 2.1, rounded up.
    """
    bound = math.ceil(
        iteration_bound("nesterov" if name == "heavy-ball" else name, constants, epsilon)
    )
    step = parameters(name, constants)[0] if constants.mu > 0 else 1 / constants.L
    with np.errstate(over="ignore", invalid="ignore"):  # a step that is too long diverges
        gap = worst_gap(name, constants, min(3 * bound // 2 + 50, 40_000), alpha=step * step_factor)
    last_above = int(np.flatnonzero(~(gap <= epsilon))[-1])  # NaN counts as above
    return (last_above + 1 if last_above < len(gap) - 1 else math.inf), bound


def _worst_random_ratio(trial: Trial) -> float:
    """The largest (f(x_k) - f*) / bound over all steps k, random spectra and random starts with
    ‖x_0‖ = 1; a value above 1 breaks the bound. 0 for heavy-ball, which has no bound.
    """
    name, rng = trial["method"], trial.numpy_generator("quadratics")
    if name == "heavy-ball":
        return 0.0  # no bound is stated for it
    largest_ratio = 0.0
    for Q in trial["conditions"]:
        constants = SmoothConvex(1.0, 1 / Q)
        curvature = np.exp(  # spectra, shape (functions, dimension)
            rng.uniform(-math.log(Q), 0, size=(trial["functions"], trial["dimension"]))
        )
        # Both ends of the spectrum occur in every function.
        curvature[:, 0], curvature[:, 1] = constants.mu, constants.L
        start = rng.standard_normal(curvature.shape)
        start /= np.linalg.norm(start, axis=1, keepdims=True)
        alpha, beta = parameters(name, constants)
        # Yields what is left of every mode after 0, 1, ... steps, as a factor on its start.
        amplitude = amplitudes(name, curvature, alpha * trial["step_factor"], beta)
        bound = gd_gap_printed if name == "gd" else nesterov_gap
        for k in range(trial["steps"]):
            x = next(amplitude) * start  # every mode shrinks by a factor of its own
            gap = float((curvature * x**2).sum(axis=1).max()) / 2
            largest_ratio = max(largest_ratio, gap / bound(constants, k))
    return largest_ratio


def judge_rates(runs: Sequence[Run]) -> Parts:
    """Ask of each method whether its step counts grow as Table 2.1 states and stay below its
    bounds.

    Counts on the worst quadratics come from the first run of a method, which has seed 0.

    Returns:
        Two parts per method: every fitted exponent (of Q, 1/ε and L) is the stated one within
        :data:`NEAR`; no count and no gap of a random quadratic is above its bound. Nesterov's
        exponents are asked twice: as printed (L¹) and as corrected (√L).
    """
    parts = Parts()
    for method, own_runs in by_method(runs).items():
        rows_of = grouped((row["part"], row) for row in own_runs[0].rows if row["part"] != "random")
        powers = {axis: _fitted_power(rows) for axis, rows in rows_of.items()}
        # Steps grow like Q, 1/ε and L with GD, like their roots with the accelerated methods.
        corrected = dict.fromkeys(powers, 1.0 if method == "GD" else 0.5)
        stated_in = {"": corrected}  # reading of the statement -> axis -> stated exponent
        if method == "Nesterov" and "L" in powers:  # Table 2.1 prints O(L/√ε) for it
            stated_in = {"as printed": {**corrected, "L": 1.0}, "as corrected": corrected}
        for reading, stated in stated_in.items():
            parts.add(
                f"{method}: exponents of Table 2.1 {reading}".rstrip(),
                holds=all(abs(power - stated[axis]) < NEAR for axis, power in powers.items()),
                words=", ".join(
                    f"{axis}^{power:.2f} (stated {stated[axis]:g})"
                    for axis, power in powers.items()
                ),
                reading=reading,
            )
        within_bounds = method == "heavy-ball" or all(
            row["iterations"] <= row["bound"] for rows in rows_of.values() for row in rows
        )
        largest_ratio = max(
            row["worst_ratio"] for run in own_runs for row in run.rows if row["part"] == "random"
        )
        parts.add(
            f"{method}: below its bounds",
            holds=within_bounds and largest_ratio <= 1,
            words=f"random runs at {largest_ratio:.2f} of them",
            numbers={method: {"exponents": powers, "random_over_bound": largest_ratio}},
        )
    return parts


def _fitted_power(rows: Sequence[Row]) -> float:
    """The fitted power of ``at`` with which ``iterations`` grow; infinite where a count is."""
    counts = [row["iterations"] for row in rows]
    if not all(math.isfinite(count) for count in counts):
        return math.inf
    return slope(np.log([row["at"] for row in rows]), np.log(counts))[0]


_RATES = {"epsilon": 1e-8, "step_factor": 1.0, "functions": 50, "dimension": 20, "steps": 300}

T1_TEXTBOOK_RATES = Study(
    name="t1-textbook-rates",
    claim="T1",
    title="Iteration counts agree with the textbook",
    statement="GD needs (L/μ) log(1/ε) or L/ε steps, Nesterov's method √(L/μ) log(1/ε) or L/√ε, "
    "and both stay below their bounds; heavy-ball accelerates on quadratics too.",
    source=Source("thesis", "2.1, Table 2.1, Theorem 2.1.3"),
    scales={
        "quick": Scale(
            {
                **_RATES,
                "conditions": [64.0, 256.0, 1024.0],
                "accuracies": [1e-2, 1e-3, 1e-4],
                "smoothness": [0.5, 1.0, 4.0],
            },
            seeds=2,
        ),
        "cpu": Scale(
            {
                **_RATES,
                "functions": 500,
                "steps": 1000,
                "conditions": [64.0, 128.0, 256.0, 512.0, 1024.0],
                "accuracies": [1e-2, 1e-3, 1e-4],
                "smoothness": [0.25, 0.5, 1.0, 2.0, 4.0],
            },
            seeds=20,
        ),
    },
    methods={
        "GD": {"method": "gd"},
        "Nesterov": {"method": "nesterov"},
        "heavy-ball": {"method": "heavy-ball"},
    },
    loop=rates_loop,
    judge=judge_rates,
    rule="Every count is within its bound, the exponents are within 0.12 of Table 2.1's (as "
    "printed L¹ for Nesterov's method on convex functions, as corrected √L), and random "
    "quadratics stay below the bounds.",
    figures=(
        Figure(
            "Steps to accuracy ε on the worst quadratic",
            "iterations",
            "iterations",
            x="at",
            x_label="Q, 1/ε or L",
            facet="part",
            log_x=True,
            log_y=True,
            caption="Slopes: 1 for GD, 1/2 for the accelerated methods, in all three panels.",
        ),
    ),
)
