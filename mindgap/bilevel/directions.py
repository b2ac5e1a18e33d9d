"""Directions: what estimates grad Phi(x) = f_x - J z*, z* = H^-1 f_y, from derivatives on samples.

Pure functions of points and tokens; all derivatives come from the oracle, all loops from its array operations.
"""

from __future__ import annotations

from typing import Any

from mindgap.bilevel.sample import FULL, Sample

Places = list[tuple[Any, Any]]


def linear_system(
    oracle: Any, x: Any, y: Any, z: Any, lower: Sample, upper: Sample, other: Sample | None = None
) -> dict[str, Any]:
    """The three directions of the linear-system methods at one point.

    D_y = g_y, D_z = Hz - f_y, D_x = f_x - Jz. All vanish together exactly at (x, y*(x), z*(x)) with grad Phi(x) = 0.

    Args:
        oracle: derivatives.
        x, y, z: the point.
        lower: lower sample of Hz and Jz, and of g_y unless ``other`` is given.
        upper: upper sample of f_x and f_y.
        other: a second lower sample, for g_y alone.

    Source: bilevel notation of SOBA (Dagreou et al. 2022), with the sign z* = +H^-1 f_y.
    """
    g_y, d_z, d_x = oracle.residuals(x, y, z, lower, upper, other is None)
    return {"y": g_y if other is None else oracle.lower(x, y, other), "z": d_z, "x": d_x}


def neumann_sum(oracle: Any, x: Any, y: Any, v: Any, tokens: Sample, eta: float) -> Any:
    """``eta * sum_{q=0..Q} prod_{i<=q} (I - eta H(S_i)) v``, an estimate of H^-1 v; Q = number of tokens.

    With one Hessian the error is exactly ``(I - eta H)^(Q+1) H^-1 v``.

    Source: StocBio (Ji, Yang, Liang 2021), used by MRBO and VRBO as well.
    """
    return neumann_sums(oracle, [(x, y)], [v], tokens, eta)[0]


def neumann_sums(oracle: Any, points: Places, vs: list[Any], tokens: Sample, eta: float) -> list[Any]:
    """:func:`neumann_sum` at several points on the same tokens, in one loop: each sample is read once for all points.

    Compiled, MRBO and VRBO gain an eighth by it. The shorter loop of :func:`neumann_random` does not: with two points
    in its body XLA no longer runs it on its cheaper path, so there one point comes after the other.

    Args:
        points: pairs (x, y).
        vs: one vector a point.
    """

    def factor(carry: list[tuple[Any, Any]], token: Sample) -> list[tuple[Any, Any]]:
        found = []
        for at, (r, total) in zip(points, carry, strict=True):
            r = oracle.ops.move(r, oracle.hessian(*at, r, token), eta)
            found.append((r, total + r))
        return found

    sums = oracle.ops.loop(factor, [(v, v) for v in vs], (tokens,))
    return [eta * total for _, total in sums]


def neumann_random(oracle: Any, x: Any, y: Any, v: Any, tokens: Sample, eta: float, terms: int, k: Any) -> Any:
    """``N eta prod_{q=1..k} (I - eta H(S_q)) v`` with k uniform on 0..N-1: unbiased for the sum of N terms.

    Args:
        tokens: at least N - 1 tokens; the first k are used.
        eta: step, at most 1/L for the Hessian of a minibatch.
        terms: N.
        k: the random number of factors, drawn with the tokens.

    Source: Ghadimi & Wang 2018 (BSA); TTSA, ALSET, SUSTAIN.
    """

    def factor(r: Any, token: Sample) -> Any:
        return oracle.ops.move(r, oracle.hessian(x, y, r, token), eta)

    return terms * eta * oracle.ops.loop(factor, v, (tokens,), length=k)


def conjugate_gradients(
    oracle: Any, x: Any, y: Any, v: Any, token: Sample = FULL, *, tol: float = 1e-12, most: int | None = None
) -> Any:
    """H^-1 v by conjugate gradients on one sample: a reference for tests and studies (it synchronises).

    Args:
        tol: stop when the residual is below ``tol * ||v||``.
        most: most products; twice the dimension if not given.
    """
    hessian, _ = oracle.operator(x, y, token)
    z, r = oracle.ops.zeros_like(v), v
    p, rr = r, r @ r
    stop = (tol**2) * float(v @ v)
    for _ in range(2 * len(v) if most is None else most):
        if float(rr) <= stop:
            break
        hp = hessian(p)
        step = rr / (p @ hp)
        z, r = z + step * p, r - step * hp
        rr, before = r @ r, rr
        p = r + (rr / before) * p
    return z


def hypergradient(
    oracle: Any, x: Any, y: Any, lower: Sample, upper: Sample, *, products: int, eta: float | None = None
) -> Any:
    """``f_x - J z`` with z from a fixed number of Hessian products on one lower sample: no loop waits for a number.

    Args:
        x, y: the point.
        lower: sample of H and J.
        upper: sample of f_x and f_y.
        products: how many.
        eta: step of a Neumann series; conjugate gradients if not given.

    Example:
        >>> import torch
        >>> from mindgap.bilevel import FULL, BilevelProblem, TorchOracle
        >>> problem = BilevelProblem(
        ...     upper=lambda x, y, b: (y - b).square().mean(), lower=lambda x, y, b: (y - x * b).square().mean(),
        ...     x=torch.ones(1), y=torch.zeros(1), upper_data=torch.ones(4), lower_data=torch.ones(4), batch_size=2)
        >>> hypergradient(TorchOracle(problem), torch.tensor([3.0]), torch.tensor([3.0]), FULL, FULL, products=1)
        tensor([4.])

    Source: approximate implicit differentiation as compared in Ji, Yang, Liang 2021, section 2.
    """
    ops = oracle.ops
    f_x, f_y = oracle.upper(x, y, upper)
    hessian, mixed = oracle.operator(x, y, lower)
    if eta is not None:
        r = total = f_y
        for _ in range(products):
            r = ops.move(r, hessian(r), eta)
            total = total + r
        return f_x - mixed(eta * total)
    z, r, p, rr = ops.zeros_like(f_y), f_y, f_y, f_y @ f_y
    for _ in range(products):
        hp = hessian(p)
        # The floor only matters where the residual is zero already: then nothing moves any more.
        step = rr / ops.maximum(p @ hp, 1e-30)
        z, r = z + step * p, r - step * hp
        rr, before = r @ r, rr
        p = r + (rr / ops.maximum(before, 1e-30)) * p
    return f_x - mixed(z)


def implicit(oracle: Any, x: Any, y: Any, inverse: Any, upper: Sample, lower: Sample) -> Any:
    """``f_x - J z`` with ``z = inverse(f_y)``: the hypergradient estimate of the Neumann methods.

    Args:
        inverse: function from f_y to an estimate of H^-1 f_y.
        upper: sample of f_x, f_y.
        lower: sample of J.
    """
    return implicits(oracle, [(x, y)], lambda vs: [inverse(vs[0])], upper, lower)[0]


def implicits(oracle: Any, points: Places, inverses: Any, upper: Sample, lower: Sample) -> list[Any]:
    """:func:`implicit` at several points on the same samples.

    Args:
        points: pairs (x, y).
        inverses: function from the list of f_y, one a point, to that of the estimates of H^-1 f_y.
    """
    firsts = [oracle.upper(*at, upper) for at in points]
    zs = inverses([f_y for _, f_y in firsts])
    return [f_x - oracle.mixed(*at, z, lower) for at, (f_x, _), z in zip(points, firsts, zs, strict=True)]


def implicit_xy(
    oracle: Any, points: list[dict[str, Any]], inverses: Any, upper: Sample, mixed: Sample, lower: Sample
) -> list[dict[str, Any]]:
    """D_x = f_x - J z and D_y = g_y at several points: the direction of the variance-reduced Neumann methods.

    Args:
        points: each with "x" and "y".
        inverses: function from pairs (x, y) and the f_y there to the estimates z of H^-1 f_y.
        upper: sample of f_x, f_y.
        mixed: sample of J.
        lower: sample of g_y.
    """
    at = [(p["x"], p["y"]) for p in points]
    d_x = implicits(oracle, at, lambda vs: inverses(at, vs), upper, mixed)
    return [{"x": d, "y": oracle.lower(x, y, lower)} for d, (x, y) in zip(d_x, at, strict=True)]


def penalty(oracle: Any, x: Any, y: Any, w: Any, lam: Any, upper: Sample, at_y: Sample, at_w: Sample) -> Any:
    """``f_x(x, y) + lam (g_x(x, y) - g_x(x, w))``: first derivatives only; its bias falls as 1/lam.

    Args:
        y: near the minimiser of f + lam g.
        w: near the minimiser of g.

    Source: F2SA (Kwon et al. 2023).
    """
    f_x, _ = oracle.upper(x, y, upper)
    return f_x + lam * (oracle.lower_x(x, y, at_y) - oracle.lower_x(x, w, at_w))


def solve_raised(ops: Any, h: Any, v: Any, least: float) -> Any:
    """``P(H)^-1 v`` where P raises the eigenvalues of a symmetric matrix to at least ``least``.

    Example:
        >>> import torch
        >>> from mindgap.bilevel.ops import TorchOps
        >>> solve_raised(TorchOps, torch.diag(torch.tensor([4.0, -1.0])), torch.ones(2), 0.5)
        tensor([0.2500, 2.0000])
    """
    values, vectors = ops.eigh((h + h.T) / 2)
    return vectors @ ((vectors.T @ v) / ops.maximum(values, least))


def exact(oracle: Any, x: Any, y: Any) -> Any:
    """``f_x - J H^-1 f_y`` with dense matrices over all samples: a reference for small problems."""
    import torch

    _, h, j = oracle.dense(x, y, FULL)
    f_x, f_y = oracle.upper(x, y, FULL)
    return f_x - j @ torch.linalg.solve(h, f_y)
