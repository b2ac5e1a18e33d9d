"""What the studies on data hyper-cleaning share: the task of a seed, its sizes, tuned steps, and the rows of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from mindgap.base.check import one_of
from mindgap.record.schema import Row
from mindgap.studies.bilevel_runs import counters, states
from mindgap.studies.loop import Trial

if TYPE_CHECKING:
    from mindgap.bilevel.method import State

SOURCES = ("digits", "mnist-5000", "mnist")


def task_of(trial: Trial) -> Any:
    """The hyper-cleaning task of a trial: data, splits and corruption depend on the seed, not on the method."""
    import torch

    from mindgap.tasks.data import digits, mnist, mnist_5000
    from mindgap.tasks.problems import hyper_cleaning

    source = one_of("data", trial["data"], SOURCES)
    table = {"digits": digits, "mnist-5000": mnist_5000, "mnist": mnist}[source]()
    return hyper_cleaning(
        table,
        mnist("test") if source == "mnist" else None,
        corruption=trial["corruption"],
        train=trial["train"],
        validation=trial["validation"],
        components=trial["components"] or None,
        decay=trial["decay"],
        seed=trial.seed,
        dtype=torch.float64 if trial["device"] == "cpu" else torch.float32,
        device=trial["device"],
    )


def rows_of(
    trial: Trial,
    task: Any,
    method: Any,
    *,
    budget: int,
    readings: int,
    least: int = 1,
    spent: Callable[[State], int] | None = None,
) -> Iterator[Row]:
    """Run a method on a task and read counters, accuracies, weights and validation loss at equal distances.

    The arguments are those of :func:`mindgap.studies.bilevel_runs.states`, which carries the run out.
    """
    import torch

    problem = task.problem(trial["batch_size"])
    for state in states(trial, problem, method, budget=budget, readings=readings, least=least, spent=spent):
        finite = bool(torch.isfinite(state.x).all() and torch.isfinite(state.y).all())
        yield {
            **counters(state),
            "test_accuracy": task.accuracy(state.y) if finite else 0.0,
            "train_accuracy": task.accuracy(state.y, "train") if finite else 0.0,
            "weight_auc": task.weight_auc(state.x) if finite else 0.5,
            "validation_loss": task.validation_loss(state.y) if finite else float("inf"),
            "diverged": not finite,
        }


def end_of(trial: Trial, task: Any, method: Any, seed: int) -> Row:
    """The last row of a run to the trial's budget, on a task and with a seed of its own.

    For searches inside a trial: nothing of the run is recorded and its checkpoints are not the trial's; its time is.
    """
    inner = Trial(trial.method, seed, trial.settings)
    rows = deque(rows_of(inner, task, method, budget=trial["oracle_calls"], readings=1), maxlen=1)
    trial.seconds += inner.seconds
    trial.cpu_seconds += inner.cpu_seconds
    return rows[0]


def random_settings(trial: Trial, space: Mapping[str, tuple[float, float]], number: int) -> list[dict[str, Any]]:
    """Settings of a random search: log-uniform between two ends, or uniform among whole numbers where both ends are.

    Each setting has a stream of its own name, so that methods which share a setting try the same values of it.

    Example:
        >>> one = random_settings(Trial("a", 0, {}), {"lr": (0.1, 10.0)}, 2)
        >>> two = random_settings(Trial("b", 0, {}), {"period": (1, 5), "lr": (0.1, 10.0)}, 2)
        >>> [s["lr"] for s in one] == [s["lr"] for s in two], all(1 <= s["period"] <= 5 for s in two)
        (True, True)
    """
    columns = {}
    for name, (low, high) in space.items():
        stream = trial.numpy(f"search {name}")
        if isinstance(low, int) and isinstance(high, int):
            columns[name] = stream.integers(low, high + 1, size=number).tolist()
        else:
            columns[name] = (low * (high / low) ** stream.random(number)).tolist()
    return [{name: values[i] for name, values in columns.items()} for i in range(number)]


#: seconds on digits, and minutes on all their pixels; a study adds the corruption
QUICK: dict[str, Any] = {
    "data": "digits",
    "train": 300,
    "validation": 300,
    "components": 16,
    "decay": 1e-2,
    "batch_size": 32,
    "oracle_calls": 600,
    "least_steps": 20,
    "readings": 10,
    "inner": 3,
    "terms": 5,
    "device": "cpu",
}
CPU: dict[str, Any] = {
    **QUICK,
    "train": 700,
    "validation": 700,
    "components": 0,
    "oracle_calls": 20_000,
    "readings": 40,
}

#: (lr_x, lr_y) by method, from the grid search of ``b3-hyper-cleaning`` at scale quick and p = 0.3
TUNED: dict[str, tuple[float, float]] = {
    "BSA": (100.0, 10.0),
    "StocBio": (1000.0, 1.0),
    "AmIGO": (1000.0, 1.0),
    "ALSET": (1000.0, 1.0),
    "TTSA": (1000.0, 3.0),
    "F²SA": (10.0, 10.0),
    "SOBA": (1000.0, 10.0),
    "SABA": (1000.0, 1.0),
    "MA-SOBA": (100.0, 1.0),
    "BO-REP": (10.0, 1.0),
    "SLIP": (1.0, 1.0),
    "VRBO": (1000.0, 1.0),
    "MRBO": (1000.0, 3.0),
    "SUSTAIN": (100.0, 3.0),
    "SVRB": (1000.0, 10.0),
    "SRBA": (100.0, 1.0),
}
