"""Runs that go wrong, and bad values for every public parameter."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch
from bad_values import faults
from cases.bilevel import CASES
from references.bilevel_small import PROBLEM, QUADRATIC

from mindgap.base.check import RuleError
from mindgap.bilevel import (
    BOREP,
    METHODS,
    SLIP,
    SOBA,
    AdamStep,
    Batches,
    BilevelProblem,
    Constant,
    MomentumStep,
    Power,
    Stream,
    TorchStep,
    exact_hypergradient,
    hyper_objective,
    hypergradient,
    implicit_solution,
    load_state,
    lower_solution,
    save_state,
    solve,
    suggest_steps,
    unpack_state,
)
from mindgap.bilevel.backends.graphs import CudaGraphs
from mindgap.bilevel.registry import SIXTEEN, MethodInfo

WILD = SOBA(lr_x=0.1, lr_y=Constant(50.0))


@pytest.mark.parametrize("steps", [99, 250])
def test_a_run_that_ends_with_nan_says_so(steps):
    """Numbers used to be looked at only when t % 100 == 0, so that 99 steps ended "done" with
    NaN.
    """
    solution = solve(PROBLEM, SOBA(lr_x=Constant(0.1), lr_y=Constant(1e6)), steps=steps)
    assert not torch.isfinite(solution.state.y).all() or float(solution.state.y.norm()) > 1e10
    assert solution.outcome in ("non-finite", "diverged")
    with pytest.raises(ArithmeticError):
        solution.check()


def test_the_end_of_a_budget_or_a_stop_is_looked_at_too():
    assert not solve(PROBLEM, WILD, calls=5 * 90).ok
    assert not solve(PROBLEM, WILD, steps=99, every=90, callbacks=lambda s: s.t == 90).ok


def test_a_state_that_is_not_finite_never_overwrites_a_checkpoint(tmp_path):
    path = tmp_path / "state.pt"
    good = solve(PROBLEM, WILD, steps=3, checkpoint=path).state
    assert not solve(PROBLEM, WILD, steps=99, checkpoint=path, checkpoint_every=30, resume=True).ok
    kept = load_state(path, WILD, WILD.oracle(PROBLEM))
    assert kept.t == 3
    assert torch.equal(kept.y, good.y)


def test_z_is_looked_at():
    """x and y of this problem do not depend on z, which alone goes to infinity."""
    data = torch.ones(8, 1, dtype=torch.float64)
    problem = BilevelProblem(
        lambda x, y, b: (y - b).square().mean() + x.square().sum(),
        lambda x, y, b: (y - 1).square().sum(),
        torch.ones(1, dtype=torch.float64),
        torch.zeros(1, dtype=torch.float64),
        data,
        data,
        batch_size=4,
    )
    found = solve(problem, SLIP(lr_x=0.01, lr_y=0.1, lr_z=1e5), steps=99, limit=1e300)
    assert found.message.startswith("non-finite: z is not finite")


def test_resuming_with_another_seed_is_refused(tmp_path):
    path, method = tmp_path / "state.pt", SOBA(lr_x=0.1, lr_y=0.1)
    solve(PROBLEM, method, steps=4, seed=2, checkpoint=path)
    with pytest.raises(
        RuleError, match=r"seed must be that of the checkpoint, 2, or be left out, to resume, got 3"
    ):
        solve(PROBLEM, method, steps=8, seed=3, checkpoint=path, resume=True)
    assert solve(PROBLEM, method, steps=8, checkpoint=path, resume=True).state.seed == 2
    assert solve(PROBLEM, method, steps=9, seed=2, checkpoint=path, resume=True).state.t == 9


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_nan_is_no_setting(case):
    """Every field that takes a float: lr_warm and lr_refine used to pass."""
    known = [
        f.name
        for f in fields(type(case.make()))
        if {"Rate", "float"} & set(str(f.type).split(" | "))
    ]
    assert {"lr_x", "lr_y"} <= set(known)
    for name in known:
        with pytest.raises(RuleError, match=f"{name} must .*got nan"):
            case.make(**{name: math.nan})


def test_nan_of_a_schedule_is_refused():
    with pytest.raises(RuleError, match=r"lr_y\(0\) must be a number, got nan"):
        SOBA(lr_x=0.1, lr_y=lambda t: math.nan)
    later = SOBA(lr_x=0.1, lr_y=lambda t: 0.1 if t < 5 else math.nan)
    with pytest.raises(RuleError, match=r"lr_y\(5\) must be a number, got nan"):
        solve(PROBLEM, later, steps=9)
    with pytest.raises(RuleError, match=r"lr_warm must .*got nan"):
        SLIP(lr_x=0.1, lr_y=0.1, lr_z=0.1, lr_warm=math.nan)
    with pytest.raises(RuleError, match=r"lr_refine must .*got nan"):
        BOREP(lr_x=0.1, lr_y=0.1, lr_z=0.1, lr_refine=math.nan)


def test_a_further_row_leaves_the_studies_of_the_sixteen_alone(monkeypatch):
    """One more row used to end ``mindgap list`` with a KeyError in b0 and b3."""
    row = MethodInfo(
        "dummy",
        "Dummy",
        "Nobody, 2026",
        "single",
        "finite sum",
        "-",
        "-",
        "-",
        "-",
        ("lr_x",),
        "jacobi",
        "soba",
        "SOBA",
    )
    monkeypatch.setitem(METHODS, "dummy", row)
    assert "dummy" not in SIXTEEN
    assert len(SIXTEEN) == 16
    import importlib

    from mindgap.lab.studies import bilevel_runs

    importlib.reload(bilevel_runs)
    assert len(bilevel_runs.TITLES) == 16


def _state():
    method = SOBA(lr_x=0.1, lr_y=0.1)
    return method.start(PROBLEM)


def _problem():
    data = torch.randn(8, 2)
    return {
        "upper": lambda x, y, b: (b @ y).square().mean() + x.sum(),
        "lower": lambda x, y, b: (b @ y - x.sum()).square().mean(),
        "x": torch.zeros(2),
        "y": torch.zeros(2),
        "upper_data": data,
        "lower_data": data,
        "batch_size": 4,
    }


def _solve(**changes):
    return {
        "problem": PROBLEM,
        "method": SOBA(lr_x=0.1, lr_y=0.1),
        "steps": 2,
        "seconds": 0.2,
        **changes,
    }


CALLS = {
    "solve": (solve, lambda: _solve()),
    "Batches": (Batches, lambda: {"data": torch.zeros(8, 2), "batch_size": 4}),
    "Stream": (Stream, lambda: {"sample": lambda seed: torch.zeros(2)}),
    "BilevelProblem": (BilevelProblem, _problem),
    "hypergradient": (
        hypergradient,
        lambda: {"problem": PROBLEM, "x": QUADRATIC.x0, "y": QUADRATIC.y0},
    ),
    "implicit_solution": (
        implicit_solution,
        lambda: {"problem": PROBLEM, "x": QUADRATIC.x0, "y": QUADRATIC.y0},
    ),
    "suggest_steps": (suggest_steps, lambda: {"problem": PROBLEM, "batches": 1, "products": 2}),
    "AdamStep": (AdamStep, dict),
    "MomentumStep": (MomentumStep, dict),
    "CudaGraphs": (CudaGraphs, dict),
    "Power": (Power, lambda: {"c": 1.0, "exponent": 0.5}),
    "Constant": (Constant, lambda: {"c": 1.0}),
    "TorchStep": (TorchStep, lambda: {"optimizer": torch.optim.SGD}),
    "lower_solution": (lower_solution, lambda: {"problem": PROBLEM, "x": QUADRATIC.x0}),
    "hyper_objective": (hyper_objective, lambda: {"problem": PROBLEM, "x": QUADRATIC.x0}),
    "exact_hypergradient": (exact_hypergradient, lambda: {"problem": PROBLEM, "x": QUADRATIC.x0}),
    "save_state": (save_state, lambda: {"path": "/dev/null/none", "state": _state()}),
    "load_state": (
        load_state,
        lambda: {"path": "/dev/null/none", "method": _state().method, "oracle": _state().oracle},
    ),
    "unpack_state": (
        unpack_state,
        lambda: {"content": {}, "method": _state().method, "oracle": _state().oracle},
    ),
    "start": (
        lambda problem, seed=0, distributed=False: SOBA(lr_x=0.1, lr_y=0.1).start(
            problem, seed, distributed=distributed
        ),
        lambda: {"problem": PROBLEM},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_bad_values_end_in_our_error(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, arguments = CALLS[name]
    assert (
        faults(
            function, arguments, allowed=(OSError,) if "state" in name or name == "solve" else ()
        )
        == []
    )


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_bad_settings_end_in_our_error(case):
    def one_step(method):
        method.step(method.start(PROBLEM))

    assert faults(type(case.make()), lambda: dict(case.settings), after=one_step) == []


def test_what_the_sources_say_stands_beside_the_printed_complexities():
    """The table stays as printed; SRBA's abstract and SABA's say something else, and the notes
    say so.
    """
    assert METHODS["srba"].complexity == "Õ(ε⁻³)"
    assert "O(N^{1/2} ε⁻²)" in METHODS["srba"].note
    assert "no power of N" in METHODS["saba"].note
