"""What the bilevel studies share: the sixteen methods set up alike, a run cut at equal oracle calls, a grid search.

No method is treated better than another: ``lr_x`` and ``lr_y`` come from one grid, the step of a linear system or of a
Neumann series is ``lr_y``, and loop lengths are the same for all methods that have the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from mindgap.bilevel.table import METHODS
from mindgap.record.schema import Row
from mindgap.studies.loop import Trial
from mindgap.studies.spec import Study

if TYPE_CHECKING:
    from mindgap.bilevel.method import State

#: title in the paper -> key of ``METHODS``, all sixteen
TITLES = {row.name: key for key, row in METHODS.items()}


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
            state = method.init(problem, seed=trial.seed)
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
}

#: Seeds of the grid search, apart from those the studies report; hyper-cleaning's losses differ more between seeds.
TUNING_SEEDS: dict[str, tuple[int, ...]] = {
    "b0-unbounded-smoothness": (1000, 1001),
    "b3-hyper-cleaning": (1000, 1001, 1002, 1003, 1004),
    "b4-hyper-cleaning": (1000, 1001, 1002, 1003, 1004),
}


def main(arguments: Sequence[str]) -> None:
    """``python -m mindgap.studies.bilevel_runs STUDY SCALE COLUMN [key=value ...]``: one line of JSON a method."""
    import json

    from mindgap.studies.catalogue import find

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
