"""A part of the sweep over bad inputs: public functions of most rooms, three values per parameter.

The whole sweep is ``python tests/bad_inputs_sweep.py``.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch
from bad_inputs_sweep import sweep

from mindgap.advise import examine
from mindgap.base.check import RuleError
from mindgap.base.checked import (
    AtLeast,
    NonNegative,
    Positive,
    Share,
    Vectors,
    checked_types,
)
from mindgap.bilevel import race
from mindgap.bilevel.data.problem import example_problem
from mindgap.lab.tasks.models import AWDLSTM
from mindgap.lab.tasks.problems.running_text import StatefulModel

ROOMS = [
    *(f"mindgap.lab.theory.chapter{n}" for n in range(2, 7)),
    "mindgap.lab.theory.noise",
    "mindgap.lab.theory.assumptions",
    "mindgap.lab.theory.erratum",
    "mindgap.lab.tasks.problems.quadratic",
    "mindgap.lab.tasks.problems.cleaning",
    "mindgap.lab.tasks.problems.running_text",
    "mindgap.lab.tasks.data.tabular",
    "mindgap.lab.tasks.models",
    "mindgap.optim.averaging",
    "mindgap.rules",
    "mindgap.bilevel.backends.oracles",
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


@pytest.mark.parametrize("value", [True, "abc", b"abc", -1, float("nan"), [], np.ones(2)])
def test_what_calls_a_function_refuses_what_is_none(value: Any) -> None:
    with pytest.raises(RuleError, match="told must be a function or None"):
        examine(lambda: None, told=value)
    with pytest.raises(RuleError, match="told must be a function or None"):
        race(example_problem(), ["soba"], calls=400, told=value)


@pytest.mark.parametrize("value", [True, b"abc", -1, 0.5, [], {"a": 1}, int, np.ones(2)])
def test_a_race_refuses_what_is_no_folder_and_no_list_of_names(value: Any) -> None:
    with pytest.raises(RuleError, match="folder must be a str or a Path or None"):
        race(example_problem(), ["soba"], calls=400, folder=value)
    with pytest.raises(RuleError, match="methods must be"):
        race(example_problem(), value, calls=400)


def test_a_race_refuses_a_file_as_its_folder(tmp_path: Path) -> None:
    (tmp_path / "here").write_text("")
    with pytest.raises(RuleError, match="folder must be a folder"):
        race(example_problem(), ["soba"], calls=400, folder=tmp_path / "here")


def test_annotations_are_read_behind_a_decorator_of_another_module() -> None:
    @checked_types
    @torch.no_grad()
    def entries(of: Path, model: StatefulModel) -> int:
        return len(str(of))

    with pytest.raises(RuleError, match="of must be a Path, got 3"):
        entries(3, AWDLSTM(20, width=4, hidden=6))
    with pytest.raises(RuleError, match=r"model must be a StatefulModel \(with blank, train, tr"):
        entries(Path(), torch.nn.Linear(2, 2))
    assert entries(Path("a"), AWDLSTM(20, width=4, hidden=6)) == 1


def test_ranges_are_tested_in_lists_and_beside_other_kinds() -> None:
    """They were taken for arrays: ``[2.0]`` was refused and ``[array([-1.0])]`` let through."""

    @checked_types
    def steps(
        rates: list[Positive],
        counts: Sequence[Annotated[int, AtLeast(2)]] = (2,),
        share: Share | str | None = None,
        least: tuple[NonNegative, Callable[..., Any]] = (0.0, len),
        vectors: list[Vectors] = [],  # noqa: B006
    ) -> int:
        return len(rates)

    assert steps([0.1, 2.0], [2, 3], 0.5, (0.0, len), [np.ones(3)]) == 2
    assert steps([], (), "auto") == steps([], (), None) == 0
    for arguments, words in (
        (([-1.0],), "rates must be a list, each entry a positive and finite number"),
        (([np.array([-1.0])],), "rates must be a list, each entry a positive"),
        (([1.0], [1]), "counts must be a sequence, each entry a whole number of at least 2"),
        (([1.0], [2], 1.0), r"share must be a number in \(0, 1\) or a str or None, got 1.0"),
        (([1.0], [2], None, (-1.0, len)), r"least must .* \(a finite number that is zero or pos"),
        (([1.0], [2], None, (0.0, len), [1.0]), "vectors must .* each entry an array of one axis"),
    ):
        with pytest.raises(RuleError, match=words):
            steps(*arguments)
