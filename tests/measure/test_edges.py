"""What the instruments do exactly at a limit, and what they take where nothing is said."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from mindgap.base.check import RuleError
from mindgap.base.objective import Objective
from mindgap.measure.gradients import gradient_passes
from mindgap.measure.monitor import Reading
from mindgap.measure.probes import noise, tails, variance
from mindgap.measure.probes.curvature import (
    SharpnessProbe,
    describe_sharpness,
    sharpness,
    sharpness_in,
)
from mindgap.measure.probes.ergodic import one_step_change, oscillation, window_average
from mindgap.measure.probes.noise import CHUNK, chunks, noise_sample
from mindgap.measure.probes.smoothness import smoothness_along_ray
from mindgap.measure.probes.statistics import equilibrium, training_statistics
from mindgap.measure.probes.tails import infinite_variance, tail_index
from mindgap.measure.probes.variance import variance_growth


class Point(nn.Module):
    def __init__(self, start: torch.Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(start.clone())


def quadratic(size: int = 8) -> Objective:
    values = torch.linspace(1.0, 3.0, size, dtype=torch.float64)
    start = torch.linspace(-1.0, 1.0, size, dtype=torch.float64)
    return Objective(Point(start), lambda m, b: 0.5 * (values * m.x.square()).sum() * b)


ONE = [torch.tensor(1.0, dtype=torch.float64)]


def test_gradients_that_just_fit_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters, batches = [torch.zeros(5, dtype=torch.float64)], [0, 0, 0]
    monkeypatch.setattr(noise, "KEPT", 3 * 5 * 8)
    assert noise._can_keep_gradients(parameters, batches)
    monkeypatch.setattr(noise, "KEPT", 3 * 5 * 8 - 1)
    assert not noise._can_keep_gradients(parameters, batches)


@pytest.mark.parametrize(("size", "every"), [(2**16, True), (2**16 + 1, False)])
def test_a_sketch_of_up_to_65536_parameters_picks_no_coordinate_twice(
    size: int, every: bool
) -> None:
    sketch = noise.Sketch([torch.zeros(size)], 0, size, seed=0)
    assert (len(sketch.layer) == size) == every


def test_a_sharpness_probe_costs_less_once_it_has_a_start() -> None:
    probe = SharpnessProbe()
    assert probe.cost(3) == 3 * (2 + 2 * 10)
    with Reading(quadratic(), ONE) as at:
        probe.read(at)
    assert probe.cost(3) == 3 * (2 + 2 * 4)


def test_the_search_for_the_sharpness_starts_from_seed_0_where_none_is_named() -> None:
    def value(**seed: int) -> float:
        with gradient_passes(quadratic(), ONE) as passes:
            options = {"tol": 1e-6, "max_products": 1, "start": None, "optimizer": None}
            return sharpness_in(passes, **options, **seed).value

    assert value() == value(seed=0) != value(seed=1)


def test_a_ray_goes_on_where_the_gradient_has_grown_exactly_as_far_as_allowed() -> None:
    # Slope 1 before x = 0.01 and 2 behind it: the norm is exactly twice its start from there on.
    kink = Objective(
        Point(torch.zeros(1, dtype=torch.float64)),
        lambda m, b: (m.x + torch.relu(m.x - 0.01)).sum() * b,
    )
    assert len(smoothness_along_ray(kink, ONE, points=25, growth=2.0).losses) == 25
    assert len(smoothness_along_ray(kink, ONE, points=25, growth=1.99).losses) == 10


def test_one_batch_is_refused_before_any_loss_is_computed() -> None:
    asked = []

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        asked.append(batch)
        return model(batch).square().mean()

    with pytest.raises(RuleError, match="batches must give at least two batches of one size"):
        training_statistics(Objective(nn.Linear(2, 1), loss), [torch.ones(4, 2)])
    assert not asked


def test_one_order_is_enough_for_the_growth_of_the_variance() -> None:
    norms = np.abs(np.random.default_rng(0).standard_normal(256))
    assert variance_growth(norms, shuffles=1, bootstrap=20).settles
    with pytest.raises(RuleError, match="shuffles must be"):
        variance_growth(norms, shuffles=0, bootstrap=20)
    for level in (0.0, 1.0, 1.5):
        with pytest.raises(RuleError, match="level must lie in"):
            variance_growth(norms, level=level)


def test_the_growth_of_the_variance_begins_at_8_and_is_open_between_its_borders(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    norms = np.abs(np.random.default_rng(0).standard_t(3, 512))
    found = variance_growth(norms, bootstrap=20)
    assert found.sizes[0] == 8
    low, high = found.interval
    monkeypatch.setattr(variance, "SETTLES", low)
    monkeypatch.setattr(variance, "GROWS", (low + high) / 2)
    assert variance_growth(norms, bootstrap=20).settles is None
    monkeypatch.setattr(variance, "GROWS", low - 1e-6)
    assert variance_growth(norms, bootstrap=20).settles is False


# Sharpness.


def test_sharpness_starts_from_seed_0_where_none_is_named_and_takes_one_product() -> None:
    def value(**seed: int) -> float:
        return sharpness(quadratic(), ONE, tol=1e-6, max_products=1, **seed).value

    assert value() == value(seed=0) != value(seed=1)
    assert SharpnessProbe(max_products=1).max_products == 1
    with pytest.raises(RuleError, match="max_products must be"):
        SharpnessProbe(max_products=0)


def test_a_negative_eigenvalue_of_larger_magnitude_is_named() -> None:
    values = torch.tensor([3.0, 1.0, -5.0], dtype=torch.float64)
    saddle = Objective(
        Point(torch.ones(3, dtype=torch.float64)), lambda m, b: (values * m.x**2).sum() / 2 * b
    )
    text = describe_sharpness(sharpness(saddle, ONE, both=True, tol=1e-8))
    assert "the largest magnitude 5 belongs to a negative eigenvalue" in text
    assert "negative" not in describe_sharpness(sharpness(quadratic(), ONE, both=True, tol=1e-8))


def test_the_preconditioned_sharpness_counts_the_weight_decay() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Parameter(torch.ones(2, dtype=torch.float64))
            self.b = nn.Parameter(torch.ones(2, dtype=torch.float64))

    pair = Pair()
    curved = Objective(pair, lambda m, b: (1.5 * m.a.square() + m.b.square()).sum() * b)
    for decay in (0.0, 0.5):
        groups = [{"params": [pair.a], "lr": 0.1}, {"params": [pair.b], "lr": 0.4}]
        optimizer = torch.optim.SGD(groups, weight_decay=decay)
        found = sharpness(curved, ONE, optimizer=optimizer, tol=1e-10).stability
        assert found is not None
        assert found.value == pytest.approx(max(0.1 * (3 + decay), 0.4 * (2 + decay)))


# Smoothness.


@pytest.mark.parametrize(("border", "rows", "first"), [(0.15, 1, 0.115), (0.3, 2, 0.1)])
def test_a_ray_that_ends_early_has_its_noise_floor(border: float, rows: int, first: float) -> None:
    # A slope of 1 up to the border and no number behind it; the steps are 0.1, 0.115, ...
    wall = Objective(
        Point(torch.zeros(1, dtype=torch.float64)),
        lambda m, b: (m.x + 0.0 * torch.log(border - m.x)).sum() * b,
    )
    found = smoothness_along_ray(wall, ONE, points=20)
    assert len(found.losses) == rows
    assert np.finfo(np.float64).eps / found.noise_floor == pytest.approx(first, rel=1e-6)


# Noise.


def test_small_tensors_are_joined_up_to_a_whole_chunk() -> None:
    pieces = [torch.ones(CHUNK - 1), torch.ones(1), torch.ones(1)]
    assert [len(piece) for piece in chunks(pieces)] == [CHUNK, 1]


def test_a_mean_gradient_of_zero_has_an_interval() -> None:
    slope = Objective(Point(torch.zeros(1)), lambda m, b: m.x.sum() * b.mean())
    sample = noise_sample(slope, [torch.tensor([sign]) for sign in (1.0, -1.0, 2.0, -2.0)])
    assert sample.mean_norm == 0
    low, high = sample.squared_mean_interval()
    assert low < sample.squared_mean < high


def test_a_sketch_has_at_most_2_to_the_20_numbers() -> None:
    with pytest.raises(RuleError, match="projections must be"):
        noise_sample(quadratic(), ONE * 3, projections=2**20 + 1)


# Statistics.


def test_intervals_of_the_statistics_are_those_of_their_laws() -> None:
    torch.manual_seed(0)
    net = nn.Linear(3, 1).double()
    batches = [torch.randn(8, 3, dtype=torch.float64) for _ in range(6)]
    problem = Objective(net, lambda m, b: m(b).square().mean())
    found = training_statistics(problem, batches, level=0.8)
    losses = [float(net(b).square().mean().detach()) for b in batches]
    reach = stats.t.ppf(0.9, 5) * np.std(losses, ddof=1) / math.sqrt(6)
    assert found.loss_interval == pytest.approx((found.loss - reach, found.loss + reach))
    low, high = found.noise_interval
    assert low > 0
    assert high**2 - found.noise**2 == pytest.approx(found.noise**2 - low**2)
    assert equilibrium(found, lr=0.1, batch_size=1).left == found.gradient_norm_unbiased**2
    with pytest.raises(RuleError, match="batch_size must be"):
        equilibrium(found, lr=0.1, batch_size=0)


# Series.


def test_windows_slide_over_several_series_at_once() -> None:
    rows = np.arange(12.0).reshape(2, 6)
    assert window_average(rows, 3).tolist() == [window_average(row, 3).tolist() for row in rows]
    assert window_average(rows[None], 3).shape == (1, 2, 4)


def test_sixteen_stretches_cover_the_run() -> None:
    draw = np.random.default_rng(0).standard_normal((2, 256))
    assert one_step_change(draw[0], draw[1]).lengths.tolist() == [1, 2, 4, 8, 16]


def test_a_peak_as_high_as_its_neighbours_stays_where_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    high = 1e100  # the logarithms of this number and of the one below it are the same
    heights = np.full(33, 1.0)
    heights[4:7] = np.nextafter(high, 0), high, high
    monkeypatch.setattr(np.fft, "rfft", lambda _: heights)
    assert oscillation(np.sin(np.arange(64.0))).period == 64 / 5


# Tails.


def test_resamples_come_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []

    def gamma(x: np.ndarray, *_: object) -> np.ndarray:
        sizes.append(x.size)
        return np.zeros(x.shape[:-1])

    monkeypatch.setattr(tails.estimators, "block_sum_gamma", gamma)
    rows = np.ones((2**19, 1))
    _, again, _ = tails._by_blocks(rows, True, 6, np.random.default_rng(0))
    assert len(again) == 6
    assert max(sizes) == 2**21


def test_long_samples_are_compared_with_60_gaussian_ones() -> None:
    assert len(tails._null("stable", 20_000, True, 61)) == 61
    assert len(tails._null("stable", 20_001, True, 61)) == 60


def test_groups_that_are_no_list_are_refused() -> None:
    with pytest.raises(RuleError, match="groups must give one label for each of 1 columns"):
        tail_index(np.arange(1.0, 41.0), groups="a")


def test_a_tail_of_index_5_is_not_called_light() -> None:
    """γ = 0.19: above 0.15, where the sample does not look light either."""
    found = infinite_variance(np.random.default_rng(6).pareto(5.0, 600) + 1)
    assert 0.15 < 1 / found.index < 0.22
    assert found.interval[0] > 2
    assert found.infinite is None
