"""The check of a user's types can fail, and the choices named for type checkers are those that the
checks at run time know. The check itself runs against the wheel, in ``make test-clean``.
"""

from __future__ import annotations

import runpy
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from mindgap.base.check import RuleError
from mindgap.bilevel import SLIP, SOBA, MetaLearner, StocBio
from mindgap.measure.table import PROBES, ProbeName
from mindgap.optim.settings import SPIKE_GUARDS, SpikeGuard

TOOL = runpy.run_path(str(Path(__file__).parents[1] / "users_types.py"))
PROGRAM = 'a = f("skp")  # rejected: "skp"\nreveal_type(b)  # revealed: int\nc = 1\n'


@pytest.mark.parametrize(
    ("errors", "revealed", "words"),
    [
        ({1: ["'skp' is wrong"]}, {2: ["builtins.int"]}, []),
        ({}, {2: ["builtins.int"]}, ["line 1 must be rejected"]),
        ({1: ["something else"]}, {2: ["builtins.int"]}, ["line 1 must be rejected"]),
        ({1: ["'skp' is wrong"]}, {2: ["Any"]}, ["line 2 must reveal int"]),
        ({1: ["'skp' is wrong"]}, {}, ["line 2 must reveal int"]),
        ({1: ["'skp'"], 3: ["no"]}, {2: ["int"]}, ["line 3 must be accepted"]),
    ],
)
def test_the_judge_finds_what_a_checker_did_not_do(
    errors: dict[int, list[str]], revealed: dict[int, list[str]], words: list[str]
) -> None:
    found = TOOL["judge"](PROGRAM, errors, revealed)
    assert len(found) == len(words)
    assert all(line.startswith(word) for line, word in zip(found, words, strict=True))


def test_the_program_names_every_kind_of_choice() -> None:
    text = TOOL["PROGRAM"].read_text(encoding="utf-8")
    for word in ("clip=", "nonfinite=", "spike_guard=", "form=", "order=", "last=", "solver="):
        assert any(word in line and "# rejected" in line for line in text.splitlines()), word


def test_choices_for_type_checkers_are_those_of_the_checks() -> None:
    assert set(get_args(ProbeName)) == set(PROBES)
    assert {None if one is type(None) else get_args(one) for one in get_args(SpikeGuard)} == {
        None,
        tuple(one for one in SPIKE_GUARDS if one is not None),
    }


@pytest.mark.parametrize("kind", [SOBA, SLIP, StocBio, MetaLearner])
def test_every_literal_of_a_method_is_accepted_and_no_other(kind: Any) -> None:
    of_init = {field.name for field in fields(kind) if field.init}
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name in of_init}
    rates = {name: 0.1 for name in ("lr_x", "lr_y", "lr_z") if name in hints}
    choices = {name: hint for name, hint in hints.items() if "Literal" in str(hint)}
    assert choices
    for name, hint in choices.items():
        words = _words(hint)
        for word in words:
            kind(**rates, **{name: word})
        with pytest.raises(RuleError, match=name):
            kind(**rates, **{name: words[0] + "x"})


def _words(hint: Any) -> list[str]:
    """The texts among a union's choices."""
    inside = get_args(hint)
    return [word for arg in inside for word in ([arg] if isinstance(arg, str) else _words(arg))]
