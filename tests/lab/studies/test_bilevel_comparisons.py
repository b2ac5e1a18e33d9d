"""The bilevel studies: fair by construction, and every verdict turns when its statement is made
false.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from references.made_up_runs import made_up

from mindgap.bilevel.registry import SIXTEEN as METHODS
from mindgap.lab.studies.bilevel_runs import TITLES, method_of, states, tuned_methods
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.cleaning_runs import CONTROL_METHODS
from mindgap.lab.studies.grid import grid_search
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.run import simulate
from mindgap.lab.studies.spec import Scale
from mindgap.lab.studies.tune import tune

SETTINGS = {"lr_x": 0.01, "lr_y": 0.1, "inner": 3, "terms": 5, "convexity": 0.1}


# -------------------------------------------------------------------------------------------------
# fairness
@pytest.mark.parametrize(
    "name", ["b0-unbounded-smoothness", "b3-hyper-cleaning", "b4-hyper-cleaning"]
)
def test_all_sixteen_are_compared(name):
    study = find(name)
    controls = set() if name.startswith("b0") else set(CONTROL_METHODS)
    assert set(study.seeds("cpu")) == set(TITLES) | controls
    assert {s["key"] for s in study.methods.values() if s["key"]} == set(METHODS)
    assert set(study.scales) == {"quick", "cpu"} | (
        set() if name.startswith("b0") else {"gpu", "paper"}
    )


SEARCHED = (
    "b0-unbounded-smoothness",
    "b1-hyper-representation",
    "b2-hyper-representation",
    "b3-hyper-cleaning",
    "b4-hyper-cleaning",
)


def on_ladder(step, values):
    """Whether a step is a value of the grid, or one that a search adds beyond an end."""
    below, above = values[0] / values[1], values[-1] / values[-2]
    ladder = [values[0] * below**k for k in range(1, 5)] + [
        values[-1] * above**k for k in range(1, 5)
    ]
    return any(step == pytest.approx(value) for value in (*values, *ladder))


def test_b0_has_steps_of_its_own_at_each_scale():
    """One search per scale over all three steps; its result for every method, and no method's
    steps by hand.
    """
    study = find("b0-unbounded-smoothness")
    assert set(study.grid) == {"lr_x", "lr_y", "lr_z"}
    assert all(
        b / a == pytest.approx(3, rel=0.12)
        for values in study.grid.values()
        for a, b in pairwise(values)
    )
    own = {scale: here.methods for scale, here in study.scales.items()}
    assert all(
        set(steps) == set(TITLES) and set(steps["SLIP"]) == set(study.grid)
        for steps in own.values()
    )
    assert own["quick"] != own["cpu"]


@pytest.mark.parametrize("name", SEARCHED)
def test_steps_come_from_one_grid_and_from_other_seeds(name):
    for scale in find(name).scales:
        study, found = find(name).at(scale), set()
        for method in study.methods:
            settings = study.settings(scale, method)
            if method in CONTROL_METHODS:  # no method: one solve, without steps
                assert not set(study.grid) & set(study.own(method, scale))
                continue
            found.add(
                frozenset(set(study.own(method, scale)) - {"samples"})
            )  # of SLIP with shared samples
            for step, values in study.grid.items():
                assert scale == "paper" or on_ladder(settings[step], values), (method, step)
        more = {name for name in ("units", "lr_z") if any(name in own for own in found)}
        assert found == {
            frozenset({"key", "lr_x", "lr_y"} | more)
        }  # nothing else is chosen for one method alone
        assert study.scales[scale].seeds >= 5
        assert not set(study.tuning_seeds) & set(range(study.scales[scale].seeds))


def test_methods_are_set_up_alike():
    made = {key: method_of({"key": key, **SETTINGS}) for key in METHODS}
    for key, method in made.items():
        assert (method.lr_x, method.lr_y) == (0.01, 0.1), key
        for name, value in (("lr_z", 0.1), ("eta", 0.1), ("terms", 5), ("solves", 3), ("mu", 0.1)):
            assert getattr(method, name, value) == value, (key, name)
    assert {made[key].inner for key in ("bsa", "stocbio", "amigo", "alset", "vrbo")} == {3}
    assert made["slip"].warm_start == 3


def test_a_method_without_tuned_steps_is_left_out_and_breaks_no_study(monkeypatch):
    """A row added to METHODS must not break the studies that compare all methods."""
    from importlib import reload

    from mindgap.lab.studies import bilevel_runs
    from mindgap.lab.studies.catalogue import studies_of
    from mindgap.lab.studies.catalogue.bilevel import b0_unbounded_smoothness, b3_hyper_cleaning

    monkeypatch.setitem(bilevel_runs.TITLES, "A new one", "soba")
    for module in (b0_unbounded_smoothness, b3_hyper_cleaning):
        assert "A new one" not in studies_of(reload(module).__name__)[0].methods
    assert tuned_methods({"A new one": (1.0, 2.0)}) == {
        "A new one": {"key": "soba", "lr_x": 1.0, "lr_y": 2.0}
    }


def test_a_grid_search_tries_the_same_points_for_all_and_takes_the_best(tmp_path):
    calls = []

    def loop(trial):
        calls.append((trial.method, trial["lr_x"], trial["lr_y"], trial.seed))
        bad = trial.method == "a" and trial["lr_x"] == 1.0
        distance = abs(trial["lr_x"] - 10) + abs(trial["lr_y"] - 0.1)
        yield {"loss": distance + 0.1 + 0.1 * (trial.seed == 7), "diverged": bad}

    study = replace(
        find("b10-tracking"),
        loop=loop,
        methods={"a": {}, "b": {}},
        scales={"quick": Scale({"lr_x": 0.0, "lr_y": 0.0})},
        tune_on="loss",
        grid={"lr_x": (1.0, 3.16, 10.0), "lr_y": (0.1, 0.3)},
        tuning_seeds=(7, 8),
    )
    found = tune(study, "quick", tmp_path, grid=True).methods
    for method, made in found.items():
        assert len(made.trials) == 8  # one more beyond each end, where the best is an end
        assert made.chosen == {"lr_x": 10.0, "lr_y": 0.1}
        assert made.value == pytest.approx(0.15)  # the mean over both seeds
        assert sum(c[0] == method for c in calls) == 16
    assert found["a"].trials[0].value == float("inf")  # a run that diverged is never chosen


def _score(method, point, seed):
    """Smallest at 8 for a, at 1 for b."""
    return abs(point["lr"] - (8.0 if method == "a" else 1.0)) + point.get("eps", 0.0), 0.0


def _label(method, point, seed):
    return f"{method} {sorted(point.items())} {seed}"


@pytest.mark.parametrize("jobs", [1, 2])
def test_methods_of_a_grid_search_extend_their_own_grids_alone_and_take_up_a_journal(
    tmp_path, jobs
):
    grids = {"a": {"lr": (1.0, 2.0)}, "b": {"lr": (1.0, 2.0), "eps": (1e-3,)}}
    journal = tmp_path / "journal"
    done = []
    made = grid_search(grids, (7, 8), _score, _label, journal, jobs, lambda m, k, v: done.append(m))
    assert [one.settings["lr"] for one in made["a"]] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert [one.settings["lr"] for one in made["b"]] == [1.0, 2.0, 0.5]
    assert sorted(done) == ["a"] * 5 + ["b"] * 3

    def fails(method, point, seed):
        raise AssertionError("computed again")

    assert grid_search(grids, (7, 8), fails, _label, journal) == made


# --------------------------------------------------------------------------------------------------
# runs
def test_a_run_is_cut_at_equal_oracle_calls():
    from mindgap.lab.tasks.problems import unbounded_problem

    task = unbounded_problem(lower=64, upper=64, dim_y=4, dim_x=3, rate=1.0, distance=1.0)
    problem = task.problem(16)
    for key, each in (("soba", 5), ("masoba", 5)):
        read = list(
            states(
                Trial(key, 0, {}),
                problem,
                method_of({"key": key, **SETTINGS}),
                budget=100,
                readings=4,
                least=1,
            )
        )
        assert [s.total_calls for s in read] == [0, 25, 50, 75, 100]
        assert read[-1].t == 100 // each
    dear = list(
        states(
            Trial("vrbo", 0, {}),
            problem,
            method_of({"key": "vrbo", **SETTINGS}),
            budget=100,
            readings=4,
            least=6,
        )
    )
    assert dear[-1].t == 6  # at least that many, whatever they cost
    assert dear[-1].total_calls > 100
    timed = Trial("soba", 0, {})
    list(
        states(
            timed, problem, method_of({"key": "soba", **SETTINGS}), budget=50, readings=1, least=1
        )
    )
    assert timed.seconds > 0


def test_a_run_that_explodes_ends_with_a_last_reading():
    from mindgap.lab.tasks.problems import unbounded_problem

    task = unbounded_problem(lower=64, upper=64, dim_y=4, dim_x=3, rate=3.0, distance=5.0)
    settings = {"key": "soba", **SETTINGS, "lr_x": 10.0}
    read = list(
        states(
            Trial("soba", 0, {}),
            task.problem(16),
            method_of(settings),
            budget=1000,
            readings=4,
            least=1,
        )
    )
    assert read[-1].total_calls < 1000
    assert not np.isfinite(read[-1].x.numpy()).all()


# ------------------------------------------------------------------------------------- unbounded
# smoothness
def _b0(values):
    """Runs that ended at the given norms: method -> one number per seed."""
    return made_up(
        "b0-unbounded-smoothness",
        {m: [{"gradient_norm": v} for v in row] for m, row in values.items()},
    )


def test_b0_verdict_follows_the_numbers():
    judge = find("b0-unbounded-smoothness").judge
    smooth = {name: [10.0] * 10 for name in TITLES if name not in ("SLIP", "BO-REP")}
    assert judge(_b0({**smooth, "SLIP": [0.1] * 10, "BO-REP": [0.2] * 10})).verdict == "holds"
    assert (
        judge(_b0({**smooth, "SLIP": [0.1] * 10, "BO-REP": [20.0] * 10})).verdict == "does not hold"
    )
    assert (
        judge(
            _b0({**smooth, "SABA": [0.01] * 10, "SLIP": [0.1] * 10, "BO-REP": [0.1] * 10})
        ).verdict
        == "does not hold"
    )
    mixed = judge(_b0({**smooth, "SLIP": [0.1] * 8 + [99.0] * 2, "BO-REP": [0.2] * 10}))
    assert mixed.verdict == "inconclusive"
    assert mixed.numbers["wins"] == {"BO-REP": 1.0, "SLIP": 0.8}
    exploded = {**smooth, "SOBA": [float("inf")] * 10}
    assert judge(_b0({**exploded, "SLIP": [0.1] * 10, "BO-REP": [0.2] * 10})).verdict == "holds"


def test_b0_does_not_hold_where_smoothness_is_in_effect_bounded():
    """cosh(0.1 x) is a parabola for |x| < 1: steps of a fixed length only do harm there, and
    nothing explodes.
    """
    study = find("b0-unbounded-smoothness")
    runs = simulate(
        study,
        "quick",
        seeds=1,
        rate=0.1,
        distance=1.0,
        oracle_calls=150,
        lr_x=0.3,
        lr_y=0.3,
        lr_z=0.3,
        units=[1.0, 1.0, 1.0],
    )
    assert study.judge(runs).verdict == "does not hold"
