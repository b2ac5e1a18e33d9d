"""Answer A2 on SLIP: the Ω(ε⁻⁴) of single-level problems holds for upper oracle calls of bilevel
ones, by a problem that runs.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mindgap.bilevel import BOREP, MASOBA, SLIP, SOBA, StocBio, solve
from mindgap.lab.theory import LiftedChain
from mindgap.lab.theory.lifted import _chain_value

HARD = LiftedChain(L=1.0, delta=0.5, sigma=0.5, epsilon=0.0025)


def gradient(hard: LiftedChain, x: torch.Tensor, z: float) -> np.ndarray:
    at = x.clone().requires_grad_()
    value = _chain_value(hard._chain(), hard.probability, at, torch.tensor([z]).double())
    return torch.autograd.grad(value, at)[0].numpy()


def test_an_upper_sample_is_one_draw_of_the_chains_oracle() -> None:
    p, chain = HARD.probability, HARD._chain()
    rng = np.random.default_rng(0)
    for scale in (0.0, 0.5, 2.0):
        x = torch.from_numpy(chain.scale * scale * rng.standard_normal(HARD.dimension))
        g0, g1 = (gradient(HARD, x, z) for z in (0.0, 1.0))
        exact = chain.gradient(x.numpy())
        np.testing.assert_allclose((1 - p) * g0 + p * g1, exact, atol=1e-12)
        noise = (1 - p) * ((g0 - exact) ** 2).sum() + p * ((g1 - exact) ** 2).sum()
        assert noise <= HARD.sigma**2
    assert np.flatnonzero(gradient(HARD, torch.zeros(HARD.dimension).double(), 0.0)).size == 0


@pytest.mark.parametrize(
    ("method", "upper"),
    [
        (SLIP(lr_x=0.5, lr_y=0.5, lr_z=0.5), "f_x"),
        (BOREP(lr_x=0.5, lr_y=0.5, lr_z=0.5), "f_x"),
        (SOBA(lr_x=30.0, lr_y=0.5, lr_z=0.5), "f_x"),
        (StocBio(lr_x=30.0, lr_y=0.5), "f_x"),
        (MASOBA(lr_x=30.0, lr_y=0.5, lr_z=0.5), "f_x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_half_of_all_runs_are_above_epsilon_after_the_stated_upper_calls(method, upper) -> None:
    chain, steps, above = HARD._chain(), int(HARD.upper_calls), 0
    for seed in range(6):
        solution = solve(HARD.problem(samples=5000, seed=seed), method, steps=steps, seed=seed)
        assert solution.state.calls[upper] <= HARD.upper_calls
        norm = float(np.linalg.norm(chain.gradient(solution.x.numpy())))
        above += norm > HARD.epsilon
    assert above >= 3


def test_the_lower_level_changes_nothing() -> None:
    # Φ = f and every hypergradient is an upper sample's gradient: y's step does not matter.
    ends = [
        solve(HARD.problem(samples=5000), SOBA(lr_x=30.0, lr_y=lr_y, lr_z=0.5), steps=60, seed=1).x
        for lr_y in (0.01, 0.9)
    ]
    assert torch.equal(*ends)
    assert ends[0].abs().max() > 0


def test_upper_calls_grow_like_the_fourth_power() -> None:
    coarse = LiftedChain(L=1.0, delta=1.0, sigma=10.0, epsilon=1e-4)
    fine = LiftedChain(L=1.0, delta=1.0, sigma=10.0, epsilon=5e-5)
    assert fine.upper_calls / coarse.upper_calls == pytest.approx(16, rel=0.01)
    with pytest.raises(ValueError, match="epsilon must be at most"):
        LiftedChain(L=1.0, delta=1.0, sigma=10.0, epsilon=1.0)
