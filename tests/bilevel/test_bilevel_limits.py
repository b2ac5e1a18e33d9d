"""``solution.limits`` names the part that limits a run, where it is known by construction."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mindgap.bilevel import MASOBA, PBGD, StocBio, solve
from mindgap.bilevel.backends.oracles import TorchOracle
from mindgap.bilevel.data.sample import FULL
from mindgap.bilevel.tools.exact import exact_hypergradient, lower_solution
from mindgap.bilevel.tools.limits import Limits, Part, limits_of


def _benchmark():
    """The benchmark whose quadratics these are."""
    path = Path(__file__).parents[2] / "benchmarks" / "bilevel_limits.py"
    spec = importlib.util.spec_from_file_location("bilevel_limits", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LIMITS = _benchmark()
RATES = LIMITS.GOOD


def quadratic(seed, dims=(4, 6)):
    return LIMITS.quadratic(seed, dims)


@pytest.mark.parametrize(
    ("slow", "part", "words"),
    [
        ("lr_x", "x", "raise lr_x"),
        ("lr_y", "lower", "raise lr_y"),
        ("lr_z", "system", "raise lr_z"),
    ],
)
def test_the_slowed_part_is_named(slow, part, words):
    found = solve(quadratic(3), MASOBA(**{**RATES, slow: RATES[slow] / 100}), 150).limits
    assert found.largest == part
    assert found.clear
    assert words in found.message


def test_the_parts_are_those_of_the_closed_form():
    problem = quadratic(4)
    state = MASOBA(**RATES).start(problem)
    y = lower_solution(problem, state.x)
    oracle = TorchOracle(problem)
    z = torch.linalg.solve(oracle.dense(state.x, y, FULL)[1], oracle.upper_y(state.x, y, FULL))
    exact = exact_hypergradient(problem, state.x)
    at = limits_of(replace(state, values={**state.values, "y": y, "z": z}))
    assert at.gradient.norm == pytest.approx(float(exact.norm()), rel=1e-6)
    assert at.x.norm == pytest.approx(at.gradient.norm, rel=1e-6)
    assert at.lower.norm < 1e-6
    assert at.system.norm < 1e-6
    away = limits_of(replace(state, values={**state.values, "y": y, "z": 0.0 * z}))
    assert away.system.norm > 1e-2
    assert away.lower.norm < 1e-6


def test_a_short_neumann_series_limits_and_a_penalty_method_has_no_system():
    short = StocBio(lr_x=0.05, lr_y=0.3, eta=0.01, terms=1, inner=5)
    assert solve(quadratic(5), short, 150).limits.largest == "system"
    assert solve(quadratic(5), PBGD(lr_x=0.01, lr_y=0.3), 20).limits.system.norm < 1e-6


def test_parts_within_their_errors_are_not_told_apart():
    close = Limits(Part(1.0, 0.1), Part(1.0, 0.3), Part(1.2, 0.3), Part(0.0, 0.0))
    assert not close.clear
    assert close.message.startswith("no part is clearly the largest")
    assert Limits(Part(1.0, 0.1), Part(1.0, 0.3), Part(3.2, 0.3), Part(0.0, 0.0)).clear


def test_limits_leave_the_state_alone():
    found = solve(quadratic(6), MASOBA(**RATES), 5)
    before = {name: value.clone() for name, value in found.state.values.items()}
    calls = dict(found.state.calls)
    _ = found.limits
    assert calls == found.state.calls
    assert all(torch.equal(before[name], found.state.values[name]) for name in before)
