"""What the instruments do exactly at a limit, and what they take where nothing is said."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from mindgap.base.check import RuleError
from mindgap.base.objective import Objective
from mindgap.measure.gradients import gradient_passes
from mindgap.measure.monitor import Reading
from mindgap.measure.probes import noise
from mindgap.measure.probes.curvature import SharpnessProbe, sharpness_in
from mindgap.measure.probes.smoothness import smoothness_along_ray
from mindgap.measure.probes.statistics import training_statistics
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
    assert noise._fits(parameters, batches)
    monkeypatch.setattr(noise, "KEPT", 3 * 5 * 8 - 1)
    assert not noise._fits(parameters, batches)


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
