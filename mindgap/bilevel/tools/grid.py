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

from mindgap.base.check import fail, positive, whole
from mindgap.bilevel.core.settings import check_count
from mindgap.bilevel.core.types import Backend, State
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.method import Method
from mindgap.bilevel.registry import METHODS, lower_variable_of
from mindgap.bilevel.solver import solve
from mindgap.bilevel.tools.checkpoint import belongs_to, check_path

Floats = NDArray[np.float64]
#: After these shares of the iterations a sweep with ``keep`` lets points go.
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
    if positive("keep", keep) > 1.0:
        fail("keep", "must be at most 1", keep)
    looks = {*range(0, steps, every), steps}
    if keep < 1.0:
        looks |= {max(1, round(share * steps)) for share in CUTS}
    times = np.array(sorted(looks))
    records = _Records(folder, problem, metric)
    found = {}
    for method in listed:
        names = _names(method)
        for f in fields(METHODS[method].load()) if isinstance(method, str) else ():
            if f.default is f.default_factory is MISSING and f.name not in points[0]:
                fail("grid", f"must have values of {f.name}, for {method}", sorted(points[0]))
        own_points: list[dict[str, Any]] = []  # without the settings that the method has not
        for point in points:
            own_point = {name: value for name, value in point.items() if name in names}
            if own_point not in own_points:
                own_points.append(own_point)
        make = METHODS[method] if isinstance(method, str) else partial(replace, method)
        made = [make(**point) for point in own_points]
        name = method if isinstance(method, str) else type(method).__name__
        form = _Form(problem, numbers, times, metric, backend, keep)
        found[name] = _swept(form, name, own_points, made, records)
    return found


def _measure(metric: Metric, x: Tensor, y: Tensor) -> float:
    """What a user's metric says of a point."""
    try:
        return float(metric(x, y))
    except (TypeError, ValueError) as error:
        fail("metric", f"must return a number of flat x and y ({error})", metric)


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


def _names(method: str | Method) -> set[str]:
    """The names of a method's settings."""
    if not isinstance(method, Method) and not (isinstance(method, str) and method in METHODS):
        fail("methods", f"must be methods, or of {', '.join(METHODS)}", method)
    kind: Any = METHODS[method].load() if isinstance(method, str) else type(method)
    return {f.name for f in fields(kind)}


@dataclass(frozen=True)
class _Form:
    """What all runs of a sweep have in common, as described at ``sweep``."""

    problem: BilevelProblem
    seeds: list[int]
    times: NDArray[np.int64]  # iterations at which the metric is taken
    metric: Metric | None
    backend: Backend | None
    keep: float  # share of the points that go on after each of ``CUTS``

    def kept(self, t: int, values: Floats) -> list[int]:
        """Numbers of the points that go on after iteration t, from values of shape (seeds, points):
        all of them unless t is one of ``CUTS``.
        """
        everyone = list(range(values.shape[1]))
        cuts = {max(1, round(share * int(self.times[-1]))) for share in CUTS}
        if self.keep == 1.0 or t not in cuts:
            return everyone
        means = np.where(np.isfinite(values).all(0), np.nan_to_num(values).mean(0), np.inf)
        count = max(1, round(self.keep * len(everyone)))
        return sorted(np.argsort(means, kind="stable")[:count].tolist())


#: iteration, values and calls by seed and point; NaN for points that were let go
Look = tuple[int, Floats, Floats]


class _Records:
    """Looks of sweeps in a file, so that a sweep that is there is not run again.

    Without a folder nothing is read or written. ``of`` tells one problem and metric from another.
    """

    def __init__(
        self, folder: str | Path | None, problem: BilevelProblem, metric: Metric | None
    ) -> None:
        self.path: Path | None = None
        self.of: list[Any] = []
        if folder is None:
            return
        from mindgap.bilevel.methods.soba import SOBA

        check_path("folder", folder)
        self.path = Path(folder) / "sweep.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        of = belongs_to(SOBA(lr_x=1.0, lr_y=1.0), problem)  # any method: the marks name those run
        self.of = [of, getattr(metric, "__qualname__", repr(type(metric)))]

    def mark(self, methods: list[Method], form: _Form) -> str:
        """A hash that tells one group of runs from another; empty without a file."""
        told = [self.of, [repr(m) for m in methods], form.seeds, form.times.tolist(), form.keep]
        return sha256(json.dumps(told).encode()).hexdigest()[:24] if self.path else ""

    def read(self, mark: str, form: _Form) -> list[Look]:
        """The looks of a group if all of them are there, else nothing."""
        if self.path is None or not self.path.exists():
            return []
        looks: dict[int, Look] = {}
        for line in self.path.read_text().splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # the last line of a run that was killed
                continue
            if row["of"] == mark:
                values, calls = (np.array(row[k], dtype=float) for k in ("values", "calls"))
                looks[row["iteration"]] = row["iteration"], values, calls
        whole = set(looks) == set(form.times.tolist())
        return [looks[t] for t in form.times.tolist()] if whole else []

    def write(self, mark: str, name: str, look: Look) -> None:
        """Append one look to the file, if there is one; ``name`` is the method's."""
        if self.path is None:
            return
        t, values, calls = look
        row = {"of": mark, "method": name, "iteration": int(t)}
        numbers = {"values": _plain(values), "calls": _plain(calls)}
        # A line that a killed run left unfinished is ended first.
        ended = not self.path.exists() or self.path.read_bytes()[-1:] in (b"", b"\n")
        with self.path.open("a") as file:
            file.write(("" if ended else "\n") + json.dumps({**row, **numbers}) + "\n")


def _plain(values: Floats) -> list[list[float | None]]:
    """Numbers as JSON has them: what is not finite is null."""
    return [[float(v) if np.isfinite(v) else None for v in row] for row in values]


def _swept(
    form: _Form, name: str, points: list[dict[str, Any]], methods: list[Method], records: _Records
) -> SweptMethod:
    """Losses and calls of one method at every point with every seed: those in the records, and
    where they are not, those of new runs, which are recorded.
    """
    shape = (len(form.times), len(form.seeds), len(points))
    values, calls = np.full(shape, np.nan), np.full(shape, np.nan)
    # Points are compared with one another: a sweep that lets some go runs them side by side.
    alike = _is_compiled(form.backend) or form.keep == 1.0
    groups = groups_of(methods, form.backend) if alike else [list(range(len(methods)))]
    for group in groups:
        some = [methods[i] for i in group]
        mark = records.mark(some, form)
        looks = records.read(mark, form)
        if not looks:
            compiled = _is_compiled(form.backend) and some[0].plan().growing is None
            for look in (_one_program if compiled else _one_by_one)(form, some):
                records.write(mark, name, look)
                looks.append(look)
        for i, (_, seen, called) in enumerate(looks):
            values[i][:, group], calls[i][:, group] = seen, called
    values[~np.isfinite(values)] = np.nan
    by_time = np.array([np.nanmean(row) if np.isfinite(row).any() else np.nan for row in calls])
    return SweptMethod(
        name, tuple(points), tuple(methods), tuple(form.seeds), form.times, by_time, values
    )


def _is_compiled(backend: Backend | None) -> bool:
    """Whether a backend has the losses in JAX, without importing it."""
    return type(backend).__name__ == "JaxBackend"


def groups_of(methods: list[Method], backend: Backend | None) -> list[list[int]]:
    """Numbers of the points by group: those that can run in one program, or each alone."""
    if not _is_compiled(backend):
        return [[i] for i in range(len(methods))]
    groups: dict[Any, list[int]] = {}
    for i, method in enumerate(methods):
        # Whether each rate changes with the iteration, which a program must know.
        falls = tuple(sorted((k, np.ndim(v)) for k, v in method.rates(np.arange(2)).items()))
        groups.setdefault((method.without_rates(), falls), []).append(i)
    return list(groups.values())


def _one_program(form: _Form, methods: list[Method]) -> Iterator[Look]:
    """Yield at each time the values and calls, of shape (seeds, methods), of methods that run in
    one program.
    """
    from mindgap.bilevel.backends.many import ManyRuns  # needs JAX

    backend: Any = form.backend
    runs = ManyRuns(backend, form.problem, methods, form.seeds)
    lower, alive = lower_variable_of(methods[0]), list(range(len(methods)))
    for t in form.times:
        runs.run(int(t) - runs.t)
        if form.metric is None:
            seen = runs.losses(lower)
        else:
            x, y = (runs.oracle.to_torch(runs.values[key]) for key in ("x", lower))
            seen = np.array(
                [
                    [_measure(form.metric, a, b) for a, b in zip(*pair, strict=True)]
                    for pair in zip(x, y, strict=True)
                ]
            )
        values, calls = (np.full((len(form.seeds), len(methods)), np.nan) for _ in range(2))
        values[:, alive] = seen
        calls[:, alive] = np.array(runs.calls, float)[:, None]
        yield int(t), values, calls
        kept = form.kept(int(t), seen)
        if len(kept) < len(alive):
            runs.keep(kept)
            alive = [alive[i] for i in kept]


def _one_by_one(form: _Form, methods: list[Method]) -> Iterator[Look]:
    """As ``_one_program``, with runs one after the other, from look to look; NaN for a run that
    went wrong.
    """
    problem, metric = form.problem, form.metric
    states: dict[tuple[int, int], State | None] = {}
    alive = list(range(len(methods)))
    for t in form.times:
        values, calls = (np.full((len(form.seeds), len(methods)), np.nan) for _ in range(2))
        for (s, seed), p in itertools.product(enumerate(form.seeds), alive):
            before, method = states.get((s, p)), methods[p]
            if (s, p) in states and before is None:  # it went wrong
                continue
            lower = lower_variable_of(method)
            start = {"seed": seed} if before is None else {"start": before}
            done = solve(problem, method, int(t), backend=form.backend, **start)
            state = done.state
            states[s, p] = state if done.ok else None
            if done.ok:
                x, y = (state.oracle.to_torch(state.values[key]) for key in ("x", lower))
                loss = problem.loss("upper", x, y) if metric is None else _measure(metric, x, y)
                values[s, p], calls[s, p] = float(loss), state.total_calls
        yield int(t), values, calls
        kept = form.kept(int(t), values[:, alive])
        alive = [alive[i] for i in kept]
