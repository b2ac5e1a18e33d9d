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


def test_its_growth_of_smoothness_is_that_of_the_package() -> None:
    from mindgap.measure.relaxed_smoothness import fit_relaxed_smoothness

    said = {True: "yes", False: "no", None: "open"}
    draw, seen = np.random.default_rng(3), set()
    for power, spread in ((1.0, 10.0), (0.0, 10.0), (-1.0, 10.0), (1.0, 1.5), (0.3, 5.0)):
        g = np.geomspace(0.1, 0.1 * spread, 60)
        y = g**power * np.exp(0.02 * draw.standard_normal(60))
        rows = [{"gradient_norm": a, "smoothness": b} for a, b in zip(g, y, strict=True)]
        rank, answer = recompute_verdicts.growth({"rows": [*rows, {"step": 61}]})
        fit = fit_relaxed_smoothness(g, y)
        assert rank == pytest.approx(fit.rank, rel=1e-6, abs=1e-9)
        assert answer == said[fit.grows]
        seen.add(answer)
    assert seen == {"yes", "no", "open"}


def test_a_planted_correlation_decides_s1_both_ways() -> None:
    def records(clipped: float, other: float, loss: float = 5.0) -> list[dict]:
        g, draw = np.geomspace(0.1, 1.0, 60), np.random.default_rng(0)
        found = []
        for method, power in (("clipped, step 30", clipped), ("clipped, step 2", other)):
            for seed in range(3):
                y = g**power * np.exp(0.1 * draw.standard_normal(60))
                rows = [
                    {"gradient_norm": a, "smoothness": b, "validation_loss": loss}
                    for a, b in zip(g, y, strict=True)
                ]
                header = {"method": method, "seed": seed, "settings": {}}
                found.append({"header": header, "rows": rows})
        return found

    judge = recompute_verdicts.smoothness
    assert judge(records(1.0, 0.0)) == "holds"
    assert judge(records(0.0, 0.0)) == judge(records(1.0, 1.0)) == "does not hold"
    assert judge(records(1.0, 0.0, loss=5.4)) == "not trained"
