"""The planted faults are what their names say, and the sample stays the same."""

from __future__ import annotations

from pathlib import Path

from mutants import SAMPLE, Baseline, _failures, equivalent, mutants_of, order, sample

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


def test_files_that_name_what_is_changed_come_first_and_short_ones_before_long(
    tmp_path: Path,
) -> None:
    names = ("test_a.py", "test_b.py", "test_c.py", "test_d.py")
    files = [f"tests/optim/{name}" for name in names]
    (tmp_path / "tests/optim").mkdir(parents=True)
    for file, text in zip(files, ("", "share(1)", "import room", "")):
        (tmp_path / file).write_text(text)
    (tmp_path / "room.py").write_text(CODE)
    mutant = next(iter(mutants_of(tmp_path / "room.py", "optim", tmp_path)))
    baseline = Baseline(dict(zip(files, (2.0, 9.0, 3.0, 1.0))), {})
    assert order(mutant, baseline, tmp_path) == [files[i] for i in (2, 1, 3, 0)]
    assert baseline.limit(files) == 120 + 3 * 15


def test_what_failed_is_read_from_the_summary() -> None:
    text = "..F\nFAILED tests/a.py::test_b[1-2] - assert 0 - 1\nERROR tests/c.py\n1 failed"
    assert _failures(text) == ["tests/a.py::test_b[1-2]", "tests/c.py"]
