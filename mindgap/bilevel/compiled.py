"""Methods at compiled speed: the same method objects, run by JAX, many iterations a dispatch (``mindgap[jax]``).

Losses are written in ``jax.numpy``; data, tokens and numbers are the problem's own, drawn ahead on the host, so the
trajectory is that of eager torch. Nothing of any method is written a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from mindgap.base.check import fail, whole
from mindgap.bilevel.count import calls_of_run, calls_of_start
from mindgap.bilevel.derivatives import Derivatives
from mindgap.bilevel.draws import Chunk, draw_chunk
from mindgap.bilevel.method import Method, State, advance
from mindgap.bilevel.problem import BilevelProblem, Pack
from mindgap.bilevel.sample import Batches, Sample, is_full
from mindgap.bilevel.upper import TorchStep

try:
    import jax
    import jax.numpy as jnp
    from jax import lax
except ImportError as error:  # pragma: no cover - depends on the installation
    raise ImportError("compiled methods need JAX: pip install 'mindgap[jax]'") from error


class JaxOps:
    """The methods' array operations, in JAX (the twin of :class:`mindgap.bilevel.ops.TorchOps`)."""

    #: Loops of a length known in advance are written out in pieces of this many rounds.
    unroll = 1

    eigh = staticmethod(lambda a: tuple(jnp.linalg.eigh(a)))
    minimum = staticmethod(jnp.minimum)
    maximum = staticmethod(jnp.maximum)
    zeros_like = staticmethod(jnp.zeros_like)

    @staticmethod
    def move(x: Any, d: Any, lr: Any) -> Any:
        """``x - lr * d``."""
        return x - lr * d

    @staticmethod
    def mix(a: Any, b: Any, weight: Any) -> Any:
        """``(1 - weight) * a + weight * b``."""
        return a + weight * (b - a)

    @staticmethod
    def zeros(shape: tuple[int, ...], like: Any) -> Any:
        """Zeros of a shape in the dtype of ``like``."""
        return jnp.zeros(shape, like.dtype)

    @staticmethod
    def scalar(value: float, like: Any) -> Any:
        """A number as an array without axes."""
        return jnp.asarray(value, like.dtype)

    @staticmethod
    def norm(x: Any) -> Any:
        """Euclidean norm."""
        return jnp.sqrt(jnp.sum(x * x))

    @staticmethod
    def row_of(table: Any, index: Any) -> Any:
        """One row of a table."""
        return lax.dynamic_index_in_dim(table, index, keepdims=False)

    @staticmethod
    def with_row(table: Any, index: Any, value: Any) -> Any:
        """The table with one row replaced (in place after compilation)."""
        return lax.dynamic_update_index_in_dim(table, value, index, 0)

    @classmethod
    def loop(cls, body: Callable[..., Any], carry: Any, inputs: tuple[Any, ...], length: Any = None) -> Any:
        """``for each row of the inputs: carry = body(carry, *row)``; a length may be known only when it runs."""
        arrays = [a.which if isinstance(a, Sample) else jnp.asarray(a) for a in inputs]
        wrap = [isinstance(a, Sample) for a in inputs]

        def row(i: Any) -> list[Any]:
            taken = [lax.dynamic_index_in_dim(a, i, keepdims=False) for a in arrays]
            return [Sample(t) if w else t for t, w in zip(taken, wrap, strict=True)]

        if length is not None:
            return lax.fori_loop(0, length, lambda i, c: body(c, *row(i)), carry)

        if len(arrays[0]) <= max(cls.unroll, 4):  # a short loop is written out: no loop costs less than any
            for i in range(len(arrays[0])):
                carry = body(carry, *[Sample(a[i]) if w else a[i] for a, w in zip(arrays, wrap, strict=True)])
            return carry

        def step(c: Any, xs: list[Any]) -> tuple[Any, None]:
            return body(c, *[Sample(t) if w else t for t, w in zip(xs, wrap, strict=True)]), None

        return lax.scan(step, carry, arrays, unroll=min(cls.unroll, len(arrays[0])))[0]


class JaxOracle(Derivatives):
    """Derivatives of a problem in JAX; the twin of :class:`mindgap.bilevel.oracles.TorchOracle`.

    Hz, Jz and g_y come from one forward sweep through the gradient: the derivative of (g_x, g_y) along z in y is
    (Jz, Hz).
    """

    ops = JaxOps
    seeded = False

    def __init__(self, problem: BilevelProblem, upper: Callable[..., Any], lower: Callable[..., Any]) -> None:
        self.problem = problem
        self.losses = {"upper": upper, "lower": lower}
        self.arrays = {level: _arrays(problem, level) for level in ("upper", "lower")}
        self.project_x, self.project_y = problem.project_x, problem.project_y
        self.calls: dict[str, int] = {}

    def with_arrays(self, arrays: dict[str, Any]) -> JaxOracle:
        """The same oracle on other arrays: those a compiled function was handed."""
        twin = object.__new__(JaxOracle)
        twin.__dict__.update(self.__dict__, arrays=arrays)
        return twin

    @property
    def start(self) -> tuple[Any, Any]:
        """x and y at the start, flat."""
        return self.from_torch(self.problem.pack_x.start), self.from_torch(self.problem.pack_y.start)

    @staticmethod
    def to_torch(vector: Any) -> torch.Tensor:
        """A JAX array as a tensor."""
        return torch.from_numpy(np.array(vector))

    def from_torch(self, vector: torch.Tensor) -> Any:
        """A tensor as a JAX array of the same precision."""
        with _precision(self.problem):
            return jnp.asarray(vector.detach().cpu().numpy())

    def batches(self, level: str) -> int:
        """Minibatches in an epoch of a level."""
        return self.problem.data(level).batches

    def weight(self, level: str, token: Sample) -> float:
        """Share of the level's samples in a batch: all batches are equal here."""
        return 1.0 / self.problem.data(level).batches

    def start_calls(self, method: Method, draws: dict[str, Any]) -> dict[str, int]:
        """Oracle calls of the phase before the first iteration."""
        return calls_of_start(method, self.problem, draws)

    # Derivatives.

    def _batch(self, level: str, token: Sample) -> Any:
        data, arrays = self.problem.data(level), self.arrays[level]
        if is_full(token):
            return _merge(arrays) if data.order == "partition" else arrays
        which = jnp.asarray(token.which)
        if which.ndim == 0:  # a contiguous slice of the fixed partition
            return jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, which, keepdims=False), arrays)
        if data.order == "partition":  # a large batch out of several
            return _merge(jax.tree.map(lambda a: a[which], arrays))
        return jax.tree.map(lambda a: a[which.reshape(-1)], arrays)

    def _loss(self, level: str, token: Sample) -> Callable[[Any, Any], Any]:
        batch, loss = self._batch(level, token), self.losses[level]
        view_x, view_y = partial(_view, self.problem.pack_x), partial(_view, self.problem.pack_y)
        return lambda x, y: jnp.reshape(loss(view_x(x), view_y(y), batch), ())

    def lower(self, x: Any, y: Any, token: Sample) -> Any:
        """g_y."""
        return jax.grad(self._loss("lower", token), 1)(x, y)

    def lower_x(self, x: Any, y: Any, token: Sample) -> Any:
        """g_x."""
        return jax.grad(self._loss("lower", token), 0)(x, y)

    def system(self, x: Any, y: Any, z: Any, token: Sample) -> tuple[Any, Any, Any]:
        """g_y, Hz and Jz."""
        gradients = jax.grad(self._loss("lower", token), (0, 1))
        (_, g_y), (jz, hz) = jax.jvp(lambda v: gradients(x, v), (y,), (z,))
        return g_y, hz, jz

    def products(self, x: Any, y: Any, z: Any, token: Sample) -> tuple[Any, Any]:
        """Hz and Jz."""
        _, hz, jz = self.system(x, y, z, token)
        return hz, jz

    def hessian(self, x: Any, y: Any, z: Any, token: Sample) -> Any:
        """Hz."""
        gradient = jax.grad(self._loss("lower", token), 1)
        return jax.jvp(lambda v: gradient(x, v), (y,), (z,))[1]

    def mixed(self, x: Any, y: Any, z: Any, token: Sample) -> Any:
        """Jz."""
        gradient = jax.grad(self._loss("lower", token), 0)
        return jax.jvp(lambda v: gradient(x, v), (y,), (z,))[1]

    def upper(self, x: Any, y: Any, token: Sample) -> tuple[Any, Any]:
        """f_x and f_y."""
        f_x, f_y = jax.grad(self._loss("upper", token), (0, 1))(x, y)
        return f_x, f_y

    def dense(self, x: Any, y: Any, token: Sample) -> tuple[Any, Any, Any]:
        """g_y, H and J as matrices."""
        loss = self._loss("lower", token)
        gradients = jax.grad(loss, (0, 1))
        j, h = jax.jacfwd(lambda v: gradients(x, v))(y)
        return jax.grad(loss, 1)(x, y), h, j


class JaxBackend:
    """Runs methods in JAX, many iterations a dispatch.

    Args:
        upper: the upper loss in ``jax.numpy``, ``(x, y, batch) -> scalar``; x, y and batch in the forms the problem
            has.
        lower: the lower loss likewise.
        chunk: most iterations of one dispatch.
        unroll: rounds of an inner loop written out at a time (loops of up to 4 always are): more may be faster to run
            and is slower to compile.

    The problem must hold tensors, tuples or dicts (no modules, streams or datasets), draw no random numbers in its
    losses and, with a fixed partition, have equal batches (``Batches(..., last="drop")``).

    Example:
        >>> import torch
        >>> from mindgap.bilevel import SABA, solve
        >>> def upper(x, y, b):
        ...     return ((y - b) ** 2).mean()
        >>> def lower(x, y, b):
        ...     return ((y - x * b) ** 2).mean()
        >>> problem = BilevelProblem(upper, lower, x=torch.tensor([2.0]), y=torch.zeros(1),
        ...     upper_data=torch.ones(4), lower_data=torch.ones(4), batch_size=2)
        >>> solution = solve(problem, SABA(lr_x=0.1, lr_y=0.2), steps=500, backend=JaxBackend(upper, lower))
        >>> solution.message, round(float(solution.x), 4), solution.state.total_calls
        ('done: 500 iterations', 1.0, 2500)
    """

    check_every = 8192

    def __init__(
        self, upper: Callable[..., Any], lower: Callable[..., Any], *, chunk: int = 8192, unroll: int = 1
    ) -> None:
        for name, loss in (("upper", upper), ("lower", lower)):
            if not callable(loss):
                fail(name, "must be a function of (x, y, batch) in jax.numpy", loss)
        self.losses = (upper, lower)
        self.chunk = whole("chunk", chunk, least=1)
        self.unroll = whole("unroll", unroll, least=1)
        self._compiled: dict[Any, Any] = {}

    def oracle(self, problem: BilevelProblem, method: Method, seed: int, distributed: bool) -> JaxOracle:
        """Derivatives of the problem, after a look at whether this backend can run it."""
        if distributed:
            fail("distributed", "must be False for the compiled backend", True)
        if isinstance(method.x_step, TorchStep):
            fail("x_step", "must be one of 'plain', 'normalised', 'clipped' for the compiled backend", method.x_step)
        method.check_problem(problem)
        with _precision(problem):
            oracle = JaxOracle(problem, *self.losses)
            ops = type("JaxOps", (JaxOps,), {"unroll": self.unroll})
            oracle.ops = ops  # type: ignore[assignment]
        return oracle

    def start(self, method: Method, oracle: JaxOracle, seed: int) -> State:
        """The state before the first iteration."""
        with _precision(oracle.problem):
            return method.init_with(oracle, seed)

    def norm(self, vector: Any) -> float:
        """Euclidean norm as a number."""
        return float(np.linalg.norm(np.asarray(vector)))

    def run(self, state: State, steps: int, calls: int | None, seconds: float | None) -> State:
        """At most that many iterations; a budget of calls is kept exactly, one of seconds by the dispatch."""
        method, problem = state.method, state.problem
        prelude, period = len(method.prelude()), len(method.kinds())
        with _precision(problem):
            done = 0
            while done < steps:
                left = min(steps - done, self.chunk)
                if state.t < prelude:
                    count = min(left, prelude - state.t)
                elif (state.t - prelude) % period or left < period:
                    count = min(left, period - (state.t - prelude) % period)
                else:
                    count = left - left % period
                chunk = draw_chunk(method, state.oracle, state.seed, state.t, count, state.drawn)
                spent = calls_of_run(method, problem, chunk)
                if calls is not None and state.total_calls + sum(spent.values()) > calls and count > 1:
                    return self._to_budget(state, steps - done, calls)
                values = self._dispatch(state, chunk)
                state = advance(state, values, count, chunk.drawn, spent)
                done += count
                if (calls is not None and state.total_calls >= calls) or seconds is not None:
                    break
        return state

    def _to_budget(self, state: State, steps: int, calls: int) -> State:
        """The last iterations before a budget is spent, one at a time."""
        method = state.method
        for _ in range(steps):
            chunk = draw_chunk(method, state.oracle, state.seed, state.t, 1, state.drawn)
            spent = calls_of_run(method, state.problem, chunk)
            state = advance(state, self._dispatch(state, chunk), 1, chunk.drawn, spent)
            if state.total_calls >= calls:
                break
        return state

    def _dispatch(self, state: State, chunk: Chunk) -> Any:
        """Compile (once for each form) and run the iterations of a chunk."""
        cycles = 1 if chunk.cycles == 1 else self._padded_cycles(state.method, chunk)
        packed = [_packed(run, cycles, self._room(run, chunk), state.problem) for run in chunk.runs]
        tables, layouts = [p[0] for p in packed], [p[1] for p in packed]
        lengths = np.array([run.length for run in chunk.runs], dtype=np.int32)
        single = chunk.cycles == 1
        key = (state.method, id(state.problem), tuple(r.kind for r in chunk.runs), single,
               None if single else tuple(lengths.tolist()), tuple(tuple(map(str, layout)) for layout in layouts),
               tuple(tuple(t.shape for t in pair) for pair in tables))  # fmt: skip
        if key not in self._compiled:
            self._compiled[key] = jax.jit(partial(self._iterate, state.method, state.oracle, chunk, layouts, single))
        return self._compiled[key](state.values, state.oracle.arrays, tables, np.int32(chunk.cycles), lengths)

    def _padded_cycles(self, method: Method, chunk: Chunk) -> int:
        """Token arrays have room for a full dispatch, so that a shorter one needs no new compilation."""
        return max(chunk.cycles, self.chunk // max(sum(r.length for r in chunk.runs), 1))

    def _room(self, run: Any, chunk: Chunk) -> int:
        return run.length if chunk.cycles > 1 or run.length == 1 else max(run.length, self.chunk)

    @staticmethod
    def _iterate(
        method: Method,
        oracle: JaxOracle,
        chunk: Chunk,
        layouts: list[list[Any]],
        single: bool,
        values: Any,
        arrays: Any,
        tables: list[tuple[Any, Any]],
        cycles: Any,
        lengths: Any,
    ) -> Any:
        inside = oracle.with_arrays(arrays)

        def one(r: int, c: Any, i: Any, v: Any) -> Any:
            rows: list[Any] = []
            for table in tables[r]:  # one row of whole numbers, one of the others
                if not table.shape[2]:
                    rows.append(None)
                    continue
                at = i if table.shape[0] == 1 else c if table.shape[1] == 1 else c * table.shape[1] + i
                rows.append(lax.dynamic_index_in_dim(table.reshape(-1, table.shape[2]), at, keepdims=False))
            draws: dict[str, Any] = {}
            for name, is_sample, which, begin, shape in layouts[r]:
                if which is None:
                    draws[name] = begin  # a number that never changes
                    continue
                item = rows[which][begin : begin + int(np.prod(shape))].reshape(shape)
                draws[name] = Sample(item) if is_sample else item
            new = method.update(v, draws, inside, chunk.runs[r].kind)
            return jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), new, v)

        def cycle(c: Any, v: Any) -> Any:
            for r, run in enumerate(chunk.runs):
                if run.length == 1:
                    v = one(r, c, 0, v)
                else:
                    v = lax.fori_loop(0, lengths[r] if single else run.length, partial(one, r, c), v)
            return v

        return cycle(0, values) if single else lax.fori_loop(0, cycles, cycle, values)


def _precision(problem: BilevelProblem) -> Any:
    """Double precision in JAX exactly where the problem has it."""
    return jax.enable_x64(problem.dtype == torch.float64)


def _arrays(problem: BilevelProblem, level: str) -> Any:
    data = problem.data(level)
    name = f"{level}_data"
    if not isinstance(data, Batches) or not data.is_tensors:
        fail(name, "must be tensors for the compiled backend", type(data).__name__)
    if data.order != "partition":
        return jax.tree.map(lambda t: jnp.asarray(t.cpu().numpy()), data.data)
    if data.n % data.batch_size:
        fail(name, "must have batches of equal size for the compiled backend (last='drop')", (data.n, data.batch_size))
    shape = (data.batches, data.batch_size)
    return jax.tree.map(lambda t: jnp.asarray(t[: data.n].cpu().numpy().reshape(shape + tuple(t.shape[1:]))), data.data)


def _merge(arrays: Any) -> Any:
    """Batches side by side as one."""
    return jax.tree.map(lambda a: a.reshape((-1, *a.shape[2:])), arrays)


def _view(pack: Pack, vector: Any) -> Any:
    """A flat vector in the variable's own form."""
    if pack.kind == "module":
        fail(pack.name, "must be tensors for the compiled backend", "a module")
    if pack.kind == "tensor":
        return vector.reshape(pack.shapes[0])
    edges = np.cumsum(pack.sizes)[:-1]
    parts = [p.reshape(s) for p, s in zip(jnp.split(vector, edges), pack.shapes, strict=True)]
    return tuple(parts) if pack.kind == "tuple" else dict(zip(pack.keys or [], parts, strict=True))


def _packed(
    run: Any, cycles: int, room: int, problem: BilevelProblem
) -> tuple[tuple[np.ndarray, np.ndarray], list[Any]]:
    """The draws of a run as two tables (whole numbers in 32 bits, others in the problem's precision), one row an
    iteration, and where each draw stands: (name, is a token, table, first column, shape)."""
    real = np.float64 if problem.dtype == torch.float64 else np.float32
    columns: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    widths = [0, 0]
    layout: list[tuple[str, bool, int | None, Any, tuple[int, ...]]] = []
    for name, value in run.draws.items():
        if isinstance(value, float):
            layout.append((name, False, None, value, ()))
            continue
        is_sample = isinstance(value, Sample)
        a = value.which if is_sample else value
        which = 0 if np.issubdtype(a.dtype, np.integer) else 1
        flat = a.reshape(*a.shape[:2], -1)
        layout.append((name, is_sample, which, widths[which], a.shape[2:]))
        columns[which].append(flat)
        widths[which] += flat.shape[2]
    tables = []
    for parts, dtype in zip(columns, (np.int32, real), strict=True):
        table = np.zeros((cycles, room, sum(p.shape[2] for p in parts)), dtype)
        begin = 0
        for p in parts:
            table[: p.shape[0], : p.shape[1], begin : begin + p.shape[2]] = p
            begin += p.shape[2]
        tables.append(table)
    return (tables[0], tables[1]), layout
