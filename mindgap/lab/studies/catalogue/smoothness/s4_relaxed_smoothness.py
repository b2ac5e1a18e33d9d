"""S4 and S8: Theorems 3.4.1 to 3.4.5 as counts of iterations, with bounded and with Gaussian noise;
fixed steps losing to clipping as M·L1 grows.

All grid points and all seeds of a method run in one array, so a study costs as much as its slowest
run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mindgap.lab import theory
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Source, Study, Trial, scales
from mindgap.lab.studies.verdict import by_method, rows_by_method, slope
from mindgap.lab.theory.descent import first_hits, row_norm


def loop_counts(trial: Trial) -> Iterator[Row]:
    """Measured T_ε and its bound for every cell of the grid; ``replicas`` random starts (and
    noises) a cell.
    """

    for family in ("cosh", "slope", "toothed"):
        cells = list(_cells(trial, family))
        if not cells:
            continue
        replicas = 1 if family == "toothed" else trial["replicas"]
        start = np.concatenate([cell["start"] for cell in cells])
        cell_of = np.repeat(np.arange(len(cells)), replicas)
        step = _stack([cell["step"] for cell in cells], cell_of)
        bounds = np.array([cell["bound"] for cell in cells])
        rng = trial.numpy_generator(f"noise {family}")
        radius = np.array([cell["tau"] for cell in cells])[cell_of]
        gradient = _gradient(family, cells, cell_of)

        def noise(
            number: int,
            rows: np.ndarray,
            rng: np.random.Generator = rng,
            radius: np.ndarray = radius,
            dimension: int = start.shape[1],
        ) -> Any:
            """Noise of length τ in a random direction, or Gaussian of the same mean square."""
            directions = rng.standard_normal((number, dimension))
            if trial.settings.get("law") == "gaussian":
                return radius[rows, None] * directions / math.sqrt(dimension)
            return radius[rows, None] * directions / row_norm(directions)[:, None]

        stochastic, epsilon = _noisy(trial)
        limit = int(min(trial["limit"], math.ceil(bounds.max()) + 1))
        with trial.timed():
            hits, _ = first_hits(
                gradient, start, step, epsilon, limit, noise if stochastic else None
            )
        for number, cell in enumerate(cells):
            hits_of_cell = hits[cell_of == number]
            count = float(np.median(hits_of_cell)) if stochastic else float(hits_of_cell.max())
            # A run that was stopped before its bound says nothing against the theorem.
            yield {
                "family": family,
                "count": count,
                "bound": cell["bound"],
                "ratio": count / cell["bound"],
                "cut_short": bool(count > limit and limit < cell["bound"]),
                **{name: cell[name] for name in ("L0", "L1", "M", "tau")},
            }


def _noisy(trial: Trial) -> tuple[bool, float]:
    """Whether the method is stochastic, and its accuracy ε: coarser for a stochastic method, whose
    bound is a fourth power of 1/ε.
    """
    stochastic = trial["theorem"] in ("3.4.4", "3.4.5")
    return stochastic, trial["epsilon_noisy"] if stochastic else trial["epsilon"]


def _cells(trial: Trial, family: str) -> Iterator[dict[str, Any]]:
    """Constants, starts, step rule and bound of every grid point of one family of functions."""
    from mindgap.lab.theory import (
        BoundedNoise,
        HyperbolicCosine,
        RelaxedSmooth,
        SlowFunction,
        ToothedSlope,
    )

    theorem, factor = trial["theorem"], trial["bound_factor"]
    stochastic, epsilon = _noisy(trial)
    rng = trial.numpy_generator(f"starts {family}")
    all_L1, all_M, all_tau = (
        (trial["L1_noisy"], trial["M_noisy"], trial["tau"])
        if stochastic
        else (trial["L1"], trial["M"], [0.0])
    )
    for L0, L1, M, tau in itertools.product(trial["L0"], all_L1, all_M, all_tau):
        if family == "cosh":
            if theorem == "3.4.5":
                continue  # its gradient is not bounded everywhere
            function: Any = HyperbolicCosine(L0=L0, L1=L1, dimension=2)
            start = function.start(M) * rng.uniform(-1, 1, (trial["replicas"], 2))
            delta = float(function.value(start).max() - function.value(np.zeros(2)))
            # On the sublevel set the gradient is largest with all the height in one coordinate.
            steepest_gradient = L0 / L1 * math.sqrt((1 + delta * L1**2 / L0) ** 2 - 1)
            constants = RelaxedSmooth(L0=L0, L1=L1, delta=delta, M=steepest_gradient)
        elif family == "slope":
            if 3 * 0.55 * epsilon > L0:
                continue
            slow = SlowFunction(epsilon=0.55 * epsilon)  # slope 1.1 ε
            constants = slow.constants(delta=M * epsilon, L0=L0, L1=L1)
            function, start = slow, np.full((trial["replicas"], 1), slow.start(M * epsilon))
        else:
            if stochastic or min(trial["L1"]) != L1:
                continue
            function, constants = _slope_with_teeth(
                theorem, L0, L1, epsilon, trial["teeth"], RelaxedSmooth, ToothedSlope
            )
            start = np.array([[function.start]])
        noise = BoundedNoise(tau=tau) if stochastic else None
        step, bound = _theorem(theorem, constants, noise, epsilon)
        yield {
            "f": function,
            "start": start,
            "step": step,
            "bound": factor * bound,
            "L0": L0,
            "L1": L1,
            "M": constants.M,
            "tau": tau,
        }


def _slope_with_teeth(
    theorem: str, L0: float, L1: float, epsilon: float, teeth: int, constants: Any, toothed: Any
) -> Any:
    """The slope with teeth made for the step of that theorem, on which the bound is nearly
    reached.
    """
    from mindgap.lab.theory import clipped_gd_step, gd_step

    height = epsilon * (1 + 1e-6)
    flat = constants(L0=L0, L1=L1, delta=1.0, M=height)
    step = float(clipped_gd_step(flat)(np.array(height))) if theorem == "3.4.1" else gd_step(flat)
    function = toothed(slope=height, step=step, L=L0, teeth=teeth)
    return function, function.constants(L0, L1)


def _theorem(theorem: str, a: Any, noise: Any, epsilon: float) -> tuple[Any, float]:
    """Step (a number, or a rule of the gradient's norm) and bound of one theorem."""

    if theorem == "3.4.1":
        return theory.clipped_gd_step(a), theory.clipped_gd_bound(a, epsilon)
    if theorem == "3.4.3":
        return theory.gd_step(a), theory.gd_bound(a, epsilon)
    if theorem == "3.4.4":
        bound = theory.clipped_sgd_bound(a, noise, epsilon)
        return theory.clipped_sgd_step(a, noise, math.ceil(bound)), bound
    bound = theory.sgd_bound(a, noise, epsilon)
    return theory.sgd_step(a, noise, math.ceil(bound)), bound


def _stack(steps: list[Any], cell_of: np.ndarray) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """One step rule for all runs: the cells' rules are of one kind and differ in their
    constants, now vectors.
    """
    if isinstance(steps[0], float):
        step_sizes = np.array(steps)[cell_of]
        return lambda gradients, rows: step_sizes[rows]
    rule_class = type(steps[0])
    constants = {
        name: np.array([getattr(step, name) for step in steps])[cell_of] for name in vars(steps[0])
    }

    def rule(gradients: np.ndarray, rows: np.ndarray) -> Any:
        step = rule_class(**{name: value[rows] for name, value in constants.items()})
        return step(row_norm(gradients))

    return rule


def _gradient(
    family: str, cells: list[dict[str, Any]], cell_of: np.ndarray
) -> Callable[..., np.ndarray]:
    """The gradients of all runs in one formula where the family allows it."""
    if family == "cosh":
        L0 = np.array([cell["L0"] for cell in cells])[cell_of]
        L1 = np.array([cell["L1"] for cell in cells])[cell_of]
        return lambda x, rows: (L0 / L1)[rows, None] * np.sinh(L1[rows, None] * x)
    if family == "slope":
        return lambda x, rows: cells[0]["f"].gradient(x)  # one function, many starts and steps
    return lambda x, rows: np.stack(
        [cells[cell_of[row_number]]["f"].gradient(row) for row_number, row in zip(rows, x)]
    )


def judge_counts(runs: Sequence[Run]) -> Parts:
    """No count above its bound, for any method, family and grid point."""
    parts = Parts()
    for name, rows in rows_by_method(runs).items():
        ratios, cut_short = (
            np.array([row[column] for row in rows]) for column in ("ratio", "cut_short")
        )
        above = int((ratios > 1)[~cut_short].sum())
        parts.add(
            f"{name} stays below its bound",
            not above and not cut_short.any(),
            above > 0,
            reading=CORRECTED.get(name, ""),
            words=f"largest count/bound {ratios.max():.2g}, {above} of {len(ratios)} above, "
            f"{cut_short.sum()} cut short",
            numbers={
                name: {
                    "largest": float(ratios.max()),
                    "cells": len(ratios),
                    "above": above,
                    "cut_short": int(cut_short.sum()),
                }
            },
        )
    parts.certified(runs[0].header.study)
    return parts


#: Methods that run with the step and the constants of the proof, because those in print are refuted
#: or unproved.
CORRECTED = {"clipped SGD (3.4.4)": "as corrected", "SGD (3.4.5)": "as corrected"}


def loop_ratio(trial: Trial) -> Iterator[Row]:
    """For each M: the worst of the two functions of 3.7.2, at the best fixed step or with
    clipping.
    """

    L1, epsilon, delta = trial["L1"], trial["epsilon"], trial["delta"]
    fast, slow = theory.ExponentialQuadratic(L1=L1), theory.SlowFunction(epsilon=epsilon)
    for M in trial["M"]:
        constants = theory.RelaxedSmooth(L0=L1, L1=L1, delta=delta, M=M)
        lower = theory.fixed_step_lower_bound(constants, epsilon)
        factors = np.array(trial["step_factors"]) if trial["fixed"] else np.ones(1)
        step_sizes = factors * fast.longest_step(M)
        limit = int(trial["patience"] * lower) + 1000
        clipped_step = theory.clipped_gd_step(constants)

        def step(
            gradients: np.ndarray,
            rows: np.ndarray,
            step_sizes: np.ndarray = step_sizes,
            clipped_step: Any = clipped_step,
        ) -> Any:
            return step_sizes[rows] if trial["fixed"] else clipped_step(row_norm(gradients))

        most_steps = np.zeros(len(step_sizes))
        with trial.timed():
            for function, x0 in ((fast, fast.start(M)), (slow, slow.start(delta))):
                hits, _ = first_hits(
                    _of_x(function.gradient),
                    np.full((len(step_sizes), 1), x0),
                    step,
                    epsilon,
                    limit,
                )
                most_steps = np.maximum(most_steps, np.where(hits > limit, np.inf, hits))
        yield {
            "product": M * L1,
            "M": M,
            "count": float(most_steps.min()),
            "lower_bound": lower,
            "upper_bound": theory.clipped_gd_bound(constants, epsilon),
            "best_factor": float(factors[most_steps.argmin()]),
        }


def _of_x(gradient: Callable[[Any], Any]) -> Callable[[Any, Any], Any]:
    """A gradient that is the same function for every run."""
    return lambda x, who: gradient(x)


def judge_ratio(runs: Sequence[Run]) -> Parts:
    """GD/clipped grows like M·L1/(log M + 1): slope near one in logarithms, and each count on
    its side of its bound.
    """
    parts, groups = Parts(), by_method(runs)
    fixed, clipped = (groups[name][0] for name in ("GD, best fixed step", "clipped GD"))
    counts, clipped_counts = np.array(fixed.column("count")), np.array(clipped.column("count"))
    M, product = np.array(fixed.column("M")), np.array(fixed.column("product"))
    below = int((counts < np.array(fixed.column("lower_bound"))).sum())
    above = int((clipped_counts > np.array(clipped.column("upper_bound"))).sum())
    ratio = counts / clipped_counts
    exponent, error = slope(np.log(product / (np.log(M) + 1)), np.log(ratio))
    parts.add(
        "the ratio of counts grows as stated",
        abs(exponent - 1) <= 0.15 + 2 * error,
        words=f"like (M L1/(log M + 1))^{exponent:.2f}±{2 * error:.2f}, from {ratio[0]:.3g} "
        f"(M L1 = {product[0]:g}) to {ratio[-1]:.3g} (M L1 = {product[-1]:g})",
        numbers={"slope": exponent, "slope_error": error},
    )
    delta, epsilon = (fixed.header.settings[name] for name in ("delta", "epsilon"))
    printed = (
        np.array(fixed.column("lower_bound")) * (delta - 0.625 * epsilon) / (delta - 1.25 * epsilon)
    )
    below_printed = int((counts < printed).sum())
    parts.add(
        "GD stays above the printed lower bound, with Δ - 5ε/8",
        not below_printed,
        words=f"{below_printed} counts below",
    )
    parts.note(f"{below} counts lie below what the proof's own line gives, with Δ - 5ε/4")
    parts.add("clipped GD stays below the upper bound", not above, words=f"{above} counts above")
    return parts


_GRID = {
    "L0": [0.5, 1.0],
    "L1": [0.1, 0.5, 2.0],
    "L1_noisy": [0.5, 2.0],
    "M": [5.0, 20.0],
    "M_noisy": [5.0, 20.0],
    "tau": [0.1, 0.3],
    "epsilon": 0.3,
    "epsilon_noisy": 0.5,
    "replicas": 20,
    "limit": 20_000,
    "teeth": 1000,
    "bound_factor": 1.0,
}
_RATIO = {
    "L1": 1.0,
    "epsilon": 0.1,
    "delta": 2.0,
    "M": [10.0, 30.0, 100.0, 300.0, 1000.0],
    "patience": 3.0,
    "step_factors": [0.5, 0.8, 0.95, 0.99, 1.01, 2.0],
}

S4_COUNTS_BELOW_BOUNDS = Study(
    name="s4-counts-below-bounds",
    claim="S4",
    title="Iteration counts stay below Theorems 3.4.1, 3.4.3, 3.4.4 and 3.4.5",
    statement="Clipped GD, GD, clipped SGD and SGD reach an ε-stationary point within the "
    "iterations that Theorems 3.4.1, 3.4.3, 3.4.4 and 3.4.5 state (stochastic methods: with "
    "probability at least 1/2).",
    source=Source("thesis", "Theorems 3.4.1, 3.4.3, 3.4.4 and 3.4.5"),
    scales=scales(
        _GRID,
        {
            "L0": [0.5, 1.0, 5.0],
            "L1": [0.05, 0.5, 2.0, 5.0],
            "M": [5.0, 50.0, 200.0],
            "epsilon": 0.1,
            "tau": [0.05, 0.2],
            "L1_noisy": [1.0, 2.0, 5.0],
            "M_noisy": [2.0, 10.0],
            "epsilon_noisy": 0.4,
            "limit": 500_000,
            "teeth": 20_000,
        },
    ),
    methods={
        "clipped GD (3.4.1)": {"theorem": "3.4.1"},
        "GD (3.4.3)": {"theorem": "3.4.3"},
        "clipped SGD (3.4.4)": {"theorem": "3.4.4"},
        "SGD (3.4.5)": {"theorem": "3.4.5"},
    },
    loop=loop_counts,
    judge=judge_counts,
    rule="No count exceeds its bound, for any method, family of functions and grid point. A run "
    "that was stopped before its bound decides nothing. As printed, the step of Theorem 3.4.4 and "
    "the bound of Theorem 3.4.5 have no counterexample; as corrected, both methods run with the "
    "step and the constants of the proofs.",
    figures=(
        Figure(
            "Measured iterations over the bound",
            "ratio",
            "iterations until ‖∇f‖ <= ε, over the bound",
            x="bound",
            x_label="bound",
            kind="points",
            log_x=True,
            log_y=True,
            facet="family",
            hlines={"bound": 1.0},
            caption="A point above 1 would refute a theorem. On the toothed slope the "
            "bounds of the exact methods are within a factor three of the count.",
        ),
        Figure(
            "Iterations against the bound",
            "count",
            "iterations until ‖∇f‖ <= ε",
            x="bound",
            x_label="bound",
            kind="points",
            log_x=True,
            log_y=True,
            facet="family",
            caption="The counts behind the ratios.",
        ),
    ),
)

S8_GAUSSIAN_NOISE = Study(
    name="s8-gaussian-noise",
    claim="S8",
    title="Does Theorem 3.4.4 outlive Gaussian noise?",
    statement="The bounded noise of Theorem 3.4.4 can be relaxed to symmetric sub-Gaussian noise: "
    "clipped SGD still "
    "reaches an ε-stationary point within the stated iterations, with probability at least 1/2.",
    source=Source("thesis", "3.4.2, after Assumption 3.4.2"),
    scales=S4_COUNTS_BELOW_BOUNDS.scales,
    methods={
        "noise of length τ": {"theorem": "3.4.4"},
        "Gaussian noise": {"theorem": "3.4.4", "law": "gaussian"},
    },
    loop=loop_counts,
    judge=judge_counts,
    rule="No count exceeds the bound of Theorem 3.4.4, for either noise, "
    "family of functions and grid point. A run that was stopped before its bound decides nothing.",
    figures=(
        Figure(
            "Measured iterations over the bound",
            "ratio",
            "iterations until ‖∇f‖ <= ε, over the bound",
            x="bound",
            x_label="bound",
            kind="points",
            log_x=True,
            log_y=True,
            facet="family",
            hlines={"bound": 1.0},
            caption="A point above 1 would refute the statement.",
        ),
    ),
)

S4_CLIPPING_BEATS_FIXED_STEPS = Study(
    name="s4-clipping-beats-fixed-steps",
    claim="S4",
    title="Fixed steps lose to clipping as M·L1 grows",
    statement="On the two functions of 3.7.2 the best fixed step needs Ω(M L1/log M) times more "
    "iterations, while clipped GD does not depend on M.",
    source=Source("thesis", "Theorem 3.4.2, Remark 3.4.1, 3.7.2"),
    scales=scales(
        _RATIO, {"M": [10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0], "delta": 5.0}
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
