"""Null simulations: equal methods are equal, rates are kept with the verdict, and a biased rule
is seen.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from references.made_up_runs import made_up

from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.null import null_rates
from mindgap.lab.studies.run import plan, run_all
from mindgap.lab.studies.spec import Parts
from mindgap.record.forms import read_form
from mindgap.record.schema import Verdict

H12 = "h12-images-acclip"


def accuracies(leads: dict[str, float], seeds: int = 8):
    rng = np.random.default_rng(0)
    row = {"train_loss": 0.1, "lr": 0.1}
    names = find(H12).methods
    levels = {name: 0.8 + leads.get(name, 0.0) for name in names}
    return made_up(
        H12,
        {
            name: [
                {"test_accuracy": level + 0.01 * rng.standard_normal(), **row} for _ in range(seeds)
            ]
            for name, level in levels.items()
        },
    )


def test_equal_methods_rarely_hold_whatever_the_records_say():
    """ACClip leads by far in the records: the null simulation makes all equal and the rule must
    not hold.
    """
    runs = accuracies({"ACClip": 0.1, "SGD with momentum": 0.2})
    assert find(H12).judge(runs).verdict == "holds"
    rates = null_rates(find(H12), runs, draws=200)
    assert rates["holds"] <= 0.02
    assert rates["draws"] == 200
    assert null_rates(find(H12), runs, draws=200) == rates  # the same records, the same rates


def test_a_rule_that_says_holds_by_chance_is_seen():
    def judge(runs):
        parts = Parts()
        ends = {run.header.method: run.rows[-1]["test_accuracy"] for run in runs}
        parts.add("ACClip ahead in the last seed", ends["ACClip"] > ends["Adam"])
        return parts

    rates = null_rates(replace(find(H12), judge=judge), accuracies({}), draws=200)
    assert 0.3 < rates["holds"] < 0.7
    assert rates["holds"] + rates["does not hold"] == 1.0


def test_rates_are_written_with_the_verdict(tmp_path):
    run_all([plan(find("e8-windows"), "quick")], tmp_path)
    verdict = read_form(Verdict, tmp_path / "e8-windows" / "quick" / "verdict.json")
    assert verdict.null == {"holds": 0.0, "does not hold": 1.0, "draws": 50}
    assert (verdict.as_printed, verdict.as_corrected) == ("does not hold", "holds")
