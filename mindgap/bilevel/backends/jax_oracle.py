"""Array operations and derivatives of a problem in JAX: what the compiled backend hands to the
methods.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from typing import Any

import numpy as np
import torch

from mindgap.base.calls import call
from mindgap.base.check import RuleError, fail
from mindgap.bilevel.backends.count import calls_of_start
from mindgap.bilevel.backends.oracles import TorchOracle, scramble
from mindgap.bilevel.backends.trial import try_problem
from mindgap.bilevel.core.estimators import ROWS
from mindgap.bilevel.core.types import (
    AnyMethod,
    Array,
    ByName,
    Ops,
    ProblemOracle,
    Product,
    Scalar,
    T,
)
from mindgap.bilevel.data.problem import BilevelProblem, Pack
from mindgap.bilevel.data.sample import FULL, Batch, Batches, Sample, is_full, row

try:
    import jax
    import jax.numpy as jnp
    from jax import lax
except ImportError as error:  # pragma: no cover - depends on the installation
    raise ImportError("compiled methods need JAX: pip install 'mindgap[jax]'") from error

Axes = tuple[int, ...]
#: A product's (axes of the operand that lead in the result, axes it sums over).
Sums = tuple[Axes, Axes]


class JaxOps(Ops):
    """The methods' array operations in JAX; the twin of ``oracles.TorchOps``."""

    eigh: Callable[..., tuple[Array, Array]] = staticmethod(lambda a: tuple(jnp.linalg.eigh(a)))
    minimum: Callable[..., Array] = staticmethod(jnp.minimum)
    maximum: Callable[..., Array] = staticmethod(jnp.maximum)
    where: Any = staticmethod(jnp.where)
    zeros_like: Callable[..., Array] = staticmethod(jnp.zeros_like)

    def __init__(self, unroll: int = 1) -> None:
        #: loops of a length known in advance are written out in pieces of this many rounds
        self.unroll = unroll

    @staticmethod
    def move(x: Array, d: Array, lr: Scalar) -> Array:
        return x - lr * d

    @staticmethod
    def mix(a: Array, b: Array, weight: Scalar) -> Array:
        return a + weight * (b - a)

    @staticmethod
    def zeros(shape: tuple[int, ...], like: Array) -> Array:
        return jnp.zeros(shape, like.dtype)

    @staticmethod
    def scalar(value: float, like: Array) -> Array:
        return jnp.asarray(value, like.dtype)

    @staticmethod
    def norm(x: Array) -> Array:
        return jnp.sqrt(jnp.sum(x * x))

    @staticmethod
    def normals(seeds: Any, count: int, like: Array) -> Array:
        """``count`` standard normal numbers per seed, of shape (seeds, count), equal to torch's:
        Box and Muller's transform of hashes of seed and position.
        """
        mask, positions = np.uint32(2**32 - 1), jnp.arange(2 * count, dtype=np.uint32)
        bits = scramble(
            scramble(jnp.asarray(seeds).astype(np.uint32)[:, None], mask) + positions, mask
        )
        uniforms = (bits.astype(like.dtype) + 0.5) / 2.0**32  # never 0
        return jnp.sqrt(-2.0 * jnp.log(uniforms[:, :count])) * jnp.cos(
            2.0 * np.pi * uniforms[:, count:]
        )

    @staticmethod
    def replace_row(table: Any, index: Scalar, value: Array) -> tuple[Array, Any]:
        """``value - table[index]``, and the table with the value there, for a table opened by
        :func:`open_tables`.

        The row of the call before is written first and the old row read from the result. A read of
        the table *before* the write to it would make XLA copy the whole table, so that an iteration
        would cost as much as there are rows.
        """
        rows, waiting_index, waiting_row = table
        rows = lax.dynamic_update_index_in_dim(rows, waiting_row, waiting_index, 0)
        change = value - lax.dynamic_index_in_dim(rows, index, keepdims=False)
        return change, (rows, jnp.asarray(index, waiting_index.dtype), value)

    @staticmethod
    def after(sample: Sample, vector: Array) -> Sample:
        """The sample; where the vector has become NaN, number 0 instead.

        XLA copies a batch out of the data before it uses it, and makes all the copies it can first:
        large batches leave the cache before they are used. It drops its own barriers before it
        orders the work, so the sample has to depend on the vector.
        """
        return Sample(jnp.where(jnp.isnan(vector[0]), 0, sample.which), sample.seed)

    def loop(
        self, body: Callable[..., Any], carry: T, inputs: tuple[Any, ...], length: Scalar = None
    ) -> T:
        """The carry after ``carry = body(carry, *row)`` for each row of the inputs, or for the
        first ``length`` rows, a number that may be known only when the loop runs.
        """
        arrays = [a.which if isinstance(a, Sample) else jnp.asarray(a) for a in inputs]
        is_sample = [isinstance(a, Sample) for a in inputs]

        def step(carry: T, rows: Iterable[Any]) -> tuple[T, None]:
            """The body with one row of each input, in the input's form; None as ``scan`` asks."""
            in_form = (Sample(row) if s else row for row, s in zip(rows, is_sample, strict=True))
            return body(carry, *in_form), None

        def step_at(i: Scalar, carry: T) -> T:
            # The carry after the body with row i of each input, for ``fori_loop``
            rows = [lax.dynamic_index_in_dim(a, i, keepdims=False) for a in arrays]
            return step(carry, rows)[0]

        if length is not None:
            return lax.fori_loop(0, length, step_at, carry)
        count = len(arrays[0])
        if count > max(self.unroll, 4):
            return lax.scan(step, carry, arrays, unroll=min(self.unroll, count))[0]
        for i in range(count):  # an unrolled loop is fastest
            carry, _ = step(carry, [a[i] for a in arrays])
        return carry


class JaxOracle(JaxOps, ProblemOracle):
    """Derivatives of a problem in JAX; the twin of ``oracles.TorchOracle``.

    Hz, Jz and g_y come from one forward sweep through the gradient: the derivative of (g_x, g_y)
    along z in y is (Jz, Hz).
    """

    seeded = False

    def __init__(
        self,
        problem: BilevelProblem,
        upper: Callable[..., Any],
        lower: Callable[..., Any],
        unroll: int = 1,
    ) -> None:
        super().__init__(unroll)
        self.problem = problem
        self.losses = {"upper": upper, "lower": lower}
        self.orders: dict[str, list[Axes]] = {}  # level -> order of the axes of each array
        self.project_x, self.project_y = (
            pack.projection(project, partial(_split, pack), _join)
            for pack, project in (
                (problem.pack_x, problem.project_x),
                (problem.pack_y, problem.project_y),
            )
        )
        self.arrays = {level: self._store_samples(level) for level in ("upper", "lower")}

    def with_arrays(self, arrays: dict[str, Any]) -> JaxOracle:
        """The same oracle on other arrays: those a compiled function was handed."""
        twin = copy(self)
        twin.arrays = arrays
        return twin

    @property
    def start(self) -> tuple[Array, Array]:
        x, y = (self.from_torch(p.start) for p in (self.problem.pack_x, self.problem.pack_y))
        with precision(self.problem):
            x = x if self.project_x is None else jnp.asarray(self.project_x(x))
            return x, y if self.project_y is None else jnp.asarray(self.project_y(y))

    def value(self, level: str, x: Array, y: Array) -> float:
        with precision(self.problem):
            return float(self.loss(level, x, y))

    def to_torch(self, vector: Array) -> torch.Tensor:
        return torch.from_numpy(np.array(vector))

    def from_torch(self, vector: torch.Tensor) -> Array:
        with precision(self.problem):
            return jnp.asarray(vector.detach().cpu().numpy())

    def batches(self, level: str) -> int:
        return self.problem.data(level).batches

    def weight(self, level: str, sample: Sample) -> float:
        """Share of the level's samples in a batch: all batches are equal here."""
        return 1.0 / self.problem.data(level).batches

    def start_calls(self, method: AnyMethod, draws: ByName) -> dict[str, int]:
        return calls_of_start(method, self.problem, draws)

    # Derivatives.

    def _batch(self, level: str, sample: Sample) -> Any:
        """The data of a sample, in the level's form: all, one batch, or several joined to one."""
        data, arrays = self.problem.data(level), self.arrays[level]
        if data.order != "partition":
            which = None if is_full(sample) else jnp.asarray(sample.which).reshape(-1)
            return arrays if which is None else jax.tree.map(lambda a: a[which], arrays)
        if is_full(sample):
            return _merge(self._restore_axes(level, arrays))
        which = jnp.asarray(sample.which)
        if which.ndim:  # a large batch out of several
            return _merge(self._restore_axes(level, jax.tree.map(lambda a: a[which], arrays)))
        # One batch: a contiguous slice.
        batch = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, which, keepdims=False), arrays)
        return self._restore_axes(level, batch)

    def _store_samples(self, level: str) -> Any:
        """The data of a level as JAX keeps them: those of a fixed partition have a first axis for
        the batches and the other axes in the order of ``axis_orders``, which is set in ``orders``.
        """
        arrays = _samples_as_arrays(self.problem, level)
        if self.problem.data(level).order != "partition":
            return arrays
        batch = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), arrays)
        self.orders[level] = axis_orders(self._in_form(level), *self.start, batch)
        return self._transpose(arrays, self.orders[level])

    def _restore_axes(self, level: str, arrays: Batch) -> Any:
        """Stored batches, or one, with their axes in the problem's order again."""
        return self._transpose(
            arrays, [tuple(np.argsort(order).tolist()) for order in self.orders[level]]
        )

    @staticmethod
    def _transpose(arrays: Batch, orders: list[Axes]) -> Any:
        """Arrays with their last axes in new orders; axes before them stay in front."""
        leaves, structure = jax.tree.flatten(arrays)
        transposed = []
        for array, order in zip(leaves, orders, strict=True):
            front = array.ndim - len(order)
            transposed.append(jnp.transpose(array, (*range(front), *(front + i for i in order))))
        return structure.unflatten(transposed)

    def _in_form(self, level: str) -> Callable[[Any, Any, Any], Any]:
        """A level's loss as a function of flat x and y."""
        loss, packs = self.losses[level], (self.problem.pack_x, self.problem.pack_y)

        def in_form(x: Array, y: Array, batch: Batch) -> Any:
            """The loss; JAX calls this to trace it, so that checks cost a run nothing."""
            value = call(level, loss, _view(packs[0], x), _view(packs[1], y), batch)
            shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", "no array")
            if shape not in ((), (1,)) or not jnp.issubdtype(dtype, jnp.floating):
                got = type(value).__name__ if shape is None else (shape, str(dtype))
                fail(level, "must return one number of floating point, an array of JAX", got)
            return jnp.reshape(value, ())

        return in_form

    def check_losses(self, seed: int) -> None:
        """Refuse losses that are not those of the problem, by their values at and near the start,
        unless those of the problem cannot be computed in torch.
        """
        in_torch = TorchOracle(self.problem)
        try:
            try_problem(in_torch, seed, second_order=False, needs_x=False)
        except RuleError as error:
            if error.__cause__ is None:
                raise
            return
        if in_torch.seeded:
            rule = "must draw no random numbers in its losses for the compiled backend"
            fail("problem", rule, "losses that do")
        start, on_cpu = self.start, jax.default_backend() == "cpu"
        # Matrix products of a GPU have three digits.
        tolerance = max(1e-4 if on_cpu else 1e-2, 20 * torch.finfo(self.problem.dtype).eps)
        for level in ("upper", "lower"):
            sample = row(self.problem.data(level).draw(0, level, 0, 1), 0)
            # Away from the start too, where a term of an x or y of zeros would not be missed.
            for length in (0.0, 0.5):
                point = [v + length * (1.0 + abs(v)) * jnp.cos(jnp.arange(v.size)) for v in start]
                x, y = map(self.to_torch, point)
                own = float(self.problem.loss(level, x, y, sample))
                value = float(self._loss(level, sample)(*point))
                if math.isfinite(own) and not abs(own - value) <= 1e-6 + tolerance * abs(own):
                    fail(level, f"must be the problem's loss, {own:.6g} near the start", value)

    def _loss(self, level: str, sample: Sample) -> Callable[[Any, Any], Any]:
        """A level's loss on a sample, as a function of flat x and y."""
        loss, batch = self._in_form(level), self._batch(level, sample)
        return lambda x, y: loss(x, y, batch)

    def loss(self, level: str, x: Array, y: Array) -> Any:
        """A level's loss over all samples."""
        return self._loss(level, FULL)(x, y)

    def first(self, level: str, variable: str, x: Array, y: Array, sample: Sample) -> Array:
        return jax.grad(self._loss(level, sample), "xy".index(variable))(x, y)  # in argument 0 or 1

    def second(
        self, x: Array, y: Array, z: Array, sample: Sample, names: tuple[str, ...]
    ) -> tuple[Array, ...]:
        """Those of g_y, Hz and Jz that are named, in this order."""
        # The derivative of (g_x, g_y) along z in y is (Jz, Hz).
        gradients = jax.grad(self._loss("lower", sample), (0, 1))
        (_, g_y), (jz, hz) = jax.jvp(lambda y_moved: gradients(x, y_moved), (y,), (z,))
        products = {"g_y": g_y, "Hz": hz, "Jz": jz}
        return tuple(products[name] for name in names)

    def operator(self, x: Array, y: Array, sample: Sample) -> tuple[Product, Product]:
        """v -> Hv and v -> Jv, from one linearisation of the gradient."""
        gradients = jax.grad(self._loss("lower", sample), (0, 1))
        _, derivative_along = jax.linearize(lambda y_moved: gradients(x, y_moved), y)  # (Jv, Hv)
        return (lambda v: derivative_along(v)[1]), (lambda v: derivative_along(v)[0])

    def upper(self, x: Array, y: Array, sample: Sample) -> tuple[Array, Array]:
        return jax.grad(self._loss("upper", sample), (0, 1))(x, y)

    def dense(self, x: Array, y: Array, sample: Sample) -> tuple[Array, Array, Array]:
        """g_y, H (d_y, d_y) and J (d_x, d_y) as matrices."""
        loss = self._loss("lower", sample)
        gradients = jax.grad(loss, (0, 1))
        j, h = jax.jacfwd(lambda y_moved: gradients(x, y_moved))(y)  # of (g_x, g_y) in y
        return jax.grad(loss, 1)(x, y), h, j


def open_tables(values: ByName) -> ByName:
    """Values whose tables, of rows alone, become (rows, waiting index, waiting row): a write that
    ``replace_row`` makes at its next call. The first such write changes nothing.
    """
    if not isinstance(values, dict):
        return values
    result: ByName = {name: open_tables(value) for name, value in values.items()}
    if ROWS in values:
        result[ROWS] = values[ROWS], jnp.zeros((), jnp.int32), values[ROWS][0]
    return result


def close_tables(values: ByName) -> ByName:
    """Values whose tables are rows alone again, after the write that waits."""
    if not isinstance(values, dict):
        return values
    result: ByName = {name: close_tables(value) for name, value in values.items()}
    if ROWS in values:
        rows, waiting_index, waiting_row = values[ROWS]
        result[ROWS] = lax.dynamic_update_index_in_dim(rows, waiting_row, waiting_index, 0)
    return result


def precision(problem: BilevelProblem) -> Any:
    """Double precision in JAX exactly where the problem has it."""
    return jax.enable_x64(problem.dtype == torch.float64)


def _samples_as_arrays(problem: BilevelProblem, level: str) -> Any:
    """The samples of a level as JAX arrays, those of a partition with an axis for the batches."""
    data = problem.data(level)
    name = f"{level}_data"
    if not isinstance(data, Batches) or not data.is_tensors:
        fail(name, "must be tensors for the compiled backend", type(data).__name__)
    dtypes = {t.dtype for t in torch.utils._pytree.tree_leaves(data.data) if hasattr(t, "dtype")}
    if torch.bfloat16 in dtypes:
        fail(name, "must not be of bfloat16 for the compiled backend", "torch.bfloat16")
    if data.order != "partition":
        return jax.tree.map(lambda t: jnp.asarray(t.cpu().numpy()), data.data)
    if data.n % data.batch_size:
        rule = "must have batches of equal size for the compiled backend (last='drop')"
        fail(name, rule, (data.n, data.batch_size))
    shape = (data.batches, data.batch_size)
    return jax.tree.map(
        lambda t: jnp.asarray(t[: data.n].cpu().numpy().reshape(shape + tuple(t.shape[1:]))),
        data.data,
    )


def _merge(arrays: Batch) -> Any:
    """Several batches, (batches, samples, ...), joined to one: (batches · samples, ...)."""
    return jax.tree.map(lambda a: a.reshape((-1, *a.shape[2:])), arrays)


def _split(pack: Pack, vector: Array) -> list[Any]:
    """A flat vector as arrays in the variable's shapes."""
    edges = np.cumsum(pack.sizes)[:-1]  # where one array ends and the next begins
    return [p.reshape(s) for p, s in zip(jnp.split(vector, edges), pack.shapes, strict=True)]


def _join(arrays: list[Any]) -> Any:
    return jnp.concatenate([jnp.ravel(array) for array in arrays])


def _view(pack: Pack, vector: Array) -> Any:
    """A flat vector in the variable's own form."""
    if pack.module is not None:
        fail(pack.name, "must be tensors for the compiled backend", "a module")
    return pack.tree(_split(pack, vector))


def axis_orders(loss: Callable[..., Any], x: Array, y: Array, batch: Batch) -> list[Axes]:
    """Per array of a batch the order of its axes in which most products of the loss and its
    gradient read it in place.

    XLA reads a matrix in place where the axes it sums over are the first or the last. With C of
    shape (samples, i, j) the product ``x @ C`` sums over the middle: each call copies C transposed,
    which costs more than the product. Arrays of at most two axes, and arrays that go into no
    product directly, stay as they are.

    Args:
        loss: ``(x, y, batch) -> scalar`` in ``jax.numpy``.
        x: upper variable, flat or in its form, as an array or its shape; ``y`` likewise.
        batch: one batch, as arrays or their shapes.

    Example:
        >>> import jax.numpy as jnp
        >>> def loss(x, y, batch):
        ...     return (x @ batch[0] @ y).mean() + (batch[1] @ y).mean()
        >>> axis_orders(loss, jnp.ones(2), jnp.ones(3), (jnp.ones((8, 2, 3)), jnp.ones((8, 3))))
        [(1, 0, 2), (0, 1)]
    """
    leaves, structure = jax.tree.flatten(batch)
    products_by_array: list[list[Sums]] = [[] for _ in leaves]
    if any(a.ndim > 2 for a in leaves):
        gradient = jax.grad(loss, (0, 1))
        trace = jax.make_jaxpr(lambda *arrays: gradient(x, y, structure.unflatten(arrays)))
        traced = trace(*leaves).jaxpr
        _find_products(traced, dict(zip(traced.invars, products_by_array, strict=True)))
    return [_best_order(a.ndim, sums) for a, sums in zip(leaves, products_by_array, strict=True)]


def _find_products(jaxpr: Any, uses_of: dict[Any, list[Sums]]) -> None:
    """Append to the list of each variable in ``uses_of`` its axes in every product of a traced
    function, and of the functions it calls.
    """
    for equation in jaxpr.eqns:
        # The list of each input; None for a literal, which has a value, or an unknown variable.
        uses_by_input = [None if hasattr(v, "val") else uses_of.get(v) for v in equation.invars]
        if equation.primitive.name == "dot_general":
            sums, batched = equation.params["dimension_numbers"]  # each for both operands
            for uses, summed, leading in zip(uses_by_input, sums, batched, strict=True):
                if uses is not None:
                    uses.append((tuple(leading), tuple(summed)))
        called = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        called = getattr(called, "jaxpr", called)  # a closed jaxpr holds the open one
        if called is not None and len(called.invars) == len(uses_by_input):
            inner_uses = {}
            for inner, outer, uses in zip(called.invars, equation.invars, uses_by_input):
                # A loop over an axis (scan) hands on slices, whose axes are others.
                if uses is not None and inner.aval.ndim == outer.aval.ndim:
                    inner_uses[inner] = uses
            _find_products(called, inner_uses)


def _best_order(axes: int, products: list[Sums]) -> Axes:
    """Of the present order and those that suit one product each, the first that suits the most."""
    candidates = [tuple(range(axes))]
    for leading, summed in products:
        other_axes = tuple(i for i in range(axes) if i not in leading + summed)
        candidates += [leading + summed + other_axes, leading + other_axes + summed]
    return max(
        candidates, key=lambda order: sum(_in_place(order, *product) for product in products)
    )


def _in_place(order: Axes, leading: Axes, summed: Axes) -> bool:
    """Whether a product reads an array with this order of axes without a copy."""
    other_axes = order[len(leading) :]
    return order[: len(leading)] == leading and summed in (
        other_axes[: len(summed)],
        other_axes[len(other_axes) - len(summed) :],
    )
