"""Adaptive steps on x, y and z; runs that go on with other settings; proposed step sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases.bilevel import BY_KEY
from references.bilevel_small import small_quadratic

from mindgap.base.check import RuleError
from mindgap.bilevel import SLIP, SOBA, AdamStep, Constant, MomentumStep, TorchStep, solve
from mindgap.bilevel.draws import draw_chunk

QUADRATIC = small_quadratic(seed=4)
PROBLEM = QUADRATIC.problem(16)
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
        d = dict(zip("yzx", oracle.residuals(before["x"], before["y"], before["z"], draws["g"], draws["f"])))
        for key, p in copies.items():
            p.grad = d[key]
            optimizers[key].step()
        state = method.step(state)
        for key, p in copies.items():
            np.testing.assert_allclose(state.values[key], p.detach(), rtol=1e-9, atol=1e-12, err_msg=key)


@pytest.mark.parametrize(
    ("key", "name"),
    [("slip", "adam"), ("soba", "momentum"), ("masoba", "adam"), ("amigo", "adam"), ("stocbio", "momentum"),
     ("alset", "adam")],
)  # fmt: skip
def test_adaptive_lower_steps_follow_the_lower_level_and_resume(key, name, tmp_path):
    rate = Constant(0.03 if name == "adam" else 0.02)
    rates = {"lr_x": 1e-6, "lr_y": rate, **({"lr_z": rate} if key in ("slip", "soba", "masoba", "amigo") else {})}
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
    from mindgap.bilevel.compiled import JaxBackend
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
    np.testing.assert_allclose(solve(PROBLEM, by_hand, steps=30, seed=1).state.x, whole.x, rtol=1e-12)
    path = tmp_path / "state.pt"
    solve(PROBLEM, method, steps=15, seed=1, checkpoint=path)
    assert torch.equal(solve(PROBLEM, method, steps=30, checkpoint=path, resume=True).state.x, whole.x)


def test_steps_that_cannot_be_used_are_refused():
    with pytest.raises(RuleError, match="y_step must be 'plain' with this order"):
        SOBA(lr_x=0.1, lr_y=0.1, order="seidel", y_step=AdamStep())
    with pytest.raises(RuleError, match="y_step must be one of 'plain', got"):
        SLIP(lr_x=0.1, lr_y=0.1, lr_z=0.1, y_step="adam")
    with pytest.raises(RuleError, match=r"beta1 must lie in \[0, 1\), got 1.5"):
        AdamStep(beta1=1.5)
