"""The helper that feeds bad values sees foreign errors and hangs."""

from __future__ import annotations

from bad_values import bad_values, faults, trials

from mindgap.base.check import positive


def checked(x=1.0):
    return positive("x", x)


def unchecked(x=1.0, *, rounds=1):
    total = x + 1.0
    while rounds == "abc":
        total += 1.0
    return total


def test_a_checked_function_has_no_fault():
    outcomes = trials(checked, dict)
    assert set(outcomes.values()) == {"accepted", "refused"}
    assert len(outcomes) == len(bad_values()) >= 15


def test_foreign_errors_and_hangs_are_named():
    found = faults(unchecked, dict, seconds=0.1)
    assert any(line.startswith("x = text: TypeError") for line in found)
    assert "rounds = text: hang: not done after 0.1 s" in found


def test_a_late_error_counts_too():
    assert faults(checked, dict, after=lambda result: [][0])
