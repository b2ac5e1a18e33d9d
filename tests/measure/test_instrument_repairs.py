"""Small defects of the instruments, each with the case that showed it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from mindgap.advise.candidates import MuonWithAdamW
from mindgap.base.check import RuleError
from mindgap.base.checked import checked_types
from mindgap.base.objective import Objective
from mindgap.base.rng import numpy_stream
from mindgap.measure import tail_estimators
from mindgap.measure.gradients import gradient_passes, passes_mean
from mindgap.measure.probes import curvature
from mindgap.measure.probes.curvature import (
    Edge,
    Sharpness,
    SharpnessProbe,
    Spectrum,
    describe_sharpness,
)
from mindgap.measure.probes.ergodic import oscillation
from mindgap.measure.probes.monitored import TailsProbe
from mindgap.measure.probes.statistics import StatisticsProbe
from mindgap.measure.probes.tails import tail_index
from mindgap.measure.probes.update import UpdateProbe
from mindgap.measure.probes.variance import _exponent, variance_growth
from mindgap.measure.relaxed_smoothness import fit_relaxed_smoothness


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TailsProbe(method="zzz"), "method must be one of"),
        (lambda: TailsProbe(every=0), "every must be a whole number"),
        (lambda: UpdateProbe(every=0.5), "every must be a whole number"),
        (lambda: SharpnessProbe(tol=-1.0), "tol must be positive"),
        (lambda: SharpnessProbe(max_products=0), "max_products must be"),
        (lambda: StatisticsProbe(tol="x"), "tol must be a number"),
        (lambda: MuonWithAdamW(None, 1e-3), "model must be a torch.nn.Module"),
        (lambda: MuonWithAdamW(nn.Linear(2, 2), 1e-3), "model must have a linear layer besides"),
        (lambda: MuonWithAdamW(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), -1), "lr must be"),
    ],
)
def test_bad_settings_are_refused_when_they_are_made(make, words: str) -> None:
    with pytest.raises(RuleError, match=words):
        make()


def test_batches_that_give_no_iterator_are_named() -> None:
    class Odd:
        def __iter__(self):
            return 3

    problem = Objective(nn.Linear(1, 1), lambda m, b: m(b).sum())
    with (
        pytest.raises(RuleError, match="batches must be an iterable of batches"),
        gradient_passes(problem, Odd()) as passes,
    ):
        passes_mean(passes)


def test_a_tuple_of_different_kinds_is_checked_entry_by_entry() -> None:
    @checked_types
    def named(pair: tuple[int, str]) -> str:
        return pair[1] * pair[0]

    assert named((2, "a")) == "aa"
    for bad in (("a", 2), (2, "a", "b"), (2,), 3):
        with pytest.raises(RuleError, match="pair must be a tuple of 2 entries"):
            named(bad)


def test_the_interval_of_the_exponent_has_the_level_that_was_asked_for() -> None:
    norms = np.abs(np.random.default_rng(0).standard_normal(200))
    found = variance_growth(norms, level=0.8, bootstrap=40, shuffles=3, seed=5)
    rng = numpy_stream(5, "variance growth")
    x = np.square(norms / norms.max())
    for _ in range(40):  # the orders of the bands
        rng.permutation(x)
    _exponent(x, 3, rng)
    again = [_exponent(x[rng.integers(0, 200, 200)], 3, rng) for _ in range(40)]
    assert found.interval == pytest.approx(tuple(np.quantile(again, [0.1, 0.9])), rel=1e-9)


def test_mcculloch_s_estimate_is_that_of_the_two_order_statistics() -> None:
    x = np.random.default_rng(1).standard_cauchy(101)
    size = np.sort(np.abs(x - np.median(x)))[::-1]
    expected = tail_estimators.stable_alpha(size[10 - 1], size[50 - 1])
    found = tail_index(x, "stable", bootstrap=20, null=20)
    assert found.index == pytest.approx(float(expected), rel=1e-9)


@pytest.mark.parametrize(("products", "kept"), [(1, 0.1), (2, 0.1), (3, 0.5)])
def test_two_products_may_narrow_the_known_gap_but_not_widen_it(
    monkeypatch: pytest.MonkeyPatch, products: int, kept: float
) -> None:
    vector = torch.ones(4)
    edge, far = Edge(2.0, 0.0, 0.0, vector), Edge(0.0, 0.0, 0.0, vector)
    ends = Spectrum(edge, far, 1.0, products, True, (0.0, 1.0, 2.0))  # a gap of one half
    monkeypatch.setattr(curvature, "lanczos", lambda *a, **k: ends)

    class Hessian:
        size, gradient, lengths = 4, vector, [4]

    before = curvature._Search(ends, 0.1)
    found = curvature._search(None, Hessian(), before, 0.1, 9, False, 0)
    assert found.gap == pytest.approx(kept)


def test_the_path_ratio_is_one_for_a_monotone_and_for_a_constant_series() -> None:
    t = np.arange(100.0)
    assert oscillation(-t).path_ratio == pytest.approx(1.0)
    assert oscillation(np.ones(100)).path_ratio == 1.0
    there_and_half_back = np.concatenate([t, 98 - t[:50]])
    assert oscillation(there_and_half_back).path_ratio == pytest.approx(49 / 149)


def reading(**changes: object) -> Sharpness:
    plain = {
        "value": 5.19,
        "error": 0.004,
        "residual": 0.1,
        "smallest": 0.0,
        "norm": 5.19,
        "products": 100,
        "converged": False,
        "loss": 1.0,
        "gradient_norm": 1.0,
        "batches": 1,
        "retained": 1,
        "graph_bytes": 0,
        "values": (5.19,),
    }
    return Sharpness(**{**plain, **changes})


def test_a_search_that_did_not_converge_claims_a_lower_bound_only() -> None:
    """ "Sharpness 5.19 [5.19, 5.19] (not converged)" contradicted itself."""
    said = describe_sharpness(reading())
    assert said == "sharpness at least 5.19: the search had not converged after 100 products"


def test_sentences_about_thresholds_have_a_subject() -> None:
    edge = curvature.Stability("preconditioned", 38.0, 19.0, 0.5, 0.1)
    said = describe_sharpness(reading(converged=True, stability=edge))
    assert said.endswith(
        "; the preconditioned sharpness is 19, and the optimizer tolerates 38: 50 % of the "
        "threshold"
    )


def test_no_growth_of_smoothness_is_said_only_where_the_slope_s_interval_excludes_it() -> None:
    """ "No growth: rank correlation 0.13 [-0.48, 0.99]" was a verdict of "holds"."""
    rng = np.random.default_rng(0)
    g = np.geomspace(1, 10, 12)
    verdicts = set()
    for spread in (0.0, 0.05, 0.5, 1.0):
        for _ in range(6):
            values = np.exp(spread * rng.standard_normal(12))
            fit = fit_relaxed_smoothness(g, values, repeats=50)
            verdicts.add(fit.grows)
            if fit.grows is False and "no growth" in fit.sentence:
                assert fit.slope_interval[1] < 0.2
                assert "rank" not in fit.sentence
    assert {None, False} <= verdicts
    assert math.isfinite(fit.slope)
