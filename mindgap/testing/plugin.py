"""The options of ``pytest --pyargs mindgap.testing``; pytest finds them by an entry point.

Imports nothing heavy: pytest loads it in every run.
"""

from __future__ import annotations

from typing import Any


def pytest_addoption(parser: Any) -> None:
    """Add the options ``--optimizer`` and ``--settings`` to pytest's command line."""
    group = parser.getgroup("mindgap", "contracts of optimizers (mindgap.testing)")
    group.addoption(
        "--optimizer",
        action="append",
        default=[],
        metavar="MODULE:CLASS",
        help="class that the contracts run on; may be given several times",
    )
    group.addoption(
        "--settings",
        action="append",
        default=[],
        metavar="JSON",
        help="arguments of the class, such as '{\"lr\": 0.1}'; one per --optimizer, in their order",
    )


def pytest_configure(config: Any) -> None:
    """Let the contracts' assertions show their values."""
    import pytest

    pytest.register_assert_rewrite("mindgap.testing.contracts", "mindgap.testing.loop")
