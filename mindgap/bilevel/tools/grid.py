"""Grids of settings with several seeds: all runs of a method in one compiled program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from mindgap.base.check import fail, whole
from mindgap.bilevel.core.settings import check_count
from mindgap.bilevel.core.types import Backend, State
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.method import Method
from mindgap.bilevel.registry import METHODS
from mindgap.bilevel.solver import solve

Floats = NDArray[np.float64]
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
    values: Floats  # the metric, of shape (iterations, seeds, points); NaN where a run went wrong

    @property
    def final(self) -> Floats:
        """Mean over the seeds of the last value, by point; infinite where a seed went wrong."""
        last = self.values[-1]
        return np.where(np.isfinite(last).all(0), np.nan_to_num(last).mean(0), np.inf)

    @property
    def best(self) -> int:
        """Number of the point with the least final value."""
        return int(np.argmin(self.final))

    def interval(self, level: float = 0.9) -> tuple[Floats, Floats]:
        """Quantiles over the seeds, by iteration and point, that hold this share of them."""
        tail = (1.0 - level) / 2.0
        low, high = np.nanquantile(self.values, [tail, 1.0 - tail], axis=1)
        return low, high


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

    Raises:
        RuleError: for a name that no method has, or an empty grid.

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
    numbers = _seeds(seeds)
    listed = [methods] if isinstance(methods, (str, Method)) else methods
    if not isinstance(listed, (list, tuple)) or not listed:
        fail("methods", "must be methods or keys of METHODS", methods)
    points = _points(grid)
    known = {name for m in listed for name in _names(m)}
    for name in points[0]:
        if name not in known:
            fail("grid", "must name settings of the methods", name)
    if metric is not None and not callable(metric):
        fail("metric", "must be a function of x and y", metric)
    found = {}
    for method in listed:
        names = _names(method)
        own: list[dict[str, Any]] = []
        for point in points:
            kept = {name: value for name, value in point.items() if name in names}
            if kept not in own:
                own.append(kept)
        made = [_make_method(method, point) for point in own]
        name = method if isinstance(method, str) else type(method).__name__
        found[name] = _swept(problem, name, own, made, numbers, steps, every, metric, backend)
    return found


def _measure(metric: Metric, x: Tensor, y: Tensor) -> float:
    """What a user's metric says of a point."""
    try:
        return float(metric(x, y))
    except (TypeError, ValueError) as error:
        fail("metric", f"must return a number of flat x and y ({error})", metric)


def _seeds(seeds: int | Iterable[int]) -> list[int]:
    if isinstance(seeds, int):
        return list(range(check_count("seeds", seeds)))
    try:
        numbers = [whole("seeds", seed) for seed in seeds]
    except TypeError:
        fail("seeds", "must be a number of seeds, or a list of them", seeds)
    return numbers or fail("seeds", "must hold at least one seed", seeds)


def _points(grid: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    if not isinstance(grid, Mapping) or not all(
        isinstance(values, (list, tuple, np.ndarray)) and len(values) for values in grid.values()
    ):
        fail("grid", "must map names of settings to lists of values", grid)
    columns = [
        [v.item() if isinstance(v, np.generic) else v for v in values] for values in grid.values()
    ]
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*columns)]


def _names(method: str | Method) -> set[str]:
    if not isinstance(method, Method) and not (isinstance(method, str) and method in METHODS):
        fail("methods", f"must be methods, or of {', '.join(METHODS)}", method)
    kind: Any = METHODS[method].load() if isinstance(method, str) else type(method)
    return {f.name for f in fields(kind)}


def _make_method(method: str | Method, point: dict[str, Any]) -> Method:
    made: Method = (
        METHODS[method](**point) if isinstance(method, str) else replace(method, **point)  # type: ignore[type-var]
    )
    return made


def _lower_variable(method: Method) -> str:
    """The value of a state that holds the method's lower solution."""
    kinds = {info.class_name: info.lower_variable for info in METHODS.values()}
    return kinds.get(type(method).__name__, "y")


def _swept(
    problem: BilevelProblem,
    name: str,
    points: list[dict[str, Any]],
    methods: list[Method],
    seeds: list[int],
    steps: int,
    every: int,
    metric: Metric | None,
    backend: Backend | None,
) -> SweptMethod:
    """Losses and calls of one method at every point with every seed."""
    times = np.array(sorted({*range(0, steps, every), steps}))
    values = np.full((len(times), len(seeds), len(points)), np.nan)
    calls = np.zeros((len(times), len(seeds), len(points)))
    for group in groups_of(methods, backend):
        some = [methods[i] for i in group]
        if _is_compiled(backend) and some[0].plan().growing is None:
            parts = _one_program(problem, some, seeds, times, metric, backend)
        else:
            parts = _one_by_one(problem, some, seeds, times, every, metric, backend)
        values[:, :, group], calls[:, :, group] = parts
    values[~np.isfinite(values)] = np.nan
    return SweptMethod(
        name, tuple(points), tuple(methods), tuple(seeds), times, calls.mean((1, 2)), values
    )


def _is_compiled(backend: Backend | None) -> bool:
    """Whether a backend has the losses in JAX, without importing it."""
    return type(backend).__name__ == "JaxBackend"


def groups_of(methods: list[Method], backend: Backend | None) -> list[list[int]]:
    """Numbers of the points that can run in one program; each alone for a backend that cannot."""
    if not _is_compiled(backend):
        return [[i] for i in range(len(methods))]
    groups: dict[Any, list[int]] = {}
    for i, method in enumerate(methods):
        falls = tuple(sorted((k, np.ndim(v)) for k, v in method.rates(np.arange(2)).items()))
        groups.setdefault((method.without_rates(), falls), []).append(i)
    return list(groups.values())


def _one_program(
    problem: BilevelProblem,
    methods: list[Method],
    seeds: list[int],
    times: NDArray[np.int64],
    metric: Metric | None,
    backend: Any,
) -> tuple[Floats, Floats]:
    """Values and calls, times x seeds x methods, of methods that one compiled program runs
    together.
    """
    from mindgap.bilevel.backends.many import ManyRuns  # needs JAX

    runs, lower = ManyRuns(backend, problem, methods, seeds), _lower_variable(methods[0])
    values, calls = [], []
    for t in times:
        runs.run(int(t) - runs.t)
        if metric is None:
            values.append(runs.losses(lower))
        else:
            x, y = (runs.oracle.to_torch(runs.values[key]) for key in ("x", lower))
            values.append(
                np.array(
                    [
                        [_measure(metric, a, b) for a, b in zip(*pair, strict=True)]
                        for pair in zip(x, y, strict=True)
                    ]
                )
            )
        calls.append(np.repeat(np.array(runs.calls, float)[:, None], len(methods), 1))
    return np.stack(values), np.stack(calls)


def _one_by_one(
    problem: BilevelProblem,
    methods: list[Method],
    seeds: list[int],
    times: NDArray[np.int64],
    every: int,
    metric: Metric | None,
    backend: Backend | None,
) -> tuple[Floats, Floats]:
    """Values and calls, times x seeds x methods, by one ``solve`` after the other."""
    shape = (len(times), len(seeds), len(methods))
    values, calls = np.full(shape, np.nan), np.zeros(shape)
    places = {int(t): i for i, t in enumerate(times)}

    for (s, seed), (p, method) in itertools.product(enumerate(seeds), enumerate(methods)):
        lower = _lower_variable(method)

        def look(state: State, s: int = s, p: int = p, lower: str = lower) -> None:
            x, y = (state.oracle.to_torch(state.values[key]) for key in ("x", lower))
            at = places[state.t], s, p
            loss = problem.loss("upper", x, y) if metric is None else _measure(metric, x, y)
            values[at], calls[at] = float(loss), state.total_calls

        done = solve(
            problem, method, int(times[-1]), seed=seed, callbacks=look, every=every, backend=backend
        )
        if done.outcome == "done" and done.state.t not in range(0, done.state.t + 1, every):
            look(done.state)
    return values, calls
