"""B9: SLIP has fewer settings to tune than BO-REP, and what tuning costs (SLIP rebuttal, A6 to
g3Q2).

How many settings there are is read from the two classes. What tuning costs is measured: both
methods get a random search of equally many settings over all that there is to choose, each run to
the same budget of oracle calls. With m of K settings within 10 % of the search's own best
validation loss, a search in random order needs on average (K + 1)/(m + 1) settings until the first
of them: that number is the cost of tuning. Beside them BO-REP with R, I and N as published, and
with I = N = 1, which is SLIP up to the order of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mindgap.bilevel.registry import METHODS
from mindgap.lab.studies.bilevel_runs import end_of
from mindgap.lab.studies.cleaning_runs import CPU, QUICK, rows_of, task_of
from mindgap.lab.studies.spec import Figure, Parts, Row, Run, Scale, Source, Study, Trial
from mindgap.lab.studies.tune import listed, random_points, search
from mindgap.lab.studies.verdict import (
    as_ratios,
    by_method,
    by_seed,
    mean_interval,
    means,
    ratio_words,
    triples,
)
from mindgap.record.forms import TunedTrial

#: ends of the search; 1 - beta takes the place of beta, so that it can be drawn on a log scale
SPACE: dict[str, tuple[float, float]] = {
    "lr_x": (1.0, 100.0),
    "lr_y": (0.1, 10.0),
    "lr_z": (0.1, 10.0),
    "beta": (0.01, 1.0),
    "warm_start": (0, 10),
    "period": (1, 5),
    "inner": (1, 10),
    "radius": (0.1, 10.0),
    "refine": (0, 3),
}

#: What BO-REP has and SLIP has not: R, I, N.
FALLEN = ("radius", "period", "inner")


def numbers_of(key: str) -> list[str]:
    """Names of the numbers that a method's class takes (steps, counts, weights): its fields whose
    annotation holds ``Rate``, ``float`` or ``int``. ``key`` is the method's in ``METHODS``.

    Example:
        >>> numbers_of("slip")
        ['lr_x', 'lr_y', 'lr_z', 'beta', 'warm_start', 'lr_warm']
    """
    from dataclasses import fields

    return [
        field.name
        for field in fields(METHODS[key].load())
        if {"Rate", "float", "int"} & set(str(field.type).split(" | "))
    ]


def loop(trial: Trial) -> Iterator[Row]:
    """A random search: try ``tried`` settings of one method one after the other, each in a run to
    the budget of oracle calls.

    A row per setting holds its number (``step``), its ``validation_loss``, the ``best_loss`` so
    far, how many numbers are ``searched``, the names of all ``numbers`` that the class takes, and
    the setting itself.
    """
    task, numbers = task_of(trial), numbers_of(trial["key"])
    best_loss = trial.restored.get("best", math.inf)
    drawn = random_points(trial, {name: SPACE[name] for name in trial["searched"]}, trial["tried"])
    points = [{**point, "beta": 1 - point["beta"]} for point in drawn]  # the search draws 1 - beta

    def evaluate(settings: dict[str, Any]) -> float:
        """The validation loss at the end of a run with these settings, and with 1 for those that
        the trial's ``ones`` names.
        """
        ones = dict.fromkeys(trial.settings.get("ones", ()), 1)
        method = METHODS[trial["key"]](**settings, **ones)
        return float(end_of(trial, rows_of, task, method, trial.seed)["validation_loss"])

    # What was tried before an interruption; its losses are not needed again.
    earlier = [TunedTrial(point, math.inf) for point in points[: trial.restored.get("cell", 0)]]
    for number, point in enumerate(search(listed(points), evaluate, earlier), len(earlier) + 1):
        best_loss = min(best_loss, point.value)
        trial.save({"cell": number, "best": best_loss})
        yield {
            "step": number,
            "validation_loss": point.value,
            "best_loss": best_loss,
            "searched": len(point.settings),
            "numbers": ", ".join(numbers),
            **point.settings,
        }


def needed(losses: Sequence[float], highest: float) -> float:
    """How many settings a search in random order tries on average until the first good one.

    That is (K + 1)/(m + 1) for K settings of which m are good: their loss is at most ``highest``.

    Example:
        >>> needed([1.0, 1.05, 2.0, 3.0, 4.0], 1.1)
        2.0
    """
    return (len(losses) + 1) / (sum(loss <= highest for loss in losses) + 1)


def judge(runs: Sequence[Run]) -> Parts:
    """Compare SLIP and BO-REP in the numbers that their classes take and in the cost of tuning.

    The cost is the mean number of settings tried until one ends within the setting ``margin`` of
    the search's own lowest ``validation_loss`` (:func:`needed`), one value per seed.

    Returns:
        Two parts: SLIP's class takes fewer numbers, without R, I and N; the log of BO-REP's cost
        over SLIP's lies above 0 (no where below), by a 95 % interval over the seeds.
    """
    parts, runs_of = Parts(), by_seed(runs)
    tolerance = 1 + float(runs[0].header.settings["margin"])
    first_rows = {method: own_runs[0].rows[0] for method, own_runs in by_method(runs).items()}
    names = {
        method: set(first_rows[method]["numbers"].split(", ")) for method in ("SLIP", "BO-REP")
    }
    # Method -> one list of losses per seed, in the order tried.
    losses = {
        method: [run.column("validation_loss") for run in own_runs]
        for method, own_runs in runs_of.items()
    }
    lowest = {
        method: np.array([min(of_seed) for of_seed in of_method])
        for method, of_method in losses.items()
    }

    def cost_of(method: str, targets: np.ndarray) -> np.ndarray:
        """Settings that a method needs on average to come within the margin (``tolerance`` is 1 and
        the margin) of a loss, one number per seed; ``targets`` are those losses.
        """
        searches = zip(losses[method], targets, strict=True)
        return np.array([needed(of_seed, tolerance * target) for of_seed, target in searches])

    cost = {method: cost_of(method, lowest[method]) for method in losses}
    lowest_of_both = np.minimum(lowest["SLIP"], lowest["BO-REP"])
    log = mean_interval(np.log(cost["BO-REP"] / cost["SLIP"]))
    costs = {method: mean_interval(values) for method, values in cost.items()}
    parts.add(
        "SLIP takes fewer numbers, without R, I and N",
        holds=len(names["SLIP"]) < len(names["BO-REP"])
        and set(FALLEN) <= names["BO-REP"] - names["SLIP"],
        words=f"SLIP {len(names['SLIP'])}, BO-REP {len(names['BO-REP'])}",
        numbers={
            "numbers_in_class": {method: sorted(known) for method, known in names.items()},
            "searched": {method: row["searched"] for method, row in first_rows.items()},
        },
    )
    parts.add(
        "SLIP is cheaper to tune",
        holds=log.low > 0,
        refuted=log.high < 0,
        words=f"BO-REP's cost over SLIP's: {ratio_words(log)}; "
        + "; ".join(
            f"{method} {interval.words(digits='.2f')}, best loss {lowest[method].mean():.3f}"
            for method, interval in costs.items()
        ),
        numbers={
            "settings_needed": triples(costs),
            "settings_needed_for_best_of_both": means(
                {method: cost_of(method, lowest_of_both) for method in losses}
            ),
            "best_loss": means(lowest),
            "ratio": list(as_ratios(log).values()),
        },
    )
    return parts


_SLIP, _BO_REP = (list(METHODS[key].choices) for key in ("slip", "borep"))
_SEARCH = {"corruption": 0.4, "margin": 0.1}

STUDY = Study(
    name="b9-tuning-cost",
    claim="B9",
    title="What there is to tune in SLIP and in BO-REP, and what tuning costs",
    statement="SLIP has no counterpart of BO-REP's R, I and N and is therefore cheaper to tune "
    "(here: the number of settings that a random search tries until it is within 10 % of its own "
    "best validation loss, on hyper-cleaning of digits with p = 0.4).",
    source=Source("slip-rebuttal-a", "A6 to g3Q2"),
    scales={
        "quick": Scale({**QUICK, **_SEARCH, "oracle_calls": 150, "tried": 10}, seeds=3),
        "cpu": Scale({**CPU, **_SEARCH, "oracle_calls": 1000, "tried": 48}, seeds=10),
    },
    methods={
        "SLIP": {"key": "slip", "searched": _SLIP},
        "BO-REP": {"key": "borep", "searched": _BO_REP},
        "BO-REP, R, I, N as published": {
            "key": "borep",
            "searched": [name for name in _BO_REP if name not in FALLEN],
        },
        "BO-REP, I = N = 1": {
            "key": "borep",
            "searched": [name for name in _BO_REP if name not in FALLEN],
            "ones": ["period", "inner"],
        },
    },
    loop=loop,
    judge=judge,
    rule="SLIP's class takes fewer numbers than BO-REP's, R, I and N are among those that it "
    "lacks, and the geometric mean over paired repetitions of BO-REP's cost divided by SLIP's is "
    "above 1 (95 % interval). Refuted where SLIP does not take fewer, does not lack one of the "
    "three, or the interval lies below 1.",
    models=dict.fromkeys(("quick", "cpu"), "linear softmax on digits"),
    paper_model="",
    figures=(
        Figure(
            "Best validation loss so far",
            "best_loss",
            "validation loss",
            x="step",
            x_label="settings tried",
            log_y=True,
            caption="A random search. Settings that both methods have are tried at the same "
            "values.",
        ),
        Figure(
            "Validation loss of every setting",
            "validation_loss",
            "validation loss",
            x="lr_x",
            x_label="step on x",
            kind="points",
            log_x=True,
            log_y=True,
        ),
    ),
)
