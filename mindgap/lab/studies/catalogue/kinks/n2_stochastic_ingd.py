"""N2: Stochastic INGD finds stationary points with the theorem's parameters (thesis, Theorem
5.5.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import last
from mindgap.lab.theory.chapter5.ingd import StochasticTarget, mean_direction_bound, stochastic_rule


def stochastic_loop(trial: Trial) -> Iterator[Row]:
    """Algorithm 3 with Theorem 5.5.1's parameters on f = L|x|, ``runs`` runs side by side.

    Here Δ = f(x_1) exactly, and d(0, ∂f(x + δB)) is 0 within δ of the kink and L elsewhere. The
    output of a run is x_{max(i-K,1)} for an i drawn from 1 to T.

    About 30 rows on a logarithmic grid of steps hold ``mean_direction``, the mean of ‖m_t‖ over
    steps and runs so far, and its ``bound``. The last row is about the outputs: ``mean_distance``,
    its ``distance_bound``, and ``stationary``, the share that is (δ, ε)-stationary.
    """
    import torch

    target = StochasticTarget(
        trial["L"], trial["sigma"], trial["Delta"], trial["delta"], trial["epsilon"]
    )
    rule, rng, runs = stochastic_rule(target), trial.numpy_generator("run"), trial["runs"]
    beta = 1 - trial["beta_factor"] * (1 - rule.beta)
    drawn_steps = rng.integers(1, rule.T + 1, size=runs)  # the i of every run
    output_steps = np.array([rule.output_index(int(drawn)) for drawn in drawn_steps])
    # Of every run: x_1, the x that it returns, and m_1.
    positions = np.full(runs, target.Delta / target.L)
    outputs = positions.copy()
    directions = target.L * np.sign(positions) + target.sigma * rng.choice([-1.0, 1.0], size=runs)
    # Stop where a row is due or an output is taken; between two stops nothing but Algorithm 3 runs.
    row_steps = {*np.geomspace(1, rule.T, 30).astype(int).tolist(), rule.T}
    # At least every 4096 steps, because the draws of a stretch are held in memory.
    stops = sorted(row_steps | set(output_steps.tolist()) | set(range(1, rule.T, 4096)))
    total = 0.0  # the sum of ‖m_t‖ over all runs and steps so far
    last_row_step = trial.restored.get("step", 0)
    if trial.restored:
        positions, directions, outputs = (
            trial.restored[name].numpy().copy() for name in ("x", "m", "output")
        )
        total, rng.bit_generator.state = trial.restored["total"], trial.restored["rng"]
    for step, next_step in zip(stops, [*stops[1:], rule.T + 1], strict=True):
        if step < last_row_step:  # done before the checkpoint
            continue
        outputs[output_steps == step] = positions[output_steps == step]
        if step in row_steps and step != last_row_step:
            arrays = {"x": positions, "m": directions, "output": outputs}
            tensors = {name: torch.from_numpy(array.copy()) for name, array in arrays.items()}
            state = {"step": step, "total": float(total), "rng": rng.bit_generator.state}
            trial.save({**state, **tensors})
            yield {
                "step": step,
                "mean_direction": float(total + np.abs(directions).sum()) / (step * runs),
                "bound": mean_direction_bound(target),
            }
        with trial.timed():
            uniform = rng.random((next_step - step, runs))
            noise = target.sigma * (2.0 * rng.integers(0, 2, size=uniform.shape) - 1)
            positions, directions, total = _algorithm_3(
                target.L, rule, beta, positions, directions, total, uniform, noise
            )
    distance = np.where(np.abs(outputs) <= target.delta, 0.0, target.L)
    yield {
        "step": rule.T,
        "mean_distance": float(distance.mean()),
        "stationary": float((distance <= target.epsilon).mean()),
        "distance_bound": target.epsilon / 3,
    }


def _algorithm_3(
    L: float,
    rule: Any,
    beta: float,
    positions: np.ndarray,
    directions: np.ndarray,
    total: float,
    uniform: np.ndarray,
    noise: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, float]:
    """Take steps of Algorithm 3 on L|x|, for all runs at once.

    Args:
        L: the slope.
        rule: the step size is 1/(p|m| + q).
        beta: weight of the old direction.
        positions, directions: x and m of every run, shape (runs,); not changed in place.
        total: the sum of |m| over earlier steps and runs.
        uniform: shares of a step, at which the gradients are taken, shape (steps, runs).
        noise: of these gradients, shape (steps, runs).

    Returns:
        The positions, the directions, and ``total`` with |m| of every step and run added.
    """
    for share, weighted_noise in zip(uniform, (1 - beta) * noise):
        size = np.abs(directions)
        total += np.add.reduce(size)
        step = directions / (rule.p * size + rule.q)
        sign = np.sign(positions - share * step)
        positions = positions - step
        directions = beta * directions + ((1 - beta) * L) * sign + weighted_noise
    return positions, directions, total


def judge_stochastic(runs: Sequence[Run]) -> Parts:
    """Compare what Theorem 5.5.1 bounds with its bounds, by means over the runs' last values.

    Returns:
        Three parts: ``mean_direction`` is at most its ``bound`` (ε/4); ``mean_distance`` is at most
        ``distance_bound`` (ε/3); at least two thirds of the outputs are ``stationary``.
    """
    parts = Parts()
    direction, distance, stationary = (
        float(np.mean([last(run, column) for run in runs]))
        for column in ("mean_direction", "mean_distance", "stationary")
    )
    direction_bound = runs[0].column("bound")[0]
    distance_bound = runs[0].column("distance_bound")[0]
    parts.add(
        "mean ‖m_t‖ below its bound",
        holds=direction <= direction_bound,
        words=f"{direction:.3g}, bound {direction_bound:.3g}",
        numbers={"mean_direction": direction, "bound": direction_bound},
    )
    parts.add(
        "mean distance at the outputs below its bound",
        holds=distance <= distance_bound,
        words=f"{distance:.3g}, bound {distance_bound:.3g}",
        numbers={"mean_distance": distance},
    )
    parts.add(
        "two thirds of the outputs are (δ, ε)-stationary",
        holds=stationary >= 2 / 3,
        words=f"{stationary:.0%}",
        numbers={"stationary": stationary},
    )
    return parts


_STOCHASTIC = {"L": 1.0, "sigma": 0.1, "delta": 1.0, "epsilon": 0.98, "beta_factor": 1.0}

N2_STOCHASTIC_INGD = Study(
    name="n2-stochastic-ingd",
    claim="N2",
    title="Stochastic INGD finds stationary points with the theorem's parameters",
    statement="With β, p, q, K, T of Theorem 5.5.1 the mean of ‖m_t‖ is at most ε/4, and "
    "x_{max(i-K,1)} is (δ, "
    "ε)-stationary with probability at least 2/3.",
    source=Source("thesis", "Theorem 5.5.1"),
    scales={
        "quick": Scale({**_STOCHASTIC, "Delta": 1.1, "runs": 20}),
        "cpu": Scale({**_STOCHASTIC, "Delta": 4.0, "epsilon": 0.9, "runs": 50}, seeds=4),
    },
    methods={"noise ±σ": {}, "no noise": {"sigma": 0.0}},
    loop=stochastic_loop,
    judge=judge_stochastic,
    rule="The mean of ‖m_t‖ is at most ε/4, the outputs' mean distance from stationarity at most "
    "ε/3, and at least two thirds of the outputs are (δ, ε)-stationary.",
    figures=(
        Figure(
            "Mean of ‖m_t‖ up to step t",
            "mean_direction",
            "(1/t) Σ ‖m_s‖",
            log_x=True,
            log_y=True,
            caption="At the last step it must be at most ε/4.",
        ),
    ),
)
