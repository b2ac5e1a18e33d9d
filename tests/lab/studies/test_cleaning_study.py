"""B3, B4: hyper-cleaning's verdict follows the numbers and turns when its statement is made
false.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from references.made_up_runs import made_up

from mindgap.lab.studies.bilevel_runs import TITLES
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.null import lead_rates
from mindgap.lab.studies.run import simulate

CLEANING = ("b3-hyper-cleaning", "b4-hyper-cleaning")


@pytest.mark.parametrize("name", CLEANING)
def test_cleaning_verdict_follows_the_numbers(name):
    judge = find(name).judge

    def runs(slip, others, best=None):
        values = {m: others for m in TITLES if m != "SLIP"} | {"SLIP": slip} | (best or {})
        return made_up(
            name,
            {
                m: [{"test_accuracy": v, "weight_auc": 0.9} for v in row]
                for m, row in values.items()
            },
        )

    low, high = (
        [level + e for e in (0.0, 0.01, -0.01, 0.0, 0.02, 0.01, -0.02, 0.005)]
        for level in (0.80, 0.90)
    )
    assert judge(runs(high, low)).verdict == "holds"
    beaten = judge(runs(high, low, {"SABA": [v + 0.02 + 0.001 * i for i, v in enumerate(high)]}))
    assert beaten.verdict == "does not hold"
    assert "SABA" in beaten.measured
    wobble = (0.01, -0.01, 0.0, 0.02, -0.02, 0.01, -0.01, 0.0)
    assert (
        judge(runs(high, low, {"SABA": [v + e for v, e in zip(high, wobble)]})).verdict
        == "inconclusive"
    )
    slightly = judge(
        runs(high, low, {"SABA": [v + 0.004 for v in high]})
    )  # certain, and too small to matter
    assert slightly.verdict == "inconclusive"
    few = judge(runs(high[:5], low[:5]))
    assert (few.verdict, "5 seeds are too few" in few.measured) == ("inconclusive", True)


def test_spread_and_training_accuracy_are_judged_beside_the_rule():
    jitter = np.array([0.0, 0.01, -0.01, 0.0, 0.02, 0.01, -0.02, 0.005])

    def beside(width, lead):
        ends = {}
        for m in ("SLIP", "SOBA", "SABA", "TTSA"):
            mine = m == "SLIP"
            ends[m] = [
                {
                    "test_accuracy": 0.8 + (width if mine else 1.0) * e,
                    "weight_auc": 0.9,
                    "train_accuracy": 0.7 + 0.1 * e * (m == "SABA") + lead * mine,
                }
                for e in jitter
            ]
        found = find("b3-hyper-cleaning").judge(made_up("b3-hyper-cleaning", ends))
        return found.verdict, list(found.numbers["beside"]["answers"].values())

    assert beside(0.1, 0.05) == ("inconclusive", ["yes", "yes"])
    assert beside(5.0, -0.05) == ("inconclusive", ["no", "no"])  # they have no say in the verdict
    assert beside(1.0, 0.0) == ("inconclusive", ["open", "open"])


def test_the_rule_for_one_against_all_errs_rarely_and_finds_a_clear_lead():
    equal, ahead = lead_rates(0.0, draws=400), lead_rates(2.0, draws=200)
    assert equal["holds"] <= 0.01
    assert (
        equal["does not hold"] <= 0.08
    )  # 0.042 in 1000 draws; two standard errors of 400 are 0.02
    assert ahead["holds"] >= 0.7  # 0.79 in 1000 draws; the old rule said so in 0.36
    assert ahead["does not hold"] == 0


def test_cleaning_does_not_hold_with_a_slip_that_stands_still():
    study = find("b4-hyper-cleaning")
    small = {"oracle_calls": 100, "least_steps": 1, "readings": 1}
    wanted = ("SLIP", "SOBA")
    methods = {name: {**study.methods[name]} for name in wanted}
    methods["SLIP"]["lr_x"] = 1e-9
    methods["SLIP"]["lr_y"] = 1e-3
    lame = replace(study.at("quick"), methods=methods)
    verdict = lame.judge(simulate(lame, "quick", seeds=8, **small))
    assert verdict.verdict == "does not hold", verdict.measured


def test_cleaning_rows_have_the_axes_and_measures():
    study = find("b4-hyper-cleaning")
    settings = study.settings(
        "quick", "SLIP", {"oracle_calls": 60, "readings": 3, "least_steps": 1}
    )
    rows = list(study.loop(Trial("SLIP", 0, settings)))
    assert len(rows) == 4
    for name in (
        "step",
        "x_epoch",
        "y_epoch",
        "oracle_calls",
        "test_accuracy",
        "weight_auc",
        "validation_loss",
    ):
        assert name in rows[-1]
    # SLIP: three warm steps on y; 300 samples in batches of 32 are ten batches an epoch
    assert rows[-1]["y_epoch"] == pytest.approx((rows[-1]["step"] + 3) / 10)
    assert rows[-1]["x_epoch"] == pytest.approx(rows[-1]["step"] / 10)
    assert rows[0]["weight_auc"] == 0.5  # equal weights know nothing


def test_cleaning_scales_can_be_expressed_and_refuse_unknown_data():
    from mindgap.base.check import RuleError

    study = find("b3-hyper-cleaning")
    assert study.settings("paper", "SLIP")["hidden"] == 4096
    with pytest.raises(RuleError, match="data must be one of 'digits', 'mnist-5000', 'mnist'"):
        list(study.loop(Trial("SLIP", 0, study.settings("quick", "SLIP", {"data": "letters"}))))


def test_cleaning_leaves_out_and_names_a_method_that_refuses_the_size(monkeypatch):
    from mindgap.bilevel import SVRB

    study = find("b4-hyper-cleaning")
    monkeypatch.setattr(
        "mindgap.lab.studies.catalogue.bilevel.b3_hyper_cleaning.cleaning_method",
        lambda s: SVRB(lr_x=1.0, lr_y=1.0, mu=0.02, largest=100),
    )
    rows = list(study.loop(Trial("SVRB", 0, study.settings("quick", "SVRB"))))
    assert len(rows) == 1
    assert "must" in rows[0]["refused"]
    ends = {
        name: [{"test_accuracy": 0.8 + 0.01 * i, "weight_auc": 0.9} for i in range(8)]
        for name in TITLES
    }
    ends["SLIP"] = [{"test_accuracy": 0.9 + 0.01 * i, "weight_auc": 0.9} for i in range(8)]
    ends["SVRB"] = [rows[0]] * 8
    verdict = study.judge(made_up("b4-hyper-cleaning", ends))
    assert verdict.verdict == "holds"
    assert verdict.numbers["refused"] == ["SVRB"]
    assert "refused at this size: SVRB" in verdict.measured
