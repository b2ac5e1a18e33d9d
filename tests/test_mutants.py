"""The planted faults are what their names say, and the sample stays the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from mutants import SAMPLE, Passing, _failures, chosen_tests, equivalent, mutants_of, sample

CODE = '''"""A module."""


def share(part: float, whole: float = 2.0) -> float:
    """Its share."""
    if part < 0 and whole is None:
        raise ValueError(f"{part + 1}")
    return part / whole
'''


def test_each_mutant_changes_one_place_and_nothing_in_messages(tmp_path: Path) -> None:
    (tmp_path / "room.py").write_text(CODE)
    found = {
        m.name.split("::", 1)[1]: m.source for m in mutants_of(tmp_path / "room.py", "r", tmp_path)
    }
    assert sorted(found) == [
        "share::0 to 1::1",
        "share::2.0 to 3.0::1",
        "share::And to Or::1",
        "share::Div to Mult::1",
        "share::Is to IsNot::1",
        "share::Lt to LtE::1",
    ]
    assert "return (part * whole)" in found["share::Div to Mult::1"]
    assert "whole: float = (3.0)" in found["share::2.0 to 3.0::1"]
    assert all(compile(source, "room.py", "exec") for source in found.values())


def test_the_sample_is_fixed_and_every_excuse_names_one_of_it_with_a_reason() -> None:
    names = [mutant.name for mutant in sample()]
    assert len(names) == len(set(names)) == SAMPLE
    assert names == [mutant.name for mutant in sample()]
    excuses = equivalent()
    assert set(excuses) <= set(names)
    assert all(len(reason) > 20 for reason in excuses.values())


def test_a_mutant_is_shown_to_the_tests_that_run_its_line_short_ones_first(
    tmp_path: Path,
) -> None:
    (tmp_path / "room.py").write_text(CODE)
    made = {m.name.split("::")[2]: m for m in mutants_of(tmp_path / "room.py", "optim", tmp_path)}
    assert made["Div to Mult"].reach == range(8, 9)
    assert made["Lt to LtE"].reach == range(6, 7)  # the condition, not what follows
    assert made["2.0 to 3.0"].reach == range(5, 9)  # a default: the whole function
    a, b, c = (
        Passing(f"{file}::{name}", seconds, {"room.py": frozenset(lines)})
        for file, name, seconds, lines in (
            ("tests/x.py", "a", 9.0, (6, 8)),
            ("tests/x.py", "b", 1.0, (6, 7)),
            ("room.py", "c", 2.0, (6, 7, 8)),
        )
    )
    assert chosen_tests(made["Div to Mult"], [a, b, c]) == [c, a]
    assert chosen_tests(made["Lt to LtE"], [a, b, c]) == [c, b, a]
    assert chosen_tests(made["Lt to LtE"], [a, b, c], cap=4) == [c, b]
    on_import = replace(made["Lt to LtE"], reach=None)
    assert chosen_tests(on_import, [replace(b, lines={})]) == [replace(b, lines={})]


def test_what_failed_is_read_from_the_summary() -> None:
    text = "..F\nFAILED tests/a.py::test_b[1-2] - assert 0 - 1\nERROR tests/c.py\n1 failed"
    assert _failures(text) == ["tests/a.py::test_b[1-2]", "tests/c.py"]
