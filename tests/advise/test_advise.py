"""Advice follows the numbers: every assumption can fail, hold, or be left open."""

from __future__ import annotations

import pytest
import torch

from mindgap.advise import ASSUMPTIONS, Estimate, Judgement, Measurements, diagnose, prescribe
from mindgap.base.check import RuleError

#: assumption -> measurements with which it fails, holds, and is left open
SAID = {
    "finite variance": [
        Measurements(tail_index=Estimate(*e))
        for e in ((1.4, 1.2, 1.6), (4.0, 3.0, 5.0), (1.9, 1.7, 2.1))
    ],
    "smoothness": [
        Measurements(smoothness_slope=Estimate(*e))
        for e in ((0.9, 0.7, 1.1), (0.0, -0.1, 0.1), (0.3, -0.1, 0.7))
    ],
    "stable step": [Measurements(sharpness=s, threshold=20.0) for s in (30.0, 10.0)],
    "stationarity": [
        Measurements(loss_drift=drift, gradient_norm=norm, gradient_norm_start=1.0)
        for drift, norm in ((0.001, 0.6), (0.001, 0.01), (0.2, 0.6))
    ],
    "finite gradients": [Measurements(skipped=share) for share in (0.02, 0.0)],
}


@pytest.mark.parametrize("name", ASSUMPTIONS)
def test_every_assumption_can_fail_and_hold(name: str) -> None:
    (bad,), (good,) = map(diagnose, SAID[name][:2])
    assert (bad.assumption, bad.fails) == (name, True)
    assert (good.assumption, good.fails) == (name, False)
    assert prescribe([bad])
    assert prescribe([good]) == []


@pytest.mark.parametrize("name", [name for name, said in SAID.items() if len(said) == 3])
def test_what_cannot_be_told_gets_no_advice(name: str) -> None:
    (finding,) = diagnose(SAID[name][2])
    assert finding.fails is None
    assert prescribe([finding]) == []


def test_nothing_measured_nothing_said() -> None:
    assert diagnose(Measurements()) == []


@pytest.mark.parametrize("name", ASSUMPTIONS)
def test_advised_code_runs_where_it_is_pasted(name: str) -> None:
    model = torch.nn.Linear(2, 1)
    names = {"torch": torch, "model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)}
    (advice,) = prescribe([Judgement(name, True, "")])
    exec(advice.code, names)
    names["optimizer"].step()  # type: ignore[attr-defined]
    assert "scheduler" not in advice.code or hasattr(names["scheduler"], "step")
    assert max(map(len, advice.code.splitlines())) <= 76


def test_bad_readings_are_named() -> None:
    with pytest.raises(
        RuleError, match=r"interval must satisfy low <= value <= high, got \(2, 1, 3\)"
    ):
        Estimate(1, 2, 3)
    with pytest.raises(RuleError, match="threshold must be positive"):
        diagnose(Measurements(sharpness=1.0, threshold=0.0))
