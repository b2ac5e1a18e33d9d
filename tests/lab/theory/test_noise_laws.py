"""Noise laws: exact moments against quadrature and trustworthy sample means, and the sampler's
law.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from mindgap.base.rng import numpy_stream
from mindgap.lab.theory import (
    BernoulliQuadratic,
    Bounded,
    Gaussian,
    Stable,
    Student,
    SymmetricPareto,
    TwoPoint,
)

LAWS = {
    "gaussian": Gaussian(scale=1.7),
    "student 1.5": Student(df=1.5, scale=0.6),
    "student 4": Student(df=4.0, scale=2.0),
    "pareto 1.2": SymmetricPareto(index=1.2, scale=0.5),
    "pareto 2.5": SymmetricPareto(index=2.5),
    "stable 1.4": Stable(index=1.4, scale=0.8),
    "stable 2": Stable(index=2.0, scale=0.8),
    "two points": TwoPoint(probability=0.05, scale=3.0),
    "hard": BernoulliQuadratic(alpha=1.6, epsilon=0.1, nu=1).noise,
    "bounded": Bounded(scale=1.3),
}


@pytest.mark.parametrize("name", [n for n in LAWS if not n.startswith("stable")])
@pytest.mark.parametrize("p", [0.5, 1.0, 1.1])
def test_moments_equal_quadrature(name: str, p: float) -> None:
    law = LAWS[name]
    # A kink |x|^p at 0 costs Gauss's rule accuracy, a tail with index 0.1 above p as well.
    tolerance = 1e-4 if name == "pareto 1.2" and p == 1.1 else 1e-6 if p == 0.5 else 1e-8
    assert law.expect(lambda x: np.abs(x) ** p) == pytest.approx(law.moment(p), rel=tolerance)
    if not isinstance(law, TwoPoint):
        assert law.expect(lambda x: x / (1 + x * x)) == pytest.approx(0.0, abs=1e-9)  # symmetric
    assert law.expect(lambda x: np.ones_like(x)) == pytest.approx(1.0, rel=1e-9)


@pytest.mark.parametrize("name", LAWS)
def test_samples_have_the_moments_where_a_mean_can_be_trusted(name: str) -> None:
    law = LAWS[name]
    # p below half the tail index: |ξ|^p has a finite variance.
    p = min(1.0, 0.45 * law.tail_index)
    x = np.abs(law.sample(numpy_stream(0, "laws", name), 200_000)) ** p
    assert abs(x.mean() - law.moment(p)) < 4 * x.std() / math.sqrt(x.size)


@pytest.mark.parametrize(
    ("name", "cdf"),
    [
        ("gaussian", stats.norm(scale=1.7).cdf),
        ("student 1.5", stats.t(df=1.5, scale=0.6).cdf),
        ("bounded", stats.uniform(-1.3, 2.6).cdf),
        ("stable 2", stats.norm(scale=0.8 * math.sqrt(2)).cdf),
    ],
)
def test_samples_follow_the_law(name: str, cdf) -> None:
    x = LAWS[name].sample(numpy_stream(1, "laws", name), 20_000)
    assert stats.kstest(x, cdf).pvalue > 1e-3


def test_pareto_samples_follow_the_law_on_both_sides() -> None:
    x = LAWS["pareto 1.2"].sample(numpy_stream(2, "pareto"), 20_000)
    assert stats.kstest(np.abs(x), stats.pareto(b=1.2, scale=0.5).cdf).pvalue > 1e-3
    assert abs((x > 0).mean() - 0.5) < 4 * 0.5 / math.sqrt(x.size)


@pytest.mark.parametrize("index", [1.2, 1.6, 1.9])
def test_stable_samples_have_the_characteristic_function(index: float) -> None:
    x = Stable(index=index, scale=0.7).sample(numpy_stream(3, "stable", str(index)), 100_000)
    for t in (0.3, 1.0, 2.5):
        c = np.cos(t * x)
        assert abs(c.mean() - math.exp(-((0.7 * t) ** index))) < 4 * c.std() / math.sqrt(x.size)
        s = np.sin(t * x)
        assert abs(s.mean()) < 4 * s.std() / math.sqrt(x.size)


@pytest.mark.parametrize("name", ["student 1.5", "pareto 1.2", "stable 1.4"])
def test_tails_have_their_index(name: str) -> None:
    # Quantiles, not means: P(|ξ| > x) ~ x^-a between the 99 % and the 99.9 % quantile, n = 4e5.
    law = LAWS[name]
    x = np.abs(law.sample(numpy_stream(4, "tails", name), 400_000))
    low, high = np.quantile(x, [0.99, 0.999])
    assert math.log(10) / math.log(high / low) == pytest.approx(law.tail_index, rel=0.12)
    assert law.moment(law.tail_index) == math.inf
    assert law.moment(0.99 * law.tail_index) < math.inf


def test_two_point_law_is_the_noise_of_the_hard_problem() -> None:
    for alpha in (1.1, 1.5, 2.0):
        for nu in (0, 1):
            law = BernoulliQuadratic(alpha, 0.1, nu).noise
            assert law.expect(lambda x: x) == pytest.approx(0.0, abs=1e-12)
            for p in (1.0, alpha, 2.0):
                assert law.expect(lambda x, p=p: np.abs(x) ** p) == pytest.approx(
                    law.moment(p), rel=1e-12
                )


def test_scales_differ_by_coordinate() -> None:
    law = Student(df=3.0, scale=[1.0, 2.0, 4.0])
    np.testing.assert_allclose(
        law.moment(1.0), Student(df=3.0).moment(1.0) * np.array([1.0, 2.0, 4.0]), rtol=1e-12
    )
    x = law.sample(numpy_stream(5, "scales"), (20_000, 3))
    medians = np.median(np.abs(x), axis=0)
    np.testing.assert_allclose(medians / medians[0], [1.0, 2.0, 4.0], rtol=0.06)
    assert Bounded(scale=[3.0, 4.0]).radius() == 5.0


def test_bad_laws_give_one_clear_error() -> None:
    with pytest.raises(ValueError, match=r"index must lie in \(1, 2\], got 2.5"):
        Stable(index=2.5)
    with pytest.raises(ValueError, match=r"epsilon must lie in \(0, 0\.125\], got 0\.2"):
        BernoulliQuadratic(1.5, 0.2, 0)
    with pytest.raises(ValueError, match="scale must be positive and finite"):
        Gaussian(scale=[1.0, -1.0])
    with pytest.raises(ValueError, match="shape must end with the number of scales, 2"):
        Gaussian(scale=[1.0, 2.0]).sample(numpy_stream(0), 3)
    with pytest.raises(ValueError, match="must have a closed density"):
        Stable(index=1.5).expect(np.abs)
