"""Directions: what estimates grad Phi(x) = f_x - J z*, z* = H^-1 f_y, from derivatives on samples.

Pure functions of points and samples; all derivatives come from the oracle, all loops from its array
operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from mindgap.base.tensors import binary_scale, rounding
from mindgap.bilevel.core.types import Array, Draws, Ops, Oracle, Product, Scalar
from mindgap.bilevel.data.draws import LOWER, UPPER, Samples
from mindgap.bilevel.data.sample import Sample

#: The least denominator: it keeps a quotient finite where a norm is zero.
TINY = 1e-30
#: Points (x, y), the estimates of H^-1 v at each for vectors v, and the functions that give them.
Pairs = list[tuple[Array, Array]]
Inverses = Callable[[Pairs, list[Array]], list[Array]]


def neumann_sum(oracle: Oracle, x: Array, y: Array, v: Array, samples: Sample, eta: float) -> Array:
    """``eta * sum_{q=0..Q} prod_{i<=q} (I - eta H(S_i)) v``, an estimate of H^-1 v; Q = number of
    samples.

    With one Hessian the error is exactly ``(I - eta H)^(Q+1) H^-1 v``.

    Source: StocBio (Ji, Yang, Liang 2021), used by MRBO and VRBO as well.
    """
    return neumann_sums(oracle, [(x, y)], [v], samples, eta)[0]


def neumann_sums(
    oracle: Oracle, points: Pairs, vs: list[Array], samples: Sample, eta: float
) -> list[Array]:
    """The sum of :func:`neumann_sum`, an estimate of H^-1 v, at several points on the same samples.

    Each sample is read once for all points, which is faster when compiled.

    Args:
        points: pairs (x, y).
        vs: one vector v per point.
    """

    def factor(carry: Pairs, sample: Sample) -> Pairs:
        """At each point the next term r <- (I - eta H) r, and the sum of all terms so far."""
        next_carry = []
        for point, (r, total) in zip(points, carry, strict=True):
            r = oracle.move(r, oracle.hessian(*point, r, sample), eta)
            next_carry.append((r, total + r))
        return next_carry

    sums = oracle.loop(factor, [(v, v) for v in vs], (samples,))
    return [eta * total for _, total in sums]


def neumann_random(
    oracle: Oracle, x: Array, y: Array, v: Array, samples: Sample, eta: float, terms: int, k: Scalar
) -> Array:
    """``N eta prod_{q=1..k} (I - eta H(S_q)) v`` with k uniform on 0..N-1: unbiased for the sum of
    N terms.

    Args:
        samples: at least N - 1 samples; the first k are used.
        eta: step, at most 1/L for the Hessian of a minibatch.
        terms: N.
        k: the random number of factors, drawn with the samples.

    Source: Ghadimi & Wang 2018 (BSA); TTSA, ALSET, SUSTAIN.
    """

    def multiply(product: Array, sample: Sample) -> Array:
        # One more factor: (I - eta H(sample)) times the product so far
        return oracle.move(product, oracle.hessian(x, y, product, sample), eta)

    return terms * eta * oracle.loop(multiply, v, (samples,), length=k)


def random_neumann_samples(terms: int) -> Samples:
    """What :func:`neumann_hypergradient` with ``terms`` draws: f for (f_x, f_y), k for the number
    of factors, h for the factors, j for J.
    """
    return {"f": UPPER, "k": ("uniform", terms), "h": ("factors", max(terms - 1, 1)), "j": LOWER}


class NegativeCurvature(UserWarning):
    """Conjugate gradients met a direction p with p'Hp <= 0: H is not positive definite."""


def conjugate_gradients(
    ops: Ops,
    hessian: Product,
    v: Array,
    *,
    products: int,
    tol: float | None = None,
    rows: int | None = None,
) -> tuple[Array, Array]:
    """H^-1 v by at most ``products`` steps of conjugate gradients from zero.

    Args:
        hessian: v -> Hv.
        v: right side.
        products: most products.
        tol: stop when the residual is below ``tol * ||v||`` (this waits for the device at every
            product); without it no step waits for a number.
        rows: equal blocks on the diagonal of H, one per task; each has step lengths of its own (not
            with ``tol``).

    Returns:
        The solution, and whether it stopped at negative curvature (then it is that of the last good
        step); per block where there are ``rows``.

    Example:
        >>> import torch
        >>> from mindgap.bilevel.backends.oracles import TorchOps
        >>> ops, diagonal = TorchOps(), torch.tensor([2.0, 4.0])
        >>> conjugate_gradients(ops, lambda v: diagonal * v, torch.ones(2), products=2)
        (tensor([0.5000, 0.2500]), tensor(False))
        >>> negative = torch.tensor([1.0, -0.5])
        >>> conjugate_gradients(ops, lambda v: negative * v, torch.ones(2), products=9)
        (tensor([4., 4.]), tensor(True))
        >>> blocks = torch.tensor([1.0, 1.0, 4.0, 4.0])
        >>> conjugate_gradients(ops, lambda v: blocks * v, torch.ones(4), products=1, rows=2)[0]
        tensor([1.0000, 1.0000, 0.2500, 0.2500])
    """

    def inner(a: Array, b: Array) -> Array:
        # <a, b>; with ``rows`` one inner product per block, as a column
        return a @ b if rows is None else (a * b).sum(1)[:, None]

    def product(p: Array) -> Array:
        # Hp; with ``rows`` p and the result have one row per block
        return hessian(p) if rows is None else hessian(p.reshape(-1)).reshape(rows, -1)

    scale = 1.0 if rows is not None else binary_scale(v)
    v = v / scale if rows is None else v.reshape(rows, -1)
    # z the solution so far, r the residual v - Hz, p the direction, rr the square of ||r||.
    z, r = ops.zeros_like(v), v
    p, rr = r, inner(r, r)
    stop = None if tol is None else tol**2 * float(rr)
    negative = rr < 0
    for _ in range(products):
        if stop is not None and (float(rr) <= stop or bool(negative)):
            break
        hp = product(p)
        curvature = inner(p, hp)
        negative = negative | ((curvature <= 0) & (rr > 0))
        # The floor only matters where the residual is zero already: then nothing moves any more.
        step = ops.where(~negative, rr / ops.maximum(curvature, TINY), 0.0)
        z, r = z + step * p, r - step * hp
        rr, rr_before = inner(r, r), rr
        p = r + (rr / ops.maximum(rr_before, TINY)) * p
    return z * scale if rows is None else z.reshape(-1), negative


def conjugate_gradients_by_numbers(
    hessian: Product, v: Tensor, products: int
) -> tuple[Tensor, bool]:
    """H^-1 v by conjugate gradients from zero, and whether they stopped at negative curvature. The
    scalars are Python numbers, which is faster on a CPU.

    Example:
        >>> import torch
        >>> conjugate_gradients_by_numbers(lambda v: torch.tensor([2.0, 4.0]) * v, torch.ones(2), 2)
        (tensor([0.5000, 0.2500]), False)
    """
    # z the solution so far, r the residual v - Hz, p the direction, rr the square of ||r||.
    scale = binary_scale(v)
    v = v / scale
    z, r, p, rr = v.new_zeros(v.shape), v, v, float(v @ v)
    least = rr * rounding(v) ** 2
    for _ in range(products):
        if rr <= least:
            break
        hp = hessian(p)
        curvature = float(p @ hp)
        if curvature <= 0.0:
            return z * scale, True
        step = rr / curvature
        z, r = z.add(p, alpha=step), r.sub(hp, alpha=step)
        rr, rr_before = float(r @ r), rr
        p = r.add(p, alpha=rr / rr_before)
    return z * scale, False


def largest_eigenvalue(hessian: Product, v: Tensor, products: int) -> float:
    """Absolute value of H's largest eigenvalue by ``products`` steps of power iteration from v."""
    norm = 0.0
    for _ in range(products):
        v = hessian(v / v.norm())
        norm = float(v.norm())
        if norm == 0.0 or math.isnan(norm):
            break
    return norm


def hypergradient_at(
    oracle: Oracle,
    x: Array,
    y: Array,
    lower: Sample,
    upper: Sample,
    solve: Callable[[Product, Array], Array],
) -> Array:
    """``f_x - J z`` at (x, y) with ``z = solve(v -> Hv, f_y)``; H and J on one lower sample."""
    f_x, f_y = oracle.upper(x, y, upper)
    hessian, mixed = oracle.operator(x, y, lower)
    return f_x - mixed(solve(hessian, f_y))


def neumann_series(ops: Ops, hessian: Product, v: Array, products: int, eta: float) -> Array:
    """``eta * sum_{q=0..products} (I - eta H)^q v`` with one Hessian."""
    r = total = v
    for _ in range(products):
        r = ops.move(r, hessian(r), eta)
        total = total + r
    return eta * total


def neumann_hypergradient(
    oracle: Oracle, x: Array, y: Array, s: Draws, eta: float, terms: int | None = None
) -> Array:
    """The hypergradient ``f_x - J z`` at (x, y) with z = H^-1 f_y from a Neumann series.

    Args:
        s: draws with the samples f, h (factors) and j, and with ``terms`` the random number k.
        eta: step of the series.
        terms: take the random product of :func:`neumann_random`; None takes the sum of the series.
    """
    f_x, f_y = oracle.upper(x, y, s.f)
    if terms is None:
        z = neumann_sum(oracle, x, y, f_y, s.h, eta)
    else:
        z = neumann_random(oracle, x, y, f_y, s.h, eta, terms, s.k)
    return f_x - oracle.mixed(x, y, z, s.j)


def hypergradients_at(
    oracle: Oracle, points: Pairs, inverses: Inverses, upper: Sample, lower: Sample
) -> list[Array]:
    """Hypergradient estimates ``f_x - J z`` at several points on the same samples.

    Args:
        points: pairs (x, y).
        inverses: function from the points and the f_y there to the estimates of H^-1 f_y.
        upper, lower: samples of (f_x, f_y), and of J.
    """
    upper_gradients = [oracle.upper(*point, upper) for point in points]
    solutions = inverses(points, [f_y for _, f_y in upper_gradients])
    return [
        f_x - oracle.mixed(*point, z, lower)
        for point, (f_x, _), z in zip(points, upper_gradients, solutions, strict=True)
    ]


def directions_xy(
    oracle: Oracle,
    points: list[dict[str, Array]],
    inverses: Inverses,
    upper: Sample,
    mixed: Sample,
    lower: Sample,
) -> list[dict[str, Array]]:
    """The directions "x", f_x - J z, and "y", g_y, at several points.

    Args:
        points: each with "x" and "y".
        inverses: function from the points (x, y) and the f_y there to estimates of H^-1 f_y.
        upper, mixed, lower: samples of (f_x, f_y), of J and of g_y.
    """
    pairs = [(p["x"], p["y"]) for p in points]
    estimates = hypergradients_at(oracle, pairs, inverses, upper, mixed)
    return [
        {"x": d_x, "y": oracle.lower(x, y, lower)}
        for d_x, (x, y) in zip(estimates, pairs, strict=True)
    ]


def penalty_hypergradient(
    oracle: Oracle,
    x: Array,
    y: Array,
    w: Array,
    lam: Array,
    upper: Sample,
    at_y: Sample,
    at_w: Sample,
) -> Array:
    """``f_x(x, y) + lam (g_x(x, y) - g_x(x, w))``: first derivatives only; its bias falls as 1/lam.

    Args:
        y: near the minimiser of f + lam g.
        w: near the minimiser of g.

    Source: F2SA (Kwon et al. 2023).
    """
    f_x = oracle.upper_x(x, y, upper)
    gap = oracle.lower_x(x, y, at_y) - oracle.lower_x(x, w, at_w)
    return f_x + lam * gap


def solve_raised(ops: Ops, h: Array, v: Array, least: float) -> Array:
    """``P(H)^-1 v`` where P raises the eigenvalues of a symmetric matrix to at least ``least``.

    Example:
        >>> import torch
        >>> from mindgap.bilevel.backends.oracles import TorchOps
        >>> solve_raised(TorchOps(), torch.diag(torch.tensor([4.0, -1.0])), torch.ones(2), 0.5)
        tensor([0.2500, 2.0000])
    """
    values, vectors = ops.eigh((h + h.T) / 2)
    return vectors @ ((vectors.T @ v) / ops.maximum(values, least))


def project_ball(ops: Ops, v: Array, centre: Array, radius: float) -> Array:
    """The nearest point to ``v`` in the ball around ``centre``; an infinite radius leaves it where
    it is.

    Example:
        >>> import torch
        >>> from mindgap.bilevel.backends.oracles import TorchOps
        >>> project_ball(TorchOps(), torch.tensor([3.0, 4.0]), torch.zeros(2), 1.0)
        tensor([0.6000, 0.8000])
    """
    if math.isinf(radius):
        return v
    offset = v - centre
    # The floor only keeps the quotient finite at the centre, where the factor is 1 anyway.
    return centre + ops.minimum(radius / ops.maximum(ops.norm(offset), TINY), 1.0) * offset


def descend(
    oracle: Oracle,
    x: Array,
    y: Array,
    samples: Sample,
    lr: Scalar,
    *,
    length: Scalar = None,
    exponent: float = 0.0,
) -> Array:
    """Steps ``y -= lr / (i + 1)^exponent g_y(x, y; S_i)``, projected if the problem says so.

    Args:
        samples: one per step.
        lr: the first step.
        length: how many of the samples are used; all if not given.
        exponent: how the step falls within the loop.
    """
    inputs: tuple[Any, ...] = (samples,)
    if exponent:
        inputs = samples, np.arange(1.0, len(samples.which) + 1) ** -exponent

    def step(y: Array, sample: Sample, factor: Scalar = None) -> Array:
        # y after one step of size ``lr`` times ``factor``, which is given with an exponent
        return oracle.move_y(y, oracle.lower(x, y, sample), lr if factor is None else lr * factor)

    return oracle.loop(step, y, inputs, length=length)


def descend_average(
    oracle: Oracle, x: Array, y: Array, samples: Sample, lr: Scalar, radius: float, count: int
) -> Array:
    """Mean of the iterates of y over steps at x, each projected to the ball around the given y.

    Args:
        samples: one per step; ``count`` is their number.
        lr, radius: length of the steps, and of the ball.

    Source: UpdateLower of BO-REP (Hao, Gong, Liu 2024).
    """
    centre, project = y, oracle.project_y

    def step(carry: tuple[Array, Array], sample: Sample) -> tuple[Array, Array]:
        # The next iterate, in the ball around ``centre``, and the sum of all iterates so far
        y, total = carry
        y = project_ball(oracle, oracle.move(y, oracle.lower(x, y, sample), lr), centre, radius)
        y = y if project is None else project(y)
        return y, total + y

    _, total = oracle.loop(step, (y, oracle.zeros_like(y)), (samples,))
    return total / count


def epoch_sgd_lengths(first: int, epochs: int) -> list[int]:
    """Steps in each epoch of epoch-SGD: T_{s+1} = 2 T_s.

    Example:
        >>> epoch_sgd_lengths(4, 3)
        [4, 8, 16]
    """
    return [first * 2**s for s in range(epochs)]


def epoch_sgd(
    oracle: Oracle, x: Array, y: Array, samples: list[Sample], lr: float, radius: float
) -> Array:
    """y after epochs of averaged projected descent at x: alpha_{s+1} = alpha_s / 2 for the steps,
    D_{s+1} = D_s / sqrt 2 for the balls.

    Args:
        samples: those of each epoch, one per step.
        lr, radius: alpha_0 and D_0, the step and the ball of the first epoch.

    Source: initialisation refinement of BO-REP, after Hazan & Kale 2014 and Ghadimi & Lan 2013.
    """
    for s, epoch_samples in enumerate(samples):
        steps, ball = len(epoch_samples.which), radius / math.sqrt(2) ** s
        y = descend_average(oracle, x, y, epoch_samples, lr / 2**s, ball, steps)
    return y
