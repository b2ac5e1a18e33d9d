"""Chapter 2: Table 2.1, Theorems 2.1.2 and 2.1.3, Fig. 2-1 and Fig. 2-3."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from mindgap.base.check import RuleError
from mindgap.base.rng import numpy_stream
from mindgap.lab.theory import (
    Chain,
    RareLargeLoss,
    SmoothConvex,
    gd_convex_gap,
    gd_gap_printed,
    iteration_bound,
    iterations,
    lmi_rate,
    nesterov_convex_gap,
    nesterov_gap,
    online_regret,
    pep_gap,
    pep_missing,
    proved_rate,
    quadratic_rate,
    worst_gap,
)
from mindgap.lab.theory.chapter2.section_2_1 import METHODS, amplitudes, parameters

GRID = [
    SmoothConvex(L, L / Q, D) for L in (0.1, 7.0) for Q in (1.5, 20.0, 400.0) for D in (0.3, 5.0)
]
STEPS = 200


def gd_distance(c, k):
    """(1 - μ/L)^k D: what ‖x_k - x*‖ is at most for GD with step 1/L, by its contraction."""
    return (1 - c.mu / c.L) ** k * c.D


@pytest.mark.parametrize("c", GRID, ids=str)
def test_gd_and_nesterov_stay_under_their_bounds_on_quadratics(c):
    gd, nesterov = worst_gap("gd", c, STEPS), worst_gap("nesterov", c, STEPS)
    for k in range(STEPS + 1):
        assert gd[k] <= gd_gap_printed(c, k) * (1 + 1e-9)
        assert gd[k] <= c.L / 2 * gd_distance(c, k) ** 2 * (1 + 1e-9)
        assert nesterov[k] <= nesterov_gap(c, k + 1) * (1 + 1e-9) <= nesterov_gap(c, k) * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_random_quadratics_with_random_rotations_stay_under_the_bounds(seed):
    """The mode-by-mode worst case against plain runs with dense matrices, written out as (2.3)
    and (2.4).
    """
    rng = numpy_stream(seed, "quadratic")
    d = 6
    eigenvalues = 10 ** rng.uniform(-2, 0.5, size=d)
    c = SmoothConvex(L=float(eigenvalues.max()), mu=float(eigenvalues.min()))
    basis, _ = np.linalg.qr(rng.normal(size=(d, d)))
    A = basis * eigenvalues @ basis.T
    x = rng.normal(size=d)
    x /= np.linalg.norm(x)
    z = y = x
    alpha, beta = parameters("nesterov", c)
    worst = {m: worst_gap(m, c, 80) for m in METHODS}
    hb, before = x, x
    step, momentum = parameters("heavy-ball", c)
    for k in range(81):
        assert x @ A @ x / 2 <= worst["gd"][k] * 1.001 + 1e-15
        assert y @ A @ y / 2 <= worst["nesterov"][k] * 1.001 + 1e-15
        assert (
            hb @ A @ hb / 2 <= worst["heavy-ball"][k] * 1.02 + 1e-15
        )  # its worst λ is sharp: the grid is 0.2 % wide
        assert np.linalg.norm(x) <= gd_distance(c, k) * (1 + 1e-9)
        new = z - alpha * (A @ z)
        z, y = (1 + beta) * new - beta * y, new
        x = x - A @ x / c.L
        hb, before = hb - step * (A @ hb) + momentum * (hb - before), hb


def test_distance_of_gd_is_attained_and_half_of_it_exceeded():
    c = SmoothConvex(L=3.0, mu=0.5, D=2.0)
    run = amplitudes("gd", np.array([c.mu]), 1 / c.L, 0.0)
    for k in range(30):
        distance = float(next(run)[0]) * c.D
        assert distance == pytest.approx(gd_distance(c, k), rel=1e-12)
        assert distance > gd_distance(c, k) / 2


@pytest.mark.parametrize("method", ["gd", "nesterov"])
def test_a_step_twice_too_long_breaks_the_bounds(method):
    c = SmoothConvex(L=1.0, mu=0.1)
    bound = gd_gap_printed if method == "gd" else nesterov_gap
    gap = worst_gap(method, c, 60, alpha=2.05 / c.L)
    assert gap[-1] > bound(c, 60)


@pytest.mark.parametrize("L", [0.1, 7.0])
@pytest.mark.parametrize("D", [0.3, 5.0])
def test_convex_bounds_on_quadratics(L, D):
    c = SmoothConvex(L, 0.0, D)
    gd, nesterov = worst_gap("gd", c, STEPS), worst_gap("nesterov", c, STEPS)
    for k in range(STEPS + 1):
        assert gd[k] <= gd_convex_gap(c, k) * (1 + 1e-9)
        assert nesterov[k] <= nesterov_convex_gap(c, max(k, 1)) * (1 + 1e-9) or k == 0
    assert (
        gd[STEPS] > gd_convex_gap(c, STEPS) / math.e * 0.99
    )  # quadratics are within a factor e of the worst
    assert gd[0] > gd_convex_gap(c, 0) / 2


def _exponent(x, y):
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def test_iteration_counts_follow_table_2_1():
    """Exponents of the exact counts on worst-case quadratics; √L for Nesterov, where the table
    prints L.
    """
    conditions = np.array([100.0, 400.0, 1600.0])
    counts = {
        m: [iterations(m, SmoothConvex(1.0, 1 / Q), 1e-8) for Q in conditions] for m in METHODS
    }
    assert _exponent(conditions, counts["gd"]) == pytest.approx(1.0, abs=0.1)
    assert _exponent(conditions, counts["nesterov"]) == pytest.approx(0.5, abs=0.1)
    assert _exponent(conditions, counts["heavy-ball"]) == pytest.approx(0.5, abs=0.1)
    accuracies = np.array([1e-3, 1e-4])
    for method, power in (("gd", 1.0), ("nesterov", 0.5)):
        by_epsilon = [iterations(method, SmoothConvex(1.0), e) for e in accuracies]
        by_smoothness = [iterations(method, SmoothConvex(L), 1e-3) for L in (1.0, 10.0)]
        assert _exponent(1 / accuracies, by_epsilon) == pytest.approx(power, abs=0.06)
        assert _exponent(np.array([1.0, 10.0]), by_smoothness) == pytest.approx(power, abs=0.06)


@pytest.mark.parametrize(
    ("method", "c", "epsilon"),
    [
        *itertools.product(
            ["gd", "nesterov"], [SmoothConvex(2.0, 0.02, 3.0), SmoothConvex(0.5, 0.1)], [1e-2, 1e-6]
        ),
        *itertools.product(
            ["gd", "nesterov"], [SmoothConvex(2.0, 0.0, 3.0), SmoothConvex(0.5)], [1e-1, 1e-2]
        ),
    ],
)
def test_iteration_counts_stay_under_the_bound(method, c, epsilon):
    assert iterations(method, c, epsilon) <= math.ceil(iteration_bound(method, c, epsilon))


def _conjugate_gradients(f, steps):
    """The best point of every span: no method of (2.2) does better on a quadratic."""
    x = np.zeros(f.dimension)
    r = -f.gradient(x)
    p = r.copy()
    constant = f.gradient(np.zeros(f.dimension))
    for _ in range(steps):
        yield x
        Ap = f.gradient(p) - constant
        a = (r @ r) / (p @ Ap)
        x = x + a * p
        new = r - a * Ap
        p = new + (new @ new) / (r @ r) * p
        r = new


@pytest.mark.parametrize("Q", [4.0, 50.0, 1000.0])
def test_no_method_in_the_span_beats_theorem_2_1_2(Q):
    c = SmoothConvex(L=2.0, mu=2.0 / Q)
    f = Chain(c, 130)
    steps = 100

    def momentum(method):
        alpha, beta = parameters(method, c)
        x = y = before = np.zeros(f.dimension)
        for _ in range(steps):
            yield y
            if method == "nesterov":
                new = x - alpha * f.gradient(x)
                x, y = (1 + beta) * new - beta * y, new
            else:
                x, before = x - alpha * f.gradient(x) + beta * (x - before), x
                y = x

    for run in (
        momentum("gd"),
        momentum("nesterov"),
        momentum("heavy-ball"),
        _conjugate_gradients(f, steps),
    ):
        for k, x in enumerate(run):
            assert not x[k:].any()  # k steps, k coordinates
            assert f.distance_square(x) >= f.lower_bound(k) * (1 - 1e-9)
    closest = list(_conjugate_gradients(f, steps))[10]
    assert f.distance_square(closest) < 30 * f.lower_bound(
        10
    )  # within a constant of what is possible
    assert np.abs(f.gradient(f.minimiser)[:-1]).max() < 1e-12


def test_chain_gradient_agrees_with_autograd():
    import torch

    c = SmoothConvex(L=3.0, mu=0.2)
    f = Chain(c, 25)
    at = numpy_stream(0, "chain").normal(size=(10_000, 25))
    at[:, -1] = 0.0
    x = torch.from_numpy(at).requires_grad_()
    y = torch.nn.functional.pad(x, (0, 1))
    chain = x[:, 0] ** 2 + (y[:, :-1] - y[:, 1:]).square().sum(1) - 2 * x[:, 0]
    value = (c.L - c.mu) / 8 * chain + c.mu / 2 * x.square().sum(1)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    np.testing.assert_allclose(f.gradient(at), gradient.numpy(), rtol=1e-12, atol=1e-12)


needs_pep = pytest.mark.skipif(bool(pep_missing()), reason=pep_missing() or "present")


@needs_pep
@pytest.mark.parametrize("Q", [1.5, 4.0, 10.0, 16.0, 40.0, 100.0])
def test_matrix_inequality_agrees_with_analytic_rates(Q):
    """GD exactly; Nesterov between its rate on quadratics and Theorem 2.1.3; heavy-ball not
    below quadratics.
    """
    assert lmi_rate("gd", Q) == pytest.approx(1 - 1 / Q, abs=1e-4)
    nesterov, heavy = lmi_rate("nesterov", Q), lmi_rate("heavy-ball", Q)
    assert quadratic_rate("nesterov", Q) + 1e-3 < nesterov < proved_rate("nesterov", Q)
    assert heavy > quadratic_rate("heavy-ball", Q)
    # Nesterov's method is certified for every Q, heavy-ball only up to (2 + √5)² = 17.9
    assert (heavy < 1) == (Q < 17.9)


@needs_pep
def test_heavy_ball_loses_its_certificate_at_the_known_condition_number():
    threshold = (2 + math.sqrt(5)) ** 2
    assert lmi_rate("heavy-ball", threshold - 0.3) < 1.0
    assert lmi_rate("heavy-ball", threshold + 0.1) == 1.0


@needs_pep
@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("L", [1.0, 4.0])
def test_performance_estimation_agrees_with_analytic_rates(steps, L):
    convex, strong = SmoothConvex(L), SmoothConvex(L, 0.2 * L)
    assert pep_gap("gd", convex, steps) == pytest.approx(gd_convex_gap(convex, steps), abs=1e-4)
    assert pep_gap("nesterov", convex, steps) == pytest.approx(
        nesterov_convex_gap(convex, steps), abs=1e-4
    )
    distance = pep_gap("gd", strong, steps, measure="distance")
    assert distance == pytest.approx(gd_distance(strong, steps) ** 2, abs=1e-4)
    assert distance > gd_distance(strong, steps) ** 2 / 2  # half the bound is exceeded
    gap = pep_gap("nesterov", strong, steps)
    assert worst_gap("nesterov", strong, steps)[-1] - 1e-6 <= gap <= nesterov_gap(strong, steps + 1)


@needs_pep
def test_performance_estimation_sees_a_wrong_method():
    """GD on convex functions does not have Nesterov's gap: the agreement above can fail."""
    c = SmoothConvex(1.0)
    assert pep_gap("gd", c, 4) > nesterov_convex_gap(c, 4) + 1e-3


def test_quadratic_rates_in_closed_form_against_long_runs():
    for method, Q in itertools.product(METHODS, (4.0, 30.0)):
        c = SmoothConvex(1.0, 1 / Q)
        gap = worst_gap(method, c, 600)
        k = 200 if method == "gd" else 120
        measured = (gap[k] / gap[k // 2]) ** (1 / (2 * (k - k // 2)))
        assert measured == pytest.approx(quadratic_rate(method, Q), abs=0.02)


@pytest.mark.parametrize("C", [2.5, 3.0, 10.0])
@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.9])
def test_adam_keeps_its_regret_and_amsgrad_loses_it(C, alpha):
    problem = RareLargeLoss(C)
    betas = (0.0, problem.forgetting())
    assert alpha < math.sqrt(1 - betas[1])
    at = [3 * 10**k for k in range(1, 5)]
    adam, _ = online_regret(problem, "adam", alpha, betas, at)
    amsgrad, points = online_regret(problem, "amsgrad", alpha, betas, at)
    assert min(adam) >= problem.adam_floor() - 1e-12
    for t, regret in zip(at, amsgrad):
        assert regret <= (2 * C / alpha + alpha * C / math.sqrt(1 - betas[1])) / math.sqrt(t)
    assert amsgrad[-1] < 0.3 * problem.adam_floor()
    assert amsgrad[-1] < amsgrad[0] / 4
    assert points[-1] < 0


def test_adam_returns_to_one_in_every_period():
    problem = RareLargeLoss(3.0)
    starts = [3 * t + 1 for t in range(1000)]
    _, points = online_regret(problem, "adam", 0.5, (0.0, problem.forgetting()), starts)
    assert points == [1.0] * 1000


def test_a_long_memory_saves_adam():
    """With β2 = 0.9999 the rare gradient is remembered: the statement is about short memories,
    and can fail.
    """
    problem = RareLargeLoss(3.0)
    regret, _ = online_regret(problem, "adam", 0.5, (0.0, 0.9999), [30_000])
    assert regret[0] < 0.5 * problem.adam_floor()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SmoothConvex(-1.0), "L must be positive and finite, got -1.0"),
        (lambda: SmoothConvex(1.0, 2.0), "mu must be at most L = 1, got 2.0"),
        (lambda: SmoothConvex(1.0, 0.1, D=0.0), "D must be positive and finite, got 0.0"),
        (lambda: RareLargeLoss(2.0), r"C must be above \(P-1\)s = 2, got 2.0"),
        (
            lambda: online_regret(RareLargeLoss(3.0), "adm", 0.5, (0.0, 0.1), [3]),
            "did you mean 'adam'",
        ),
        (
            lambda: online_regret(RareLargeLoss(3.0), "adam", -0.5, (0.0, 0.1), [3]),
            "alpha must be positive and finite",
        ),
        (lambda: iterations("newton", SmoothConvex(1.0), 0.1), "method must be one of"),
        (lambda: nesterov_gap(SmoothConvex(1.0), 3), "mu must be positive and finite, got 0.0"),
    ],
)
def test_bad_constants_of_chapter_2(make, message):
    with pytest.raises(RuleError, match=message):
        make()
