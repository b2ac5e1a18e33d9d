"""What the studies on data hyper-cleaning share: the task of a seed, its sizes, tuned steps, and the rows of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mindgap.base.check import one_of
from mindgap.lab.studies.bilevel_runs import measured, method_of
from mindgap.lab.studies.spec import Row, Trial

if TYPE_CHECKING:
    from torch import Tensor


SOURCES = ("digits", "mnist-5000", "mnist")


def task_of(trial: Trial) -> Any:
    """The hyper-cleaning task of a trial: data, splits and corruption depend on the seed, not on the method."""
    import torch

    from mindgap.lab.tasks.data import digits, mnist, mnist_5000
    from mindgap.lab.tasks.problems import hyper_cleaning

    source = one_of("data", trial["data"], SOURCES)
    table = {"digits": digits, "mnist-5000": mnist_5000, "mnist": mnist}[source]()
    return hyper_cleaning(table, mnist("test") if source == "mnist" else None, corruption=trial["corruption"],
                          train=trial["train"], validation=trial["validation"], components=trial["components"] or None,
                          decay=trial["decay"], seed=trial.seed,
                          dtype=torch.float64 if trial["device"] == "cpu" else torch.float32, device=trial["device"])


def rows_of(trial: Trial, task: Any, method: Any, **how: Any) -> Iterator[Row]:
    """Run a method on a task and read counters, accuracies, weights and validation loss at equal distances.

    ``how`` are further arguments of :func:`mindgap.lab.studies.bilevel_runs.states`, which carries the run out.
    """

    def measure(x: Tensor, y: Tensor) -> Row:
        return {"test_accuracy": task.accuracy(y), "train_accuracy": task.accuracy(y, "train"),
                "weight_auc": task.weight_auc(x), "validation_loss": task.validation_loss(y)}

    lost = {"test_accuracy": 0.0, "train_accuracy": 0.0, "weight_auc": 0.5, "validation_loss": float("inf")}
    problem = task.problem(trial["batch_size"])
    yield from measured(trial, problem, method, measure, lost, **how)


def cleaning_method(trial: Trial, **chosen: Any) -> Any:
    """The method of a trial, with settings chosen by a search laid over its own."""
    return method_of({**trial.settings, **chosen, "convexity": 2 * trial["decay"]})


#: seconds on digits, and minutes on all their pixels; a study adds the corruption
QUICK: dict[str, Any] = {"data": "digits", "train": 300, "validation": 300, "components": 16, "decay": 1e-2,
                         "batch_size": 32, "oracle_calls": 400, "least_steps": 10, "readings": 8, "inner": 3,
                         "terms": 5, "device": "cpu"}
CPU: dict[str, Any] = {**QUICK, "train": 700, "validation": 700, "components": 0, "oracle_calls": 20_000,
                       "least_steps": 20, "readings": 40}

#: (lr_x, lr_y) by method, from the grid search of ``b3-hyper-cleaning`` at scale quick and p = 0.3, which had
#: 600 oracle calls then
TUNED: dict[str, tuple[float, float]] = {"BSA": (100.0, 10.0), "StocBio": (1000.0, 1.0), "AmIGO": (1000.0, 1.0),
                                         "ALSET": (1000.0, 1.0), "TTSA": (1000.0, 3.0), "F²SA": (10.0, 10.0),
                                         "SOBA": (1000.0, 10.0), "SABA": (1000.0, 1.0), "MA-SOBA": (100.0, 1.0),
                                         "BO-REP": (10.0, 1.0), "SLIP": (1.0, 1.0), "VRBO": (1000.0, 1.0),
                                         "MRBO": (1000.0, 3.0), "SUSTAIN": (100.0, 3.0), "SVRB": (1000.0, 10.0),
                                         "SRBA": (100.0, 1.0)}
