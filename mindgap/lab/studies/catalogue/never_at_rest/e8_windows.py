"""E8: a function on which averages over a window of n steps never settle (thesis, Lemma 6.4.2 and 6.7.2).

The proof states jumps of the window average of at least 1/(2n). On (6.11) they are (0.8n - 0.2)/(n(n+1)²), of order
1/n² (see ``mindgap.lab.theory.chapter6.lemma_6_4_2``). The verdict is about what the lemma needs, the period and
averages
that do not settle; the size of the jump is reported beside the printed one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.base.source import Source
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.spec import Figure, Scale, Study
from mindgap.lab.theory.chapter6.lemma_6_4_2 import Sawtooth
from mindgap.record.schema import Row, Run, Verdict


def loop(trial: Trial) -> Iterator[Row]:
    """Gradient descent with step 1 on (6.11), and the average M_t over the last ``window`` values of f."""
    f = Sawtooth(trial["n"])
    window = trial["window"] or f.n
    theta = f.start
    values: list[float] = []
    for step in range(trial["periods"] * f.period):
        values.append(f.value(theta))
        row: Row = {"step": step, "theta": theta, "loss": values[-1]}
        if step + 1 >= window:
            row["window_average"] = float(np.mean(values[-window:]))
        yield row
        with trial.timed():
            theta = f.step(theta)


def judge(runs: Sequence[Run]) -> Verdict:
    """The iterates have period n+1 and no shorter one; late window averages still jump."""
    holds, sentences, numbers = True, [], {}
    for run in runs:
        n = run.header.settings["n"]
        theta = np.array(run.column("theta"))
        returns = [lag for lag in range(1, 2 * n + 3) if np.abs(theta[lag:] - theta[:-lag]).max() < 1e-9]
        period = returns[0] if returns else 0
        averages = np.array(run.column("window_average"))
        jump = float(np.abs(np.diff(averages[-2 * (n + 1) :])).max())
        holds = holds and period == n + 1 and jump > 1e-9
        numbers[f"n={n}"] = {"period": period, "jump": jump, "printed_jump": 1 / (2 * n)}
        printed = f"(printed: {1 / (2 * n):.1e})"
        sentences.append(f"n = {n}: period {period}, the window average still jumps by {jump:.1e} {printed}")
    return Verdict("holds" if holds else "does not hold", "; ".join(sentences), numbers)


STUDIES = (
    Study(
        name="e8-windows",
        claim="E8",
        title="A window average that never settles",
        statement="Gradient descent on the function (6.11) has period n+1, and averages of the loss over windows of "
        "n steps do not converge.",
        source=Source("thesis", "Lemma 6.4.2, 6.7.2"),
        scales={
            "quick": Scale({"periods": 20, "window": 0}),
            "cpu": Scale({"periods": 1000, "window": 0}),
        },
        methods={"n = 5": {"n": 5}, "n = 20": {"n": 20}},
        loop=loop,
        judge=judge,
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
    ),
)
