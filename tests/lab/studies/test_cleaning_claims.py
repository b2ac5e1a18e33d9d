"""B5, B6, B7, B9: each verdict can come out each way, and the loops count and compare what they
say they do.
"""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
from references.made_up_runs import made_up

from mindgap.bilevel.registry import METHODS
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.catalogue.bilevel.b9_tuning_cost import FALLEN, SPACE, needed, numbers_of
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.run import simulate
from mindgap.lab.studies.running_time_runs import reach
from mindgap.lab.studies.verdict import mean_interval

SMALL = {"train": 60, "validation": 60, "components": 3, "oracle_calls": 60}
JITTER = (0.0, 0.01, -0.01, 0.02, -0.02)


# ------------------------------------------------------------------------------------------------
# statistics
def test_interval_covers_the_mean_as_often_as_it_says():
    draws = np.random.default_rng(0).normal(3.0, 2.0, size=(1000, 6))
    for miss in (0.05, 0.3):
        found = [mean_interval(row, miss=miss) for row in draws]
        missed = np.mean([not i.low <= 3.0 <= i.high for i in found])
        assert abs(missed - miss) < 4 * np.sqrt(miss * (1 - miss) / len(draws))
    assert mean_interval([1.0]).high == float("inf")


def test_needed_is_the_mean_place_of_the_first_good_setting():
    losses = [1.0, 5.0, 1.05, 9.0, 3.0, 4.0]
    rng, places = np.random.default_rng(0), []
    for _ in range(4000):
        order = rng.permutation(losses)
        places.append(1 + next(i for i, loss in enumerate(order) if loss <= 1.1))
    assert abs(np.mean(places) - needed(losses, 1.1)) < 4 * np.std(places) / np.sqrt(len(places))


# ---------------------------------------------------------------------------------------------- B5,
# time
def _b5(slip, borep, top=0.97):
    """Runs that reach ``top`` after the given seconds: one number per seed, the same for both
    corruptions.
    """

    def rows(seconds):
        start = {
            "test_accuracy": 0.1,
            "cpu_seconds": 0.01,
            "oracle_calls": 3,
            "perfect_accuracy": 0.95,
        }
        return [start, {**start, "test_accuracy": top, "cpu_seconds": seconds, "oracle_calls": 100}]

    names = find("b5-running-time").seeds("quick")
    ends = {name: [rows(s) for s in (slip if "SLIP" in name else borep)] for name in names}
    return made_up("b5-running-time", ends)


def test_b5_verdict_follows_the_numbers():
    judge = find("b5-running-time").judge
    short, long = [1 + e for e in JITTER], [2 + e for e in JITTER]
    verdict = judge(_b5(short, long))
    assert verdict.verdict == "holds"
    assert verdict.numbers["ratio"]["p = 0.2, 90%"] == pytest.approx(2.0, rel=0.01)
    assert verdict.numbers["SLIP sooner"]["ratio"] == pytest.approx(2.0, rel=0.01)
    assert judge(_b5(long, short)).verdict == "does not hold"
    assert (
        judge(_b5([1.0, 2.0, 1.0, 2.0, 1.5], [2.0, 1.0, 2.0, 1.0, 1.5])).verdict == "inconclusive"
    )
    out = judge(_b5(short, long, top=0.5))  # no accuracy is ever reached
    assert out.verdict == "inconclusive"
    assert "too few runs reach an accuracy" in out.measured


def test_b5_an_accuracy_that_is_missed_counts_as_the_end_of_the_run():
    run = _b5([1.0], [2.0], top=0.94)[0]
    assert reach(run, 0.98) == (1.0, 100, True)
    assert reach(run, 1.0) == (1.0, 100, False)
    assert reach(run, 0.1) == (0.01, 3, True)


@pytest.mark.parametrize(
    "name", ["b5-running-time", "b5-running-time-pairs", "b5-running-time-reviews"]
)
def test_b5_on_a_gpu_reads_the_clock_of_runs_alone_on_it(name):
    study, short, long = find(name), [1 + e for e in JITTER], [2 + e for e in JITTER]
    assert len(study.seeds("gpu")) == (4 if name == "b5-running-time" else 2)

    def verdict(slip, borep, alone=1):
        ends = {}
        for method in study.seeds("gpu"):
            start = {
                "test_accuracy": 0.5,
                "cpu_seconds": 1.0,
                "seconds": 0.01,
                "oracle_calls": 3,
                "perfect_accuracy": 1.0,
            }
            end = {**start, "test_accuracy": 0.9, "oracle_calls": 100}
            times = slip if method.startswith("SLIP") else borep
            ends[method] = [[start, {**end, "seconds": s}] for s in times]
        runs = made_up(name, ends, "gpu")
        for run in runs:
            run.header.settings["alone"] = alone
        return study.judge(runs)

    ahead = verdict(short, long)
    assert ahead.verdict == "holds"
    assert "seconds on the GPU" in ahead.measured
    assert ahead.numbers["ratio_of_oracle_calls"]["ratio"] == pytest.approx(1.0)
    assert verdict(long, short).verdict == "does not hold"
    assert verdict([1.0, 2.0, 1.0, 2.0, 1.5], [2.0, 1.0, 2.0, 1.0, 1.5]).verdict == "inconclusive"
    shared = verdict(short, long, alone=0)  # records of runs that shared the device
    assert (shared.verdict, "shared the GPU" in shared.measured) == ("inconclusive", True)


def test_b5_rows_have_cpu_time_from_the_warm_start_on():
    study = find("b5-running-time")
    trial = Trial(
        "SLIP, p = 0.2", 900, study.settings("quick", "SLIP, p = 0.2", {**SMALL, "readings": 12})
    )
    rows = list(study.loop(trial))
    times = [row["cpu_seconds"] for row in rows]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1]
    assert rows[0]["oracle_calls"] == 3  # the throw-away run is not counted
    assert 0.5 < rows[0]["perfect_accuracy"] <= 1


def test_b5_a_throw_away_run_comes_before_the_clock_and_nothing_interrupts_the_clock_of_a_net(
    monkeypatch,
):
    from mindgap.bilevel import METHODS

    study, begun = find("b5-running-time"), []
    kind = METHODS["slip"].load()
    start = kind.start
    monkeypatch.setattr(
        kind, "start", lambda self, *args, **more: begun.append(1) or start(self, *args, **more)
    )
    net = {
        "data": "made-up tweets",
        "held": 64,
        "train": 64,
        "validation": 64,
        "test": 64,
        "words": 3,
        "hidden": 2,
        "head": 2,
        "batch_size": 32,
        "oracle_calls": 60,
        "readings": 4,
        "device": "cpu",
    }
    for scale, small, runs in (("quick", SMALL, 2), ("gpu", net, 3)):
        begun.clear()
        rows = list(
            study.loop(Trial("SLIP, p = 0.2", 900, study.settings(scale, "SLIP, p = 0.2", small)))
        )
        assert len(begun) == runs, scale
    calls, seconds = (np.array([row[name] for row in rows]) for name in ("oracle_calls", "seconds"))
    assert seconds[-1] > seconds[0] > 0
    # Equal calls take equal time: a clock that ran at every reading would not be so even.
    np.testing.assert_allclose(
        np.diff(seconds) / np.diff(calls), np.ptp(seconds) / np.ptp(calls), rtol=0.02
    )


def test_b5_the_run_that_gives_the_seconds_may_be_shorter_than_the_run_that_is_read(monkeypatch):
    from mindgap.lab.studies import running_time_runs

    def rows_of(trial, task, method, *, budget, readings):
        budgets.append(budget)
        for reading in range(readings + 1):
            trial.seconds = (
                1.0 + 0.5 * reading * budget
            )  # a call takes longer where readings interrupt the run
            yield {"oracle_calls": 2 + reading * budget // readings, "test_accuracy": 0.5}

    budgets: list[int] = []
    monkeypatch.setattr(running_time_runs, "_throw_away", lambda problem, method, seed: None)
    task = SimpleNamespace(problem=lambda size: None)
    settings = {
        "data": "words of snli",
        "batch_size": 1,
        "oracle_calls": 40,
        "readings": 2,
        "clock_calls": 10,
    }
    rows = list(running_time_runs.time_alone(Trial("SLIP", 0, settings), task, None, rows_of, 1.0))
    assert budgets == [10, 40]
    assert [row["seconds"] for row in rows] == pytest.approx([1.0, 11.0, 21.0])


# --------------------------------------------------------------------------------------------- B6,
# epochs
def _b6(name, scale, difference, begin=0.5):
    """Runs whose y-counted accuracies lie ``difference`` (one number per seed) below the
    x-counted ones.
    """
    ends = {}
    for method in find(name).seeds(scale):
        by_y = "epochs of y" in method
        less = difference if by_y else [0.0] * 5
        start = {"step": 0, "test_accuracy": begin, "train_accuracy": begin}
        ends[method] = [
            [
                start,
                {
                    "step": 7 if by_y else 10,
                    "test_accuracy": 0.9 + e - d,
                    "train_accuracy": 0.8 + e - d,
                },
            ]
            for e, d in zip(JITTER, less)
        ]
    return made_up(name, ends, scale)


B6 = [
    ("b6-epochs", "quick", "p = 0.2"),
    ("b6-epochs", "gpu", "p = 0.4"),
    ("b6-epochs", "paper", "p = 0.4"),
    ("b6-epochs-pairs", "quick", "digits"),
    ("b6-epochs-pairs", "gpu", "words of snli"),
    ("b6-epochs-pairs", "paper", "words of snli"),
    ("b6-epochs-reviews", "quick", "turned digits"),
    ("b6-epochs-reviews", "gpu", "words of reviews"),
]


@pytest.mark.parametrize(("name", "scale", "case"), B6)
def test_b6_verdict_follows_the_numbers(name, scale, case):
    judge = find(name).judge
    verdict = judge(_b6(name, scale, [0.0001, -0.0001, 0.0, 0.0002, 0.0001]))
    assert verdict.verdict == "holds"
    assert verdict.numbers["fewer_updates_of_x"] == [3]
    found = verdict.numbers[f"{case}, test: negligible"]
    assert found[0] == pytest.approx(0.00006)
    assert judge(_b6(name, scale, [0.050, 0.051, 0.049, 0.050, 0.050])).verdict == "does not hold"
    assert (
        judge(_b6(name, scale, [-0.050, -0.051, -0.049, -0.050, -0.050])).verdict == "does not hold"
    )
    assert judge(_b6(name, scale, [0.03, -0.03, 0.02, -0.02, 0.0])).verdict == "inconclusive"


def test_b6_decides_nothing_where_the_encoder_has_learned_nothing():
    untrained = _b6("b6-epochs-pairs", "gpu", [0.0001, -0.0001, 0.0, 0.0002, 0.0001], begin=0.895)
    found = find("b6-epochs-pairs").judge(untrained)
    assert (found.verdict, found.build().as_printed) == ("not trained", "not trained")
    assert "failed (90.0 % and 89.5 %)" in found.build().gate


@pytest.mark.parametrize("name", ["b6-epochs", "b6-epochs-pairs", "b6-epochs-reviews"])
def test_b6_runs_slip_alone_with_twenty_seeds_at_gpu(name):
    study, cases = find(name), 2 if name == "b6-epochs" else 1
    for scale, seeds in (("gpu", 20), ("paper", 8)):
        if scale in study.scales:
            assert list(study.seeds(scale).values()) == 2 * cases * [seeds]
            assert all("epochs of" in method for method in study.seeds(scale))
            assert "epochs" in study.lengths[scale]
        assert "oracle calls" not in study.model("gpu")  # these runs have a length in epochs


def test_b6_counts_three_updates_of_x_fewer_and_is_the_same_run_until_then():
    study = find("b6-epochs")
    runs = simulate(study, "quick", seeds=1, **SMALL, epochs=3)
    by_x, by_y = runs[:2]
    assert [row["step"] for row in by_x.rows] == [
        0,
        2,
        4,
        6,
    ]  # 60 samples, batches of 32: two per epoch
    assert [row["step"] for row in by_y.rows] == [
        0,
        1,
        3,
    ]  # the warm start alone has passed the first epoch
    assert by_x.rows[-1]["step"] - by_y.rows[-1]["step"] == 3


# ------------------------------------------------------------------------------------------- B7,
# one step
def _b7(gain, reset=0.0):
    """Runs in which one step ends ``gain`` (one number per seed, percentage points) above two."""
    ends = {}
    for name in find("b7-one-step").methods:
        more = gain if name.startswith("one") else [0.0] * 5
        ends[name] = []
        for e, g in zip(JITTER, more):
            row = {f"{split}_accuracy": 0.8 + e + g / 100 for split in ("test", "train")}
            ends[name].append({**row, **{f"reset_{k}": v + reset / 100 for k, v in row.items()}})
    return made_up("b7-one-step", ends)


def test_b7_verdict_follows_the_numbers():
    judge = find("b7-one-step").judge
    slight = judge(_b7([0.5, 0.6, 0.4, 0.5, 0.5], reset=1.0))
    assert slight.verdict == "holds"
    assert slight.numbers["gain"]["p = 0.2, test"][0] == pytest.approx(0.5)
    assert slight.numbers["gain_without_new_search"]["p = 0.2, test"][0] == pytest.approx(1.0)
    assert judge(_b7([-0.5, -0.6, -0.4, -0.5, -0.5])).verdict == "holds"  # slight, either way
    assert judge(_b7([-5.0, -5.1, -4.9, -5.0, -5.0])).verdict == "does not hold"
    assert (
        judge(_b7([5.0, 5.1, 4.9, 5.0, 5.0])).verdict == "does not hold"
    )  # a gain, and not a slight one
    assert judge(_b7([3.0, -3.0, 2.5, -2.5, 0.2])).verdict == "inconclusive"


def test_b7_both_searches_try_the_same_steps_but_for_the_linear_system():
    study = find("b7-one-step")
    ends = {}
    for name in ("one step, p = 0.4", "two steps, p = 0.4"):
        ends[name] = list(
            study.loop(Trial(name, 900, study.settings("quick", name, {**SMALL, "tried": 1})))
        )[-1]
    one, two = ends.values()
    assert (one["lr_x"], one["lr_y"]) == (two["lr_x"], two["lr_y"])
    assert one["lr_z"] == one["lr_y"] != two["lr_z"]
    # set back to one step, the second is the first, which had the same single setting to choose
    # from
    assert two["reset_test_accuracy"] == one["test_accuracy"]


# ------------------------------------------------------------------------------------------ B9,
# tuning
def _b9(slip, borep, numbers=("lr_x, beta", "lr_x, beta, radius, period, inner")):
    """Searches of 20 settings of which so many (one number per seed) are good."""

    def search(good, names, count):
        return [
            {"validation_loss": 1.0 if i < good else 2.0, "numbers": names, "searched": count}
            for i in range(20)
        ]

    ends = {
        "SLIP": [search(good, numbers[0], 5) for good in slip],
        "BO-REP": [search(good, numbers[1], 8) for good in borep],
        "BO-REP, R, I, N as published": [search(good, numbers[1], 5) for good in borep],
    }
    return made_up("b9-tuning-cost", ends)


def test_b9_verdict_follows_the_numbers():
    judge = find("b9-tuning-cost").judge
    many, few = [10, 9, 11, 10, 10], [2, 3, 2, 2, 3]
    verdict = judge(_b9(many, few))
    assert verdict.verdict == "holds"
    assert verdict.numbers["settings_needed"]["SLIP"][0] == pytest.approx(
        np.mean([21 / (m + 1) for m in many])
    )
    assert judge(_b9(few, many)).verdict == "does not hold"
    assert (
        judge(_b9(many, few, ("lr_x, radius", "lr_x, radius, period, inner"))).verdict
        == "does not hold"
    )
    assert judge(_b9([1, 5, 2, 8, 3], [5, 1, 8, 2, 3])).verdict == "inconclusive"


def test_b9_reads_the_settings_from_the_classes():
    for key in ("slip", "borep"):
        known = {f.name for f in fields(METHODS[key].load())}
        assert set(METHODS[key].choices) <= set(numbers_of(key)) <= known
        assert set(METHODS[key].choices) <= set(SPACE)
    assert set(FALLEN) <= set(numbers_of("borep")) - set(numbers_of("slip"))
    searched = {
        name: settings["searched"] for name, settings in find("b9-tuning-cost").methods.items()
    }
    assert {name: len(found) for name, found in searched.items()} == {
        "SLIP": 5,
        "BO-REP": 8,
        "BO-REP, R, I, N as published": 5,
        "BO-REP, I = N = 1": 5,
    }


def test_b9_tries_common_settings_at_common_values_and_keeps_the_best():
    study = find("b9-tuning-cost")
    runs = simulate(study, "quick", seeds=1, **SMALL, tried=3)
    for name in ("lr_x", "lr_y", "lr_z", "beta"):
        assert len({tuple(run.column(name)) for run in runs}) == 1
    for run in runs:
        assert run.column("best_loss") == list(np.minimum.accumulate(run.column("validation_loss")))
    assert study.judge(runs).numbers["numbers_in_class"]["SLIP"] == sorted(numbers_of("slip"))
