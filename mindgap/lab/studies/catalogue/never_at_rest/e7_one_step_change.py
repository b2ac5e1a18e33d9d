"""E7: the time average of one-step changes falls like 1/√n (thesis, Theorem 6.4.1)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import by_method, slope


def change_loop(trial: Trial) -> Iterator[Row]:
    """The one-step change |E_{μ_n}[φ(θ) - φ(F(θ))]| of many trajectories of a stochastic map F,
    where μ_n is the law of the first n points of a trajectory.

    A row per n (``step``) holds its root mean square over the trajectories (``rms``), the theorem's
    ``bound``, and ``over``, the share of the trajectories that lie above it.
    """
    from mindgap.lab.theory.chapter6.averages import (
        BoundedValues,
        one_step_change,
        one_step_change_bound,
    )

    constants = BoundedValues(trial["M"], trial["delta"])
    with trial.timed():
        change = one_step_change(*_trajectories(trial))
    for n in sorted(set(np.geomspace(4, trial["steps"], 20).astype(int).tolist())):
        changes = change[:, n - 1]
        bound = one_step_change_bound(constants, n)
        yield {
            "step": n,
            "rms": float(np.sqrt(np.mean(changes**2))),
            "bound": bound,
            "over": float(np.mean(changes > bound)),
        }


def _trajectories(trial: Trial) -> tuple[np.ndarray, np.ndarray]:
    """φ(θ_t) and E[φ(F(θ_t)) | θ_t], both of shape (runs, steps), for the map F of the setting
    ``map``; |φ| is at most M plus ``drift``·t.
    """
    rng = trial.numpy_generator("trajectory")
    runs, steps, M = trial["runs"], trial["steps"], trial["M"]
    if trial["map"] == "uniform":  # F(θ) is ±M whatever θ; the thesis names it for tightness
        values = rng.choice([-M, M], size=(runs, steps))
        expected = np.zeros_like(values)
    else:  # SGD on 1 - cos θ with noise ±1; φ = M cos θ is bounded, the iterates are not
        theta, eta = rng.uniform(-3, 3, size=runs), trial["eta"]
        values, expected = np.empty((runs, steps)), np.empty((runs, steps))
        for step in range(steps):
            theta = theta - eta * (np.sin(theta) + rng.choice([-1.0, 1.0], size=runs))
            values[:, step] = M * np.cos(theta)
            low, high = (np.cos(theta - eta * (np.sin(theta) + noise)) for noise in (-1.0, 1.0))
            expected[:, step] = M * (low + high) / 2
    # A drift makes φ unbounded: φ(θ_t) = bounded part + drift·t, and the next value is expected one
    # drift higher.
    drifts = trial["drift"] * np.arange(1, steps + 1)
    return values + drifts, expected + drifts + trial["drift"]


def judge_change(runs: Sequence[Run]) -> Parts:
    """Ask of each map how the one-step change falls with n and whether it keeps to its bound.

    Returns:
        Two parts per map: ``rms``, averaged over seeds, falls like n^(-1/2), for the uniform map
        within 0.05 and for SGD at least like n^(-0.45); at every n the share ``over`` the bound is
        at most the setting ``delta``.
    """
    parts = Parts()
    for method, own_runs in by_method(runs).items():
        share_over = float(max(np.mean([run.column("over") for run in own_runs], axis=0)))
        rms = np.mean([run.column("rms") for run in own_runs], axis=0)
        power, error = slope(np.log(own_runs[0].column("step")), np.log(rms))
        as_stated = abs(power + 0.5) < 0.05 if method == "uniform map" else power < -0.45
        parts.add(
            f"{method}: falls like n^-1/2", holds=as_stated, words=f"n^{power:.3f}±{error:.3f}"
        )
        parts.add(
            f"{method}: below the bound",
            holds=share_over <= own_runs[0].header.settings["delta"],
            words=f"over it in at most {share_over:.1%} of the runs",
            numbers={method: {"power": power, "error": error, "over": share_over}},
        )
    return parts


_CHANGE = {"M": 1.0, "delta": 0.05, "drift": 0.0, "eta": 0.5}

E7_ONE_STEP_CHANGE = Study(
    name="e7-one-step-change",
    claim="E7",
    title="The averaged one-step change falls like 1/√n",
    statement="With probability 1 - δ the time-averaged one-step change of a bounded function is "
    "of order 1/√n.",
    source=Source("thesis", "Theorem 6.4.1"),
    scales={
        "quick": Scale({**_CHANGE, "runs": 200, "steps": 1000}, seeds=5),
        "cpu": Scale({**_CHANGE, "runs": 500, "steps": 10_000}, seeds=20),
    },
    methods={"uniform map": {"map": "uniform"}, "SGD on a cosine": {"map": "cosine"}},
    loop=change_loop,
    judge=judge_change,
    rule="At every n at most a share δ of the trajectories lies over the bound; the root mean "
    "square falls like n^-1/2 (within 0.05) for the uniform map and at least like n^-0.45 for SGD.",
    figures=(
        Figure(
            "Root mean square of the averaged one-step change",
            "rms",
            "|E_{μ_n}[φ - φ∘F]|",
            log_x=True,
            log_y=True,
            caption="Slope -1/2 for the uniform map: the rate is tight.",
        ),
        Figure(
            "Share of trajectories over the bound", "over", "share", log_x=True, hlines={"δ": 0.05}
        ),
    ),
)
