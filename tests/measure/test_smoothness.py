"""Local smoothness against exact Hessians; the (L0, L1) fit; the least-squares example that
fools the naive scheme.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from references.naive_smoothness import naive_smoothness
from scipy.optimize import linprog
from torch import nn

from mindgap.base.check import RuleError
from mindgap.base.objective import Objective
from mindgap.measure.gradients import NonFiniteError
from mindgap.measure.probe import Reading
from mindgap.measure.probes.smoothness import SmoothnessProbe, local_smoothness
from mindgap.measure.relaxed_smoothness import _envelope, _envelopes, fit_relaxed_smoothness


class Point(nn.Module):
    def __init__(self, start: torch.Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(start.clone())


def test_quadratic_is_exact_in_every_direction() -> None:
    a = torch.randn(5, 5, dtype=torch.float64)
    h = a @ a.T
    objective = Objective(
        Point(torch.randn(5, dtype=torch.float64)), lambda m, b: 0.5 * m.x @ h @ m.x * b
    )
    for _ in range(5):
        d = torch.randn(5, dtype=torch.float64)
        reading = local_smoothness(objective, [torch.tensor(0.5), torch.tensor(1.5)], [d])
        assert reading.value == pytest.approx(float((h @ d).norm() / d.norm()), rel=1e-10)
        assert reading.curvature == pytest.approx(float(d @ h @ d / (d @ d)), rel=1e-10)
        assert reading.ratios == pytest.approx([reading.value] * 4, rel=1e-10)
        assert reading.noise_floor < 1e-12


def test_maximum_over_the_step_of_a_cubic() -> None:
    # f = x^3 from x = 0 along d = 1: ||3 g^2|| / g = 3 g, largest at the end.
    objective = Objective(Point(torch.zeros(1, dtype=torch.float64)), lambda m, b: m.x.pow(3).sum())
    reading = local_smoothness(objective, [0], torch.ones(1, dtype=torch.float64), points=8)
    assert reading.ratios == pytest.approx([3 * g for g in reading.gammas], rel=1e-12)
    assert reading.gammas[-1] == 1.0
    assert reading.value == pytest.approx(3.0, rel=1e-12)
    assert (reading.loss, reading.loss_after) == (0.0, 1.0)


def test_dropout_does_not_reach_the_estimate() -> None:
    """With masks drawn anew at every point the difference would not vanish with the step; here
    it does.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 50), nn.Dropout(0.5), nn.Linear(50, 1)).double().train()
    objective = Objective(model, lambda m, b: m(b).square().mean())
    batches = [torch.randn(8, 4).double() for _ in range(3)]
    step = [torch.randn_like(p) * 1e-3 for p in model.parameters()]
    small = local_smoothness(objective, batches, [1e-3 * d for d in step])
    large = local_smoothness(objective, batches, step)
    assert small.value == pytest.approx(large.value, rel=0.02)
    assert model.training


def test_float32_reports_a_floor_above_what_rounding_does_to_a_linear_loss() -> None:
    torch.manual_seed(0)
    slope = torch.randn(1000)
    objective = Objective(
        Point(torch.randn(1000)), lambda m, b: (torch.tanh(m.x * 1e-4) * 1e4 * slope).sum()
    )
    reading = local_smoothness(objective, [0], 1e-6 * torch.randn(1000))
    assert reading.value < 3 * reading.noise_floor


def test_a_step_too_small_or_of_another_shape_is_refused_and_the_model_restored() -> None:
    objective = Objective(Point(torch.ones(2)), lambda m, b: m.x.square().sum())
    for step, message in (
        (torch.zeros(2), "not zero"),
        (torch.full((2,), 1e-12), "large enough to change"),
        (torch.ones(3), "must have 2 numbers"),
        ([torch.ones(1, 2)], "parameters' shapes"),
        (torch.tensor([1.0, float("nan")]), "finite"),
    ):
        with pytest.raises(RuleError, match=message):
            local_smoothness(objective, [0], step)
        assert torch.equal(objective.model.x.detach(), torch.ones(2))


def test_envelope_is_the_quantile_regression_of_the_primal_programme() -> None:
    rng = np.random.default_rng(0)
    g, cover = rng.exponential(size=80), 0.9
    y = 0.5 + 2 * g * rng.uniform(size=80)
    n = len(g)
    cost = np.concatenate([[0, 0], np.full(n, cover), np.full(n, 1 - cover)])
    equal = np.hstack([np.ones((n, 1)), g[:, None], np.eye(n), -np.eye(n)])
    primal = linprog(cost, A_eq=equal, b_eq=y, bounds=(0, None), method="highs")
    L0, L1 = _envelope(g, y, cover)
    residual = y - L0 - L1 * g
    assert np.sum(np.maximum(cover * residual, (cover - 1) * residual)) == pytest.approx(
        primal.fun, rel=1e-9
    )
    assert np.mean(residual <= 1e-9) == pytest.approx(cover, abs=0.03)
    many = _envelopes(np.stack([g, g]), np.stack([y, y]), cover)
    residual = y - many[0][1] - many[1][1] * g
    assert np.sum(np.maximum(cover * residual, (cover - 1) * residual)) == pytest.approx(
        primal.fun, rel=1e-6
    )


def test_fit_recovers_a_law_and_its_intervals_cover() -> None:
    slopes = []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        g = np.exp(rng.uniform(-2, 2, size=150))
        fit = fit_relaxed_smoothness(
            g, 3 * g**0.7 * np.exp(0.3 * rng.standard_normal(150)), repeats=60
        )
        assert fit.grows is True
        slopes.append(fit.slope_interval[0] <= 0.7 <= fit.slope_interval[1])
    assert sum(slopes) >= 22  # 90 % nominal; 22 of 30 is four standard errors below


def test_no_relation_is_not_called_growth() -> None:
    found = []
    for seed in range(40):
        rng = np.random.default_rng(100 + seed)
        g = np.exp(rng.uniform(-1, 1, size=150))
        found.append(
            fit_relaxed_smoothness(g, np.exp(0.3 * rng.standard_normal(150)), repeats=60).grows
        )
    assert (
        sum(f is True for f in found) <= 8
    )  # nominal 5 % on this side, minus what the rank test removes


@pytest.mark.parametrize("span", [1.01, 2.9])
def test_refuses_to_conclude_when_the_norm_hardly_varies(span: float) -> None:
    g = np.geomspace(1, span, 200)
    fit = fit_relaxed_smoothness(g, g**3)
    assert fit.grows is None
    assert (
        "whether smoothness grows with the gradient: the gradient norm spans a factor"
        in fit.sentence
    )
    assert (
        fit_relaxed_smoothness(np.geomspace(1, 5, 200), np.geomspace(1, 5, 200) ** 3).grows is True
    )


def test_refuses_with_few_or_unusable_readings() -> None:
    assert fit_relaxed_smoothness(np.geomspace(1, 100, 9), np.geomspace(1, 100, 9)).grows is None
    with pytest.raises(RuleError, match="at least 3"):
        fit_relaxed_smoothness([1.0, float("nan"), 2.0], [1.0, 1.0, float("inf")])
    with pytest.raises(RuleError, match="one value for each of the 2 norms"):
        fit_relaxed_smoothness([1.0, 2.0], [1.0])


def test_least_squares_of_constant_smoothness_fools_the_naive_scheme_and_not_ours() -> None:
    """1/(2n) ||A x - b||^2 with A'A/n = 1.2 I, SGD with clipping: the truth is 1.2 everywhere.

    The naive scheme's two gradients come from different chunks, so their difference is of the order
    of the gradient noise; clipping makes the displacement constant, and the quotient follows the
    gradient norm.
    """
    rng = np.random.default_rng(0)
    n, p, chunk = 512, 10, 64
    q, _ = np.linalg.qr(rng.standard_normal((n, p)))
    a = q * np.sqrt(1.2 * n)
    target = rng.standard_normal(p) * 30
    b = a @ target + 0.1 * rng.standard_normal(n)

    def gradient(x, rows):
        return a[rows].T @ (a[rows] @ x - b[rows]) / len(rows)

    model = Point(torch.zeros(p, dtype=torch.float64))
    ta, tb = torch.from_numpy(a), torch.from_numpy(b)
    objective = Objective(model, lambda m, rows: 0.5 * (ta[rows] @ m.x - tb[rows]).square().mean())
    batches = list(torch.arange(n).split(chunk))
    found: dict[tuple[str, bool], list] = {}
    for clip in (True, False):
        x = np.zeros(p)
        for k in range(150):
            g = gradient(x, rng.integers(0, n, size=chunk))
            d = -0.8 * g / max(1.0, np.linalg.norm(g)) if clip else -0.03 * g
            if k % 2 == 0:
                norm = np.linalg.norm(gradient(x, np.arange(n)))
                naive = naive_smoothness(gradient, x, x + d, n, chunk, 6, rng)
                with torch.no_grad():
                    model.x.copy_(torch.from_numpy(x))
                ours = local_smoothness(objective, batches, torch.from_numpy(d)).value
                found.setdefault(("naive", clip), []).append((norm, naive))
                found.setdefault(("ours", clip), []).append((norm, ours))
            x = x + d
    fits = {key: fit_relaxed_smoothness(*np.array(rows).T) for key, rows in found.items()}
    for clip in (True, False):
        values = np.array(found["ours", clip])[:, 1]
        assert values == pytest.approx(np.full(len(values), 1.2), rel=1e-6)
        assert fits["ours", clip].grows is False
        assert abs(fits["ours", clip].rank) < 0.35
        assert abs(fits["ours", clip].slope) < 1e-6
    assert fits["naive", True].grows is True  # spurious
    assert fits["naive", True].rank > 0.5
    assert np.median(np.array(found["naive", True])[:, 1]) > 5 * 1.2
    assert fits["naive", False].grows is not True  # only when clipping is on


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_an_update_that_is_not_finite_in_any_tensor_is_said_to_be_so(place, number):
    """A monitor notes it and reads the probe again; after another error it would not."""
    model = nn.Linear(2, 1)
    update = [torch.ones_like(p) for p in model.parameters()]
    update[place][0] = number
    problem = Objective(model, lambda m, b: m(b).square().mean())
    at = Reading(problem, [torch.ones(3, 2)], update=update)
    with at, pytest.raises(NonFiniteError, match="update must be finite"):
        SmoothnessProbe().read(at)
