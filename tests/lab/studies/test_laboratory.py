"""Tuning with equal budgets, comparing two sets of records, looking on; settings, clocks and
cost of a study.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cases.report_records import write_study
from references.made_up_runs import toy_study

from mindgap.base.check import RuleError
from mindgap.cli.laboratory import cost
from mindgap.cli.live import Boards, Watcher
from mindgap.lab.report import write_page
from mindgap.lab.report.compare import Difference, compare, difference
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.run import plan, run_all, tuned_settings
from mindgap.lab.studies.spec import Scale
from mindgap.lab.studies.tune import FIRST_SEED, GRID_FILE, JOURNAL_FILE, tune
from mindgap.record.forms import Tuning, read_form
from mindgap.record.schema import End, Row
from mindgap.record.store import RunWriter, read_run

SEEN: list[tuple[str, int, float]] = []


def bowl(trial: Trial) -> Iterator[Row]:
    """(log10 lr - best)² at the end: each method has its own best step; ``broken`` diverges or
    raises.
    """
    SEEN.append((trial.method, trial.seed, trial["lr"]))
    if trial["broken"]:
        raise (
            OverflowError("no step works")
            if trial["broken"] is True
            else ValueError("a fault of the trial")
        )
    for step in range(2):
        yield {
            "step": step,
            "validation_loss": (math.log10(trial["lr"]) - trial["best"]) ** 2,
            "test_loss": -trial["lr"],
        }


def own_clock(trial: Trial) -> Iterator[dict]:
    yield from ({"step": t, "validation_loss": 1.0, "seconds": 1.5 + t} for t in range(2))


STUDY = toy_study(
    "bowl",
    bowl,
    {"lr": 1.0, "broken": False},
    {"slow": {"best": -2.0}, "fast": {"best": 0.0}},
    tunable={"lr": (1e-3, 1e1)},
    tune_on="validation_loss",
)

# ---- tuning
# --------------------------------------------------------------------------------------------------

optuna = pytest.importorskip("optuna")


def test_each_method_finds_its_own_step_with_the_same_number_of_trials(tmp_path: Path) -> None:
    found = tune(STUDY, "quick", tmp_path, trials=15)
    assert {m: len(f.trials) for m, f in found.methods.items()} == {"slow": 15, "fast": 15}
    for method, best in (("slow", -2.0), ("fast", 0.0)):
        assert abs(math.log10(found.methods[method].chosen["lr"]) - best) < 0.5
        assert found.methods[method].value == min(t.value for t in found.methods[method].trials)
    assert read_form(Tuning, tmp_path / "bowl" / "quick" / "tuning.json") == found


def test_no_method_can_get_more_trials_than_another(tmp_path: Path) -> None:
    """Whatever lies in the storage from before, and whatever breaks: the choice is among
    equally many trials.
    """
    alone = replace(STUDY, methods={"slow": STUDY.methods["slow"]})
    more = tune(
        alone, "quick", tmp_path, trials=9
    )  # one method searched by itself, longer than the others
    assert len(more.methods["slow"].trials) == 9
    found = tune(STUDY, "quick", tmp_path, trials=4)
    assert {m: len(f.trials) for m, f in found.methods.items()} == {"slow": 4, "fast": 4}
    assert found.methods["slow"].trials == more.methods["slow"].trials[:4]
    assert found.methods["slow"].value == min(t.value for t in found.methods["slow"].trials)
    # A method whose every trial fails still has its trials counted, and no further ones made up
    # for.
    broken = replace(STUDY, methods={"slow": {"best": 0.0, "broken": True}, "fast": {"best": 0.0}})
    SEEN.clear()
    found = tune(broken, "quick", tmp_path / "broken", trials=3)
    assert {m: sum(1 for seen, _, _ in SEEN if seen == m) for m in broken.methods} == {
        "slow": 3,
        "fast": 3,
    }
    assert found.methods["slow"].value == math.inf


def test_only_divergence_counts_as_an_infinite_loss(tmp_path: Path) -> None:
    faulty = replace(STUDY, methods={"slow": {"best": 0.0, "broken": "fault"}})
    with pytest.raises(ValueError, match="a fault of the trial"):
        tune(faulty, "quick", tmp_path, trials=1)


GRID = replace(STUDY, grid={"lr": (0.1, 0.01, 1.0)}, tuning_seeds=(7, 8))


def test_a_grid_is_tried_point_by_point_for_every_method_and_extended_beyond_an_end(
    tmp_path: Path,
) -> None:
    SEEN.clear()
    found = tune(GRID, "quick", tmp_path, grid=True)
    points = [(m, lr) for m in ("slow", "fast") for lr in (0.1, 0.01, 1.0)] + [
        ("slow", 0.001),
        ("fast", 10.0),
    ]
    assert [(m, seed, pytest.approx(lr)) for m, lr in points for seed in (7, 8)] == SEEN
    assert {m: f.chosen["lr"] for m, f in found.methods.items()} == {"slow": 0.01, "fast": 1.0}
    assert [f.ends for f in found.methods.values()] == [(), ()]
    assert found.trials == 3
    assert found.extended
    with pytest.raises(RuleError, match=r"study must say what may be tuned \(grid\)"):
        tune(STUDY, "quick", tmp_path, grid=True)


def test_a_grid_is_extended_four_times_at_most_and_the_end_is_reported(tmp_path: Path) -> None:
    far = replace(GRID, methods={"slow": {"best": 9.0}}, tuning_seeds=(7,))
    found = tune(far, "quick", tmp_path, grid=True).methods["slow"]
    assert [t.settings["lr"] for t in found.trials] == pytest.approx(
        [0.1, 0.01, 1.0, 10.0, 100.0, 1000.0, 10_000.0]
    )
    assert found.ends == ("lr",)
    broken = replace(
        far, methods={"slow": {"best": 0.0, "broken": True}}
    )  # where every step diverges, smaller ones
    found = tune(broken, "quick", tmp_path / "broken", grid=True).methods["slow"]
    assert found.value == math.inf


def test_an_interrupted_grid_repeats_no_point_and_other_settings_are_another_search(
    tmp_path: Path,
) -> None:
    whole = tune(GRID, "quick", tmp_path / "whole", grid=True)

    def interrupt(method: str, number: int, value: float) -> None:
        raise KeyboardInterrupt

    SEEN.clear()
    with pytest.raises(KeyboardInterrupt):
        tune(GRID, "quick", tmp_path / "cut", grid=True, on_trial=interrupt)
    assert len(SEEN) == 6, "the points of one method: each goes on by itself"
    with (tmp_path / "cut" / "bowl" / "quick" / GRID_FILE).open("a") as journal:
        journal.write('\n["cut sho')
    resumed = tune(GRID, "quick", tmp_path / "cut", grid=True)
    assert len(SEEN) == 16, "the points beyond the ends are new, nothing else"
    assert [[t.value for t in f.trials] for f in resumed.methods.values()] == [
        [t.value for t in f.trials] for f in whole.methods.values()
    ]
    tune(GRID, "quick", tmp_path / "cut", grid=True, overrides={"best": "-1"})
    assert len(SEEN) == 28


def test_the_best_points_of_a_shortened_search_are_tried_again_as_the_scale_has_them(
    tmp_path: Path,
) -> None:
    def loop(trial: Trial) -> Iterator[Row]:
        """Runs of fewer than ten steps have another optimum, 0.1."""
        best = trial["best"] if trial["steps"] >= 10 else -1.2
        return bowl(Trial(trial.method, trial.seed, {**trial.settings, "best": best}))

    one = replace(GRID, methods={"slow": {"steps": 10, "best": 0.0}}, tuning_seeds=(7,), loop=loop)
    SEEN.clear()
    # An override that does not shorten a run stays.
    shorter = {"steps": "4", "best": "-2"}
    found = tune(one, "quick", tmp_path, grid=True, overrides=shorter, confirm=2)
    slow = found.methods["slow"]
    assert [lr for _, _, lr in SEEN] == pytest.approx([0.1, 0.01, 1.0, 0.1, 0.01])
    assert [t.settings["lr"] for t in slow.confirmed] == pytest.approx([0.1, 0.01])
    assert (slow.chosen["lr"], slow.value) == (0.01, 0.0)
    assert read_form(Tuning, tmp_path / "bowl" / "quick" / "tuning.json") == found
    run_all([plan(one, "quick")], tmp_path)
    assert "slow, at full length" in write_page(tmp_path, tmp_path / "page.html").read_text()
    with pytest.raises(RuleError, match="confirm must be 0 without grid, got 2"):
        tune(one, "quick", tmp_path, confirm=2)


def test_the_points_of_a_grid_run_in_several_processes_and_give_the_same(tmp_path: Path) -> None:
    both, alone = (
        tune(GRID, "quick", tmp_path / str(jobs), grid=True, jobs=jobs) for jobs in (2, 1)
    )
    assert {m: f.chosen for m, f in both.methods.items()} == {
        m: f.chosen for m, f in alone.methods.items()
    }
    assert [[t.settings for t in f.trials] for f in both.methods.values()] == [
        [t.settings for t in f.trials] for f in alone.methods.values()
    ]
    run_all([plan(GRID, "quick")], tmp_path / "1")
    page = write_page(tmp_path / "1", tmp_path / "page.html").read_text()
    assert "best point was an end of the grid, further points beyond it were tried" in page
    tried = "</tr>".join(
        f"<td>{lr}</td><td>{value}</td>" for lr, value in ((0.1, 1), (0.01, 0), (1, 4), (0.001, 1))
    )
    assert tried in re.sub("<tr><th[^>]*>[^<]*</th>", "", page)


def test_the_first_guesses_are_the_same_for_every_method(tmp_path: Path) -> None:
    found = tune(STUDY, "quick", tmp_path, trials=5).methods
    slow, fast = ([t.settings["lr"] for t in found[m].trials] for m in ("slow", "fast"))
    assert slow == fast, "before anything is known, the same places are tried"


def test_an_interrupted_search_goes_on_to_the_same_end(tmp_path: Path) -> None:
    whole = tune(STUDY, "quick", tmp_path / "whole", trials=12)

    def interrupt(method: str, number: int, value: float) -> None:
        if (method, number) == ("fast", 5):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(STUDY, "quick", tmp_path / "cut", trials=12, on_trial=interrupt)
    assert (tmp_path / "cut" / "bowl" / "quick" / JOURNAL_FILE).exists()
    assert tuned_settings(tmp_path / "cut", STUDY, "quick") == {}, (
        "nothing is chosen from unequal numbers of trials"
    )
    resumed = tune(STUDY, "quick", tmp_path / "cut", trials=12)
    for method, found in whole.methods.items():
        again = resumed.methods[method]
        assert again.chosen == found.chosen
        assert [(t.settings, t.value) for t in again.trials] == [
            (t.settings, t.value) for t in found.trials
        ]


def test_methods_searched_at_the_same_time_find_the_same_and_tell_of_every_trial(
    tmp_path: Path,
) -> None:
    told: list[tuple[str, int]] = []
    both = tune(
        STUDY,
        "quick",
        tmp_path / "both",
        trials=3,
        jobs=2,
        on_trial=lambda method, n, value: told.append((method, n)),
    )
    alone = tune(STUDY, "quick", tmp_path / "alone", trials=3)
    assert sorted(told) == [(method, n) for method in ("fast", "slow") for n in (1, 2, 3)]
    for method in STUDY.methods:
        assert both.methods[method].chosen == alone.methods[method].chosen


def test_some_methods_cannot_be_searched_otherwise_than_the_others_were(tmp_path: Path) -> None:
    tune(STUDY.only("quick", ["slow"]), "quick", tmp_path, trials=5)
    with pytest.raises(RuleError, match=r"must be searched as slow were \(5 trials, seeds 10000;"):
        tune(STUDY.only("quick", ["fast"]), "quick", tmp_path, trials=2)
    run_all([plan(STUDY, "quick", tuned=tuned_settings(tmp_path, STUDY, "quick"))], tmp_path)
    page = write_page(tmp_path, tmp_path / "page.html").read_text()
    assert "5 trials of slow (no other method was searched), lr in" in page
    tune(STUDY, "quick", tmp_path, trials=2)  # all methods at once: equal again
    assert len(read_form(Tuning, tmp_path / "bowl" / "quick" / "tuning.json").methods) == 2


def test_a_search_of_some_methods_keeps_what_the_same_search_chose_for_others(
    tmp_path: Path,
) -> None:
    for method in ("slow", "fast"):
        tune(STUDY.only("quick", [method]), "quick", tmp_path, trials=3)
    alone = tune(STUDY, "quick", tmp_path / "together", trials=3)
    assert tuned_settings(tmp_path, STUDY, "quick") == {
        m: dict(found.chosen) for m, found in alone.methods.items()
    }
    with pytest.raises(RuleError, match="must be searched as fast, slow were"):
        tune(STUDY.only("quick", ["slow"]), "quick", tmp_path, trials=2)
    assert set(tuned_settings(tmp_path, STUDY, "quick")) == {"slow", "fast"}


def test_tuning_seeds_are_not_those_of_the_runs_and_no_test_column_is_looked_at(
    tmp_path: Path,
) -> None:
    SEEN.clear()
    tune(STUDY, "quick", tmp_path, trials=2, seeds=3)
    assert {seed for _, seed, _ in SEEN} == {FIRST_SEED, FIRST_SEED + 1, FIRST_SEED + 2}
    assert {h.seed for h in plan(STUDY, "quick").headers} == {0, 1}
    with pytest.raises(
        RuleError, match="tune_on must be a column of validation data, got 'test_loss'"
    ):
        replace(STUDY, tune_on="test_loss")


def test_runs_use_what_was_chosen_and_overrides_have_the_last_word(tmp_path: Path) -> None:
    found = tune(STUDY, "quick", tmp_path, trials=3)
    tuned = tuned_settings(tmp_path, STUDY, "quick")
    steps = {h.method: h.settings["lr"] for h in plan(STUDY, "quick", tuned=tuned).headers}
    assert steps == {m: found.methods[m].chosen["lr"] for m in STUDY.methods}
    overridden = plan(STUDY, "quick", tuned=tuned, overrides={"lr": "0.5"})
    assert {h.settings["lr"] for h in overridden.headers} == {0.5}


def test_the_report_shows_tuning_curves_and_cost(tmp_path: Path) -> None:
    tune(STUDY, "quick", tmp_path, trials=4)
    run_all([plan(STUDY, "quick", tuned=tuned_settings(tmp_path, STUDY, "quick"))], tmp_path)
    page = write_page(tmp_path, tmp_path / "page.html").read_text()
    assert "Tuning: best value so far" in page
    assert "4 trials of every method, lr in [0.001, 10] on a log scale, on validation_loss" in page
    assert page.count("<td>4</td><td>lr = ") == 2


@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        ({"tunable": {}}, {}, "study must say what may be tuned"),
        ({}, {"trials": 0}, "trials must be a whole number of at least 1, got 0"),
        ({}, {"scale": "huge"}, "scale must be one of 'quick', got 'huge'"),
    ],
)
def test_bad_searches_are_named(
    change: dict, arguments: dict, message: str, tmp_path: Path
) -> None:
    with pytest.raises(RuleError, match=message):
        tune(replace(STUDY, **change), **{"scale": "quick", "out": tmp_path, **arguments})
    assert list(tmp_path.iterdir()) == []


# ---- comparing
# --------------------------------------------------------------------------------------------------


def bundle(
    rng: np.random.Generator, shift: float, seeds: int = 8
) -> list[tuple[np.ndarray, np.ndarray]]:
    x = np.arange(50.0)
    return [(x, np.exp(-x / 20) + shift + 0.1 * rng.standard_normal(50)) for _ in range(seeds)]


def test_equal_laws_are_within_noise_and_a_shift_differs() -> None:
    rng = np.random.default_rng(0)
    place = Difference("s", "quick", "m", "loss", "same")
    outcomes = [
        difference(place, bundle(rng, 0), bundle(rng, 0), 0.001).outcome for _ in range(200)
    ]
    # At level 0.001 two or more of 200 would come by chance once in 57 such tests.
    assert outcomes.count("differs") <= 1
    shifted = difference(place, bundle(rng, 0), bundle(rng, 1.0), 0.001)
    assert shifted.outcome == "differs"
    assert shifted.b - shifted.a == pytest.approx(1.0, abs=0.3)
    curve = bundle(rng, 0)
    assert difference(place, curve, curve, 0.001) == place
    assert difference(place, curve[:1], bundle(rng, 0)[:1], 0.001).outcome == "too few seeds"


def test_compare_names_changed_verdicts_and_differing_curves(tmp_path: Path) -> None:
    write_study(tmp_path / "a", seeds=5)
    write_study(tmp_path / "a", "only-here", seeds=2)
    changed = {"verdict": "does not hold", "measured": "", "numbers": {}}
    folder = write_study(tmp_path / "b", seeds=5, verdict=changed)
    for path in folder.glob("GClip-*.jsonl"):
        run = read_run(path)
        path.unlink()
        with RunWriter(folder, run.header) as writer:
            for row in run.rows:
                writer.row({**row, "norm": row["norm"] + 30})
            writer.end(End("done"))
    found = compare(tmp_path / "a", tmp_path / "b")
    assert found.changed == (("a-study", "quick", "holds", "does not hold"),)
    assert [(d.method, d.quantity) for d in found.differing] == [("GClip", "norm")]
    assert {d.outcome for d in found.curves if d.method == "SGD"} == {"same"}
    assert found.only_a == ("only-here/quick",)


# ---- looking on
# --------------------------------------------------------------------------------------------------


def test_the_live_table_shows_rows_values_and_speed_of_running_jobs(tmp_path: Path) -> None:
    item = plan(STUDY, "quick", overrides={"lr": 0.1})
    watcher = Watcher([item], tmp_path)
    watcher.look()
    assert watcher.jobs == {}
    time.sleep(0.2)
    folder = item.folder(tmp_path)
    with RunWriter(folder, item.headers[0]) as first, RunWriter(folder, item.headers[1]) as second:
        first.row({"step": 0, "validation_loss": 0.5})
        second.row({"step": 0, "validation_loss": 0.25})
        watcher.look()
        second.row({"step": 1, "validation_loss": 0.125})
        second.end(End("done"))
        watcher.look()
    jobs = {job.header.seed: job for job in watcher.jobs.values()}
    assert (jobs[0].rows, jobs[0].ended, jobs[1].rows, jobs[1].ended) == (1, False, 2, True)
    assert watcher.expected == {"bowl": 2}
    assert jobs[0].seconds_left(jobs[0].started + 2.0, watcher.expected["bowl"]) == pytest.approx(
        2.0
    )
    assert jobs[0].speed(time.monotonic()) < 1 / 0.2, (
        "the first rows count from the look before them"
    )
    bar, *running = watcher.lines(80)
    assert bar.startswith("[#####...............] 1 of 4 runs recorded, about ")
    assert [line.split(":")[0] for line in running] == [f"  bowl, {jobs[0].header.method}, seed 0"]
    assert all(len(line) <= 80 for line in (bar, *running))


def test_tensorboard_files_hold_every_number(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    boards = Boards(tmp_path)
    header = plan(STUDY, "quick").headers[0]
    for step in range(3):
        boards.see(header, "row", {"step": 10 * step, "loss": 0.5**step, "name": "text"})
    boards.see(header, "end", {"outcome": "done"})
    boards.close()
    (path,) = tmp_path.rglob("events*")
    events = [e for e in EventFileLoader(str(path)).Load() if e.summary.value]
    assert [(e.step, e.summary.value[0].tag) for e in events] == [
        (0, "loss"),
        (10, "loss"),
        (20, "loss"),
    ]


def test_a_failure_of_the_thread_that_looks_on_is_raised_after_the_runs(
    tmp_path: Path, monkeypatch
) -> None:
    """The runs go on where a TensorBoard file cannot be written; the error is not lost in a
    thread.
    """
    pytest.importorskip("tensorboard")
    from mindgap.cli import live

    item, ran = plan(STUDY, "quick"), []
    monkeypatch.setattr(live, "EVERY", 0.01)
    with (  # noqa: PT012
        pytest.raises(NotADirectoryError),
        live.looking_on([item], tmp_path / "runs", tensorboard=tmp_path / "board"),
    ):
        (tmp_path / "board").rmdir()
        (tmp_path / "board").write_text("in the way\n")
        with RunWriter(item.folder(tmp_path / "runs"), item.headers[0]) as writer:
            writer.row({"step": 0, "validation_loss": 0.5})
            time.sleep(0.3)
        ran.append(True)
    assert ran == [True]


# ---- settings, clocks and cost
# ---------------------------------------------------------------------------------


def test_a_scale_may_give_a_method_settings_of_its_own(capsys, monkeypatch, tmp_path: Path) -> None:
    from mindgap.cli.laboratory import show

    cpu = Scale(
        {"lr": 1.0, "broken": False},
        methods={"slow": {"lr": 0.5}, "fast": {"lr": 2.0, "best": 1.0}},
    )
    study = replace(STUDY, scales={**STUDY.scales, "cpu": cpu})
    assert study.settings("cpu", "fast") == {"lr": 2.0, "broken": False, "best": 1.0}
    assert study.settings("quick", "fast") == {"lr": 1.0, "broken": False, "best": 0.0}
    assert study.settings("cpu", "slow", {"lr": "3"})["lr"] == 3.0
    monkeypatch.setattr("mindgap.cli.laboratory.matching_names", lambda name: [name])
    monkeypatch.setattr("mindgap.cli.laboratory.find", lambda name: study)
    show("bowl", tmp_path)
    lines = dict(line.split("\t", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["cpu"].startswith("broken=False\t")  # every method replaces the step
    assert lines["quick"].startswith("broken=False, lr=1\t")
    assert lines["fast"].startswith("best=0; cpu: best=1, lr=2\t")
    with pytest.raises(RuleError, match="method must be one of 'slow', 'fast'"):
        replace(STUDY, scales={"cpu": Scale({"lr": 1.0}, methods={"fats": {}})})


def test_a_study_may_have_a_clock_of_its_own(tmp_path: Path) -> None:
    study = toy_study("clock", own_clock, {"lr": 1.0}, {"one": {}})
    run_all([plan(study, "quick", seeds=1)], tmp_path)
    (path,) = tmp_path.glob("clock/quick/*.jsonl")
    assert read_run(path).column("seconds") == [1.5, 2.5]


def test_the_cost_of_methods_that_never_ran_is_guessed_from_the_others_and_said_to_be() -> None:
    words = cost(STUDY, "quick", {"slow": [3.0, 5.0, 4.0]})
    assert words == (
        "about 16 s with --jobs 1 for 4 runs (2 methods, 2 seeds); 1 never ran, taken to be like "
        "the others"
    )
    assert cost(STUDY, "quick", {"slow": [3.0], "fast": [1.0], "gone": [99.0]}).startswith(
        "about 8 s with"
    )
