"""Theorems 5.4.1 and 5.5.1 with the optimizers, Proposition 5.3.1, Lemmas 5.2.1 to 5.3.2 and
5.7.2.
"""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from references.printed import printed_rule

from mindgap.base.check import RuleError
from mindgap.base.rng import numpy_stream, torch_stream
from mindgap.lab.theory import (
    NonsmoothTarget,
    PiecewiseLinear,
    StochasticTarget,
    deterministic_rule,
    direction_square_bound,
    directional_derivative,
    ingd_calls_printed,
    ingd_gradient_calls,
    ingd_inner_steps,
    ingd_outer_steps,
    mean_direction_bound,
    one_inner_step_radius,
    path_integral,
    smooth_target,
    stationarity_radius,
    stochastic_rule,
)
from mindgap.optim import INGD, StochasticINGD


def zigzag(seed: int, L: float) -> PiecewiseLinear:
    """Random teeth of slope ±L on a slope down to the right: many kinks, bounded below."""
    rng = numpy_stream(seed, "zigzag")
    widths = rng.uniform(0.05, 0.5, size=12)
    widths[0::2] *= 1.5  # falls are longer than rises
    breaks = tuple(Fraction(b) for b in np.cumsum(widths))
    slope = Fraction(L)
    return PiecewiseLinear((Fraction(0), *breaks), (-slope, *[-slope, slope] * 6, slope))


def run_ingd(f: PiecewiseLinear, start: float, c: NonsmoothTarget, seed: int, **settings) -> INGD:
    """INGD to its certificate, or until more calls than the theorem allows are spent."""
    x = torch.tensor([start], dtype=torch.float64, requires_grad=True)
    optimizer = INGD([x], lr=c.delta, epsilon=c.epsilon, lipschitz=c.L, seed=seed, **settings)

    def closure():
        at = x.detach().numpy()
        x.grad = torch.from_numpy(f.gradients(at))
        return torch.from_numpy(f.values(at))[0]

    while (
        not optimizer.result().certified
        and optimizer.result().oracle_calls <= ingd_calls_printed(c)
    ):
        optimizer.step(closure)
    optimizer.found = float(x.detach())
    return optimizer


@pytest.mark.parametrize("L", [0.5, 2.0])
@pytest.mark.parametrize(("share", "delta"), [(0.9, 0.3), (0.4, 0.1), (0.7, 0.02)])
def test_ingd_certifies_within_the_calls_of_theorem_5_4_1(L, share, delta):
    over_printed = over_proved = runs = 0
    for seed in range(20):
        f = zigzag(seed, L)
        start = -0.5
        Delta = float(f.value(start) - f.infimum)
        c = NonsmoothTarget(L, Delta, delta, share * L, gamma=0.1)
        optimizer = run_ingd(f, start, c, seed)
        result = optimizer.result()
        assert result.certified
        assert f.distance(optimizer.found, delta) <= c.epsilon  # exactly (δ, ε)-stationary
        gradients = (
            result.oracle_calls + 1
        ) // 2 + 1  # about half of the calls are values for the descent test
        over_printed += result.oracle_calls > ingd_calls_printed(c)
        over_proved += gradients > ingd_gradient_calls(c)
        runs += 1
    assert over_printed <= 0.1 * runs
    assert over_proved <= 0.1 * runs


def test_too_few_inner_steps_break_theorem_5_4_1():
    """With K = 1 instead of 48L²/ε² the direction is never averaged: no certificate within the
    calls.
    """
    f = zigzag(3, 1.0)
    start = -0.5
    c = NonsmoothTarget(1.0, float(f.value(start) - f.infimum), 0.5, 0.9)
    assert run_ingd(f, start, c, 0).result().certified
    assert not run_ingd(f, start, c, 0, inner=1).result().certified


def _inner_weight(norm, L):
    """β = (4L² - ‖m‖²)/(4L² + 2‖m‖²), the weight of the old direction (Alg. 2, l. 15)."""
    return (4 * L**2 - norm**2) / (4 * L**2 + 2 * norm**2)


def _three_terms(c, rule):
    """4qΔ/T, 2βG²/(T(1-β)) and 2(1-β)G²/β: the right side of (5.14)."""
    G2, keep = c.G**2, rule.beta
    return (
        4 * rule.q * c.Delta / rule.T,
        2 * keep * G2 / (rule.T * (1 - keep)),
        2 * (1 - keep) * G2 / keep,
    )


def test_optimizer_and_theory_have_the_same_inner_steps_and_weight():
    from mindgap.rules.steps import descent_weight

    c = NonsmoothTarget(1.7, 1.0, 0.1, 0.33)
    optimizer = INGD(
        [torch.zeros(1, requires_grad=True)], lr=c.delta, epsilon=c.epsilon, lipschitz=c.L
    )
    assert optimizer.param_groups[0]["inner"] == ingd_inner_steps(c)
    for norm in np.linspace(0, c.L, 50):
        assert descent_weight(float(norm), c.L) == pytest.approx(
            _inner_weight(float(norm), c.L), rel=1e-14
        )


def _inner_loop(value, gradient, x, delta, L, epsilon, K, rng):
    """‖m_k‖² for k = 1, ..., K over many runs at once (Alg. 2, l. 4-15), zero after the loop
    ends.
    """
    m = gradient(x)
    alive = np.ones(len(x), dtype=bool)
    squares = []
    for _ in range(K):
        norm = np.linalg.norm(m, axis=1)
        squares.append(np.where(alive, norm**2, 0.0))
        step = delta * m / np.maximum(norm, 1e-300)[:, None]
        alive &= (norm > epsilon) & (value(x - step) - value(x) >= -delta * norm / 4)
        beta = _inner_weight(norm, L)[:, None]
        m = beta * m + (1 - beta) * gradient(x - rng.uniform(size=(len(x), 1)) * step)
    return np.array(squares)


@pytest.mark.parametrize("dimension", [1, 2, 5])
@pytest.mark.parametrize("offset", [0.0, 0.2, 0.45])
def test_inner_direction_shrinks_as_in_lemma_5_7_2(dimension, offset):
    """f = Σ|x_i| scaled to Lipschitz constant L, searched from a point ``offset`` δ away from
    the kinks.
    """
    L, delta, runs, K = 1.5, 0.7, 4000, 200
    rng = numpy_stream(0, "inner loop")
    scale = L / math.sqrt(dimension)
    x = offset * delta * rng.choice([-1.0, 1.0], size=(runs, dimension)) + 1e-12
    squares = _inner_loop(
        lambda z: scale * np.abs(z).sum(1), lambda z: scale * np.sign(z), x, delta, L, 0.0, K, rng
    )
    mean, error = squares.mean(axis=1), squares.std(axis=1) / math.sqrt(runs)
    bound = np.array([direction_square_bound(k, L) for k in range(1, K + 1)])
    assert (mean <= bound + 4 * error).all()
    assert mean[0] > bound[0] / 2  # tight at k = 1: half the bound is exceeded


def test_h_star_of_lemma_5_7_2_is_a_bound_not_an_equality():
    """The least of h(β) is m²(L² - m²/16)/(L² + m²/2); the proof prints L²m²/(L² + m²/2) with
    an equals sign.
    """
    L, m = 1.0, 0.8

    def h(beta):
        return beta**2 * (m**2 / 2 + L**2) - 2 * beta * (L**2 - m**2 / 4) + L**2

    least = h(_inner_weight(m, L))
    assert least == pytest.approx(min(h(b) for b in np.linspace(-1, 1, 20_001)), abs=1e-8)
    assert least == pytest.approx(m**2 * (L**2 - m**2 / 16) / (L**2 + m**2 / 2), rel=1e-12)
    assert least < L**2 * m**2 / (L**2 + m**2 / 2) - 0.01


def test_printed_number_of_calls_can_be_negative():
    c = NonsmoothTarget(L=1.0, Delta=0.01, delta=1.0, epsilon=0.9, gamma=0.5)
    assert ingd_calls_printed(c) < 0 < ingd_gradient_calls(c)
    assert ingd_outer_steps(c) == 1


def _smooth_inner_steps(delta, curvature, epsilon, away=20.0, searches=200):
    """Inner steps of every search of INGD on curvature·‖x‖²/2, from ‖∇f‖ = away·ε until its
    certificate.
    """
    x = (
        away * epsilon / curvature * torch.tensor([0.6, 0.0, -0.8], dtype=torch.float64)
    ).requires_grad_()
    optimizer = INGD([x], lr=delta, epsilon=epsilon, lipschitz=2 * away * epsilon, inner=10)
    counts = []

    def closure():
        optimizer.zero_grad()
        loss = curvature * x.square().sum() / 2
        loss.backward()
        return loss

    for _ in range(searches):
        optimizer.step(closure)
        counts.append(optimizer.result().inner_steps)
        if optimizer.result().certified:
            break
    return counts


@pytest.mark.parametrize("curvature", [0.5, 4.0])
@pytest.mark.parametrize("epsilon", [0.05, 0.5])
def test_one_inner_step_on_smooth_functions(curvature, epsilon):
    """Remark 5.4.1 with the condition that it omits: δ < 3ε/(2L)."""
    delta = 0.999 * one_inner_step_radius(curvature, epsilon)
    counts = _smooth_inner_steps(delta, curvature, epsilon)
    assert len(counts) > 3
    assert set(counts) == {1}
    assert (
        max(_smooth_inner_steps(stationarity_radius(curvature, epsilon)[0], curvature, epsilon))
        == 1
    )
    assert (
        max(_smooth_inner_steps(3 * delta, curvature, epsilon, away=1.5, searches=1)) > 1
    )  # "always" is not so


@pytest.mark.parametrize("L", [0.3, 1.0, 20.0])
@pytest.mark.parametrize("epsilon", [0.01, 0.6])
def test_goldstein_stationarity_of_smooth_functions(L, epsilon):
    """Proposition 5.3.1, 2. at 10,000 random points of Lx²/2 and of L·sin x: the set is an
    interval of derivatives.
    """
    delta, accuracy = stationarity_radius(L, epsilon)
    rng = numpy_stream(0, "proposition")
    x = np.concatenate([rng.uniform(-1, 1, 5000) * 3 * epsilon / L, rng.uniform(-4, 4, 5000)])
    grid = x[:, None] + delta * np.linspace(-1, 1, 101)
    for derivative in (lambda t: L * t, lambda t: L * np.cos(t)):
        slopes = derivative(grid)
        distance = np.maximum(np.maximum(slopes.min(1), -slopes.max(1)), 0.0)
        norm = np.abs(derivative(x))
        stationary = distance <= accuracy
        assert norm[stationary].max(initial=0.0) <= (accuracy + L * delta) * (1 + 1e-6) <= epsilon
        assert (distance <= norm + 1e-12).all()  # part 1: ε-stationary implies (δ, ε)-stationary
    quadratic = np.abs(L * x)[np.maximum(np.abs(L * x) - L * delta, 0) <= accuracy]
    assert quadratic.max() > 0.95 * 2 * epsilon / 3  # 2ε/3 is tight: half of it is exceeded
    assert accuracy + L * delta == pytest.approx(2 * epsilon / 3)


def _network(generator):
    """A ReLU network of two variables with its weights: piecewise linear, neither convex nor
    concave.
    """
    first = torch.randn(8, 2, generator=generator, dtype=torch.float64)
    bias = torch.randn(8, generator=generator, dtype=torch.float64)
    last = torch.randn(8, generator=generator, dtype=torch.float64)
    return lambda z: torch.relu(z @ first.T + bias).sub(0.3).abs() @ last


def test_lemma_5_2_2_differences_are_path_integrals():
    g = torch_stream(0, "path")
    f = _network(g)
    for _ in range(20):
        x, y = torch.randn(2, 2, generator=g, dtype=torch.float64) * 3
        assert float(path_integral(f, x, y)) == pytest.approx(float(f(y) - f(x)), abs=0.05)
        fine = abs(float(path_integral(f, x, y, nodes=2**16)) - float(f(y) - f(x)))
        assert fine < 0.005


def test_lemmas_5_2_1_and_5_2_3_directional_derivatives_at_kinks():
    """At the kink of f = max_i ⟨a_i, x⟩ - max_j ⟨b_j, x⟩: f'(0; d) by composition, and a
    gradient near 0 attains it.
    """
    g = torch_stream(0, "kink")
    a, b = torch.randn(2, 6, 3, generator=g, dtype=torch.float64)
    d = torch.randn(10_000, 3, generator=g, dtype=torch.float64)

    def f(z):
        return (z @ a.T).amax(-1) - (z @ b.T).amax(-1)

    zero = torch.zeros_like(d)
    slope = directional_derivative(f, zero, d)
    chain = (d @ a.T).amax(-1) - (d @ b.T).amax(-1)  # the maximum's derivative at 0 is itself
    torch.testing.assert_close(slope, chain, rtol=1e-7, atol=1e-7)
    near = (1e-6 * d).requires_grad_()
    (gradient,) = torch.autograd.grad(
        f(near).sum(), near
    )  # a limit of gradients, so an element of ∂f(0)
    torch.testing.assert_close((gradient * d).sum(1), slope, rtol=1e-7, atol=1e-7)


def test_proposition_5_2_1_generalized_gradients_of_a_maximum_of_linear_functions():
    """f = max_i ⟨a_i, x⟩, whose ∂f(x) is the hull of the active a_i: points 1, 2, 4 and 6, at
    kinks and elsewhere.
    """
    g = torch_stream(0, "generalized gradients")
    a = torch.randn(5, 3, generator=g, dtype=torch.float64)
    lipschitz = a.norm(dim=1).max()

    def active(x):
        values = a @ x
        return a[values >= values.max() - 1e-9]

    line = torch.linspace(0, 1, 10_001, dtype=torch.float64)[:, None]
    y, z = (
        a[0],
        a[1],
    )  # at a_i the product with a_i itself is large: another function is the largest at each end
    top = ((line * y + (1 - line) * z) @ a.T).argmax(1)
    place = int((top[1:] != top[:-1]).nonzero()[0])
    tie = a[top[place]] - a[top[place + 1]]
    kink = z + (tie @ z) / (tie @ (z - y)) * (y - z)
    places = (
        torch.zeros(3, dtype=torch.float64),
        kink,
        torch.randn(3, generator=g, dtype=torch.float64),
    )
    assert [len(active(x)) for x in places] == [5, 2, 1]
    for x in places:
        hull = active(x)
        weights = torch.rand(50, len(hull), generator=g, dtype=torch.float64)
        inside = weights / weights.sum(1, keepdim=True) @ hull
        assert (inside.norm(dim=1) <= lipschitz).all()  # 1
        d = torch.randn(200, 3, generator=g, dtype=torch.float64)
        slope = directional_derivative(lambda z: (z @ a.T).amax(-1), x.expand_as(d), d)
        torch.testing.assert_close(
            slope, (d @ hull.T).amax(1), rtol=1e-6, atol=1e-6
        )  # 2: f is convex, so f° = f'
        near = (x + 1e-6 * d).requires_grad_()
        (limits,) = torch.autograd.grad((near @ a.T).amax(-1).sum(), near)
        assert all((limit - hull).norm(dim=1).min() < 1e-9 for limit in limits)  # 4
    for _ in range(
        20
    ):  # 6: f(y) - f(z) = ⟨g, y - z⟩ with g of a point between, found by bisection of the slope
        y, z = torch.randn(2, 3, generator=g, dtype=torch.float64)
        rise, line = (
            float((a @ y).max() - (a @ z).max()),
            torch.linspace(0, 1, 100_001, dtype=torch.float64)[:, None],
        )
        slopes = (a @ (y - z))[((line * y + (1 - line) * z) @ a.T).argmax(1)]
        assert slopes.min() - 1e-9 <= rise <= slopes.max() + 1e-9


def test_lemma_5_3_2_goldstein_sets_shrink_to_the_generalized_gradient():
    f = zigzag(0, 1.0)
    for x in [float(f.breaks[3]), float(f.breaks[3] + f.breaks[4]) / 2, -1.0]:
        sets = [f.goldstein(Fraction(x), Fraction(1, 2**k)) for k in range(40)]
        for wide, narrow in pairwise(sets):
            assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]
        assert sets[-1] == f.subdifferential(x)


@pytest.mark.parametrize("L", [0.5, 3.0])
@pytest.mark.parametrize("sigma", [0.0, 2.0])
@pytest.mark.parametrize(("Delta", "delta"), [(1.0, 0.1), (0.05, 2.0)])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.99])
def test_stochastic_rule_keeps_every_inequality_of_its_proof(L, sigma, Delta, delta, share):
    c = StochasticTarget(L, sigma, Delta, delta, share * L)
    rule, printed = stochastic_rule(c), printed_rule(c)
    G, e = c.G, c.epsilon
    assert rule.beta == printed["beta"]
    assert rule.K / rule.p <= delta * (1 + 1e-12)  # K steps stay in the ball
    assert rule.beta**rule.K <= e / (16 * G)
    assert rule.p * G / rule.q <= rule.beta / 2
    assert sum(_three_terms(c, rule)) <= e**2 / 17
    # 4G m²/(m + 4G) <= ε²/17 gives m <= ε/4
    m = np.linspace(e / 4, G, 1000)[1:]
    assert (4 * G * m**2 / (m + 4 * G) > e**2 / 17 * (1 - 1e-12)).all()
    for name, value in (("p", rule.p), ("q", rule.q), ("K", rule.K), ("T", rule.T)):
        assert value == pytest.approx(printed[name], rel=0.02)
        assert value >= printed[name] * (1 - 1e-12)


def test_output_rule():
    rule = stochastic_rule(StochasticTarget(1.0, 0.0, 1.0, 1.0, 0.5))
    assert [rule.output_index(i) for i in (1, rule.K, rule.K + 1, rule.K + 2, rule.T)] == [
        1,
        1,
        1,
        2,
        rule.T - rule.K,
    ]
    with pytest.raises(RuleError, match="drawn must lie between 1 and T"):
        rule.output_index(rule.T + 1)


def test_jensen_in_5_16_is_printed_the_wrong_way_round():
    """E[m²] where E[m]² belongs: for m = 0 or a with equal chances the printed inequality fails."""
    G, a = 1.0, 0.5
    right = 4 * G * (a**2 / 2) / (a + 4 * G)
    printed = 4 * G * (a**2 / 2) / (a / 2 + 4 * G)
    meant = 4 * G * (a / 2) ** 2 / (a / 2 + 4 * G)
    assert printed > right >= meant


def test_step_length_bound_before_theorem_5_5_1_lost_a_square():
    """E‖x_{t+1} - x_t‖² <= G²/q is printed; 1/q² belongs there, and for q < 1 the printed one
    fails.
    """
    c = StochasticTarget(1.0, 0.0, 1.0, 1e5, 0.9)
    rule = stochastic_rule(c)
    step = c.G / (rule.p * c.G + rule.q)
    assert rule.q < 1
    assert c.G**2 / rule.q < step**2 <= c.G**2 / rule.q**2


def test_conditional_mean_direction_is_within_an_eighth_not_a_sixteenth():
    """5.5: d(E[m_t | x_{t-K}], ∂f(x_{t-K} + δB)) <= ε/16; β^K weighs the distance of two
    vectors of norm up to G.
    """
    c = StochasticTarget(1.0, 0.0, 1.0, 1.0, 0.5)
    weight = c.epsilon / (16 * c.G)
    old, new = np.array([c.L, 0.0]), np.array([-c.L, 0.0])  # m_{t-K} and an element of the set
    distance = np.linalg.norm((1 - weight) * new + weight * old - new)
    assert c.epsilon / 16 < distance <= c.epsilon / 8 + 1e-15


def _many_runs(rule, L, sigma, start, steps, runs, seed=0):
    """Algorithm 3 on L|x| with noise ±σ, many runs at once; the mean of ‖m_t‖ over runs and
    steps.
    """
    rng = numpy_stream(seed, "stochastic")
    x = np.full(runs, start)
    m = L * np.sign(x) + sigma * rng.choice([-1.0, 1.0], size=runs)
    total = 0.0
    for _ in range(steps):
        total += np.abs(m).mean()
        step = m / (rule.p * np.abs(m) + rule.q)
        y = x - rng.uniform(size=runs) * step
        x = x - step
        m = rule.beta * m + (1 - rule.beta) * (
            L * np.sign(y) + sigma * (2.0 * rng.integers(0, 2, size=runs) - 1)
        )
    return total / steps


@pytest.mark.parametrize(
    ("L", "sigma", "share", "Delta", "delta"),
    [
        (1.0, 0.1, 0.98, 0.12, 1.0),
        (1.0, 0.0, 0.98, 0.13, 1.0),
        (20.0, 6.0, 0.98, 0.5, 0.2),
        (0.01, 0.0, 0.95, 1e-3, 1.0),
    ],
)
def test_mean_direction_of_theorem_5_5_1(L, sigma, share, Delta, delta):
    c = StochasticTarget(L, sigma, Delta, delta, share * L)
    rule = stochastic_rule(c)
    assert _many_runs(rule, c.L, c.sigma, c.Delta / c.L, rule.T, runs=20) <= mean_direction_bound(c)


@pytest.mark.parametrize(
    ("L", "share", "Delta", "delta"), [(1.0, 0.9, 0.5, 0.5), (3.0, 0.8, 1.0, 0.2)]
)
def test_remark_on_q_zero_keeps_the_deterministic_rate(L, share, Delta, delta):
    c = NonsmoothTarget(L, Delta, delta, share * L)
    rule = deterministic_rule(c)
    assert rule.q == 0
    # On L|x|, exact gradients: the direction falls below ε/4 before T, in every run.
    rng, runs = numpy_stream(0, "q = 0"), 20
    x = np.full(runs, c.Delta / L)
    m, least = L * np.sign(x), np.full(runs, np.inf)
    for _ in range(rule.T):
        least = np.minimum(least, np.abs(m))
        if (least < c.epsilon / 4).all():
            break
        step = m / (rule.p * np.maximum(np.abs(m), 1e-300))
        y, x = x - rng.uniform(size=runs) * step, x - step
        m = rule.beta * m + (1 - rule.beta) * L * np.sign(y)
    assert (least < c.epsilon / 4).all()
    # T is of order 1/(ε³δ) up to the logarithm: halving ε costs 8 times, halving δ twice.
    half = deterministic_rule(NonsmoothTarget(L, 100.0, delta, c.epsilon / 2))
    full = deterministic_rule(NonsmoothTarget(L, 100.0, delta, c.epsilon))
    logs = math.log(32 * L / c.epsilon) / math.log(16 * L / c.epsilon)
    assert pytest.approx(8 * logs, rel=0.02) == half.T / full.T
    thin = deterministic_rule(NonsmoothTarget(L, 100.0, delta / 2, c.epsilon))
    assert pytest.approx(2, rel=1e-3) == thin.T / full.T


def test_remark_on_smooth_functions_gives_the_fifth_power():
    asked = [StochasticTarget(1.0, 0.5, 1.0, 1.0, e) for e in (1e-2, 1e-4)]
    T = [printed_rule(smooth_target(c, smoothness=2.0))["T"] for c in asked]
    logs = math.log(48 * asked[1].G / 1e-4) / math.log(48 * asked[0].G / 1e-2)
    assert T[1] / T[0] == pytest.approx(1e10 * logs, rel=1e-3)
    # At the same accuracy SGD's ε⁻⁴ is smaller by a factor that grows like 1/ε: no adaptation.
    assert (T[1] / T[0]) / 1e8 > 99


def test_a_shorter_memory_breaks_theorem_5_5_1():
    c = StochasticTarget(L=1.0, sigma=0.1, Delta=0.12, delta=1.0, epsilon=0.98)
    rule = stochastic_rule(c)
    hasty = type(rule)(1 - 64 * (1 - rule.beta) / 3, rule.p, rule.q, rule.K, rule.T)
    assert _many_runs(
        hasty, c.L, c.sigma, c.Delta / c.L, rule.T // 4, runs=20
    ) > mean_direction_bound(c)


def test_optimizer_follows_the_stochastic_rule():
    """x, m of the optimizer against Alg. 3 with the optimizer's own draws, re-read at every
    step.
    """
    from mindgap.rules.schedule import unit_draw

    c = StochasticTarget(L=1.0, sigma=0.0, Delta=0.5, delta=0.5, epsilon=0.9)
    rule = stochastic_rule(c)
    x = torch.tensor([0.03], dtype=torch.float64, requires_grad=True)
    optimizer = StochasticINGD([x], beta=rule.beta, p=rule.p, q=rule.q, clip=None, seed=5)
    at, query, m = 0.03, 0.03, None
    for k in range(300):
        x.grad = torch.sign(x.detach())
        gradient = math.copysign(1.0, query)
        assert float(x.detach()) == pytest.approx(query, abs=1e-13)
        optimizer.step()
        m = gradient if m is None else rule.beta * m + (1 - rule.beta) * gradient
        step = m / (rule.p * abs(m) + rule.q)
        query, at = at - unit_draw(5, k + 1) * step, at - step
    optimizer.eval()
    assert float(x.detach()) == pytest.approx(at, abs=1e-12)
    optimizer.train()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NonsmoothTarget(-1.0, 1.0, 0.1, 0.5), "L must be positive and finite, got -1.0"),
        (lambda: NonsmoothTarget(1.0, 0.0, 0.1, 0.5), "Delta must be positive and finite, got 0.0"),
        (lambda: NonsmoothTarget(1.0, 1.0, 0.0, 0.5), "delta must be positive and finite, got 0.0"),
        (lambda: NonsmoothTarget(1.0, 1.0, 0.1, 1.5), "epsilon must be below L = 1, got 1.5"),
        (
            lambda: NonsmoothTarget(1.0, 1.0, 0.1, 0.5, gamma=0.0),
            r"gamma must lie in \(0, 1\), got 0.0",
        ),
        (
            lambda: StochasticTarget(1.0, -0.1, 1.0, 0.1, 0.5),
            "sigma must be zero or positive, and finite, got -0.1",
        ),
        (
            lambda: StochasticTarget(1.0, 0.1, -1.0, 0.1, 0.5),
            "Delta must be positive and finite, got -1.0",
        ),
        (lambda: StochasticTarget(1.0, 0.1, 1.0, 0.1, 1.0), "epsilon must be below L = 1, got 1.0"),
        (lambda: stationarity_radius(0.0, 0.1), "L must be positive and finite, got 0.0"),
    ],
)
def test_bad_constants_of_chapter_5(make, message):
    with pytest.raises(RuleError, match=message):
        make()
