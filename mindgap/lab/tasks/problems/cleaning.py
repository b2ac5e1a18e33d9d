"""Data hyper-cleaning: learn a weight for each training sample so that corrupted labels lose
theirs.

    lower   g(λ, W) = mean_i σ(λ_i) ℓ(W; x_i, ỹ_i) + c ‖W‖²
        over training samples with corrupted labels ỹ
    upper   f(λ, W) = mean_j ℓ(W; x_j, y_j)                        over clean validation samples

with ℓ the cross-entropy of a linear softmax. Which labels are corrupted is drawn once, by seed, and
never again; the upper level never sees a corrupted label.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from mindgap.base.check import fail, one_of, whole
from mindgap.base.checked import NonNegative, Range, check_arguments
from mindgap.base.rng import numpy_stream
from mindgap.bilevel.data.problem import BilevelProblem
from mindgap.lab.tasks.data.tabular import Table
from mindgap.lab.tasks.problems.softmax import lbfgs, newton, softmax_derivatives

#: Inputs and labels.
Samples = tuple[Tensor, Tensor]
#: Parts of a task: ``"held"`` is for the search of settings, ``"manual"`` was labelled by people.
SPLITS = ("test", "held", "validation", "train", "manual")

#: What a cleaned task is measured against: no cleaning, perfect weights, clean validation samples
#: alone.
CONTROLS = ("none", "perfect", "validation")


class CleaningTask(ABC):
    """What is measured of a cleaning task, whatever its lower level fits: how well lower weights y
    classify clean samples, and how well upper weights x rank the corrupted ones.
    """

    train: Samples  # with corrupted labels
    validation: Samples  # with clean labels
    corrupted: Tensor  # True where a training label was changed

    @property
    @abstractmethod
    def x0(self) -> Tensor:
        """λ at the start."""

    @abstractmethod
    def scores(self, y: Tensor, inputs: Tensor) -> Tensor:
        """Scores (samples, classes) of inputs at flat lower weights y, without a gradient."""

    @abstractmethod
    def minimiser(self, weights: Tensor, samples: Samples | None = None, *limits: int) -> Tensor:
        """The lower weights y, flat, that solve the lower problem with given weights of samples in
        place of σ(λ_i). No method's settings enter the solve.

        Args:
            weights: one per sample, zero or positive.
            samples: inputs and labels; the training samples where none are given.
            limits: the number of the solver's steps, for a solver that takes one.
        """

    def part(self, split: str) -> Samples:
        """Inputs and labels of a part, one of ``SPLITS`` that the task has."""
        names = [name for name in SPLITS if hasattr(self, name)]
        samples: Samples = getattr(self, one_of("split", split, names))
        return samples

    def accuracy(self, y: Tensor, split: str = "test") -> float:
        """Share of rightly classified samples of a split; the labels of ``"train"`` are the
        corrupted ones.
        """
        inputs, labels = self.part(split)
        return float((self.scores(y, inputs).argmax(1) == labels).double().mean())

    def loss(self, y: Tensor, split: str = "held") -> float:
        """Mean cross-entropy on a split at lower weights y; a search of settings looks at
        ``"held"``.
        """
        inputs, labels = self.part(split)
        return float(cross_entropy(self.scores(y, inputs), labels))

    def validation_loss(self, y: Tensor) -> float:
        """f at lower weights y: the loss that the upper level descends on."""
        return self.loss(y, "validation")

    def solved(self, x: Tensor, *limits: int) -> Tensor:
        """The lower weights y, flat, that solve the lower problem at x; see :meth:`minimiser`."""
        return self.minimiser(torch.sigmoid(x), self.train, *limits)

    def control(self, name: str, *limits: int) -> Tensor:
        """Lower weights y, flat, by the solve of :meth:`solved` without any method's x.

        Args:
            name: ``"none"`` for all weights at their start, ``"perfect"`` for weight 1 on right
                labels and 0 on wrong ones, ``"validation"`` for weight 1 on the clean validation
                samples in place of the training samples.
            limits: those of :meth:`minimiser`.
        """
        if one_of("control", name, CONTROLS) == "validation":
            ones = self.x0.new_ones(len(self.validation[1]))
            return self.minimiser(ones, self.validation, *limits)
        if name == "none":
            return self.solved(self.x0, *limits)
        perfect_weights = (~self.corrupted).to(self.x0.dtype)
        return self.minimiser(perfect_weights, self.train, *limits)

    def weight_auc(self, x: Tensor) -> float:
        """Area under the ROC curve: the probability that a clean sample has a larger weight than a
        corrupted one; ties count half.
        """
        return area_under_curve(x, ~self.corrupted)


@dataclass(frozen=True)
class HyperCleaning(CleaningTask):
    """A hyper-cleaning task: three splits, the corruption, and its measures.

    x is λ (one entry per training sample), y is W (features x classes).

    Args:
        train: features (n, d) and corrupted labels (n,).
        validation: features and clean labels.
        test: features and clean labels.
        corrupted: mask (n,), True where the training label was changed.
        classes: number of labels.
        decay: c, weight of ‖W‖².
        start: λ at the start, the same for all samples.
        held: clean samples that neither level trains on: what a search of settings looks at.

    Example:
        >>> from mindgap.lab.tasks.data import digits
        >>> task = hyper_cleaning(digits(), corruption=0.4, train=700, validation=700, seed=0)
        >>> int(task.corrupted.sum()), task.problem().dim_x, task.problem().dim_y
        (280, 700, 640)
        >>> task.weight_auc(torch.where(task.corrupted, -1.0, 1.0))
        1.0
    """

    train: Samples
    validation: Samples
    test: Samples
    corrupted: Tensor
    classes: int
    decay: float
    start: float
    held: Samples

    @property
    def x0(self) -> Tensor:
        # One entry per training sample, of the features' type and device.
        return torch.full_like(self.train[0][:, 0], self.start)

    @property
    def y0(self) -> Tensor:
        """W at the start: zeros."""
        features = self.train[0]
        return features.new_zeros(features.shape[1], self.classes)

    def lower(self, x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """g on a batch of (features, labels, sample numbers) at λ = x and W = y (features,
        classes).
        """
        features, labels, samples = batch
        return self._weighted_loss(y, features, labels, torch.sigmoid(x[samples]))

    def _weighted_loss(
        self, y: Tensor, features: Tensor, labels: Tensor, weights: Tensor
    ) -> Tensor:
        """mean_i weights_i ℓ_i + c ‖W‖² of samples at W = y (features, classes)."""
        losses = cross_entropy(features @ y, labels, reduction="none")
        return (weights * losses).mean() + self.decay * y.square().sum()

    def upper(self, x: Tensor, y: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        """f on a batch of (features, labels) at W = y (features, classes); f does not depend on
        x.
        """
        features, labels = batch
        return cross_entropy(features @ y, labels)

    def problem(self, batch_size: int | tuple[int, int] = 64) -> BilevelProblem:
        """The task as a bilevel problem; ``batch_size`` is one number or (upper, lower)."""
        features, labels = self.train
        numbers = torch.arange(len(labels), device=labels.device)
        return BilevelProblem(
            self.upper,
            self.lower,
            self.x0,
            self.y0,
            self.validation,
            (features, labels, numbers),
            batch_size=batch_size,
        )

    def scores(self, y: Tensor, inputs: Tensor) -> Tensor:
        # (samples, classes), for y flat or (features, classes).
        return inputs @ y.reshape(inputs.shape[1], self.classes)

    def minimiser(self, weights: Tensor, samples: Samples | None = None, *limits: int) -> Tensor:
        """argmin_W of mean_i weights_i ℓ_i + c ‖W‖², flat, by Newton's method with the dense
        Hessian.

        Args:
            weights: one per sample, zero or positive.
            samples: inputs and labels; the training samples where none are given.
            limits: not used; this solve has none.
        """
        features, labels = samples or self.train

        # Inside, flat weights are in the order (classes, features), as softmax_derivatives has it.
        def derivatives(flat: Tensor) -> tuple[Tensor, Tensor]:
            """Gradient and Hessian of the lower loss of the samples solved on, at flat W."""
            by_class = flat.view(self.classes, -1)
            gradient, curvature = softmax_derivatives(features, labels, weights, by_class)
            decay = 2 * self.decay * torch.ones_like(flat)  # the diagonal of c ‖W‖²'s Hessian
            return gradient.reshape(-1) + decay * flat, curvature + torch.diag(decay)

        def value(flat: Tensor) -> Tensor:
            """The lower loss of the same samples, with their ``weights``, at flat W."""
            return self._weighted_loss(flat.view(self.classes, -1).T, features, labels, weights)

        solved = newton(derivatives, value, self.y0.reshape(-1))
        return solved.view(self.classes, -1).T.reshape(-1)  # W is (features, classes)

    def trained_on(self, chosen: Tensor) -> Tensor:
        """The minimiser with weight 1 on some training samples and 0 on the others, flat, by L-BFGS
        instead of :meth:`minimiser`'s Newton steps: for many features.

        Args:
            chosen: mask (n,) of those samples.
        """
        features, labels = (tensor[chosen] for tensor in self.train)
        share = float(chosen.double().mean())  # the lower loss is a mean over all samples

        def value(y: Tensor) -> Tensor:
            """The lower loss at W = y (features, classes), with weight 1 on the chosen samples and
            0 on the others: ``share`` times the chosen ones' mean, and the decay.
            """
            return share * cross_entropy(features @ y, labels) + self.decay * y.square().sum()

        return lbfgs(value, self.y0, max_iter=500, tolerance_grad=1e-6).reshape(-1)

    def perfect_accuracy(self) -> float:
        """Test accuracy of the minimiser with weight 1 on clean samples and 0 on corrupted
        ones: perfect cleaning.
        """
        return self.accuracy(self.control("perfect"))

    def hypergradient(self, x: Tensor) -> Tensor:
        """∇Φ(λ) = -J z at λ = x, shape (n,), with z = H⁻¹ f_W at W*(λ) and H = g_WW dense.

        (J z)_i = σ'(λ_i) ⟨∇ℓ_i, z⟩ / n, and σ' = σ(1 - σ).
        """
        features, labels = self.train
        weights = torch.sigmoid(x)
        y = self.minimiser(weights).view(-1, self.classes).T.contiguous()  # (classes, features)
        # f_W, with weight 1 on every validation sample.
        f_y, _ = softmax_derivatives(*self.validation, torch.ones_like(self.validation[1]), y)
        _, curvature = softmax_derivatives(features, labels, weights, y)
        curvature.diagonal().add_(2 * self.decay)  # of c ‖W‖²
        z = torch.linalg.solve(curvature, f_y.reshape(-1)).view_as(y)
        by_scores = torch.softmax(features @ y.T, 1) - one_hot(labels, self.classes)  # ∂ℓ_i/∂scores
        slopes = (by_scores * (features @ z.T)).sum(1)  # ⟨∇ℓ_i, z⟩
        return -weights * (1 - weights) * slopes / len(labels)


def hyper_cleaning(
    table: Table,
    test: Table | None = None,
    *,
    corruption: Annotated[float, Range(0, 1)] = 0.4,
    train: int | None = None,
    validation: int | None = None,
    held: int = 0,
    components: int | None = None,
    decay: NonNegative = 1e-3,
    start: float = 0.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> HyperCleaning:
    """Split a labelled data set and corrupt the labels of its training part, once.

    Args:
        table: samples to train and validate on (and to test on, where no ``test`` is given).
        test: a test set of its own.
        corruption: p, share of training labels that are changed to another label, all others
            equally likely.
        train: training samples; by default half of what is not for testing.
        validation: clean samples of the upper level; by default the other half.
        held: clean samples for the search of settings; they are taken from those for testing.
        components: project the features on that many principal components of the training and
            validation samples, each scaled to variance one (a dense Hessian needs few features).
        decay: c, weight of the squared norm of W.
        start: λ at the start.
        seed: of the split and of the corruption.
        dtype, device: of the tensors.

    Raises:
        RuleError: for a share outside [0, 1], or splits that do not fit.

    *Differs from the code published with SLIP*, which draws label noise anew at each access,
    validates on the noisy training data and regularises with the norm instead of its square: there
    nothing stable is left to be found.
    """
    order = numpy_stream(seed, "cleaning", "split").permutation(len(table))
    # Without a test set of its own a fifth of the table is for testing.
    not_for_test = len(table) if test is not None else len(table) - len(table) // 5
    train = not_for_test // 2 if train is None else whole("train", train, least=1)
    validation = (
        not_for_test - train if validation is None else whole("validation", validation, least=1)
    )
    needed = train + validation + whole("held", held)
    if needed + (test is None) > len(table):  # at least one sample is left for testing
        fail("train + validation + held", f"must leave samples of {len(table)}", needed)
    parts = {
        "train": table.part(order[:train]),
        "validation": table.part(order[train : train + validation]),
        "test": table.part(order[needed:]) if test is None else test,
        "held": table.part(order[train + validation : needed]),
    }
    if components is not None:
        parts = _whiten(parts, components)
    classes = 1 + max(int(parts[name].labels.max()) for name in ("train", "validation", "test"))
    noisy_labels, mask = corrupt(parts["train"].labels, classes, corruption, seed)
    target = torch.device(device)

    def tensors(features: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
        """Features and labels as tensors on the device ``target``, the features of type
        ``dtype``.
        """
        return torch.from_numpy(features).to(target, dtype), torch.from_numpy(labels).to(target)

    return HyperCleaning(
        train=tensors(parts["train"].features, noisy_labels),
        validation=tensors(parts["validation"].features, parts["validation"].labels),
        test=tensors(parts["test"].features, parts["test"].labels),
        corrupted=torch.from_numpy(mask).to(target),
        classes=classes,
        decay=decay,
        start=start,
        held=tensors(parts["held"].features, parts["held"].labels),
    )


def _whiten(parts: dict[str, Table], components: int) -> dict[str, Table]:
    """The parts with their features projected on principal components and scaled to variance one.

    Components, mean and scale are those of the training and validation samples; no test sample has
    a say.

    Args:
        parts: with ``"train"`` and ``"validation"`` among them.
        components: how many, the largest ones.
    """
    samples = np.concatenate([parts[name].features for name in ("train", "validation")])
    if whole("components", components, least=1) > min(samples.shape):
        fail("components", f"must be at most {min(samples.shape)}", components)
    mean = samples.mean(0)
    # The rows of ``basis`` are the components, the largest first; a singular value over √n is the
    # samples' deviation along its component.
    _, singular_values, basis = np.linalg.svd(samples - mean, full_matrices=False)
    scale = singular_values[:components] / np.sqrt(len(samples))
    return {
        name: replace(part, features=(part.features - mean) @ basis[:components].T / scale)
        for name, part in parts.items()
    }


def corrupt(
    labels: np.ndarray, classes: int, share: float, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Change round(share · n) labels, each to one of the other labels; the same ones for the same
    seed.

    Args:
        labels: int (n,), 0..classes-1; not changed in place.
        classes: number of labels.
        share: of the labels that are changed, in [0, 1].
        seed: of the draws.

    Returns:
        (the labels after the change, the mask of those changed).

    Example:
        >>> labels, mask = corrupt(np.zeros(10, dtype=np.int64), 3, 0.4, seed=0)
        >>> int(mask.sum()), bool((labels[mask] > 0).all()), bool((labels[~mask] == 0).all())
        (4, True, True)
    """
    generator = numpy_stream(seed, "cleaning", "corruption")
    mask = np.zeros(len(labels), dtype=bool)
    mask[generator.permutation(len(labels))[: round(share * len(labels))]] = True
    shifts = generator.integers(1, classes, len(labels))  # never 0 modulo ``classes``
    return np.where(mask, (labels + shifts) % classes, labels), mask


def area_under_curve(score: Tensor, positive: Tensor) -> float:
    """P(score of a positive > score of a negative) + ½ P(equal), from ranks: the Mann-Whitney
    statistic over its largest value.

    Args:
        score: one per sample, (n,).
        positive: True for the positive samples, (n,).

    Raises:
        RuleError: all samples are positive, or none is.

    Example:
        >>> area_under_curve(
        ...     torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([False, False, True, True])
        ... )
        0.75
        >>> area_under_curve(torch.zeros(4), torch.tensor([False, False, True, True]))
        0.5
    """
    from scipy.stats import rankdata

    # The Mann-Whitney statistic: the positives' ranks, less the least that they can sum to.
    is_positive = positive.cpu().numpy().astype(bool)
    positives, negatives = int(is_positive.sum()), int((~is_positive).sum())
    if not positives or not negatives:
        fail("positive", "must have both True and False entries", (positives, negatives))
    rank_sum = rankdata(score.detach().cpu().numpy())[is_positive].sum()
    least_rank_sum = positives * (positives + 1) / 2
    return float((rank_sum - least_rank_sum) / (positives * negatives))


check_arguments(__name__)
