"""The hard instances of chapter 3: stated properties at 10,000 random points, gradients against
autograd in float64.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from references.printed import printed_gradient

from mindgap.base.rng import numpy_stream
from mindgap.lab.theory import (
    DeepLinear,
    ExponentialQuadratic,
    HyperbolicCosine,
    Polynomial,
    RelaxedSmooth,
    SlowFunction,
    ToothedSlope,
    fixed_step_count,
    gradient_growth_bound,
    growth_bound,
    polynomial_l0,
)

POINTS = 10_000

FUNCTIONS = {
    "exponential": (ExponentialQuadratic(L1=2.5), 4.0),
    "slow": (SlowFunction(epsilon=0.2), 3.0),
    "cosh": (HyperbolicCosine(L0=0.3, L1=4.0), 2.0),
    "cosh in 3 dimensions": (HyperbolicCosine(L0=0.3, L1=4.0, dimension=3), 2.0),
    "sawtooth": (ToothedSlope(slope=0.1, step=0.4, L=1.5, teeth=50), 2.0),
    "quartic": (Polynomial((1.0, -2.0, 0.5, -1.0, 0.25)), 5.0),
    "network": (DeepLinear(np.arange(6.0).reshape(2, 3) - 2, np.ones((1, 3)), hidden=(3, 2)), 1.5),
}


def _points(name: str) -> tuple:
    f, width = FUNCTIONS[name]
    rng = numpy_stream(0, "chapter3", name)
    shape = (POINTS,) if f.dimension == 1 else (POINTS, f.dimension)
    return f, rng.uniform(-width, width, shape)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_formula_equals_autograd(name: str) -> None:
    f, x = _points(name)
    t = torch.tensor(x, requires_grad=True)
    value = f.value(t)
    (expected,) = torch.autograd.grad(value.sum(), t)
    np.testing.assert_allclose(f.value(x), value.detach().numpy(), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(f.gradient(x), expected.numpy(), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(
        f.gradient(t.detach()).numpy(), expected.numpy(), rtol=1e-9, atol=1e-9
    )


@pytest.mark.parametrize("name", ["exponential", "slow", "cosh", "quartic"])
def test_curvature_is_the_derivative_of_the_gradient(name: str) -> None:
    f, x = _points(name)
    t = torch.tensor(x, requires_grad=True)
    (expected,) = torch.autograd.grad(f.gradient(t).sum(), t)
    np.testing.assert_allclose(f.curvature(x), expected.numpy(), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "L0", "L1"),
    [
        ("exponential", 2.5, 2.5),
        ("slow", 0.6, 1.0),
        ("cosh", 0.3, 4.0),
        ("cosh in 3 dimensions", 0.3, 4.0),
    ],
)
def test_relaxed_smoothness_holds_and_its_l0_is_needed(name: str, L0: float, L1: float) -> None:
    f, x = _points(name)
    slack = L0 + L1 * f.gradient_norm(x) - f.curvature(x)
    assert slack.min() > -1e-9 * f.curvature(x).max()
    # A tenth less of L0 is refuted by a point near the minimum.
    near = x * 1e-3
    assert (0.9 * L0 + L1 * f.gradient_norm(near) - f.curvature(near)).min() < 0


def test_exponential_function_is_not_smooth_with_l0_one_as_printed() -> None:
    f = ExponentialQuadratic(L1=5.0)
    assert f.curvature(0.0 * np.ones(1)) > 1 + 5.0 * f.gradient_norm(
        0.0 * np.ones(1)
    )  # L0 = 1 of (3.10)
    assert f.curvature(0.0 * np.ones(1)) == 5.0 + 5.0 * f.gradient_norm(0.0 * np.ones(1))  # L0 = L1


@pytest.mark.parametrize("M", [2.0, 10.0, 1e4])
def test_exponential_function_starts_with_gradient_m_and_is_twice_differentiable(M: float) -> None:
    f = ExponentialQuadratic(L1=3.0)
    x0 = f.start(M)
    assert f.gradient(x0) == pytest.approx(M, rel=1e-12)
    assert f.value(x0) - f.value(0.0) == pytest.approx(f.constants(M).delta, rel=1e-12)
    edge = np.array([1 / 3 - 1e-9, 1 / 3 + 1e-9])
    for part in (f.value, f.gradient, f.curvature):
        left, right = part(edge)
        assert left == pytest.approx(right, rel=1e-7)


@pytest.mark.parametrize("f", [ExponentialQuadratic(L1=2.0), HyperbolicCosine(L0=0.5, L1=2.0)])
@pytest.mark.parametrize("M", [3.0, 30.0, 300.0])
def test_the_longest_step_is_a_sharp_threshold(
    f: ExponentialQuadratic | HyperbolicCosine, M: float
) -> None:
    x0, h = f.start(M), f.longest_step(M)
    short, long = x0, x0
    with np.errstate(over="ignore"):
        for _ in range(200):
            short = short - 0.99 * h * float(f.gradient(short))
            long = long - 1.01 * h * float(f.gradient(np.float64(long)))
            if not math.isfinite(long) or abs(long) > 100:
                break
    assert abs(short) < x0
    assert not abs(long) <= 10 * x0
    # A step twice too long leaves the sublevel set at once.
    assert abs(x0 - 2 * h * float(f.gradient(x0))) > x0


def test_slow_function_starts_where_it_should() -> None:
    f = SlowFunction(epsilon=0.1)
    for delta in (0.125, 1.0, 7.0):
        assert f.value(f.start(delta)) == pytest.approx(delta, rel=1e-12)
    edge = np.array([1 - 1e-9, 1 + 1e-9])
    for part in (f.value, f.gradient, f.curvature):
        left, right = part(edge)
        assert left == pytest.approx(right, abs=1e-8)


def test_sawtooth_is_smooth_and_visited_at_its_teeth() -> None:
    f = ToothedSlope(slope=0.1, step=0.4, L=1.5, teeth=50)
    _, x = _points("sawtooth")
    y = x + numpy_stream(1, "sawtooth").uniform(-0.1, 0.1, POINTS)
    ratio = np.abs(f.gradient(x) - f.gradient(y)) / np.abs(x - y)
    assert ratio.max() <= 1.5 * (1 + 1e-6)
    point, seen = f.start, []
    for _ in range(50):
        seen.append(float(f.gradient(point)))
        point -= 0.4 * seen[-1]
    assert min(seen) >= 0.1 * (1 - 1e-9)
    assert abs(point) < 1e-9
    assert f.value(f.start) - f.value(-0.1 / 1.5) == pytest.approx(f.delta, rel=1e-12)


@pytest.mark.parametrize("name", ["exponential", "cosh"])
def test_lemma_3_7_1_bounds_the_growth_and_three_quarters_of_it_do_not(name: str) -> None:
    f, x = _points(name)
    L0, L1 = (2.5, 2.5) if name == "exponential" else (0.3, 4.0)
    a = RelaxedSmooth(L0=L0, L1=L1, delta=1.0)
    radius = min(1 / L1, 1.0)
    y = x + radius * numpy_stream(2, name).choice([-1.0, 1.0], POINTS)
    bound = gradient_growth_bound(a, f.gradient_norm(x))
    assert (f.gradient_norm(y) <= bound).all()
    # Grönwall's e is the true constant for large gradients: 4 is not tight, but e/4 - 0.05 of it is
    # refuted.
    assert (f.gradient_norm(y) > (math.e / 4 - 0.05) * bound).any()


def test_polynomials_are_relaxed_smooth_and_not_smooth() -> None:
    rng = numpy_stream(0, "polynomials")
    for degree in (3, 4, 5, 7):
        for _ in range(5):
            f = Polynomial(tuple(rng.normal(size=degree + 1)))
            for L1 in (0.1, 1.0, 10.0):
                L0 = polynomial_l0(f, L1)
                x = np.concatenate(
                    [rng.normal(size=POINTS // 2) * 3, rng.standard_cauchy(POINTS // 2) * 10]
                )
                slack = L0 + L1 * f.gradient_norm(x) - np.abs(f.curvature(x))
                assert (slack >= -1e-9 * (1 + np.abs(f.curvature(x)))).all()
                grid = np.linspace(-60, 60, 200_001)
                best = np.max(np.abs(f.curvature(grid)) - L1 * f.gradient_norm(grid))
                assert pytest.approx(max(best, 0.0), rel=2e-2, abs=2e-2) == L0 or best <= L0
        assert abs(f.curvature(1e9)) > 1e6 * abs(f.curvature(1.0))


def test_a_polynomial_needs_a_leading_coefficient() -> None:
    with pytest.raises(ValueError, match="a_d not zero"):
        Polynomial((0.0, 1.0, 2.0, 0.0))
    with pytest.raises(ValueError, match="degree 3 or more"):
        polynomial_l0(Polynomial((0.0, 0.0, 1.0)), 1.0)


def test_network_gradient_as_printed_is_half_of_the_gradient() -> None:
    net, points = _points("network")
    start = 0
    for layer, (rows, columns) in enumerate(net.shapes, start=1):
        part = net.gradient(points[0])[start : start + rows * columns]
        np.testing.assert_allclose(2 * printed_gradient(net, layer, points[0]), part, rtol=1e-12)
        start += rows * columns


def test_deep_linear_networks_are_not_relaxed_smooth_on_their_valley() -> None:
    net = DeepLinear(np.ones((1, 1)), np.ones((1, 1)), hidden=(1,))
    for t in (1.0, 10.0, 1e3, 1e5):
        w = net.valley(t)
        assert np.abs(net.gradient(w)).max() < 1e-9
        assert net.hessian_norm(w) == pytest.approx(2 * t**2 + 2 / t**2, rel=1e-9)


def test_bad_constants_give_one_clear_error() -> None:
    with pytest.raises(ValueError, match="L1 must be positive and finite, got -1"):
        ExponentialQuadratic(L1=-1)
    with pytest.raises(ValueError, match=r"M must lie in \(1, inf\), got 0.5"):
        ExponentialQuadratic(L1=1.0).start(0.5)
    with pytest.raises(ValueError, match="epsilon must be positive and finite, got 0"):
        SlowFunction(epsilon=0)
    with pytest.raises(ValueError, match="delta must be at least 5"):
        SlowFunction(epsilon=1.0).start(0.5)
    with pytest.raises(ValueError, match="delta must be positive and finite, got -1"):
        RelaxedSmooth(L0=1.0, L1=1.0, delta=-1)
    with pytest.raises(ValueError, match="step must be at most 1/L"):
        ToothedSlope(slope=1.0, step=2.0, L=1.0, teeth=3)


#: f', its inverse for x > 0, f - f* in closed form, and ℓ with |f''| <= ℓ(|f'|).
GROWTHS = {
    "like a root": (
        lambda x: x + x * np.abs(x),
        lambda M: (math.sqrt(1 + 4 * M) - 1) / 2,
        lambda x: x**2 / 2 + abs(x) ** 3 / 3,
        lambda u: 1 + 2 * np.sqrt(u),
    ),
    "linear": (np.sinh, math.asinh, lambda x: math.cosh(x) - 1, lambda u: 1 + u),
    "like a square": (
        np.tan,
        math.atan,
        lambda x: -math.log(math.cos(x)),
        lambda u: 1 + u**2,
    ),
}


@pytest.mark.parametrize("name", GROWTHS)
def test_remark_3_2_1_clipping_wins_for_every_growth_of_the_curvature(name: str) -> None:
    gradient, start, height, growth = GROWTHS[name]
    epsilon, delta, ratios = 0.05, 1.0, []
    slow = SlowFunction(epsilon=epsilon)  # curvature 3ε at most, within ℓ(0) = 1

    def step(u: float) -> float:
        return 1 / (2 * growth(2 * u))

    for M in (10.0, 1000.0, 100_000.0):
        x0 = start(M)
        # As in Theorem 3.4.2: a fixed step longer than 2 x0/M does not come down from x0, because
        # the gradient is odd and grows faster than linearly; a shorter one is slow on the slope.
        fixed = fixed_step_count(delta, epsilon, 2 * x0 / M)
        steep = _count(gradient, x0, step, epsilon)
        gentle = _count(slow.gradient, slow.start(delta), step, epsilon)
        assert steep <= growth_bound(growth, height(x0), epsilon, M)
        assert gentle <= growth_bound(growth, delta, epsilon, 2 * epsilon)
        ratios.append(fixed / max(steep, gentle))
    assert ratios[0] < ratios[1] < ratios[2]
    assert ratios[2] > 10


def _count(gradient, x: float, step, epsilon: float) -> int:
    count = 0
    while abs(g := float(gradient(x))) > epsilon:
        x, count = x - step(abs(g)) * g, count + 1
    return count
