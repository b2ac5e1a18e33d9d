"""B1, B2: hyper-representation's verdict follows the numbers and turns when its statement is
made false.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from references.made_up_runs import made_up

from mindgap.base.check import RuleError
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.catalogue.bilevel.b1_hyper_representation import at_epoch
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.representation_runs import (
    METHODS,
    TEST_DOMAIN,
    TUNED,
    representation_method,
    tables_of,
)
from mindgap.lab.studies.run import simulate
from mindgap.lab.tasks.data import Table

STUDIES = ("b1-hyper-representation", "b2-hyper-representation")
SMALL = {
    "tasks": [8, 4, 8],
    "ways": 3,
    "shots": 4,
    "oracle_calls": 60,
    "least_steps": 1,
    "readings": 3,
}
JITTER = np.array([0.0, 0.01, -0.01, 0.02, -0.02])


def _runs(name, test, train=None):
    """Runs that end with given accuracies: method -> one number per seed; "others" stands for
    all not named.
    """
    train = test if train is None else train

    def rows(method, seed):
        pick = [part.get(method, part["others"])[seed] for part in (test, train)]
        start = {"x_epoch": 0.0, "test_accuracy": 0.2, "train_accuracy": 0.2}
        return [start, {"x_epoch": 20.0, "test_accuracy": pick[0], "train_accuracy": pick[1]}]

    return made_up(name, {method: [rows(method, seed) for seed in range(8)] for method in METHODS})


@pytest.mark.parametrize("name", STUDIES)
def test_verdict_follows_the_numbers(name):
    judge = find(name).judge
    jitter = np.array([0.0, 0.01, -0.01, 0.02, -0.02, 0.005, -0.005, 0.0])
    low, high = 0.8 + jitter, 0.9 + jitter + 0.001 * np.arange(8)
    ahead = {"others": low, "SLIP": high}
    holds = judge(_runs(name, ahead))
    assert holds.verdict == "holds"
    assert holds.numbers["test"]["lead_of_slip"]["SABA"][0] == pytest.approx(0.1035)
    beaten = {**ahead, "SABA": high + 0.03 + 0.001 * np.array([0, 1, 0, -1, 0, 1, 0, -1])}
    behind = judge(_runs(name, beaten))
    assert behind.verdict == "does not hold"
    assert "loses to 1 (SABA) of 6" in behind.measured
    assert judge(_runs(name, ahead, beaten)).verdict == "does not hold"  # in training alone
    level = {**ahead, "SABA": high + np.array([0.01, -0.01, 0.0, 0.02, -0.02, 0.01, -0.01, 0.0])}
    assert judge(_runs(name, level)).verdict == "inconclusive"
    assert judge(_runs(name, ahead, level)).verdict == "inconclusive"
    # F²SA's y learns from the query examples: records that read it there do not count in training.
    learned = {**ahead, "F²SA": high + 0.05}
    found = judge(_runs(name, ahead, learned))
    assert (found.verdict, found.numbers["left_out_of_training"]) == ("holds", ["F²SA"])
    assert judge(_runs(name, learned)).verdict == "does not hold"  # by new heads it would
    assert (
        judge(_runs(name, ahead)[::-1]).verdict == "holds"
    )  # seeds are paired by number, not by order


def test_does_not_hold_with_a_slip_that_stands_still():
    study = find(STUDIES[0]).at("quick")
    methods = {"SLIP": {**study.methods["SLIP"]}, "SABA": {**study.methods["SABA"]}}
    quick = replace(
        study.scales["quick"],
        methods={"SLIP": {"lr_x": 1e-9, "lr_y": 1e-3}, "SABA": {"lr_x": 3.0, "lr_y": 1.0}},
    )
    lame = replace(study, methods=methods, scales={"quick": quick})
    verdict = lame.judge(
        simulate(lame, "quick", seeds=8, **{**SMALL, "oracle_calls": 250, "readings": 1})
    )
    assert verdict.verdict == "does not hold", verdict.measured


@pytest.mark.parametrize("name", STUDIES)
def test_rows_have_the_axes_and_measures(name):
    study = find(name)
    rows = list(study.loop(Trial("SLIP", 0, study.settings("quick", "SLIP", SMALL))))
    assert len(rows) == 4
    # 12 examples of every task in batches of 5 are three batches an epoch; SLIP makes three warm
    # steps on y
    assert rows[-1]["x_epoch"] == pytest.approx(rows[-1]["step"] / 3)
    assert rows[-1]["y_epoch"] == pytest.approx((rows[-1]["step"] + 3) / 3)
    assert rows[0]["test_accuracy"] != rows[-1]["test_accuracy"]
    assert {"train_accuracy", "validation_loss", "oracle_calls", "diverged"} <= set(rows[-1])


def test_a_lost_run_knows_what_chance_knows():
    study = find(STUDIES[0])
    settings = study.settings(
        "quick", "SABA", {**SMALL, "lr_x": 1e28, "lr_y": 1e28, "oracle_calls": 600}
    )
    last = list(study.loop(Trial("SABA", 0, settings)))[-1]
    assert last["diverged"]
    assert last["test_accuracy"] == pytest.approx(1 / 3)
    assert last["validation_loss"] == float("inf")


def test_steps_are_the_scales_own_and_of_the_common_grid():
    for name, sources in zip(STUDIES, (("digits", "snli"), ("turned digits", "reviews"))):
        study = find(name)
        for scale, source in zip(("quick", "cpu"), sources):
            for method in METHODS:
                settings = study.settings(scale, method)
                assert (settings["lr_x"], settings["lr_y"]) == TUNED[source][method]
                assert settings["data"] == source
                assert all(
                    settings[setting] in find(name).grid[setting] for setting in ("lr_x", "lr_y")
                )


def test_a_heads_step_is_on_its_own_tasks_loss():
    study = find(STUDIES[0])
    trial = Trial("SLIP", 0, study.settings("quick", "SLIP", {"lr_y": 0.25, "tasks": [8, 4, 8]}))
    method = representation_method(trial)
    assert (method.lr_y, method.lr_z) == (2.0, 2.0)
    assert representation_method(trial, lr_z=0.5).lr_z == 4.0


def test_equal_epochs_lie_on_the_line_between_readings():
    run = _runs(STUDIES[0], {"others": np.full(8, 0.8)})[0]
    assert at_epoch(run, "test_accuracy", 5.0) == pytest.approx(0.35)
    assert at_epoch(run, "test_accuracy", 20.0) == 0.8


def test_turned_digits_keep_the_last_quarter_for_the_test():
    train, validation, test = tables_of("turned digits", 0)
    plain = [tables[0] for tables in tables_of("digits", 0)]
    assert (len(train), len(validation), len(test)) == (3, 3, 1)
    for tables, table in zip((train, validation), plain):
        for quarters, turned in enumerate(tables):
            image = turned.features[5].reshape(8, 8)
            np.testing.assert_array_equal(
                image, np.rot90(table.features[5].reshape(8, 8), quarters)
            )
    np.testing.assert_array_equal(
        test[0].features[5].reshape(8, 8), np.rot90(plain[2].features[5].reshape(8, 8), 3)
    )
    assert "270" in test[0].origin


def test_one_domain_of_the_reviews_is_the_tests(monkeypatch):
    names = ("books", "dvd", TEST_DOMAIN)
    tables = tuple(
        Table(np.full((20, 4), i), np.arange(20) % 2, f"Amazon reviews: {n}")
        for i, n in enumerate(names)
    )
    monkeypatch.setattr(
        "mindgap.lab.studies.representation_runs._text_tables", lambda source: tables
    )
    train, validation, test = tables_of("reviews", 0)
    assert [table.origin.split()[-1] for table in test] == [TEST_DOMAIN]
    assert [[len(t) for t in part] for part in (train, validation)] == [[16, 16], [4, 4]]
    monkeypatch.setattr(
        "mindgap.lab.studies.representation_runs._text_tables", lambda source: tables
    )
    assert [[len(t) for t in part] for part in tables_of("snli", 0)] == [[20], [20], [20]]
    with pytest.raises(
        RuleError, match="data must be one of 'digits', 'turned digits', 'snli', 'reviews'"
    ):
        tables_of("letters", 0)


# ------------------------------------------------------------------------------------------- B7,
# one step
B7 = "b7-one-step-representation"


@pytest.mark.parametrize(
    ("gain", "verdict"),
    [
        ([0.5, 0.6, 0.4, 0.5, 0.5], "holds"),
        ([-0.5, -0.6, -0.4, -0.5, -0.5], "holds"),
        ([-5.0, -5.1, -4.9, -5.0, -5.0], "does not hold"),
        ([5.0, 5.1, 4.9, 5.0, 5.0], "does not hold"),
        ([4.0, -4.0, 3.5, -3.5, 0.2], "inconclusive"),
    ],
)
def test_b7_verdict_follows_the_numbers(gain, verdict):
    ends = {}
    for name, more in (("one step", np.array(gain) / 100), ("two steps", np.zeros(5))):
        rows = [
            {f"{split}_accuracy": 0.7 + e + g for split in ("test", "train")}
            for e, g in zip(JITTER, more)
        ]
        ends[name] = [{**row, **{f"reset_{k}": v for k, v in row.items()}} for row in rows]
    found = find(B7).judge(made_up(B7, ends))
    assert found.verdict == verdict
    assert found.numbers["gain"]["turned digits, test"][0] == pytest.approx(np.mean(gain))


def test_b7_both_searches_try_the_same_steps_but_for_the_linear_system():
    study, ends = find(B7), []
    for name in ("one step", "two steps"):
        ends.append(
            list(
                study.loop(Trial(name, 900, study.settings("quick", name, {**SMALL, "tried": 1})))
            )[-1]
        )
    one, two = ends
    assert (one["lr_x"], one["lr_y"]) == (two["lr_x"], two["lr_y"])
    assert one["lr_z"] == one["lr_y"] != two["lr_z"]
    assert two["reset_test_accuracy"] == one["test_accuracy"]


# -----------------------------------------------------------------------------------------------
# B5, time
B5 = "b5-running-time-pairs"


def _b5(slip, borep, top=0.9):
    """Runs that reach ``top`` after the given seconds, one number per seed."""
    start = {"test_accuracy": 0.2, "cpu_seconds": 0.01, "oracle_calls": 3, "perfect_accuracy": 1.0}
    return made_up(
        B5,
        {
            name: [
                [
                    start,
                    {**start, "test_accuracy": top, "cpu_seconds": seconds, "oracle_calls": 100},
                ]
                for seconds in every
            ]
            for name, every in (("SLIP", slip), ("BO-REP", borep))
        },
    )


def test_b5_verdict_follows_the_numbers():
    judge = find(B5).judge
    short, long = 1 + JITTER, 2 + JITTER
    verdict = judge(_b5(short, long))
    assert verdict.verdict == "holds"
    assert verdict.numbers["ratio"]["digits, 80%"] == pytest.approx(2.0, rel=0.01)
    assert judge(_b5(long, short)).verdict == "does not hold"
    assert (
        judge(_b5([1.0, 2.0, 1.0, 2.0, 1.5], [2.0, 1.0, 2.0, 1.0, 1.5])).verdict == "inconclusive"
    )
    assert judge(_b5(short, long, top=0.65)).numbers["not_reached"] == [
        f"digits, {n}%" for n in (70, 80, 85)
    ]


def test_b5_rows_have_cpu_time_from_the_warm_start_on():
    study = find(B5)
    settings = study.settings("quick", "SLIP", {**SMALL, "tasks": [8, 1, 8]})
    rows = list(study.loop(Trial("SLIP", 900, settings)))
    times = [row["cpu_seconds"] for row in rows]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1]
    assert rows[0]["oracle_calls"] == 3  # the throw-away run is not counted
    assert settings["lr_x"] == TUNED["digits"]["SLIP"][0]


# --------------------------------------------------------------------------------------------- B6,
# epochs
@pytest.mark.parametrize("name", ["b6-epochs-pairs", "b6-epochs-reviews"])
def test_b6_counts_three_updates_of_x_fewer_and_is_the_same_run_until_then(name):
    small = {"tasks": [8, 1, 8], "ways": 3, "shots": 4, "batch_size": 4, "epochs": 3}
    by_x, by_y = simulate(find(name), "quick", seeds=1, **small)
    assert [row["step"] for row in by_x.rows] == [
        0,
        3,
        6,
        9,
    ]  # 12 examples of each task, batches of 4
    assert [row["step"] for row in by_y.rows] == [
        0,
        1,
        3,
        6,
    ]  # the warm start alone is an epoch of y
    for x, y in zip(by_x.rows[1:], by_y.rows[2:]):
        assert [x[name] for name in ("step", "y_epoch", "test_accuracy", "train_accuracy")] == [
            y[name] for name in ("step", "y_epoch", "test_accuracy", "train_accuracy")
        ]
