"""The verdicts on networks follow from the JSON lines by rules written down a second time, with
numpy alone.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import numpy as np
import pytest

HERE = Path(__file__).parents[1]
sys.path.insert(0, str(HERE))
import recompute_verdicts  # noqa: E402


def test_every_verdict_on_a_network_is_computed_alike() -> None:
    found = recompute_verdicts.recomputed()
    assert len({name for name, *_ in found}) == 20
    assert [one for one in found if one[2] != one[3]] == []


def test_the_script_uses_nothing_of_the_package() -> None:
    tree = ast.parse((HERE / "recompute_verdicts.py").read_text(encoding="utf-8"))
    names = {
        alias.name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    } | {
        str(node.module).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert names - set(sys.stdlib_module_names) == {"numpy"}


def test_its_quantile_and_interval_are_students() -> None:
    from scipy.stats import t

    for share, degrees in ((0.95, 4), (0.975, 19), (0.999, 7), (0.05, 11)):
        assert recompute_verdicts.quantile(share, degrees) == pytest.approx(
            float(t.ppf(share, degrees)), rel=1e-3
        )
    mean, low, high = recompute_verdicts.interval(np.array([1.0, 2.0, 3.0]), 0.05)
    assert (mean, low, high) == pytest.approx((2.0, -0.484, 4.484), abs=2e-3)
