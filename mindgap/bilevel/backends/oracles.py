"""Array operations, and derivatives of both levels on a sample, in eager torch: the only place
where autograd is used.

One sign convention everywhere: H = d2g/dy2, J = d2g/dxdy (maps y-space to x-space), z* = +H^-1 f_y,
grad Phi = f_x - J z*. One double backward gives g_y, Hz and Jz together.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mindgap.base.calls import loss_from
from mindgap.base.check import fail
from mindgap.base.checked import checked_types
from mindgap.base.count import OracleCount
from mindgap.bilevel.core.types import AnyMethod, ByName, Ops, ProblemOracle, Product, Scalar
from mindgap.bilevel.data.problem import BilevelProblem, Pack
from mindgap.bilevel.data.sample import Batch, Data, Sample, is_full, pieces, row

T = TypeVar("T")
Evaluate = Callable[[Batch], tuple[Tensor, ...]]
#: Unknowns up to which two graphs at once are no matter of memory.
SMALL = 2**20
PRODUCTS = frozenset(("g_y", "Hz", "Jz"))
RESIDUALS = ("g_y", "Hz", "Jz", "f_x", "f_y")
#: The engine's entry that ``torch.autograd.grad`` calls; None where torch has none of that name.
_ENGINE: Any = getattr(
    getattr(torch.autograd.Variable, "_execution_engine", None), "run_backward", None
)


class TorchOps(Ops):
    """Array operations of eager torch.

    Example:
        >>> ops = TorchOps()
        >>> ops.move(torch.ones(2), torch.ones(2), 0.5)
        tensor([0.5000, 0.5000])
        >>> ops.loop(lambda c, i: c + i, 0.0, (np.array([1.0, 2.0, 4.0]),), length=2)
        3.0
    """

    maximum: Callable[..., Tensor] = staticmethod(lambda a, b: torch.clamp(a, min=b))
    minimum: Callable[..., Tensor] = staticmethod(lambda a, b: torch.clamp(a, max=b))
    norm: Callable[..., Tensor] = staticmethod(torch.linalg.vector_norm)
    where: Any = staticmethod(torch.where)
    zeros_like: Callable[..., Tensor] = staticmethod(torch.zeros_like)

    @staticmethod
    def eigh(a: Tensor) -> tuple[Tensor, Tensor]:
        """Eigenvalues, ascending, and eigenvectors of a symmetric matrix; NaN if it holds NaN."""
        try:
            values, vectors = torch.linalg.eigh(a)
        except torch.linalg.LinAlgError:  # NaN or infinity inside: the result is NaN, as in JAX
            return a.new_full(a.shape[:1], torch.nan), torch.full_like(a, torch.nan)
        return values, vectors

    @staticmethod
    def move(x: Tensor, d: Tensor, lr: Scalar) -> Tensor:
        if isinstance(lr, Tensor):  # a step of its own, or a rate that lies on the device
            return torch.addcmul(x, d, lr, value=-1)
        return torch.sub(x, d, alpha=lr)

    @staticmethod
    def mix(a: Tensor, b: Tensor, weight: Scalar) -> Tensor:
        return torch.lerp(a, b, weight)

    @staticmethod
    def zeros(shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Zeros of a shape, in the dtype and on the device of ``like``."""
        return torch.zeros(shape, dtype=like.dtype, device=like.device)

    @staticmethod
    def scalar(value: float, like: Tensor) -> Tensor:
        return torch.tensor(value, dtype=like.dtype, device=like.device)

    @staticmethod
    def normals(seeds: Any, count: int, like: Tensor) -> Tensor:
        """``count`` standard normal numbers per seed, of shape (seeds, count), by Box and Muller's
        transform of hashes of seed and position: the same on every backend.
        """
        seed_column = torch.as_tensor(seeds, device=like.device)[:, None]
        positions = torch.arange(2 * count, device=like.device)
        uniforms: Tensor = (
            scramble(scramble(seed_column, 2**32 - 1) + positions, 2**32 - 1).to(like.dtype) + 0.5
        ) / 2.0**32  # never 0, so that the logarithm is finite
        return (-2.0 * uniforms[:, :count].log()).sqrt() * (
            2.0 * torch.pi * uniforms[:, count:]
        ).cos()

    @staticmethod
    def replace_row(table: Tensor, index: Scalar, value: Tensor) -> tuple[Tensor, Tensor]:
        """``value - table[index]``, and the table with the value there. It writes in place: a table
        belongs to the state that is stepped."""
        row = table[int(index)]
        change = value - row
        row.copy_(value)
        return change, table

    @staticmethod
    def after(sample: Sample, vector: Tensor) -> Sample:
        # Eager torch reads the data of a sample only where they are used
        return sample

    def loop(
        self, body: Callable[..., Any], carry: T, inputs: tuple[Any, ...], length: Scalar = None
    ) -> T:
        """``carry = body(carry, *row)`` for each row of the inputs, or the first ``length``."""
        if length is None:
            first_input = inputs[0]
            length = len(first_input.which) if isinstance(first_input, Sample) else len(first_input)
        for i in range(length):
            carry = body(carry, *(_item(rows, i) for rows in inputs))
        return carry


#: Iterations between two looks at whether x and y are numbers.
LOOK = 16


def are_numbers(*vectors: Tensor) -> bool:
    """Whether no element is NaN or infinite. The sums say so at once; as a sum of large elements
    may overflow, the elements decide if one is not finite.

    Example:
        >>> are_numbers(torch.ones(2)), are_numbers(torch.ones(2), torch.tensor([0.0, torch.nan]))
        (True, False)
    """
    if all(math.isfinite(float(v.sum())) for v in vectors):
        return True
    return all(bool(v.isfinite().all()) for v in vectors)


def scramble(bits: Any, mask: Any) -> Any:
    """Hash of whole numbers to 32 bits (the finaliser of MurmurHash3), for arrays of any library.

    ``mask`` is 2^32 - 1, in the integer type of the arithmetic.

    Example:
        >>> scramble(np.array([1, 2]), 2**32 - 1).tolist()
        [1364076727, 821347078]
    """
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        bits = ((bits ^ (bits >> shift)) * type(mask)(factor)) & mask
    return bits ^ (bits >> 16)


def _item(rows: Any, i: int) -> Any:
    """Row i of an input of a loop: a sample of samples, a number of an array, a row of a tensor."""
    if isinstance(rows, Sample):
        return row(rows, i)
    if isinstance(rows, np.ndarray):
        return rows[i].item()
    return rows[i]


def backward(
    ends: Sequence[Tensor],
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor],
    *,
    create_graph: bool = False,
    retain_graph: bool = False,
) -> tuple[Tensor | None, ...]:
    """Derivatives of ``sum <end, weight>`` in the inputs, None for an input that does not enter;
    ends without a graph are constants.

    The engine is called directly: the checks of ``torch.autograd.grad`` are a sixth of an iteration
    on a problem whose derivatives take a few hundred microseconds.

    Args:
        ends: tensors with a graph.
        inputs: leaves of it.
        weights: one tensor of the same shape for each end.
        create_graph: whether the result can be differentiated again.
        retain_graph: whether the graph is kept for another call; always so with ``create_graph``.

    Example:
        >>> x, y = torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)
        >>> backward([(x * x).sum()], [x, y], [torch.tensor(1.0)])
        (tensor([2., 2.]), None)
    """
    keep_graph = create_graph or retain_graph
    try:
        # A subclass of Tensor may have derivatives of its own, which only autograd.grad asks for.
        if _ENGINE is None or any(type(end) is not Tensor for end in ends):
            return torch.autograd.grad(
                ends, inputs, weights, keep_graph, create_graph, allow_unused=True
            )
        gradients: tuple[Tensor | None, ...] = _ENGINE(
            tuple(ends),
            tuple(weights),
            keep_graph,
            create_graph,
            tuple(inputs),
            allow_unreachable=True,
            accumulate_grad=False,
        )
        return gradients
    except RuntimeError:
        if any(end.requires_grad for end in ends):
            raise
        return (None,) * len(inputs)


def constant_like(value: float, loss: Tensor) -> Tensor:
    """A number in the shape, dtype and on the device of a loss; cached, so not to be changed.

    Example:
        >>> constant_like(-1.0, torch.tensor(3.0)) is constant_like(-1.0, torch.tensor(5.0))
        True
    """
    return _constant(value, loss.shape, loss.dtype, loss.device)


@lru_cache(maxsize=64)
def _constant(value: float, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full(shape, value, dtype=dtype, device=device)


@contextlib.contextmanager
def double_backward_kernels() -> Iterator[None]:
    """Kernels that can be differentiated twice: cuDNN's recurrent nets and fused attention off
    inside, restored after.

    Example:
        >>> with double_backward_kernels():
        ...     torch.backends.cudnn.enabled
        False
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with torch.backends.cudnn.flags(enabled=False), sdpa_kernel(SDPBackend.MATH):
        yield


class TorchOracle(TorchOps, ProblemOracle):
    """Counted derivatives of a problem at flat vectors.

    A call on a minibatch counts one for each quantity it returns (g_y, Hz, Jz, f_x, f_y, g_x); a
    call on all samples counts as many as there are minibatches in an epoch.

    Args:
        problem: the two losses with their data.
        distributed: average over the ranks of torch.distributed's default group; each rank
            evaluates its part of every minibatch. All quantities are linear in the samples, so the
            result is that of one process.

    Example:
        >>> from mindgap.bilevel.data.problem import example_problem
        >>> oracle = TorchOracle(example_problem())  # g = (y - x)² here
        >>> x, y, z = torch.zeros(1), torch.ones(1), torch.ones(1)
        >>> oracle.system(x, y, z, Sample(0)), oracle.calls.total  # g_y, Hz and Jz
        ((tensor([2.]), tensor([2.]), tensor([-2.])), 3)
    """

    @checked_types
    def __init__(self, problem: BilevelProblem, *, distributed: bool = False) -> None:
        self.problem = problem
        pack_x, pack_y = problem.pack_x, problem.pack_y
        self.project_x = pack_x.projection(problem.project_x, pack_x.split, pack_x.join)
        self.project_y = pack_y.projection(problem.project_y, pack_y.split, pack_y.join)
        self.calls = OracleCount()
        self.plain_kernels = False  # whether the lower loss needs ``double_backward_kernels``
        self.seeded = False  # whether a loss draws random numbers, from the sample's seed
        self.distributed = distributed
        self._plain_modes: bool | None = None  # ``_can_be_plain`` within ``same_modes``
        self.share = (0, 1)  # this process's rank, and how many ranks there are
        if distributed:
            import torch.distributed as dist

            if not dist.is_initialized():
                fail("distributed", "needs torch.distributed to be initialised", distributed)
            self.share = (dist.get_rank(), dist.get_world_size())

    def take_calls(self) -> dict[str, int]:
        """The calls counted since the last time this was asked."""
        calls, self.calls = self.calls.as_dict(), OracleCount()
        return calls

    def start_calls(self, method: AnyMethod, draws: ByName) -> dict[str, int]:
        """Oracle calls of the phase before the first iteration, which has just run."""
        return self.take_calls()

    def value(self, level: str, x: Tensor, y: Tensor) -> float:
        return float(self.problem.loss(level, x, y))

    def to_torch(self, vector: Tensor) -> Tensor:
        return vector

    def from_torch(self, vector: Tensor) -> Tensor:
        return vector

    # What methods need to know of the problem, besides derivatives.

    @property
    def start(self) -> tuple[Tensor, Tensor]:
        x, y = self.problem.pack_x.start.clone(), self.problem.pack_y.start.clone()
        x = x if self.project_x is None else self.project_x(x)
        return x, y if self.project_y is None else self.project_y(y)

    def batches(self, level: str) -> int:
        return self.problem.data(level).batches

    def weight(self, level: str, sample: Sample) -> float:
        data = self.problem.data(level)
        return data.size(sample) / data.n

    # Derivatives.

    def first(self, level: str, variable: str, x: Tensor, y: Tensor, sample: Sample) -> Tensor:
        """The derivative of a level's loss on a sample in ``variable``, "x" or "y", flat; zeros
        where the loss does not depend on it.
        """
        pack_x, pack_y = self.problem.pack_x, self.problem.pack_y
        pack = pack_y if variable == "y" else pack_x  # leaves of this one take the gradient

        def evaluate(batch: Batch) -> tuple[Tensor, ...]:
            # The flat derivative on one batch; only ``pack``'s variable has leaves in the graph
            leaves = pack.leaves(y if variable == "y" else x)
            x_form = pack_x.view(x) if variable == "y" else pack_x.assemble(leaves)
            y_form = pack_y.assemble(leaves) if variable == "y" else pack_y.view(y)
            loss = self.loss(level, x_form, y_form, batch, sample)
            return (pack.join(backward((loss,), leaves, (constant_like(1.0, loss),))),)

        return self._run(
            level, evaluate, sample, (("g_" if level == "lower" else "f_") + variable,)
        )[0]

    def upper(self, x: Tensor, y: Tensor, sample: Sample) -> tuple[Tensor, Tensor]:
        """The gradient of the upper loss on a sample: f_x and f_y, flat."""
        pack_x, pack_y = self.problem.pack_x, self.problem.pack_y

        def evaluate(batch: Batch) -> tuple[Tensor, ...]:
            """f_x and f_y on one batch, flat."""
            f_x, f_y = self._upper_parts(x, y, batch, sample)
            return pack_x.join(f_x), pack_y.join(f_y)

        f_x, f_y = self._run("upper", evaluate, sample, ("f_x", "f_y"))
        return f_x, f_y

    def _upper_parts(self, x: Tensor, y: Tensor, batch: Batch, sample: Sample) -> tuple[Any, Any]:
        """f_x and f_y on one batch, as tuples of tensors in the shapes of the variables; None for
        a tensor that does not enter.
        """
        pack_x, pack_y = self.problem.pack_x, self.problem.pack_y
        xs, ys = pack_x.leaves(x), pack_y.leaves(y)
        loss = self.loss("upper", pack_x.assemble(xs), pack_y.assemble(ys), batch, sample)
        gradients = backward((loss,), (*xs, *ys), (constant_like(1.0, loss),))
        return gradients[: len(xs)], gradients[len(xs) :]

    def operator(self, x: Tensor, y: Tensor, sample: Sample) -> tuple[Product, Product]:
        """v -> Hv and v -> Jv; on a minibatch from one graph that is kept over all products (half
        the cost of each).

        On the CPU y's tall matrices are stored by columns inside: BLAS multiplies by them 2 to 4
        times as fast.
        """
        if self.plain_kernels or not self._is_common(sample):
            return super().operator(x, y, sample)
        pack_x, pack_y = self.problem.pack_x, self.problem.pack_y
        xs, ys = pack_x.leaves(x), pack_y.leaves(y)
        batch = self.problem.lower_data.fetch(sample)
        tall = [i for i, tensor in enumerate(ys) if is_tall(tensor)]
        for i in tall:
            ys[i] = by_columns(ys[i].detach()).requires_grad_()
        try:
            loss = self.loss("lower", pack_x.assemble(xs), pack_y.assemble(ys), batch, sample)
        except RuntimeError:
            if not tall:
                raise
            # The loss takes a view that a matrix stored by columns does not have.
            tall, ys = [], pack_y.leaves(y)
            loss = self.loss("lower", pack_x.assemble(xs), pack_y.assemble(ys), batch, sample)
        g_y = backward((loss,), ys, (constant_like(1.0, loss),), create_graph=True)
        # The parts of g_y that depend on x or y; the others have no second derivatives.
        curved = [i for i, g in enumerate(g_y) if g is not None and g.requires_grad]
        ends: list[Any] = [g_y[i] for i in curved]

        def product(pack: Pack, inputs: list[Tensor], name: str, v: Tensor) -> Tensor:
            """The derivative of <g_y, v> in y or x, counted; ``ends``: g_y's ``curved`` parts."""
            self.calls.add(name)
            vectors = pack_y.split(v)
            for i in tall:
                vectors[i] = by_columns(vectors[i])
            return pack.join(
                backward(ends, inputs, [vectors[i] for i in curved], retain_graph=True)
                if ends
                else [None] * len(inputs)
            )

        return partial(product, pack_y, ys, "Hz"), partial(product, pack_x, xs, "Jz")

    def residuals(
        self, x: Tensor, y: Tensor, z: Tensor, lower: Sample, upper: Sample, gradient: bool = True
    ) -> tuple[Any, Tensor, Tensor]:
        """g_y (None if ``gradient`` is False), Hz - f_y and f_x - Jz, flat, on a lower and an upper
        sample; on two minibatches of a small problem from two sweeps instead of three.

        Hz - f_y and Jz - f_x are the derivatives of <g_y, z> - f in y and x: one sweep through both
        graphs. Both are alive at once then, so a large problem takes the sparing way.
        """
        pack_x, pack_y = self.problem.pack_x, self.problem.pack_y
        if (
            pack_x.dim + pack_y.dim > SMALL
            or self.plain_kernels
            or not self._is_common(lower, upper)
        ):
            return self._residuals_by_level(x, y, z, lower, upper, gradient)
        self.calls.add_together(RESIDUALS if gradient else RESIDUALS[1:])
        xs, ys = pack_x.leaves(x), pack_y.leaves(y)
        x_form, y_form = pack_x.assemble(xs), pack_y.assemble(ys)
        loss = self.loss("lower", x_form, y_form, self.problem.lower_data.fetch(lower), lower)
        g_y = backward((loss,), ys, (constant_like(1.0, loss),), create_graph=True)
        loss = self.loss("upper", x_form, y_form, self.problem.upper_data.fetch(upper), upper)
        ends, weights = [], []  # the terms of <g_y, z> - f
        if loss.requires_grad:
            ends.append(loss)
            weights.append(constant_like(-1.0, loss))
        for g, v in zip(g_y, pack_y.split(z), strict=True):
            if g is not None and g.requires_grad:
                ends.append(g)
                weights.append(v)
        derivatives = backward(ends, (*ys, *xs), weights)
        g_y_flat = (
            pack_y.join([None if g is None else g.detach() for g in g_y]) if gradient else None
        )
        return g_y_flat, pack_y.join(derivatives[: len(ys)]), -pack_x.join(derivatives[len(ys) :])

    def _residuals_by_level(
        self, x: Tensor, y: Tensor, z: Tensor, lower: Sample, upper: Sample, gradient: bool
    ) -> tuple[Any, Tensor, Tensor]:
        """g_y (None if ``gradient`` is False), Hz - f_y and f_x - Jz, one level after the other, so
        that few copies of the vectors are in memory at a time.
        """
        pack_x, pack_y = self.problem.pack_x, self.problem.pack_y
        if pack_x.is_tensor or pack_y.is_tensor:  # joined without a copy that could be changed
            return super().residuals(x, y, z, lower, upper, gradient)
        names = ("g_y", "Hz", "Jz") if gradient else ("Hz", "Jz")
        *g_ys, d_z, d_x = self.second(x, y, z, lower, names)
        # These were joined from several parts to new tensors: f is added in place.
        g_y, d_x = g_ys[0] if gradient else None, d_x.neg_()
        if not self._is_common(upper):
            f_x, f_y = self.upper(x, y, upper)
            return g_y, d_z.sub_(f_y), d_x.add_(f_x)
        self.calls.add_together(("f_x", "f_y"))
        f_x, f_y = self._upper_parts(x, y, self.problem.upper_data.fetch(upper), upper)
        for pack, residual, parts, sign in ((pack_y, d_z, f_y, -1), (pack_x, d_x, f_x, 1)):
            for flat, part in zip(pack.split(residual), parts, strict=True):
                if part is not None:
                    flat.add_(part, alpha=sign)
        return g_y, d_z, d_x

    def dense(self, x: Tensor, y: Tensor, sample: Sample) -> tuple[Tensor, Tensor, Tensor]:
        """g_y, H (d_y, d_y) and J (d_x, d_y) as matrices, one product per lower unknown."""
        names = ("g_y",) + ("Hz", "Jz") * y.numel()

        def evaluate(batch: Batch) -> tuple[Tensor, ...]:
            """g_y, H and J on one batch."""
            x_leaf, y_leaf = x.detach().requires_grad_(), y.detach().requires_grad_()
            loss = self.loss(
                "lower", self.problem.view_x(x_leaf), self.problem.view_y(y_leaf), batch, sample
            )
            (g_y,) = backward((loss,), (y_leaf,), (constant_like(1.0, loss),), create_graph=True)
            g_y = torch.zeros_like(y) if g_y is None else g_y
            if not g_y.requires_grad:
                return g_y, y.new_zeros(y.numel(), y.numel()), x.new_zeros(x.numel(), y.numel())
            units = torch.eye(y.numel(), dtype=y.dtype, device=y.device)
            h, j = torch.autograd.grad(
                g_y, (y_leaf, x_leaf), grad_outputs=units, is_grads_batched=True, allow_unused=True
            )
            h = y.new_zeros(y.numel(), y.numel()) if h is None else h  # None: g is linear in y
            j = x.new_zeros(y.numel(), x.numel()) if j is None else j  # a row per lower unknown
            return g_y.detach(), h, j.T.contiguous()

        g_y, h, j = self._run("lower", evaluate, sample, names, second=True)
        return g_y, h, j

    def second(
        self, x: Tensor, y: Tensor, z: Tensor, sample: Sample, names: tuple[str, ...]
    ) -> tuple[Tensor, ...]:
        """Those of "g_y", "Hz" and "Jz" that are in ``names``, flat and always in this order, from
        one double backward: Hz and Jz are the derivatives of <g_y, z> in y and x.
        """
        if not isinstance(sample, Sample):
            fail("sample", "must be a Sample", sample)
        if not isinstance(names, tuple) or not names or not PRODUCTS.issuperset(names):
            fail("names", f"must be a tuple of some of {', '.join(sorted(PRODUCTS))}", names)
        pack_x, pack_y = self.problem.pack_x, self.problem.pack_y

        def evaluate(batch: Batch) -> tuple[Tensor, ...]:
            """The wanted products on one batch: g_y, Hz and Jz, in this order."""
            ys = pack_y.leaves(y)
            xs = pack_x.leaves(x) if "Jz" in names else []
            x_form = pack_x.assemble(xs) if xs else pack_x.view(x)
            loss = self.loss("lower", x_form, pack_y.assemble(ys), batch, sample)
            g_y = backward((loss,), ys, (constant_like(1.0, loss),), create_graph=True)
            # The parts of g_y that depend on x or y, each with its part of z.
            curved = [
                (g, v)
                for g, v in zip(g_y, pack_y.split(z), strict=True)
                if g is not None and g.requires_grad
            ]
            variables = (*(ys if "Hz" in names else ()), *xs)
            products: tuple[Tensor | None, ...] = (None,) * len(variables)
            if curved:
                products = backward([g for g, _ in curved], variables, [v for _, v in curved])
            result: list[Tensor] = []
            if "g_y" in names:
                result.append(pack_y.join([None if g is None else g.detach() for g in g_y]))
            if "Hz" in names:
                result.append(pack_y.join(products[: len(ys)]))
            if xs:
                result.append(pack_x.join(products[len(products) - len(xs) :]))
            return tuple(result)

        return self._run("lower", evaluate, sample, names, second=True)

    def loss(self, level: str, x: Any, y: Any, batch: Batch, sample: Sample) -> Tensor:
        """A level's loss at x and y in the user's form, under the sample's random state where the
        losses draw numbers.
        """
        if self.seeded:
            return self.problem.evaluate(level, x, y, batch, sample)
        function = self.problem.lower if level == "lower" else self.problem.upper
        return loss_from(level, function, x, y, batch)

    def _is_common(self, *samples: Sample) -> bool:
        """Whether ``_run`` needs no context: each sample is one minibatch of a partition or stream
        (its number a Python int), and the modes of torch are the usual ones.
        """
        for sample in samples:
            if type(sample.which) is not int:
                return False
        return self._plain_modes if self._plain_modes is not None else self._can_be_plain()

    def _can_be_plain(self) -> bool:
        """Whether one process evaluates whole minibatches, with autograd on and autocast off."""
        return (
            self.share[1] == 1
            and self.problem.micro_batch is None
            and torch.is_grad_enabled()
            and not torch.is_autocast_enabled("cpu")
            and not torch.is_autocast_enabled("cuda")
        )

    @contextlib.contextmanager
    def same_modes(self) -> Iterator[None]:
        """A context for many calls: the modes of autograd and autocast are looked at once."""
        self._plain_modes = self._can_be_plain()
        try:
            yield
        finally:
            self._plain_modes = None

    def _run(
        self,
        level: str,
        evaluate: Evaluate,
        sample: Sample,
        names: tuple[str, ...],
        second: bool = False,
    ) -> tuple[Tensor, ...]:
        """Derivatives on a sample, counted under ``names`` and averaged over the ranks.

        Args:
            evaluate: function of one batch that returns one tensor per derivative.
            sample: one minibatch, several (their mean is returned), or all data.
            names: of what is counted, once per minibatch.
            second: whether second derivatives are taken, which need other kernels and no autocast.
        """
        data = self.problem.lower_data if level == "lower" else self.problem.upper_data
        # The common case costs nothing beside the derivatives; contexts are entered for others.
        if self._is_common(sample) and not (second and self.plain_kernels):
            self.calls.add_together(names)
            return evaluate(data.fetch(sample))
        with contextlib.ExitStack() as stack:
            if not torch.is_grad_enabled():
                stack.enter_context(torch.enable_grad())
            if second and self.plain_kernels:
                stack.enter_context(double_backward_kernels())
            if second and torch.is_autocast_enabled(self.problem.device.type):
                stack.enter_context(torch.autocast(self.problem.device.type, enabled=False))
            if is_full(sample):
                result, count = self._sum(data.chunks(self.share), evaluate), data.batches
            elif isinstance(sample.which, np.ndarray) and sample.which.ndim > data.sample_axes:
                return self._mean_over_minibatches(level, evaluate, sample, names, second)
            else:
                batch, largest, count = data.fetch(sample, self.share), self.problem.micro_batch, 1
                if largest is None:
                    result = evaluate(batch)
                else:
                    result = self._sum(pieces(batch, largest), evaluate)
        for name in names:
            self.calls.add(name, count)
        if self.share[1] > 1:
            result = self._reduce(result, data, sample)
        return result

    def _mean_over_minibatches(
        self, level: str, evaluate: Evaluate, sample: Sample, names: tuple[str, ...], second: bool
    ) -> tuple[Tensor, ...]:
        """Derivatives averaged over the minibatches of a large batch, one per row of ``sample``."""
        count = len(sample.which)
        results = [self._run(level, evaluate, row(sample, i), names, second) for i in range(count)]
        return tuple(sum(terms[1:], terms[0]) / count for terms in zip(*results, strict=True))

    @staticmethod
    def _sum(
        weighted_batches: Iterable[tuple[Batch, float]], evaluate: Evaluate
    ) -> tuple[Tensor, ...]:
        """The weighted sum of what ``evaluate`` returns on each batch."""
        totals: list[Tensor] = []
        for batch, weight in weighted_batches:
            values = evaluate(batch)
            if totals:
                for total, value in zip(totals, values, strict=True):
                    total.add_(value, alpha=weight)
            else:
                totals = [value * weight for value in values]
        return tuple(totals)

    def _reduce(self, result: tuple[Tensor, ...], data: Data, sample: Sample) -> tuple[Tensor, ...]:
        """The mean over the samples of all ranks. ``result`` is the mean over this rank's part of a
        minibatch, or for FULL this rank's share of the mean over all data.
        """
        import torch.distributed as dist

        if not is_full(sample):
            rank, world = self.share
            size = data.size(sample)
            own_samples = size * (rank + 1) // world - size * rank // world  # as in ``fetch``
            result = tuple(r * (own_samples / size) for r in result)
        flat = torch.cat([r.reshape(-1) for r in result])
        dist.all_reduce(flat)
        means = torch.split(flat, [r.numel() for r in result])
        return tuple(mean.view(r.shape) for mean, r in zip(means, result, strict=True))


def is_tall(matrix: Tensor) -> bool:
    """Whether a tensor is a matrix on the CPU that is cheaper to multiply by when it is stored by
    columns.

    Example:
        >>> is_tall(torch.zeros(784, 10)), is_tall(torch.zeros(10, 784)), is_tall(torch.zeros(8, 1))
        (True, False, False)
    """
    if matrix.device.type != "cpu" or matrix.dim() != 2 or matrix.numel() < 1024:
        return False  # a small one is not worth the copy
    rows, columns = matrix.shape
    return columns > 1 and rows >= 4 * columns


def by_columns(matrix: Tensor) -> Tensor:
    """The same matrix, stored column by column."""
    return matrix.t().contiguous().t()
