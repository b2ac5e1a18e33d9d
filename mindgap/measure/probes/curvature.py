"""Sharpness: the largest Hessian eigenvalue, and the distance to the optimizer's edge of
stability.

Three parts: Lanczos with full reorthogonalisation, thick restarts and a residual, which finds the
ends of a symmetric operator's spectrum; the sharpness that an optimizer tolerates; and the reading
of both at one point.

Near a point with Hessian H an optimizer with effective steps D (a number, or one number per
coordinate) behaves like a linear recursion. It is stable as long as the largest eigenvalue of
D^(1/2) H D^(1/2) stays below a constant c that depends on the momentum only: 2 for gradient
descent, 2 + 2 beta with heavy-ball momentum, (2 + 2 beta) / (1 + 2 beta) with Nesterov's. For one
step size lr that is sharpness < c / lr.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mindgap.base.check import between, fail, flag, non_negative, positive, whole
from mindgap.base.objective import Objective
from mindgap.base.rng import torch_stream
from mindgap.base.tensors import unflatten
from mindgap.measure.gradients import GradientPasses, NonFiniteError, gradient_passes
from mindgap.measure.hessian import DEFAULT_MEMORY, HessianProduct
from mindgap.measure.probe import Probe, Reading

# Lanczos: pure linear algebra on flat vectors.


@dataclass(frozen=True)
class Edge:
    """One end of the spectrum."""

    value: float  # Ritz value theta
    residual: (
        float  # ||A v - theta v|| for the unit vector v; an eigenvalue lies within it of ``value``
    )
    #: what is left of |lambda - theta| by the residual and the gap: min(r, r^2 / gap); three times
    #: that, at most r, where a warm start ended after three products, because the gap is then seen
    #: too large.
    error: float
    vector: Tensor  # v, on the operator's device


@dataclass(frozen=True)
class Spectrum:
    """Both ends of a spectrum, as far as they were found."""

    top: Edge  # the algebraically largest end
    bottom: (
        Edge  # the algebraically smallest end (often only a bound from above; see its ``error``)
    )
    second: float  # the Ritz value next to ``top``; its distance is the gap of the next warm start
    products: int  # operator products spent
    converged: bool  # whether the asked tolerance was reached
    values: tuple[float, ...]  # Ritz values of the last basis, ascending

    @property
    def largest(self) -> Edge:
        """The end that is larger in magnitude: its absolute value is the operator norm."""
        return self.top if abs(self.top.value) >= abs(self.bottom.value) else self.bottom


def lanczos(
    product: Callable[[Tensor], Tensor],
    start: Tensor,
    *,
    tol: float = 1e-3,
    max_products: int = 100,
    basis: int = 24,
    known_gap: float | None = None,
    both: bool = False,
) -> Spectrum:
    """Largest eigenvalue of a symmetric operator, and the other end as far as it matters.

    A (the product), V (orthonormal basis, kept whole: twice-applied Gram-Schmidt, so that no ghost
    copies of an eigenvalue appear), T = V'AV, theta and s its eigenpairs, r the residual of the
    Ritz pair. Iteration ends when the error bound min(r, r^2/gap) of the top end is below tol
    |theta| and the bottom end is either as accurate or certainly smaller in magnitude. One random
    start in a hundred has so little of the top eigenvector that the next one converges first;
    several starts, iterated together, exclude that.

    Args:
        product: v -> A v for flat vectors.
        start: a non-zero vector, or several as rows; the previous eigenvector makes a warm start.
        tol: relative error of the largest eigenvalue that is good enough.
        max_products: upper bound on the products spent.
        basis: vectors kept at most; when full, the basis is compressed to a few Ritz vectors at
            both ends (thick restart), so memory stays at ``basis`` vectors of the parameters' size.
        known_gap: distance between the two largest eigenvalues over the largest, if known from an
            earlier reading: a warm basis of one or two vectors sees too little of the rest of the
            spectrum to judge the gap itself.
        both: converge both ends to ``tol``, whichever is larger.

    Raises:
        RuleError: for a zero or non-finite start. NonFiniteError: for a product that is not finite.

    Example:
        >>> d = torch.tensor([1.0, -3.0, 7.0, 2.0], dtype=torch.float64)
        >>> ends = lanczos(
        ...     lambda v: d * v, torch.ones(4, dtype=torch.float64), tol=1e-12, both=True
        ... )
        >>> round(ends.top.value, 10), round(ends.bottom.value, 10), ends.products
        (7.0, -3.0, 4)
    """
    positive("tol", tol)
    whole("max_products", max_products, least=1)
    whole("basis", basis, least=4)
    if not isinstance(start, Tensor) or start.dim() not in (1, 2) or start.numel() == 0:
        fail("start", "must be a vector, or vectors as rows", start)
    waiting = list(start.reshape(-1, start.shape[-1]))
    size = start.shape[-1]
    for row in waiting:
        norm = float(torch.linalg.vector_norm(row))
        if not (norm > 0 and math.isfinite(norm)):
            fail("start", "must be a finite, non-zero vector", norm)
    cap = min(basis, size)
    vectors = start.new_empty((min(8, cap), size))
    projected = np.zeros((cap, cap))
    rounding = torch.finfo(start.dtype).eps
    fresh = len(waiting)  # starts that no product has seen yet
    count = spent = 0
    times_met = 0
    # What A V has outside the basis: the waiting vectors times these weights, one row per vector.
    outside = np.zeros((fresh, cap))
    while True:
        vector, fresh = waiting.pop(0), max(0, fresh - 1)
        outside = outside[1:]
        length = float(torch.linalg.vector_norm(vector))
        vectors[count] = vector / length
        used = vectors[: count + 1]
        image, column = _orthogonal(product(vectors[count]), used)
        spent += 1
        if not np.isfinite(column).all():
            # Loss and gradient may be finite where the second derivative is not (a norm at zero).
            raise NonFiniteError(
                f"Hessian product must be finite, got {column[~np.isfinite(column)][0]}"
            )
        projected[: count + 1, count] = projected[count, : count + 1] = column
        outside = np.vstack([outside, np.eye(1, cap, count)])
        waiting = [_orthogonal(w, used)[0] for w in waiting] + [image]
        count += 1
        theta, s = np.linalg.eigh(projected[:count, :count])
        reach = max(abs(theta[0]), abs(theta[-1]))
        # A vector of which nothing is left outside the basis adds nothing; the bound below it is
        # rounding.
        alive = [
            float(torch.linalg.vector_norm(w)) > 8 * rounding * max(reach, 1e-300) for w in waiting
        ]
        fresh -= sum(not a for a in alive[:fresh])
        waiting, outside = [w for w, a in zip(waiting, alive) if a], outside[np.array(alive)]
        closed = count == size or not waiting
        if fresh and not closed and count < cap and spent < max_products:
            continue
        residual = _residuals(waiting, outside[:, :count] @ s) if waiting else np.zeros(count)
        error_top = _error(theta, residual, -1, known_gap)
        error_bottom = _error(theta, residual, 0, None)
        top_done = error_top <= tol * abs(theta[-1])
        bottom_done = error_bottom <= tol * abs(theta[0])
        bottom_idle = not both and abs(theta[0]) + residual[0] < abs(theta[-1])
        # Unless the gap is known from before, the test has to hold three times running.
        times_met = times_met + 1 if top_done and (bottom_done or bottom_idle) else 0
        done = closed or times_met >= (3 if known_gap is None else 1)
        if done or spent >= max_products:
            used = vectors[:count]
            if known_gap is not None and count == 3:
                error_top = min(3 * error_top, float(residual[-1]))
            ends = torch.from_numpy(s[:, [-1, 0]].T.copy()).to(used) @ used
            return Spectrum(
                Edge(
                    float(theta[-1]),
                    0.0 if closed else float(residual[-1]),
                    0.0 if closed else error_top,
                    ends[0],
                ),
                Edge(
                    float(theta[0]),
                    0.0 if closed else float(residual[0]),
                    0.0 if closed else error_bottom,
                    ends[1],
                ),
                float(theta[-2])
                if count > 1
                else float(theta[-1] - (known_gap or 0.0) * abs(theta[-1])),
                spent,
                bool(done),
                tuple(float(t) for t in theta),
            )
        if count == cap:
            # Thick restart: keep Ritz vectors at both ends; T becomes diagonal, the next columns
            # fill its border.
            kept = [*range(max(1, cap // 6)), *range(count - max(2, cap // 3), count)]
            weights = torch.from_numpy(s[:, kept].T.copy()).to(vectors)
            vectors[: len(kept)] = weights @ vectors[:count]
            projected[:] = 0.0
            projected[range(len(kept)), range(len(kept))] = theta[kept]
            turned = outside[:, :count] @ s[:, kept]
            outside = np.zeros((len(waiting), cap))
            outside[:, : len(kept)] = turned
            count = len(kept)
        if count == len(vectors):
            vectors = torch.cat(
                [vectors, vectors.new_empty((min(len(vectors), cap - count), size))]
            )


def _orthogonal(vector: Tensor, basis: Tensor) -> tuple[Tensor, np.ndarray]:
    """The part of a vector outside an orthonormal basis, and its coordinates inside."""
    inside = basis @ vector
    rest = vector - inside @ basis
    more = basis @ rest
    rest -= more @ basis
    return rest, (inside + more).double().cpu().numpy()


def _residuals(waiting: list[Tensor], weights: np.ndarray) -> np.ndarray:
    """Norms of the columns of (waiting vectors) times weights, from the vectors' inner products."""
    stacked = torch.stack(waiting)
    gram = (stacked @ stacked.T).double().cpu().numpy()
    return np.sqrt(np.maximum(np.einsum("ij,ik,kj->j", weights, gram, weights), 0.0))


def _error(theta: np.ndarray, residual: np.ndarray, end: int, known_gap: float | None) -> float:
    """min(r, r^2/gap) with the gap to the neighbouring Ritz value.

    Three vectors from a warm start see the neighbour: over training runs the true error was 0.8 to
    1.4 times the estimate in the median, and at worst 4 times (an MLP, a transformer) or 16 times
    (a ResNet in its first steps, whose sharpness halves or doubles between readings). Two see it
    badly where the leading eigenvectors have turned into each other since the last reading (twice,
    ten times at worst), and one sees none: there the smaller of the seen and the known gap counts,
    and only a tenth of it.
    """
    r, value = float(residual[end]), abs(float(theta[end]))
    if len(theta) > 1:
        gap = abs(float(theta[-1] - theta[-2])) if end == -1 else abs(float(theta[1] - theta[0]))
        if known_gap is None:
            # A Ritz value that has not settled may still move towards the end by its own residual.
            gap -= float(residual[-2 if end == -1 else 1])
        elif len(theta) < 3:
            gap = min(gap, known_gap * value) / 10
    else:
        gap = (known_gap or 0.0) * value / 10
    return r if gap <= 0 else min(r, r * r / gap)


# What an optimizer tolerates.


def stability_threshold(
    lr: float,
    *,
    momentum: float = 0.0,
    nesterov: bool = False,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
) -> float:
    """Largest Hessian eigenvalue (of the loss without the penalty) at which SGD with these settings
    is stable.

    With b <- beta b + (1 - d) g and x <- x - lr b, the recursion along an eigenvector of curvature
    h has the characteristic polynomial z^2 - (1 + beta - lr (1 - d) h) z + beta, with both roots
    inside the unit circle while lr (1 - d) h < 2 + 2 beta. Nesterov's form steps along g + beta b,
    which turns the bound into (2 + 2 beta) / (1 + 2 beta); weight decay adds to the curvature.
    Source: thesis, 6.5.2 (sharpness against 2/eta); the momentum forms follow from the polynomial
    above.

    Args:
        nesterov: Nesterov momentum as ``torch.optim.SGD`` has it (its dampening is 0).
        weight_decay: coefficient of the quadratic penalty that the step includes.

    Example:
        >>> stability_threshold(0.1), round(stability_threshold(0.1, momentum=0.9), 6)
        (20.0, 38.0)
        >>> round(stability_threshold(0.1, momentum=0.9, nesterov=True), 4)
        13.5714
    """
    positive("lr", lr)
    between("momentum", momentum, 0, 1, ends="[)")
    between("dampening", dampening, 0, 1, ends="[)")
    non_negative("weight_decay", weight_decay)
    flag("nesterov", nesterov)
    if nesterov and dampening:
        fail("dampening", "must be zero with Nesterov momentum", dampening)
    bound = (
        (2 + 2 * momentum) / (1 + 2 * momentum)
        if nesterov
        else (2 + 2 * momentum) / (1 - dampening)
    )
    if not momentum:
        bound = 2.0  # without momentum torch ignores the dampening
    return bound / lr - weight_decay


@dataclass(frozen=True)
class EffectiveSteps:
    """How far an optimizer moves for a unit of (smoothed) gradient, and what that tolerates."""

    kind: str  # "gradient descent", "heavy ball", "Nesterov" or "preconditioned"
    bound: float  # c, the largest stable eigenvalue of D^(1/2) H D^(1/2)
    scale: float | Tensor  # D as one number, or flat with one number per coordinate
    weight_decay: float = (
        0.0  # curvature that the step adds itself (coupled weight decay of SGD), else 0
    )


def effective_steps(
    optimizer: Any, parameters: Sequence[Tensor], gradient: Tensor | None = None
) -> EffectiveSteps | str:
    """Read D and c off a torch optimizer, or say in a sentence why they cannot be read.

    Known are SGD (plain, heavy-ball, Nesterov; groups may differ in lr), Adam, AdamW, RMSprop and
    Adagrad. For the last four D is the preconditioner that the *next* step would use if the second
    moments stood still; the decay of AdamW, which is no gradient, and coupled decay in
    preconditioned steps are left out. Where the present ``gradient`` (flat) exceeds the second
    moment of Adam or RMSprop, that moment is out of date (the row of a rare token), and the
    gradient takes its place: as soon as the row is used its moment grows, and the old D is never
    the step.

    Example:
        >>> w = torch.nn.Parameter(torch.zeros(2))
        >>> found = effective_steps(torch.optim.SGD([w], lr=0.5, momentum=0.5), [w])
        >>> found.kind, found.bound, found.scale
        ('heavy ball', 3.0, 0.5)
        >>> effective_steps(torch.optim.LBFGS([w]), [w])
        'no stability threshold is known for LBFGS'
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        fail("optimizer", "must be a torch.optim.Optimizer", optimizer)
    name = type(optimizer).__name__
    groups = optimizer.param_groups
    of = {id(p): g for g in groups for p in g["params"]}
    used = [of[id(p)] for p in parameters if id(p) in of]
    if len(used) < len(parameters):
        return "the optimizer does not hold every parameter of the objective"
    if any(g.get("maximize") for g in used):
        return "the optimizer maximises"
    if isinstance(optimizer, torch.optim.SGD):
        return _sgd(used, parameters)
    # AdamW is a kind of Adam in newer versions of torch only.
    if isinstance(
        optimizer, (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)
    ):
        return _preconditioned_steps(optimizer, used, parameters, gradient)
    return f"no stability threshold is known for {name}"


def _sgd(groups: list[dict[str, Any]], parameters: Sequence[Tensor]) -> EffectiveSteps | str:
    """The effective steps of SGD, or why they have no single stability threshold."""
    kinds = {
        (g["momentum"], bool(g["nesterov"]), g["dampening"], float(g["weight_decay"]))
        for g in groups
    }
    if len(kinds) > 1:
        return "the parameter groups differ in momentum or weight decay"
    ((momentum, nesterov, dampening, decay),) = kinds
    if any(float(g["lr"]) <= 0 for g in groups):
        return "the step size is zero"
    kind = "gradient descent" if not momentum else ("Nesterov" if nesterov else "heavy ball")
    bound = stability_threshold(1.0, momentum=momentum, nesterov=nesterov, dampening=dampening)
    rates = [float(g["lr"]) for g in groups]
    if len(set(rates)) == 1:
        return EffectiveSteps(kind, bound, rates[0], decay)
    scale = torch.cat(
        [
            torch.full((p.numel(),), r, dtype=p.dtype, device=p.device)
            for p, r in zip(parameters, rates)
        ]
    )
    return EffectiveSteps(kind, bound, scale, decay)


def _preconditioned_steps(
    optimizer: Any,
    groups: list[dict[str, Any]],
    parameters: Sequence[Tensor],
    gradient: Tensor | None,
) -> EffectiveSteps | str:
    """The effective steps of Adam, RMSprop or Adagrad from their state, or why there are none."""
    parts, betas = [], set()
    now = [None] * len(parameters) if gradient is None else unflatten(gradient, parameters)
    for p, g, group in zip(parameters, now, groups):
        state = optimizer.state.get(p)
        if not state:
            return "the optimizer has made no step yet"
        t, lr = float(state["step"]), float(group["lr"])
        if lr <= 0:
            return "the step size is zero"
        if "exp_avg_sq" in state:  # Adam, AdamW
            beta1, beta2 = (float(b) for b in group["betas"])
            second = state["max_exp_avg_sq"] if group.get("amsgrad") else state["exp_avg_sq"]
            root = _at_least((second / (1 - beta2 ** max(t, 1))).sqrt(), g) + group["eps"]
            parts.append(lr / (1 - beta1 ** max(t, 1)) / root)
            betas.add((beta1, True))
        elif "square_avg" in state:  # RMSprop
            second = state["square_avg"]
            if group["centered"]:
                second = second - state["grad_avg"].square()
            filled = (
                1 - group["alpha"] ** max(t, 1)
            ) ** 0.5  # its average starts at zero and is not corrected
            root = _at_least(second.clamp(min=0).sqrt(), None if g is None else filled * g)
            parts.append(lr / (root + group["eps"]))
            betas.add((float(group["momentum"]), False))
        else:  # Adagrad
            rate = lr / (1 + t * group["lr_decay"])
            parts.append(rate / (state["sum"].sqrt() + group["eps"]))
            betas.add((0.0, False))
    if len(betas) > 1:
        return "the parameter groups differ in momentum"
    ((beta, averaged),) = betas
    # An average (1 - beta) g + beta m moves by (1 - beta) a unit of gradient: heavy ball with
    # dampening beta.
    bound = (2 + 2 * beta) / (1 - beta) if averaged else 2 + 2 * beta
    return EffectiveSteps(
        "preconditioned", bound, torch.cat([part.detach().reshape(-1) for part in parts])
    )


def _at_least(root: Tensor, gradient: Tensor | None) -> Tensor:
    return root if gradient is None else torch.maximum(root, gradient.abs().to(root))


# The reading.


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
