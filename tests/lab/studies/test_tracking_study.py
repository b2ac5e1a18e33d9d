"""B10: the tracking error is the predicted one, and the verdict turns when the statement is made
false.

Its rule asks questions of yes or no about exact readings: "inconclusive" cannot come out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.run import simulate


@pytest.fixture(scope="module")
def tracking():
    return simulate(find("b10-tracking"), "quick", seeds=1)


def test_b10_holds(tracking):
    verdict = find("b10-tracking").judge(tracking)
    assert verdict.verdict == "holds", verdict.measured
    assert verdict.numbers["sgd_gap"] < 1e-14
    assert all(0.9 < ratio < 1.1 for ratio in verdict.numbers["ratio"].values())
    # where drift dominates the larger step is better; where noise dominates the smaller one
    end = {run.header.method: np.mean([row["error"] for row in run.rows[-40:]]) for run in tracking}
    assert end["drift 0.3, step 0.3"] < end["drift 0.3, step 0.1"]
    assert end["drift 0, step 0.3"] > end["drift 0, step 0.1"]


def test_b10_moves_x_by_the_drift_and_leaves_it_where_frozen(tracking):
    for run in tracking:
        steps, drift = run.rows[-1]["step"], run.header.settings["drift"]
        assert run.rows[-1]["moved"] == pytest.approx(steps * drift, rel=0.02)


def test_b10_fails_where_y_has_had_no_time_to_follow():
    assert find("b10-tracking").judge(
        simulate(find("b10-tracking"), "quick", seeds=1, steps=12, every=1)
    ).verdict == ("does not hold")


def test_b10_fails_where_frozen_is_not_plain_sgd(tracking):
    other = [
        replace(run, rows=tuple({**row, "sgd_gap": row["sgd_gap"] + 1e-9} for row in run.rows))
        for run in tracking
    ]
    assert find("b10-tracking").judge(other).verdict == "does not hold"
