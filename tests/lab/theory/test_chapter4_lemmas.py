"""Lemmas 2, 4.7.1 to 4.7.5 and Remark 4.4.1: exact sums and quadrature, and the misprints
refuted.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom

from mindgap.base.rng import numpy_stream
from mindgap.lab.theory import (
    CoordinateMoment,
    Gaussian,
    Stable,
    Student,
    SymmetricPareto,
    TwoPoint,
    clip_coordinates,
    clip_global,
    clipped_bias_bound,
    clipped_moments,
    clipped_second_moment_bound,
    direction_bound,
    gclip_coordinate_bound,
    norm_moment_upper,
    small_gradient_bias_bound,
    small_gradient_second_moment_bound,
    stable_iterate_law,
)
from mindgap.lab.theory.chapter4.clipped_gradient import printed_coordinate_second_moment

LAWS = [
    Gaussian(),
    Student(df=2.1),
    SymmetricPareto(index=2.2),
    TwoPoint(0.01, scale=50.0),
    TwoPoint(0.4, scale=2.0),
]
HEAVY = [Student(df=1.55), SymmetricPareto(index=1.6), TwoPoint(1e-4, scale=3000.0)]


def total_moment(law, mean: float, alpha: float) -> float:
    """E|m + ξ|^α by quadrature or an exact sum."""
    return law.expect(lambda x: np.abs(mean + x) ** alpha, (-mean,))


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
@pytest.mark.parametrize("mean", [0.0, 0.7, -3.0])
def test_lemma_4_7_1_on_exact_moments(alpha: float, mean: float) -> None:
    for law in [*LAWS, *(HEAVY if alpha <= 1.5 else [])]:
        G = total_moment(law, mean, alpha) ** (1 / alpha)
        for tau in G * np.geomspace(0.05, 200, 12):
            m = clipped_moments(law, mean, float(tau))
            assert m.second <= clipped_second_moment_bound(alpha, G, tau) * (1 + 1e-6)
            assert (m.mean - mean) ** 2 <= clipped_bias_bound(alpha, G, tau) * (1 + 1e-6)


def test_half_of_both_bounds_of_lemma_4_7_1_is_refuted() -> None:
    # A jump J = τ is let through: E ĝ² = G^α τ^(2-α) exactly. A jump J = τα/(α-1) is the worst for
    # the bias.
    for alpha in (1.05, 1.2, 1.5, 2.0):
        p, tau = 1e-6, 1.0
        second = p * tau**2
        G = (p * tau**alpha) ** (1 / alpha)
        assert second == pytest.approx(clipped_second_moment_bound(alpha, G, tau), rel=1e-12)
        J = tau * alpha / (alpha - 1)
        G = (p * J**alpha) ** (1 / alpha)
        ratio = (p * (J - tau)) ** 2 / clipped_bias_bound(alpha, G, tau)
        assert ratio == pytest.approx(((alpha - 1) / alpha) ** (2 * alpha - 2) / alpha**2, rel=1e-9)
        assert (ratio > 0.5) == (alpha < 1.1)


def test_lemma_2_as_printed_for_the_mean_square_error_is_false() -> None:
    # With τ large nothing is clipped: the mean square error is the variance, the bound goes to 0.
    law, alpha, tau = Gaussian(), 2.0, 50.0
    G = total_moment(law, 1.0, alpha) ** 0.5
    m = clipped_moments(law, 1.0, tau)
    assert m.error == pytest.approx(1.0, rel=1e-9)
    assert m.error > 100 * clipped_bias_bound(alpha, G, tau)
    assert (m.mean - 1.0) ** 2 <= clipped_bias_bound(alpha, G, tau)


def test_lemma_4_7_5_as_printed_is_false_and_lemma_5_of_acclip_holds() -> None:
    law, alpha = SymmetricPareto(index=1.6), 1.5
    B = law.moment(alpha) ** (1 / alpha)
    for tau in B * np.geomspace(2, 100, 6):
        second = clipped_moments(law, 0.0, float(tau)).second
        assert second <= clipped_second_moment_bound(alpha, B, tau)
        assert second > printed_coordinate_second_moment(alpha, B, tau)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
def test_lemma_4_7_2_on_exact_moments(alpha: float) -> None:
    closest = 0.0
    for law in [*LAWS, *(HEAVY if alpha <= 1.5 else [])]:
        sigma = law.moment(alpha) ** (1 / alpha)
        for tau in sigma * np.geomspace(0.1, 100, 10):
            for share in (0.0, 0.2, 0.5):
                mean = share * float(tau)
                m = clipped_moments(law, mean, float(tau))
                bound = small_gradient_second_moment_bound(alpha, sigma, tau, mean)
                assert m.second <= bound * (1 + 1e-9)
                assert (m.mean - mean) ** 2 <= small_gradient_bias_bound(
                    alpha, sigma, tau, mean
                ) * (1 + 1e-9)
                closest = max(closest, m.second / bound)
    assert closest > 0.2  # a fifth of the bound would be refuted
    with pytest.raises(ValueError, match="norm must be at most tau/2"):
        small_gradient_bias_bound(1.5, 1.0, 1.0, 0.6)


def test_lemma_4_7_3_at_random_points() -> None:
    rng = numpy_stream(0, "4.7.3")
    gradient = rng.standard_normal((10_000, 3)) * np.exp(rng.uniform(-3, 3, (10_000, 1)))
    v = gradient + rng.standard_normal((10_000, 3)) * np.exp(rng.uniform(-6, 3, (10_000, 1)))
    left = (v * gradient).sum(1) / np.linalg.norm(v, axis=1)
    assert (left >= direction_bound(v, gradient) - 1e-12).all()
    # The sharp constant is 4/3: a tiny v against the gradient has left side -‖∇f‖ at distance ‖∇f‖.
    distance, norm = np.linalg.norm(v - gradient, axis=1), np.linalg.norm(gradient, axis=1)
    assert (left >= norm / 3 - 4 / 3 * distance - 1e-12).all()
    g, v = np.array([1.0, 0.0]), np.array([-1e-9, 0.0])
    assert np.linalg.norm(g) / 3 - 1.3 * np.linalg.norm(v - g) > -1.0


def rare_jump_norm_moment(alpha: float, dimension: int, probability: float) -> float:
    """E‖g‖^α, exactly, for d independent coordinates that are p^(-1/α) with probability p and 0
    otherwise: a sum over the binomial number of jumps.
    """
    n = np.arange(dimension + 1)
    jumps = binom.pmf(n, dimension, probability)
    return float(np.sum(jumps * n ** (alpha / 2)) / probability)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0])
@pytest.mark.parametrize("d", [1, 10, 100, 1000])
def test_lemma_4_7_4_upper_bound_needs_no_dimension(alpha: float, d: int) -> None:
    a = CoordinateMoment(alpha=alpha, B=(1.0,) * d, mu=1.0)
    lower = d ** (alpha / 2 - 1) * d  # d^(α/2-1) ‖B‖_α^α
    for p in (1e-9, 1e-3, 0.1, 1.0):
        exact = rare_jump_norm_moment(alpha, d, p)
        assert lower * (1 - 1e-9) <= exact <= norm_moment_upper(a) * (1 + 1e-9)
    assert rare_jump_norm_moment(alpha, d, 1e-9) > 0.99 * norm_moment_upper(
        a
    )  # the sharp bound is attained
    assert rare_jump_norm_moment(alpha, d, 1.0) == pytest.approx(lower)  # so is the lower one
    if d > 1:
        assert norm_moment_upper(a, printed=True) > 1.5 * norm_moment_upper(a)
        assert gclip_coordinate_bound(a, 10, printed=True) == pytest.approx(
            d * gclip_coordinate_bound(a, 10)
        )


def test_clipping_of_arrays() -> None:
    rng = numpy_stream(0, "clip")
    g = rng.standard_normal((500, 4)) * 3
    tau = rng.uniform(0.1, 5, 500)
    clipped = clip_global(g, tau)
    norms = np.linalg.norm(g, axis=1)
    np.testing.assert_allclose(np.linalg.norm(clipped, axis=1), np.minimum(norms, tau), rtol=1e-12)
    np.testing.assert_allclose(clipped, g * np.minimum(1, tau / norms)[:, None], rtol=1e-12)
    np.testing.assert_array_equal(clip_global(np.zeros((1, 2)), 1.0), np.zeros((1, 2)))
    np.testing.assert_allclose(np.abs(clip_coordinates(g, 1.0)), np.minimum(np.abs(g), 1.0))


@pytest.mark.parametrize("index", [1.2, 1.6])
def test_sgd_iterates_inherit_the_stable_law_whatever_the_steps(index: float) -> None:
    law = Stable(index=index, scale=0.5)
    for name, steps in {
        "constant": np.full(40, 0.1),
        "decreasing": 1 / np.arange(1.0, 41.0),
    }.items():
        exact = stable_iterate_law(law, steps)
        assert exact.moment(2.0) == math.inf
        assert exact.moment(0.9 * index) < math.inf
        xi = law.sample(numpy_stream(0, "sgd", name), (50_000, 40))
        x = np.zeros(len(xi))
        for eta, noise in zip(steps, xi.T, strict=True):
            x = x - eta * (x + noise)
        for t in (0.5, 2.0):
            c = np.cos(t * x)
            expected = math.exp(-((float(exact.scale) * t) ** index))
            assert abs(c.mean() - expected) < 4 * c.std() / math.sqrt(c.size)
