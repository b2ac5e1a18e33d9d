"""Eager methods as CUDA graphs: one launch per iteration, for problems that are limited by kernel
launches.

The same method objects and torch losses as in eager runs. Sample numbers and rates of many
iterations go to the device at once; a graph of one iteration reads its row, gathers its minibatches
there, updates all values in place and moves the row on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import copy
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from mindgap.base.check import fail, whole
from mindgap.bilevel.backends.count import run_counted
from mindgap.bilevel.backends.oracles import TorchOps, TorchOracle, are_numbers
from mindgap.bilevel.core.estimators import ROWS
from mindgap.bilevel.core.settings import TorchStep
from mindgap.bilevel.core.types import AnyMethod, Backend, ByName, ProblemOracle, Scalar, State
from mindgap.bilevel.data.draws import Chunk, Iteration, shape_of
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import Batch, Batches, Sample

#: Iterations between two looks at whether x and y are numbers, which wait for the device.
STEPS_PER_LOOK = 64


class _DeviceIndices:
    """One minibatch of a sample: the indices of its data, as a tensor on the device."""

    def __init__(self, indices: Tensor) -> None:
        self.indices = indices

    @property
    def batch(self) -> Tensor:
        """The number of the minibatch in a fixed partition, as a tensor of one entry."""
        return self.indices[:1] // len(self.indices)

    def item(self) -> _DeviceIndices:
        """Itself: callers take the number out of an array without axes by this name."""
        return self


class _DeviceRows(TorchOps):
    """Array operations that find the row of SAGA's table on the device.

    Attributes:
        overwritten: (table, row number, old row) of each replacement, oldest first; None where
            nobody asked for them.
    """

    overwritten: list[tuple[Tensor, Tensor, Tensor]] | None = None

    def replace_row(self, table: Tensor, index: Scalar, value: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """``value - table[index]``, and the table with the value written in place, as in eager
        runs; adds the old row to ``overwritten`` where that is kept.
        """
        number = index.batch  # the index is a ``_DeviceIndices`` here
        old_row = table.index_select(0, number)
        if self.overwritten is not None:
            self.overwritten.append((table, number, old_row))
        return value - old_row[0], table.index_copy_(0, number, value[None])


class _GatheredData:
    """Data of one level whose minibatches are gathered on the device."""

    def __init__(self, data: Batches) -> None:
        self._data = data

    def __getattr__(self, name: str) -> Any:
        return getattr(self._data, name)

    def fetch(self, sample: Sample, share: tuple[int, int] = (0, 1)) -> Batch:
        """The minibatch of a sample; gathered on the device where it names indices there."""
        if isinstance(sample.which, _DeviceIndices):
            return pytree.tree_map(
                lambda t: t.index_select(0, sample.which.indices), self._data.data
            )
        return self._data.fetch(sample, share)


class _CapturedOracle(_DeviceRows, TorchOracle):
    """An oracle whose samples and tables are found on the device, so that a graph can replay it."""

    def __init__(self, oracle: TorchOracle) -> None:
        # All of ``oracle``, on a problem whose minibatches are gathered
        self.__dict__.update(oracle.__dict__)
        self.problem = copy(oracle.problem)
        for name in ("upper_data", "lower_data"):
            setattr(self.problem, name, _GatheredData(getattr(oracle.problem, name)))

    def _is_common(self, *samples: Sample) -> bool:
        # A gathered minibatch is one in the usual modes, those of the capture
        return all(isinstance(sample.which, _DeviceIndices) for sample in samples)

    def weight(self, level: str, sample: Sample) -> float:
        """Share of the level's samples that a batch holds: all are of equal size here."""
        data = self.problem.data(level)
        return data.batch_size / data.n


def _is_table(path: tuple[Any, ...]) -> bool:
    """Whether the value at a path of a tree is a table of SAGA."""
    return getattr(path[-1], "key", None) == ROWS


def _copy_values(values: ByName) -> ByName:
    """Copies of all values but SAGA's tables, which belong to the state that is stepped."""
    return cast(
        "ByName",
        pytree.tree_map_with_path(lambda p, t: t if _is_table(p) else t.clone(), values),
    )


def _table_addresses(values: ByName) -> list[int]:
    """Where the tables of SAGA lie in memory."""
    return [t.data_ptr() for path, t in pytree.tree_leaves_with_path(values) if _is_table(path)]


def _overwrite(old: ByName, new: ByName) -> None:
    """Copy new values into the memory of the old; a table that is in place is left alone."""
    pytree.tree_map(lambda o, n: o if o.data_ptr() == n.data_ptr() else o.copy_(n), old, new)


def _run_and_undo(iteration: Callable[[], None], rows: _DeviceRows, values: ByName) -> None:
    """Run an iteration and put all values back; of a table, which is large, only the rows that
    ``rows`` saw replaced.
    """
    old_values, rows.overwritten = _copy_values(values), []
    iteration()
    for table, number, old_row in reversed(rows.overwritten):
        table.index_copy_(0, number, old_row)
    rows.overwritten = None
    _overwrite(values, old_values)


class _IterationGraph:
    """One kind of iteration, ready to be replayed.

    Attributes:
        problem: kept because a captured graph reads its data, and no other may have its id.
        constants: draws that are the same in every iteration.
        rates: step sizes and weights, one table per name with one row per iteration.
        samples: indices of data, one table per name with one row per iteration.
        row: the row that the next replay reads, on the device; the replay adds one.
        replay: runs the iteration on the values that it was captured with.
    """

    def __init__(
        self,
        iteration: Iteration,
        constants: dict[str, Any],
        rates: set[str],
        problem: BilevelProblem,
        rows: int,  # of each table: most iterations of one load
    ) -> None:
        device, self.problem = problem.device, problem
        self.iteration, self.constants = iteration, constants
        self.row = torch.zeros((), dtype=torch.int64, device=device)
        self.rates = {name: torch.zeros(rows, dtype=problem.dtype, device=device) for name in rates}
        self.samples: dict[str, Tensor] = {}
        for name, (level, count) in iteration.samples.items():
            if level == "uniform":  # a whole number: one of the graph's constants
                continue
            shape = shape_of(level, count)
            size = () if level == "direction" else (problem.data(level).batch_size,)
            self.samples[name] = torch.zeros(rows, *shape, *size, dtype=torch.int64, device=device)
        self.replay: Callable[[], None] = lambda: None

    def draws(self) -> dict[str, Any]:
        """The draws of the present row, on the device."""
        draws: dict[str, Any] = dict(self.constants)
        for name, table in self.rates.items():
            draws[name] = table.index_select(0, self.row[None])[0]
        for name, table in self.samples.items():
            indices = table.index_select(0, self.row[None])[0]
            if self.iteration.samples[name][0] == "direction":
                draws[name] = Sample(indices)
                continue
            # An array of minibatches, or one; the last axis are the indices of its data.
            minibatches = np.empty(indices.shape[:-1], dtype=object)
            for position in np.ndindex(minibatches.shape):
                minibatches[position] = _DeviceIndices(indices[position])
            draws[name] = Sample(minibatches.item() if minibatches.ndim == 0 else minibatches)
        return draws

    def load(self, columns: dict[str, list[Any]]) -> None:
        """Write the draws of many iterations (name -> one per iteration) to the tables on the
        device, and go to the first row.
        """
        self.row.zero_()
        for name, table in self.rates.items():
            table[: len(columns[name])] = torch.tensor(columns[name], dtype=table.dtype)
        for name, table in self.samples.items():
            level = self.iteration.samples[name][0]
            which = np.array([np.asarray(sample.which) for sample in columns[name]])
            data = self.problem.data(level)
            if level != "direction" and data.order == "partition":  # batch ids become indices
                which = which[..., None] * data.batch_size + np.arange(data.batch_size)
            table[: len(which)] = torch.from_numpy(np.ascontiguousarray(which))


#: Kind of an iteration, and the lengths of its random series: each pair has a graph of its own.
_GraphKey = tuple[Any, ...]


def _columns_by_graph(
    chunk: Chunk,
) -> tuple[list[_GraphKey], dict[_GraphKey, dict[str, list[Any]]]]:
    """For each iteration of a chunk the key of the graph that runs it, and for each key the draws
    of its iterations: name -> one per iteration.
    """
    order: list[_GraphKey] = []
    columns: dict[_GraphKey, dict[str, list[Any]]] = {}
    for kind, draws in chunk.steps():
        key = (kind, *(value for value in draws.values() if isinstance(value, int)))
        order.append(key)
        lists = columns.setdefault(key, {name: [] for name in draws})
        for name, value in draws.items():
            lists[name].append(value)
    return order, columns


class CudaGraphs(Backend):
    """Runs methods as CUDA graphs (on the CPU the same code runs without a graph, for tests).

    Args:
        chunk: iterations whose samples go to the device at once.

    The problem must hold tensors (modules are fine as variables) and draw no random numbers in its
    losses; a fixed partition needs batches of equal size (``Batches(..., last="drop")``). A
    randomised Neumann series gets one graph per length. BSA with ``inner="sqrt"``, whose iterations
    grow, and ``TorchStep`` are refused.

    Attributes:
        capturing: seconds spent on capturing graphs so far.

    Example:
        >>> from mindgap.bilevel import SOBA, solve
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> problem = example_problem()
        >>> a, b = (
        ...     solve(problem, SOBA(lr_x=0.1, lr_y=0.2), steps=50, backend=who).state
        ...     for who in (None, CudaGraphs())
        ... )
        >>> bool(torch.allclose(a.x, b.x)), a.calls == b.calls
        (True, True)
    """

    check_every = 1024

    def __init__(self, chunk: int = 1024) -> None:
        self.chunk = whole("chunk", chunk, least=1)
        self.capturing = 0.0
        self._pool: tuple[int, int] | None = None  # memory that all graphs share
        #: (method, id of the problem) -> the values that its graphs work on, and the graphs
        self._graphs: dict[Any, tuple[ByName, dict[_GraphKey, _IterationGraph]]] = {}

    def oracle(
        self, problem: BilevelProblem, method: AnyMethod, seed: int, distributed: bool
    ) -> ProblemOracle:
        """The oracle of a problem; what a CUDA graph cannot capture is refused."""
        if distributed:
            fail("distributed", "must be False for CUDA graphs", True)
        if method.plan().growing is not None:
            rule = "must have iterations that do not grow for CUDA graphs"
            fail("method", rule, type(method).__name__)
        if isinstance(method.x_step, TorchStep):
            rule = "must not be a TorchStep for CUDA graphs (AdamStep and MomentumStep work)"
            fail("x_step", rule, method.x_step)
        oracle = method.oracle(problem, seed)
        for level in ("upper", "lower"):
            data = problem.data(level)
            if not isinstance(data, Batches) or not data.is_tensors:
                fail(f"{level}_data", "must be tensors for CUDA graphs", type(data).__name__)
            if data.device is not None:
                devices = sorted(map(str, data.devices()))
                fail(f"{level}_data", f"must be on {problem.device} for CUDA graphs", devices)
            if data.order == "partition" and data.n % data.batch_size:
                rule = "must have batches of equal size for CUDA graphs (last='drop')"
                fail(f"{level}_data", rule, (data.n, data.batch_size))
        if oracle.seeded:
            rule = "must draw no random numbers in its losses for CUDA graphs"
            fail("problem", rule, "losses that do")
        return oracle

    def run(
        self,
        state: State,
        steps: int,
        calls: int | None,
        seconds: float | None,
        *,
        keep: bool = True,
    ) -> State:
        """The state after at most ``steps`` iterations; a budget of calls is kept exactly, one of
        seconds to within a chunk.
        """
        if not isinstance(state.oracle, TorchOracle):
            fail("state", "must be of a torch backend", type(state.oracle).__name__)
        return run_counted(self._replay, state, steps, self.chunk, calls, seconds)

    def _replay(self, state: State, chunk: Chunk) -> tuple[ByName, int]:
        """Run the iterations of a chunk, with graphs that are captured where there are none yet.

        Returns:
            The values, and the iterations done: all, or fewer where x or y is no number any more.
        """
        oracle, problem = state.oracle, state.problem
        key = (state.method, id(problem))
        captured = self._graphs.get(key)
        if captured is None or _table_addresses(captured[0]) != _table_addresses(state.values):
            captured = self._graphs[key] = _copy_values(state.values), {}
        # The graphs work on copies, at addresses that stay; tables are not copied, hence the check.
        values, graphs = captured
        _overwrite(values, state.values)
        iterations = {i.kind: i for i in (*state.method.plan().first, *state.method.plan().period)}
        order, columns_by_graph = _columns_by_graph(chunk)
        rate_names = {
            name
            for block in chunk.blocks
            for name, value in block.draws.items()
            if isinstance(value, np.ndarray) and value.dtype.kind == "f"
        }
        for graph_key, columns in columns_by_graph.items():
            rates = rate_names & columns.keys()
            constants = {
                name: column[0]
                for name, column in columns.items()
                if name not in rates and not isinstance(column[0], Sample)
            }
            # Constants are built into a graph: where one has changed it is captured anew.
            graph = graphs.get(graph_key)
            if graph is None or graph.constants != constants:
                begin = time.perf_counter()
                graph = graphs[graph_key] = _IterationGraph(
                    iterations[graph_key[0]], constants, rates, problem, self.chunk
                )
                graph.load(columns)
                self._capture(graph, state.method, _CapturedOracle(oracle), values)  # type: ignore[arg-type]
                self.capturing += time.perf_counter() - begin
            graph.load(columns)
        steps_run = 0
        for steps_run, graph_key in enumerate(order, 1):
            graphs[graph_key].replay()
            if steps_run % STEPS_PER_LOOK == 0 and not are_numbers(values["x"], values["y"]):
                break
        return _copy_values(values), steps_run

    def _capture(
        self, graph: _IterationGraph, method: AnyMethod, oracle: _CapturedOracle, values: ByName
    ) -> None:
        """Set ``graph.replay``, which overwrites ``values`` with those of the next iteration.

        On a CPU it runs the iteration eagerly; on a GPU the iteration is run once and undone, then
        captured.
        """
        addresses = {t.data_ptr() for t in pytree.tree_leaves(values)}  # of all old values

        def iteration() -> None:
            """Overwrite the values with those of the next iteration; move to the next row."""
            new = method.next_values(dict(values), graph.draws(), oracle, graph.iteration.kind)
            # A new value may be another old one (the point before): copy it before that changes.
            new = pytree.tree_map(
                lambda old, v: v.clone() if v.data_ptr() in addresses - {old.data_ptr()} else v,
                values,
                new,
            )
            _overwrite(values, new)
            graph.row.add_(1)

        if values["x"].device.type != "cuda":
            graph.replay = iteration
            return
        # A first run on a stream of its own, as captures ask for.
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            _run_and_undo(iteration, oracle, values)
            graph.row.zero_()
        torch.cuda.current_stream().wait_stream(stream)
        captured = torch.cuda.CUDAGraph()
        # Graphs run one after the other and leave nothing in their memory: all of them share it.
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        with torch.cuda.graph(captured, pool=self._pool):  # type: ignore[arg-type]
            iteration()
        graph.replay = captured.replay
