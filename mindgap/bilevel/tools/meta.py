"""Meta-learning: many tasks per iteration, the same ones for both levels, each with a lower
variable of its own.

A problem of tasks is a bilevel problem whose y holds one row per task of a minibatch. The rows
start anew in every iteration, so that nothing is carried from one task to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from mindgap.base.check import fail, whole
from mindgap.bilevel.backends.oracles import TorchOracle, double_backward_kernels
from mindgap.bilevel.core.directions import conjugate_gradients, hypergradient_at
from mindgap.bilevel.core.settings import check_count, choice, count, setting
from mindgap.bilevel.core.types import Array, Draws, Oracle, Product, Values, replace
from mindgap.bilevel.data.draws import UPPER, Iteration, SamplePlan
from mindgap.bilevel.data.problem import BilevelProblem, Loss
from mindgap.bilevel.data.sample import Batch, Batches, Sample
from mindgap.bilevel.method import Method


def side_by_side(loss: Loss, reduce: Callable[[Tensor], Tensor] = torch.mean) -> Loss:
    """A loss of one task as a loss of many, by ``torch.func.vmap``: y and the batch get a leading
    axis of tasks.

    Args:
        loss: ``(x, y, batch) -> scalar`` for one task.
        reduce: joins the losses of the tasks.

    Example:
        >>> many = side_by_side(lambda x, y, b: (y - x * b).square().sum())
        >>> many(torch.tensor([1.0]), torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0]))
        tensor(2.)
    """
    if not callable(loss):
        fail("loss", "must be a function of (x, y, batch)", loss)
    if not callable(reduce):
        fail("reduce", "must be a function of the tasks' losses", reduce)

    def losses(x: Any, y: Any, batch: Batch) -> Tensor:
        """The joined losses of all tasks."""
        per_task: Tensor = torch.func.vmap(loss, in_dims=(None, 0, 0))(x, y, batch)
        if isinstance(per_task, Tensor) and per_task.dim() and per_task[0].numel() != 1:
            fail("loss", "must return one number per task", tuple(per_task.shape))
        return reduce(per_task)

    return losses


def task_problem(
    upper: Loss, lower: Loss, x: Tensor, y: Tensor, query: Batch, support: Batch, *, tasks: int
) -> BilevelProblem:
    """A bilevel problem of tasks that run side by side: one sample names the same tasks at both
    levels.

    Args:
        upper: loss of one task on its query samples, ``(x, y, batch) -> scalar``; f is the mean
            over the tasks.
        lower: loss of one task on its support samples; g is the sum, so that each row of y takes
            its own steps.
        x: what the tasks share.
        y: the lower variable of one task, flat.
        query: tensors with one leading axis of tasks.
        support: likewise, the same tasks in the same order.
        tasks: tasks per iteration.

    Example:
        >>> levels = torch.tensor([1.0, 2.0, 3.0, 4.0])
        >>> loss, zero = lambda x, y, b: (y - b).square().sum(), torch.zeros(1)
        >>> problem = task_problem(loss, loss, zero, zero, levels, levels, tasks=2)
        >>> problem.pack_y.shapes, problem.lower_data.batches
        ([(2, 1)], 2)
    """
    whole("tasks", tasks, least=1)
    if not isinstance(y, Tensor) or y.dim() != 1:
        got = tuple(y.shape) if isinstance(y, Tensor) else y
        fail("y", "must be the flat lower variable of one task", got)
    data = [Batches(level, tasks, last="drop") for level in (query, support)]
    if data[0].total != data[1].total:
        fail("support", f"must hold as many tasks as query, {data[0].total}", data[1].total)
    rows = y.detach().repeat(tasks, 1)
    return BilevelProblem(
        side_by_side(upper), side_by_side(lower, torch.sum), x, rows, data[0], data[1]
    )


#: How a meta-learner differentiates through its inner steps.
Gradient = Literal["implicit", "unrolled", "first order"]


def _check_reset(name: str, value: object) -> None:
    """A rule for ``reset``: "x", "start", or a pair (begin, end) with 0 <= begin < end."""
    if isinstance(value, tuple) and len(value) == 2 and all(type(v) is int for v in value):
        if 0 <= value[0] < value[1]:
            return
    elif isinstance(value, str) and value in ("x", "start"):
        return
    fail(name, "must be 'x', 'start' or (begin, end)", value)


def _task_count(oracle: Oracle) -> int:
    """Tasks per iteration (1 for an oracle that only counts)."""
    problem: BilevelProblem | None = getattr(oracle, "problem", None)
    return 1 if problem is None else problem.upper_data.batch_size


class TaskDraws(Draws):
    """Draws with a minibatch of tasks, the same at both levels."""

    tasks: Sample


@dataclass(frozen=True, kw_only=True)
class MetaLearner(Method[Values, TaskDraws]):
    """iMAML, MAML and ANIL on a :func:`task_problem`.

    Symbols: T = ``inner``; y_i is the row of task i. In every iteration, for a fresh minibatch of
    tasks::

        y_i <- start;   T times: y_i <- y_i - lr_y g_y(x, y_i; task i)
        x <- x - lr_x mean_i d_i

    with d_i the derivative of f(x, y_i; task i) in x,

    * ``gradient="implicit"`` (iMAML): f_x - J z with H z = f_y by conjugate gradients per task. The
      lower loss must tie y to x, usually by ``0.5 * strength * (y - x).square().sum()``.
    * ``gradient="unrolled"`` (MAML; ANIL where y is the last layer): through all T steps.
    * ``gradient="first order"`` (first-order MAML): as before, with the gradients of the steps
      taken as constants.

    Args:
        lr_x, lr_y: steps on x and on each task's y.
        inner: T.
        gradient: see above.
        products: Hessian products of the implicit gradient.
        reset: where every task starts: "x", "start" (the problem's y) or (begin, end), that part of
            the flat x.

    Only "implicit" runs on compiled backends.

    Example:
        >>> levels = torch.tensor([1.0, 2.0, 3.0, 4.0])
        >>> def upper(x, y, b):
        ...     return (y - b).square().sum()
        >>> def lower(x, y, b):
        ...     return (y - b).square().sum() + (y - x).square().sum()
        >>> zero = torch.zeros(1)
        >>> problem = task_problem(upper, lower, zero, zero, levels, levels, tasks=2)
        >>> from mindgap.bilevel import solve
        >>> found = [
        ...     solve(problem, MetaLearner(lr_x=0.2, lr_y=0.25, inner=3, gradient=g), 200).x
        ...     for g in ("implicit", "unrolled")
        ... ]
        >>> [bool(abs(x - 2.5) < 0.5) for x in found]
        [True, True]

    Source: Finn, Abbeel, Levine, ICML 2017 (MAML); Rajeswaran, Finn, Kakade, Levine, NeurIPS 2019,
    Alg. 1 and 2 (iMAML); Raghu, Raghu, Bengio, Vinyals, ICLR 2020 (ANIL).
    """

    inner: int = count(5)
    gradient: Gradient = choice(*get_args(Gradient))
    products: int = count(5)
    reset: Literal["x", "start"] | tuple[int, int] = setting(_check_reset, "x")
    second_order = property(lambda self: self.gradient != "first order")
    inverts = property(lambda self: self.gradient == "implicit")
    resets: ClassVar[bool] = True

    def plan(self) -> SamplePlan:
        # One minibatch of tasks, for both levels
        return SamplePlan((Iteration({"tasks": UPPER}, lower_steps=self.inner),))

    def check_problem(self, problem: BilevelProblem) -> None:
        """Refuse a problem without paired tasks, or whose tasks cannot start at ``reset``."""
        super().check_problem(problem)
        upper_data, lower_data = problem.upper_data, problem.lower_data
        task_counts = [
            data.batches if isinstance(data, Batches) and data.order == "partition" else None
            for data in (upper_data, lower_data)
        ]
        if None in task_counts or task_counts[0] != task_counts[1]:
            rule = "must hold the same tasks at both levels (see task_problem)"
            fail("problem", rule, task_counts)
        if self.reset != "start":
            begin, end = (0, problem.dim_x) if isinstance(self.reset, str) else self.reset
            if end > problem.dim_x or problem.dim_y != (end - begin) * upper_data.batch_size:
                rule = f"must be a part of x that fits the rows of y, {problem.pack_y.shapes}"
                fail("reset", rule, self.reset)

    def starts(self, oracle: Oracle, x: Array) -> Array:
        """y before the first step: one start per task, joined to a flat vector; differentiable in
        x.
        """
        if self.reset == "start":
            return oracle.start[1]
        start = x if isinstance(self.reset, str) else x[self.reset[0] : self.reset[1]]
        return (oracle.zeros((_task_count(oracle), start.shape[0]), x) + start).reshape(-1)

    def update(self, v: Values, s: TaskDraws, oracle: Oracle, kind: str) -> Values:
        """The next values: y by the inner steps of every task, then x by the chosen derivative."""
        x, sample = v.x, s.tasks
        if self.gradient != "implicit":
            d_x, y = self._unroll(oracle, x, sample, s.lr_y)
            return replace(self.move_x(oracle, v, d_x, s.lr_x), y=y)

        def step(y: Array, _: int) -> Array:
            # y of all tasks after one step at x, each on its part of ``sample``
            return oracle.move_y(y, oracle.lower(x, y, sample), s.lr_y)

        def solve(hessian: Product, f_y: Array) -> Array:
            # H^-1 f_y of all tasks, each of which has a block of H
            options = {"products": self.products, "rows": _task_count(oracle)}
            return conjugate_gradients(oracle, hessian, f_y, **options)[0]

        y = oracle.loop(step, self.starts(oracle, x), (np.arange(self.inner),))
        d_x = hypergradient_at(oracle, x, y, sample, sample, solve)
        return replace(self.move_x(oracle, v, d_x, s.lr_x), y=y)

    def _unroll(
        self, oracle: Oracle, x: Tensor, sample: Sample, lr: float
    ) -> tuple[Tensor, Tensor]:
        """The derivative in x of the upper loss after T lower steps of size ``lr``, and that y.

        The steps are differentiated through for "unrolled", and are constants for "first order".
        """
        if not isinstance(oracle, TorchOracle):
            fail("gradient", "must be 'implicit' for this backend", self.gradient)
        problem, keep_graph = oracle.problem, self.gradient == "unrolled"
        lower_batch = problem.lower_data.fetch(sample)
        upper_batch = problem.upper_data.fetch(sample)
        kernels = double_backward_kernels() if oracle.plain_kernels else nullcontext()
        with torch.enable_grad(), kernels:
            leaf = x.detach().requires_grad_()
            y = self.starts(oracle, leaf).requires_grad_()
            for _ in range(self.inner):
                loss = oracle.loss(
                    "lower", problem.view_x(leaf), problem.view_y(y), lower_batch, sample
                )
                (g_y,) = torch.autograd.grad(loss, y, create_graph=keep_graph)
                y = oracle.move_y(y, g_y, lr)
            loss = oracle.loss(
                "upper", problem.view_x(leaf), problem.view_y(y), upper_batch, sample
            )
            (d_x,) = torch.autograd.grad(loss, leaf, allow_unused=True)
        # A step that is differentiated costs a product with H and one with J on the way back.
        oracle.calls.add_together(
            ("g_y", "Hz", "Jz") * self.inner if keep_graph else ("g_y",) * self.inner
        )
        oracle.calls.add_together(("f_x", "f_y"))
        return torch.zeros_like(x) if d_x is None else d_x, y.detach()


def adapt(
    problem: BilevelProblem, method: MetaLearner, x: Tensor, *, inner: int | None = None
) -> Tensor:
    """y of each task of the first minibatch after its steps from x: what a test on new tasks needs,
    one row per task.

    Args:
        problem: the new tasks, as :func:`task_problem` (its ``tasks`` are adapted at once).
        method: gives the start, the step and its number.
        x: what the tasks share.
        inner: steps; the method's own number if not given.

    Example:
        >>> levels = torch.tensor([1.0, 3.0])
        >>> loss, zero = lambda x, y, b: (y - b).square().sum(), torch.zeros(1)
        >>> problem = task_problem(loss, loss, zero, zero, levels, levels, tasks=2)
        >>> adapted = adapt(problem, MetaLearner(lr_x=0.1, lr_y=0.5, inner=1), zero)
        >>> adapted.flatten().sort().values
        tensor([1., 3.])
    """
    if not isinstance(method, MetaLearner):
        fail("method", "must be a MetaLearner", type(method).__name__)
    oracle, sample = method.oracle(problem), Sample(0)
    if not isinstance(x, Tensor) or x.numel() != problem.dim_x or x.dtype != problem.dtype:
        fail("x", f"must be a tensor of {problem.dim_x} numbers in {problem.dtype}", x)
    x, lr_y = x.detach().reshape(-1), method.rates(0)["lr_y"]
    y = method.starts(oracle, x)
    for _ in range(method.inner if inner is None else check_count("inner", inner)):
        y = oracle.move_y(y, oracle.lower(x, y, sample), lr_y)
    return y.view(problem.pack_y.shapes[0])
