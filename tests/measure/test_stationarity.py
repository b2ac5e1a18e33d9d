"""Goldstein distances that are known, and the smallest-norm point against a quadratic programme."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

from mindgap.base.check import RuleError
from mindgap.base.objective import Objective
from mindgap.measure.min_norm import min_norm_weights
from mindgap.measure.probes.stationarity import goldstein_distance


class Point(nn.Module):
    def __init__(self, x):
        super().__init__()
        self.x = nn.Parameter(torch.as_tensor(x, dtype=torch.float64))


def programme(G):
    """min ‖Σ w_i g_i‖ over the simplex by scipy's SLSQP."""
    m = len(G)
    result = minimize(
        lambda w: w @ G @ G.T @ w,
        np.full(m, 1 / m),
        jac=lambda w: 2 * G @ G.T @ w,
        bounds=[(0, 1)] * m,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(m)},
        options={"ftol": 1e-13, "maxiter": 1000},
    )
    assert result.success
    return float(np.linalg.norm(result.x @ G))


@pytest.mark.parametrize("seed", range(12))
def test_smallest_norm_point_equals_the_quadratic_programme(seed):
    rng = np.random.default_rng(seed)
    m, d = rng.integers(1, 15), rng.integers(1, 9)
    G = rng.standard_normal((m, d)) + 0.5 * rng.standard_normal(d)
    if seed % 3 == 0:
        G = np.concatenate([G, G[:1], 2 * G[:1]])  # repeated and parallel vectors
    weights, gap = min_norm_weights(G @ G.T)
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1.0, abs=1e-12)
    norm = float(np.linalg.norm(weights @ G))
    assert norm == pytest.approx(programme(G), abs=2e-6)
    assert -1e-9 <= gap <= 1e-9 * np.max(np.sum(G**2, axis=1))


def test_smallest_norm_of_one_segment_is_the_closed_form():
    a, b = np.array([3.0, 1.0]), np.array([-1.0, 2.0])
    weights, _ = min_norm_weights(np.array([[a @ a, a @ b], [a @ b, b @ b]]))
    t = float(b @ (b - a) / ((a - b) @ (a - b)))
    np.testing.assert_allclose(weights, [t, 1 - t], rtol=1e-10)
    assert min_norm_weights(np.zeros((3, 3)))[1] == 0.0
    with pytest.raises(RuleError, match="gram must be a square matrix of finite numbers"):
        min_norm_weights(np.full((2, 2), np.nan))


@pytest.mark.parametrize(
    ("function", "x", "delta", "distance"),
    [
        (lambda x: x.abs().sum(), [0.3], 0.5, 0.0),
        (lambda x: x.abs().sum(), [0.3], 0.2, 1.0),
        (lambda x: x.abs().sum(), [-0.3], 0.2, 1.0),
        (lambda x: x.clamp(min=0).sum(), [0.3], 0.5, 0.0),
        (lambda x: x.clamp(min=0).sum(), [0.3], 0.2, 1.0),
        (lambda x: x.clamp(min=0).sum(), [-0.3], 0.2, 0.0),
    ],
)
def test_known_distances_on_the_line(function, x, delta, distance):
    found = goldstein_distance(Objective(Point(x), lambda m, b: function(m.x)), [0], delta)
    assert found.bound == pytest.approx(distance, abs=1e-12)
    assert found.certifies(0.5) is (distance == 0)
    assert (np.diff(found.curve) <= 0).all()


def affine(x, A, b):
    return Objective(Point(x), lambda m, batch: (A @ m.x + b).max())


def test_maximum_of_affine_functions_in_eight_dimensions():
    """All 12 pieces meet at 0, so that the subdifferential of any ball around 0 is their hull
    (scipy).
    """
    rng = np.random.default_rng(3)
    A = rng.standard_normal((12, 8)) + 1.2
    exact = programme(A)
    assert exact > 0.3
    problem = affine(np.zeros(8), torch.from_numpy(A), torch.zeros(12).double())
    found = goldstein_distance(problem, [0], 0.1, samples=60)
    assert found.bound >= exact - 1e-6
    assert found.bound == pytest.approx(exact, rel=1e-5)
    assert found.certifies(exact * 1.001)
    assert not found.certifies(exact * 0.999)


def test_only_pieces_within_the_ball_count():
    """max(x1, -x1 - 1, 0.1 x2 ...) at 0: the second piece is active beyond x1 = -1/2 only."""
    A, b = torch.tensor([[1.0, 0.5], [-1.0, 0.5]]).double(), torch.tensor([0.0, -1.0]).double()
    near = goldstein_distance(affine([0.0, 0.0], A, b), [0], 0.4)
    far = goldstein_distance(affine([0.0, 0.0], A, b), [0], 0.6, samples=64)
    assert near.bound == pytest.approx(np.sqrt(1.25))
    assert far.bound == pytest.approx(0.5)


def test_the_bound_is_the_gradient_norm_on_smooth_functions_up_to_the_ball():
    """f = ‖x‖²/2 at x with ‖x‖ = 2: the subdifferential is the ball x + δB, at distance 2 - δ."""
    problem = Objective(Point([0.0, 2.0, 0.0]), lambda m, b: m.x.square().sum() / 2)
    found = goldstein_distance(problem, [0], 0.5, samples=200)
    assert 1.5 <= found.bound <= 1.5 + 0.03
    assert found.curve[0] == pytest.approx(2.0)


def test_the_batches_define_the_function_and_the_model_is_left_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    data = [torch.randn(5, 3).double() for _ in range(3)]
    problem = Objective(model, lambda m, b: m(b).abs().mean())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    found = goldstein_distance(problem, data, 0.3, samples=12)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    parameters = list(model.parameters())
    mean = torch.cat(
        [
            g.reshape(-1)
            for g in torch.autograd.grad(sum(problem.value(b) for b in data) / 3, parameters)
        ]
    )
    assert found.curve[0] == pytest.approx(float(mean.norm()), rel=1e-12)
    assert found.bound < found.curve[0]
    assert len(found.curve) == len(found.weights) == 12
    again = goldstein_distance(problem, data, 0.3, samples=12)
    assert np.array_equal(again.curve, found.curve)
    stopped = goldstein_distance(problem, data, 0.3, samples=12, epsilon=float(found.curve[4]))
    assert len(stopped.curve) <= 5
    assert stopped.certifies(float(found.curve[4]))
    with pytest.raises(RuleError, match="delta must be positive and finite, got 0"):
        goldstein_distance(problem, data, 0)
