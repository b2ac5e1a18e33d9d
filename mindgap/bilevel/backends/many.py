"""Many runs of one method in one compiled program: all points of a grid of rates with all seeds.

Rates are inputs of a compiled iteration, so the points differ in numbers alone; those of one seed
read the same samples, so that a product of a batch with one vector becomes a product with a matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import torch
from numpy.typing import NDArray

from mindgap.base.check import fail
from mindgap.bilevel.backends.compiled import JaxBackend, pack_draws
from mindgap.bilevel.backends.count import calls_of_chunk, next_length
from mindgap.bilevel.backends.jax_oracle import JaxOracle, precision
from mindgap.bilevel.core.types import Array, ByName
from mindgap.bilevel.data.draws import Chunk, draw_chunk, draw_start, rates_at
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import Sample
from mindgap.bilevel.method import Method


class ManyRuns:
    """Runs of several points (methods that differ in rates alone) with several seeds.

    Args:
        backend: the losses in JAX; it keeps what was compiled.
        problem: what to solve.
        points: methods of one class, equal but for rates.
        seeds: of the draws.

    Attributes:
        values: the runs' values, with leading axes (seeds, points).
        t: iterations done.
        calls: oracle calls of a run so far, by seed.

    Example:
        >>> from mindgap.bilevel import SOBA, solve
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> problem = example_problem()
        >>> losses = (
        ...     lambda x, y, b: ((y - b) ** 2).mean(),
        ...     lambda x, y, b: ((y - x * b) ** 2).mean(),
        ... )
        >>> points = [SOBA(lr_x=lr, lr_y=0.2) for lr in (0.05, 0.1)]
        >>> runs = ManyRuns(JaxBackend(*losses), problem, points, [0, 1, 2])
        >>> runs.run(40)
        >>> alone = solve(problem, points[1], 40, seed=2).state
        >>> runs.values["x"].shape, abs(float(runs.values["x"][2, 1, 0]) - float(alone.x)) < 1e-6
        ((3, 2, 1), True)
    """

    def __init__(
        self,
        backend: JaxBackend,
        problem: BilevelProblem,
        points: Sequence[Method],
        seeds: Sequence[int],
    ) -> None:
        method = points[0]
        if any(point.without_rates() != method.without_rates() for point in points):
            fail("points", "must be methods that differ in rates alone", list(points)[:2])
        if method.plan().growing is not None:
            fail("points", "must have iterations that do not grow", method)
        self.backend, self.points, self.seeds = backend, list(points), list(seeds)
        self.oracle: JaxOracle = backend.oracle(problem, method, self.seeds[0], False)
        self.t, self.calls = 0, [0] * len(self.seeds)
        self.values, self._drawn = self._start()  # _drawn: by seed, draws made of each stream

    def _compile_once(self, key: tuple[Any, ...], function: Callable[..., Any]) -> Any:
        """A function, compiled at its first use with this key, method and problem."""
        full_key = (*key, self.points[0].without_rates(), id(self.oracle.problem))
        if full_key not in self.backend.compiled:
            self.backend.compiled[full_key] = jax.jit(function)
        return self.backend.compiled[full_key]

    def _start(self) -> tuple[ByName, list[dict[str, int]]]:
        """The values of all points and seeds before the first iteration, and the draws made from
        each stream for each seed; adds the oracle calls to ``calls``.
        """
        method, oracle = self.points[0], self.oracle
        # By seed: the draws, and how many each stream gave.
        draws_by_seed, drawn_by_seed = zip(
            *(draw_start(method, oracle, seed) for seed in self.seeds), strict=True
        )
        samples = {
            name: np.stack([draws[name].which for draws in draws_by_seed])
            for name in draws_by_seed[0]
        }
        float_type = np.float64 if oracle.problem.dtype == torch.float64 else np.float32
        rates_by_point = [point.rates(0) for point in self.points]
        rates = {
            name: np.array([point_rates[name] for point_rates in rates_by_point], float_type)
            for name in rates_by_point[0]
        }

        def start(rates: dict[str, Any], samples: dict[str, Any], arrays: Any) -> ByName:
            """The values of one point and one seed before the first iteration."""
            point = copy(method)
            object.__setattr__(point, "rates", lambda t: rates)  # ``prepare`` asks for iteration 0
            inner_oracle = oracle.with_arrays(arrays)
            draws = {name: Sample(which) for name, which in samples.items()}
            return point.prepared_values(point.start_values(inner_oracle), draws, inner_oracle)

        over_points = jax.vmap(start, (0, None, None), axis_size=len(self.points))
        over_seeds = jax.vmap(over_points, (None, 0, None), axis_size=len(self.seeds))
        key = ("start", len(self.points), len(self.seeds))
        with precision(oracle.problem):
            values: ByName = self._compile_once(key, over_seeds)(rates, samples, oracle.arrays)
        for s, draws in enumerate(draws_by_seed):
            self.calls[s] += sum(oracle.start_calls(method, draws).values())
        return values, list(drawn_by_seed)

    def run(self, steps: int) -> None:
        """Make ``steps`` further iterations of all runs, a chunk of the backend per program."""
        method, problem, end = self.points[0], self.oracle.problem, self.t + steps
        while self.t < end:
            count = next_length(method, self.t, min(end - self.t, self.backend.chunk))
            chunks = [
                draw_chunk(method, self.oracle, seed, self.t, count, drawn)
                for seed, drawn in zip(self.seeds, self._drawn, strict=True)
            ]
            for s, chunk in enumerate(chunks):
                self.calls[s] += sum(calls_of_chunk(method, problem, chunk).values())
            with precision(problem):
                self.values = self._dispatch(chunks)
            self._drawn = [chunk.drawn for chunk in chunks]
            self.t += count

    def keep_points(self, numbers: Sequence[int]) -> None:
        """Drop all points but those with these positions in ``points``."""
        chosen = np.array(numbers, dtype=np.int64)
        self.points = [self.points[i] for i in numbers]
        self.values = jax.tree.map(lambda value: value[:, chosen], self.values)

    def _dispatch(self, chunks: list[Chunk]) -> ByName:
        """The values after a chunk of iterations of all points and seeds, in one program.

        Args:
            chunks: the draws of each seed, with the rates of the first point.
        """
        first_chunk, method, oracle = chunks[0], self.points[0], self.oracle
        single = first_chunk.cycles == 1  # then the blocks' lengths are arguments
        cycles = _room(first_chunk.cycles)
        integers, floats, constants, layouts = [], [], [], []
        for number, block in enumerate(first_chunk.blocks):
            room = _room(block.length) if single else block.length
            # Samples (whole numbers) differ between seeds, rates between points.
            by_seed = [
                pack_draws(chunk.blocks[number], cycles, room, oracle.problem) for chunk in chunks
            ]
            by_point = []
            for point in self.points:
                rates = rates_at(point, block.times)
                draws = {name: rates.get(name, value) for name, value in block.draws.items()}
                by_point.append(
                    pack_draws(replace(block, draws=draws), cycles, room, oracle.problem)
                )
            if any(other.layout != by_seed[0].layout for other in (*by_seed, *by_point)):
                fail("points", "must have rates that all stay or all change", self.points)
            integers.append(np.stack([draws.tables[0] for draws in by_seed]))
            floats.append(np.stack([draws.tables[1] for draws in by_point]))
            constants.append(np.stack([draws.constants for draws in by_point]))
            layouts.append(by_seed[0].layout)
        lengths = np.array([block.length for block in first_chunk.blocks], dtype=np.int32)

        def iterate(
            values: ByName,
            arrays: Any,
            integers: list[Any],
            floats: list[Any],
            constants: list[Any],
            cycles: Any,
            lengths: Any,
        ) -> ByName:
            """The values of one point and one seed after the chunk."""
            tables = list(zip(integers, floats, strict=True))
            common = (method, oracle, first_chunk, layouts, single)  # of all runs
            values_after, _ = self.backend.iterate(
                *common, values, arrays, tables, constants, cycles, lengths, look=False
            )
            return values_after

        # None marks the arguments that all points share, then those that all seeds share.
        over_points = jax.vmap(iterate, (0, None, None, 0, 0, None, None))
        over_seeds = jax.vmap(over_points, (0, None, 0, None, None, None, None))
        shapes = tuple(array.shape for array in (*integers, *floats, *constants))
        kinds = tuple(
            (block.kind, None if single else block.length) for block in first_chunk.blocks
        )
        key = ("many", kinds, single, str(layouts), shapes)
        cycle_count = np.int32(first_chunk.cycles)
        values: ByName = self._compile_once(key, over_seeds)(
            self.values, oracle.arrays, integers, floats, constants, cycle_count, lengths
        )
        return values

    def losses(self, lower: str = "y") -> NDArray[np.float64]:
        """The upper loss over all samples at each run's x and lower variable: (seeds, points)."""
        oracle = self.oracle

        def loss(x: Array, y: Array, arrays: Any) -> Any:
            # The upper loss of one run; ``arrays`` are the data, which all runs share
            return oracle.with_arrays(arrays).loss("upper", x, y)

        with precision(oracle.problem):
            over_runs = jax.vmap(jax.vmap(loss, (0, 0, None)), (0, 0, None))
            compiled = self._compile_once(("losses",), over_runs)
            losses = compiled(self.values["x"], self.values[lower], oracle.arrays)
            return np.asarray(losses, np.float64)


def _room(length: int) -> int:
    """The power of two at or above a length, so that few lengths need a compilation."""
    return int(2 ** math.ceil(math.log2(max(length, 1))))
