"""The solver files for benchmark_bilevel run, with a stub of benchopt and losses of the
benchmark's form.
"""

from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

jax = pytest.importorskip("jax")
FOLDER = Path(__file__).parents[2] / "examples" / "benchopt"


class Base:
    parameters: dict = {}  # noqa: RUF012

    def __init__(self):
        vars(self).update({name: choices[0] for name, choices in self.parameters.items()})

    def run_once(self, count):
        rounds = iter(range(count + 1))
        self.run(lambda: next(rounds) < count)


def load(name: str, monkeypatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name.rpartition('.')[2]}.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


def test_soba_runs_as_a_solver_of_the_benchmark(monkeypatch):
    stubs = {
        name: ModuleType(name)
        for name in (
            "benchopt",
            "benchopt.stopping_criterion",
            "benchmark_utils",
            "benchmark_utils.constants",
        )
    }
    stubs["benchopt"].BaseSolver = Base
    stubs["benchopt.stopping_criterion"].SufficientProgressCriterion = lambda **options: None
    stubs["benchmark_utils"].constants = stubs["benchmark_utils.constants"]
    stubs["benchmark_utils.constants"].PATIENCE = 3
    for name, module in stubs.items():
        monkeypatch.setitem(sys.modules, name, module)
    load("benchmark_utils.mindgap_solver", monkeypatch)
    solver = load("mindgap_soba", monkeypatch).Solver()
    targets = jax.numpy.linspace(0.5, 1.5, 256)

    @partial(jax.jit, static_argnames="batch_size")
    def outer(inner_var, outer_var, start=0, batch_size=1):
        return ((inner_var - jax.lax.dynamic_slice(targets, (start,), (batch_size,))) ** 2).mean()

    @partial(jax.jit, static_argnames="batch_size")
    def inner(inner_var, outer_var, start=0, batch_size=1):
        return ((inner_var - outer_var) ** 2).sum()

    solver.step_size = 0.3
    solver.set_objective(inner, outer, 256, 256, jax.numpy.zeros(1), jax.numpy.zeros(1))
    rounds = iter(range(9))
    solver.run(lambda: next(rounds) < 8)
    found = solver.get_result()
    np.testing.assert_allclose(found["outer_var"], [1.0], atol=0.1)
    np.testing.assert_allclose(found["inner_var"], [1.0], atol=0.1)
