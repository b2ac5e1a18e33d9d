"""Families of instances for :mod:`mindgap.lab.theory.refute`: functions and noises of this room,
solved exactly, or bounded so that a ratio above 1 is a proof.

Each function solves one instance, given by its parameters; it returns None where the instance is
outside the assumptions or too large to run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import numpy as np

from mindgap.lab import theory
from mindgap.lab.theory.certificate import Certificate
from mindgap.lab.theory.certificates.chapter3 import theorem_3_4_4_step

#: The parameters of an instance by name.
Parameters = Mapping[str, float]


@dataclass(frozen=True)
class Attack:
    """One family of instances against one reading of a statement.

    Args:
        place: the statement, as the table of theorems names it.
        reading: "as printed", "as corrected", or what else was changed.
        family: the instances, in words.
        ranges: parameter -> its smallest and largest value, both positive; searched on a log
            scale.
        attempt: parameters -> a certificate (valid or not), or None outside the assumptions.
        points: how many values of each parameter the grid has.
    """

    place: str
    reading: str
    family: str
    ranges: Mapping[str, tuple[float, float]]
    attempt: Callable[[Parameters], Certificate | None]
    points: int = 3


#: Most steps of one run; a run that is cut short counts as one more.
LIMIT = 20_000

#: What is found of an instance: every assumption and whether it is met, the side that the statement
#: bounds, and the bound. None where the instance is outside the assumptions or too large to run.
Solved = tuple[dict[str, bool], float, float] | None


def _family(
    family: str, method: str, claim: str = "at most"
) -> Callable[[Callable[..., Solved]], Callable[..., Certificate | None]]:
    """A decorator that makes an attempt of a function that solves one instance.

    The function takes an instance's parameters by name and returns a ``Solved``. The attempt takes
    them as one mapping, rounds the counts (K and n) up to whole numbers, and returns a certificate,
    or None. Its further keyword arguments choose the reading, such as ``printed=True``; they are
    handed on to the function.

    Args:
        family: the instances, in words; stands first in the certificate.
        method: how the numbers are computed, in words.
        claim: what the statement says of the measured side against its bound.
    """

    def as_attempt(solve: Callable[..., Solved]) -> Callable[..., Certificate | None]:
        """The attempt made of ``solve``, which solves one instance."""

        @wraps(solve)
        def attempt(parameters: Parameters, **reading: Any) -> Certificate | None:
            # No docstring: ``wraps`` gives the attempt that of ``solve``, which solves an instance.
            # ``family``, ``claim`` and ``method`` are the decorator's arguments.
            instance = {
                name: math.ceil(value) if name in ("K", "n") else value
                for name, value in parameters.items()
            }
            solved = solve(**instance, **reading)
            if solved is None:
                return None
            assumptions, measured, bound = solved
            return Certificate(
                {"family": family, **instance}, assumptions, measured, bound, claim, method
            )

        return attempt

    return as_attempt


# Chapter 3: counts of iterations.
# --------------------------------------------------------------------------------------------------


def _steps_to_stationary(
    gradient: Callable[[float], float],
    x: float,
    step: Callable[[Any], Any],
    epsilon: float,
) -> int:
    """T_ε, the steps of one run in one dimension until |f'| <= ε; LIMIT + 1 where it was not
    reached.

    Args:
        gradient: f'.
        x: where the run starts.
        step: the step size as a function of |f'(x)|.
        epsilon: ε.
    """
    for step_number in range(LIMIT + 1):
        slope = gradient(x)
        if abs(slope) <= epsilon:
            return step_number
        x -= float(step(np.float64(abs(slope)))) * slope
        if not abs(x) < 1e150:  # diverged; beyond, the next step may overflow
            break
    return LIMIT + 1


def _step_and_bound(
    kind: str, constants: Any, epsilon: float
) -> tuple[Callable[[Any], Any], float]:
    """The step and the bound of a theorem.

    Args:
        kind: "3.4.1" (clipped gradient descent) or "3.4.3" (fixed step).
        constants: a ``RelaxedSmooth``.
        epsilon: accuracy.

    Returns:
        (the step size as a function of the gradient's norm, the most steps to ‖∇f‖ <= ε).
    """
    if kind == "3.4.1":
        return theory.clipped_gd_step(constants), theory.clipped_gd_bound(constants, epsilon)
    step = theory.gd_step(constants)
    return lambda norm: step, theory.gd_bound(constants, epsilon)


@_family("hyperbolic cosine", "a run, counted")
def _count_on_cosh(*, kind: str, L0: float, L1: float, M: float, epsilon: float) -> Solved:
    """Count the steps on the hyperbolic cosine, from the point where f' = M, against the bound of
    the theorem ``kind`` ("3.4.1" or "3.4.3") for (L0, L1)-smooth f and the accuracy ε.
    """
    function = theory.HyperbolicCosine(L0=L0, L1=L1)
    start = function.start(M)
    step, bound = _step_and_bound(kind, function.constants(M), epsilon)
    # Left out: a start that may be inexact (cosh(300) is far from overflow), one that is stationary
    # already, and a run that may be cut short.
    if L1 * start > 300 or epsilon >= M or bound > LIMIT:
        return None

    def gradient(x: float) -> float:
        """f'(x) of the function, faster than by its ``gradient``; the argument is cut at ±700,
        where sinh is finite.
        """
        return L0 / L1 * math.sinh(min(max(L1 * x, -700), 700))

    checks = {"(L0, L1)-smooth, M and f(x0) - f* exact": True, "ε > 0": epsilon > 0}
    return checks, _steps_to_stationary(gradient, start, step, epsilon), bound


@_family("toothed slope, 300 teeth", "a run, counted")
def _count_on_teeth(*, kind: str, L0: float, L1: float, epsilon: float) -> Solved:
    """Count the steps on the slope with teeth, of curvature L0 at most, against the bound of the
    theorem ``kind`` ("3.4.1" or "3.4.3") for (L0, L1)-smooth f and the accuracy ε.
    """
    slope = epsilon * (1 + 1e-6)  # so that no point of the slope is ε-stationary
    # The teeth are made for a step, which depends on L0, L1 and the slope, but not on Δ. So it is
    # computed first, with any Δ.
    without_teeth = theory.RelaxedSmooth(L0=L0, L1=L1, delta=1.0, M=slope)
    step_of_norm, _ = _step_and_bound(kind, without_teeth, epsilon)
    step_size = float(step_of_norm(np.float64(slope)))
    if step_size * L0 > 1:  # a ``ToothedSlope`` needs a step of at most 1/L
        return None
    function = theory.ToothedSlope(slope=slope, step=step_size, L=L0, teeth=300)
    constants = function.constants(L0, L1)
    step, bound = _step_and_bound(kind, constants, epsilon)
    count = _steps_to_stationary(
        lambda x: float(function.gradient(np.float64(x))), function.start, step, epsilon
    )
    checks = {"curvature within L0": True, "the slope is M": slope == constants.M}
    return checks, count, bound


@_family(
    "exponential and slow function, best fixed step",
    "the way divided by the longest step",
    claim="at least",
)
def _lower_3_4_2(*, L1: float, M: float, epsilon: float, delta: float) -> Solved:
    """Theorem 3.4.2, L1 M (Δ - 5ε/8)/(8 ε² (log M + 1)) steps at least, against the fewest steps of
    the best fixed step on the two functions of 3.7.2, with L0 = L1.

    The step must be short for the exponential function and is then slow on the other one. That
    Theorem 3.4.3 allows the count is a check: no true lower bound exceeds an upper bound.

    Args:
        L1: constant of (L0, L1)-smoothness, and L0.
        M: |f'| at the exponential function's start.
        epsilon: ε.
        delta: Δ, f(x0) - f* of the slow function.
    """
    # Outside the theorem, or the slope 2ε of the slow function reaches M.
    if epsilon > L1 / 3 or delta < 1.25 * epsilon or 2 * epsilon >= M:
        return None
    printed = L1 * M * (delta - 0.625 * epsilon) / (8 * epsilon**2 * (math.log(M) + 1))
    longest = theory.ExponentialQuadratic(L1=L1).longest_step(M)
    fewest = theory.fixed_step_count(delta, epsilon, longest)
    checks = {
        "L0 = L1 >= 1 and M > 1": L1 >= 1 and M > 1,
        "ε <= L0/3": epsilon <= L1 / 3,
        "f(x0) - f* >= 5ε/4": delta >= 1.25 * epsilon,
        "fewer steps than Theorem 3.4.3 allows": fewest <= 4 * (M * L1 + L1) * delta / epsilon**2,
    }
    return checks, fewest, printed


@_family("slow function of 3.7.2", "the way divided by the longest step")
def _slope_3_4_5(
    *,
    printed: bool,
    epsilon: float,
    slope: float,
    height: float,
    tau: float,
    L0: float,
    L1: float,
) -> Solved:
    """Theorem 3.4.5 against the slow function of 3.7.2: the fewest steps down its slope, whatever
    the noise.

    Args:
        printed: whether the bound is the printed one; else the proof's, which is squared.
        epsilon: accuracy.
        slope: M/ε, where M is the slope outside [-1, 1].
        height: (f(x0) - f*)/ε.
        tau: bound of the noise.
        L0, L1: constants of (L0, L1)-smoothness.
    """
    M, gap = slope * epsilon, height * epsilon
    distance = (gap - 0.625 * M) / M  # from x0 to the end of the slope: f(1) - f* = 5M/8
    # Outside (L0, L1)-smoothness, or no slope is left.
    if 1.5 * M > L0 or distance <= 0:
        return None
    constants = theory.RelaxedSmooth(L0=L0, L1=L1, delta=gap, M=M)
    noise = theory.BoundedNoise(tau=tau)
    if printed:
        bound = (gap + (5 * L0 + 4 * L1 * M) * (M + tau) ** 2) / epsilon**4
    else:
        bound = theory.sgd_bound(constants, noise, epsilon)
    # Above 1e15 a count of steps is no longer exact in floats.
    if not 1 <= bound < 1e15:
        return None
    step = theory.sgd_step(constants, noise, math.ceil(bound))
    checks = {
        "(L0, L1)-smooth: 3M/2 <= L0": 1.5 * M <= L0,
        "|f'| <= M everywhere": True,
        "noise within τ": True,
        "the slope is not ε-stationary": epsilon < M,
    }
    # No stochastic gradient is longer than M + τ.
    return checks, distance / (step * (M + tau)), bound


def _step_3_4_4(parameters: Parameters) -> Certificate | None:
    """The certificate of the printed step of Theorem 3.4.4 at other constants ε, M and τ; None
    where the start is stationary already, or M so large that floats lose the margins.
    """
    epsilon, M, tau = parameters["epsilon"], parameters["M"], parameters["tau"]
    if M > 1e12 or epsilon >= M:
        return None
    return theorem_3_4_4_step(epsilon, M, tau)


# Chapter 4 and acclip.
# --------------------------------------------------------------------------------------------------


def _printed_4_4_1(
    constants: Any, K: int, *, last_as_proved: bool = False
) -> tuple[float, float, float]:
    """Step η, threshold τ and bound of Theorem 4.4.1 as printed. ``_corrected_4_4_1`` has them as
    the proof gives them.

    With e = (2α-2)/(3α-2): η = min{1/(4L), 1/(L (12σ)^(α/(α-1))), (f0/(σ²K))^(α/(3α-2))/L^e}, τ =
    σ (ηL)^(-1/α), and 20 max{4 L f0/K, L (12σ)^(α/(α-1)) f0/K, last term} bounds the mean of
    min{‖∇f‖², ‖∇f‖}.

    Args:
        constants: a ``HeavyTail``; its ``delta`` is f0.
        K: number of steps.
        last_as_proved: whether the last term is σ^(2α/(3α-2)) (L f0/K)^e, as in the proof; else
            f0 L^e (f0/(Kσ²))^e, as in the statement.
    """
    alpha, sigma, L, gap = constants.alpha, constants.sigma, constants.L, constants.delta
    exponent = (2 * alpha - 2) / (3 * alpha - 2)
    rate = (gap / (sigma**2 * K)) ** (alpha / (3 * alpha - 2)) / L**exponent
    noise_factor = (12 * sigma) ** (alpha / (alpha - 1))
    # η: the smallest of the three steps above.
    eta = min(1 / (4 * L), 1 / (L * noise_factor), rate)
    if last_as_proved:
        last_term = sigma ** (2 * alpha / (3 * alpha - 2)) * (L * gap / K) ** exponent
    else:
        last_term = gap * L**exponent * (gap / (K * sigma**2)) ** exponent
    bound = 20 * max(4 * L * gap / K, L * noise_factor * gap / K, last_term)
    return eta, sigma * (eta * L) ** (-1 / alpha), bound


def _corrected_4_4_1(constants: Any, K: int) -> tuple[float, float, float]:
    """Step η, threshold τ and bound of Theorem 4.4.1 as its proof gives them; it bounds the mean of
    min{‖∇f‖², τ‖∇f‖/3}. The twin of ``_printed_4_4_1``.
    """
    parameters = theory.gclip_nonconvex_parameters(constants, K)
    return parameters.eta, parameters.tau, theory.gclip_nonconvex_bound(constants, K)


@_family("x²/2 without noise", "a geometric sum")
def _bowl_4_4_1(*, corrected: bool, alpha: float, sigma: float, f0: float, K: int) -> Solved:
    """Theorem 4.4.1 for α, σ and K steps, printed or corrected, against x²/2 without noise from x0
    = √(2 f0). Nothing is clipped there, so x_k = (1-η)^k x0. ``f0`` is f(x0) - f*.
    """
    x0 = math.sqrt(2 * f0)
    constants = theory.HeavyTail(alpha=alpha, sigma=sigma, L=1.0, delta=f0)
    eta, tau, bound = (_corrected_4_4_1 if corrected else _printed_4_4_1)(constants, K)
    if x0 > min(1.0, tau):  # the minima below would not be the squares, or x0 would be clipped
        return None
    # Σ_{k=1..K} x_k², a geometric sum. Printed: min{‖∇f‖², ‖∇f‖} is the square, because x0 <= 1.
    # Corrected: min{‖∇f‖², τ‖∇f‖/3} is at most the square and at most τ x0/3.
    log_decay = 2 * math.log1p(-eta)
    total = x0**2 * math.exp(log_decay) * math.expm1(K * log_decay) / math.expm1(log_decay)
    if corrected:
        total = min(total, K * tau * x0 / 3)
    checks = {
        "f is 1-smooth": True,
        "E|g - f'|^α = 0 <= σ^α": True,
        "nothing is clipped": x0 <= tau,
        "|f'| <= 1": x0 <= 1,
    }
    return checks, total / K, bound


@_family("Huber function without noise", "the steps that end on the slope")
def _slope_4_4_1(
    *, corrected: bool, alpha: float, sigma: float, slope: float, way: float, K: int
) -> Solved:
    """Theorem 4.4.1 against the slope of a Huber function without noise, which ends ``way`` from
    x0.

    Args:
        corrected: whether all is as the proof gives it; else as printed but for the last term.
        alpha: α.
        sigma: σ.
        slope: |f'| on the slope.
        way: from x0 to the end of the slope.
        K: number of steps.
    """
    gap = slope * way + slope**2 / 2  # f(x0) - f* of the Huber function with L = 1
    constants = theory.HeavyTail(alpha=alpha, sigma=sigma, L=1.0, delta=gap)
    if corrected:
        eta, tau, bound = _corrected_4_4_1(constants, K)
    else:
        eta, tau, bound = _printed_4_4_1(constants, K, last_as_proved=True)
    # A step on the slope moves x by η min{τ, slope}.
    steps_on_slope = min(K, math.floor(way / (eta * min(tau, slope))))
    per_step = min(slope**2, tau * slope / 3) if corrected else min(slope, slope**2)
    checks = {"f is 1-smooth": True, "E|g - f'|^α = 0 <= σ^α": True}
    return checks, per_step * steps_on_slope / K, bound


@_family("Huber function, slope 1, without noise", "the steps that start on the slope")
def _slope_acclip_2(*, printed: bool, alpha: float, L: float, share: float, K: int) -> Solved:
    """Theorem 2 of acclip against the slope 1 of a Huber function without noise: every gradient up
    to its end has norm 1.

    Args:
        printed: whether step and bound are as printed (K + 1 and no L); else the proof's.
        alpha: α.
        L: smoothness.
        share: (f(x0) - f*)·L/K.
        K: number of steps.
    """
    gap = share * K / L  # f(x0) - f*
    distance = gap - 1 / (2 * L)  # from x0 to the end of the slope
    if distance <= 0:  # the start is not on the slope
        return None
    constants = theory.SmoothMoment(alpha=alpha, G=1.0, L=L, delta=gap)
    settings = theory.moment_nonconvex_parameters(constants, K + 1 if printed else K)
    bound = theory.moment_nonconvex_bound(constants, K, printed=printed)
    # A step moves x by η min{τ, 1}; the start counts as well.
    steps_on_slope = min(K, math.floor(distance / (settings.eta * min(settings.tau, 1.0))) + 1)
    checks = {"f is L-smooth": True, "E|g|^α = |f'|^α <= 1 everywhere": True}
    return checks, steps_on_slope / K, bound


@_family("rare jump, clipped", "the bias of the mean")
def _jump_4_4_2_printed(*, alpha: float, multiple: float, K: int) -> Solved:
    """Theorem 4.4.2 with the printed threshold τ_k = k^(α-1) (G = μ = 1) against a clipped rare
    jump: its bias alone exceeds the bound.

    f = (x - b)²/2 on [0, B]; g = x/(1-p) with probability 1-p, else -J. Here b = pJ is the minimum
    and J = ``multiple``·τ_K. ``certificates.chapter4.theorem_4_4_2`` is the same at α = 3/2.
    """
    tau = K ** (alpha - 1)
    jump = multiple * tau
    domain = 0.25 ** (1 / alpha) / 2  # B; small, so that most of the α-moment 1 is left to the jump
    # The jump's part of the α-moment. The slope's part is (1-p)^(1-α) B^α, within the rest because
    # (1-p)^(1-α) <= 1.1^α for p < 0.05.
    jump_moment = 1 - (1.1 * domain) ** alpha
    probability = jump_moment / jump**alpha
    slope_moment = (domain / (1 - probability)) ** alpha * (1 - probability)
    optimum = probability * jump
    # An upper bound of E x_k, k <= K, by induction as in ``certificates.chapter4``.
    most_mean = max(2 * probability, probability * tau)
    checks = {
        "α in (1, 2]": 1 < alpha <= 2,
        "the minimum lies in [0, B]": optimum < domain,
        "E|g|^α <= 1 on [0, B]": probability < 0.05 and jump_moment + slope_moment <= 1,
        "the jump is clipped up to K": jump > tau,
        "the slope is never clipped": domain / (1 - probability) <= 1,
        "the mean stays below the minimum": most_mean < optimum,
    }
    if not all(checks.values()):
        return None
    return checks, (optimum - most_mean) ** 2 / 2, 16 * (K + 1) ** (-2 * (alpha - 1) / alpha)


@_family("rare jumps", "the exact recursion")
def _jump_4_4_2(*, dimension: int, alpha: float, multiple: float, ratio: float, K: int) -> Solved:
    """Theorems 4.4.2 (one coordinate) and 4.5.1, with the proof's threshold τ_k = k^(1/α), against
    rare jumps.

    Args:
        dimension: number of coordinates.
        alpha: α.
        multiple: the smallest jump, in units of 10^(1/α); one unit has probability 1/10.
        ratio: the largest jump over the smallest.
        K: number of steps.
    """
    jumps = 10 ** (1 / alpha) * multiple * np.geomspace(1, ratio, dimension)
    problem = theory.RareJump(np.full(dimension, alpha), jumps)
    # The functions of k are the step, with μ = 1, and the threshold; K is the one horizon.
    (error,) = theory.averaged_error(
        problem, lambda k: 4 / (k + 1), lambda k: np.asarray(k ** (1 / alpha)), [K]
    )
    # On |x| <= 1/2 the slope adds (1-p)(x/(1-p))^α <= 1.2 (1/2)^α to the jump's α-moment 1.
    B = (1 + 1.2 * 0.5**alpha) ** (1 / alpha)
    constants = theory.CoordinateMoment(alpha=alpha, B=(B,) * dimension, mu=1.0)
    checks = {
        "1-strongly convex": True,
        "E|g_i|^α <= B_i^α on |x_i| <= 1/2": bool((problem.probability <= 0.11).all()),
        "the minimum lies inside": bool((problem.optimum <= 0.5).all()),
    }
    return checks, float(error.sum()), theory.cclip_bound(constants, K)


@_family("two-point law", "a sum of two terms")
def _clipped_moment_lemma(
    *,
    which: str,
    printed: bool,
    alpha: float,
    tau: float,
    share: float,
    scale: float,
    mean: float,
) -> Solved:
    """Lemma 2 of acclip (the bias) or Lemma 4.7.5 (the second moment) of a clipped gradient,
    against g = mean + a law of two points.

    Args:
        which: "2" or "4.7.5".
        printed: whether the lemma is as printed. The printed Lemma 2 bounds E(ĝ - ∇f)²,
            the corrected one (E ĝ - ∇f)²; Lemma 4.7.5 prints 2α for α in an exponent.
        alpha: α.
        tau: threshold of the clipping.
        share: probability of the rarer point.
        scale: distance of the two points.
        mean: ∇f.
    """
    law = theory.TwoPoint(probability=share, scale=scale)
    moments = theory.clipped_moments(law, mean, tau)
    moment = law.expect(lambda x: np.abs(mean + x) ** alpha)  # E|g|^α
    if which == "2":
        measured = moments.error if printed else (moments.mean - mean) ** 2
        bound = moment**2 * tau ** (-2 * (alpha - 1))
    else:
        measured = moments.second
        bound = moment * tau ** (2 - (2 if printed else 1) * alpha)
    checks = {"E g = ∇f": True, "E|g|^α is the moment used": True, "τ > 0": tau > 0}
    return checks, measured, bound


# Chapters 5 and 6.
# --------------------------------------------------------------------------------------------------


@_family("L max(max_i x_i, -Δ/L) in many dimensions", "calls of every run, whatever the draws")
def _coordinates_5_4_1(*, epsilon: float, gamma: float, T: float) -> Solved:
    """The calls of INGD at 0 on L·max(max_i x_i, -Δ/L) against Theorem 5.4.1's T·K·log(T/γ) with
    K = 48 L²/ε². Every gradient is a new L e_i, and the descent test never passes.

    Args:
        epsilon: ε.
        gamma: γ, the probability of failure that the theorem allows.
        T: 4Δ/(εδ), the theorem's outer steps.
    """
    L = 1.0
    norm_square, calls = L**2, 1  # ‖m‖² and the calls so far
    while norm_square > epsilon**2:
        # The weight of m as Algorithm 2 sets it; the new gradient is orthogonal to m.
        beta = (4 * L**2 - norm_square) / (4 * L**2 + 2 * norm_square)
        norm_square = beta**2 * norm_square + (1 - beta) ** 2 * L**2
        calls += 2  # the value of the descent test, and a gradient
    checks = {"ε < L": epsilon < L, "T = 4Δ/(εδ) >= 1": T >= 1, "γ <= 1/2": gamma <= 0.5}
    return checks, calls, T * 48 * L**2 / epsilon**2 * math.log(T / gamma)


@_family("a coin, drawn anew each step", "the exact binomial quantile")
def _coin_6_4_1(*, n: int, q: float, delta: float) -> Solved:
    """Theorem 6.4.1 against coins: F(θ) = ±M with probabilities q and 1-q, whatever θ is, M = 1.

    The one-step change over n steps is |2 S/n - 2q| with S ~ Bin(n, q). Its exact (1-δ)-quantile,
    the smallest number that it exceeds with probability δ (``delta``) at most, is measured against
    the bound.
    """
    from scipy.stats import binom

    successes = np.arange(n + 1)
    changes = np.abs(2 * successes / n - 2 * q)
    order = np.argsort(changes)  # the outcomes S by their change, the smallest change first
    probability_up_to = np.cumsum(binom.pmf(successes, n, q)[order])
    # By rounding the sum may end below 1 - δ; then the quantile is the largest change.
    place = min(int(np.searchsorted(probability_up_to, 1 - delta)), n)
    quantile = float(changes[order][place])
    bound = theory.one_step_change_bound(theory.BoundedValues(1.0, delta), n)
    return {"|φ∘F| <= M = 1": True, "0 < δ < 1": 0 < delta < 1}, quantile, bound


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
            ("hyperbolic cosine", _COUNTS, partial(_count_on_cosh, kind=kind)),
            ("toothed slope", _TEETH, partial(_count_on_teeth, kind=kind)),
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
        partial(_clipped_moment_lemma, which="2", printed=True),
    ),
    Attack(
        "Lemma 2 (acclip)",
        CORRECTED,
        "two-point laws",
        _LAW,
        partial(_clipped_moment_lemma, which="2", printed=False),
    ),
    Attack(
        "Lemma 4.7.5",
        PRINTED,
        "two-point laws",
        _LAW,
        partial(_clipped_moment_lemma, which="4.7.5", printed=True),
    ),
    Attack(
        "Lemma 4.7.5",
        CORRECTED,
        "two-point laws",
        _LAW,
        partial(_clipped_moment_lemma, which="4.7.5", printed=False),
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
