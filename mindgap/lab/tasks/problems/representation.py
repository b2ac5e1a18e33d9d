"""Hyper-representation: many small classification tasks share an encoder, and each has a head of
its own.

    lower   g(x, Y) = mean_i [ mean_{j in support of i} ℓ(Y_i; φ_x(a_ij), t_ij) + c ‖Y_i‖² ]
    upper   f(x, Y) = mean_i   mean_{j in query of i}   ℓ(Y_i; φ_x(a_ij), t_ij)

with x the weights of the encoder φ, Y_i the head of task i (features and a constant x ways) and ℓ
the cross-entropy of a linear softmax: g is strongly convex in Y with modulus 2c/n for n tasks.

*One head per task.* The tasks number their classes 0, 1, ... each in its own way, so that one head
for all would have nothing to find; and with one head per task, y*(x) is what the heads become when
they are trained to the end, which is what is done to the tasks of validation and test. The number
of lower unknowns is fixed: tasks x (features + 1) x ways.

*A sample is one example of every task.* A minibatch of whole tasks would leave the heads of all
other tasks without a gradient and without curvature, and a Neumann series of a few terms would meet
tasks that its start has not seen: what it lacks would be the sampling's doing, not the method's.
Here every minibatch says something about every head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from mindgap.base.check import fail, one_of, whole
from mindgap.base.checked import AtLeast, Count, Positive, check_arguments
from mindgap.base.rng import numpy_stream
from mindgap.bilevel.data.problem import BilevelProblem, Pack
from mindgap.lab.tasks.data.tabular import Table
from mindgap.lab.tasks.problems.softmax import newton, softmax_derivatives

#: inputs that a measure encodes at once
CHUNK = 2048


@dataclass(frozen=True)
class Tasks:
    """Tasks of one shape: inputs (tasks, examples, ...) and labels (tasks, examples) of support
    and query sets.
    """

    support: tuple[Tensor, Tensor]  # what a head is fitted to
    query: tuple[Tensor, Tensor]  # what it is judged by

    def __len__(self) -> int:
        return len(self.support[1])


@dataclass(frozen=True)
class HyperRepresentation:
    """Tasks to learn from, tasks to choose settings with, tasks to test on, and an encoder at its
    start.

    Args:
        train, validation, test: the tasks; each is split into support and query examples.
        ways: classes of a task.
        decay: c, weight of a head's squared norm.
        start: the encoder's weights: ``first`` (inputs, hidden), ``first_bias``, ``second``
            (hidden, or four times that for pairs, features) and ``second_bias``.

    Example:
        >>> from mindgap.lab.tasks.data import digits
        >>> tables = split_table(digits(), (0.6, 0.2, 0.2), seed=0)
        >>> task = hyper_representation(
        ...     *([t] for t in tables), tasks=(12, 5, 5), ways=3, shots=4, seed=0
        ... )
        >>> problem = task.problem(batch_size=3)
        >>> problem.dim_x, problem.dim_y, problem.upper_data.batches
        (1176, 324, 4)
        >>> loss, accuracy = task.adapted(problem.pack_x.start, "test")
        >>> 1 / 3 < accuracy <= 1
        True
    """

    train: Tasks
    validation: Tasks
    test: Tasks
    ways: int
    decay: float
    start: Mapping[str, Tensor]

    @property
    def x0(self) -> dict[str, Tensor]:
        """The encoder at the start."""
        return dict(self.start)

    @property
    def y0(self) -> Tensor:
        """The heads of the training tasks at the start: zeros."""
        weights = self.start["second"]
        return weights.new_zeros(len(self.train), weights.shape[1] + 1, self.ways)

    def encode(self, x: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
        """φ_x: the features of inputs, and a 1 for the heads' constant, (..., features + 1).

        tanh twice; between the layers the two codes u, v of a pair are joined to (u, v, (u - v)², u
        v). The square stands where the authors have |u - v|, because the methods ask for second
        derivatives.

        Args:
            x: the encoder's weights by name, as ``start`` has them.
            inputs: (..., d), or pairs (..., 2, d) where ``second`` has been made for them.
        """
        if not set(self.start) <= set(x):
            fail("x", f"must hold {', '.join(self.start)}", list(x))
        code = torch.tanh(inputs @ x["first"] + x["first_bias"])
        return _features_of_code(code, x["second"], x["second_bias"])

    def upper(self, x: Mapping[str, Tensor], y: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        """f on a batch of (examples, tasks, ...) inputs and (examples, tasks) labels, at the
        encoder x and the heads y (tasks, features + 1, ways).
        """
        inputs, labels = batch
        # b example, t task, k feature, c class: every task's features meet its own head.
        logits = torch.einsum("btk,tkc->btc", self.encode(x, inputs), y)
        return cross_entropy(logits.flatten(0, 1), labels.flatten())

    def lower(self, x: Mapping[str, Tensor], y: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        """g on a batch of (examples, tasks, ...) inputs and (examples, tasks) labels, at the
        encoder x and the heads y, as for :meth:`upper`.
        """
        return self.upper(x, y, batch) + self.decay * y.square().sum() / len(y)

    def problem(self, batch_size: int | tuple[int, int] = 2) -> BilevelProblem:
        """The task as a bilevel problem; ``batch_size`` counts examples of every task: one
        number or (upper, lower).
        """
        query, support = (
            tuple(tensor.transpose(0, 1).contiguous() for tensor in level)
            for level in (self.train.query, self.train.support)
        )
        return BilevelProblem(
            self.upper, self.lower, self.x0, self.y0, query, support, batch_size=batch_size
        )

    def heads(self, x: Tensor, tasks: Tasks | None = None) -> Tensor:
        """The heads that minimise each task's part of g, ℓ over its support set and c ‖Y_i‖², by
        Newton's method on the CPU in double precision: (tasks, features + 1, ways).

        Args:
            x: flat vector of the encoder's weights.
            tasks: whose heads; the training tasks' (then it is y*(x)) if not given.
        """
        tasks = tasks or self.train
        inputs, labels = tasks.support
        rows = self._features(x, inputs).double()  # (tasks, examples, features + 1)
        features, basis = rows.cpu(), None
        # c ‖Y‖² keeps a head in the span of its examples: where they are fewer than the features,
        # solve for the head's coordinates in a basis of the span.
        if rows.shape[-1] > rows.shape[-2]:
            features, basis = _coordinates(rows)
        labels, shape = labels.cpu(), (len(tasks), self.ways, features.shape[-1])
        weights = torch.ones_like(labels)

        def derivatives(flat: Tensor) -> tuple[Tensor, Tensor]:
            """Gradient and Hessian of each task's part of g at its flat head; ``shape`` is (tasks,
            ways, features), and ``weights`` are all 1.
            """
            slope, curvature = softmax_derivatives(features, labels, weights, flat.view(shape))
            decay = 2 * self.decay * torch.eye(flat.shape[-1], dtype=flat.dtype, device=flat.device)
            return slope.flatten(1) + 2 * self.decay * flat, curvature + decay

        def value(flat: Tensor) -> Tensor:
            """Each task's part of g, (tasks,), at its flat head."""
            losses = self._losses(features, labels, flat.view(shape).mT)
            return losses + self.decay * flat.square().sum(-1)

        heads = newton(derivatives, value, features.new_zeros(shape).flatten(1)).view(shape).mT
        if basis is not None:
            heads = rows.mT @ (basis @ heads).to(rows)  # from coordinates to features
        return heads.contiguous().to(self.y0)

    def adapted(self, x: Tensor, split: str = "test") -> tuple[float, float]:
        """(loss, accuracy) on the query sets of tasks, with fresh heads.

        The heads are trained to the end on the support sets: no step of theirs can be tuned for one
        method.

        Args:
            x: flat vector of the encoder's weights.
            split: ``"train"``, ``"validation"`` or ``"test"``.
        """
        one_of("split", split, ("train", "validation", "test"))
        tasks = getattr(self, split)
        return self._score(x, self.heads(x, tasks), tasks)

    def accuracy(self, x: Tensor, y: Tensor) -> float:
        """Share of the training tasks' query examples that heads y (flat, or of y0's shape)
        classify rightly.
        """
        return self._score(x, y.reshape(self.y0.shape), self.train)[1]

    def hyper_objective(self, x: Tensor) -> float:
        """Φ(x) = f(x, y*(x)) over all examples."""
        return self.adapted(x, "train")[0]

    @torch.no_grad()
    def _features(self, x: Tensor, inputs: Tensor) -> Tensor:
        """Features of all examples of tasks and a 1, without a gradient: (tasks, examples, features
        + 1). The examples are encoded in parts, because all at once may not fit into memory.

        Args:
            x: flat vector of the encoder's weights.
            inputs: (tasks, examples, ...).
        """
        weights: Mapping[str, Tensor] = Pack("x", self.x0).view(x)
        inputs_per_task = inputs[0, ..., 0].numel()
        tasks_at_once = max(1, CHUNK // inputs_per_task)
        return torch.cat([self.encode(weights, part) for part in inputs.split(tasks_at_once)])

    def _losses(self, features: Tensor, labels: Tensor, heads: Tensor) -> Tensor:
        """Mean loss of each task, (tasks,), from its features (tasks, examples, k), labels and head
        (tasks, k, ways).
        """
        logits = (features @ heads).flatten(0, 1)
        return cross_entropy(logits, labels.flatten(), reduction="none").view_as(labels).mean(-1)

    @torch.no_grad()
    def _score(self, x: Tensor, heads: Tensor, tasks: Tasks) -> tuple[float, float]:
        """(mean loss, accuracy) of heads (tasks, features + 1, ways) on the query sets of tasks, at
        a flat x.
        """
        inputs, labels = tasks.query
        features = self._features(x, inputs)
        is_right = (features @ heads).argmax(-1) == labels
        loss = self._losses(features, labels, heads).mean()
        return float(loss), float(is_right.double().mean())


def _features_of_code(code: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    """The last layer of an encoder: tanh of a product, and a 1, (..., features + 1).

    Args:
        code: (..., hidden), or the codes u, v of pairs, (..., 2, hidden), joined here to (u, v, (u
            - v)², u v).
        weights: (hidden, features), or (4 hidden, features) for pairs.
        bias: (features,).
    """
    if weights.shape[0] != code.shape[-1]:
        u, v = code.unbind(-2)  # more weights than one code has units: these are pairs
        code = torch.cat([u, v, (u - v).square(), u * v], -1)
    features = torch.tanh(code @ weights + bias)
    return torch.cat([features, torch.ones_like(features[..., :1])], -1)


def _coordinates(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Coordinates of each problem's rows in an orthonormal basis of their span, on the CPU.

    By the eigenvectors of R Rᵀ, whose product is taken on the device of the rows. Directions that
    are no longer than rounding are set to zero.

    Args:
        rows: R, (..., n, d) with n <= d.

    Returns:
        (coordinates C, (..., n, n), with C Cᵀ = R Rᵀ; S, (..., n, n), such that the basis is Rᵀ S).
    """
    eigenvalues, vectors = torch.linalg.eigh((rows @ rows.mT).cpu())
    has_length = eigenvalues > 1e-13 * eigenvalues[..., -1:]  # they ascend, the last is the largest
    lengths = torch.where(has_length, eigenvalues, 0.0).sqrt()[..., None, :]
    return vectors * lengths, torch.where(has_length[..., None, :], vectors / lengths, 0.0)


def hyper_representation(
    train: Sequence[Table],
    validation: Sequence[Table],
    test: Sequence[Table],
    *,
    tasks: tuple[int, int, int] = (200, 50, 100),
    ways: Annotated[int, AtLeast(2)] = 2,
    shots: Count = 10,
    hidden: Count = 16,
    features: Count = 8,
    decay: Positive = 1e-2,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> HyperRepresentation:
    """Draw tasks from labelled tables: a table, some of its classes, and examples of each for
    support and for query.

    Inputs are standardised with the training tables' mean and deviation; no other table has a say.
    Each table is halved once, by seed: support sets come from one half and query sets from the
    other.

    Args:
        train: tables (domains) of the training tasks.
        validation: tables of the tasks by which settings are chosen.
        test: tables of the test tasks.
        tasks: how many (training, validation, test) tasks.
        ways: classes of a task, drawn from the table's.
        shots: examples of each class in the support set, and as many in the query set.
        hidden: width of the encoder between its layers.
        features: numbers that the encoder gives to a head.
        decay: c, weight of a head's squared norm.
        seed: of the halves, the tasks and the encoder's start.
        dtype, device: of the tensors.

    Raises:
        RuleError: for a table with too few classes or examples, or tables of different inputs.

    *Differs from the code published with SLIP*: one linear head per task, trained to the end for
    a test, in place of one tanh network that is carried from task to task; the squared norm in
    place of the norm; word vectors averaged over a text in place of a recurrent net.
    """
    # Part -> its tables.
    tables_of = {"train": train, "validation": validation, "test": test}
    shapes = {table.features.shape[1:] for tables in tables_of.values() for table in tables}
    if len(shapes) != 1:
        fail("tables", "must be there, with inputs of one shape", sorted(shapes))
    (shape,) = shapes
    train_inputs = np.concatenate([table.features.reshape(-1, shape[-1]) for table in train])
    mean, deviation = train_inputs.mean(0), train_inputs.std(0)
    deviation[deviation == 0] = 1.0  # of a constant input, such as a pixel that is always white
    target = torch.device(device)

    def tensors(inputs: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
        """Inputs, standardised by the training tables' mean and deviation, and labels as tensors on
        the device.
        """
        scaled = torch.from_numpy((inputs - mean) / deviation)
        return scaled.to(target, dtype), torch.from_numpy(labels).to(target)

    task_sets = []
    for (name, tables), number in zip(tables_of.items(), tasks, strict=True):
        support, query = draw_tasks(
            tables, whole("tasks", number, least=1), ways, shots, seed, name
        )
        task_sets.append(Tasks(tensors(*support), tensors(*query)))
    generator = numpy_stream(seed, "representation", "start")
    second_inputs = hidden * (4 if len(shape) == 2 else 1)  # of a pair (u, v, (u - v)², u v)
    # Normal weights of variance 1/inputs, and biases of zero.
    start = {}
    for name, rows, columns in (("first", shape[-1], hidden), ("second", second_inputs, features)):
        weights = torch.from_numpy(generator.standard_normal((rows, columns)) / np.sqrt(rows))
        start[name] = weights.to(target, dtype)
        start[f"{name}_bias"] = torch.zeros(columns, dtype=dtype, device=target)
    return HyperRepresentation(
        train=task_sets[0],
        validation=task_sets[1],
        test=task_sets[2],
        ways=ways,
        decay=decay,
        start=start,
    )


def draw_tasks(
    tables: Sequence[Table], number: int, ways: int, shots: int, seed: int, name: str
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Draw tasks: a table at random, some of its classes, numbered 0, 1, ..., and examples of each
    from either half of the table (see :func:`hyper_representation`).

    Args:
        tables: to choose from.
        number: of tasks.
        ways: classes of a task.
        shots: examples of a class in either set.
        seed, name: of the draws.

    Returns:
        [support, query], each (inputs (tasks, ways·shots, ...), labels (tasks, ways·shots)), the
        examples of a task in random order.

    Raises:
        RuleError: a table has too few classes, or too few examples of one in a half.
    """
    generator = numpy_stream(seed, "representation", name)
    halves_of = []  # table -> half -> class -> rows
    for table in tables:
        order = generator.permutation(len(table))
        # Every second row of a random order, from the first or from the second on; then sorted.
        halves = [np.sort(order[half::2]) for half in (0, 1)]
        classes = np.unique(table.labels)
        halves_of.append([[rows[table.labels[rows] == c] for c in classes] for rows in halves])
        fewest = min(len(class_rows) for half in halves_of[-1] for class_rows in half)
        # A half must hold ``shots`` examples of every class, whichever classes are drawn.
        if len(classes) < ways or fewest < shots:
            rule = f"must have {ways} classes with {2 * shots} examples each"
            counts = f"{len(classes)} classes, {2 * fewest} examples of the smallest"
            fail("table", rule, f"{table.origin}: {counts}")
    inputs: list[list[np.ndarray]] = [[], []]  # of the support sets, and of the query sets
    labels: list[list[np.ndarray]] = [[], []]
    for _ in range(number):
        place = int(generator.integers(len(tables)))  # of the task's table
        chosen_classes = generator.permutation(len(halves_of[place][0]))[:ways]
        for level, class_rows in enumerate(halves_of[place]):
            rows = [generator.permutation(class_rows[c])[:shots] for c in chosen_classes]
            # A minibatch takes the same places of every task: in order of class it would show one
            # class alone.
            order = generator.permutation(ways * shots)
            inputs[level].append(tables[place].features[np.concatenate(rows)[order]])
            labels[level].append(np.repeat(np.arange(ways), shots)[order])
    return [(np.stack(inputs[level]), np.stack(labels[level])) for level in (0, 1)]


def split_table(table: Table, shares: Sequence[float], *, seed: int = 0) -> list[Table]:
    """Parts of a table by given shares of its samples, in random order; the last takes what
    rounding leaves.

    Args:
        table: the samples.
        shares: of each part, positive; they sum to 1.
        seed: of the order.

    Example:
        >>> table = Table(np.arange(10.0)[:, None], np.zeros(10, dtype=np.int64), "made up")
        >>> [len(part) for part in split_table(table, (0.5, 0.25, 0.25))]
        [5, 2, 3]
    """
    if abs(sum(shares) - 1) > 1e-9 or min(shares) <= 0:
        fail("shares", "must be positive and sum to 1", tuple(shares))
    order = numpy_stream(seed, "representation", "split").permutation(len(table))
    ends = [int(len(table) * share) for share in np.cumsum(shares)[:-1]]
    return [table.part(rows) for rows in np.split(order, ends)]


check_arguments(__name__)
