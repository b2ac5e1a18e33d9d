"""Time averages on series of known period, known drift and known rate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mindgap.base.check import RuleError
from mindgap.measure.probes.ergodic import (
    drift,
    one_step_change,
    oscillation,
    running_average,
    window_average,
)


@pytest.mark.parametrize("period", [3, 7, 12, 40])
def test_averages_over_a_known_period_are_exact(period):
    k = np.arange(10 * period)
    x = 2.0 + np.cos(2 * np.pi * k / period)
    np.testing.assert_allclose(window_average(x, period), 2.0, atol=1e-12)
    average = running_average(x)
    np.testing.assert_allclose(average[period - 1 :: period], 2.0, atol=1e-12)
    # between full periods the average is off by at most the partial sum of one period over n
    assert np.abs(average[-period:] - 2.0).max() <= period / (9 * period)


def test_a_window_that_is_no_period_never_settles():
    k = np.arange(400)
    windows = window_average(np.cos(2 * np.pi * k / 10), 5)
    assert windows.max() > 0.6
    assert windows.min() < -0.6
    assert np.abs(windows[-10:]).max() > 0.6


@pytest.mark.parametrize(
    ("period", "length"), [(12, 600), (7.3, 512), (2.5, 400), (50, 1000), (33.3, 777)]
)
def test_the_strongest_cycle_has_the_known_period(period, length):
    x = 5 + np.sin(2 * np.pi * np.arange(length) / period + 0.3)
    found = oscillation(x)
    assert found.period == pytest.approx(period, rel=2e-3)
    assert found.share > 0.99
    assert found.oscillation == pytest.approx(math.sqrt(0.5), rel=0.05)
    assert found.ratio < 0.5


def test_trend_against_oscillation():
    t = np.arange(1000.0)
    line = oscillation(0.5 * t)
    assert line.trend == pytest.approx(0.5 * 999)
    assert line.oscillation == 0.0
    assert line.path_ratio == 1.0
    both = oscillation(0.01 * t + np.sin(2 * np.pi * t / 10))
    assert both.trend == pytest.approx(10.0, rel=0.01)
    assert both.period == pytest.approx(10, rel=1e-3)
    assert both.ratio == pytest.approx(10 * math.sqrt(2), rel=0.02)
    assert both.path_ratio < 0.05
    assert oscillation(np.ones(100)).ratio == 0.0


def test_one_step_change_of_a_uniform_map_falls_like_one_over_root_n():
    """The tight case after Theorem 6.4.1: F(θ) uniform on [-1, 1] for every θ, φ the identity;
    c = 1/√3.
    """
    phi = np.random.default_rng(0).uniform(-1, 1, 20_000)
    found = one_step_change(phi, np.zeros(20_000))
    assert found.interval[0] <= -0.5 <= found.interval[1]
    assert found.exponent == pytest.approx(-0.5, abs=0.03)
    assert found.coefficient == pytest.approx(1 / math.sqrt(3), rel=0.05)
    assert found.change[-1] == pytest.approx(abs(phi.mean()))


def test_the_interval_of_the_exponent_covers_its_truth():
    rng = np.random.default_rng(1)
    inside = [
        (lambda e: e.interval[0] <= -0.5 <= e.interval[1])(
            one_step_change(rng.standard_normal(2000), np.zeros(2000))
        )
        for _ in range(300)
    ]
    assert 0.85 <= np.mean(inside) <= 0.95


def test_one_step_change_monitored_telescopes():
    """Without fresh draws the sum is φ(θ_0) - φ(θ_n): at most 2M/n, and zero over whole periods."""
    x = np.cos(2 * np.pi * np.arange(4097) / 32)
    found = one_step_change(x)
    np.testing.assert_array_less(found.change * found.sizes, 2.0 + 1e-9)
    whole = np.isin(found.sizes, [32, 4096])
    assert np.abs(found.change[whole]).max() < 1e-12
    noisy = np.random.default_rng(2).uniform(-1, 1, 4097)
    assert one_step_change(noisy).exponent == pytest.approx(-1.0, abs=0.05)
    assert one_step_change(np.arange(4097.0)).exponent == pytest.approx(0.0, abs=1e-9)
    assert one_step_change(np.ones(100)).exponent == -math.inf


def test_drift_is_seen_through_correlation_and_not_invented():
    """An AR(1) series of memory 20 without drift: the plain standard error would call most of
    them drifting.
    """
    rng = np.random.default_rng(3)
    called, naive = 0, 0
    for _ in range(200):
        e = rng.standard_normal(3000)
        x = np.empty(3000)
        x[0] = e[0] / math.sqrt(1 - 0.95**2)
        for i in range(1, 3000):
            x[i] = 0.95 * x[i - 1] + e[i]
        found = drift(x)
        called += found.drifts
        naive += abs(found.change) > 1.645 * math.sqrt(2 * x.var() / 1500)
    assert 0.04 <= called / 200 <= 0.2  # 10 % in expectation
    assert naive / 200 > 0.5
    moved = drift(np.concatenate([rng.standard_normal(500), 0.5 + rng.standard_normal(500)]))
    assert moved.drifts
    assert moved.interval[0] <= 0.5 <= moved.interval[1]


@pytest.mark.parametrize("period", [2, 5, 16])
def test_a_cycle_does_not_drift(period):
    x = np.tile(np.sin(2 * np.pi * np.arange(period) / period + 0.4), 60)
    assert not drift(x).drifts


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: drift(np.ones(3)),
            r"values must be a series of at least 64 values, got 'shape \(3,\)'",
        ),
        (
            lambda: oscillation(np.full(80, np.nan)),
            "values must be finite, got '80 values that are not'",
        ),
        (
            lambda: one_step_change(np.ones(80), np.ones(70)),
            "following must have one value for each of 80 steps, got 70",
        ),
        (
            lambda: window_average(np.ones(5), 6),
            "window must be at most the series' length 5, got 6",
        ),
        (lambda: drift(np.ones(80), share=0.6), r"share must lie in \(0, 0.5\], got 0.6"),
    ],
)
def test_bad_series_get_one_clear_error(call, message):
    with pytest.raises(RuleError, match=message):
        call()
