"""T3: Adam's average regret stays, AMSGrad's goes to zero (thesis, Fig. 2-3)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.verdict import slope


def regret_loop(trial: Trial) -> Iterator[Row]:
    """Run Adam or AMSGrad (setting ``rule``) online on losses that are rarely large.

    Rows stand at about 25 ends of periods on a logarithmic grid. They hold ``regret``, the average
    regret R_t/t, the ``point`` x_t, and ``floor``, the bound that Adam's regret does not fall below
    (the same in every row).
    """
    from mindgap.lab.theory.chapter2.fig_2_3 import RareLargeLoss, online_regret

    problem = RareLargeLoss(trial["C"], trial["s"], trial["period"])
    beta2 = trial["beta2"] or problem.forgetting()  # 0: that of the theorem
    grid = np.geomspace(10 * problem.period, trial["periods"] * problem.period, 25)
    read_steps = sorted({int(step) // problem.period * problem.period for step in grid})
    with trial.timed():
        regrets, points = online_regret(
            problem, trial["rule"], trial["alpha"], (trial["beta1"], beta2), read_steps
        )
    for step, regret, point in zip(read_steps, regrets, points, strict=True):
        yield {"step": step, "regret": regret, "point": point, "floor": problem.adam_floor()}


def judge_regret(runs: Sequence[Run]) -> Parts:
    """Ask of each run whether its average regret stays (Adam) or falls (AMSGrad).

    Returns:
        One part per run. Adam: the regret is never below nine tenths of its ``floor``. AMSGrad: it
        ends below half of the floor and falls faster than T^-0.3 over the later half of the rows.
    """
    parts = Parts()
    for run in runs:
        regret, floor = run.column("regret"), run.rows[0]["floor"]
        half = len(regret) // 2
        late_steps, late_regret = run.column("step")[half:], np.maximum(regret[half:], 1e-12)
        power, _ = slope(np.log(late_steps), np.log(late_regret))
        method, is_adam = run.header.method, run.header.settings["rule"] == "adam"
        stays = min(regret) >= 0.9 * floor
        falls = regret[-1] < floor / 2 and power < -0.3
        parts.add(
            f"{method}: the regret {'stays' if is_adam else 'falls'}",
            holds=stays if is_adam else falls,
            numbers={method: {"regret": regret[-1], "floor": floor, "power": power}},
            words=f"R_T/T = {regret[-1]:.3g} ({regret[-1] / floor:.2f} of the floor), like "
            f"T^{power:.2f}",
        )
    return parts


_THEOREM = {"C": 3.0, "s": 1.0, "period": 3, "alpha": 0.5, "beta1": 0.0, "beta2": 0.0}

_FIGURE = {"C": 1010.0, "s": 10.0, "period": 101, "alpha": 0.5, "beta1": 0.9, "beta2": 0.99}

T3_ADAM_REGRET = Study(
    name="t3-adam-regret",
    claim="T3",
    title="Adam's average regret stays, AMSGrad's goes to zero",
    statement="On the online problem with a rare large loss Adam's average regret does not go to "
    "zero; AMSGrad's does.",
    source=Source("thesis", "Fig. 2-3"),
    scales={"quick": Scale({"periods": 5_000}), "cpu": Scale({"periods": 50_000})},
    methods={
        "Adam": {"rule": "adam", **_THEOREM},
        "AMSGrad": {"rule": "amsgrad", **_THEOREM},
        "Adam, as in the figure": {"rule": "adam", **_FIGURE},
        "AMSGrad, as in the figure": {"rule": "amsgrad", **_FIGURE},
    },
    loop=regret_loop,
    judge=judge_regret,
    rule="Adam's average regret is never below nine tenths of its floor; "
    "AMSGrad's falls to below half of the floor, faster than T^-0.3.",
    figures=(
        Figure(
            "Average regret",
            "regret",
            "R_t / t",
            log_x=True,
            log_y=True,
            caption="Adam levels off at its floor; AMSGrad falls like 1/√t or faster.",
        ),
        Figure(
            "The point",
            "point",
            "x_t",
            log_x=True,
            caption="The best point is -1; Adam sits at +1.",
        ),
    ),
)
