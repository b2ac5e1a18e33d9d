"""The dynamics that the theorems are checked on are those of the optimizers: the same noise
gives the same iterates.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from mindgap.base.rng import numpy_stream
from mindgap.lab.theory import (
    BernoulliQuadratic,
    CoordinateMoment,
    HardChain,
    HyperbolicCosine,
    StronglyConvexMoment,
    SymmetricPareto,
    bayes_risk,
    cclip_threshold,
    clipped_gd_bound,
    clipped_gd_step,
    gclip_bound,
    gclip_step,
    gclip_threshold,
    hardest_epsilon,
    matching_clipped_step,
    weighted_average_runs,
)
from mindgap.lab.theory.descent import first_hits, row_norm
from mindgap.optim import ACClip, Box, CClip, GClip, NormalizedSGD, k_weighted_average


@pytest.mark.parametrize("method", ["gclip", "cclip"])
def test_projected_clipping_with_averaging_equals_the_vectorised_runs(method: str) -> None:
    alpha, mu, d, K, runs, optimum = 1.5, 0.8, 4, 60, 3, 0.3
    law = SymmetricPareto(index=1.6)
    noise = law.sample(numpy_stream(0, "meet"), (K, runs, d))
    a = CoordinateMoment(alpha=alpha, B=(1.0, 2.0, 0.5, 1.0), mu=mu)
    g = StronglyConvexMoment(alpha=alpha, G=2.0, mu=mu)
    start = numpy_stream(1, "meet").uniform(-1, 1, (runs, d))

    def threshold(k: int):
        return cclip_threshold(a, k) if method == "cclip" else gclip_threshold(g, k)

    fast = weighted_average_runs(
        lambda x, k: mu * (x - optimum) + noise[k - 1],
        start,
        lambda k: gclip_step(g, k),
        threshold,
        [K],
        method=method,
        box=(-1.0, 1.0),
    )[0]
    for run in range(runs):
        model = torch.nn.Module()
        model.x = torch.nn.Parameter(torch.tensor(start[run]))
        mean = k_weighted_average(model)
        if method == "gclip":
            optimizer = GClip([model.x], lr=1.0, tau=threshold, project=Box(-1.0, 1.0))
        else:
            optimizer = CClip(
                [model.x],
                lr=1.0,
                tau=lambda k: [torch.tensor(threshold(k))],
                project=Box(-1.0, 1.0),
            )
        for k in range(1, K + 1):
            mean.update_parameters(model)
            optimizer.param_groups[0]["lr"] = gclip_step(g, k)
            model.x.grad = mu * (model.x.detach() - optimum) + torch.tensor(noise[k - 1, run])
            optimizer.step()
        np.testing.assert_allclose(mean.module.x.detach().numpy(), fast[run], rtol=1e-9, atol=1e-12)


def test_clipped_gd_of_theorem_3_4_1_is_gclip_with_tau_gamma() -> None:
    f = HyperbolicCosine(L0=1.0, L1=2.0, dimension=2)
    x0 = np.array([f.start(50.0), -f.start(3.0)])
    a = HyperbolicCosine(L0=1.0, L1=2.0).constants(60.0)
    step, epsilon = clipped_gd_step(a), 0.01
    hits, last = first_hits(
        lambda x, who: f.gradient(x), x0[None], lambda g, who: step(row_norm(g)), epsilon, 5000
    )
    problem = f.objective(x0)
    optimizer = GClip(problem.parameters, lr=step.eta, tau=step.gamma)
    count = 0
    while True:
        _, (gradient,) = problem.value_and_grad(None)
        if float(gradient.norm()) <= epsilon:
            break
        problem.parameters[0].grad = gradient
        optimizer.step()
        count += 1
    assert count == hits[0] <= clipped_gd_bound(a, epsilon)
    np.testing.assert_allclose(
        problem.parameters[0].detach().numpy(), last[0], rtol=1e-9, atol=1e-12
    )


def test_normalized_sgd_takes_the_step_of_3_3_1() -> None:
    eta, beta = 0.3, 0.7
    clipped = matching_clipped_step(eta, beta)
    for norm in (1e-3, 0.7, 50.0):
        moved = []
        for make in (
            lambda p: NormalizedSGD(p, lr=eta, damping=beta),
            lambda p: GClip(p, lr=clipped.eta, tau=clipped.gamma),
        ):
            x = torch.zeros(1, dtype=torch.float64, requires_grad=True)
            x.grad = torch.full((1,), norm, dtype=torch.float64)
            make([x]).step()
            moved.append(abs(float(x.detach())))
        assert moved[1] == pytest.approx(float(clipped(np.array(norm))) * norm, rel=1e-12)
        assert 0.5 <= moved[0] / moved[1] <= 1.0


def test_the_optimizer_itself_stays_below_theorem_4_4_2() -> None:
    # Twenty seeds of mindgap.optim.GClip under infinite variance, one tensor a seed.
    alpha, mu, K, law = 1.5, 1.0, 200, SymmetricPareto(index=1.6, scale=0.3)
    G = 1.4 * mu + law.moment(alpha) ** (1 / alpha)
    a = StronglyConvexMoment(alpha=alpha, G=G, mu=mu)
    rng = numpy_stream(2, "meet")
    points = [torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(20)]
    optimizer = GClip(
        points, lr=1.0, tau=lambda k: gclip_threshold(a, k), scope="tensor", project=Box(-1.0, 1.0)
    )
    total = np.zeros(20)
    for k in range(1, K + 1):
        total += k * np.array([float(p.detach()) for p in points])
        optimizer.param_groups[0]["lr"] = gclip_step(a, k)
        for p, xi in zip(points, law.sample(rng, 20), strict=True):
            p.grad = mu * (p.detach() - 0.4) + xi
        optimizer.step()
    error = mu / 2 * (total / (K * (K + 1) / 2) - 0.4) ** 2
    assert error.mean() - 4 * error.std() / math.sqrt(20) <= gclip_bound(a, K)


OPTIMIZERS = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=3.0, momentum=0.9),
    "Adam": lambda p: torch.optim.Adam(p, lr=10.0),
    "ACClip": lambda p: ACClip(
        p, lr=10.0, weight_decay=0.0, form="algorithm", bias_correction=False, clip=None
    ),
    "CClip": lambda p: CClip(p, lr=3.0, tau=1.0),
    "GClip": lambda p: GClip(p, lr=3.0, tau=5.0, scope="tensor"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_stay_above_epsilon_on_the_zero_chain(name: str) -> None:
    # All of them move only along coordinates that a gradient has shown, so Theorem 4.4.4 binds them
    # all.
    alpha, epsilon, d, replicas = 1.5, 0.01, 5, 60
    delta = 7296 * d * epsilon**2 * (1 + 1e-9)
    margin = epsilon * 5000 ** (1 / alpha) * 10 ** ((alpha - 1) / alpha)  # p = 1/10
    hard = HardChain(alpha, 1.0, delta, 4 * math.sqrt(delta) + margin, epsilon)
    rows = [torch.zeros(d, dtype=torch.float64, requires_grad=True) for _ in range(replicas)]
    optimizer, rng = OPTIMIZERS[name](rows), numpy_stream(0, "chain", name)
    for _ in range(int(hard.steps) + 1):
        x = np.stack([row.detach().numpy() for row in rows])
        norm = np.linalg.norm(hard.gradient(x), axis=1)
        assert norm.mean() + 4 * norm.std() / math.sqrt(replicas) >= epsilon
        g = hard.stochastic_gradient(x, (rng.random(replicas) < hard.probability).astype(float))
        for row, value in zip(rows, g, strict=True):
            row.grad = torch.tensor(value)
        optimizer.step()


@pytest.mark.parametrize("name", ["SGD with momentum", "Adam", "ACClip"])
def test_optimizers_stay_above_the_bayes_risk_on_the_bernoulli_quadratics(name: str) -> None:
    alpha, k, replicas = 1.5, 40, 200
    epsilon, errors = hardest_epsilon(alpha, k), []
    for nu in (0, 1):
        f, rng = BernoulliQuadratic(alpha, epsilon, nu), numpy_stream(nu, "coins", name)
        x = torch.full((replicas,), 0.1, dtype=torch.float64, requires_grad=True)
        optimizer = OPTIMIZERS[name]([x])
        optimizer.param_groups[0]["lr"] = 0.05
        for _ in range(k):
            x.grad = f.stochastic_gradient(
                x.detach(), torch.tensor(rng.random(replicas) < f.probability)
            )
            optimizer.step()
            with torch.no_grad():
                x.clamp_(0.0, 0.5)
        errors.append(f.value(x.detach().numpy()))
    error = np.concatenate(errors)
    assert error.mean() + 4 * error.std() / math.sqrt(error.size) >= bayes_risk(alpha, epsilon, k)
