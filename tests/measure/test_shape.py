"""The distance between two shapes: a closed form, the level of its null, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from mindgap.base.check import RuleError
from mindgap.measure.probes.shape import shape_distance


def test_exponential_and_uniform_are_a_quarter_apart():
    """Over their medians F(r) = 1 - 2^-r and G(r) = r/2 up to 2: furthest apart at 2, by 1/4.
    Quantiles in place of random numbers: what is left is the grid."""
    u = (np.arange(20_000) + 0.5) / 20_000
    found = shape_distance(-np.log1p(-u), 3 * u, permutations=20)
    assert found.distance == pytest.approx(0.25, abs=1e-4)
    assert found.p_value == pytest.approx(1 / 21)


def test_one_and_a_half_times_the_spread_is_a_tenth():
    u = (np.arange(20_000) + 0.5) / 20_000
    z = stats.norm.ppf(u)
    x = np.sqrt(2 * np.log(1.5) / (1 - 1.5**-2))  # where the two densities are equal
    exact = stats.norm.cdf(x) - stats.norm.cdf(x / 1.5)
    assert shape_distance(1 + 0.05 * z, 1 + 0.075 * z, permutations=20).distance == pytest.approx(
        exact, abs=1e-3
    )
    assert 0.09 < exact < 0.1


def test_the_distance_is_that_of_scipy_and_knows_no_scale():
    rng = np.random.default_rng(5)
    a, b = rng.gamma(3.0, size=200), rng.gamma(2.0, size=300)
    found = shape_distance(a, b, permutations=20)
    assert found.distance == pytest.approx(
        stats.ks_2samp(a / np.median(a), b / np.median(b)).statistic, abs=1e-12
    )
    assert shape_distance(1e3 * a, b, permutations=20).distance == pytest.approx(
        found.distance, abs=1e-12
    )


def heavy(rng):
    """Norms of vectors of Student numbers with an infinite variance."""
    return lambda size: np.linalg.norm(rng.standard_t(1.5, (size, 20)), axis=1)


@pytest.mark.parametrize("law", ["exponential", "heavy"])
def test_samples_of_one_shape_are_rarely_told_apart(law):
    """Of 100 pairs at a level of 5 %: more than 12 come with probability 0.1 %."""
    rng = np.random.default_rng(17)
    draw = rng.exponential if law == "exponential" else heavy(rng)
    p_values = [
        shape_distance(draw(size=60), 9 * draw(size=60), permutations=59).p_value
        for _ in range(100)
    ]
    assert sum(p <= 0.05 for p in p_values) <= 12
    assert 0.4 < float(np.mean(p_values)) < 0.66


@pytest.mark.parametrize(
    ("one", "message"),
    [
        ([1.0] * 29, r"one must hold at least 30 norms, got 29"),
        ([1.0] * 30 + [np.inf], r"one must be finite with a positive median"),
        ([0.0] * 31, r"one must be finite with a positive median"),
    ],
)
def test_bad_samples_get_one_clear_error(one, message):
    with pytest.raises(RuleError, match=message):
        shape_distance(np.array(one), np.arange(1.0, 40.0))


def test_the_sentence():
    rng = np.random.default_rng(3)
    found = shape_distance(rng.exponential(size=100), rng.uniform(size=100), permutations=99)
    assert found.answer.startswith(f"shapes {found.distance:.3f} apart; of one shape")
    assert found.null[0] < found.null[1] < found.null[2] < found.distance
