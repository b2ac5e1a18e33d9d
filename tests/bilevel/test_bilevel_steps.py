"""Adaptive steps on x, y and z; runs that go on with other settings; proposed step sizes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from cases.bilevel import BY_KEY
from references.bilevel_small import PROBLEM, QUADRATIC

from mindgap.base.check import RuleError
from mindgap.bilevel import (
    METHODS,
    SLIP,
    SOBA,
    AdamStep,
    BilevelProblem,
    Constant,
    MomentumStep,
    TorchStep,
    solve,
    suggest_steps,
)
from mindgap.bilevel.data.draws import draw_chunk

STEPS = {"adam": AdamStep(weight_decay=0.01), "momentum": MomentumStep(weight_decay=0.01)}
TORCH = {
    "adam": lambda p: torch.optim.AdamW([p], lr=0.05, weight_decay=0.01),
    "momentum": lambda p: torch.optim.SGD([p], lr=0.05, momentum=0.9, weight_decay=0.01),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_is_the_one_of_torch(name):
    """Over 30 steps on x, y and z of SOBA, against torch's optimizer on the same directions."""
    rates = {"lr_x": Constant(0.05), "lr_y": Constant(0.05), "lr_z": Constant(0.05)}
    method = SOBA(**rates, x_step=STEPS[name], y_step=STEPS[name])
    plain = SOBA(**rates)
    state = method.start(PROBLEM, seed=3)
    copies = {key: torch.nn.Parameter(state.values[key].clone()) for key in ("x", "y", "z")}
    optimizers = {key: TORCH[name](p) for key, p in copies.items()}
    oracle = plain.oracle(PROBLEM)
    for _ in range(30):
        before = {key: p.detach().clone() for key, p in copies.items()}
        ((_, draws),) = draw_chunk(method, state.oracle, 3, state.t, 1, state.drawn).steps()
        d = dict(
            zip(
                "yzx",
                oracle.residuals(before["x"], before["y"], before["z"], draws["g"], draws["f"]),
            )
        )
        for key, p in copies.items():
            p.grad = d[key]
            optimizers[key].step()
        state = method.step(state)
        for key, p in copies.items():
            np.testing.assert_allclose(
                state.values[key], p.detach(), rtol=1e-9, atol=1e-12, err_msg=key
            )


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("slip", "adam"),
        ("soba", "momentum"),
        ("masoba", "adam"),
        ("amigo", "adam"),
        ("stocbio", "momentum"),
        ("alset", "adam"),
    ],
)
def test_adaptive_lower_steps_follow_the_lower_level_and_resume(key, name, tmp_path):
    rate = Constant(0.03 if name == "adam" else 0.02)
    rates = {
        "lr_x": 1e-6,
        "lr_y": rate,
        **({"lr_z": rate} if key in ("slip", "soba", "masoba", "amigo") else {}),
    }
    method = BY_KEY[key].make(**rates, y_step=STEPS[name])
    whole = solve(PROBLEM, method, steps=120, seed=1).check().state
    away = float((whole.y - QUADRATIC.y_star(QUADRATIC.x0)).norm())
    assert away < 0.4 * float((QUADRATIC.y0 - QUADRATIC.y_star(QUADRATIC.x0)).norm())
    path = tmp_path / "state.pt"
    solve(PROBLEM, method, steps=11, seed=1, checkpoint=path)
    resumed = solve(PROBLEM, method, steps=120, checkpoint=path, resume=True).state
    assert torch.equal(resumed.y, whole.y)


@pytest.mark.parametrize("key", ["slip", "amigo", "stocbio"])
def test_adaptive_steps_run_compiled(key):
    pytest.importorskip("jax")
    from mindgap.bilevel.backends.compiled import JaxBackend
    from mindgap.lab.tasks.problems import compiled as losses

    method = BY_KEY[key].make(x_step=AdamStep(), y_step=MomentumStep())
    backend = JaxBackend(*losses.quadratic_losses(), chunk=40)
    a, b = (solve(PROBLEM, method, steps=40, seed=3, backend=who).state for who in (None, backend))
    np.testing.assert_allclose(np.asarray(b.x), a.x.numpy(), rtol=1e-8)
    assert a.calls == b.calls


def test_a_scheduler_moves_the_rate_and_resumes(tmp_path):
    def halve(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.5)

    method = SOBA(lr_x=1.0, lr_y=0.1, x_step=TorchStep(torch.optim.SGD, lr=0.1, scheduler=halve))
    whole = solve(PROBLEM, method, steps=30, seed=1).state
    assert whole.values["optimizer"].param_groups[0]["lr"] == pytest.approx(0.0125)
    by_hand = SOBA(lr_x=lambda t: 0.1 * 0.5 ** (t // 10), lr_y=0.1)
    np.testing.assert_allclose(
        solve(PROBLEM, by_hand, steps=30, seed=1).state.x, whole.x, rtol=1e-12
    )
    path = tmp_path / "state.pt"
    solve(PROBLEM, method, steps=15, seed=1, checkpoint=path)
    assert torch.equal(
        solve(PROBLEM, method, steps=30, checkpoint=path, resume=True).state.x, whole.x
    )


def test_steps_that_cannot_be_used_are_refused():
    with pytest.raises(RuleError, match="y_step must be 'plain' with this order"):
        SOBA(lr_x=0.1, lr_y=0.1, order="seidel", y_step=AdamStep())
    with pytest.raises(RuleError, match="y_step must be one of 'plain', got"):
        SLIP(lr_x=0.1, lr_y=0.1, lr_z=0.1, y_step="adam")
    with pytest.raises(RuleError, match=r"beta1 must lie in \[0, 1\), got 1.5"):
        AdamStep(beta1=1.5)


# Going on with other settings.


def test_a_run_goes_on_with_another_step_or_method():
    half = SLIP(lr_x=0.02, lr_y=0.1, lr_z=0.1)
    first = solve(PROBLEM, half, steps=20, seed=2).state
    same = solve(PROBLEM, half, steps=40, start=first).state
    assert torch.equal(same.x, solve(PROBLEM, half, steps=40, seed=2).state.x)
    other = solve(PROBLEM, SLIP(lr_x=0.005, lr_y=0.1, lr_z=0.1), steps=21, start=first).state
    step = half.step(first)
    assert torch.equal(other.values["z"], step.values["z"])  # z and m were kept, the samples go on
    assert torch.equal(other.values["m"], step.values["m"])
    assert float((other.x - first.x).norm()) == pytest.approx(0.005)
    soba = SOBA(lr_x=0.01, lr_y=0.1).take_over(first)
    assert soba.t == 0
    assert torch.equal(soba.values["z"], first.values["z"])
    assert soba.calls == first.calls
    for case in BY_KEY.values():
        assert solve(PROBLEM, case.make(), steps=2, start=first).ok
    with pytest.raises(RuleError, match="seed must be that of the start, 2"):
        solve(PROBLEM, half, steps=40, start=first, seed=5)


# Proposed steps.


def ridge():
    torch.manual_seed(0)
    features, targets = (
        torch.randn(96, 5, dtype=torch.float64),
        torch.randn(96, dtype=torch.float64),
    )
    return BilevelProblem(
        lambda x, y, b: (b[0] @ y - b[1]).square().mean(),
        lambda x, y, b: (b[0] @ y - b[1]).square().mean() + x.exp() @ y.square(),
        torch.zeros(5, dtype=torch.float64),
        torch.zeros(5, dtype=torch.float64),
        (features[:32], targets[:32]),
        (features[32:], targets[32:]),
        batch_size=16,
    )


@cache
def advised(name):
    problem = PROBLEM if name == "quadratic" else ridge()
    return problem, suggest_steps(problem)


@pytest.mark.parametrize("key", METHODS)
@pytest.mark.parametrize("name", ["quadratic", "ridge"])
def test_no_method_diverges_with_the_proposed_steps(name, key):
    problem, advice = advised(name)
    start = float(problem.pack_x.start.norm())
    steps = 15 if key == "vrbo" else 60  # an iteration of VRBO has an inner loop
    state = solve(problem, METHODS[key](**advice.settings(key)), steps=steps, seed=1).check().state
    assert float(state.x.norm()) < 5 * (1 + start)
    assert float(state.y.norm()) < 50


def test_the_proposed_lower_step_is_below_the_stability_limit():
    advice = suggest_steps(PROBLEM, batches=16, products=60)
    top = max(float(torch.linalg.eigvalsh(method_hessian(i)).max()) for i in range(16))
    assert advice.curvature == pytest.approx(top, rel=0.05)
    assert advice.lr_y < 2 / top


def method_hessian(i):
    from mindgap.bilevel import Sample, TorchOracle

    return TorchOracle(PROBLEM).dense(QUADRATIC.x0, QUADRATIC.y0, Sample(i))[1]
