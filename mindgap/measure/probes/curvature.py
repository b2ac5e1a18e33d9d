"""Sharpness: the largest Hessian eigenvalue, and the distance to the optimizer's edge of
stability.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mindgap.base.check import fail, flag, positive, whole
from mindgap.base.objective import Objective
from mindgap.base.rng import torch_stream
from mindgap.measure.gradients import GradientPasses, gradient_passes
from mindgap.measure.hessian import DEFAULT_MEMORY, HessianProduct
from mindgap.measure.lanczos import Spectrum, lanczos
from mindgap.measure.probe import Probe, Reading
from mindgap.measure.stability import EffectiveSteps, effective_steps


@dataclass(frozen=True)
class Stability:
    """Where the loss stands relative to an optimizer's edge of stability."""

    kind: str  # which rule applies ("gradient descent", "heavy ball", "Nesterov", "preconditioned")
    #: the sharpness that the optimizer tolerates; for preconditioned or mixed steps the bound on
    #: the largest eigenvalue of D^(1/2) H D^(1/2) instead.
    threshold: float
    value: float  # the eigenvalue to compare with it (of H, or of D^(1/2) H D^(1/2))
    ratio: float  # value / threshold; above 1 the quadratic model is unstable
    error: float  # error estimate of ``value``


@dataclass(frozen=True)
class Sharpness:
    """Both ends of the Hessian's spectrum at one point."""

    value: float  # largest eigenvalue
    error: float  # estimate of what is left of |lambda - value|, min(r, r^2/gap)
    #: ||H v - value v|| for the unit Ritz vector v: an eigenvalue certainly lies within it (to
    #: rounding).
    residual: float
    #: smallest Ritz value (an upper bound of the smallest eigenvalue; converged when ``both`` was
    #: asked).
    smallest: float
    norm: float  # largest magnitude, the ||H||_op of (6.2)
    products: int  # Hessian products spent on H
    converged: bool  # whether ``tol`` was reached
    #: loss and gradient norm on the same batches at the same point.
    loss: float
    gradient_norm: float
    #: batches, how many graphs of them were kept, and the bytes these hold.
    batches: int
    retained: int
    graph_bytes: int
    values: tuple[float, ...]  # Ritz values of the last basis, ascending: the edge of the spectrum
    stability: Stability | None = (
        None  # where the optimizer stands, when one was given and is known
    )
    unknown: str = ""  # why ``stability`` is None, when an optimizer was given
    warm: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def interval(self) -> tuple[float, float]:
        """``value`` plus and minus its error estimate."""
        return self.value - self.error, self.value + self.error


def sharpness(
    objective: Objective,
    batches: Iterable[Any],
    *,
    tol: float = 1e-3,
    max_products: int = 100,
    both: bool = False,
    start: Sharpness | None = None,
    optimizer: Any = None,
    memory: float = DEFAULT_MEMORY,
    seed: int = 0,
) -> Sharpness:
    """Largest and largest-in-magnitude eigenvalue of the Hessian of the mean loss over ``batches``.

    H = (1/n) sum_b Hessian of the loss on batch b. Lanczos with full reorthogonalisation on
    products by double backward through a graph that is kept over all products. Attention falls back
    to its mathematical form and recurrent layers to native kernels meanwhile, because the fast ones
    have no second derivative. The model, its gradients and all random states are left as they were
    found. Source: thesis, (6.2), fourth quantity; 6.6.2. The thesis names no algorithm for it.

    Args:
        objective, batches: the problem; every batch has equal weight.
        tol: relative error of the eigenvalue that is good enough.
        max_products: stop after so many products, converged or not.
        both: converge the smallest eigenvalue too, also where it is the smaller in magnitude.
        start: an earlier reading of the same model; its eigenvector is a warm start.
        optimizer: a torch optimizer whose edge of stability to report; preconditioned ones cost a
            second Lanczos.
        memory: bytes that retained graphs may hold together. Beside them the basis holds at most 24
            vectors of the parameters' size.
        seed: of the random start and of dropout.

    Example:
        >>> from torch import nn
        >>> problem = Objective(nn.Linear(3, 1, bias=False), lambda m, b: 0.5 * m(b).square().sum())
        >>> reading = sharpness(problem, [torch.diag(torch.tensor([1.0, 2.0, 3.0]))])
        >>> round(reading.value, 4), round(reading.norm, 4)
        (9.0, 9.0)
    """
    with gradient_passes(objective, batches, seed=seed) as passes:
        return sharpness_in(
            passes,
            tol=tol,
            max_products=max_products,
            both=both,
            start=start,
            optimizer=optimizer,
            memory=memory,
            seed=seed,
        )


def sharpness_in(
    passes: GradientPasses,
    *,
    product: HessianProduct | None = None,
    tol: float,
    max_products: int = 100,
    both: bool = False,
    start: Sharpness | None,
    optimizer: Any,
    memory: float = DEFAULT_MEMORY,
    seed: int = 0,
) -> Sharpness:
    """``sharpness`` inside passes that are already open, with a product that others may share."""
    if start is not None and not isinstance(start, Sharpness):
        fail("start", "must be an earlier Sharpness or None", start)
    positive("tol", tol)
    whole("max_products", max_products, least=1)
    flag("both", both)
    hessian = product or HessianProduct(passes, memory=memory)
    steps = (
        effective_steps(optimizer, passes.parameters, hessian.gradient)
        if optimizer is not None
        else ""
    )
    kept = start.warm if start is not None else {}
    plain = _search(hessian, hessian, kept.get("plain"), tol, max_products, both, seed)
    warm = {"plain": plain}
    stability = None
    if isinstance(steps, EffectiveSteps):
        stability, scaled = _stability(
            hessian, steps, plain, kept.get("scaled"), tol, max_products, seed
        )
        warm |= {"scaled": scaled} if scaled is not None else {}
    ends = plain.ends
    return Sharpness(
        value=ends.top.value,
        error=ends.top.error,
        residual=ends.top.residual,
        smallest=ends.bottom.value,
        norm=abs(ends.largest.value),
        products=ends.products,
        converged=ends.converged,
        loss=hessian.loss,
        gradient_norm=float(torch.linalg.vector_norm(hessian.gradient.double())),
        batches=hessian.batches,
        retained=hessian.retained,
        graph_bytes=hessian.bytes,
        values=ends.values,
        stability=stability,
        unknown=steps if isinstance(steps, str) else "",
        warm=warm,
    )


@dataclass(frozen=True)
class _Search:
    """A Lanczos run with what the next one starts from: its vectors, and the gap over the
    largest eigenvalue.
    """

    ends: Spectrum
    gap: float

    @staticmethod
    def of(ends: Spectrum) -> _Search:
        value = abs(ends.top.value)
        return _Search(ends, max(0.0, ends.top.value - ends.second) / value if value > 0 else 0.0)


def _search(
    product: Any,
    hessian: HessianProduct,
    before: _Search | None,
    tol: float,
    limit: int,
    both: bool,
    seed: int,
) -> _Search:
    """The ends of the spectrum of ``product``, searched from those ``before`` if any."""
    size, like = hessian.size, hessian.gradient
    if before is None or before.ends.top.vector.numel() != size:
        # Drawn on the CPU so that one seed gives one start on every device. Every tensor gets the
        # same length: the leading eigenvectors have much of theirs in small tensors, and a start
        # that has too saves a product or two.
        draws = torch.randn(2, size, generator=torch_stream(seed, "lanczos"), dtype=torch.float64)
        lengths = [n for n in hessian.lengths if n]
        draws = torch.cat(
            [part / part.norm(dim=1, keepdim=True) for part in draws.split(lengths, dim=1)], dim=1
        )
        ends = lanczos(product, draws.to(like), tol=tol, max_products=limit, both=both)
        return _Search.of(ends)
    old = before.ends
    vector = old.top.vector.to(like)
    if both or abs(old.bottom.value) > 0.5 * abs(old.top.value):
        # Where the other end may decide the norm, it has to be in the start to be seen.
        vector = vector + 0.5 * old.bottom.vector.to(like)
    ends = lanczos(product, vector, tol=tol, max_products=limit, both=both, known_gap=before.gap)
    found = _Search.of(ends)
    # Few products see little of the rest of the spectrum: they may narrow the known gap, not widen
    # it.
    return found if ends.products > 2 else replace(found, gap=min(before.gap, found.gap))


def _stability(
    hessian: HessianProduct,
    steps: EffectiveSteps,
    plain: _Search,
    before: _Search | None,
    tol: float,
    limit: int,
    seed: int,
) -> tuple[Stability, _Search | None]:
    """How near the optimizer's steps are to the edge of stability, and the search for it where
    steps differ by coordinate.
    """
    top = plain.ends.top
    if not isinstance(steps.scale, Tensor):
        threshold = steps.bound / steps.scale - steps.weight_decay
        ratio = steps.scale * (top.value + steps.weight_decay) / steps.bound
        return Stability(steps.kind, threshold, top.value, ratio, top.error), None
    root = steps.scale.to(hessian.gradient).sqrt()
    decay = steps.weight_decay
    found = _search(
        lambda v: root * (hessian(root * v) + decay * (root * v)),
        hessian,
        before,
        tol,
        limit,
        False,
        seed,
    )
    top = found.ends.top
    return Stability(steps.kind, steps.bound, top.value, top.value / steps.bound, top.error), found


#: Kind of step -> the beginning of the sentence about its threshold.
_TOLERATES = {
    "gradient descent": "gradient descent tolerates",
    "heavy ball": "heavy-ball momentum tolerates",
    "Nesterov": "Nesterov's momentum tolerates",
}


def describe_sharpness(reading: Sharpness) -> str:
    """One plain sentence.

    Example:
        >>> from torch import nn
        >>> problem = Objective(nn.Linear(1, 1, bias=False), lambda m, b: 1.5 * m(b).square().sum())
        >>> w = problem.parameters
        >>> describe_sharpness(
        ...     sharpness(problem, [torch.ones(1, 1)], optimizer=torch.optim.SGD(w, lr=0.5))
        ... )
        'sharpness 3 [3, 3]; gradient descent tolerates 4: 75 % of the threshold'
    """
    low, high = reading.interval
    if reading.converged:
        text = f"sharpness {reading.value:.3g} [{low:.3g}, {high:.3g}]"
    else:
        # A Ritz value approaches the largest eigenvalue from below.
        text = (
            f"sharpness at least {reading.value:.3g}: the search had not converged after "
            f"{reading.products} products"
        )
    if reading.norm > abs(reading.value) * (1 + 1e-12):
        text += f"; the largest magnitude {reading.norm:.3g} belongs to a negative eigenvalue"
    s = reading.stability
    if s is not None and math.isfinite(s.ratio):
        where = (
            f"{100 * s.ratio:.0f} % of the threshold"
            if s.ratio < 1
            else f"unstable, {s.ratio:.2f} times over"
        )
        if s.kind == "preconditioned" or s.value != reading.value:
            text += (
                f"; the preconditioned sharpness is {s.value:.3g}, and the optimizer tolerates "
                f"{s.threshold:.3g}: {where}"
            )
        else:
            text += f"; {_TOLERATES[s.kind]} {s.threshold:.3g}: {where}"
    return text


class SharpnessProbe(Probe):
    """Sharpness along a run, each reading started from the last, with the optimizer's edge of
    stability.

    The default tolerance of 5 % needs two to four products per reading; the error estimate stands
    beside the value.

    Example:
        >>> from torch import nn
        >>> problem = Objective(nn.Linear(1, 1, bias=False), lambda m, b: 1.5 * m(b).square().sum())
        >>> with Reading(problem, [torch.ones(1, 1)]) as at:
        ...     SharpnessProbe().read(at)["value"]
        3.0
    """

    name, needs = "sharpness", frozenset({"hessian"})

    def __init__(self, every: int = 1, *, tol: float = 5e-2, max_products: int = 30) -> None:
        super().__init__(every)
        self.tol = positive("tol", tol)
        self.max_products = whole("max_products", max_products, least=1)
        self._last: Sharpness | None = None

    def read(self, at: Reading) -> dict[str, float]:
        reading = self._last = sharpness_in(
            at.passes,
            product=at.hessian,
            tol=self.tol,
            max_products=self.max_products,
            start=self._last,
            optimizer=at.optimizer,
            seed=at.seed,
        )
        row = {
            "value": reading.value,
            "error": reading.error,
            "norm": reading.norm,
            "products": float(reading.products),
        }
        if reading.stability is not None:
            row |= {"threshold": reading.stability.threshold, "ratio": reading.stability.ratio}
        return row

    def cost(self, batches: int) -> float:
        return (2.0 + 2.0 * (10 if self._last is None else 4)) * batches
