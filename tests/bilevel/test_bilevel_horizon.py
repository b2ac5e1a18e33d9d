"""Steps that know the number of iterations: measured, raced, told."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from references.bilevel_small import PROBLEM, QUADRATIC

from mindgap.base.check import RuleError
from mindgap.bilevel import (
    METHODS,
    SOBA,
    AdamStep,
    BilevelProblem,
    TorchStep,
    hyper_objective,
    solve,
    suggest_steps,
)
from mindgap.bilevel.tools.horizon import Measurements, Scale, least_enough


def cleaning():
    """60 samples, half of the targets wrong, a weight per sample: a batch moves 5 of 60."""
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(100, 4, generator=draw)
    targets = features.sum(1)
    wrong = torch.arange(60) % 2 == 0
    noisy = torch.where(wrong, -3.0 * targets[:60], targets[:60])

    def upper(x, y, b):
        return (b[0] @ y - b[1]).square().mean()

    def lower(x, y, b):
        losses = (b[0] @ y - b[1]).square()
        return (x[b[2]].sigmoid() * losses).mean() + 0.01 * y.square().sum()

    data = (features[60:], targets[60:]), (features[:60], noisy, torch.arange(60))
    return BilevelProblem(upper, lower, torch.zeros(60), torch.zeros(4), *data, batch_size=5)


@pytest.mark.parametrize("key", ["slip", "masoba"])
def test_raced_steps_reach_most_of_a_grids_gain_where_those_of_the_start_reach_little(key):
    problem, steps = cleaning(), 200
    start = hyper_objective(problem, problem.pack_x.start)
    raced = suggest_steps(problem, key, steps=steps)

    def gain(settings):
        done = solve(problem, METHODS[key](**settings), steps, seed=3)
        return start - hyper_objective(problem, done.state.x)

    best = max(gain({**raced.settings, "lr_x": 10.0**i}) for i in (-3, -2, -1, 0, 1, 2))
    assert gain(raced.settings) > 0.7 * best
    assert gain(suggest_steps(problem).settings(key)) < 0.3 * best
    assert raced.runs < 1.4  # a short run: the part that does not grow with it weighs more


@pytest.mark.parametrize("key", [key for key in METHODS if key not in ("vrbo", "saba")])
def test_no_method_diverges_with_raced_steps(key):
    steps = 20 if key in ("svrb", "mrbo", "stocbio") else 60
    raced = suggest_steps(PROBLEM, key, steps=steps)
    state = solve(PROBLEM, raced.method, steps, seed=1).check().state
    assert float(state.x.norm()) < 5 * (1 + float(QUADRATIC.x0.norm()))
    assert all(math.isfinite(v) and v > 0 for v in raced.settings.values())


def test_the_steps_survive_a_start_where_y_is_not_solved():
    """SOBA's first steps are its longest. Raced where y is solved alone, they were 4 times what the
    start far from y*(x) can bear, and all runs ended as NaN.
    """
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(128, 6, generator=draw)
    targets = (features[:, 0] + 0.5 * torch.randn(128, generator=draw)).sign()

    def upper(x, y, b):
        return torch.nn.functional.softplus(-b[1] * (b[0] @ y)).mean()

    def lower(x, y, b):
        return upper(x, y, b) + 0.5 * (x.exp() * y.square()).sum()

    data = (features[64:], targets[64:]), (features[:64], targets[:64])
    y = 30.0 * torch.randn(6, generator=draw)
    problem = BilevelProblem(upper, lower, torch.zeros(6), y, *data, batch_size=16)
    raced = suggest_steps(problem, "soba", steps=300)
    assert solve(problem, raced.method, 300, seed=1).ok
    wrong = [t.settings["lr_x"] for t in raced.tried if math.isinf(t.value)]
    assert min(wrong) > raced.settings["lr_x"]
    assert not all(t.solved for t in raced.tried)


def test_the_steps_survive_a_curvature_that_x_raises():
    """x grows at a constant speed, and the lower level's curvature as exp(x): late in a run lower
    steps became unstable that were stable in every short run.
    """
    features = torch.randn(64, 2, generator=torch.Generator().manual_seed(0))

    def upper(x, y, b):
        return (y - b).square().mean() + y.square().sum()

    def lower(x, y, b):
        return (y - 1.0 - b).square().sum(-1).mean() + (x.exp() * y.square()).sum()

    data = features[:32], features[32:]
    problem = BilevelProblem(upper, lower, torch.zeros(2), torch.zeros(2), *data, batch_size=8)
    raced = suggest_steps(problem, "borep", steps=400)
    assert raced.tried[-1].settings["lr_x"] > 1.9 * raced.settings["lr_x"]
    assert all(solve(problem, raced.method, 400, seed=seed).ok for seed in (1, 2, 3))


def test_the_rate_of_y_doubles_where_only_the_start_is_curved():
    def lower(x, y, b):
        return (2.0 * torch.nn.functional.softplus(-4.0 * y) + 0.05 * (y - x).square()).mean()

    data = torch.zeros(8), torch.zeros(8)
    problem = BilevelProblem(
        lambda x, y, b: (y - 2.0).square().mean(),
        lower,
        torch.zeros(1),
        torch.zeros(1),
        *data,
        batch_size=4,
    )
    measured = Measurements(problem, 200, 40, 0)
    measured.measure()
    most = measured.largest_curvature(*measured.oracle.start)
    assert most == pytest.approx(8.1)
    assert measured.largest_curvature(measured.x, measured.y_near) < most / 4
    assert measured.lr_y == pytest.approx(1.0 / most)


def test_a_longer_run_takes_shorter_steps_of_a_fixed_length():
    short, long = (suggest_steps(PROBLEM, "slip", steps=steps) for steps in (100, 1000))
    assert long.settings["lr_x"] < short.settings["lr_x"]


def test_the_answer_says_what_was_tried_and_keeps_other_settings():
    method = SOBA(lr_x=1.0, lr_y=1.0, order="seidel")
    raced = suggest_steps(PROBLEM, method, steps=60)
    assert raced.method.order == "seidel"
    assert raced.method == SOBA(**raced.settings, order="seidel")
    text = str(raced)
    assert text.count("\n") == len(raced.tried) + 3
    assert "upper loss at the start" in text
    assert f"cost: {raced.calls} oracle calls" in text
    adam = suggest_steps(PROBLEM, SOBA(lr_x=1.0, lr_y=1.0, x_step=AdamStep()), steps=60)
    assert solve(PROBLEM, adam.method, 60, seed=1).ok


def test_rates_follow_from_a_path():
    """Normalised steps add up to the path; plain ones of a falling rate likewise."""
    slip = Scale("slip", METHODS["slip"].load(), gradient_norm=5.0, dim=3)
    assert slip.settings(2.0, 100, 0.1) == {"lr_x": 0.02, "lr_y": 0.1, "lr_z": 0.1}
    soba = Scale("soba", METHODS["soba"].load(), gradient_norm=5.0, dim=3).settings(2.0, 100, 0.1)
    rates = METHODS["soba"](**soba).rates(np.arange(100))["lr_x"]
    assert float(rates.sum()) * 5.0 == pytest.approx(2.0)


def test_the_least_that_is_good_enough():
    assert least_enough({1.0: 2.0, 2.0: 1.0, 3.0: 0.99}, 5.0) == 2.0
    assert least_enough({1.0: 5.0, 2.0: 5.001, 3.0: 9.0}, 5.0) == 2.0  # nothing gains
    assert least_enough({1.0: 7.0, 2.0: 6.0}, 5.0) == 2.0  # all harm


def test_a_race_in_one_program_is_the_same():
    pytest.importorskip("jax")
    from mindgap.bilevel.backends.compiled import JaxBackend
    from mindgap.lab.tasks.problems import compiled as losses

    backend = JaxBackend(*losses.quadratic_losses(), chunk=64)
    a, b = (
        suggest_steps(PROBLEM, "slip", steps=80, backend=backend) for backend in (None, backend)
    )
    assert a.settings == pytest.approx(b.settings, rel=1e-3)
    assert a.calls == b.calls


def test_bad_arguments_are_refused():
    for arguments, message in (
        ({"method": "slipp", "steps": 50}, "method must be a method, or one of"),
        ({"method": "slip"}, "steps must be given for a race"),
        ({"steps": 50}, "method must be given for a race"),
        ({"method": "slip", "steps": 3}, "steps must be a whole number of at least 20"),
        (
            {
                "method": SOBA(lr_x=1.0, lr_y=1.0, x_step=TorchStep(torch.optim.SGD, lr=0.1)),
                "steps": 50,
            },
            "method must have a step on x of its own",
        ),
    ):
        with pytest.raises(RuleError, match=message):
            suggest_steps(PROBLEM, **arguments)


def test_a_curvature_that_is_no_number_ends_its_power_iteration():
    """Products with NaN tell nothing, and each counts as an oracle call."""
    data = torch.ones(8), torch.ones(8)
    problem = BilevelProblem(
        lambda x, y, b: (y - b).square().mean() + x.square().sum(),
        lambda x, y, b: (y.square().square() + (y - x * b).square()).mean(),
        torch.zeros(2),
        torch.ones(2),
        *data,
        batch_size=1,
    )
    measured = Measurements(problem, 200, 40, 0)
    x, y = measured.oracle.start

    def calls_of(y):
        before = measured.calls
        return measured.largest_curvature(x, y), measured.calls - before

    most, full = calls_of(y)
    assert math.isfinite(most)
    most, short = calls_of(torch.full_like(y, math.nan))
    assert most == math.inf
    assert short <= full / 4
