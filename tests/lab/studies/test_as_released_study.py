"""B14: the faults are in the study's problems alone, and its verdict can come out each way."""

from __future__ import annotations

import pytest
import torch
from references.made_up_runs import made_up

from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.catalogue.bilevel.b14_as_released import ALL, FAULTS, METHODS, NONE, Faulty
from mindgap.lab.studies.cleaning_runs import task_of
from mindgap.lab.studies.loop import Trial

NAME = "b14-as-released"


def faulty(*faults, scale="quick", **changed):
    study = find(NAME)
    small = {"train": 64, "validation": 64, "batch_size": 16, **changed}
    trial = Trial("SLIP, none", 0, study.settings(scale, "SLIP, none", small))
    return task_of(trial), Faulty(trial, task_of(trial), set(faults))


def test_without_faults_the_problem_is_the_task_s_own():
    task, fault = faulty()
    one, two = task.problem(16), fault.problem(16)
    for level in ("upper", "lower"):
        assert all(torch.equal(a, b) for a, b in zip(one.data(level).data, two.data(level).data))
    assert two.lower == fault._task.lower


def test_each_fault_does_what_it_says():
    task, fault = faulty("noisy validation")
    assert sorted(fault.problem(16).upper_data.data[1].tolist()) == sorted(task.train[1].tolist())
    task, fault = faulty("noise drawn anew", copies=3)
    data = fault.problem(16).lower_data
    assert data.n == 3 * 64
    labels = [data.data[1][data.data[2] == number] for number in range(64)]
    assert sum(len(of.unique()) > 1 for of in labels) > 20  # p = 0.4: most samples change their label
    task, fault = faulty("norm not squared")
    x, y = task.x0, torch.ones_like(task.y0)
    batch = (*task.train, torch.arange(64))
    away = fault.lower(x, y, batch) - task.lower(x, y, batch)
    assert float(away) == pytest.approx(task.decay * (y.norm() - y.square().sum()))


def test_every_fault_runs_on_the_recurrent_net():
    study = find(NAME)
    tiny = {"data": "made-up tweets", "train": 64, "validation": 64, "test": 64, "words": 5, "hidden": 4, "head": 4,
            "batch_size": 32, "oracle_calls": 20, "readings": 1, "device": "cpu"}
    for label in (f"{METHODS[0]}, {ALL}", f"{METHODS[1]}, {ALL}", f"SABA, {FAULTS[0]}"):
        rows = list(study.loop(Trial(label, 0, study.settings("gpu", label, tiny))))
        assert "test_accuracy" in rows[-1]


def test_the_verdict_follows_the_numbers():
    jitter = (0.0, 0.002, -0.002, 0.001)

    def verdict(**slip):
        ends = {label: [0.8 + e + slip.get(label.split(", ")[1].replace(" ", "_"), 0.0) * label.startswith("SLIP")
                        for e in jitter] for label in find(NAME).methods}  # fmt: skip
        return find(NAME).judge(made_up(NAME, {m: [{"test_accuracy": v} for v in row] for m, row in ends.items()}))

    assert verdict().verdict == "holds"
    moved = verdict(noisy_validation=0.03)
    assert moved.verdict == "does not hold"
    assert [p.answer for p in moved.asked if p.name.startswith("noisy")] == ["no"]
    assert verdict(**{NONE: 0.001}).verdict == "holds"
