"""Regularisation selection for logistic regression: the upper level chooses the strength of the
lower one's decay.

    binary       g(x, y) = mean_i log(1 + exp(-t_i a_i'y)) + ½ Σ_k e^{x_k} y_k²,
        one x per feature (ijcnn1)
    multiclass   g(x, Y) = mean_i ℓ(Y; a_i, t_i) + ½ Σ_c e^{x_c} ‖Y_c‖²,
        one x per class (covtype)

and f is the mean loss over the validation samples, without decay.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, softplus

from mindgap.base.check import fail
from mindgap.base.checked import check_arguments
from mindgap.base.rng import numpy_stream
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.lab.tasks.data.tabular import Table, covtype, ijcnn1
from mindgap.lab.tasks.problems.softmax import newton, softmax_derivatives

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class RegularisationSelection:
    """The task: splits, start, losses.

    Args:
        train, validation, test: (features, labels); labels -1 and 1 in the binary task,
            0..classes-1 otherwise.
        classes: 2 means the binary task with y in R^d.
        x0, y0: the start; Y is (classes, features) in the multiclass task.
        origin: where the samples come from (``"synthetic"``, ``"ijcnn1"``, ``"covtype"``).

    Example:
        >>> task = ijcnn1_selection(source="synthetic", rows=400)
        >>> problem = task.problem(batch_size=50)
        >>> problem.dim_x, problem.dim_y, problem.lower_data.batches
        (22, 22, 8)
    """

    train: Batch
    validation: Batch
    test: Batch
    classes: int
    x0: Tensor
    y0: Tensor
    origin: str

    @property
    def binary(self) -> bool:
        """Whether there are two classes and one weight per feature."""
        return self.classes == 2

    def upper(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """f: the mean loss of a batch (features, labels), without decay; it does not depend on x. y
        has the shape of ``y0``.
        """
        features, labels = batch
        if self.binary:
            return softplus(-labels * (features @ y)).mean()
        return cross_entropy(features @ y.T, labels)

    def lower(self, x: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """g: the mean loss of a batch (features, labels), and the decay with weights e^x."""
        squares = y.square() if self.binary else y.square().sum(1)
        return self.upper(x, y, batch) + 0.5 * (x.exp() * squares).sum()

    def problem(self, batch_size: int | tuple[int, int] = 64) -> BilevelProblem:
        """The task as a bilevel problem; ``batch_size`` is one number or (upper, lower)."""
        data = self.validation, self.train
        return BilevelProblem(
            self.upper, self.lower, self.x0, self.y0, *data, batch_size=batch_size
        )

    def test_error(self, y: Tensor) -> float:
        """Share of wrongly classified test samples, for y flat or of the shape of ``y0``. A score
        of 0 in the binary task is wrong.
        """
        features, labels = self.test
        if self.binary:
            return float((labels * (features @ y) <= 0).double().mean())
        predicted = (features @ y.reshape(self.y0.shape).T).argmax(1)
        return float((predicted != labels).double().mean())

    def y_star(self, x: Tensor) -> Tensor:
        """argmin_y g(x, y), flat, by Newton's method with halving (strongly convex: e^x > 0)."""
        return newton(
            lambda y: self._derivatives(x, y),
            lambda y: self.lower(x, y.view(self.y0.shape), self.train),
            self.y0.reshape(-1).clone(),
        )

    def hypergradient(self, x: Tensor) -> Tensor:
        """∇Φ(x) = -J H⁻¹ f_y at y*(x), shape of ``x``, with H = g_yy dense and J = g_xy.

        (J z)_k = e^{x_k} y_k z_k in the binary task, and that summed over the features of class k
        in the multiclass one.
        """
        y = self.y_star(x)
        _, curvature = self._derivatives(x, y)
        with torch.enable_grad():
            leaf = y.clone().requires_grad_()
            loss = self.upper(x, leaf.view(self.y0.shape), self.validation)
            (f_y,) = torch.autograd.grad(loss, leaf)
        # y_k z_k with z = H⁻¹ f_y.
        products = (y * torch.linalg.solve(curvature, f_y)).view(self.y0.shape)
        return -x.exp() * (products if self.binary else products.sum(1))

    def hyper_objective(self, x: Tensor) -> float:
        """Φ(x) = f(x, y*(x))."""
        return float(self.upper(x, self.y_star(x).view(self.y0.shape), self.validation))

    def _derivatives(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """g_y (d,) and the dense H = g_yy (d, d) of the whole training split, at y flat (d,)."""
        features, labels = self.train
        if self.binary:
            other = torch.sigmoid(-labels * (features @ y))  # probability of the other label
            # ``other`` is also minus the loss's slope by the score t_i a_i'y.
            gradient = -features.T @ (labels * other) / len(labels) + x.exp() * y
            # The loss's second derivative by the score is other·(1 - other).
            weighted = features * (other * (1 - other))[:, None]
            return gradient, features.T @ weighted / len(labels) + torch.diag(x.exp())
        decay = x.exp().repeat_interleave(self.y0.shape[1])  # e^x of the class of each entry of y
        weights = torch.ones_like(labels)
        slope, curvature = softmax_derivatives(features, labels, weights, y.view(self.y0.shape))
        return slope.reshape(-1) + decay * y, curvature + torch.diag(decay)


def ijcnn1_selection(
    *,
    source: str = "auto",
    rows: int | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> RegularisationSelection:
    """Binary task of ijcnn1's shape: 49,990 training and 91,701 validation samples, 22 features,
    one x per feature.

    As in the standard benchmark the validation set is LIBSVM's test set, and it serves for testing
    too. Start: y ~ N(0, I), x = log U(0, 1).

    Args:
        source: ``"real"``, ``"synthetic"``, or ``"auto"``: real where the files are on this
            machine.
        rows: only that many first rows of each split.
        seed: of the start and of synthetic samples.
        dtype, device: of the tensors.
    """
    parts = [ijcnn1(split, source=source, rows=rows, seed=seed) for split in ("train", "test")]
    generator = numpy_stream(seed, "regularisation", "start")
    y0 = torch.from_numpy(generator.standard_normal(22)).to(device, dtype)
    x0 = torch.from_numpy(generator.random(22)).log().to(device, dtype)
    train, validation = (_tensors(part, dtype, device, signed=True) for part in parts)
    return RegularisationSelection(train, validation, validation, 2, x0, y0, parts[0].origin)


def multiclass_selection(
    train: Table,
    validation: Table,
    test: Table,
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> RegularisationSelection:
    """Multiclass task on any three tables with three classes or more: one x per class. Start: Y ~
    N(0, I), x = log U(0, 1).

    Args:
        train, validation, test: tables with the same features; f is the loss on ``validation``.
        seed: of the start.
        dtype, device: of the tensors.
    """
    classes = 1 + max(int(part.labels.max()) for part in (train, validation, test))
    if classes < 3:
        fail("labels", "must have at least three classes", classes)
    generator = numpy_stream(seed, "regularisation", "start")
    y0 = torch.from_numpy(generator.standard_normal((classes, train.features.shape[1])))
    x0 = torch.from_numpy(generator.random(classes)).log()
    return RegularisationSelection(
        train=_tensors(train, dtype, device),
        validation=_tensors(validation, dtype, device),
        test=_tensors(test, dtype, device),
        classes=classes,
        x0=x0.to(device, dtype),
        y0=y0.to(device, dtype),
        origin=train.origin,
    )


def covtype_selection(
    *,
    source: str = "auto",
    rows: int | None = None,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> RegularisationSelection:
    """Multiclass task of Covertype: 371,847 / 92,962 / 116,203 samples of 54 standardised features,
    7 classes; y has 378 entries, x has 7.

    Args:
        source: ``"real"``, ``"synthetic"``, or ``"auto"``: real where the files are on this
            machine.
        rows: only that many first rows of each split.
        seed: of the start, and of the split or of synthetic samples.
        dtype, device: of the tensors.

    Example:
        >>> problem = covtype_selection(source="synthetic", rows=200).problem()
        >>> problem.dim_x, problem.dim_y
        (7, 378)
    """
    parts = [
        covtype(split, source=source, rows=rows, seed=seed)
        for split in ("train", "validation", "test")
    ]
    return multiclass_selection(*parts, seed=seed, dtype=dtype, device=device)


def _tensors(
    table: Table, dtype: torch.dtype, device: str | torch.device, *, signed: bool = False
) -> Batch:
    """Features and labels of a table as tensors on a device, the features of type ``dtype``.

    Args:
        table: the samples.
        dtype, device: of the tensors.
        signed: whether labels 0 and 1 become -1 and 1 of type ``dtype``; else they stay integers.
    """
    labels = torch.from_numpy(table.labels).to(device)
    if signed:
        labels = (2 * labels - 1).to(dtype)
    return torch.from_numpy(table.features).to(device, dtype), labels


check_arguments(__name__)
