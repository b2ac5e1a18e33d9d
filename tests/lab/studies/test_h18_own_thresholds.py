"""The study ``h18-own-thresholds`` says what is true of made-up runs, and can come out either
way.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.catalogue.heavy_tails.h18_own_thresholds import OURS, optimizer_of
from mindgap.lab.studies.run import simulate
from mindgap.record.schema import Run


def changed(runs: list[Run], ratio: float, level: float = 0.05) -> list[Run]:
    """The runs with test losses near ``level`` for every clip, and ``ratio`` times that for ours;
    the best clip by validation is 0.3.
    """
    out = []
    for run in runs:
        method, seed = run.header.method, run.header.seed
        test = level * (1 + 0.01 * seed) * (ratio if method == OURS else 1.0)
        # A clip that is best on the test points alone must not be chosen.
        test *= 0.1 if method == "clip 3" else 1.0
        validation = 0.5 if method == "clip 0.3" else 1.0
        rows = [{**r, "validation": validation, "test": test, "variance": 1.0} for r in run.rows]
        out.append(replace(run, rows=rows))
    return out


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return list(simulate(find("h18-own-thresholds"), "quick", seeds=3, steps=4))


@pytest.mark.parametrize(
    ("ratio", "level", "expected"),
    [
        (0.8, 0.05, "holds"),
        (1.25, 0.05, "does not hold"),
        (1.0, 0.05, "inconclusive"),
        (0.8, 0.6, "not trained"),
    ],
)
def test_the_verdict_follows_the_runs(
    runs: list[Run], ratio: float, level: float, expected: str
) -> None:
    found = find("h18-own-thresholds").judge(changed(runs, ratio, level))
    assert found.verdict == expected


def test_all_methods_see_the_same_targets(runs: list[Run]) -> None:
    spreads = {run.header.seed: set() for run in runs}
    for run in runs:
        spreads[run.header.seed] |= {row["variance"] for row in run.rows}
    assert all(len(found) == 1 for found in spreads.values())
    assert len(set.union(*spreads.values())) == 3


def test_methods_clip_as_they_are_called() -> None:
    study, weight = find("h18-own-thresholds"), torch.nn.Parameter(torch.ones(2))
    made = {m: optimizer_of(study.settings("cpu", m), 0.01, [weight]) for m in study.methods}
    assert made[OURS].param_groups[0]["coordinates"] == 3.0
    assert made[OURS]._norm_clip == "unit"
    assert made["clip 0.3"]._norm_clip == 0.3
    assert made["AdamW"]._norm_clip is None
