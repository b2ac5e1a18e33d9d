"""What the bilevel studies share: the sixteen methods set up alike, a run cut at equal oracle calls, a grid search.

No method is treated better than another: ``lr_x`` and ``lr_y`` come from one grid, the step of a linear system or of a
Neumann series is ``lr_y``, and loop lengths are the same for all methods that have the loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from mindgap.bilevel.registry import METHODS, SIXTEEN
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.spec import Study
from mindgap.record.schema import Row

if TYPE_CHECKING:
    from torch import Tensor

    from mindgap.bilevel.method import State

#: title in the paper -> key of ``SIXTEEN``
TITLES = {row.name: key for key, row in SIXTEEN.items()}


def method_of(settings: Mapping[str, Any]) -> Any:
    """The bilevel method of a trial's settings: ``key``, ``lr_x``, ``lr_y``, ``inner``, ``terms``, ``convexity``.

    A setting ``lr_z``, where there is one, is the step of the linear system; else that is ``lr_y``.
    What a method does not have is not passed on; everything else stays at the method's own default.

    Example:
        >>> method_of({"key": "soba", "lr_x": 0.1, "lr_y": 0.2, "inner": 3, "terms": 5, "convexity": 0.1}).lr_y
        0.2
    """
    from dataclasses import fields

    kind = METHODS[settings["key"]].load()
    known = {field.name for field in fields(kind)}
    wanted = {
        "lr_x": settings["lr_x"],
        "lr_y": settings["lr_y"],
        "lr_z": settings.get("lr_z", settings["lr_y"]),
        "eta": settings["lr_y"],
        "terms": settings["terms"],
        "solves": settings["inner"],
        "mu": settings["convexity"],
    }
    # F2SA's and BO-REP's short inner loops are part of the method as published; the others' are free.
    if settings["key"] not in ("f2sa", "borep"):
        wanted["inner"] = settings["inner"]
    return kind(**{name: value for name, value in wanted.items() if name in known})


def states(
    trial: Trial,
    problem: Any,
    method: Any,
    *,
    budget: int,
    readings: int,
    least: int,
    spent: Callable[[State], int] | None = None,
) -> Iterator[State]:
    """Run a method to a budget of oracle calls and hand out its state at equal distances of calls, ends included.

    Args:
        trial: its stopwatch runs while the method does.
        problem, method: what runs on what.
        budget: oracle calls.
        readings: how many states to hand out after the first.
        least: iterations every method makes at least, should the budget not pay for them.
        spent: what the budget counts, where it is not oracle calls.

    The run ends early when x or y is no longer finite. With every state a checkpoint is offered, and a trial that was
    restored goes on after the state of its last one.
    """
    import torch

    from mindgap.bilevel import pack_state, unpack_state

    spent = spent or (lambda state: state.total_calls)
    marks = [budget * (i + 1) // readings for i in range(readings)]
    if trial.restored:
        state = unpack_state(trial.restored["state"], method, method.oracle(problem, trial.seed))
        marks = marks[len(marks) - trial.restored["marks"] :]
    else:
        with trial.timed():
            state = method.start(problem, seed=trial.seed)
        trial.save(lambda: {"state": pack_state(state), "marks": len(marks)})
        yield state
    while marks:
        with trial.timed():
            state = method.step(state)
        finite = bool(torch.isfinite(state.x).all() and torch.isfinite(state.y).all())
        if not finite or (spent(state) >= marks[0] and (state.t >= least or len(marks) > 1)):
            while marks and (not finite or spent(state) >= marks[0]) and (len(marks) > 1 or state.t >= least):
                marks.pop(0)
            trial.save(lambda: {"state": pack_state(state), "marks": len(marks) if finite else 0})  # noqa: B023
            yield state
            if not finite:
                return


def counters(state: State) -> Row:
    """The columns every bilevel study has: the four x-axes less seconds, which the runner adds."""
    return {
        "step": state.t,
        "x_epoch": round(state.x_epochs, 6),
        "y_epoch": round(state.y_epochs, 6),
        "oracle_calls": state.total_calls,
    }


def measured(
    trial: Trial,
    problem: Any,
    method: Any,
    measure: Callable[[Tensor, Tensor], Row],
    lost: Row,
    **how: Any,
) -> Iterator[Row]:
    """Run a method and read counters and measures at equal distances of calls.

    Args:
        trial, problem, method: what runs on what.
        measure: the columns of a study at flat x and y.
        lost: the same columns where x or y is no longer finite.
        how: the other arguments of :func:`states`, which carries the run out.
    """
    import torch

    for state in states(trial, problem, method, **how):
        finite = bool(torch.isfinite(state.x).all() and torch.isfinite(state.y).all())
        found = measure(state.x, state.y) if finite else lost
        yield {**counters(state), **found, "diverged": not finite}


def end_of(trial: Trial, rows_of: Callable[..., Iterator[Row]], task: Any, method: Any, seed: int) -> Row:
    """The last row of a run to the trial's budget, on a task and with a seed of its own.

    ``rows_of`` reads runs on tasks of that kind.

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


def grid_search(
    study: Study,
    scale: str,
    method: str,
    grid: Mapping[str, Sequence[float]],
    score: str,
    *,
    seeds: Sequence[int],
    overrides: Mapping[str, Any] | None = None,
) -> list[tuple[dict[str, float], float]]:
    """Try every point of a grid for one method and rank them by the mean last value of a column (smaller is better).

    Every method gets the same grid and the same seeds, which should not be those the study reports.

    Returns:
        (settings, score) of every point, best first; a run that ended early scores infinity.
    """
    import math

    tried = []
    for values in product(*grid.values()):
        chosen = dict(zip(grid, values))
        settings = {**study.settings(scale, method, overrides), **chosen}
        scores = []
        for seed in seeds:
            last = list(study.loop(Trial(method, seed, settings)))[-1]
            value = float(last[score])
            scores.append(math.inf if last.get("diverged") or math.isnan(value) else value)
        tried.append((chosen, sum(scores) / len(scores)))
    return sorted(tried, key=lambda item: item[1])


#: study -> setting -> values tried, the same for every method
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "b0-unbounded-smoothness": {
        "lr_x": (
            1e-7,
            3.16e-7,
            1e-6,
            3.16e-6,
            1e-5,
            3.16e-5,
            1e-4,
            3.16e-4,
            1e-3,
            3.16e-3,
            1e-2,
            3.16e-2,
            0.1,
            0.316,
            1.0,
        ),
        "lr_y": (0.1, 0.3),
    },
    "b3-hyper-cleaning": {"lr_x": (0.1, 1.0, 10.0, 100.0, 1000.0, 10_000.0), "lr_y": (1.0, 3.0, 10.0)},
    "b4-hyper-cleaning": {"lr_x": (0.1, 1.0, 10.0, 100.0, 1000.0, 10_000.0), "lr_y": (1.0, 3.0, 10.0)},
    "b1-hyper-representation": {"lr_x": (0.02, 0.1, 0.5, 2.0, 10.0, 50.0), "lr_y": (0.2, 0.6, 2.0)},
    "b2-hyper-representation": {"lr_x": (0.02, 0.1, 0.5, 2.0, 10.0, 50.0), "lr_y": (0.2, 0.6, 2.0)},
}

#: Seeds of the grid search, apart from those the studies report; hyper-cleaning's losses differ more between seeds.
TUNING_SEEDS: dict[str, tuple[int, ...]] = {
    "b0-unbounded-smoothness": (1000, 1001),
    "b3-hyper-cleaning": (1000, 1001, 1002, 1003, 1004),
    "b4-hyper-cleaning": (1000, 1001, 1002, 1003, 1004),
    "b1-hyper-representation": (1000, 1001),
    "b2-hyper-representation": (1000, 1001),
}


def main(arguments: Sequence[str]) -> None:
    """``python -m mindgap.lab.studies.bilevel_runs STUDY SCALE COLUMN [key=value ...]``: one line of JSON a method."""
    import json

    from mindgap.lab.studies.catalogue import find

    name, scale, column, *pairs = arguments
    study, overrides = find(name), dict(pair.split("=", 1) for pair in pairs)
    grid, seeds = GRIDS[name], TUNING_SEEDS[name]
    for method in study.methods:
        tried = grid_search(study, scale, method, grid, column, seeds=seeds, overrides=overrides)
        best, score = tried[0]
        print(json.dumps({"method": method, **best, column: score, "trials": len(tried)}), flush=True)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
