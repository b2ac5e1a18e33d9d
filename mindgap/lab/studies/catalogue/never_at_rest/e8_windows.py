"""E8: a function on which averages over a window of n steps never settle (thesis, Lemma 6.4.2 and
6.7.2).

The proof states jumps of the window average of at least 1/(2n). On (6.11) they are (0.8n -
0.2)/(n(n+1)²), of order 1/n² (``mindgap.lab.theory.chapter6.lemma_6_4_2``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.theory.chapter6.lemma_6_4_2 import Sawtooth


def loop(trial: Trial) -> Iterator[Row]:
    """Gradient descent with step 1 on the function (6.11) of the setting ``n``.

    A row per step holds ``theta``, ``loss`` = f(θ) and, once there are enough of them,
    ``window_average``, the mean of the last ``window`` losses (setting 0: of n).
    """
    function = Sawtooth(trial["n"])
    window = trial["window"] or function.n
    theta = function.start
    losses: list[float] = []  # at all points so far
    for step in range(trial["periods"] * function.period):
        losses.append(function.value(theta))
        row: Row = {"step": step, "theta": theta, "loss": losses[-1]}
        if step + 1 >= window:
            row["window_average"] = float(np.mean(losses[-window:]))
        yield row
        with trial.timed():
            theta = function.step(theta)


def judge(runs: Sequence[Run]) -> Parts:
    """Ask of each run whether its iterates have period n + 1 and its window averages keep jumping.

    A jump is the largest change of ``window_average`` in one step over the last two periods.

    Returns:
        Three parts per run: ``theta`` returns to within 1e-9 after n + 1 steps and not sooner; the
        jump is at least 1/(2n) (as printed); it is above 1e-9 (as corrected).
    """
    parts = Parts()
    for run in runs:
        n = run.header.settings["n"]
        theta = np.array(run.column("theta"))
        period = next(  # the first lag after which all iterates return, 0 if there is none
            (lag for lag in range(1, 2 * n + 3) if np.abs(theta[lag:] - theta[:-lag]).max() < 1e-9),
            0,
        )
        late_averages = run.column("window_average")[-2 * (n + 1) :]
        jump = float(np.abs(np.diff(late_averages)).max())
        parts.add(f"n = {n}: the period is n + 1", holds=period == n + 1, words=f"{period}")
        printed, exact = 1 / (2 * n), (0.8 * n - 0.2) / (n * (n + 1) ** 2)
        parts.add(
            f"n = {n}: the window average keeps jumping by 1/(2n)",
            holds=jump >= printed,
            words=f"by {jump:.1e}, printed {printed:.1e}",
            reading="as printed",
            numbers={f"n={n}": {"period": period, "jump": jump, "printed_jump": printed}},
        )
        parts.add(
            f"n = {n}: the window average keeps jumping",
            holds=jump > 1e-9,
            reading="as corrected",
            words=f"by {jump:.1e}, exactly {exact:.1e}",
        )
    return parts


STUDY = Study(
    name="e8-windows",
    claim="E8",
    title="A window average that never settles",
    statement="Gradient descent on the function (6.11) has period n+1, and averages of the loss "
    "over windows of n steps do not converge.",
    source=Source("thesis", "Lemma 6.4.2, 6.7.2"),
    scales={
        "quick": Scale({"periods": 20, "window": 0}),
        "cpu": Scale({"periods": 1000, "window": 0}),
    },
    methods={"n = 5": {"n": 5}, "n = 20": {"n": 20}},
    loop=loop,
    judge=judge,
    rule="The iterates have period n+1 and no shorter one, and the window average still changes by "
    "more than 1e-9 "
    "in the last two periods. As printed (proof in 6.7.2) it jumps by at least 1/(2n).",
    figures=(
        Figure(
            "Average of the loss over a window of n steps",
            "window_average",
            "M_t",
            facet="method",
            caption="The window is one step shorter than the period, so its average keeps moving.",
        ),
        Figure("The iterates", "theta", "θ_t", facet="method"),
    ),
)
