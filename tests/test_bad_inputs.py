"""A part of the sweep over bad inputs: public functions of most rooms, three values per parameter.

The whole sweep is ``python tests/bad_inputs_sweep.py``.
"""

from __future__ import annotations

import sys
import types

import pytest
from bad_inputs_sweep import sweep

ROOMS = [
    *(f"mindgap.lab.theory.chapter{n}" for n in range(2, 7)),
    "mindgap.lab.theory.noise",
    "mindgap.lab.theory.assumptions",
    "mindgap.lab.tasks.problems.quadratic",
    "mindgap.lab.tasks.problems.cleaning",
    "mindgap.lab.tasks.data.tabular",
    "mindgap.lab.tasks.models",
    "mindgap.optim.averaging",
    "mindgap.rules",
    "mindgap.bilevel.data.problem",
    "mindgap.bilevel.tools.checkpoint",
    "mindgap.bilevel.methods",
    "mindgap.measure.hessian",
    "mindgap.measure.per_sample",
]


@pytest.mark.parametrize("room", ROOMS)
def test_bad_values_end_in_our_error(room: str) -> None:
    tried, faults, _ = sweep([room], only=3)
    assert tried >= 6
    assert faults == []


def test_the_sweep_sees_a_function_without_checks() -> None:
    source = (
        'def half(x):\n    """Half of x.\n\n    >>> half(2.0)\n    1.0\n    """\n    return x / 2\n'
        "def wait(x):\n    '''Wait.\n\n    >>> wait(0)\n    '''\n    while x == 0.5:\n        "
        "pass\n"
    )
    module = types.ModuleType("made_up_room")
    sys.modules["made_up_room"] = module
    try:
        exec(source, vars(module))
        offered = {("made_up_room", "half"), ("made_up_room", "wait")}
        tried, faults, _ = sweep(["made_up_room"], seconds=0.1, offered=offered)
    finally:
        del sys.modules["made_up_room"]
    assert tried > 40
    assert (
        "made_up_room.half(x = text): TypeError: unsupported operand type(s) for /: 'str' and 'int'"
        in faults
    )
    assert "made_up_room.wait(x = half): hang: not done after 0.1 s" in faults
