"""A type checker knows what a method keeps, its samples and its rates: a misspelt name is an error
before anything runs.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

from mindgap.bilevel.core.types import Draws, Values
from tests.cases.bilevel import CASES

ROOT = Path(__file__).parents[2]
METHOD = """
from dataclasses import dataclass

from mindgap.bilevel.core.settings import Rate
from mindgap.bilevel.core.settings import rate
from mindgap.bilevel.core.types import Draws, Oracle, WithZ, replace
from mindgap.bilevel.data.draws import LOWER, UPPER, Iteration, SamplePlan
from mindgap.bilevel.method import Method


@dataclass(frozen=True, kw_only=True)
class Mine(Method[WithZ, Draws]):
    lr_x: Rate = rate()
    lr_y: Rate = rate()

    def init(self, oracle: Oracle) -> WithZ:
        x, y = oracle.start
        return WithZ(x, y, z=oracle.zeros_like(y))

    def plan(self) -> SamplePlan:
        return SamplePlan((Iteration({"g": LOWER, "f": UPPER}),))

    def update(self, v: WithZ, s: Draws, oracle: Oracle, kind: str) -> WithZ:
        d_y, d_z, d_x = oracle.residuals(v.x, v.y, v.z, s.g, s.f)
        v = replace(v, z=oracle.move(v.z, d_z, s.lr_y))
        return self.move_x(oracle, v, d_x, s.lr_x)
"""
#: What is misspelt -> the words of the checker.
SLIPS = {
    "v.z, s.g": ("v.zz, s.g", '"WithZ" has no attribute "zz"'),
    "s.lr_y)": ("s.lr_yy)", '"Draws" has no attribute "lr_yy"'),
    "s.g, s.f": ("s.g, s.ff", '"Draws" has no attribute "ff"'),
    "replace(v, z=": ("replace(v, zz=", 'Unexpected keyword argument "zz"'),
    "WithZ(x, y, z=": ("WithZ(x, y, zz=", 'Unexpected keyword argument "zz"'),
    "oracle.move(": ("oracle.moves(", '"Oracle" has no attribute "moves"'),
}
#: Only this room is analysed, so that a run without a cache takes seconds.
SETTINGS = """[mypy]
ignore_missing_imports = true
[mypy-torch.*,numpy.*,jax.*,scipy.*]
follow_imports = skip
"""


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed")
def test_mypy_refuses_a_misspelt_value_sample_or_rate_and_nothing_else(tmp_path):
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    (tmp_path / "right.py").write_text(METHOD)
    for number, (old, (new, _)) in enumerate(SLIPS.items()):
        assert METHOD.count(old) == 1
        (tmp_path / f"wrong{number}.py").write_text(METHOD.replace(old, new))
    # A dict of names, as the values were once, hides all of them.
    files = ["right.py", *(f"wrong{number}.py" for number in range(len(SLIPS)))]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *files],
        cwd=tmp_path,
        env={"MYPYPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
    )
    errors = [line for line in run.stdout.splitlines() if ": error: " in line]
    for number, (_, words) in enumerate(SLIPS.values()):
        found = [e for e in errors if e.startswith(f"wrong{number}.py:")]
        assert any(words in e for e in found), run.stdout + run.stderr
    assert not [e for e in errors if e.startswith("right.py:")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_every_name_of_a_method_is_declared(case):
    """What a plan and ``rates`` name and what a method keeps: an attribute that no class declares
    would be one that no type checker knows.
    """
    method, plan = case.make(), case.make().plan()
    named = {name for i in (*plan.first, *plan.period, plan.warm) for name in i.samples}
    assert named | method.rates(0).keys() <= get_type_hints(Draws).keys()
    keeps = type(method)._values_type
    assert issubclass(keeps, Values)
    from mindgap.bilevel.backends.count import CountingOracle, ProblemSizes

    kept = method.start_values(CountingOracle(ProblemSizes(4, 8, dim_y=1)))
    assert kept.keys() <= keeps.__dataclass_fields__.keys()
    required = {
        name
        for name, f in keeps.__dataclass_fields__.items()
        if not f.kw_only and not (name == "y0" and getattr(method, "warm", False))
    }
    assert required <= kept.keys()
