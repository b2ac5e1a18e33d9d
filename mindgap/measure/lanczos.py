"""Lanczos with full reorthogonalisation, thick restarts and a residual: the ends of a symmetric
operator's spectrum.

Pure linear algebra on flat vectors; it knows neither models nor losses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mindgap.base.check import fail, positive, whole
from mindgap.measure.gradients import NonFiniteError


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
