"""Every public parameter of the optimizers is given bad values: only ``RuleError`` may come
back, also at the step.
"""

from __future__ import annotations

import pytest
import torch
from bad_values import bad_values, faults, trials
from cases.optimizer_loop import loss_of, start
from cases.optimizers import CASES

from mindgap.optim import Ball, Box, PowerSchedule, k_weighted_average
from mindgap.optim.optimizer import Options

OURS = {name: case for name, case in CASES.items() if case.ours}
SHARED = tuple(Options.__annotations__)


def step_twice(optimizer):
    params = [p for group in optimizer.param_groups for p in group["params"]]

    def closure():
        optimizer.zero_grad()
        value = sum(p.abs().square().sum() for p in params)
        if torch.is_tensor(value) and value.requires_grad:
            value.backward()
        return value

    for _ in range(2):
        optimizer.step(closure)
    optimizer.state_dict()
    if hasattr(optimizer, "report"):
        optimizer.report()


@pytest.mark.parametrize("name", OURS)
def test_bad_arguments(name):
    case = OURS[name]

    def arguments():
        return {"params": start(), **case.settings}

    assert faults(case.build, arguments, after=step_twice) == []


@pytest.mark.parametrize("name", OURS)
def test_bad_options_that_all_share(name):
    case = OURS[name]
    unknown = {"ingd": ("project", "spike_guard"), "stochastic_ingd": ("project",)}.get(name, ())
    for option in SHARED:
        if option in unknown:
            continue

        def build(value, option=option):
            return case.make(start(), **{option: value})

        # A class may be called as a projection; what it raises then is the caller's.
        def values(option=option):
            return {n: v for n, v in bad_values().items() if n != "class" or option != "project"}

        found = faults(
            build, lambda: {"value": None}, leave_out=("option",), values=values, after=step_twice
        )
        assert found == [], option


@pytest.mark.parametrize("name", OURS)
def test_bad_settings_of_a_group(name):
    case = OURS[name]
    optimizer = case.make(start())
    for setting in optimizer.defaults:
        if setting in (
            "k",
            "fused",
            "foreach",
            "maximize",
            "outcome",
            "norm",
            "calls",
            "inner_steps",
            "draws",
        ):
            continue
        if setting in ("training", "seed", "inner", "differentiable"):
            continue

        def build(value, setting=setting):
            return case.make([{"params": start(), setting: value}])

        found = faults(build, lambda: {"value": 0.5}, leave_out=("setting",), after=step_twice)
        assert found == [], setting


def test_bad_values_of_the_helpers():
    def ball(radius=1.0):
        Ball(radius)([torch.ones(2)])

    def box(low=0.0, high=1.0):
        Box(low, high)([torch.ones(2)])

    def schedule(scale=1.0, exponent=0.5, k=1):
        PowerSchedule(scale, exponent)(k)

    for function in (ball, box):
        assert faults(function, dict) == []
    assert faults(schedule, dict, leave_out=("k",)) == []
    assert (
        faults(k_weighted_average, lambda: {"model": torch.nn.Linear(2, 1)}, leave_out=("options",))
        == []
    )


def test_the_checks_refuse_most_of_it():
    case = OURS["gclip"]
    said = trials(case.build, lambda: {"params": start(), **case.settings}, after=step_twice)
    assert sum(text == "refused" for text in said.values()) > 0.6 * len(said)
    assert loss_of(start()) > 0
