"""Advice follows the numbers: every assumption can fail, hold, or be left open."""

from __future__ import annotations

import re

import pytest

import mindgap.optim
from mindgap.advise import ASSUMPTIONS, Estimate, Judgement, Measurements, diagnose, prescribe
from mindgap.base.check import RuleError

BAD = {
    "finite variance": Measurements(tail_index=Estimate(1.4, 1.2, 1.6)),
    "smoothness": Measurements(smoothness_slope=Estimate(0.9, 0.7, 1.1)),
    "stable step": Measurements(sharpness=30.0, threshold=20.0),
    "stationarity": Measurements(loss_drift=0.001, gradient_norm=0.6, gradient_norm_start=1.0),
    "finite gradients": Measurements(skipped=0.02),
}
GOOD = {
    "finite variance": Measurements(tail_index=Estimate(4.0, 3.0, 5.0)),
    "smoothness": Measurements(smoothness_slope=Estimate(0.0, -0.1, 0.1)),
    "stable step": Measurements(sharpness=10.0, threshold=20.0),
    "stationarity": Measurements(loss_drift=0.001, gradient_norm=0.01, gradient_norm_start=1.0),
    "finite gradients": Measurements(skipped=0.0),
}
OPEN = {
    "finite variance": Measurements(tail_index=Estimate(1.9, 1.7, 2.1)),
    "smoothness": Measurements(smoothness_slope=Estimate(0.3, -0.1, 0.7)),
    "stationarity": Measurements(loss_drift=0.2, gradient_norm=0.6, gradient_norm_start=1.0),
}


@pytest.mark.parametrize("name", ASSUMPTIONS)
def test_every_assumption_can_fail_and_hold(name: str) -> None:
    (bad,), (good,) = diagnose(BAD[name]), diagnose(GOOD[name])
    assert (bad.assumption, bad.fails) == (name, True)
    assert (good.assumption, good.fails) == (name, False)
    assert prescribe([bad])
    assert prescribe([good]) == []


@pytest.mark.parametrize("name", OPEN)
def test_what_cannot_be_told_gets_no_advice(name: str) -> None:
    (finding,) = diagnose(OPEN[name])
    assert finding.fails is None
    assert prescribe([finding]) == []


def test_nothing_measured_nothing_said() -> None:
    assert diagnose(Measurements()) == []


def test_advised_optimizers_exist() -> None:
    advice = prescribe([Judgement(name, True, "") for name in ASSUMPTIONS])
    named = {match for item in advice for match in re.findall(r"^(\w+)\(model", item.code)}
    assert named
    assert named <= set(dir(mindgap.optim))


def test_bad_readings_are_named() -> None:
    with pytest.raises(RuleError, match=r"interval must satisfy low <= value <= high, got \(2, 1, 3\)"):
        Estimate(1, 2, 3)
    with pytest.raises(RuleError, match="threshold must be positive"):
        diagnose(Measurements(sharpness=1.0, threshold=0.0))
