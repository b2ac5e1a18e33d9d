"""The four quantities of (6.2) on m samples, how they settle as m grows, and the balance (6.10)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from mindgap.base.check import between, fail, flag, one_of, positive, whole
from mindgap.base.objective import Objective
from mindgap.base.tensors import as_real, euclidean_norm
from mindgap.measure.distributions import student_quantile
from mindgap.measure.gradients import OutOfTimeError, add_to_mean, gradient_passes, samples_in
from mindgap.measure.per_sample import per_sample_norms
from mindgap.measure.probe import Probe, Reading
from mindgap.measure.probes.curvature import Sharpness, sharpness
from mindgap.measure.probes.noise import noise_sample

#: A quantity counts as settled when the last doubling of m changed it by less than this share.
SETTLED = 0.1


@dataclass(frozen=True)
class Growth:
    """The estimates on the first ``samples`` samples, as in ``TrainingStatistics``."""

    samples: int
    loss: float
    gradient_norm: float
    gradient_norm_unbiased: float
    noise: float  # of one sample
    sharpness: float  # NaN where it was left out


@dataclass(frozen=True)
class TrainingStatistics:
    """Loss, gradient norm, noise and sharpness of (6.2), estimated on m samples."""

    samples: int  # m
    #: L_S and its interval.
    loss: float
    loss_interval: tuple[float, float]
    #: norm of the mean gradient over the m samples, biased upward by Jensen's inequality
    gradient_norm: float
    #: root of the unbiased estimate of the squared norm (0 where that is negative)
    gradient_norm_unbiased: float
    #: interval for the norm, from the unbiased square by leaving out one batch at a time.
    gradient_norm_interval: tuple[float, float]
    #: sigma of (6.2): root mean squared distance of one sample's gradient from the mean, with m - 1
    #: in place of m, so that its square is unbiased.
    noise: float
    noise_interval: tuple[float, float]
    second_moment: float  # G of (6.10): root mean squared norm of one sample's gradient
    #: the operator norm of the Hessian, with the whole reading in ``curvature``; nan and None where
    #: it was left out.
    sharpness: float
    curvature: Sharpness | None
    #: ``"sample"``, or ``"batch"`` where single samples have no gradient (batch norm in training
    #: mode): then noise is that of minibatches times the root of their size.
    per: str
    left_out: int  # batches of another size than the first, not used
    growth: tuple[Growth, ...]  # the same on the first batches, doubling
    settled: dict[str, bool]  # quantity -> whether the last doubling changed it by less than 10 %


def training_statistics(
    objective: Objective,
    batches: Iterable[Any],
    *,
    per: Literal["auto", "sample", "batch"] = "auto",
    growth: bool = True,
    with_sharpness: bool = True,
    level: float = 0.9,
    tol: float = 1e-3,
    optimizer: Any = None,
    start: Sharpness | None = None,
    seed: int = 0,
) -> TrainingStatistics:
    """Estimate (6.2) at the model's point from the samples in ``batches`` (thesis, (6.2) and 6.6.2;
    Fig. 6-8, 6-9).

    With l_i the loss of sample i and m samples: loss (1/m) sum l_i; gradient norm ||(1/m) sum grad
    l_i||; noise sqrt((1/m) sum ||grad l_i - mean||^2); sharpness ||(1/m) sum Hessian l_i||_op.

    Args:
        objective: its loss is a mean over the samples of a batch.
        batches: at least two, of one size; others than the first's size are left out.
        per: ``"sample"`` for noise from per-sample gradients, ``"batch"`` from minibatches,
            ``"auto"`` for the first where it exists.
        growth: also give the estimates on the first 1, 2, 4, ... batches (about doubles the cost of
            the sharpness).
        with_sharpness: False leaves the sharpness out, which is most of the cost.
        level: of the intervals.
        tol: of the sharpness.
        optimizer: whose edge of stability to report in ``curvature``.
        start: earlier ``curvature`` for a warm start.
        seed: names the random numbers.

    Example:
        >>> import torch
        >>> w = torch.nn.Linear(1, 1, bias=False).double()
        >>> problem = Objective(w, lambda m, b: 0.5 * (m.weight.sum() - b).square().mean())
        >>> with torch.no_grad():
        ...     _ = w.weight.fill_(0.0)
        >>> found = training_statistics(
        ...     problem, [torch.tensor([[1.0], [3.0]]), torch.tensor([[3.0], [5.0]])]
        ... )
        >>> found.gradient_norm, round(found.noise, 6), round(found.sharpness, 6)
        (3.0, 1.632993, 1.0)

    *Differs from the paper*: the norm is given with and without its upward bias, the noise divides
    by m - 1, and every estimate has an interval.
    """
    one_of("per", per, ("auto", "sample", "batch"))
    between("level", level, 0, 1, ends="()")
    flag("growth", growth)
    flag("with_sharpness", with_sharpness)
    used, left_out = _batches_of_one_size(objective, batches, seed)
    batch_size = samples_in(used[0])
    squares, unit = _squared_norms(objective, used, per, seed)  # of each sample or of each batch
    norms, losses = _norms_of_prefixes(objective, used, seed)
    samples = batch_size * len(used)
    precision = max(torch.finfo(p.dtype).eps for p in objective.parameters)
    noise = noise_sample(objective, used, seed=seed, projections=0, coordinates=1)
    curvature: Sharpness | None = start if with_sharpness else None
    growth_rows: list[Growth] = []
    # For the first 1, 2, 4, ... batches and for all, or for all only.
    for count, norm in norms.items() if growth else [(len(used), norms[len(used)])]:
        if with_sharpness:
            curvature = sharpness(
                objective,
                used[:count],
                tol=tol,
                start=curvature,
                seed=seed,
                optimizer=optimizer if count == len(used) else None,
            )
        units = count * (batch_size if unit == "sample" else 1)
        variance, _ = _sample_variance(squares[:units], norm, batch_size, unit, precision)
        samples_so_far = count * batch_size
        unbiased_norm = math.sqrt(max(0.0, norm**2 - variance / samples_so_far))
        growth_rows.append(
            Growth(
                samples_so_far,
                float(np.mean(losses[:count])),
                norm,
                unbiased_norm,
                math.sqrt(variance),
                math.nan if curvature is None else curvature.norm,
            )
        )
    last = growth_rows[-1]  # of all samples
    variance, variance_error = _sample_variance(
        squares, last.gradient_norm, batch_size, unit, precision
    )
    z = NormalDist().inv_cdf(0.5 + level / 2)  # standard errors that the interval reaches
    low_square, high_square = noise.squared_mean_interval(level)
    loss_reach = (
        student_quantile(0.5 + level / 2, len(used) - 1)
        * float(np.std(losses, ddof=1))
        / math.sqrt(len(used))
    )
    # The mean squared norm of the m gradients: their variance over m, not m - 1, and the mean.
    second_moment = variance * (1 - 1 / samples) + last.gradient_norm**2
    return TrainingStatistics(
        samples=samples,
        loss=last.loss,
        loss_interval=(last.loss - loss_reach, last.loss + loss_reach),
        gradient_norm=last.gradient_norm,
        gradient_norm_unbiased=last.gradient_norm_unbiased,
        gradient_norm_interval=(math.sqrt(max(0.0, low_square)), math.sqrt(max(0.0, high_square))),
        noise=math.sqrt(variance),
        noise_interval=(
            math.sqrt(max(0.0, variance - z * variance_error)),
            math.sqrt(variance + z * variance_error),
        ),
        second_moment=math.sqrt(second_moment),
        sharpness=last.sharpness,
        curvature=curvature,
        per=unit,
        left_out=left_out,
        growth=tuple(growth_rows),
        settled=_settled_quantities(growth_rows),
    )


@dataclass(frozen=True)
class Equilibrium:
    """The two sides of (6.10) and the distance to the edge of stability."""

    left: float  # Grad^2
    right: float  # eta Sigma L G, the Cauchy-Schwarz bound that (6.10) boldly takes for an equation
    ratio: float  # left / right; at most 1 where the identity behind (6.10) and its bound hold
    edge: float  # sharpness times eta / 2; 1 at the edge of stability of gradient descent


def equilibrium(statistics: TrainingStatistics, lr: float, batch_size: int) -> Equilibrium:
    """Grad^2 against eta Sigma L G (6.10), for SGD with step ``lr`` on minibatches of
    ``batch_size`` samples.

    eta is ``lr``, b is ``batch_size``. Sigma = sigma / sqrt(b) and G = sqrt(Grad^2 + sigma^2 / b)
    belong to the minibatch gradient the step uses; Grad is the norm corrected for its bias; L the
    operator norm of the Hessian. Source: thesis, (6.10) and 6.5.2.

    Example:
        >>> import torch
        >>> problem = Objective(
        ...     torch.nn.Linear(1, 1), lambda m, b: 0.5 * (m.weight.sum() - b).square().mean()
        ... )
        >>> found = training_statistics(
        ...     problem, list(torch.tensor([[[1.0], [3.0]], [[3.0], [5.0]]]))
        ... )
        >>> round(equilibrium(found, lr=0.5, batch_size=2).edge, 6)
        0.25
    """
    if not isinstance(statistics, TrainingStatistics):
        fail("statistics", "must be TrainingStatistics", statistics)
    positive("lr", lr)
    whole("batch_size", batch_size, least=1)
    left = statistics.gradient_norm_unbiased**2
    noise = statistics.noise / math.sqrt(batch_size)
    right = lr * noise * statistics.sharpness * math.sqrt(left + noise**2)
    return Equilibrium(
        left, right, left / right if right else math.nan, lr * statistics.sharpness / 2
    )


def _batches_of_one_size(
    objective: Objective, batches: Iterable[Any], seed: int
) -> tuple[list[Any], int]:
    """The batches that are as large as the first, in a list; and how many are left out. An error
    where fewer than two remain. A loader that shuffles is rewound afterwards.
    """
    with gradient_passes(objective, batches, seed=seed) as passes:
        # A loader, and an empty list, are read by a pass, which rewinds or refuses them.
        is_list = isinstance(batches, (list, tuple)) and len(batches) > 0
        all_batches = list(batches) if is_list else [item.batch for item in passes.values()]
    first_size = samples_in(all_batches[0])
    same_size = [b for b in all_batches if samples_in(b) == first_size]
    if len(same_size) < 2:
        fail("batches", "must give at least two batches of one size", len(same_size))
    return same_size, len(all_batches) - len(same_size)


def _squared_norms(
    objective: Objective, batches: list[Any], per: str, seed: int
) -> tuple[np.ndarray, str]:
    """Squared gradient norms, ||grad l_i||^2 of every sample or ||g_b||^2 of every batch.

    Args:
        per: ``"sample"``, ``"batch"``, or ``"auto"`` for samples where they have a gradient of
            their own.

    Returns:
        The squares, shape (samples,) or (batches,); and ``"sample"`` or ``"batch"``.
    """
    if per != "batch":
        try:
            norms = [
                # The first batch stands for all in the check.
                per_sample_norms(objective, batch, seed=seed, check=i == 0).norms
                for i, batch in enumerate(batches)
            ]
            return np.concatenate(norms) ** 2, "sample"
        except OutOfTimeError:
            raise
        except Exception:
            # The loss of one sample alone may be impossible (a graph with fixed nodes). Batches
            # serve, unless the caller asked for samples.
            if per == "sample":
                raise
    with gradient_passes(objective, batches, seed=seed) as passes:
        squares = [
            sum(float(as_real(g).double().square().sum()) for g in item.gradient)
            for item in passes.gradients()
        ]
    return np.array(squares), "batch"


def _sample_variance(
    squares: np.ndarray, norm: float, size: int, unit: str, precision: float
) -> tuple[float, float]:
    """Variance sigma^2 of one sample's gradient, and its standard error (infinite from one value).

    The mean of ``squares`` less ||mean||^2 is the variance with n in the denominator; the factor
    makes that n - 1, and the variance of a batch that of one of its ``size`` samples. A difference
    that rounding alone may leave counts as zero, and the error is no smaller than that.

    Args:
        squares: squared gradient norms of samples or, with ``unit="batch"``, of batches.
        norm: of their mean gradient.
        size: samples in a batch.
        unit: ``"sample"`` or ``"batch"``, what the squares belong to.
        precision: relative rounding of a gradient.
    """
    count = len(squares)
    factor = (1 if unit == "sample" else size) * count / max(count - 1, 1)
    error = float(np.std(squares, ddof=1)) / math.sqrt(count) if count > 1 else math.inf
    difference, rounding = float(squares.mean()) - norm**2, 8 * precision * norm**2
    return (difference if difference > rounding else 0.0) * factor, max(error, rounding) * factor


def _norms_of_prefixes(
    objective: Objective, batches: list[Any], seed: int
) -> tuple[dict[int, float], list[float]]:
    """Norms of the mean gradient over growing numbers of batches, in one pass.

    Returns:
        Number of batches (1, 2, 4, ... and all) -> norm; and the loss of each batch.
    """
    norms: dict[int, float] = {}
    losses: list[float] = []
    mean: list[Tensor] = []
    with gradient_passes(objective, batches, seed=seed) as passes:
        for item in passes.gradients():
            count = item.index + 1
            mean = add_to_mean(mean, item.gradient, count)
            losses.append(float(item.loss))
            is_power_of_two = count.bit_count() == 1
            if count == len(batches) or is_power_of_two:
                norms[count] = euclidean_norm(mean)
    return norms, losses


def _settled_quantities(rows: list[Growth]) -> dict[str, bool]:
    """Quantity -> whether the last doubling of the samples changed it by at most ``SETTLED`` of
    itself; without quantities that are NaN, and empty from a single row.

    Args:
        rows: by growing samples.
    """
    if len(rows) < 2:
        return {}
    names = ("loss", "gradient_norm", "gradient_norm_unbiased", "noise", "sharpness")
    pairs = {name: (getattr(rows[-2], name), getattr(rows[-1], name)) for name in names}
    return {
        name: abs(now - before) <= SETTLED * abs(now)
        for name, (before, now) in pairs.items()
        if not math.isnan(now)
    }


class StatisticsProbe(Probe):
    """The four quantities of (6.2) along a run, and both sides of (6.10) where the step size is
    known.

    Args:
        every: run at every ``every``-th reading of the monitor.
        tol: relative error of the sharpness that is good enough.

    Example:
        >>> import torch
        >>> w = torch.nn.Linear(1, 1, bias=False).double()
        >>> problem = Objective(w, lambda m, b: 0.5 * (m.weight.sum() - b).square().mean())
        >>> with Reading(
        ...     problem, [torch.tensor([[1.0], [3.0]]), torch.tensor([[3.0], [5.0]])]
        ... ) as at:
        ...     sorted(StatisticsProbe().read(at))
        ['gradient_norm', 'gradient_norm_unbiased', 'loss', 'noise', 'second_moment', 'sharpness']
    """

    name, needs = "statistics", frozenset({"gradients", "hessian"})

    def __init__(self, every: int = 1, *, tol: float = 1e-2) -> None:
        super().__init__(every)
        self.tol = positive("tol", tol)
        self._last: Sharpness | None = None  # the newest curvature, the next one's warm start

    def read(self, at: Reading) -> dict[str, float]:
        """The statistics as numbers of a row, and both sides of (6.10) where there is one step
        size.
        """
        statistics = training_statistics(
            at.objective, at.batches, growth=False, tol=self.tol, start=self._last, seed=at.seed
        )
        self._last = statistics.curvature
        row = {
            name: float(getattr(statistics, name))
            for name in (
                "loss",
                "gradient_norm",
                "gradient_norm_unbiased",
                "noise",
                "second_moment",
                "sharpness",
            )
        }
        # Step sizes of the optimizer's groups; none without an optimizer.
        rates = {float(g["lr"]) for g in getattr(at.optimizer, "param_groups", ())}
        lr = rates.pop() if len(rates) == 1 else 0.0  # 0: no step size that counts for all
        if lr > 0:
            balance = equilibrium(statistics, lr, samples_in(at.batches[0]))
            row |= {
                "balance_left": balance.left,
                "balance_right": balance.right,
                "edge": balance.edge,
            }
        return row

    def cost(self, batches: int) -> float:
        # About 25 gradients per batch, for single samples and for the products of a sharpness.
        return 25.0 * batches
