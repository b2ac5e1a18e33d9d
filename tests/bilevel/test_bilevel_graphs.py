"""The backend of CUDA graphs: its code without a graph walks the eager trajectory (graphs
themselves need a GPU).
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cases.bilevel import BY_KEY
from references.bilevel_small import small_quadratic
from torch.utils import _pytree as pytree

from mindgap.base.check import RuleError
from mindgap.bilevel import BSA, SLIP, AdamStep, solve
from mindgap.bilevel.backends.graphs import CudaGraphs, _DeviceIndices, _DeviceRows, _run_and_undo
from mindgap.bilevel.core.estimators import ROWS

QUADRATIC = small_quadratic(seed=4)
KEYS = [
    "slip",
    "borep",
    "soba",
    "masoba",
    "srba",
    "amigo",
    "stocbio",
    "mrbo",
    "vrbo",
    "f2sa",
    "fsla",
    "meha",
    "adambo",
    "saba",
    "ttsa",
    "alset",
    "sustain",
]


@pytest.mark.parametrize("key", KEYS)
def test_graphs_walk_the_eager_trajectory(key):
    problem, method = QUADRATIC.problem(16), BY_KEY[key].make()
    a, b = (
        solve(problem, method, steps=25, seed=3, backend=who).state
        for who in (None, CudaGraphs(chunk=10))
    )
    for name in ("x", "y", "z", "m"):
        if name in a.values:
            np.testing.assert_allclose(
                b.values[name], a.values[name], rtol=1e-9, atol=1e-11, err_msg=name
            )
    assert a.calls == b.calls
    assert a.drawn == b.drawn


def test_gathered_samples_adaptive_steps_and_budgets():
    problem = QUADRATIC.problem(16, order="reshuffle")
    method = SLIP(lr_x=0.02, lr_y=0.1, lr_z=0.1, x_step=AdamStep())
    a, b = (
        solve(problem, method, steps=25, seed=3, backend=who).state
        for who in (None, CudaGraphs(chunk=10))
    )
    np.testing.assert_allclose(b.x, a.x, rtol=1e-9)
    assert solve(problem, method, calls=100, backend=CudaGraphs()).state.total_calls >= 100


def test_a_second_run_leaves_the_tables_of_the_first_alone():
    problem, method, runner = QUADRATIC.problem(16), BY_KEY["saba"].make(), CudaGraphs(chunk=10)
    first = solve(problem, method, steps=25, seed=3, backend=runner).state
    before = pytree.tree_map(lambda t: t.clone(), first.values)
    second = solve(problem, method, steps=25, seed=4, backend=runner).state
    assert all(
        torch.equal(a, b)
        for a, b in zip(pytree.tree_leaves(first.values), pytree.tree_leaves(before))
    )
    np.testing.assert_allclose(
        second.x, solve(problem, method, steps=25, seed=4).state.x, rtol=1e-9
    )


@pytest.mark.parametrize("key", ["slip", "svrb"])
def test_a_run_that_goes_on_leaves_the_state_it_started_from_alone(key):
    runner = CudaGraphs(chunk=10)
    state = solve(QUADRATIC.problem(16), BY_KEY[key].make(), steps=7, seed=3, backend=runner).state
    before = pytree.tree_map(lambda t: t.clone(), state.values)
    runner.run(state, 5, None, None)
    assert all(
        torch.equal(a, b)
        for a, b in zip(pytree.tree_leaves(state.values), pytree.tree_leaves(before))
    )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("key", KEYS)
def test_captured_graphs_walk_the_eager_trajectory(key):
    problem, method = small_quadratic(seed=4, device="cuda").problem(16), BY_KEY[key].make()
    a, b = (
        solve(problem, method, steps=25, seed=3, backend=who).state
        for who in (None, CudaGraphs(chunk=10))
    )
    np.testing.assert_allclose(b.x.cpu(), a.x.cpu(), rtol=1e-8)


def test_what_graphs_refuse():
    with pytest.raises(
        RuleError, match="method must have iterations that do not grow for CUDA graphs"
    ):
        solve(
            QUADRATIC.problem(16),
            BSA(lr_x=0.1, lr_y=0.1, inner="sqrt"),
            steps=1,
            backend=CudaGraphs(),
        )
    with pytest.raises(
        RuleError, match="upper_data must have batches of equal size for CUDA graphs"
    ):
        solve(
            QUADRATIC.problem(24), SLIP(lr_x=0.1, lr_y=0.1, lr_z=0.1), steps=1, backend=CudaGraphs()
        )


def test_the_iteration_before_a_capture_is_undone_without_a_copy_of_the_tables():
    table = torch.arange(12.0).view(4, 3)
    held = {"x": torch.ones(2), "g_y": {ROWS: table, "mean": torch.zeros(3)}}
    rows, before = _DeviceRows(), pytree.tree_map(torch.clone, held)

    def iteration():
        for value in (7.0, 8.0):  # twice the same row: the first one must come back
            change, same = rows.replace_row(
                table, _DeviceIndices(torch.tensor([4, 5])), torch.full((3,), value)
            )
            assert same is table
        assert change.tolist() == [1.0, 1.0, 1.0]
        assert table[2].tolist() == [8.0, 8.0, 8.0]
        held["x"].add_(1)

    _run_and_undo(iteration, rows, held)
    pytree.tree_map(torch.testing.assert_close, held, before)
    assert held["g_y"][ROWS] is table
    assert rows.overwritten is None
