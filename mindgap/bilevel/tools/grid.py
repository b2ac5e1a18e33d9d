"""Grids of settings with several seeds: all runs of a method in one compiled program."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mindgap.base.calls import number_from
from mindgap.base.check import check_call, fail, positive, whole
from mindgap.base.checkpoint import make_folder
from mindgap.base.fingerprint import function_text
from mindgap.bilevel.core.settings import check_count
from mindgap.bilevel.core.types import Backend, State
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.method import Method
from mindgap.bilevel.registry import METHODS, lower_variable_of
from mindgap.bilevel.solver import solve
from mindgap.bilevel.tools.checkpoint import belongs_to, method_text

Floats = NDArray[np.float64]
#: After these shares of the iterations a sweep with ``keep`` below 1 stops its worst points.
CUTS = 1 / 8, 1 / 4, 1 / 2
#: A number of the flat x and of the method's lower solution; less is better.
Metric = Callable[[Tensor, Tensor], float]


@dataclass(frozen=True)
class SweptMethod:
    """All runs of one method."""

    name: str  # key in ``METHODS``, or the class's name
    points: tuple[dict[str, Any], ...]  # settings of the grid
    methods: tuple[Method, ...]  # the methods they make
    seeds: tuple[int, ...]
    iterations: NDArray[np.int64]  # where the metric was taken, 0 included
    calls: Floats  # oracle calls by then, mean over the seeds
    #: the metric, of shape (iterations, seeds, points); NaN where a run went wrong or was stopped
    values: Floats

    @property
    def final(self) -> Floats:
        """Mean over the seeds of the last value, by point; infinite where a seed went wrong."""
        return _means(self.values[-1])

    @property
    def best(self) -> int:
        """Number of the point with the least final value."""
        return int(np.argmin(self.final))

    def interval(self, level: float = 0.9) -> tuple[Floats, Floats]:
        """Lower and upper quantile over the seeds, (iterations, points): the share ``level`` of the
        seeds lies between them.
        """
        tail = (1.0 - level) / 2.0
        low, high = np.nanquantile(self.values, [tail, 1.0 - tail], axis=1)
        return low, high


def _means(values: Floats) -> Floats:
    """Means over the seeds of values (seeds, points); infinite where a seed went wrong."""
    return np.where(np.isfinite(values).all(0), np.nan_to_num(values).mean(0), np.inf)


def _cuts(steps: int) -> set[int]:
    """Iterations after which points are stopped, in runs of ``steps`` iterations."""
    return {max(1, round(share * steps)) for share in CUTS}


def sweep(
    problem: BilevelProblem,
    methods: str | Method | Sequence[str | Method],
    grid: Mapping[str, Sequence[Any]],
    seeds: int | Iterable[int] = 1,
    *,
    steps: int,
    every: int | None = None,
    metric: Metric | None = None,
    backend: Backend | None = None,
    keep: float = 1.0,
    folder: str | Path | None = None,
) -> dict[str, SweptMethod]:
    """Run methods at every point of a grid with every seed.

    With a :class:`~mindgap.bilevel.backends.compiled.JaxBackend` the points that differ in rates
    alone (``lr_x``, ``lr_y``, ``lr_z`` ...) and all seeds are one program, compiled once for each
    method and number of runs; with any other backend one run follows the other.

    Args:
        problem: what to solve.
        methods: keys of ``METHODS``, or methods whose settings hold where the grid says nothing.
        grid: name of a setting -> its values; every combination is a point. A method takes the
            names it has.
        seeds: how many, counted from 0, or which.
        steps: iterations of each run.
        every: iterations from one value of the metric to the next; a tenth of ``steps`` if not
            given.
        metric: a number of the flat x and of the lower solution; the upper loss over all samples if
            not given.
        backend: who runs the iterations; eager torch if not given.
        keep: share of the points that go on after an eighth, a quarter and half of the iterations,
            those with the least mean over the seeds (successive halving with 0.5); the others are
            NaN from there on. 1 keeps all.
        folder: where values are written as they come, in ``sweep.jsonl``; a sweep that is there
            already is read, and what is missing runs.

    Raises:
        RuleError: for a name that no method has, an empty grid, or a bad share.

    Example:
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> grid = {"lr_x": [0.0001, 0.1], "lr_y": [0.2]}
        >>> found = sweep(example_problem(), "soba", grid, seeds=2, steps=60)["soba"]
        >>> found.values.shape, found.points[found.best]["lr_x"]
        ((11, 2, 2), 0.1)
    """
    if not isinstance(problem, BilevelProblem):
        fail("problem", "must be a BilevelProblem", type(problem).__name__)
    check_count("steps", steps)
    every = max(1, steps // 10) if every is None else check_count("every", every)
    seed_list = _seeds(seeds)
    method_list = [methods] if isinstance(methods, (str, Method)) else methods
    if not isinstance(method_list, (list, tuple)) or not method_list:
        fail("methods", "must be methods or keys of METHODS", methods)
    points = _points(grid)
    known_names = {name for method in method_list for name in _setting_names(method)}
    for name in points[0]:
        if name not in known_names:
            fail("grid", "must name settings of the methods", name)
    if metric is not None:
        check_call("metric", metric, "a function of x and y", None, None)
    if positive("keep", keep) > 1.0:
        fail("keep", "must be at most 1", keep)
    times = {*range(0, steps, every), steps}
    if keep < 1.0:
        times |= _cuts(steps)
    setup = _Setup(problem, seed_list, np.array(sorted(times)), metric, backend, keep)
    records = _Records(folder, problem, metric)
    swept = {}
    for method in method_list:
        names = _setting_names(method)
        for f in fields(METHODS[method].load()) if isinstance(method, str) else ():
            has_no_default = f.default is f.default_factory is MISSING
            if has_no_default and f.name not in points[0]:
                fail("grid", f"must have values of {f.name}, for {method}", sorted(points[0]))
        own_points: list[dict[str, Any]] = []  # of the settings that this method has
        for point in points:
            own_point = {name: value for name, value in point.items() if name in names}
            if own_point not in own_points:
                own_points.append(own_point)
        make = METHODS[method] if isinstance(method, str) else partial(replace, method)
        name = method if isinstance(method, str) else type(method).__name__
        own_methods = [make(**point) for point in own_points]
        swept[name] = _sweep_method(setup, name, own_points, own_methods, records)
    return swept


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    """The seeds as a list; a number stands for as many, counted from 0."""
    if isinstance(seeds, int):
        return list(range(check_count("seeds", seeds)))
    try:
        numbers = [whole("seeds", seed) for seed in seeds]
    except TypeError:
        fail("seeds", "must be a number of seeds, or a list of them", seeds)
    return numbers or fail("seeds", "must hold at least one seed", seeds)


def _points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Every combination of the grid's values, by name; numbers of NumPy become Python's."""
    if not isinstance(grid, Mapping) or not all(
        isinstance(values, (list, tuple, np.ndarray)) and len(values) for values in grid.values()
    ):
        fail("grid", "must map names of settings to lists of values", grid)
    columns = [
        [v.item() if isinstance(v, np.generic) else v for v in values] for values in grid.values()
    ]
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*columns)]


def _setting_names(method: str | Method) -> set[str]:
    """The names of a method's settings; refuses what is neither a method nor a key."""
    if not isinstance(method, Method) and not (isinstance(method, str) and method in METHODS):
        fail("methods", f"must be methods, or of {', '.join(METHODS)}", method)
    kind: Any = METHODS[method].load() if isinstance(method, str) else type(method)
    return {f.name for f in fields(kind)}


@dataclass(frozen=True)
class _Setup:
    """What all runs of a sweep have in common."""

    problem: BilevelProblem
    seeds: list[int]
    times: NDArray[np.int64]  # iterations at which the metric is taken
    metric: Metric | None
    backend: Backend | None
    keep: float  # share of the points that go on after each of ``CUTS``

    def surviving(self, t: int, values: Floats) -> list[int]:
        """Numbers of the points that go on after iteration t, from values of shape (seeds, points):
        all of them unless t is one of ``CUTS``.
        """
        count = values.shape[1]
        if self.keep == 1.0 or t not in _cuts(int(self.times[-1])):
            return list(range(count))
        count = max(1, round(self.keep * count))
        return sorted(np.argsort(_means(values), kind="stable")[:count].tolist())


#: Iteration, and values and calls, (seeds, points), there; NaN for points that were stopped.
Reading = tuple[int, Floats, Floats]


class _Records:
    """Readings of sweeps in a file, so that a sweep that is there is not run again.

    Without a folder nothing is read or written.
    """

    def __init__(
        self, folder: str | Path | None, problem: BilevelProblem, metric: Metric | None
    ) -> None:
        self.path: Path | None = None
        self.of: list[Any] = []  # texts of the problem and the metric
        if folder is None:
            return
        self.path = make_folder("folder", folder) / "sweep.jsonl"
        of = belongs_to(METHODS["soba"](lr_x=1.0, lr_y=1.0), problem)  # marks name the methods run
        self.of = [of, repr(type(metric)) if metric is None else function_text(metric)]

    def mark(self, methods: list[Method], setup: _Setup) -> str:
        """A hash that identifies one group of runs; empty without a file."""
        if self.path is None:
            return ""
        parts = [
            self.of,
            [method_text(m) for m in methods],
            setup.seeds,
            setup.times.tolist(),
            setup.keep,
        ]
        return sha256(json.dumps(parts).encode()).hexdigest()[:24]

    def read(self, group_hash: str, setup: _Setup) -> list[Reading]:
        """The readings of a group if all of them are there, else none."""
        if self.path is None or not self.path.exists():
            return []
        readings: dict[int, Reading] = {}
        for line in self.path.read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # the last line of a run that was killed
                continue
            if row["of"] == group_hash:
                values, calls = (np.array(row[key], dtype=float) for key in ("values", "calls"))
                readings[row["iteration"]] = row["iteration"], values, calls
        times = setup.times.tolist()
        return [readings[t] for t in times] if set(readings) == set(times) else []

    def write(self, group_hash: str, name: str, reading: Reading) -> None:
        """Append a reading of runs of the method ``name`` to the file, if there is one."""
        if self.path is None:
            return
        t, values, calls = reading
        row = {"of": group_hash, "method": name, "iteration": int(t)}
        numbers = {"values": _as_json(values), "calls": _as_json(calls)}
        # A line that a killed run left unfinished is ended first.
        is_ended = not self.path.exists() or self.path.read_bytes()[-1:] in (b"", b"\n")
        with self.path.open("a") as file:
            file.write(("" if is_ended else "\n") + json.dumps({**row, **numbers}) + "\n")


def _as_json(values: Floats) -> list[list[float | None]]:
    """Numbers as JSON has them: what is not finite is null."""
    return [[float(v) if np.isfinite(v) else None for v in row] for row in values]


def _sweep_method(
    setup: _Setup, name: str, points: list[dict[str, Any]], methods: list[Method], records: _Records
) -> SweptMethod:
    """Values and calls of one method at every point with every seed, from the records where they
    are there, else from new runs, which are recorded.

    Args:
        points, methods: settings of each point, and the method they make.
    """
    shape = (len(setup.times), len(setup.seeds), len(points))
    values, calls = np.full(shape, np.nan), np.full(shape, np.nan)
    groups = groups_of(methods, setup.backend)
    if setup.keep < 1.0 and not _is_compiled(setup.backend):
        # Points that compete for going on are run side by side.
        groups = [list(range(len(methods)))]
    for group in groups:
        group_methods = [methods[i] for i in group]
        group_hash = records.mark(group_methods, setup)
        readings = records.read(group_hash, setup)
        if not readings:
            compiled = _is_compiled(setup.backend) and group_methods[0].plan().growing is None
            for reading in (_one_program if compiled else _one_by_one)(setup, group_methods):
                records.write(group_hash, name, reading)
                readings.append(reading)
        for i, (_, group_values, group_calls) in enumerate(readings):
            values[i][:, group], calls[i][:, group] = group_values, group_calls
    values[~np.isfinite(values)] = np.nan
    mean_calls = np.array([np.nanmean(row) if np.isfinite(row).any() else np.nan for row in calls])
    return SweptMethod(
        name, tuple(points), tuple(methods), tuple(setup.seeds), setup.times, mean_calls, values
    )


def _is_compiled(backend: Backend | None) -> bool:
    """Whether a backend runs in JAX; told by its name, for an import would need JAX."""
    return type(backend).__name__ == "JaxBackend"


def groups_of(methods: list[Method], backend: Backend | None) -> list[list[int]]:
    """Groups of methods that can run in one program, as positions in ``methods``; for a backend
    other than JAX each method alone.
    """
    if not _is_compiled(backend):
        return [[i] for i in range(len(methods))]
    groups: dict[Any, list[int]] = {}
    for i, method in enumerate(methods):
        # A rate of two iterations has an axis if it changes, which a program must know.
        rate_axes = tuple(sorted((k, np.ndim(v)) for k, v in method.rates(np.arange(2)).items()))
        groups.setdefault((method.without_rates(), rate_axes), []).append(i)
    return list(groups.values())


def _one_program(setup: _Setup, methods: list[Method]) -> Iterator[Reading]:
    """Yield the reading of each time; all methods run with all seeds in one compiled program."""
    from mindgap.bilevel.backends.many import ManyRuns  # needs JAX

    backend: Any = setup.backend
    runs = ManyRuns(backend, setup.problem, methods, setup.seeds)
    lower, running = lower_variable_of(methods[0]), list(range(len(methods)))
    for t in setup.times:
        runs.run(int(t) - runs.t)
        if setup.metric is None:
            readings = runs.losses(lower)
        else:
            x, y = (runs.oracle.to_torch(runs.values[key]) for key in ("x", lower))
            readings = np.empty(x.shape[:2])
            for s, p in np.ndindex(readings.shape):  # numbers of seed and point
                readings[s, p] = number_from("metric", setup.metric, x[s, p], y[s, p])
        values, calls = (np.full((len(setup.seeds), len(methods)), np.nan) for _ in range(2))
        values[:, running] = readings
        calls[:, running] = np.array(runs.calls, float)[:, None]
        yield int(t), values, calls
        surviving = setup.surviving(int(t), readings)
        if len(surviving) < len(running):
            runs.keep_points(surviving)
            running = [running[i] for i in surviving]


def _one_by_one(setup: _Setup, methods: list[Method]) -> Iterator[Reading]:
    """Yield the reading of each time; before it every run is continued to that time, one after the
    other. NaN for a run that went wrong.
    """
    problem, metric = setup.problem, setup.metric
    states: dict[tuple[int, int], State | None] = {}  # (seed, point) -> state; None: went wrong
    running = list(range(len(methods)))
    for t in setup.times:
        values, calls = (np.full((len(setup.seeds), len(methods)), np.nan) for _ in range(2))
        for (s, seed), p in itertools.product(enumerate(setup.seeds), running):
            state, method = states.get((s, p)), methods[p]
            if (s, p) in states and state is None:
                continue
            start = {"seed": seed} if state is None else {"start": state}
            solution = solve(problem, method, int(t), backend=setup.backend, **start)
            states[s, p] = None
            if solution.ok:
                states[s, p] = state = solution.state
                names = "x", lower_variable_of(method)
                x, y = (state.oracle.to_torch(state.values[name]) for name in names)
                loss = (
                    problem.loss("upper", x, y)
                    if metric is None
                    else number_from("metric", metric, x, y)
                )
                values[s, p], calls[s, p] = float(loss), state.total_calls
        yield int(t), values, calls
        running = [running[i] for i in setup.surviving(int(t), values[:, running])]
