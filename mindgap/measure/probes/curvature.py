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
from mindgap.base.tensors import as_real, unflatten
from mindgap.measure.gradients import GradientPasses, NonFiniteError, gradient_passes
from mindgap.measure.hessian import DEFAULT_MEMORY, HessianProduct
from mindgap.measure.probe import Probe, Reading

# Lanczos: pure linear algebra on flat vectors.


@dataclass(frozen=True)
class Edge:
    """One end of the spectrum."""

    value: float  # Ritz value theta
    #: ||A v - theta v|| for the unit vector v; an eigenvalue lies within it of ``value``
    residual: float
    #: what is left of |lambda - theta| by the residual and the gap: min(r, r^2 / gap); three times
    #: that, at most r, where a warm start ended after three products, because the gap is then seen
    #: too large.
    error: float
    vector: Tensor  # v, on the operator's device


@dataclass(frozen=True)
class Spectrum:
    """Both ends of a spectrum, as far as they were found."""

    top: Edge  # the algebraically largest end
    bottom: Edge  # the algebraically smallest end, often only a bound from above
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
    """Largest eigenvalue of a symmetric operator A, and the other end of its spectrum as far as it
    matters, by Lanczos with full reorthogonalisation.

    V is an orthonormal basis of what the products span, kept whole (twice-applied Gram-Schmidt, so
    that no ghost copies of an eigenvalue appear); T = V'AV is ``projection``. The Ritz values theta
    are the eigenvalues of T; the Ritz vector of one with eigenvector y is V y, its residual
    r = ||A V y - theta V y||. Iteration ends when the error bound min(r, r^2/gap) of the top end is
    below tol |theta| and the bottom end is either as accurate or certainly smaller in magnitude.
    One random start in a hundred has so little of the top eigenvector that the next one converges
    first; several starts, iterated together, exclude that.

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
    size = start.shape[-1]
    #: span what A V and the starts have outside the basis; the first one is multiplied next
    outside_vectors = list(start.reshape(-1, size))
    for row in outside_vectors:
        start_norm = float(torch.linalg.vector_norm(row))
        if not (start_norm > 0 and math.isfinite(start_norm)):
            fail("start", "must be a finite, non-zero vector", start_norm)
    capacity = min(basis, size)
    vectors = start.new_empty((min(8, capacity), size))  # V as rows; grows when it is full
    projection = np.zeros((capacity, capacity))
    rounding = torch.finfo(start.dtype).eps
    unseen_starts = len(outside_vectors)  # starts that no product has seen yet
    basis_size = products = rounds_met = 0
    # What A V has outside the basis: the outside vectors times these weights, one row per vector.
    outside_weights = np.zeros((unseen_starts, capacity))
    while True:
        # One product: the basis and the projection grow by the next vector.
        vector, unseen_starts = outside_vectors.pop(0), max(0, unseen_starts - 1)
        outside_weights = outside_weights[1:]
        vectors[basis_size] = vector / float(torch.linalg.vector_norm(vector))
        basis_vectors = vectors[: basis_size + 1]
        rest, coordinates = _orthogonalise(product(vectors[basis_size]), basis_vectors)
        products += 1
        if not np.isfinite(coordinates).all():
            # Loss and gradient may be finite where the second derivative is not (a norm at zero).
            raise NonFiniteError(
                f"Hessian product must be finite, got {coordinates[~np.isfinite(coordinates)][0]}"
            )
        projection[: basis_size + 1, basis_size] = projection[basis_size, : basis_size + 1] = (
            coordinates
        )
        # ``rest``, what A times the new basis vector has outside the basis, belongs to it alone.
        outside_weights = np.vstack([outside_weights, np.eye(1, capacity, basis_size)])
        outside_vectors = [_orthogonalise(v, basis_vectors)[0] for v in outside_vectors] + [rest]
        basis_size += 1
        ritz_values, eigenvectors = np.linalg.eigh(projection[:basis_size, :basis_size])
        # A vector of which nothing but rounding is left outside the basis adds nothing.
        least_norm = 8 * rounding * max(abs(ritz_values[0]), abs(ritz_values[-1]), 1e-300)
        adds_any = [float(torch.linalg.vector_norm(v)) > least_norm for v in outside_vectors]
        unseen_starts -= adds_any[:unseen_starts].count(False)  # these stand first
        outside_vectors = [v for v, adds in zip(outside_vectors, adds_any) if adds]
        outside_weights = outside_weights[np.array(adds_any)]
        complete = basis_size == size or not outside_vectors  # Ritz values are then eigenvalues
        # Every start is multiplied before anything is judged.
        if unseen_starts and not complete and basis_size < capacity and products < max_products:
            continue
        # How accurate both ends are, and whether that is enough.
        residuals = _residuals(outside_vectors, outside_weights[:, :basis_size] @ eigenvectors)
        error_top = _error_estimate(ritz_values, residuals, -1, known_gap)
        error_bottom = _error_estimate(ritz_values, residuals, 0, None)
        top_done = error_top <= tol * abs(ritz_values[-1])
        bottom_done = error_bottom <= tol * abs(ritz_values[0])
        bottom_is_smaller = not both and abs(ritz_values[0]) + residuals[0] < abs(ritz_values[-1])
        # Unless the gap is known from before, the test has to hold three times running. Of 400 cold
        # searches each, where the two largest eigenvalues lie 0.3 to 10 % apart, 3 to 11 % were
        # wrong by more than tol if once was enough, 0 to 1 % with three times, and none with nine,
        # for six products more.
        rounds_met = rounds_met + 1 if top_done and (bottom_done or bottom_is_smaller) else 0
        done = complete or rounds_met >= (3 if known_gap is None else 1)
        if done or products >= max_products:
            # After three products of a warm start the gap is seen too large. Three times the
            # estimate covered the true error in 92 % of 118 such readings of a perceptron in
            # training; once did in 62 %, nine times in 99 % with intervals three times as wide.
            if known_gap is not None and basis_size == 3:
                error_top = min(3 * error_top, float(residuals[-1]))
            places, errors = [-1, 0], (error_top, error_bottom)
            weights = torch.from_numpy(eigenvectors[:, places].T.copy()).to(vectors)
            top, bottom = (
                Edge(
                    value=float(ritz_values[place]),
                    residual=0.0 if complete else float(residuals[place]),
                    error=0.0 if complete else error,
                    vector=ritz_vector,
                )
                for place, error, ritz_vector in zip(places, errors, weights @ vectors[:basis_size])
            )
            # One vector alone has no second Ritz value: that of the known gap stands for it.
            assumed = top.value - (known_gap or 0.0) * abs(top.value)
            second = float(ritz_values[-2]) if basis_size > 1 else assumed
            values = tuple(ritz_values.tolist())
            return Spectrum(top, bottom, second, products, converged=bool(done), values=values)
        if basis_size == capacity:
            # Thick restart: keep Ritz vectors at both ends; T becomes diagonal, the next columns
            # fill its border.
            lowest, highest = max(1, capacity // 6), max(2, capacity // 3)  # how many stay
            places = [*range(lowest), *range(basis_size - highest, basis_size)]
            weights = torch.from_numpy(eigenvectors[:, places].T.copy()).to(vectors)
            kept_weights = outside_weights[:, :basis_size] @ eigenvectors[:, places]
            vectors[: len(places)] = weights @ vectors[:basis_size]
            basis_size = len(places)
            projection[:] = 0.0
            projection[range(basis_size), range(basis_size)] = ritz_values[places]
            outside_weights = np.zeros((len(outside_vectors), capacity))
            outside_weights[:, :basis_size] = kept_weights
        if basis_size == len(vectors):  # room for twice as many, up to the capacity
            vectors = torch.cat(
                [vectors, vectors.new_empty((min(len(vectors), capacity - basis_size), size))]
            )


def _orthogonalise(vector: Tensor, basis: Tensor) -> tuple[Tensor, np.ndarray]:
    """Split a vector by an orthonormal basis. Gram-Schmidt is applied twice, because once leaves
    rounding inside.

    Args:
        basis: orthonormal rows.

    Returns:
        The part of the vector outside the basis, and the coordinates of the part inside, in float64
        on the CPU, shape (rows,).
    """
    inside = basis @ vector
    outside = vector - inside @ basis
    correction = basis @ outside
    outside -= correction @ basis
    return outside, (inside + correction).double().cpu().numpy()


def _residuals(vectors: list[Tensor], weights: np.ndarray) -> np.ndarray:
    """The residuals ‖A y_j - θ_j y_j‖ of the Ritz pairs: ‖Σ_i w_ij v_i‖ for each column j of the
    weights, by the inner products of the vectors. Zeros where there are no vectors.

    Args:
        vectors: v_i, what A times the basis has outside the basis.
        weights: w_ij, of vector i in the residual of pair j, shape (vectors, pairs).
    """
    if not vectors:
        return np.zeros(weights.shape[1])
    matrix = torch.stack(vectors)
    gram = (matrix @ matrix.T).double().cpu().numpy()
    return np.sqrt(np.maximum(np.einsum("ij,ik,kj->j", weights, gram, weights), 0.0))


def _error_estimate(
    ritz_values: np.ndarray, residuals: np.ndarray, end: int, known_gap: float | None
) -> float:
    """Error estimate min(r, r^2/gap) of the Ritz value at one end of the spectrum, with its
    residual r and the gap to the neighbouring Ritz value.

    After a warm start the gap depends on the number of Ritz values. With three or more it is the
    gap between them: over training runs the true error was 0.8 to 1.4 times the estimate in the
    median, and at worst 4 times (an MLP, a transformer) or 16 times (a ResNet in its first steps,
    whose sharpness halves or doubles between readings). Two may see too large a gap, where the
    leading eigenvectors have turned into each other since the last reading (the error was twice the
    estimate, ten times at worst): a tenth of the smaller of the seen and the known gap counts. One
    sees none: a tenth of the known gap counts.

    Args:
        ritz_values: ascending.
        residuals: of these values.
        end: -1 for the largest Ritz value, 0 for the smallest.
        known_gap: from an earlier reading, over the magnitude of the value; None where unknown.
    """
    residual, magnitude = float(residuals[end]), abs(float(ritz_values[end]))
    if len(ritz_values) > 1:
        neighbour = -2 if end == -1 else 1
        gap = abs(float(ritz_values[end] - ritz_values[neighbour]))
        if known_gap is None:
            # A Ritz value that has not settled may still move towards the end by its own residual.
            gap -= float(residuals[neighbour])
        elif len(ritz_values) < 3:
            gap = min(gap, known_gap * magnitude) / 10
    else:
        gap = (known_gap or 0.0) * magnitude / 10
    return residual if gap <= 0 else min(residual, residual * residual / gap)


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

    With the gradient g, the buffer b <- beta b + (1 - d) g (beta is the momentum, d the dampening)
    and the step x <- x - lr b, the recursion along an eigenvector of curvature h has the
    characteristic polynomial z^2 - (1 + beta - lr (1 - d) h) z + beta. Both its roots are inside
    the unit circle while lr (1 - d) h < 2 + 2 beta. Nesterov's form steps along g + beta b, which
    turns the bound into (2 + 2 beta) / (1 + 2 beta); weight decay adds to the curvature. Source:
    thesis, 6.5.2 (sharpness against 2/eta); the momentum forms follow from the polynomial above.

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
    divisor = 1 + 2 * momentum if nesterov else 1 - dampening
    # c of the module's docstring. Without momentum torch ignores the dampening.
    bound = (2 + 2 * momentum) / divisor if momentum else 2.0
    return bound / lr - weight_decay


@dataclass(frozen=True)
class EffectiveSteps:
    """How far an optimizer moves for a unit of (smoothed) gradient, and what that tolerates."""

    kind: str  # "gradient descent", "heavy ball", "Nesterov" or "preconditioned"
    bound: float  # c, the largest stable eigenvalue of D^(1/2) H D^(1/2)
    scale: float | Tensor  # D as one number, or flat with one number per coordinate
    weight_decay: float = 0.0  # curvature that the step adds itself (coupled decay of SGD)


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

    Args:
        optimizer: a torch optimizer.
        parameters: of the objective, whose order the coordinates of D follow.
        gradient: at the present point; None leaves the moments as they are.

    Returns:
        The steps, or the sentence.

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
    group_of = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    used_groups = [group_of[id(p)] for p in parameters if id(p) in group_of]
    if len(used_groups) < len(parameters):
        return "the optimizer does not hold every parameter of the objective"
    if any(group.get("maximize") for group in used_groups):
        return "the optimizer maximises"
    if isinstance(optimizer, torch.optim.SGD):
        return _sgd_steps(used_groups, parameters)
    # AdamW is a kind of Adam in newer versions of torch only.
    if isinstance(
        optimizer, (torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)
    ):
        return _preconditioned_steps(optimizer, used_groups, parameters, gradient)
    return f"no stability threshold is known for {type(optimizer).__name__}"


def _sgd_steps(groups: list[dict[str, Any]], parameters: Sequence[Tensor]) -> EffectiveSteps | str:
    """The effective steps of SGD, or a sentence on why they have no single stability threshold.

    Args:
        groups: the optimizer's group of each parameter, in the order of ``parameters``.
    """
    settings = {
        (
            group["momentum"],
            bool(group["nesterov"]),
            group["dampening"],
            float(group["weight_decay"]),
        )
        for group in groups
    }
    if len(settings) > 1:
        return "the parameter groups differ in momentum or weight decay"
    ((momentum, nesterov, dampening, weight_decay),) = settings
    if any(float(group["lr"]) <= 0 for group in groups):
        return "the step size is zero"
    kind = "gradient descent"
    if momentum:
        kind = "Nesterov" if nesterov else "heavy ball"
    # c is the threshold at step size 1.
    bound = stability_threshold(1.0, momentum=momentum, nesterov=nesterov, dampening=dampening)
    rates = [float(group["lr"]) for group in groups]
    if len(set(rates)) == 1:
        return EffectiveSteps(kind, bound, rates[0], weight_decay)
    scale = torch.cat(
        [
            torch.full_like(as_real(p.detach()).reshape(-1), rate)
            for p, rate in zip(parameters, rates)
        ]
    )
    return EffectiveSteps(kind, bound, scale, weight_decay)


def _preconditioned_steps(
    optimizer: Any,
    groups: list[dict[str, Any]],
    parameters: Sequence[Tensor],
    gradient: Tensor | None,
) -> EffectiveSteps | str:
    """The effective steps of Adam, RMSprop or Adagrad from their state, or a sentence on why there
    are none; ``effective_steps`` says what they are.

    Args:
        groups: the optimizer's group of each parameter, in the order of ``parameters``.
        gradient: at the present point, flat; None leaves the second moments as they are.
    """
    scales, momenta = [], set()  # momenta: (beta, whether it averages gradients)
    gradients = [None] * len(parameters) if gradient is None else unflatten(gradient, parameters)
    for p, gradient_of_p, group in zip(parameters, gradients, groups):
        # torch keeps the moments of a complex parameter as those of its pairs of real numbers.
        state = {
            name: as_real(value) if isinstance(value, Tensor) else value
            for name, value in optimizer.state.get(p, {}).items()
        }
        if not state:
            if not optimizer.state:
                return "the optimizer has made no step yet"
            if gradient_of_p is None or bool(gradient_of_p.any()):
                return "the optimizer has not stepped every parameter yet"
            scales.append(torch.zeros_like(as_real(p)))  # the loss does not use it
            continue
        step, lr = float(state["step"]), float(group["lr"])
        if lr <= 0:
            return "the step size is zero"
        if "exp_avg_sq" in state:  # Adam, AdamW: D = lr / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps)
            beta1, beta2 = (float(b) for b in group["betas"])
            second_moment = state["max_exp_avg_sq"] if group.get("amsgrad") else state["exp_avg_sq"]
            unbiased = second_moment / (1 - beta2 ** max(step, 1))
            root = _raise_to_gradient(unbiased.sqrt(), gradient_of_p) + group["eps"]
            scales.append(lr / (1 - beta1 ** max(step, 1)) / root)
            momenta.add((beta1, True))
        elif "square_avg" in state:  # RMSprop: D = lr / (sqrt(v) + eps)
            second_moment = state["square_avg"]
            if group["centered"]:
                second_moment = second_moment - state["grad_avg"].square()
            # Its average starts at zero and is not corrected: the gradient has to be as small.
            bias = (1 - group["alpha"] ** max(step, 1)) ** 0.5
            biased = None if gradient_of_p is None else bias * gradient_of_p
            root = _raise_to_gradient(second_moment.clamp(min=0).sqrt(), biased)
            scales.append(lr / (root + group["eps"]))
            momenta.add((float(group["momentum"]), False))
        else:  # Adagrad: D = lr / (1 + t decay) / (sqrt(v) + eps)
            rate = lr / (1 + step * group["lr_decay"])
            scales.append(rate / (state["sum"].sqrt() + group["eps"]))
            momenta.add((0.0, False))
    if len(momenta) > 1:
        return "the parameter groups differ in momentum"
    ((momentum, averaged),) = momenta
    # An average (1 - beta) g + beta m moves by (1 - beta) a unit of gradient: heavy ball with
    # dampening beta.
    bound = (2 + 2 * momentum) / (1 - momentum) if averaged else 2 + 2 * momentum
    return EffectiveSteps(
        "preconditioned", bound, torch.cat([part.detach().reshape(-1) for part in scales])
    )


def _raise_to_gradient(root: Tensor, gradient: Tensor | None) -> Tensor:
    """The root of a second moment, raised in each coordinate to the modulus of the gradient where
    that is larger; the root itself where no gradient is given.
    """
    return root if gradient is None else torch.maximum(root, as_real(gradient).abs().to(root))


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
    stability: Stability | None = None  # where the optimizer stands, if given and known
    unknown: str = ""  # why ``stability`` is None, when an optimizer was given
    #: "plain" (of H) and, where there is one, "scaled" (of D^(1/2) H D^(1/2)) -> the search that
    #: the next reading starts from.
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
    """Largest and largest-in-magnitude eigenvalue of the Hessian, by passes that are already open;
    ``sharpness`` opens its own and explains the other arguments.

    Args:
        product: Hessian products that others may share; None makes them here.
        start: an earlier reading, as a warm start; None begins at random vectors.
        optimizer: whose edge of stability to report; None reports none.
    """
    if start is not None and not isinstance(start, Sharpness):
        fail("start", "must be an earlier Sharpness or None", start)
    positive("tol", tol)
    whole("max_products", max_products, least=1)
    flag("both", both)
    hessian = product or HessianProduct(passes, memory=memory)
    steps: EffectiveSteps | str = ""  # a text says why they are not known
    if optimizer is not None:
        steps = effective_steps(optimizer, passes.parameters, hessian.gradient)
    # "plain" is the search of H, "scaled" that of D^(1/2) H D^(1/2).
    earlier_searches = start.warm if start is not None else {}
    search = _search(hessian, hessian, earlier_searches.get("plain"), tol, max_products, both, seed)
    searches = {"plain": search}
    stability = None
    if isinstance(steps, EffectiveSteps):
        stability, scaled_search = _stability(
            hessian, steps, search, earlier_searches.get("scaled"), tol, max_products, seed
        )
        if scaled_search is not None:
            searches["scaled"] = scaled_search
    spectrum = search.ends
    return Sharpness(
        value=spectrum.top.value,
        error=spectrum.top.error,
        residual=spectrum.top.residual,
        smallest=spectrum.bottom.value,
        norm=abs(spectrum.largest.value),
        products=spectrum.products,
        converged=spectrum.converged,
        loss=hessian.loss,
        gradient_norm=float(torch.linalg.vector_norm(hessian.gradient.double())),
        batches=hessian.batches,
        retained=hessian.retained,
        graph_bytes=hessian.bytes,
        values=spectrum.values,
        stability=stability,
        unknown=steps if isinstance(steps, str) else "",
        warm=searches,
    )


@dataclass(frozen=True)
class _Search:
    """A Lanczos run with what the next one starts from."""

    ends: Spectrum  # what was found, with the eigenvectors
    gap: float  # distance of the two largest eigenvalues over the magnitude of the largest

    @staticmethod
    def of(ends: Spectrum) -> _Search:
        """The run that found these ends."""
        value = abs(ends.top.value)
        return _Search(ends, max(0.0, ends.top.value - ends.second) / value if value > 0 else 0.0)


def _search(
    product: Any,
    hessian: HessianProduct,
    earlier: _Search | None,
    tol: float,
    max_products: int,
    both: bool,
    seed: int,
) -> _Search:
    """Lanczos on ``product``, started from the eigenvectors of an earlier search, or else from two
    random vectors.

    Args:
        product: v -> A v for flat vectors of the size of ``hessian``.
        hessian: gives size, device and dtype of these vectors, and the lengths of the parameters.
        earlier: search of the same operator, at another point; None where there was none.
        tol, max_products, both: as in ``lanczos``.
        seed: of the random vectors.
    """
    size, like = hessian.size, hessian.gradient
    if earlier is None or earlier.ends.top.vector.numel() != size:
        # Drawn on the CPU so that one seed gives one start on every device. Every tensor gets the
        # same length: the leading eigenvectors have much of theirs in small tensors, and a start
        # that has too saves a product or two.
        starts = torch.randn(2, size, generator=torch_stream(seed, "lanczos"), dtype=torch.float64)
        lengths = [n for n in hessian.lengths if n]
        starts = torch.cat(
            [part / part.norm(dim=1, keepdim=True) for part in starts.split(lengths, dim=1)], dim=1
        )
        ends = lanczos(product, starts.to(like), tol=tol, max_products=max_products, both=both)
        return _Search.of(ends)
    old_ends = earlier.ends
    vector = old_ends.top.vector.to(like)
    if both or abs(old_ends.bottom.value) > 0.5 * abs(old_ends.top.value):
        # Where the other end may decide the norm, it has to be in the start to be seen.
        vector = vector + 0.5 * old_ends.bottom.vector.to(like)
    ends = lanczos(
        product, vector, tol=tol, max_products=max_products, both=both, known_gap=earlier.gap
    )
    search = _Search.of(ends)
    # Few products see little of the rest of the spectrum: they may narrow the known gap, not widen
    # it.
    return search if ends.products > 2 else replace(search, gap=min(earlier.gap, search.gap))


def _stability(
    hessian: HessianProduct,
    steps: EffectiveSteps,
    search: _Search,
    earlier: _Search | None,
    tol: float,
    max_products: int,
    seed: int,
) -> tuple[Stability, _Search | None]:
    """How near the optimizer's steps D are to the edge of stability. Where D is one number, the
    sharpness decides; else the largest eigenvalue of D^(1/2) (H + weight decay) D^(1/2), by a
    search of its own.

    Args:
        search: of the Hessian H itself.
        earlier: of the Hessian scaled by the steps, at another point; None where there was none.
        tol, max_products, seed: of the search.

    Returns:
        The reading, and the search of the scaled Hessian; None where the sharpness decided.
    """
    top = search.ends.top
    if not isinstance(steps.scale, Tensor):  # D is one number
        threshold = steps.bound / steps.scale - steps.weight_decay
        ratio = steps.scale * (top.value + steps.weight_decay) / steps.bound
        return Stability(steps.kind, threshold, top.value, ratio, top.error), None
    root = steps.scale.to(hessian.gradient).sqrt()  # D^(1/2), one number per coordinate
    scaled_search = _search(
        lambda v: root * (hessian(root * v) + steps.weight_decay * (root * v)),
        hessian,
        earlier,
        tol,
        max_products,
        both=False,
        seed=seed,
    )
    top = scaled_search.ends.top
    ratio = top.value / steps.bound
    return Stability(steps.kind, steps.bound, top.value, ratio, top.error), scaled_search


#: Kind of step -> the beginning of the sentence about its threshold.
_TOLERATES = {
    "gradient descent": "gradient descent tolerates",
    "heavy ball": "heavy-ball momentum tolerates",
    "Nesterov": "Nesterov's momentum tolerates",
}


def describe_sharpness(reading: Sharpness) -> str:
    """One plain sentence on the sharpness and, where it is known, on the edge of stability.

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
    if reading.norm > abs(reading.value) * (1 + 1e-12):  # larger by more than rounding
        text += f"; the largest magnitude {reading.norm:.3g} belongs to a negative eigenvalue"
    stability = reading.stability
    if stability is not None and math.isfinite(stability.ratio):
        position = f"unstable, {stability.ratio:.2f} times over"
        if stability.ratio < 1:
            position = f"{100 * stability.ratio:.0f} % of the threshold"
        # Another value than the sharpness is an eigenvalue of D^(1/2) H D^(1/2).
        if stability.kind == "preconditioned" or stability.value != reading.value:
            text += (
                f"; the preconditioned sharpness is {stability.value:.3g}, and the optimizer "
                f"tolerates {stability.threshold:.3g}: {position}"
            )
        else:
            text += f"; {_TOLERATES[stability.kind]} {stability.threshold:.3g}: {position}"
    return text


class SharpnessProbe(Probe):
    """Sharpness along a run, each reading started from the last, with the optimizer's edge of
    stability.

    The default tolerance of 5 % needs two to four products per reading; the error estimate stands
    beside the value.

    Args:
        every: run at every ``every``-th reading of the monitor.
        tol: relative error of the sharpness that is good enough.
        max_products: Hessian products of one search at most.

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
        self._last: Sharpness | None = None  # the newest reading, the next one's warm start

    def read(self, at: Reading) -> dict[str, float]:
        """Sharpness, its error, the norm, the products spent and, where the optimizer is known, its
        threshold and the ratio to it. The reading is kept as the start of the next one.
        """
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
        # Two gradients for the graphs and two per product: about 10 products, 4 from a warm start.
        return (2.0 + 2.0 * (10 if self._last is None else 4)) * batches
