"""The four quantities of (6.2) on m samples, how they settle as m grows, and the balance (6.10)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor

from mindgap.base.check import between, fail, flag, one_of, positive, whole
from mindgap.base.objective import Objective
from mindgap.measure.distributions import normal_quantile, student_quantile
from mindgap.measure.gradients import OutOfTimeError, add_to_mean, gradient_passes, samples_in
from mindgap.measure.per_sample import per_sample_norms
from mindgap.measure.probe import Probe, Reading
from mindgap.measure.probes.curvature import Sharpness, sharpness
from mindgap.measure.probes.noise import noise_sample

#: A quantity counts as settled when the last doubling of m changed it by less than this share.
SETTLED = 0.1


@dataclass(frozen=True)
class Growth:
    """The estimates on the first ``samples`` samples."""

    samples: int
    loss: float
    gradient_norm: float
    gradient_norm_unbiased: float
    noise: float
    sharpness: float


@dataclass(frozen=True)
class TrainingStatistics:
    """Loss, gradient norm, noise and sharpness of (6.2), estimated on m samples."""

    samples: int  # m
    #: L_S and its interval.
    loss: float
    loss_interval: tuple[float, float]
    gradient_norm: (
        float  # norm of the mean gradient over the m samples, biased upward by Jensen's inequality
    )
    gradient_norm_unbiased: (
        float  # root of the unbiased estimate of the squared norm (0 where that is negative)
    )
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
    flag("growth", growth), flag("with_sharpness", with_sharpness)
    kept, left_out = _one_size(objective, batches, seed)
    size = samples_in(kept[0])
    squares, unit = _squares(objective, kept, per, seed)
    prefix, losses = _prefixes(objective, kept, seed)
    m = size * len(kept)
    overall = noise_sample(objective, kept, seed=seed, projections=0, coordinates=1)
    curvature: Sharpness | None = start if with_sharpness else None
    rows: list[Growth] = []
    for count, norm in prefix.items():
        if not growth and count < len(kept):
            continue
        if with_sharpness:
            curvature = sharpness(
                objective,
                kept[:count],
                tol=tol,
                start=curvature,
                seed=seed,
                optimizer=optimizer if count == len(kept) else None,
            )
        spread, _ = _spread(squares[: count * (size if unit == "sample" else 1)], norm, size, unit)
        n = count * size
        unbiased = math.sqrt(max(0.0, norm**2 - spread / n))
        rows.append(
            Growth(
                n,
                float(np.mean(losses[:count])),
                norm,
                unbiased,
                math.sqrt(spread),
                math.nan if curvature is None else curvature.norm,
            )
        )
    last = rows[-1]
    variance, error = _spread(squares, last.gradient_norm, size, unit)
    z = normal_quantile(0.5 + level / 2)
    low, high = overall.squared_mean_interval(level)
    reach = (
        student_quantile(0.5 + level / 2, len(kept) - 1)
        * float(np.std(losses, ddof=1))
        / math.sqrt(len(kept))
    )
    moment = variance * (1 - 1 / m) + last.gradient_norm**2
    return TrainingStatistics(
        samples=m,
        loss=last.loss,
        loss_interval=(last.loss - reach, last.loss + reach),
        gradient_norm=last.gradient_norm,
        gradient_norm_unbiased=last.gradient_norm_unbiased,
        gradient_norm_interval=(math.sqrt(max(0.0, low)), math.sqrt(max(0.0, high))),
        noise=math.sqrt(variance),
        noise_interval=(math.sqrt(max(0.0, variance - z * error)), math.sqrt(variance + z * error)),
        second_moment=math.sqrt(moment),
        sharpness=last.sharpness,
        curvature=curvature,
        per=unit,
        left_out=left_out,
        growth=tuple(rows),
        settled=_settled(rows),
    )


@dataclass(frozen=True)
class Equilibrium:
    """The two sides of (6.10) and the distance to the edge of stability."""

    left: float  # Grad^2
    right: float  # eta Sigma L G, the Cauchy-Schwarz bound that (6.10) boldly takes for an equation
    ratio: (
        float  # left / right; at most 1 where the exact identity behind (6.10) and its bound hold
    )
    edge: float  # sharpness times eta / 2; 1 at the edge of stability of gradient descent


def equilibrium(statistics: TrainingStatistics, lr: float, batch_size: int) -> Equilibrium:
    """Grad^2 against eta Sigma L G (6.10), for SGD with step ``lr`` on minibatches of
    ``batch_size`` samples.

    Sigma = sigma / sqrt(b) and G = sqrt(Grad^2 + sigma^2 / b) belong to the minibatch gradient the
    step uses; Grad is the norm corrected for its bias; L the operator norm of the Hessian. Source:
    thesis, (6.10) and 6.5.2.

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


def _one_size(objective: Objective, batches: Iterable[Any], seed: int) -> tuple[list[Any], int]:
    """The batches of the first's size, held; drawn under the guard so that a shuffling loader
    is not moved on.
    """
    with gradient_passes(objective, batches, seed=seed) as passes:
        listed = isinstance(batches, (list, tuple)) and len(batches) > 0
        every = list(batches) if listed else [item.batch for item in passes.values()]
    size = samples_in(every[0])
    kept = [b for b in every if samples_in(b) == size]
    if len(kept) < 2:
        fail("batches", "must give at least two batches of one size", len(kept))
    return kept, len(every) - len(kept)


def _squares(objective: Objective, kept: list[Any], per: str, seed: int) -> tuple[np.ndarray, str]:
    """||grad l_i||^2 of every sample, or ||g_b||^2 of every batch where samples have no
    gradient of their own.
    """
    if per != "batch":
        try:
            norms = [
                per_sample_norms(objective, batch, seed=seed, check=i == 0).norms
                for i, batch in enumerate(kept)
            ]
            return np.concatenate(norms) ** 2, "sample"
        except OutOfTimeError:
            raise
        except Exception:
            # The loss of one sample alone may be impossible (a graph with fixed nodes); batches
            # serve where nobody asked for samples.
            if per == "sample":
                raise
    with gradient_passes(objective, kept, seed=seed) as passes:
        found = [
            sum(float(g.double().square().sum()) for g in item.gradient)
            for item in passes.gradients()
        ]
    return np.array(found), "batch"


def _spread(squares: np.ndarray, norm: float, size: int, per: str) -> tuple[float, float]:
    """sigma^2 of one sample and its standard error, from squared norms around a mean of norm
    ``norm``.
    """
    n = len(squares)
    factor = (1 if per == "sample" else size) * n / max(n - 1, 1)
    error = float(np.std(squares, ddof=1)) / math.sqrt(n) if n > 1 else math.inf
    return max(0.0, float(squares.mean()) - norm**2) * factor, error * factor


def _prefixes(
    objective: Objective, kept: list[Any], seed: int
) -> tuple[dict[int, float], list[float]]:
    """Norm of the mean gradient over the first 1, 2, 4, ... and all batches, in one pass; and
    the losses.
    """
    norms: dict[int, float] = {}
    losses: list[float] = []
    mean: list[Tensor] = []
    with gradient_passes(objective, kept, seed=seed) as passes:
        for item in passes.gradients():
            count = item.index + 1
            mean = add_to_mean(mean, item.gradient, count)
            losses.append(float(item.loss))
            if count == len(kept) or count & (count - 1) == 0:
                norms[count] = math.sqrt(sum(float(t.double().square().sum()) for t in mean))
    return norms, losses


def _settled(rows: list[Growth]) -> dict[str, bool]:
    if len(rows) < 2:
        return {}
    before, after = rows[-2], rows[-1]
    names = ("loss", "gradient_norm", "gradient_norm_unbiased", "noise", "sharpness")
    return {
        name: abs(getattr(after, name) - getattr(before, name))
        <= SETTLED * abs(getattr(after, name))
        for name in names
        if not math.isnan(getattr(after, name))
    }


class StatisticsProbe(Probe):
    """The four quantities of (6.2) along a run, and both sides of (6.10) where the step size is
    known.

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
        self._last: Sharpness | None = None

    def read(self, at: Reading) -> dict[str, float]:
        """The statistics as numbers of a row, and both sides of the balance where there is one step
        size.
        """
        found = training_statistics(
            at.objective, at.batches, growth=False, tol=self.tol, start=self._last, seed=at.seed
        )
        self._last = found.curvature
        row = {
            name: float(getattr(found, name))
            for name in (
                "loss",
                "gradient_norm",
                "gradient_norm_unbiased",
                "noise",
                "second_moment",
                "sharpness",
            )
        }
        rates = {float(g["lr"]) for g in getattr(at.optimizer, "param_groups", ())}
        if len(rates) == 1 and (lr := rates.pop()) > 0:
            balance = equilibrium(found, lr, samples_in(at.batches[0]))
            row |= {
                "balance_left": balance.left,
                "balance_right": balance.right,
                "edge": balance.edge,
            }
        return row

    def cost(self, batches: int) -> float:
        return 25.0 * batches
