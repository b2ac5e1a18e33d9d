"""Families of instances for :mod:`mindgap.lab.theory.refute`: functions and noises of this room,
solved exactly, or bounded so that a ratio above 1 is a proof.

Each function takes the parameters of an instance and returns its certificate, or None where the
instance is outside the assumptions or too large to run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from mindgap.lab import theory
from mindgap.lab.theory.attack import Attack, Parameters
from mindgap.lab.theory.certificate import Certificate
from mindgap.lab.theory.certificates.chapter3 import theorem_3_4_4_step

#: Most steps of one run; a run that is cut short counts as so many.
LIMIT = 20_000


def _count(gradient: Callable[[float], float], x: float, step: Any, epsilon: float) -> int:
    """T_ε of one run in one dimension, LIMIT + 1 where it was not reached."""
    for k in range(LIMIT + 1):
        g = gradient(x)
        if abs(g) <= epsilon:
            return k
        x -= step(abs(g)) * g
        if not abs(x) < 1e150:
            break
    return LIMIT + 1


def _certificate(
    given: Parameters,
    family: str,
    assumptions: dict[str, bool],
    measured: float,
    bound: float,
    method: str,
    claim: str = "at most",
) -> Certificate:
    """A certificate that names its family and parameters."""
    return Certificate({"family": family, **given}, assumptions, measured, bound, claim, method)


# Chapter 3: counts of iterations.
# --------------------------------------------------------------------------------------------------


def _steps(kind: str, a: Any) -> Any:
    """The step of the theorem ``kind`` as a function of the gradient's norm."""
    if kind == "3.4.1":
        return theory.clipped_gd_step(a)
    h = theory.gd_step(a)
    return lambda norm: h


def _bound(kind: str, a: Any, epsilon: float) -> float:
    return (theory.clipped_gd_bound if kind == "3.4.1" else theory.gd_bound)(a, epsilon)


def _on_cosh(given: Parameters, *, kind: str) -> Certificate | None:
    """The hyperbolic cosine against the step and bound of the theorem ``kind``."""
    f = theory.HyperbolicCosine(L0=given["L0"], L1=given["L1"])
    start = f.start(given["M"])
    if given["L1"] * start > 300 or given["epsilon"] >= given["M"]:
        return None
    a = f.constants(given["M"])
    bound = _bound(kind, a, given["epsilon"])
    if bound > LIMIT:
        return None
    step = _steps(kind, a)
    scale, L1 = given["L0"] / given["L1"], given["L1"]
    seen = _count(
        lambda x: scale * math.sinh(min(max(L1 * x, -700), 700)),
        start,
        lambda n: float(step(np.float64(n))),
        given["epsilon"],
    )
    checks = {"(L0, L1)-smooth, M and f(x0) - f* exact": True, "ε > 0": given["epsilon"] > 0}
    return _certificate(given, "hyperbolic cosine", checks, seen, bound, "a run, counted")


def _on_teeth(given: Parameters, *, kind: str) -> Certificate | None:
    """The slope with teeth against the step and bound of the theorem ``kind``."""
    slope = given["epsilon"] * (1 + 1e-6)
    plain = theory.RelaxedSmooth(L0=given["L0"], L1=given["L1"], delta=1.0, M=slope)
    h = float(_steps(kind, plain)(np.float64(slope)))
    if h * given["L0"] > 1:
        return None
    f = theory.ToothedSlope(slope=slope, step=h, L=given["L0"], teeth=300)
    a = f.constants(given["L0"], given["L1"])
    step = _steps(kind, a)
    seen = _count(
        lambda x: float(f.gradient(np.float64(x))),
        f.start,
        lambda n: float(step(np.float64(n))),
        given["epsilon"],
    )
    checks = {"curvature within L0": True, "the slope is M": slope == a.M}
    bound = _bound(kind, a, given["epsilon"])
    return _certificate(given, "toothed slope, 300 teeth", checks, seen, bound, "a run, counted")


def _lower_3_4_2(given: Parameters) -> Certificate | None:
    """The printed lower bound against the fewest steps of the best fixed step on the pair of 3.7.2,
    and against Theorem 3.4.3, which no true lower bound exceeds.
    """
    L1, M, epsilon, delta = given["L1"], given["M"], given["epsilon"], given["delta"]
    if epsilon > L1 / 3 or delta < 1.25 * epsilon or 2 * epsilon >= M:
        return None
    printed = L1 * M * (delta - 0.625 * epsilon) / (8 * epsilon**2 * (math.log(M) + 1))
    longest = theory.ExponentialQuadratic(L1=L1).longest_step(M)
    fewest = theory.fixed_step_count(delta, epsilon, longest)
    upper = 4 * (M * L1 + L1) * delta / epsilon**2
    checks = {
        "L0 = L1 >= 1 and M > 1": L1 >= 1 and M > 1,
        "ε <= L0/3": epsilon <= L1 / 3,
        "f(x0) - f* >= 5ε/4": delta >= 1.25 * epsilon,
        "fewer steps than Theorem 3.4.3 allows": fewest <= upper,
    }
    return _certificate(
        given,
        "exponential and slow function, best fixed step",
        checks,
        fewest,
        printed,
        "the way divided by the longest step",
        "at least",
    )


def _slope_3_4_5(given: Parameters, *, printed: bool) -> Certificate | None:
    """The slow function of 3.7.2 against the printed bound or the proof's."""
    epsilon, tau, L0, L1 = given["epsilon"], given["tau"], given["L0"], given["L1"]
    M = given["slope"] * epsilon
    f0 = given["height"] * epsilon
    way = (f0 - 0.625 * M) / M
    if 1.5 * M > L0 or way <= 0:
        return None
    a, noise = theory.RelaxedSmooth(L0=L0, L1=L1, delta=f0, M=M), theory.BoundedNoise(tau=tau)
    c = (5 * L0 + 4 * L1 * M) * (M + tau) ** 2
    bound = (f0 + c) / epsilon**4 if printed else theory.sgd_bound(a, noise, epsilon)
    if not 1 <= bound < 1e15:
        return None
    h = theory.sgd_step(a, noise, math.ceil(bound))
    checks = {
        "(L0, L1)-smooth: 3M/2 <= L0": 1.5 * M <= L0,
        "|f'| <= M everywhere": True,
        "noise within τ": True,
        "the slope is not ε-stationary": epsilon < M,
    }
    fewest = way / (h * (M + tau))
    words = "the way divided by the longest step"
    return _certificate(given, "slow function of 3.7.2", checks, fewest, bound, words)


def _step_3_4_4(given: Parameters) -> Certificate | None:
    if given["M"] > 1e12 or given["epsilon"] >= given["M"]:
        return None
    return theorem_3_4_4_step(given["epsilon"], given["M"], given["tau"])


# Chapter 4 and acclip.
# --------------------------------------------------------------------------------------------------


def _printed_4_4_1(a: Any, K: float, *, last_as_proved: bool = False) -> tuple[float, float, float]:
    """η, τ and the bound as printed; its last term as printed or as proved."""
    al, sigma, L, f0 = a.alpha, a.sigma, a.L, a.delta
    e = (2 * al - 2) / (3 * al - 2)
    rate = (f0 / (sigma**2 * K)) ** (al / (3 * al - 2)) / L**e
    eta = min(1 / (4 * L), 1 / (L * (12 * sigma) ** (al / (al - 1))), rate)
    proved = sigma ** (2 * al / (3 * al - 2)) * (L * f0 / K) ** e
    last = proved if last_as_proved else f0 * L**e * (f0 / (K * sigma**2)) ** e
    bound = 20 * max(4 * L * f0 / K, L * (12 * sigma) ** (al / (al - 1)) * f0 / K, last)
    return eta, sigma * (eta * L) ** (-1 / al), bound


def _corrected_4_4_1(a: Any, K: float) -> tuple[float, float, float]:
    c = theory.gclip_nonconvex_parameters(a, int(K))
    return float(c.eta), float(c.tau), theory.gclip_nonconvex_bound(a, int(K))


def _bowl_4_4_1(given: Parameters, *, corrected: bool) -> Certificate | None:
    """Theorem 4.4.1, printed or corrected, against x²/2 without noise."""
    given = {**given, "K": math.ceil(given["K"])}
    alpha, sigma, K = min(given["alpha"], 2.0), given["sigma"], float(given["K"])
    x0 = math.sqrt(2 * given["f0"])
    a = theory.HeavyTail(alpha=alpha, sigma=sigma, L=1.0, delta=given["f0"])
    eta, tau, bound = (_corrected_4_4_1 if corrected else _printed_4_4_1)(a, K)
    if x0 > min(1.0, tau):
        return None
    # Σ_{k=1..K} x_k² of gradient descent; min{‖∇f‖², τ‖∇f‖/3} is at most the square.
    q = 2 * math.log1p(-eta)
    total = x0**2 * math.exp(q) * math.expm1(K * q) / math.expm1(q)
    if corrected:
        total = min(total, K * tau * x0 / 3)
    checks = {
        "f is 1-smooth": True,
        "E|g - f'|^α = 0 <= σ^α": True,
        "nothing is clipped": x0 <= tau,
        "|f'| <= 1": x0 <= 1,
    }
    words = "a geometric sum"
    return _certificate(given, "x²/2 without noise", checks, total / K, bound, words)


def _slope_4_4_1(given: Parameters, *, corrected: bool) -> Certificate | None:
    """Theorem 4.4.1, its last term as proved or corrected, against the slope of a Huber function
    without noise.
    """
    given = {**given, "K": math.ceil(given["K"])}
    alpha, sigma, K, s = min(given["alpha"], 2.0), given["sigma"], float(given["K"]), given["slope"]
    f0 = s * given["way"] + s**2 / 2  # of the Huber function with L = 1
    a = theory.HeavyTail(alpha=alpha, sigma=sigma, L=1.0, delta=f0)
    if corrected:
        eta, tau, bound = _corrected_4_4_1(a, K)
    else:
        eta, tau, bound = _printed_4_4_1(a, K, last_as_proved=True)
    on_slope = min(K, math.floor(given["way"] / (eta * min(tau, s))))
    each = min(s**2, tau * s / 3) if corrected else min(s, s**2)
    checks = {"f is 1-smooth": True, "E|g - f'|^α = 0 <= σ^α": True}
    words = "the steps that end on the slope"
    seen = each * on_slope / K
    return _certificate(given, "Huber function without noise", checks, seen, bound, words)


def _slope_acclip_2(given: Parameters, *, printed: bool) -> Certificate | None:
    """Theorem 2 of acclip against the slope of a Huber function without noise."""
    given = {**given, "K": math.ceil(given["K"])}
    alpha, L, K = min(given["alpha"], 2.0), given["L"], int(given["K"])
    f0 = given["share"] * K / L
    way = f0 - 1 / (2 * L)
    if way <= 0:
        return None
    a = theory.SmoothMoment(alpha=alpha, G=1.0, L=L, delta=f0)
    c = theory.moment_nonconvex_parameters(a, K + 1 if printed else K)
    bound = theory.moment_nonconvex_bound(a, K, printed=printed)
    on_slope = min(K, math.floor(way / (c.eta * min(c.tau, 1.0))) + 1)
    checks = {"f is L-smooth": True, "E|g|^α = |f'|^α <= 1 everywhere": True}
    words = "the steps that start on the slope"
    seen = on_slope / K
    return _certificate(given, "Huber function, slope 1, without noise", checks, seen, bound, words)


def _jump_4_4_2_printed(given: Parameters) -> Certificate | None:
    """The bias of a clipped rare jump, as in ``certificates.chapter4.theorem_4_4_2``, any α."""
    alpha, K = given["alpha"], given["K"]
    tau = K ** (alpha - 1)
    jump = given["multiple"] * tau
    domain = 0.25 ** (1 / alpha) / 2
    share = 1 - (1.1 * domain) ** alpha  # the slope's part of the α-moment is within the rest
    prob = share / jump**alpha
    optimum = prob * jump
    mean = max(2 * prob, prob * tau)
    checks = {
        "α in (1, 2]": 1 < alpha <= 2,
        "the minimum lies in [0, B]": optimum < domain,
        "E|g|^α <= 1 on [0, B]": prob < 0.05
        and share + (domain / (1 - prob)) ** alpha * (1 - prob) <= 1,
        "the jump is clipped up to K": jump > tau,
        "the slope is never clipped": domain / (1 - prob) <= 1,
        "the mean stays below the minimum": mean < optimum,
    }
    if not all(checks.values()):
        return None
    error = (optimum - mean) ** 2 / 2
    bound = 16 * (K + 1) ** (-2 * (alpha - 1) / alpha)
    return _certificate(given, "rare jump, clipped", checks, error, bound, "the bias of the mean")


def _jump_4_4_2(given: Parameters, *, dimension: int) -> Certificate | None:
    """Theorems 4.4.2 and 4.5.1, with the proof's threshold, against rare jumps in that many
    coordinates.
    """
    given = {**given, "K": math.ceil(given["K"])}
    alpha, K = min(given["alpha"], 2.0), int(given["K"])
    jumps = 10 ** (1 / alpha) * given["multiple"] * np.geomspace(1, given["ratio"], dimension)
    problem = theory.RareJump(np.full(dimension, alpha), jumps)
    error = theory.averaged_error(
        problem, lambda k: 4 / (k + 1), lambda k: np.asarray(k ** (1 / alpha)), [K]
    )[0]
    # On |x| <= 1/2 the slope adds (1-p)(x/(1-p))^α <= 1.2 (1/2)^α to the jump's share 1.
    B = (1 + 1.2 * 0.5**alpha) ** (1 / alpha)
    a = theory.CoordinateMoment(alpha=alpha, B=(B,) * dimension, mu=1.0)
    checks = {
        "1-strongly convex": True,
        "E|g_i|^α <= B_i^α on |x_i| <= 1/2": bool((problem.probability <= 0.11).all()),
        "the minimum lies inside": bool((problem.optimum <= 0.5).all()),
    }
    bound = theory.cclip_bound(a, K)
    words = "the exact recursion"
    return _certificate(given, "rare jumps", checks, float(error.sum()), bound, words)


def _lemma(given: Parameters, *, which: str, printed: bool) -> Certificate | None:
    """Lemma 2 of acclip (``"2"``) or Lemma 4.7.5 against a law of two points."""
    alpha, tau, share = min(given["alpha"], 2.0), given["tau"], min(given["share"], 0.5)
    law, mean = theory.TwoPoint(probability=share, scale=given["scale"]), given["mean"]
    moments = theory.clipped_moments(law, mean, tau)
    moment = law.expect(lambda x: np.abs(mean + x) ** alpha)
    if which == "2":
        seen = moments.error if printed else (moments.mean - mean) ** 2
        bound = moment**2 * tau ** (-2 * (alpha - 1))
    else:
        seen = moments.second
        bound = moment * tau ** (2 - (2 if printed else 1) * alpha)
    checks = {"E g = ∇f": True, "E|g|^α is the moment used": True, "τ > 0": tau > 0}
    return _certificate(given, "two-point law", checks, seen, bound, "a sum of two terms")


# Chapters 5 and 6.
# --------------------------------------------------------------------------------------------------


def _coordinates_5_4_1(given: Parameters) -> Certificate | None:
    """INGD at 0 on L·max(max_i x_i, -Δ/L): every gradient is a new L e_i, and no test passes."""
    L, epsilon = 1.0, given["epsilon"]
    gamma, T = given["gamma"], given["T"]
    if epsilon >= L:
        return None
    K = 48 * L**2 / epsilon**2
    square, calls = L**2, 1
    while square > epsilon**2:
        beta = (4 * L**2 - square) / (4 * L**2 + 2 * square)
        square = beta**2 * square + (1 - beta) ** 2 * L**2
        calls += 2  # the value of the descent test, and a gradient
    printed = T * K * math.log(T / gamma)
    checks = {"ε < L": True, "T = 4Δ/(εδ) >= 1": T >= 1, "γ <= 1/2": gamma <= 0.5}
    words = "calls of every run, whatever the draws"
    family = "L max(max_i x_i, -Δ/L) in many dimensions"
    return _certificate(given, family, checks, calls, printed, words)


def _coin_6_4_1(given: Parameters) -> Certificate | None:
    """F(θ) = ±M with probabilities q and 1-q, whatever θ is: the change is a binomial mean."""
    from scipy.stats import binom

    given = {**given, "n": math.ceil(given["n"])}
    n, q, delta = int(given["n"]), min(given["q"], 0.5), given["delta"]
    # |2 S/n - 2q| with S ~ Bin(n, q): the smallest number that it exceeds with probability <= δ.
    s = np.arange(n + 1)
    order = np.argsort(np.abs(2 * s / n - 2 * q))
    weights = binom.pmf(s, n, q)[order]
    place = min(int(np.searchsorted(np.cumsum(weights), 1 - delta)), n)
    seen = float(np.abs(2 * s / n - 2 * q)[order][place])
    bound = theory.one_step_change_bound(theory.BoundedValues(1.0, delta), n)
    checks = {"|φ∘F| <= M = 1": True, "0 < δ < 1": 0 < delta < 1}
    words = "the exact binomial quantile"
    return _certificate(given, "a coin, drawn anew each step", checks, seen, bound, words)


_COUNTS = {"L0": (0.1, 10.0), "L1": (0.05, 10.0), "M": (0.5, 500.0), "epsilon": (0.05, 2.0)}
_TEETH = {"L0": (0.1, 10.0), "L1": (0.01, 10.0), "epsilon": (0.005, 1.0)}
_SLOPE = {
    "epsilon": (0.05, 1.0),
    "slope": (1.01, 1.5),
    "height": (1.0, 1e5),
    "tau": (0.001, 1.0),
    "L0": (0.1, 10.0),
    "L1": (0.01, 1.0),
}
_SMALL, _LARGE = (1e-4, 0.1), (10.0, 1e4)
_BOWL = {"alpha": (1.1, 2.0), "f0": (1e-12, 0.5), "K": (1e2, 1e24)}
_HUBER = {
    "alpha": (1.1, 2.0),
    "sigma": (1e-5, 0.1),
    "slope": (0.1, 10.0),
    "way": (0.1, 10.0),
    "K": (10.0, 1e6),
}
_ACCLIP = {"alpha": (1.1, 2.0), "L": (0.1, 1e6), "share": (0.1, 100.0), "K": (10.0, 1e6)}
_JUMPS = {
    "alpha": (1.1, 2.0),
    "multiple": (1.0, 300.0),
    "ratio": (1.0, 10.0),
    "K": (10.0, 300.0),
}
_LAW = {
    "alpha": (1.05, 2.0),
    "tau": (0.1, 100.0),
    "share": (0.001, 0.5),
    "scale": (0.1, 100.0),
    "mean": (1e-3, 10.0),
}
PRINTED, CORRECTED = "as printed", "as corrected"

#: In the papers' order. A statement that is the same in print and corrected has one reading.
ATTACKS: tuple[Attack, ...] = (
    *(
        Attack(f"Theorem {kind}", PRINTED, family, ranges, attempt)
        for kind in ("3.4.1", "3.4.3")
        for family, ranges, attempt in (
            ("hyperbolic cosine", _COUNTS, partial(_on_cosh, kind=kind)),
            ("toothed slope", _TEETH, partial(_on_teeth, kind=kind)),
        )
    ),
    Attack(
        "Theorem 3.4.2",
        PRINTED,
        "the two functions of 3.7.2",
        {"L1": (1.0, 10.0), "M": (1.1, 1e4), "epsilon": (0.001, 3.0), "delta": (0.001, 100.0)},
        _lower_3_4_2,
    ),
    Attack(
        "Theorem 3.4.4",
        PRINTED,
        "hyperbolic cosine, the printed step",
        {"epsilon": (0.5, 100.0), "M": (1e2, 1e8), "tau": (0.01, 1.0)},
        _step_3_4_4,
        points=5,
    ),
    Attack(
        "Theorem 3.4.5", PRINTED, "slope", _SLOPE, partial(_slope_3_4_5, printed=True), points=2
    ),
    Attack(
        "Theorem 3.4.5", CORRECTED, "slope", _SLOPE, partial(_slope_3_4_5, printed=False), points=2
    ),
    Attack(
        "Theorem 4.4.1",
        "as printed, small σ",
        "bowl",
        {"sigma": _SMALL, **_BOWL},
        partial(_bowl_4_4_1, corrected=False),
    ),
    Attack(
        "Theorem 4.4.1",
        "as printed, large σ",
        "bowl",
        {"sigma": _LARGE, **_BOWL},
        partial(_bowl_4_4_1, corrected=False),
    ),
    Attack(
        "Theorem 4.4.1",
        "its last term as proved, small σ",
        "slope",
        _HUBER,
        partial(_slope_4_4_1, corrected=False),
    ),
    Attack(
        "Theorem 4.4.1",
        CORRECTED,
        "bowl",
        {"sigma": (1e-4, 1e4), **_BOWL, "K": (1e2, 1e15)},
        partial(_bowl_4_4_1, corrected=True),
    ),
    Attack("Theorem 4.4.1", CORRECTED, "slope", _HUBER, partial(_slope_4_4_1, corrected=True)),
    Attack(
        "Theorem 4.4.2",
        "with the proof's threshold",
        "rare jumps",
        _JUMPS,
        partial(_jump_4_4_2, dimension=1),
    ),
    Attack(
        "Theorem 4.4.2",
        "as printed, τ_k = G k^(α-1)",
        "rare jump",
        {"alpha": (1.05, 1.6), "multiple": (1.5, 50.0), "K": (1e3, 1e30)},
        _jump_4_4_2_printed,
        points=5,
    ),
    Attack(
        "Theorem 4.5.1",
        "with the proof's threshold",
        "rare jumps",
        _JUMPS,
        partial(_jump_4_4_2, dimension=4),
    ),
    Attack("Theorem 2 (acclip)", PRINTED, "slope", _ACCLIP, partial(_slope_acclip_2, printed=True)),
    Attack(
        "Theorem 2 (acclip)", CORRECTED, "slope", _ACCLIP, partial(_slope_acclip_2, printed=False)
    ),
    Attack(
        "Lemma 2 (acclip)",
        PRINTED,
        "two-point laws",
        _LAW,
        partial(_lemma, which="2", printed=True),
    ),
    Attack(
        "Lemma 2 (acclip)",
        CORRECTED,
        "two-point laws",
        _LAW,
        partial(_lemma, which="2", printed=False),
    ),
    Attack(
        "Lemma 4.7.5", PRINTED, "two-point laws", _LAW, partial(_lemma, which="4.7.5", printed=True)
    ),
    Attack(
        "Lemma 4.7.5",
        CORRECTED,
        "two-point laws",
        _LAW,
        partial(_lemma, which="4.7.5", printed=False),
    ),
    Attack(
        "Theorem 5.4.1",
        PRINTED,
        "a maximum of coordinates",
        {"epsilon": (0.02, 0.99), "gamma": (1e-6, 0.5), "T": (1.0, 1e6)},
        _coordinates_5_4_1,
    ),
    Attack(
        "Theorem 6.4.1",
        "with the constant of its proof",
        "coins",
        {"n": (2.0, 3000.0), "q": (0.001, 0.5), "delta": (1e-6, 0.9)},
        _coin_6_4_1,
    ),
)
