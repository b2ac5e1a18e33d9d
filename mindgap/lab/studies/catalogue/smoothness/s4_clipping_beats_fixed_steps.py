"""S4: fixed steps lose to clipping as M·L1 grows (thesis, Theorem 3.4.2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mindgap.lab import theory
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Source, Study, Trial, scales
from mindgap.lab.studies.verdict import by_method, slope
from mindgap.lab.theory.descent import first_hits, row_norm

#: How far the slope may be from 1; the rule has it.
NEAR = 0.15


def loop_ratio(trial: Trial) -> Iterator[Row]:
    """Count the steps that gradient descent needs until ‖∇f‖ <= ε on the worse of the two functions
    of 3.7.2, with the best of several fixed steps or with clipping (setting ``fixed``).

    A row per bound M on the gradient holds ``product`` = M·L1, ``M``, the ``count`` (infinite where
    the limit was reached), the ``lower_bound`` for fixed steps, the ``upper_bound`` for clipping,
    and ``best_factor``, the best fixed step over the longest stable one.
    """
    L1, epsilon, delta = trial["L1"], trial["epsilon"], trial["delta"]
    fast, slow = theory.ExponentialQuadratic(L1=L1), theory.SlowFunction(epsilon=epsilon)
    for M in trial["M"]:
        constants = theory.RelaxedSmooth(L0=L1, L1=L1, delta=delta, M=M)
        lower = theory.fixed_step_lower_bound(constants, epsilon)
        factors = np.array(trial["step_factors"]) if trial["fixed"] else np.ones(1)
        step_sizes = factors * fast.longest_step(M)
        limit = int(trial["patience"] * lower) + 1000  # a run of more steps counts as infinite
        clipped_step = theory.clipped_gd_step(constants)

        def step(gradients: np.ndarray, runs: np.ndarray) -> Any:
            """The step sizes of the runs with the numbers ``runs``, one run per fixed step or a
            clipped one; ``gradients`` has a row per run.
            """
            return step_sizes[runs] if trial["fixed"] else clipped_step(row_norm(gradients))  # noqa: B023

        counts = np.zeros(len(step_sizes))  # of each run, on the worse function
        with trial.timed():
            for function, x0 in ((fast, fast.start(M)), (slow, slow.start(delta))):
                hits, _ = first_hits(
                    lambda x, runs: function.gradient(x),  # noqa: B023
                    np.full((len(step_sizes), 1), x0),
                    step,
                    epsilon,
                    limit,
                )
                counts = np.maximum(counts, np.where(hits > limit, np.inf, hits))
        yield {
            "product": M * L1,
            "M": M,
            "count": float(counts.min()),
            "lower_bound": lower,
            "upper_bound": theory.clipped_gd_bound(constants, epsilon),
            "best_factor": float(factors[counts.argmin()]),
        }


def judge_ratio(runs: Sequence[Run]) -> Parts:
    """Compare the counts of GD with the best fixed step and of clipped GD, from the first run of
    each; nothing in them is random.

    Returns:
        Three parts: their ratio grows like M·L1/(log M + 1), with slope 1 in logarithms within
        :data:`NEAR` and two standard errors; no count of GD lies below the lower bound as printed;
        no count of clipped GD lies above the upper bound.
    """
    parts, runs_of = Parts(), by_method(runs)
    fixed, clipped = (runs_of[name][0] for name in ("GD, best fixed step", "clipped GD"))
    counts, M, product, lower = (
        np.array(fixed.column(name)) for name in ("count", "M", "product", "lower_bound")
    )
    clipped_counts, upper = (np.array(clipped.column(name)) for name in ("count", "upper_bound"))
    below_proof, clipped_above = int((counts < lower).sum()), int((clipped_counts > upper).sum())
    ratio = counts / clipped_counts
    exponent, error = slope(np.log(product / (np.log(M) + 1)), np.log(ratio))
    parts.add(
        "the ratio of counts grows as stated",
        holds=abs(exponent - 1) <= NEAR + 2 * error,
        words=f"like (M L1/(log M + 1))^{exponent:.2f}±{2 * error:.2f}, from {ratio[0]:.3g} "
        f"(M L1 = {product[0]:g}) to {ratio[-1]:.3g} (M L1 = {product[-1]:g})",
        numbers={"slope": exponent, "slope_error": error},
    )
    # The column holds the bound with the proof's Δ - 5ε/4; the theorem prints Δ - 5ε/8.
    delta, epsilon = (fixed.header.settings[name] for name in ("delta", "epsilon"))
    printed_bound = lower * (delta - 0.625 * epsilon) / (delta - 1.25 * epsilon)
    below_printed = int((counts < printed_bound).sum())
    parts.add(
        "GD stays above the printed lower bound, with Δ - 5ε/8",
        holds=not below_printed,
        words=f"{below_printed} counts below",
    )
    parts.note(f"{below_proof} counts lie below what the proof's own line gives, with Δ - 5ε/4")
    parts.add(
        "clipped GD stays below the upper bound",
        holds=not clipped_above,
        words=f"{clipped_above} counts above",
    )
    return parts


S4_CLIPPING_BEATS_FIXED_STEPS = Study(
    name="s4-clipping-beats-fixed-steps",
    claim="S4",
    title="Fixed steps lose to clipping as M·L1 grows",
    statement="On the two functions of 3.7.2 the best fixed step needs Ω(M L1/log M) times more "
    "iterations, while clipped GD does not depend on M.",
    source=Source("thesis", "Theorem 3.4.2, Remark 3.4.1, 3.7.2"),
    scales=scales(
        {
            "L1": 1.0,
            "epsilon": 0.1,
            "delta": 2.0,
            "M": [10.0, 30.0, 100.0, 300.0, 1000.0],
            "patience": 3.0,
            "step_factors": [0.5, 0.8, 0.95, 0.99, 1.01, 2.0],
        },
        {"M": [10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0], "delta": 5.0},
    ),
    methods={"GD, best fixed step": {"fixed": True}, "clipped GD": {"fixed": False}},
    loop=loop_ratio,
    judge=judge_ratio,
    rule="The ratio of counts grows like M·L1/(log M + 1) (slope 1 within 0.15 and two standard "
    "errors in logarithms), no count of GD lies below the printed lower bound and none of clipped "
    "GD above the upper bound.",
    figures=(
        Figure(
            "Iterations on the worse of the two functions",
            "count",
            "iterations until ‖∇f‖ <= ε",
            x="product",
            x_label="M·L1",
            log_x=True,
            log_y=True,
            caption="The step that still converges on the exponential "
            "function crawls on the slow one.",
        ),
    ),
)
