"""Runs of GD, SGD and their clipped forms with the steps of Theorems 3.4.1 to 3.4.5: counts of
iterations beside the bounds, for the studies S4 and S8.

All grid points and all starts of a method run in one array, so a study costs as much as its slowest
run. A *cell* is a grid point (L0, L1, M, τ) of one family of functions. T_ε is the first iteration
at which the gradient's norm is at most ε.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from mindgap.lab import theory
from mindgap.lab.studies.spec import Row, Trial
from mindgap.lab.theory.descent import first_hits, row_norm

#: Theorems on stochastic methods. They have a coarser accuracy ε, because their bound is a fourth
#: power of 1/ε.
STOCHASTIC = ("3.4.4", "3.4.5")


def loop_counts(trial: Trial) -> Iterator[Row]:
    """Measure T_ε for every cell of the grid, and yield it beside its bound.

    Of the T_ε of ``replicas`` random starts the largest counts, of a stochastic method the median
    (its theorem holds with probability 1/2).

    Yields:
        Per cell ``family``, ``count`` (T_ε), ``bound``, ``ratio`` (count over bound), ``cut_short``
        (the run was stopped before its bound) and the cell's constants.
    """
    stochastic = trial["theorem"] in STOCHASTIC
    epsilon = trial["epsilon_noisy" if stochastic else "epsilon"]
    for family in ("cosh", "slope", "toothed"):
        cells = list(_cells(trial, family))
        if not cells:
            continue
        replicas = 1 if family == "toothed" else trial["replicas"]
        start = np.concatenate([cell["start"] for cell in cells])
        cell_of = np.repeat(np.arange(len(cells)), replicas)  # run -> number of its cell
        step = _common_step([cell["step"] for cell in cells], cell_of)
        largest_bound = np.max([cell["bound"] for cell in cells])
        limit = int(min(trial["limit"], math.ceil(largest_bound) + 1))
        gradient = _gradient(family, cells, cell_of)
        noise = None
        if stochastic:
            tau = np.array([cell["tau"] for cell in cells])[cell_of]
            rng = trial.numpy_generator(f"noise {family}")
            noise = _noise(tau, start.shape[1], rng, trial.settings.get("law") == "gaussian")
        with trial.timed():
            hits, _ = first_hits(gradient, start, step, epsilon, limit, noise)
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


def _noise(
    tau: np.ndarray, dimension: int, rng: np.random.Generator, gaussian: bool
) -> Callable[[int, np.ndarray], np.ndarray]:
    """What draws the noise of all runs that still go on.

    Args:
        tau: the length τ of each run's noise, shape (runs,).
        dimension: of the noise.
        rng: advanced by every draw.
        gaussian: draw from a Gaussian of mean square τ² instead of a random direction of length τ.

    Returns:
        (how many runs go on, their numbers) -> their noise, shape (how many, dimension).
    """

    def draw(count: int, running: np.ndarray) -> Any:
        """Noise of the ``count`` runs with the numbers ``running``, each of its own size τ."""
        directions = rng.standard_normal((count, dimension))
        lengths = math.sqrt(dimension) if gaussian else row_norm(directions)[:, None]
        return tau[running, None] * directions / lengths

    return draw


def _cells(trial: Trial, family: str) -> Iterator[dict[str, Any]]:
    """The cells of one family of functions.

    Grid points to which the theorem does not apply are left out.

    Args:
        trial: with ``theorem`` ("3.4.1" clipped GD, "3.4.3" GD, "3.4.4" clipped SGD, "3.4.5" SGD)
            and the values of the grid.
        family: ``"cosh"`` (hyperbolic cosine in two variables), ``"slope"`` (a slow function of one
            variable) or ``"toothed"`` (the slope with teeth on which the bound is nearly reached).

    Yields:
        ``f`` (the function), ``start`` (replicas, d), ``step`` (rule), ``bound`` and the constants
        ``L0``, ``L1``, ``M`` (largest gradient on the sublevel set of the start), ``tau`` (noise).
    """
    theorem, stochastic = trial["theorem"], trial["theorem"] in STOCHASTIC
    epsilon = trial["epsilon_noisy" if stochastic else "epsilon"]
    rng = trial.numpy_generator(f"starts {family}")
    all_L1, all_M, all_tau = (
        (trial["L1_noisy"], trial["M_noisy"], trial["tau"])
        if stochastic
        else (trial["L1"], trial["M"], [0.0])
    )
    for L0, L1, M, tau in itertools.product(trial["L0"], all_L1, all_M, all_tau):
        if family == "cosh":
            if theorem == "3.4.5":
                continue  # the theorem asks for a gradient that is bounded everywhere
            function: Any = theory.HyperbolicCosine(L0=L0, L1=L1, dimension=2)
            start = function.start(M) * rng.uniform(-1, 1, (trial["replicas"], 2))
            delta = float(function.value(start).max() - function.value(np.zeros(2)))
            # On the sublevel set the gradient is largest with all the height in one coordinate.
            largest_gradient = L0 / L1 * math.sqrt((1 + delta * L1**2 / L0) ** 2 - 1)
            constants = theory.RelaxedSmooth(L0=L0, L1=L1, delta=delta, M=largest_gradient)
        elif family == "slope":
            half_slope = 0.55 * epsilon  # the function's slope is 1.1 ε, just above the accuracy
            if 3 * half_slope > L0:  # its curvature exceeds L0
                continue
            function = theory.SlowFunction(epsilon=half_slope)
            constants = function.constants(delta=M * epsilon, L0=L0, L1=L1)
            start = np.full((trial["replicas"], 1), function.start(M * epsilon))
        else:
            if stochastic or min(trial["L1"]) != L1:  # its curvature has a bound without L1
                continue
            function, constants = _slope_with_teeth(theorem, L0, L1, epsilon, trial["teeth"])
            start = np.array([[function.start]])
        noise = theory.BoundedNoise(tau=tau) if stochastic else None
        step, bound = _step_and_bound(theorem, constants, noise, epsilon)
        yield {
            "f": function,
            "start": start,
            "step": step,
            "bound": trial["bound_factor"] * bound,
            "L0": L0,
            "L1": L1,
            "M": constants.M,
            "tau": tau,
        }


def _slope_with_teeth(
    theorem: str, L0: float, L1: float, epsilon: float, teeth: int
) -> tuple[Any, Any]:
    """The slope with teeth on which the bound of a theorem is nearly reached, and its constants.

    Its teeth stand where the steps of the theorem's method land: clipped GD for "3.4.1", else GD.

    Args:
        theorem: which.
        L0, L1: constants of relaxed smoothness.
        epsilon: accuracy; the slope is steeper by a part in a million.
        teeth: how many.
    """
    height = epsilon * (1 + 1e-6)  # above ε by more than rounding: on the slope nothing is a hit
    flat = theory.RelaxedSmooth(L0=L0, L1=L1, delta=1.0, M=height)
    clipped = theorem == "3.4.1"
    step = (
        float(theory.clipped_gd_step(flat)(np.array(height))) if clipped else theory.gd_step(flat)
    )
    function = theory.ToothedSlope(slope=height, step=step, L=L0, teeth=teeth)
    return function, function.constants(L0, L1)


def _step_and_bound(theorem: str, constants: Any, noise: Any, epsilon: float) -> tuple[Any, float]:
    """The step of a theorem's method, and the theorem's bound on T_ε.

    Args:
        theorem: "3.4.1" (clipped GD), "3.4.3" (GD), "3.4.4" (clipped SGD), else SGD.
        constants: of relaxed smoothness, with δ and M.
        noise: bounded noise, for the stochastic methods only.
        epsilon: accuracy.

    Returns:
        A step size, or a rule that makes one from the gradient's norm; and the bound.
    """
    if theorem == "3.4.1":
        return theory.clipped_gd_step(constants), theory.clipped_gd_bound(constants, epsilon)
    if theorem == "3.4.3":
        return theory.gd_step(constants), theory.gd_bound(constants, epsilon)
    if theorem == "3.4.4":
        bound = theory.clipped_sgd_bound(constants, noise, epsilon)
        return theory.clipped_sgd_step(constants, noise, math.ceil(bound)), bound
    bound = theory.sgd_bound(constants, noise, epsilon)
    return theory.sgd_step(constants, noise, math.ceil(bound)), bound


def _common_step(
    steps: list[Any], cell_of: np.ndarray
) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """One step rule for all runs, made from the rules of their cells.

    Args:
        steps: of each cell, all numbers or all rules of one class, whose constants become vectors.
        cell_of: run -> number of its cell.

    Returns:
        (gradients (n, d), numbers of their n runs) -> step sizes (n,).
    """
    if isinstance(steps[0], float):  # fixed steps
        step_sizes = np.array(steps)[cell_of]
        return lambda gradients, rows: step_sizes[rows]
    rule_class = type(steps[0])
    constants = {
        name: np.array([getattr(step, name) for step in steps])[cell_of] for name in vars(steps[0])
    }

    def rule(gradients: np.ndarray, rows: np.ndarray) -> Any:
        """The step sizes of the runs with the numbers ``rows`` for their gradients, by the common
        class of rules with the constants of these runs.
        """
        step = rule_class(**{name: value[rows] for name, value in constants.items()})
        return step(row_norm(gradients))

    return rule


def _gradient(
    family: str, cells: list[dict[str, Any]], cell_of: np.ndarray
) -> Callable[..., np.ndarray]:
    """The gradients of all runs, in one formula where the family allows it.

    Args:
        family, cells: as :func:`_cells` names and yields them.
        cell_of: run -> number of its cell.

    Returns:
        (points (n, d), numbers of their n runs) -> gradients (n, d).
    """
    if family == "cosh":
        L0 = np.array([cell["L0"] for cell in cells])[cell_of]
        L1 = np.array([cell["L1"] for cell in cells])[cell_of]
        # f = (L0/L1²) Σ cosh(L1 x_i), with the constants of each run.
        return lambda x, rows: (L0 / L1)[rows, None] * np.sinh(L1[rows, None] * x)
    if family == "slope":
        return lambda x, rows: cells[0]["f"].gradient(x)  # one function, many starts and steps
    return lambda x, rows: np.stack(
        [cells[cell_of[row_number]]["f"].gradient(row) for row_number, row in zip(rows, x)]
    )
