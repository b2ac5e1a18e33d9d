"""B14: the faults are in the studies' problems and derivatives alone, and their verdicts can
come out each way.
"""

from __future__ import annotations

import pytest
import torch
from references.made_up_runs import made_up

from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.catalogue.bilevel.b14_as_released import ALL, FAULTS, METHODS, NONE, Faulty
from mindgap.lab.studies.cleaning_runs import task_of
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.released_representation import (
    ADDED,
    F_Y,
    FAULTS_OF,
    G_X,
    NO_IMPLICIT,
    NO_MEMORY,
    QUERY,
    released_method,
)
from mindgap.lab.studies.representation_runs import representation_method, task_of as tasks_of

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
    assert (
        sum(len(of.unique()) > 1 for of in labels) > 20
    )  # p = 0.4: most samples change their label
    task, fault = faulty("norm not squared")
    x, y = task.x0, torch.ones_like(task.y0)
    batch = (*task.train, torch.arange(64))
    away = fault.lower(x, y, batch) - task.lower(x, y, batch)
    assert float(away) == pytest.approx(task.decay * (y.norm() - y.square().sum()))


def test_every_fault_runs_on_the_recurrent_net():
    study = find(NAME)
    tiny = {
        "data": "made-up tweets",
        "held": 64,
        "train": 64,
        "validation": 64,
        "test": 64,
        "words": 5,
        "hidden": 4,
        "head": 4,
        "batch_size": 32,
        "oracle_calls": 20,
        "readings": 1,
        "device": "cpu",
    }
    for label in (f"{METHODS[0]}, {ALL}", f"{METHODS[1]}, {ALL}", f"SABA, {FAULTS[0]}"):
        rows = list(study.loop(Trial(label, 0, study.settings("gpu", label, tiny))))
        assert "test_accuracy" in rows[-1]


def test_the_verdict_follows_the_numbers():
    jitter = (0.0, 0.002, -0.002, 0.001)

    def verdict(**slip):
        ends = {
            label: [
                0.8
                + e
                + slip.get(label.split(", ")[1].replace(" ", "_"), 0.0) * label.startswith("SLIP")
                for e in jitter
            ]
            for label in find(NAME).methods
        }
        return find(NAME).judge(
            made_up(NAME, {m: [{"test_accuracy": v} for v in row] for m, row in ends.items()})
        )

    assert verdict().verdict == "holds"
    moved = verdict(noisy_validation=0.03)
    assert moved.verdict == "does not hold"
    assert [p.answer for p in moved.asked if p.name.startswith("noisy")] == ["no"]
    assert verdict(**{NONE: 0.001}).verdict == "holds"


# ----------------------------------------------------------------------------------------
# hyper-representation
CODE = "b14-released-representation"
DIGITS = {
    "tasks": [4, 2, 2],
    "ways": 3,
    "shots": 3,
    "hidden": 4,
    "features": 2,
    "batch_size": 3,
    "inner": 2,
    "terms": 2,
}


def walked(title, *faults, steps=3):
    """State before the last iteration and after it, with the derivatives of the study."""
    study, label = find(CODE), f"{title}, {NONE}"
    trial = Trial(label, 0, study.settings("quick", label, DIGITS))
    task = tasks_of(trial)
    problem = task.problem(3)
    method = (
        released_method(trial, task, set(faults))
        if faults != ("paper",)
        else representation_method(trial)
    )
    states = [method.start(problem, seed=0)]
    for _ in range(steps):
        states.append(method.step(states[-1]))
    return states, problem


@pytest.mark.parametrize("title", list(FAULTS_OF))
def test_without_faults_every_method_is_the_library_s_own(title):
    (*_, ours), _ = walked(title, NONE)
    (*_, paper), _ = walked(title, "paper")
    for name in ("x", "y"):
        torch.testing.assert_close(ours.values[name], paper.values[name], rtol=1e-9, atol=1e-12)
    assert ours.calls == paper.calls


@pytest.mark.parametrize(
    ("title", "fault"), [(title, fault) for title, of in FAULTS_OF.items() for fault in of]
)
def test_each_fault_changes_the_iterates_of_a_method_that_has_it(title, fault):
    if (title, fault) == ("SABA", NO_MEMORY):
        (*_, ours), _ = walked(title, NO_MEMORY, steps=4)
        assert set(ours.values) == {"x", "y", "z"}  # no tables
        return
    (*_, ours), _ = walked(title, fault)
    (*_, paper), _ = walked(title, NONE)
    assert not torch.allclose(ours.x, paper.x)
    if (title, fault) != (
        "SLIP",
        QUERY,
    ):  # the same calls of the same derivatives: g_x and f_y were there for nothing
        assert ours.total_calls == paper.total_calls


def test_x_follows_g_x_on_top_of_the_paper_s_direction():
    states, problem = walked("SLIP", G_X, steps=1)
    start, after = states
    (_, right), _ = walked("SLIP", NONE, steps=1)
    oracle = representation_oracle(problem)
    token = lower_token(start)
    g_x = oracle.lower_x(start.x, start.y, token)
    # m after one iteration is (1 - beta) times the direction
    torch.testing.assert_close(
        after.values["m"] - right.values["m"], 0.1 * g_x, rtol=1e-8, atol=1e-12
    )


def test_the_step_on_y_contains_f_y_of_the_query_before():
    states, problem = walked("SLIP", F_Y, steps=2)
    (_, first, second) = states
    oracle, start = representation_oracle(problem), states[0]
    token = draws_of(start)["f"]
    f_y = oracle.upper(start.x, start.y, token)[1]
    draws = draws_of(first)
    g_y = oracle.lower(first.x, first.y, draws["y"])
    lr = first.method.rates(1)["lr_y"]
    torch.testing.assert_close(second.y, first.y - lr * (g_y + f_y), rtol=1e-8, atol=1e-12)


def representation_oracle(problem):
    from mindgap.bilevel.backends.oracles import TorchOracle

    return TorchOracle(problem)


def draws_of(state):
    """What the iteration after a state draws."""
    from mindgap.bilevel.data.draws import draw_chunk

    chunk = draw_chunk(state.method, state.oracle, state.seed, state.t, 1, state.drawn)
    return next(iter(chunk.steps()))[1]


def lower_token(state):
    return draws_of(state)["z"]


def test_stocbio_without_the_implicit_gradient_moves_along_f_x():
    states, problem = walked("StocBio", NO_IMPLICIT, steps=1)
    start, after = states
    f_x = representation_oracle(problem).upper(start.x, after.y, draws_of(start)["f"])[0]
    torch.testing.assert_close(
        after.x, start.x - start.method.rates(0)["lr_x"] * f_x, rtol=1e-8, atol=1e-12
    )


def test_gradients_added_up_lengthen_the_step_of_bo_rep():
    study, label = find(CODE), f"BO-REP, {ADDED}"
    trial = Trial(label, 0, study.settings("quick", label, DIGITS))
    long, short = (
        released_method(trial, tasks_of(trial), faults).lr_y for faults in ({ADDED}, set())
    )
    assert long == pytest.approx(2.98 * short)


def test_a_fault_that_one_method_alone_has_moves_its_ranking():
    study, jitter = find(CODE), (0.0, 0.002, -0.002, 0.001)

    def verdict(moved, by):
        ends = {
            label: [{"test_accuracy": 0.8 + e + by * (label == moved)} for e in jitter]
            for label in study.methods
        }
        return study.judge(made_up(CODE, ends))

    assert verdict("", 0.0).verdict == "holds"
    lame = verdict(
        f"StocBio, {NO_IMPLICIT}", -0.1
    )  # a quarter of it in SLIP's lead over the mean of four
    assert lame.verdict == "does not hold"
    assert [p.answer for p in lame.asked if p.name.startswith(NO_IMPLICIT)] == ["no"]
    assert verdict(f"SLIP, {QUERY}", 0.006).verdict == "does not hold"


@pytest.mark.parametrize("name", [NAME, CODE])
def test_a_change_smaller_than_its_scatter_decides_nothing(name):
    study, scatter = find(name), (0.04, -0.04, 0.03, -0.03)
    ends = {
        label: [
            {"test_accuracy": 0.8 + e * (label.startswith("SLIP") and NONE not in label)}
            for e in scatter
        ]
        for label in study.methods
    }
    found = study.judge(made_up(name, ends))
    assert (found.verdict, {part.answer for part in found.asked} & {"no"}) == (
        "inconclusive",
        set(),
    )


def test_every_fault_of_hyper_representation_runs_on_the_recurrent_encoder():
    study = find(CODE)
    tiny = {
        "data": "made-up pairs",
        "tasks": [6, 3, 3],
        "shots": 4,
        "words": 4,
        "hidden": 3,
        "features": 3,
        "inner": 1,
        "terms": 1,
        "oracle_calls": 12,
        "readings": 1,
        "least_steps": 1,
        "device": "cpu",
    }
    for label in (
        f"SLIP, {ALL}",
        f"BO-REP, {ALL}",
        f"SABA, {ALL}",
        f"StocBio, {ALL}",
        f"MA-SOBA, {NONE}",
    ):
        rows = list(study.loop(Trial(label, 0, study.settings("gpu", label, tiny))))
        assert "test_accuracy" in rows[-1]
