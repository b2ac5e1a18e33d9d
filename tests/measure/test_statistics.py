"""The four quantities of (6.2) against a literal transcription; what they do as m grows; the
balance (6.10).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from mindgap.base.check import RuleError
from mindgap.base.objective import Objective
from mindgap.base.tensors import flatten
from mindgap.measure.probes.statistics import equilibrium, training_statistics


def literal(objective: Objective, samples: list) -> tuple[float, float, float, float, float]:
    """(6.2) sample by sample: L_S, ||grad L_S||, sigma, ||Hessian||_op; and the second moment
    of (6.10).
    """
    parameters = objective.parameters
    losses, gradients = [], []
    for sample in samples:
        value = objective.value(sample)
        losses.append(float(value.detach()))
        gradients.append(flatten(torch.autograd.grad(value, parameters)))
    g = torch.stack(gradients)
    mean = g.mean(0)
    total = sum(objective.value(s) for s in samples) / len(samples)
    first = flatten(torch.autograd.grad(total, parameters, create_graph=True))
    rows = [flatten(torch.autograd.grad(f, parameters, retain_graph=True)) for f in first]
    sharp = float(torch.linalg.matrix_norm(torch.stack(rows), 2))
    sigma = math.sqrt(float(((g - mean) ** 2).sum()) / (len(g) - 1))
    return (
        float(np.mean(losses)),
        float(mean.norm()),
        sigma,
        sharp,
        math.sqrt(float((g**2).sum(1).mean())),
    )


def problem() -> tuple[Objective, list]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    batches = [(torch.randn(8, 4).double(), torch.randint(0, 3, (8,))) for _ in range(4)]
    return Objective(model, lambda m, b: F.cross_entropy(m(b[0]), b[1])), batches


def test_equals_the_definitions_sample_by_sample() -> None:
    objective, batches = problem()
    samples = [(x[i : i + 1], y[i : i + 1]) for x, y in batches for i in range(8)]
    loss, norm, sigma, sharp, second = literal(objective, samples)
    found = training_statistics(objective, batches, tol=1e-11)
    assert (found.samples, found.per) == (32, "sample")
    assert found.loss == pytest.approx(loss, rel=1e-10)
    assert found.gradient_norm == pytest.approx(norm, rel=1e-10)
    assert found.noise == pytest.approx(sigma, rel=1e-8)
    assert found.sharpness == pytest.approx(sharp, rel=1e-8)
    assert found.second_moment == pytest.approx(second, rel=1e-8)
    assert found.gradient_norm_unbiased == pytest.approx(
        math.sqrt(max(0, norm**2 - sigma**2 / 32)), rel=1e-7
    )
    assert [row.samples for row in found.growth] == [8, 16, 32]
    half = literal(objective, samples[:16])
    row = found.growth[1]
    assert (row.loss, row.gradient_norm, row.noise, row.sharpness) == pytest.approx(
        half[:4], rel=1e-8
    )


def test_the_rest_is_the_same_without_the_sharpness() -> None:
    objective, batches = problem()
    full, quick = (
        training_statistics(objective, batches, with_sharpness=with_sharpness)
        for with_sharpness in (True, False)
    )
    assert quick.curvature is None
    assert np.isnan(quick.sharpness)
    assert "sharpness" not in quick.settled
    for name in (
        "loss",
        "gradient_norm_unbiased",
        "noise",
        "second_moment",
        "gradient_norm_interval",
    ):
        assert getattr(quick, name) == getattr(full, name)


def test_norm_is_biased_upward_and_the_correction_is_not() -> None:
    """Gaussian linear regression at a point with ||grad||^2 = 1 exactly: E of both estimates is
    known.
    """
    torch.manual_seed(0)
    raw, corrected = [], []
    for _ in range(60):
        model = nn.Linear(5, 1, bias=False).double()
        noise = torch.randn(4, 4, 5).double()
        shift = torch.tensor([1.0, 0, 0, 0, 0]).double()
        objective = Objective(
            model, lambda m, b: (m.weight @ b.T).mean()
        )  # the gradient of a sample is the sample
        found = training_statistics(objective, list(noise + shift), growth=False)
        raw.append(found.gradient_norm**2)
        corrected.append(found.gradient_norm**2 - found.noise**2 / found.samples)
        assert found.sharpness == 0.0
    # E ||mean||^2 = 1 + 5/16; the correction gives 1. Standard errors come from the sample itself.
    for values, truth in ((raw, 1 + 5 / 16), (corrected, 1.0)):
        assert abs(np.mean(values) - truth) < 4 * np.std(values, ddof=1) / math.sqrt(len(values))
    assert np.mean(raw) - 4 * np.std(raw, ddof=1) / math.sqrt(60) > 1.0


def test_batch_norm_falls_back_to_minibatches() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)).double().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    objective = Objective(model, lambda m, b: F.cross_entropy(m(b[0]), b[1]))
    batches = [(torch.randn(8, 4).double(), torch.randint(0, 3, (8,))) for _ in range(6)]
    found = training_statistics(objective, batches, growth=False)
    gradients = torch.stack([flatten(objective.value_and_grad(b)[1]) for b in batches])
    model.load_state_dict(before)
    spread = float(((gradients - gradients.mean(0)) ** 2).sum()) / 5
    assert found.per == "batch"
    assert found.noise == pytest.approx(math.sqrt(8 * spread), rel=1e-8)
    with pytest.raises(RuleError, match="batch norm"):
        training_statistics(objective, batches, per="sample")
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def test_a_short_last_batch_is_left_out_and_one_batch_is_refused() -> None:
    objective, batches = problem()
    short = [*batches, (torch.randn(3, 4).double(), torch.zeros(3, dtype=torch.long))]
    found = training_statistics(objective, short, growth=False)
    assert (found.samples, found.left_out) == (32, 1)
    with pytest.raises(RuleError, match="at least two batches of one size, got 1"):
        training_statistics(objective, batches[:1])
    with pytest.raises(RuleError, match="batches must give at least one batch"):
        training_statistics(objective, [])


def test_estimates_settle_as_m_grows() -> None:
    """On Gaussian samples around a fixed gradient everything settles; the raw norm falls
    towards the truth.
    """
    torch.manual_seed(0)
    objective = Objective(
        nn.Linear(50, 1, bias=False).double(), lambda m, b: (m.weight @ b.T).mean()
    )
    batches = list((torch.randn(64, 16, 50) + 0.2).double())
    found = training_statistics(objective, batches)
    norms = [row.gradient_norm for row in found.growth]
    assert norms == sorted(norms, reverse=True)
    assert norms[0] > 1.2 * norms[-1]
    assert found.settled["noise"]
    assert found.settled["gradient_norm"]
    assert found.gradient_norm_interval[0] < math.sqrt(50 * 0.04) < found.gradient_norm_interval[1]
    few = training_statistics(objective, batches[:2])
    assert not few.settled["gradient_norm"]


def test_balance_of_6_10() -> None:
    """On a quadratic with additive noise every quantity of (6.10) is known."""
    objective, batches = problem()
    found = training_statistics(objective, batches, growth=False)
    balance = equilibrium(found, lr=0.1, batch_size=8)
    noise = found.noise / math.sqrt(8)
    left = found.gradient_norm_unbiased**2
    assert balance.left == pytest.approx(left)
    assert balance.right == pytest.approx(
        0.1 * noise * found.sharpness * math.sqrt(left + noise**2)
    )
    assert balance.edge == pytest.approx(0.1 * found.sharpness / 2)
    with pytest.raises(RuleError, match="lr must be positive"):
        equilibrium(found, lr=0.0, batch_size=8)
