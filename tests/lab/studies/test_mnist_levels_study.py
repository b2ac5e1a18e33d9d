"""Hyper-cleaning beside its controls: the verdict follows the accuracies, and the controls are
what they say.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.catalogue.bilevel.b3_mnist_levels import CLEAN, NOISY
from mindgap.lab.studies.run import plan
from mindgap.lab.studies.spec import Trial
from mindgap.lab.tasks.data import digits
from mindgap.lab.tasks.problems import hyper_cleaning
from mindgap.record.schema import End, Run

STUDY = find("b3-mnist-levels")


def made_up(scatter: float = 0.0, **ends: float) -> list[Run]:
    values = {CLEAN: 0.90, NOISY: 0.85} | dict.fromkeys(list(STUDY.methods)[2:], 0.88) | ends
    rise = {m: 0.001 + scatter * (m == "SABA") for m in values}
    return [
        Run(
            h,
            ({"step": 0, "test_accuracy": values[h.method] + rise[h.method] * h.seed},),
            End("done", 1.0),
        )
        for h in plan(STUDY, "quick").headers
    ]


def test_the_verdict_follows_the_accuracies():
    assert STUDY.judge(made_up(SLIP=0.895, SABA=0.901)).verdict == "holds"
    assert STUDY.judge(made_up(SLIP=0.895)).verdict == "does not hold"
    assert STUDY.judge(made_up(SLIP=0.895, SABA=0.901, **{NOISY: 0.895})).verdict == "does not hold"
    assert STUDY.judge(made_up(SLIP=0.895, SABA=0.86, scatter=0.02)).verdict == "inconclusive"


def test_the_controls_are_minimisers_over_the_labels_they_name():
    task = hyper_cleaning(
        digits(), corruption=0.5, train=200, validation=100, components=8, decay=0.05, seed=0
    )
    all_of_them = torch.ones_like(task.corrupted)
    exact = task.minimiser(torch.ones(200, dtype=torch.float64))
    np.testing.assert_allclose(task.trained_on(all_of_them), exact, atol=1e-4)
    assert task.accuracy(task.trained_on(~task.corrupted)) > task.accuracy(
        task.trained_on(all_of_them)
    )


@pytest.mark.parametrize("method", [CLEAN, "SLIP"])
def test_a_run_ends_with_an_accuracy(method):
    settings = STUDY.settings("quick", method, {"oracle_calls": 50, "readings": 2})
    rows = list(STUDY.loop(Trial(method, 0, settings)))
    assert 0 < rows[-1]["test_accuracy"] <= 1
    assert ("weight_auc" in rows[-1]) == (method != CLEAN)
