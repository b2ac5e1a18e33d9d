"""B3, B4: data hyper-cleaning with all sixteen methods, at corruption 0.2 and 0.4 (SLIP rebuttal, Fig. 2).

*Differs from the paper.* The paper cleans Sentiment140 with a recurrent net; here it is images and a linear softmax:
the lower level is strongly convex as the theory asks, and every method, SVRB's dense Hessian included, can run.
Scale ``quick`` takes scikit-learn's digits (16 principal components), ``cpu`` all their pixels and more calls, ``gpu``
and ``paper`` MNIST. Which labels are corrupted is drawn once a seed; the upper level sees clean samples only. A method
whose budget does not pay for 20 iterations (SVRB: 640 calls each) makes 20 all the same; the record says at what cost.

Steps were chosen by :func:`mindgap.lab.studies.bilevel_runs.grid_search` at p = 0.3, between the two: the same grid
(``GRIDS`` there), the same five tuning seeds and the validation loss for all. ``python -m
mindgap.lab.studies.bilevel_runs
b3-hyper-cleaning quick validation_loss corruption=0.3`` finds them again. SLIP was searched a second time when one
lower sample an iteration became its default, which SOBA, SABA and MA-SOBA have as well; with two samples (lr_x = 10)
it came out at places 8 and 9 of 16 at scale quick, and both claims did not hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mindgap.base.check import RuleError
from mindgap.base.source import Source
from mindgap.lab.studies.bilevel_runs import TITLES, method_of
from mindgap.lab.studies.cleaning_runs import CPU, QUICK, TUNED, rows_of, task_of
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.spec import Figure, Scale, Study
from mindgap.lab.studies.verdict import against_all, by_method, error_interval
from mindgap.record.schema import Row, Run, Verdict

#: ends of the grid, the same for every method
TUNABLE = {"lr_x": (0.1, 1e4), "lr_y": (1.0, 10.0)}


def loop(trial: Trial) -> Iterator[Row]:
    """Run one method to the budget of oracle calls; read accuracy and weights at equal distances of calls."""
    task = task_of(trial)
    method = method_of({**trial.settings, "convexity": 2 * trial["decay"]})
    try:
        method.check_problem(task.problem(trial["batch_size"]))
    except RuleError as error:  # SVRB's dense Hessian of MNIST's 7,840 unknowns: an excuse, with its reason
        yield {"step": 0, "oracle_calls": 0, "refused": str(error)}
        return
    budget, readings = trial["oracle_calls"], trial["readings"]
    yield from rows_of(trial, task, method, budget=budget, readings=readings, least=trial["least_steps"])


def judge(runs: Sequence[Run]) -> Verdict:
    """SLIP ahead: its mean final test accuracy above every other method's, by more than two standard errors.

    *holds* if so against all fifteen; *does not hold* if another method's mean is above SLIP's by more than two
    standard errors of the difference over paired seeds; *inconclusive* in between. A method that refuses the size of
    the problem is left out, and named.
    """
    groups = by_method(runs)
    refused = [name for name, group in groups.items() if any("refused" in run.rows[-1] for run in group)]
    ends = {name: [run.rows[-1] for run in group] for name, group in groups.items() if name not in refused}
    accuracy = {name: np.array([row["test_accuracy"] for row in rows]) for name, rows in ends.items()}
    auc = {name: float(np.mean([row["weight_auc"] for row in rows])) for name, rows in ends.items()}
    slip = accuracy["SLIP"]
    # The same seed is the same data, corruption and start.
    found = against_all(accuracy, "SLIP", error_interval)
    ahead, behind, lead, order = found.ahead, found.behind, found.leads, found.order
    verdict = "holds" if len(ahead) == len(lead) else "does not hold" if behind else "inconclusive"
    best, names = order[0], f" ({', '.join(behind)})" if behind else ""
    measured = (
        f"test accuracy of SLIP {slip.mean():.3f} ± {slip.std(ddof=1) if len(slip) > 1 else 0:.3f} "
        f"(place {order.index('SLIP') + 1} of {len(order)}; best: {best} {accuracy[best].mean():.3f}); clearly "
        f"ahead of {len(ahead)}, clearly behind {len(behind)}{names} of {len(lead)}; "
        f"area under the curve of its weights {auc['SLIP']:.3f}"
        + (f"; refused at this size: {', '.join(refused)}" if refused else "")
    )
    numbers = {
        "accuracy": {name: float(values.mean()) for name, values in accuracy.items()},
        "deviation": {name: float(values.std(ddof=1)) if len(values) > 1 else 0.0 for name, values in accuracy.items()},
        "weight_auc": auc,
        "lead_of_slip": {name: interval.mean for name, interval in lead.items()},
        "standard_error": {name: (interval.high - interval.mean) / 2 for name, interval in lead.items()},
        "refused": refused,
    }
    return Verdict(verdict, measured, numbers)


def _methods() -> dict[str, dict[str, Any]]:
    return {title: {"key": key, "lr_x": TUNED[title][0], "lr_y": TUNED[title][1]} for title, key in TITLES.items()}


def _scales(corruption: float) -> dict[str, Scale]:
    quick, cpu = ({**shared, "corruption": corruption} for shared in (QUICK, CPU))
    gpu = {**cpu, "data": "mnist", "train": 20_000, "validation": 5000, "batch_size": 256, "device": "cuda"}
    paper = {**gpu, "train": 30_000, "validation": 30_000, "batch_size": 512, "oracle_calls": 100_000}
    return {name: Scale(s, seeds=5) for name, s in (("quick", quick), ("cpu", cpu), ("gpu", gpu), ("paper", paper))}


def _study(name: str, claim: str, corruption: float) -> Study:
    return Study(
        name=name,
        claim=claim,
        title=f"Cleaning data with p = {corruption:g} of the labels corrupted: SLIP against fifteen",
        statement=f"Data hyper-cleaning with corruption p = {corruption:g}: SLIP is ahead of the other bilevel methods "
        "in test accuracy (here: images and a linear softmax in place of Sentiment140 and a recurrent net).",
        source=Source("slip-rebuttal-a", "Fig. 2"),
        scales=_scales(corruption),
        methods=_methods(),
        loop=loop,
        judge=judge,
        figures=(
            Figure(
                "Test accuracy",
                "test_accuracy",
                "test accuracy",
                x="x_epoch",
                log_x=True,
                caption="Same data, corruption and start for all methods of a seed; steps from the same grid. "
                "Switch the x-axis: what is cheap in epochs may be dear in oracle calls or seconds.",
            ),
            Figure(
                "How well the weights tell clean from corrupted",
                "weight_auc",
                "area under the curve",
                x="oracle_calls",
                log_x=True,
                caption="1: every clean sample has a larger weight than every corrupted one; 0.5: no information.",
            ),
            Figure("Validation loss", "validation_loss", "f(λ, W)", x="oracle_calls", log_x=True, log_y=True),
            Figure("Training accuracy", "train_accuracy", "accuracy on corrupted labels", x="x_epoch", log_x=True),
        ),
        tunable=TUNABLE,
        tune_on="validation_loss",
    )


STUDIES = (_study("b3-hyper-cleaning", "B3", 0.2), _study("b4-hyper-cleaning", "B4", 0.4))
