"""The point of smallest norm in the convex hull of some vectors, from their inner products:
Wolfe's method.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mindgap.base.check import fail, positive
from mindgap.measure.distributions import as_numbers

Array = NDArray[np.float64]


def min_norm_weights(gram: Array, *, tol: float = 1e-12) -> tuple[Array, float]:
    """Weights w ≥ 0 with sum 1 that minimise ‖Σ w_i g_i‖, and the duality gap at them.

    Wolfe's method (1976): keep a set S of vectors whose affine hull has its smallest point inside
    their convex hull; add the vector most opposed to the current point; when the affine hull's
    smallest point falls outside, move towards it until a weight reaches zero and drop that vector.
    No S occurs twice, so the method ends.

    Args:
        gram: inner products ⟨g_i, g_j⟩, shape (vectors, vectors).
        tol: stop when no vector improves by more than this times the largest ‖g_i‖².

    Returns:
        The weights and ``gap = ‖p‖² - min_i ⟨g_i, p⟩`` for p = Σ w_i g_i: the true distance d obeys
        ``‖p‖² - gap ≤ d² ≤ ‖p‖²``.

    Example:
        >>> weights, gap = min_norm_weights(np.array([[4.0, 0.0], [0.0, 4.0]]))  # (2, 0) and (0, 2)
        >>> weights.round(9).tolist(), abs(gap) < 1e-9
        ([0.5, 0.5], True)
    """
    gram = as_numbers("gram", gram, dims=(2,))
    positive("tol", tol)
    count = len(gram)
    if gram.shape != (count, count) or count == 0 or not np.isfinite(gram).all():
        fail("gram", "must be a square matrix of finite numbers", f"shape {gram.shape}")
    scale = float(np.max(np.diag(gram)))
    active = [int(np.argmin(np.diag(gram)))]  # S
    weights = np.zeros(count)
    weights[active[0]] = 1.0
    for _ in range(100 * count):  # far more than it takes; rounding might make it go on
        products = gram @ weights  # ⟨g_i, p⟩
        most_opposed = int(np.argmin(products))
        gain = weights @ products - products[most_opposed]
        if most_opposed in active or gain <= tol * scale:
            break
        active.append(most_opposed)
        while True:
            target = _affine_minimum(gram[np.ix_(active, active)])
            if (target >= 0).all():
                weights[:] = 0.0
                weights[active] = target / target.sum()
                break
            # Move as far towards the target as no weight gets negative.
            current = weights[active]
            falling = target < 0
            fraction = np.min(current[falling] / (current[falling] - target[falling]))
            moved = current + fraction * (target - current)
            positive_weights = moved > 1e-14  # others are zero but for rounding
            weights[:] = 0.0
            active = [i for i, stays in zip(active, positive_weights, strict=True) if stays]
            weights[active] = moved[positive_weights] / moved[positive_weights].sum()
    products = gram @ weights
    return weights, float(weights @ products - products.min())


def _affine_minimum(gram: Array) -> Array:
    """Weights w with sum 1, of any sign, that minimise w'Gw for the Gram matrix G.

    They solve the linear system Gw + λ1 = 0, 1'w = 1, where 1 is the vector of ones and λ the
    multiplier of the second condition; G is scaled to a mean of 1 on its diagonal.
    """
    count = len(gram)
    mean_diagonal = max(float(np.trace(gram)) / count, 1e-300)
    system = np.zeros((count + 1, count + 1))  # of w and λ
    system[:count, :count] = gram / mean_diagonal
    system[:count, count] = system[count, :count] = 1.0
    right_side = np.zeros(count + 1)
    right_side[count] = 1.0
    solution, *_ = np.linalg.lstsq(system, right_side, rcond=None)
    return np.asarray(solution[:count], dtype=np.float64)
