"""Oracle calls and table sizes of a method without running it: compiled steps cannot count."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mindgap.base.count import OracleCount
from mindgap.bilevel.backends.oracles import TorchOps
from mindgap.bilevel.core.types import AnyMethod, Array, ByName, Oracle, State, advance
from mindgap.bilevel.data.draws import Chunk, draw_chunk
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import Sample, is_full, row


class ProblemSizes(NamedTuple):
    """What the number of oracle calls depends on besides the method."""

    upper: int  # minibatches per epoch
    lower: int
    dim_y: int  # lower unknowns
    sample_axes: int = 0  # axes of a sample of one minibatch


class CountingOracle(TorchOps, Oracle):
    """Derivatives that are all zero, of one unknown each, and counted as the real ones are.

    Example:
        >>> oracle, zero = CountingOracle(ProblemSizes(4, 8, dim_y=3)), torch.zeros(1)
        >>> _ = oracle.system(zero, zero, zero, Sample(0)), oracle.upper(zero, zero, Sample(None))
        >>> oracle.calls.as_dict()
        {'Hz': 1, 'Jz': 1, 'f_x': 4, 'f_y': 4, 'g_y': 1}
    """

    project_x = project_y = None
    start: tuple[Tensor, Tensor] = (torch.zeros(1), torch.zeros(1))

    def __init__(self, sizes: ProblemSizes) -> None:
        self.sizes, self.calls = sizes, OracleCount()

    @classmethod
    def of(cls, problem: BilevelProblem) -> CountingOracle:
        """The oracle that counts for a problem."""
        upper, lower = problem.upper_data, problem.lower_data
        sizes = ProblemSizes(upper.batches, lower.batches, problem.dim_y, lower.sample_axes)
        return cls(sizes)

    def batches(self, level: str) -> int:
        return self.sizes.upper if level == "upper" else self.sizes.lower

    def weight(self, level: str, sample: Sample) -> float:
        return 1.0  # the numbers are not read

    def _count(self, level: str, sample: Sample, *names: str) -> tuple[Tensor, ...]:
        """Count one call of each name per minibatch of the sample; returns one zero per name."""
        minibatches = 1
        if is_full(sample):
            minibatches = self.batches(level)
        elif np.ndim(sample.which) > self.sizes.sample_axes:
            minibatches = len(sample.which)
        for name in names:
            self.calls.add(name, minibatches)
        return tuple(torch.zeros(1) for _ in names)

    def first(self, level: str, variable: str, x: Array, y: Array, sample: Sample) -> Array:
        return self._count(level, sample, ("g_" if level == "lower" else "f_") + variable)[0]

    def second(
        self, x: Array, y: Array, z: Array, sample: Sample, names: tuple[str, ...]
    ) -> tuple[Array, ...]:
        return self._count("lower", sample, *names)

    def upper(self, x: Array, y: Array, sample: Sample) -> tuple[Array, Array]:
        f_x, f_y = self._count("upper", sample, "f_x", "f_y")
        return f_x, f_y

    def dense(self, x: Array, y: Array, sample: Sample) -> tuple[Array, Array, Array]:
        self._count("lower", sample, "g_y", *("Hz", "Jz") * self.sizes.dim_y)
        return torch.zeros(1), torch.zeros(1, 1), torch.zeros(1, 1)


def value_shapes(method: AnyMethod, problem: BilevelProblem) -> ByName:
    """The values of a method at its start, as meta tensors: shapes and dtypes without numbers."""
    oracle = CountingOracle.of(problem)
    oracle.start = problem.pack_x.start.to("meta"), problem.pack_y.start.to("meta")
    return method.start_values(oracle)


def table_bytes(method: AnyMethod, problem: BilevelProblem) -> int:
    """Bytes of the tables, the arrays with more than one axis, that a method keeps."""
    leaves = torch.utils._pytree.tree_leaves(value_shapes(method, problem))
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves if leaf.dim() > 1)


def calls_of_start(method: AnyMethod, problem: BilevelProblem, draws: ByName) -> dict[str, int]:
    """Oracle calls of the phase before the first iteration."""
    oracle = CountingOracle.of(problem)
    method.prepared_values(method.start_values(oracle), draws, oracle)
    return oracle.calls.as_dict()


def calls_of_chunk(method: AnyMethod, problem: BilevelProblem, chunk: Chunk) -> dict[str, int]:
    """Oracle calls of all iterations of a chunk, by name.

    Calls depend on the kind of an iteration, on the shapes of its samples and on its random whole
    numbers (lengths of series), so that each different iteration is counted once.
    """
    total: dict[str, int] = {}
    sizes = CountingOracle.of(problem).sizes
    for block in chunk.blocks:
        samples = {n: v for n, v in block.draws.items() if isinstance(v, Sample)}
        shapes = tuple((name, sample.which.shape[2:]) for name, sample in samples.items())
        dtypes = {n: np.asarray(v).dtype for n, v in block.draws.items() if n not in samples}
        whole_numbers = [name for name, dtype in dtypes.items() if dtype.kind == "i"]
        rates = tuple(name for name, dtype in dtypes.items() if dtype.kind != "i")
        # ``distinct`` has one row per combination of whole numbers, ``occurrences`` how many
        # iterations have it. One number is the common case, in which a sort of rows would cost more
        # than the draws.
        if len(whole_numbers) == 1:
            distinct, occurrences = np.unique(block.draws[whole_numbers[0]], return_counts=True)
            distinct = distinct[:, None]
        elif whole_numbers:
            rows = np.stack([block.draws[name].reshape(-1) for name in whole_numbers], 1)
            distinct, occurrences = np.unique(rows, axis=0, return_counts=True)
        else:
            distinct, occurrences = np.zeros((1, 0), int), np.array([chunk.cycles * block.length])
        for row_of_numbers, count in zip(distinct.tolist(), occurrences.tolist(), strict=True):
            numbers = tuple(zip(whole_numbers, row_of_numbers, strict=True))
            calls = _calls(method, block.kind, shapes, numbers, rates, sizes)
            for name, number in calls.items():
                total[name] = total.get(name, 0) + number * count
    return total


def next_length(method: AnyMethod, t: int, steps_left: int) -> int:
    """Iterations of the next dispatch: up to the end of the first iterations or of a period, or as
    many whole periods as there are left.

    Example:
        >>> from mindgap.bilevel import SRBA
        >>> [next_length(SRBA(lr_x=0.1, lr_y=0.1, period=3), t, 10) for t in (0, 2)]
        [9, 1]
    """
    plan = method.plan()
    first_count, period = len(plan.first), len(plan.period)
    if t < first_count:
        return min(steps_left, first_count - t)
    done = (t - first_count) % period  # iterations of the present period
    if done or steps_left < period:
        return min(steps_left, period - done)
    return steps_left - steps_left % period


def run_counted(
    dispatch: Callable[[State, Chunk], tuple[ByName, int]],
    state: State,
    steps: int,
    chunk_size: int,
    calls: int | None,
    seconds: float | None,
) -> State:
    """The state after at most ``steps`` iterations of a backend that cannot count while it runs.

    Args:
        dispatch: runs the iterations of a chunk from a state and returns (the values, how many
            were run: fewer than all where x or y is no number any more).
        state: where to begin.
        steps: most iterations.
        chunk_size: most iterations of one chunk.
        calls: budget of oracle calls; the last iteration is the one that reaches it.
        seconds: budget of time, kept by the chunk.
    """
    method, end = state.method, state.t + steps
    deadline = math.inf if seconds is None else time.perf_counter() + seconds

    def draw(count: int) -> tuple[Chunk, dict[str, int]]:
        """The next ``count`` iterations, and their oracle calls by name."""
        chunk = draw_chunk(method, state.oracle, state.seed, state.t, count, state.drawn)
        return chunk, calls_of_chunk(method, state.problem, chunk)

    while state.t < end:
        count = next_length(method, state.t, min(end - state.t, chunk_size))
        chunk, spent = draw(count)
        if calls is not None and state.total_calls + sum(spent.values()) > calls:
            reached = steps_until(state, lambda s: s.total_calls >= calls, count)
            count = next_length(method, state.t, reached)
            chunk, spent = draw(count)
        values, steps_run = dispatch(state, chunk)
        if steps_run < count:  # what was drawn and counted ends where the run does
            chunk, spent = draw(steps_run)
        state = advance(state, values, steps_run, chunk.drawn, spent)
        out_of_calls = calls is not None and state.total_calls >= calls
        if steps_run < count or out_of_calls or time.perf_counter() >= deadline:
            break
    return state


def steps_until(state: State, reached: Callable[[State], bool], most: int = 1024) -> int:
    """Iterations until ``reached`` says True of the state; ``most`` if it does not before.

    No iteration is run: the states that ``reached`` gets have counters alone, no values.

    Args:
        state: where the run stands.
        reached: function of a state; it may read iterations, updates and calls.
        most: iterations to look ahead, at least 1.

    Example:
        >>> from mindgap.bilevel import SOBA
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> state = SOBA(lr_x=0.1, lr_y=0.1).start(example_problem())  # five calls per iteration
        >>> steps_until(state, lambda s: s.total_calls >= 21)
        5
    """
    method, sizes = state.method, CountingOracle.of(state.problem).sizes
    counters = replace(state, values={})
    chunk = draw_chunk(method, state.oracle, state.seed, state.t, most, state.drawn)
    for number, (kind, draws) in enumerate(chunk.steps(), 1):
        # All that the oracle calls of an iteration depend on, besides its kind
        shapes = tuple((n, np.shape(v.which)) for n, v in draws.items() if isinstance(v, Sample))
        numbers = tuple((n, v) for n, v in draws.items() if isinstance(v, int))
        rates = tuple(n for n, v in draws.items() if isinstance(v, float))
        calls = _calls(method, kind, shapes, numbers, rates, sizes)
        counters = advance(counters, {}, 1, counters.drawn, calls)
        if reached(counters):
            return number
    return most


@lru_cache(maxsize=4096)
def _calls(
    method: AnyMethod,
    kind: str,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    numbers: tuple[tuple[str, int], ...],
    rates: tuple[str, ...],
    sizes: ProblemSizes,
) -> dict[str, int]:
    """Oracle calls by name of one iteration of a kind; found by running it on zeros, and cached.

    Args:
        shapes: (name, axes before those of one minibatch) of each sample.
        numbers: (name, value) of each random whole number, such as the length of a series.
        rates: their names.
        sizes: of the problem.
    """
    oracle = CountingOracle(sizes)
    draws: dict[str, Any] = {
        name: row(Sample(np.zeros((1, *shape), int)), 0) for name, shape in shapes
    }
    draws.update(numbers)
    draws.update(dict.fromkeys(rates, 1.0))
    method.next_values(method.start_values(oracle), draws, oracle, kind)
    return oracle.calls.as_dict()
