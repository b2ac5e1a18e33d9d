"""Successive halving of a grid search, on planted studies whose answer is known."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mindgap.base.check import RuleError
from mindgap.lab.report import write_page
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.halving import FOLDER, run_leg
from mindgap.lab.studies.run import plan, run_all
from mindgap.lab.studies.spec import Parts, Scale, Source, Study, Trial
from mindgap.lab.studies.tune import tune, validation_score
from mindgap.record.forms import Tuning, read_form
from mindgap.record.store import TUNING_FILE

#: (method, lr, step) of every step made.
STEPS: list[tuple[str, float, int]] = []


def planted(trial: Trial) -> Iterator[dict[str, float]]:
    """A loss that falls in a straight line from 10 to the distance of lr from the method's best;
    not a number for lr 16. A ``late`` one falls in its last step alone.
    """
    first = trial.restored.get("step", 0)
    for step in range(first + 1, trial["steps"] + 1):
        STEPS.append((trial.method, trial["lr"], step))
        end = abs(math.log2(trial["lr"] / trial["best"]))
        share = step / trial["steps"]
        loss = 10 + (end - 10) * share if trial["lr"] != 16 else math.nan
        if trial["lr"] == trial["late"]:
            loss = 20.0 if step < trial["steps"] else -1.0
        if trial["checkpoints"]:
            trial.save({"step": step})
        yield {"step": step, "loss": loss}


STUDY = Study(
    name="planted",
    claim="E0",
    title="planted",
    statement="planted",
    source=Source("thesis", "2"),
    scales={
        "quick": Scale(
            {"lr": 1.0, "steps": 8, "every": 1, "best": 2.0, "late": 0.0, "checkpoints": True}
        )
    },
    methods={"a": {}, "b": {"best": 1.0}},
    loop=planted,
    judge=lambda runs: Parts(),
    grid={"lr": (1.0, 2.0, 4.0, 8.0, 16.0)},
    tune_on="loss",
    tuning_seeds=(7,),
)


def search(out: Path, study: Study = STUDY, **more: object) -> Tuning:
    """A halved search, with the steps of this search alone in :data:`STEPS`."""
    STEPS.clear()
    return tune(study, "quick", out, grid=True, halving=True, **more)  # type: ignore[arg-type]


def test_the_better_half_goes_on_and_the_best_is_found(tmp_path: Path) -> None:
    found = search(tmp_path)
    one = found.methods["a"]
    assert one.chosen == {"lr": 2.0}
    assert one.value == 0.0
    # 5 points, then 3, then 2; the run that is not a number is stopped first.
    assert [t.stopped_at for t in one.trials] == [None, None, 0.5, 0.25, 0.25]
    assert one.trials[2].reading == 10 + (1 - 10) * 0.5
    assert one.trials[4].reading == math.inf
    assert all(t.value == math.inf for t in one.trials if t.stopped_at)
    # 1.0 is an end for b: a point beyond it is tried, to its end.
    assert found.methods["b"].chosen == {"lr": 1.0}
    assert [t.settings["lr"] for t in found.methods["b"].trials][5:] == [0.5]
    # No step is made twice: 2 of 8 by five points, 2 more by three, 4 more by two.
    assert len(set(STEPS)) == len(STEPS)
    assert sum(method == "a" for method, _, _ in STEPS) == 5 * 2 + 3 * 2 + 2 * 4
    assert sum(method == "b" for method, _, _ in STEPS) == 5 * 2 + 3 * 2 + 2 * 4 + 8
    assert found.rungs == (0.25, 0.5)
    folder = tmp_path / "planted" / "quick"
    assert read_form(Tuning, folder / TUNING_FILE) == found
    assert not (folder / FOLDER).exists()
    run_all([plan(STUDY, "quick")], tmp_path)
    page = write_page(tmp_path, tmp_path / "page.html").read_text()
    assert "stopped at 50 %: 5.5" in page
    assert (
        "After 25 % and 50 % of a run the worse half of each method's points was stopped." in page
    )


def test_a_point_that_becomes_good_late_is_lost(tmp_path: Path) -> None:
    """What halving cannot see: the full grid finds it."""
    late = replace(STUDY, methods={"a": {"late": 4.0}})
    assert search(tmp_path / "halved", late).methods["a"].chosen == {"lr": 2.0}
    full = tune(late, "quick", tmp_path / "full", grid=True)
    assert full.methods["a"].chosen == {"lr": 4.0}
    assert full.rungs == ()


def test_equal_points_are_kept_in_their_order_and_all_may_diverge(tmp_path: Path) -> None:
    flat = replace(STUDY, grid={"lr": (1.0, 4.0)}, methods={"a": {}})
    assert search(tmp_path / "flat", flat).methods["a"].trials[0].stopped_at is None
    lost = replace(STUDY, grid={"lr": (16.0,)}, methods={"a": {}})
    one = search(tmp_path / "lost", lost).methods["a"]
    assert (one.chosen, one.value) == ({"lr": 16.0}, math.inf)


@pytest.mark.parametrize("after", [1, 7, 9, 12])
def test_an_interrupted_search_goes_on_and_repeats_no_leg(
    tmp_path: Path, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends after so many legs, in the middle of one."""
    from mindgap.lab.studies import halving

    whole, legs = search(tmp_path / "whole"), []

    def cut(*arguments: object) -> tuple[float, float]:
        legs.append(arguments)
        if len(legs) > after:
            STEPS.clear()
            raise KeyboardInterrupt
        return run_leg(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(halving, "run_leg", cut)
    with pytest.raises(KeyboardInterrupt):
        search(tmp_path / "cut")
    monkeypatch.undo()
    journal = tmp_path / "cut" / "planted" / "quick" / "tuning-grid.journal"
    before = len(journal.read_text().split("\n"))
    resumed = search(tmp_path / "cut")
    assert {
        m: [(t.settings, t.value, t.stopped_at) for t in f.trials]
        for m, f in resumed.methods.items()
    } == {
        m: [(t.settings, t.value, t.stopped_at) for t in f.trials] for m, f in whole.methods.items()
    }
    assert before == after + 1
    assert len(set(STEPS)) == len(STEPS)
    total = 2 * (5 * 2 + 3 * 2 + 2 * 4) + 8
    assert len(STEPS) < total, "the legs before the interruption are not run again"


def test_several_processes_choose_the_same(tmp_path: Path) -> None:
    alone, both = (search(tmp_path / str(jobs), jobs=jobs) for jobs in (1, 2))
    assert [[t.stopped_at for t in f.trials] for f in alone.methods.values()] == [
        [t.stopped_at for t in f.trials] for f in both.methods.values()
    ]


def test_a_loop_without_checkpoints_begins_again_with_the_same_choice(tmp_path: Path) -> None:
    found = search(tmp_path, overrides={"checkpoints": "false"})
    assert found.methods["a"].chosen == {"lr": 2.0}
    assert sum(method == "a" for method, _, _ in STEPS) == 5 * 2 + 3 * 4 + 2 * 8


def test_a_checkpoint_that_cannot_be_used_is_left_out(tmp_path: Path) -> None:
    settings = STUDY.settings("quick", "a")
    run_leg(STUDY, "a", settings, 0, 0.25, tmp_path, "run")
    (checkpoint,) = tmp_path.iterdir()
    checkpoint.write_bytes(checkpoint.read_bytes()[:-1] + b"?")
    STEPS.clear()
    assert run_leg(STUDY, "a", settings, 0, 0.5, tmp_path, "run")[0] == 10 + (1 - 10) * 0.5
    assert len(STEPS) == 4


def test_bad_input_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match=r"halving must be used with a grid search \(--grid\)"):
        tune(STUDY, "quick", tmp_path, halving=True)
    with pytest.raises(RuleError, match=r"every must be at most 2 to halve .* steps = 8; .* got 8"):
        search(tmp_path, overrides={"every": "8"})
    silent = replace(STUDY, tune_on="validation_loss")
    with pytest.raises(RuleError, match="must have the column validation_loss in every reading"):
        search(tmp_path, silent)
    endless = replace(STUDY, scales={"quick": Scale({"lr": 1.0})})
    with pytest.raises(RuleError, match="method a must say how long a run is"):
        search(tmp_path, endless)
    few = find("b1-hyper-representation")
    with pytest.raises(RuleError, match="readings must be at least 4 to halve a search"):
        search(tmp_path, few)
    search(tmp_path)
    with pytest.raises(RuleError, match="must be searched as a, b were"):
        tune(STUDY.only("quick", ["a"]), "quick", tmp_path, grid=True)


def test_a_bilevel_run_in_three_legs_ends_as_in_one(tmp_path: Path) -> None:
    study = find("b0-unbounded-smoothness")
    settings = study.settings("quick", "SLIP")
    for share in (0.25, 0.5, 1.0):
        value, _ = run_leg(study, "SLIP", settings, 1000, share, tmp_path, "run")
    assert value == validation_score(study, "SLIP", settings, (1000,))[0]
