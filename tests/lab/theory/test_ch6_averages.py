"""Theorem 6.4.1, Lemma 6.4.2, Theorems 6.4.3 and 6.4.4: time averages along a trajectory."""

from __future__ import annotations

import numpy as np
import pytest

from mindgap.base.check import RuleError
from mindgap.base.rng import numpy_stream
from mindgap.lab.theory import (
    BoundedValues,
    Sawtooth,
    SteepSawtooth,
    block_average,
    halving_map,
    limit_weights,
    one_step_change,
    one_step_change_bound,
)

RUNS = 2000  # 20 seeds of 100 runs each
DELTA = 0.05


def _uniform_map(M: float, n: int) -> np.ndarray:
    """F(θ) is ±M with equal chances whatever θ: the map that the thesis names for tightness;
    φ(θ) = θ.
    """
    values = np.concatenate(
        [numpy_stream(seed, "uniform map").choice([-M, M], size=(100, n)) for seed in range(20)]
    )
    return one_step_change(values, np.zeros_like(values))


def _sgd_on_cosine(M: float, n: int) -> np.ndarray:
    """θ -> θ - η(sin θ + ξ) with ξ = ±1: φ = M cos θ is bounded, the iterates are not."""
    rng = numpy_stream(0, "sgd on a cosine")
    theta, eta = rng.uniform(-3, 3, size=RUNS), 0.5
    values, following = [], []
    theta = theta - eta * (np.sin(theta) + rng.choice([-1.0, 1.0], size=RUNS))
    for _ in range(n):
        values.append(M * np.cos(theta))
        following.append(
            M * sum(np.cos(theta - eta * (np.sin(theta) + xi)) for xi in (-1.0, 1.0)) / 2
        )
        theta = theta - eta * (np.sin(theta) + rng.choice([-1.0, 1.0], size=RUNS))
    return one_step_change(np.stack(values, axis=1), np.stack(following, axis=1))


@pytest.mark.parametrize("M", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("chain", [_uniform_map, _sgd_on_cosine])
def test_one_step_change_stays_under_the_bound(chain, M):
    change = chain(M, 1000)
    for n in (1, 10, 100, 1000):
        bound = one_step_change_bound(BoundedValues(M, DELTA), n)
        assert np.mean(change[:, n - 1] > bound) <= DELTA


def test_half_of_the_one_step_bound_is_exceeded():
    change = _uniform_map(1.0, 1000)
    exceeded = np.mean(change[:, -1] > one_step_change_bound(BoundedValues(1.0, DELTA), 1000) / 2)
    assert exceeded > 2 * DELTA


def test_one_step_change_falls_like_one_over_root_n():
    change = _uniform_map(1.0, 4096)
    sizes = 2 ** np.arange(2, 13)
    rms = np.sqrt((change[:, sizes - 1] ** 2).mean(axis=0))
    slope = np.polyfit(np.log(sizes), np.log(rms), 1)[0]
    assert slope == pytest.approx(-0.5, abs=0.02)
    np.testing.assert_allclose(rms, sizes**-0.5, rtol=0.07)  # the sum's variance is exactly n M²


def test_telescoping_starts_at_the_image_of_the_first_point():
    """6.7.1 prints φ(θ_0) where φ(F(θ_0)) belongs: with θ_0 outside the image the printed
    identity is off by φ(θ_0).
    """
    phi, step = (lambda t: t), (lambda t: 0.5 if t > 1 else 1.0 - t)  # maps everything into [0, 1]
    theta = [1000.0]
    for _ in range(51):
        theta.append(step(theta[-1]))
    n = 50
    left = sum(phi(theta[t]) - phi(step(theta[t])) for t in range(1, n + 1)) / n
    noise = sum(phi(theta[t]) - phi(step(theta[t - 1])) for t in range(1, n + 1)) / n
    right = (phi(step(theta[0])) - phi(step(theta[n]))) / n + noise
    printed = (phi(theta[0]) - phi(step(theta[n]))) / n + noise
    assert left == pytest.approx(right, abs=1e-14)
    assert abs(printed - left) > 10 * one_step_change_bound(BoundedValues(1.0, DELTA), n)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"M": 0.0, "delta": 0.1}, "M must be positive and finite, got 0.0"),
        ({"M": 1.0, "delta": 1.0}, r"delta must lie in \(0, 1\), got 1.0"),
    ],
)
def test_bad_constants_of_6_4_1(arguments, message):
    with pytest.raises(RuleError, match=message):
        BoundedValues(**arguments)


@pytest.mark.parametrize("kind", [Sawtooth, SteepSawtooth])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 50])
def test_orbit_has_period_n_plus_one(kind, n):
    f = kind(n)
    theta = f.start
    for k in range(1, 10 * (n + 1) + 1):
        theta = f.step(theta)
        assert theta == pytest.approx(f.point(k), abs=1e-12)
    inside = [f.point(k) for k in range(1, n + 2)]
    assert len({round(t, 9) for t in inside}) == n + 1  # no shorter period
    assert f.point(n + 1) == pytest.approx(f.start, abs=1e-15)
    # -1 + (k - 0.8)/(n+1), as printed, is where the orbit was one step before
    assert abs(-1 + (3 - 0.8) / (n + 1) - f.point(3)) > 0.9 / (n + 1)


@pytest.mark.parametrize("kind", [Sawtooth, SteepSawtooth])
@pytest.mark.parametrize("n", [1, 5, 20])
def test_sawtooth_is_lipschitz_with_the_stated_gradient(kind, n):
    f = kind(n)
    rng = numpy_stream(0, "sawtooth")
    a, b = rng.uniform(-1.5, 1.0, size=(2, 10_000))
    values = np.array([[f.value(x) for x in row] for row in (a, b)])
    assert (np.abs(values[0] - values[1]) <= np.abs(a - b) * (1 + 1e-12)).all()
    slopes = np.array([(f.value(x + 1e-7) - f.value(x - 1e-7)) / 2e-7 for x in a])
    exact = np.array([f.gradient(x) for x in a])
    assert (
        np.mean(np.abs(slopes - exact) > 1e-6) < 1e-3
    )  # only where a kink lies inside the difference quotient
    left = np.array([f.gradient(x) for x in np.linspace(-n / (n + 1), 1 / (n + 1), 1000)])
    assert left.max() <= 1
    assert left.min() >= -1


def test_sawtooth_gradient_agrees_with_autograd():
    import torch

    x = torch.from_numpy(
        numpy_stream(0, "sawtooth").uniform(-1.5, 1.0, size=1_000)
    ).requires_grad_()
    for n in (1, 6):
        f = Sawtooth(n)
        (gradient,) = torch.autograd.grad(sum(f.value(theta) for theta in x.unbind()), x)
        np.testing.assert_allclose(
            gradient.numpy(), [f.gradient(theta) for theta in x.detach().tolist()], rtol=1e-14
        )


@pytest.mark.parametrize("n", [2, 3, 5, 20, 100])
def test_window_averages_never_settle(n):
    f, steep = Sawtooth(n), SteepSawtooth(n)
    for g in (f, steep):
        averages = [g.window_average(t) for t in range(1, 3 * (n + 1))]
        assert max(abs(np.diff(averages))) == pytest.approx(g.jump, rel=1e-9)
    assert f.jump == pytest.approx((0.8 * n - 0.2) / (n * (n + 1) ** 2), rel=1e-9)
    assert f.jump < min(1 / n**2, 1 / (2 * n))  # the printed 1/(2n) is not reached
    assert steep.jump >= 1 / (2 * n)


def test_values_of_a_period_need_not_be_distinct():
    f = Sawtooth(4)
    assert f.value(f.point(4)) == pytest.approx(f.value(f.point(0)), abs=1e-16)


def test_sawtooth_maps_its_interval_into_itself():
    for n in (1, 4, 30):
        f = Sawtooth(n)
        for theta in np.linspace(-n / (n + 1), 1 / (n + 1), 2001):
            assert -n / (n + 1) - 1e-15 <= f.step(theta) <= 1 / (n + 1) + 1e-15


def test_window_must_be_a_whole_number():
    with pytest.raises(RuleError, match="n must be a whole number of at least 1, got 0"):
        Sawtooth(0)


def block_symbol(k):
    """The k-th symbol: 1 on the blocks [2^j - 1, 2^(j+1) - 1) with odd j, else 0."""
    return ((k + 1).bit_length() - 1) % 2


def block_point(k, digits=40):
    """θ_k in Cantor's set: Σ_i 2 s_{k+i} 3^-(i+1) over the symbols from the k-th on."""
    return sum(2 * block_symbol(k + i) * 3.0 ** -(i + 1) for i in range(digits))


def test_block_averages_have_no_limit():
    symbols = np.array([block_symbol(k) for k in range(2**14)])
    averages = symbols.cumsum() / np.arange(1, len(symbols) + 1)
    for n in (1, 2, 3, 7, 100, 5000, 2**14):
        assert float(block_average(n)) == pytest.approx(averages[n - 1], abs=1e-15)
    ends = [float(block_average(2**j - 1)) for j in range(10, 40)]
    np.testing.assert_allclose(ends[0::2], 2 / 3, atol=1e-3)
    np.testing.assert_allclose(ends[1::2], 1 / 3, atol=1e-3)


def test_block_points_follow_a_continuous_map():
    """θ -> 3θ mod 1 on Cantor's set: 3-Lipschitz on each third, and the thirds are 1/3 apart."""
    for k in range(60):
        theta = block_point(k)
        assert (3 * theta) % 1 == pytest.approx(block_point(k + 1), abs=1e-9)
        assert theta <= 1 / 3 + 1e-12 if block_symbol(k) == 0 else theta >= 2 / 3 - 1e-12


def test_limit_along_blocks_is_invariant_but_not_ergodic():
    """Both fixed points carry mass: each is an invariant set of measure strictly between 0 and
    1.
    """
    n = 2**13 - 1
    points = np.array([block_point(k) for k in range(n)])
    weights = limit_weights(block_symbol(n - 1))
    near = [np.mean(np.abs(points - p) < 1e-3) for p in (0.0, 1.0)]
    np.testing.assert_allclose(near, [float(w) for w in weights], atol=0.02)
    assert all(0 < w < 1 for w in weights)

    def shift(theta):
        return (3 * theta) % 1 if theta < 1 else 1.0

    # Σ w_i φ(θ_i) = Σ w_i φ(F(θ_i)), here with φ = θ²
    assert sum(float(w) * (p**2 - shift(p) ** 2) for p, w in zip((0.0, 1.0), weights)) == 0


def test_without_continuity_no_measure_is_invariant():
    """[0, 1] -> [0, 1] with F(0) = 1: μ_n tends to the point mass at 0, which moves to 1."""
    theta, points = 1.0, []
    for _ in range(2000):
        points.append(theta)
        theta = halving_map(theta) if theta > 1e-300 else theta
    assert np.mean(np.array(points) < 1e-3) > 0.99
    assert halving_map(0.0) == 1.0  # the point mass at 0 is not invariant
    # An invariant μ would have μ({0}) = P(F(θ) = 0) = 0 and E θ = E F(θ) = E θ/2 + μ({0}), so E θ =
    # 0: then μ({0}) = 1.
    assert all(halving_map(t) > 0 for t in np.linspace(0, 1, 10_001))
