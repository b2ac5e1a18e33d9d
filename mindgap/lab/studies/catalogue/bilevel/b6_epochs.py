"""B6: SLIP with epochs counted in y-updates instead of x-updates (SLIP rebuttal, A4 to P6Br, Fig. 5 against Fig. 2).

The warm start gives SLIP three more updates of y than of x. An epoch of x-updates is a pass over the upper data, an
epoch of y-updates one over the lower data with the warm start counted in: three updates of x fewer in all.
All draws are functions of seed and position, so that with one seed the second run is the first, read three iterations
earlier; what is measured is what these iterations do, with no noise between two runs on top.

*Negligible* was settled beforehand as: less than the spread (standard deviation) between seeds that the figures
show as a band. *Differs from the paper*: images and a linear softmax, as in ``b3-hyper-cleaning``, whose steps are
taken. An epoch has 10 iterations here (300 samples, batches of 32), so that three of them weigh more than in the paper.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from mindgap.base.check import one_of
from mindgap.base.source import Source
from mindgap.lab.studies.bilevel_runs import method_of
from mindgap.lab.studies.cleaning_runs import CPU, QUICK, TUNED, rows_of, task_of
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.spec import Figure, Scale, Study
from mindgap.lab.studies.verdict import Interval, by_setting, mean_interval
from mindgap.record.schema import Row, Run, Verdict


def loop(trial: Trial) -> Iterator[Row]:
    """Run SLIP for a number of epochs of x- or of y-updates and read it after each."""
    task = task_of(trial)
    problem = task.problem(trial["batch_size"])
    counted, epochs = one_of("counted", trial["counted"], ("x", "y")), trial["epochs"]
    batches = (problem.upper_data if counted == "x" else problem.lower_data).batches
    method = method_of({**trial.settings, "convexity": 2 * trial["decay"]})
    rows = rows_of(
        trial, task, method, budget=epochs * batches, readings=epochs, spent=lambda state: state.updates[counted]
    )
    for row in rows:
        yield {**row, "epoch": round(row[f"{counted}_epoch"])}


def judge(runs: Sequence[Run]) -> Verdict:
    """Negligible: the difference of the two countings is smaller than the spread between seeds.

    For each corruption, training and test accuracy are compared at the last epoch and on average over the epochs, the
    x-counted less the y-counted run of the same seed; the spread is that of the x-counted runs. All intervals together
    miss with probability 5 %. *holds* if all lie within ± the spread; *does not hold* if one lies outside altogether;
    *inconclusive* otherwise.
    """
    groups = by_setting(runs, "corruption", "counted")
    shares = sorted({p for p, _ in groups})
    found: dict[str, tuple[Interval, float]] = {}
    worst, fewer = 0.0, set()
    for p in shares:
        by_x, by_y = groups[p, "x"], groups[p, "y"]
        seeds = sorted(by_x.keys() & by_y.keys())
        fewer |= {by_x[s].rows[-1]["step"] - by_y[s].rows[-1]["step"] for s in seeds}
        for split in ("test", "train"):
            x, y = (np.array([run[s].column(f"{split}_accuracy")[1:] for s in seeds]) for run in (by_x, by_y))
            worst = max(worst, float(np.abs((x - y).mean(0)).max()))
            for when, a, b in (("at the end", x[:, -1], y[:, -1]), ("on average", x.mean(1), y.mean(1))):
                spread = float(a.std(ddof=1)) if len(a) > 1 else 0.0
                found[f"p = {p:g}, {split}, {when}"] = mean_interval(a - b, miss=0.05 / 4 / len(shares)), spread
    within = [n for n, (i, spread) in found.items() if max(abs(i.low), abs(i.high)) < spread]
    outside = [n for n, (i, spread) in found.items() if i.low > spread or i.high < -spread]
    verdict = "does not hold" if outside else "holds" if len(within) == len(found) else "inconclusive"
    largest = max(found, key=lambda n: abs(found[n][0].mean))
    interval, spread = found[largest]
    measured = (
        f"{', '.join(str(n) for n in sorted(fewer))} updates of x fewer; largest of {len(found)} differences in "
        f"accuracy {interval.mean:+.4f} [{interval.low:+.4f}, {interval.high:+.4f}] ({largest}) against a spread "
        f"between seeds of {spread:.4f}; {len(within)} within the spread, {len(outside)} outside; at single epochs up "
        f"to {worst:.4f}"
    )
    numbers = {
        "difference": {n: [i.mean, i.low, i.high] for n, (i, _) in found.items()},
        "spread": {n: spread for n, (_, spread) in found.items()},
        "largest_at_one_epoch": worst,
        "fewer_updates_of_x": sorted(fewer),
    }
    return Verdict(verdict, measured, numbers)


_SLIP = {"key": "slip", "lr_x": TUNED["SLIP"][0], "lr_y": TUNED["SLIP"][1]}

STUDIES = (
    Study(
        name="b6-epochs",
        claim="B6",
        title="Epochs counted in updates of y or of x",
        statement="Counting SLIP's epochs in updates of y, which leaves it three updates of x fewer, makes a "
        "negligible difference on data hyper-cleaning (here: less than the spread between seeds, on digits).",
        source=Source("slip-rebuttal-a", "Fig. 4, 5; A4 to P6Br"),
        scales={
            "quick": Scale({**QUICK, "epochs": 25}, seeds=20),
            "cpu": Scale({**CPU, "epochs": 100}, seeds=20),
        },
        methods={
            f"epochs of {counted}, p = {p:g}": {**_SLIP, "counted": counted, "corruption": p}
            for p in (0.2, 0.4)
            for counted in ("x", "y")
        },
        loop=loop,
        judge=judge,
        figures=tuple(
            Figure(
                f"{name} accuracy of SLIP",
                f"{name.lower()}_accuracy",
                "accuracy",
                x="epoch",
                x_label="epochs, in updates of x or of y",
                facet="corruption",
                caption="Bands: the spread between seeds. The lines of one panel differ by three iterations.",
            )
            for name in ("Test", "Train")
        ),
    ),
)
