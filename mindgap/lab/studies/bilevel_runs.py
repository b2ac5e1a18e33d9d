"""What the bilevel studies share: all methods set up alike, and a run cut at equal oracle calls.

No method is treated better than another: ``lr_x`` and ``lr_y`` come from one grid, the step of a
linear system or of a Neumann series is ``lr_y``, and loop lengths are the same for all methods that
have the loop.
"""

from __future__ import annotations

from base64 import b85encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from zlib import compress

import numpy as np

from mindgap.base.check import fail, one_of
from mindgap.bilevel.registry import METHODS, SIXTEEN
from mindgap.lab.studies.spec import Parts, Row, Run, Trial
from mindgap.lab.studies.verdict import by_setting

if TYPE_CHECKING:
    from torch import Tensor

    from mindgap.bilevel.core.types import Backend, State

#: title in the paper -> key of ``SIXTEEN``
TITLES = {row.name: key for key, row in SIXTEEN.items()}


def tuned_methods(
    steps: Mapping[str, tuple[float, float]], **shared: Any
) -> dict[str, dict[str, Any]]:
    """Title of a method -> its settings, for every method that has tuned steps.

    Args:
        steps: title -> (lr_x, lr_y); titles that are not in the paper's table are left out.
        shared: further settings of all methods.

    Example:
        >>> tuned_methods({"SLIP": (1.0, 0.1), "not in the table": (1.0, 1.0)})
        {'SLIP': {'key': 'slip', 'lr_x': 1.0, 'lr_y': 0.1}}
    """
    return {
        title: {"key": key, "lr_x": steps[title][0], "lr_y": steps[title][1], **shared}
        for title, key in TITLES.items()
        if title in steps
    }


def method_of(settings: Mapping[str, Any]) -> Any:
    """The bilevel method that a trial's settings describe.

    A method is given only those of the settings that it has as a field, under the meaning that the
    sixteen methods of the paper's table give to the name. All its other fields stay at the method's
    own defaults.

    Args:
        settings: setting -> value.

            * ``key``: of the method, in the registry.
            * ``lr_x``, ``lr_y``: steps of the upper and of the lower level.
            * ``lr_z``: step of the linear system or of a Neumann series; without it ``lr_y``. F²SA
              has neither, and its penalty λ₀ is 1 / ``lr_z``.
            * ``eta``: step of the Neumann series alone; without it as ``lr_z``.
            * ``lam``: F²SA's penalty; without it 1 / ``lr_z``. Read where there is ``lr_z``.
            * ``inner``: lower steps per iteration, and steps of the linear system.
            * ``terms``: of a Neumann series.
            * ``convexity``: the lower level's constant μ of strong convexity.
            * ``samples``, ``refresh``: passed on where they are there.

    Example:
        >>> method_of(
        ...     {"key": "soba", "lr_x": 0.1, "lr_y": 0.2, "inner": 3, "terms": 5, "convexity": 0.1}
        ... ).lr_y
        0.2
    """
    method_class = METHODS[settings["key"]].load()
    fields_of_class = {field.name for field in fields(method_class)}
    lr_z = settings.get("lr_z", settings["lr_y"])
    arguments = {
        "lr_x": settings["lr_x"],
        "lr_y": settings["lr_y"],
        "lr_z": lr_z,
        "eta": settings.get("eta", lr_z),
        "terms": settings["terms"],
        "solves": settings["inner"],
        "mu": settings["convexity"],
    }
    if "lr_z" in settings:
        arguments["lam"] = settings.get("lam", 1 / lr_z)
    arguments |= {name: settings[name] for name in ("samples", "refresh") if name in settings}
    # F2SA's and BO-REP's short inner loops are part of the method as published; the others' are
    # free.
    if settings["key"] not in ("f2sa", "borep"):
        arguments["inner"] = settings["inner"]
    return method_class(
        **{name: value for name, value in arguments.items() if name in fields_of_class}
    )


def states(
    trial: Trial,
    problem: Any,
    method: Any,
    *,
    budget: int,
    readings: int,
    least: int = 1,
    spent: Callable[[State], int] = attrgetter("total_calls"),
    runner: Backend | None = None,
) -> Iterator[State]:
    """Run a method to a budget of oracle calls, and hand out its states on the way.

    The first state is that of the start. ``readings`` further ones follow at equal distances of
    calls, the last at the whole budget.

    Args:
        trial: its stopwatch runs while the method does.
        problem, method: what runs on what.
        budget: oracle calls.
        readings: how many states to hand out after the first.
        least: fewest iterations per method, even where they cost more than the budget.
        spent: state -> what the budget counts; by default its oracle calls.
        runner: runs all iterations between two states at once; without one they are stepped
            eagerly.

    The run ends early when x or y is no longer finite: at that iteration, or with a runner at the
    next state. With every state a checkpoint is offered, and a trial that was restored goes on
    after the state of its last one.
    """
    from mindgap.bilevel import pack_state, unpack_state

    # What must be spent before each further state is handed out; those reached are removed.
    targets = [budget * (i + 1) // readings for i in range(readings)]

    def reached(state: State) -> bool:
        """Whether the next of the ``targets`` (what must be spent before a state is handed out) is
        reached; the last one also asks for ``least`` iterations.
        """
        return spent(state) >= targets[0] and (state.t >= least or len(targets) > 1)

    if trial.restored:
        state = unpack_state(trial.restored["state"], method, method.oracle(problem, trial.seed))
        targets = targets[readings - trial.restored["marks"] :]  # ``marks``: how many were left
    else:
        with trial.timed():
            state = method.start(problem, seed=trial.seed)
        trial.save(lambda: {"state": pack_state(state), "marks": len(targets)})
        yield state
    while targets:
        if runner is None:
            with trial.timed():
                state = method.step(state)
        else:
            state = _run_to(trial, runner, state, reached)
        finite, targets_before = is_finite(state), len(targets)
        while finite and targets and reached(state):
            targets.pop(0)
        if not finite or len(targets) < targets_before:
            # A restored trial has nothing left to do after a state that is not finite.
            trial.save(lambda: {"state": pack_state(state), "marks": len(targets) if finite else 0})  # noqa: B023
            yield state
        if not finite:
            return


def is_finite(state: State) -> bool:
    """Whether all entries of x and y are finite."""
    return bool(state.x.isfinite().all() and state.y.isfinite().all())


def _run_to(trial: Trial, runner: Backend, state: State, reached: Callable[[State], bool]) -> State:
    """Run until a state for which ``reached`` is true, and return that state.

    The trial's stopwatch runs meanwhile. The time that CUDA graphs take to be captured is taken off
    its seconds again.
    """
    import torch

    from mindgap.bilevel.backends.count import steps_until

    # ``capturing``: seconds that CUDA graphs took to be captured; other runners do not have it.
    captured_before = getattr(runner, "capturing", 0.0)
    with trial.timed():
        state = runner.run(state, steps_until(state, reached), calls=None, seconds=None)
        if state.problem.device.type == "cuda":
            torch.cuda.synchronize()
    trial.seconds -= getattr(runner, "capturing", 0.0) - captured_before
    return state


def runner_of(backend: str, losses: Callable[[], tuple[Any, Any]] | None = None) -> Backend:
    """The backend that runs the iterations of a method.

    Args:
        backend: ``"eager"``, ``"graphs"`` (CUDA graphs) or ``"compiled"`` (JAX).
        losses: returns the upper and the lower loss in JAX; needed by ``"compiled"`` alone.
    """
    from mindgap.bilevel.solver import Eager

    if one_of("backend", backend, ("eager", "graphs", "compiled")) == "eager":
        return Eager()
    if backend == "graphs":
        from mindgap.bilevel.backends.graphs import CudaGraphs

        return CudaGraphs()
    if losses is None:
        fail("losses", "must be given with the compiled backend", losses)
    from mindgap.bilevel.backends.compiled import JaxBackend

    return JaxBackend(*losses(), chunk=1024)  # iterations per dispatch


def in_units(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of settings whose steps are multiplied by their units.

    The setting ``units`` are three numbers, for ``lr_x``, ``lr_y`` and ``lr_z``. Without it the
    steps stay as they are.
    """
    scaled = dict(settings)
    for name, unit in zip(("lr_x", "lr_y", "lr_z"), settings.get("units", ())):
        scaled[name] *= unit
    return scaled


def counters(state: State) -> Row:
    """The columns of every bilevel study for its x-axes: steps, epochs of both levels' data, oracle
    calls. The runner adds the seconds.
    """
    return {
        "step": state.t,
        "x_epoch": round(state.x_epochs, 6),
        "y_epoch": round(state.y_epochs, 6),
        "oracle_calls": state.total_calls,
    }


def lower_of(state: State) -> Any:
    """The method's own solution of the lower level: the value that the registry names.

    F²SA's y minimises f + λ g, so that it learns from the upper level's data; its w minimises g.
    """
    return state.values[lower_name(state.method)]


def lower_name(method: Any) -> str:
    """The name of the value that holds a method's solution of the lower level."""
    name_of_class = {row.class_name: row.lower_variable for row in METHODS.values()}
    return name_of_class.get(type(method).__name__, "y")  # "y" for a method of no row


def read_at_its_solution(run: Run) -> bool:
    """Whether a record's accuracies were measured at the method's own lower-level solution.

    For most methods that is y. Records of the others say so in the column ``read_at``; without it
    they were measured at y.
    """
    key = run.header.settings.get("key", "")
    solution = METHODS[key].lower_variable if key in METHODS else "y"
    return solution == "y" or run.rows[-1].get("read_at") == solution


def measured_rows(
    trial: Trial,
    problem: Any,
    method: Any,
    measure: Callable[[Tensor, Tensor], Row],
    diverged_row: Row,
    at_end: Callable[[Tensor], Row] | None = None,
    **how: Any,
) -> Iterator[Row]:
    """Run a method and yield a row of counters and measures at equal distances of calls.

    Args:
        trial, problem, method: what runs on what.
        measure: (flat x, the method's own lower solution) -> the columns of a study.
        diverged_row: the same columns, for a state in which x or y is no longer finite.
        at_end: flat x -> further columns of the last reading; None: there are none.
        how: the other arguments of :func:`states`, which carries the run out.

    Yields:
        Per state the :func:`counters`, the columns measured, whether the run ``diverged`` and,
        where the lower solution is not y, its name as ``read_at``.
    """
    budget, least = how["budget"], how.get("least", 1)
    spent = how.get("spent", attrgetter("total_calls"))
    for state in states(trial, problem, method, **how):
        finite = is_finite(state)
        row = measure(state.x, lower_of(state)) if finite else diverged_row
        if lower_of(state) is not state.y:
            row = {**row, "read_at": lower_name(state.method)}
        # The last target of ``states``: no state follows.
        if at_end is not None and finite and spent(state) >= budget and state.t >= least:
            row = {**row, **at_end(state.x)}
        yield {**counters(state), **row, "diverged": not finite}


def by_case(runs: Sequence[Run], *names: str) -> dict[tuple[Any, ...], dict[int, Run]]:
    """(case in words, values of further settings) -> seed -> run.

    Args:
        runs: of a study on hyper-cleaning, whose cases are shares of wrong labels ("p = 0.2"), or
            on hyper-representation, whose cases are data.
        names: of the further settings.
    """
    on_cleaning = "corruption" in runs[0].header.settings
    groups = by_setting(runs, "corruption" if on_cleaning else "data", *names)
    return {
        (f"p = {case:g}" if on_cleaning else case, *further): run_of
        for (case, *further), run_of in groups.items()
    }


#: Accuracy of logistic regression on mean word vectors of Sentiment140, all labels right.
LINEAR_ACCURACY = 0.653
#: Data -> the best test accuracy of a recurrent encoder of 64 units in the records of B1 and B2.
NARROW_ACCURACY = {"words of snli": 0.687, "words of reviews": 0.655}


def trained_gate(parts: Parts, runs: Sequence[Run]) -> None:
    """Add controls to ``parts``: the runs must end above what hardly needs a network.

    On hyper-cleaning the mean final test accuracy must exceed that of a linear model with the same
    labels (:data:`LINEAR_ACCURACY` where a record does not have it). On hyper-representation it
    must exceed that at the start by two points; encoders of more than 64 units must also come
    within a point of the best one of 64 units (:data:`NARROW_ACCURACY`).
    """
    settings, last_rows = runs[0].header.settings, [run.rows[-1] for run in runs]
    final = float(np.mean([row["test_accuracy"] for row in last_rows]))
    if "corruption" in settings:
        linear = float(np.mean([row.get("linear_accuracy", LINEAR_ACCURACY) for row in last_rows]))
        words = f"{100 * final:.1f} % and {100 * linear:.1f} %"
        parts.gate("nets end above a linear model", final > linear, words)
        return
    start = float(np.mean([run.rows[0]["test_accuracy"] for run in runs]))
    words = f"{100 * final:.1f} % and {100 * start:.1f} %"
    parts.gate("encoders end 2 points above their start", final - start >= 0.02, words)
    if settings["hidden"] > 64 and settings["data"] in NARROW_ACCURACY:
        narrow = NARROW_ACCURACY[settings["data"]]
        parts.gate(
            "the wide encoder ends within a point of the narrow one",
            final >= narrow - 0.01,
            f"{100 * final:.1f} % and {100 * narrow:.1f} %",
        )


def vector_text(values: np.ndarray) -> str:
    """Write a vector as text for a record: half precision, compressed by zlib, in base 85.

    Example:
        >>> import base64, zlib
        >>> text = vector_text(np.array([0.5, -2.0]))
        >>> np.frombuffer(zlib.decompress(base64.b85decode(text)), np.float16).tolist()
        [0.5, -2.0]
    """
    return b85encode(compress(values.astype(np.float16).tobytes())).decode()


def end_of(
    trial: Trial, rows_of: Callable[..., Iterator[Row]], task: Any, method: Any, seed: int
) -> Row:
    """The last row of a run to the trial's budget of ``oracle_calls``.

    For searches inside a trial: nothing of the run is recorded and its checkpoints are not the
    trial's. Its seconds are added to the trial's in place.

    Args:
        trial: whose settings the run has.
        rows_of: (trial, task, method, budget, readings) -> the rows of a run.
        task, method: what runs on what.
        seed: of the run, in place of the trial's.
    """
    search_trial = Trial(trial.method, seed, trial.settings)
    *_, last_row = rows_of(search_trial, task, method, budget=trial["oracle_calls"], readings=1)
    trial.seconds += search_trial.seconds
    trial.cpu_seconds += search_trial.cpu_seconds
    return last_row
