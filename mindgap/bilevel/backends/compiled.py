"""Methods at compiled speed: the same method objects, run by JAX, many iterations per dispatch
(``mindgap[jax]``).

Losses are written in ``jax.numpy``; data, samples and numbers are the problem's own, drawn ahead on
the host, so the trajectory is that of eager torch. Nothing of any method is written a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from mindgap.base.check import check_call, fail, whole
from mindgap.bilevel.backends.count import run_counted
from mindgap.bilevel.backends.jax_oracle import JaxOracle, close_tables, open_tables, precision
from mindgap.bilevel.core.settings import TorchStep
from mindgap.bilevel.core.types import (
    AnyMethod,
    Array,
    Backend,
    ByName,
    ProblemOracle,
    Scalar,
    State,
)
from mindgap.bilevel.data.draws import Block, Chunk
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.bilevel.data.sample import Sample

try:
    import jax
    import jax.numpy as jnp
    from jax import lax
except ImportError as error:  # pragma: no cover - depends on the installation
    raise ImportError("compiled methods need JAX: pip install 'mindgap[jax]'") from error


Table = NDArray[Any]
#: Iterations between two looks at whether x and y are numbers.
LOOK = 64


class JaxBackend(Backend):
    """Runs methods in JAX, many iterations per dispatch.

    Args:
        upper: the upper loss in ``jax.numpy``, ``(x, y, batch) -> scalar``; x, y and batch in the
            forms the problem has.
        lower: the lower loss likewise.
        chunk: most iterations of one dispatch.
        unroll: rounds of an inner loop written out at a time (loops of up to 4 always are): more
            may be faster to run and is slower to compile.

    The problem must hold tensors, tuples or dicts (no modules, streams or datasets), draw no random
    numbers in its losses and, with a fixed partition, have equal batches (``Batches(...,
    last="drop")``).

    Example:
        >>> from mindgap.bilevel import SABA, solve
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> backend = JaxBackend(
        ...     upper=lambda x, y, b: ((y - b) ** 2).mean(),
        ...     lower=lambda x, y, b: ((y - x * b) ** 2).mean(),
        ... )
        >>> method = SABA(lr_x=0.1, lr_y=0.2)
        >>> solution = solve(example_problem(), method, steps=500, backend=backend)
        >>> solution.message, round(float(solution.x), 4), solution.state.total_calls
        ('done: 500 iterations', 1.0, 2500)
    """

    check_every = 8192

    def __init__(
        self,
        upper: Callable[..., Any],
        lower: Callable[..., Any],
        *,
        chunk: int = 8192,
        unroll: int = 1,
    ) -> None:
        for name, loss in (("upper", upper), ("lower", lower)):
            check_call(name, loss, "a function of (x, y, batch) in jax.numpy", None, None, None)
        self.losses = (upper, lower)
        self.chunk = whole("chunk", chunk, least=1)
        self.unroll = whole("unroll", unroll, least=1)
        self.compiled: dict[Any, Any] = {}  # what a program depends on -> the program
        self.compared: dict[int, BilevelProblem] = {}  # by id; kept, so that no other gets it

    def oracle(
        self, problem: BilevelProblem, method: AnyMethod, seed: int, distributed: bool
    ) -> JaxOracle:
        """Derivatives of the problem, after a look at whether this backend can run it."""
        if distributed:
            fail("distributed", "must be False for the compiled backend", True)
        if isinstance(method.x_step, TorchStep):
            steps = "'plain', 'normalised', 'clipped', AdamStep or MomentumStep"
            fail("x_step", f"must be one of {steps} for the compiled backend", method.x_step)
        method.check_problem(problem)
        packs = problem.pack_x, problem.pack_y
        one_dtype = packs[0].dtype == packs[1].dtype and not any(pack.dtypes for pack in packs)
        if not one_dtype or problem.dtype is torch.bfloat16 or problem.micro_batch:
            rule = "must have one dtype (not bfloat16) and no micro_batch for the compiled backend"
            fail("problem", rule, problem.dtype)
        with precision(problem):
            oracle = JaxOracle(problem, *self.losses, unroll=self.unroll)
            if id(problem) not in self.compared:
                oracle.check_losses(seed)
                self.compared[id(problem)] = problem
            return oracle

    def start(self, method: AnyMethod, oracle: ProblemOracle, seed: int) -> State:
        with precision(oracle.problem):
            return method.start_with(oracle, seed)

    def norm(self, vector: Array) -> float:
        return float(np.linalg.norm(np.asarray(vector)))

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
        with precision(state.problem):
            return run_counted(self._dispatch, state, steps, self.chunk, calls, seconds)

    def _dispatch(self, state: State, chunk: Chunk) -> tuple[ByName, int]:
        """Compile (once for each form) and run the iterations of a chunk.

        Returns:
            The values, and the iterations done: all, or fewer where x or y is no number any more.
        """
        # Tables have room for a full dispatch, so that one of another length needs no compilation.
        iterations_per_cycle = sum(block.length for block in chunk.blocks)
        cycles = chunk.cycles
        if cycles > 1:
            cycles = max(cycles, self.chunk // max(iterations_per_cycle, 1))
        packed_blocks = []
        for block in chunk.blocks:
            room = block.length
            if chunk.cycles == 1 and room > 1:
                room = max(room, self.chunk)
            packed_blocks.append(pack_draws(block, cycles, room, state.problem))
        tables, layouts = [p.tables for p in packed_blocks], [p.layout for p in packed_blocks]
        constants = [p.constants for p in packed_blocks]
        lengths = np.array([block.length for block in chunk.blocks], dtype=np.int32)
        single = chunk.cycles == 1  # then the blocks' lengths are arguments
        # All that the compiled code depends on; the numbers themselves are its arguments.
        key = (
            state.method.without_rates(),
            id(state.problem),
            tuple(block.kind for block in chunk.blocks),
            single,
            None if single else tuple(lengths.tolist()),
            tuple(map(tuple, layouts)),
            tuple((integers.shape, others.shape) for integers, others in tables),
        )
        oracle = state.oracle
        if not isinstance(oracle, JaxOracle):
            fail("state", "must be of the compiled backend", type(oracle).__name__)
        if key not in self.compiled:
            self.compiled[key] = jax.jit(
                partial(self.iterate, state.method, oracle, chunk, layouts, single)
            )
        values, done = self.compiled[key](
            state.values, oracle.arrays, tables, constants, np.int32(chunk.cycles), lengths
        )
        return values, iterations_per_cycle * (chunk.cycles if single else int(done))

    @staticmethod
    def iterate(
        method: AnyMethod,
        oracle: JaxOracle,
        chunk: Chunk,
        layouts: list[list[DrawPlace]],
        single: bool,
        values: ByName,
        arrays: dict[str, Any],
        tables: list[tuple[Array, Array]],
        constants: list[Array],
        cycles: Scalar,
        lengths: Array,
        look: bool = True,
    ) -> tuple[ByName, Scalar]:
        """The iterations of a chunk, traced by JAX.

        Args:
            chunk: its blocks give kinds and lengths; draws are read from the tables.
            layouts, tables, constants: the packed draws of each block, see ``PackedDraws``.
            single: whether there is one cycle, of a length known only when it runs.
            values: at the start.
            arrays: the data of both levels by "upper" and "lower", as the oracle keeps them.
            cycles, lengths: cycles in all, and iterations of each block.
            look: stop where x or y is no number any more, after every ``LOOK`` iterations.

        Returns:
            The values after the iterations, and the cycles done.
        """
        inner_oracle = oracle.with_arrays(arrays)

        def run_iteration(b: int, cycle: Scalar, i: Scalar, v: ByName) -> ByName:
            """The values after iteration i of block b in a cycle; ``v`` are those before it."""
            rows: list[Any] = []  # this iteration's row of each table; None for an empty table
            for table in tables[b]:
                cycle_axis, iteration_axis, width = table.shape
                if not width:
                    rows.append(None)
                    continue
                number = cycle * iteration_axis + i  # of the row in the flat table
                if cycle_axis == 1 or iteration_axis == 1:  # the same number, cheaper when traced
                    number = i if cycle_axis == 1 else cycle
                flat = table.reshape(-1, width)
                rows.append(lax.dynamic_index_in_dim(flat, number, keepdims=False))
            draws: dict[str, Any] = {}
            for place in layouts[b]:
                if place.table is None:
                    draws[place.name] = constants[b][place.column]
                    continue
                end = place.column + int(np.prod(place.shape))
                numbers = rows[place.table][place.column : end].reshape(place.shape)
                draws[place.name] = Sample(numbers) if place.is_sample else numbers
            new = method.next_values(v, draws, inner_oracle, chunk.blocks[b].kind)
            # A loop of JAX needs values whose dtypes stay.
            return jax.tree.map(lambda after, before: jnp.asarray(after, before.dtype), new, v)

        def run_cycle(cycle: Scalar, v: ByName) -> ByName:
            """The values after a cycle: the iterations of each block in turn."""
            for b, block in enumerate(chunk.blocks):
                if b and block.length == 1:
                    # Without the barrier all samples of a cycle could be read at its start;
                    # with so much to do at once XLA hands half of it to another thread,
                    # microsecond by microsecond: twice the processor time, and slower.
                    cycle, v = lax.optimization_barrier((cycle, v))
                if block.length == 1:
                    v = run_iteration(b, cycle, 0, v)
                else:
                    length = lengths[b] if single else block.length
                    v = lax.fori_loop(0, length, partial(run_iteration, b, cycle), v)
            return v

        def run_some_cycles(carry: tuple[Scalar, ByName]) -> tuple[Scalar, ByName]:
            """The number of the next cycle and the values, after the cycles between two looks."""
            begin, v = carry
            end = jnp.minimum(begin + cycles_per_look, cycles)
            return end, lax.fori_loop(begin, end, run_cycle, v)

        def should_go_on(carry: tuple[Scalar, ByName]) -> Scalar:
            """Whether cycles are left and x and y are finite; at the start they need not be."""
            begin, v = carry
            is_finite = jnp.isfinite(v["x"].sum() + v["y"].sum())
            return (begin < cycles) & ((begin == 0) | is_finite)

        values = open_tables(values)
        if single:
            return close_tables(run_cycle(0, values)), cycles
        if not look:
            return close_tables(lax.fori_loop(0, cycles, run_cycle, values)), cycles
        cycles_per_look = max(1, LOOK // sum(block.length for block in chunk.blocks))
        done, values = lax.while_loop(should_go_on, run_some_cycles, (jnp.int32(0), values))
        return close_tables(values), done


class DrawPlace(NamedTuple):
    """Where the draws of one name stand in packed draws."""

    name: str
    is_sample: bool
    #: 0 for whole numbers, 1 for others; None for a number that never changes
    table: int | None
    column: int  # the first column in the table, or the place among the constants
    shape: tuple[int, ...]  # of one iteration's draws


class PackedDraws(NamedTuple):
    """The draws of a block as arrays that a compiled function takes."""

    #: whole numbers in 32 bits, and others in the problem's precision; axes (cycle, iteration,
    #: column)
    tables: tuple[Table, Table]
    layout: list[DrawPlace]
    constants: Table  # the numbers that never change


def pack_draws(block: Block, cycles: int, room: int, problem: BilevelProblem) -> PackedDraws:
    """The draws of a block, in tables with room for ``cycles`` times ``room`` iterations."""
    float_type = np.float64 if problem.dtype == torch.float64 else np.float32
    widths = [0, 0]  # columns of the table of whole numbers, and of the other, so far
    layout: list[DrawPlace] = []
    constants: list[float] = []
    pieces: list[tuple[int, int, Table]] = []  # table (0 or 1), first column, values
    for name, value in block.draws.items():
        if isinstance(value, float):
            layout.append(DrawPlace(name, False, None, len(constants), ()))
            constants.append(value)
            continue
        is_sample = isinstance(value, Sample)
        array = value.which if is_sample else value
        table = 0 if np.issubdtype(array.dtype, np.integer) else 1
        layout.append(DrawPlace(name, is_sample, table, widths[table], array.shape[2:]))
        flat = array.reshape(*array.shape[:2], -1)
        pieces.append((table, widths[table], flat))
        widths[table] += flat.shape[2]
    whole_numbers = np.zeros((cycles, room, widths[0]), np.int32)
    tables = whole_numbers, np.zeros((cycles, room, widths[1]), float_type)
    for table, column, values in pieces:
        rows, iterations, width = values.shape
        tables[table][:rows, :iterations, column : column + width] = values
    return PackedDraws(tables, layout, np.array(constants, float_type))
