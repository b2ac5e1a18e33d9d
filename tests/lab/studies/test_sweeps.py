"""Sweeps: failures stay alone, dead workers are replaced, interrupted runs go on, --force says
what it overwrites.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from references.made_up_runs import toy_study

from mindgap.base.check import RuleError
from mindgap.lab.studies import sweep as sweeping
from mindgap.lab.studies.loop import SUFFIX, Checkpoints, Trial
from mindgap.lab.studies.processes import ATTEMPTS
from mindgap.lab.studies.run import delete_records, execute, existing_records, plan, run_all
from mindgap.lab.studies.spec import Study
from mindgap.lab.studies.sweep import Cluster, Sweep
from mindgap.record.schema import End, RecordError, Row
from mindgap.record.store import (
    RunWriter,
    read_run,
    run_file,
    write_atomically,
)


def walk(trial: Trial) -> Iterator[Row]:
    """A random walk that can fail, die or be cut short at a step, and that offers checkpoints."""
    rng = trial.numpy_generator("noise")
    place = 0.0
    if trial.restored:
        rng.bit_generator.state = trial.restored["rng"]
        place = trial.restored["place"]
    for step in range(trial.restored.get("step", 0), trial["steps"]):
        if step == trial["fail_at"]:
            raise ArithmeticError("the walk fell off")
        _perhaps_die(trial, step)
        time.sleep(trial["wait"])
        with trial.timed():
            place += float(rng.standard_normal())
        trial.save(lambda: {"step": step + 1, "place": place, "rng": rng.bit_generator.state})  # noqa: B023
        yield {
            "step": step,
            "place": place,
            **({"restored": bool(trial.restored)} if trial["tell"] else {}),
        }


def _perhaps_die(trial: Trial, step: int) -> None:
    """Kill this process, the first ``deaths`` times it comes here; the marks are files, to
    outlive it.
    """
    if step == trial["die_at"]:
        marks = Path(trial["marks"])
        deaths = len(list(marks.glob("death*")))
        if deaths < trial["deaths"]:
            (marks / f"death{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)


SETTINGS = {
    "steps": 8,
    "fail_at": -1,
    "die_at": -1,
    "deaths": 0,
    "marks": "",
    "tell": False,
    "wait": 0.0,
}
STUDY = toy_study("walk", walk, SETTINGS, {"plain": {}, "other": {}})


def rows(out: Path) -> dict[str, list[Row]]:
    return {
        p.name: [dict(r, seconds=0) for r in read_run(p).rows] for p in sorted(out.rglob("*.jsonl"))
    }


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    out = tmp_path_factory.mktemp("undisturbed")
    run_all([plan(STUDY, "quick")], out)
    return rows(out)


def test_one_failing_method_does_not_stop_the_others_and_its_error_is_recorded(
    tmp_path: Path,
) -> None:
    study = replace(STUDY, methods={"bad": {"fail_at": 3}, "good": {}})
    ends: dict[tuple[str, int], End] = {}
    run_all(
        [plan(study, "quick")],
        tmp_path,
        sweep=Sweep(2),
        on_end=lambda h, e: ends.update({(h.method, h.seed): e}),
    )
    assert {key: end.outcome for key, end in ends.items()} == {
        ("bad", 0): "failed",
        ("bad", 1): "failed",
        ("good", 0): "done",
        ("good", 1): "done",
    }
    run = next(read_run(p) for p in tmp_path.rglob("bad-0-*.jsonl"))
    assert len(run.rows) == 3
    assert run.end is not None
    assert run.end.message.startswith("ArithmeticError: the walk fell off (test_sweeps.py:")


def test_an_error_that_looks_like_the_disks_is_recorded_when_the_loop_raised_it(
    tmp_path: Path,
) -> None:
    def no_data(trial: Trial) -> Iterator[Row]:
        raise FileNotFoundError("data.csv")
        yield {}

    item = plan(replace(STUDY, loop=no_data), "quick", seeds=1)
    end = execute(item.study, item.headers[0], tmp_path)
    assert end.outcome == "failed"
    assert "FileNotFoundError: data.csv" in end.message
    assert read_run(run_file(tmp_path, item.headers[0])).end == end


def test_a_worker_killed_once_takes_nothing_with_it(
    tmp_path: Path, undisturbed: dict[str, list[Row]]
) -> None:
    study = replace(
        STUDY, methods={"plain": {}, "other": {"die_at": 5, "deaths": 1, "marks": str(tmp_path)}}
    )
    run_all([plan(study, "quick")], tmp_path / "runs", sweep=Sweep(2))
    assert (tmp_path / "death0").exists()
    found = rows(tmp_path / "runs")
    assert len(found) == 4
    # The settings differ in what makes it die, so the files are named otherwise; the walks are the
    # same.
    assert sorted(map(str, found.values())) == sorted(map(str, undisturbed.values()))


def test_a_trial_that_always_kills_its_worker_is_given_up_and_the_others_finish(
    tmp_path: Path,
) -> None:
    study = replace(
        STUDY, methods={"plain": {}, "deadly": {"die_at": 2, "deaths": 99, "marks": str(tmp_path)}}
    )
    ends: dict[str, str] = {}
    run_all(
        [plan(study, "quick", seeds=1)],
        tmp_path / "runs",
        sweep=Sweep(2),
        on_end=lambda h, e: ends.update({h.method: e.message}),
    )
    assert ends == {"plain": "", "deadly": f"its worker died {ATTEMPTS} times (out of memory?)"}
    assert len(list(tmp_path.glob("death*"))) == ATTEMPTS


def test_whoever_works_beside_a_deadly_trial_is_not_given_up_with_it(tmp_path: Path) -> None:
    deadly = {"die_at": 2, "deaths": 99, "marks": str(tmp_path)}
    study = replace(STUDY, methods={"slow": {"wait": 0.2}, "deadly": deadly})
    ends: dict[str, End] = {}
    run_all(
        [plan(study, "quick", seeds=1)],
        tmp_path / "runs",
        sweep=Sweep(2),
        on_end=lambda h, e: ends.update({h.method: e}),
    )
    assert {method: end.outcome for method, end in ends.items()} == {
        "slow": "done",
        "deadly": "failed",
    }
    assert len(list(tmp_path.glob("death*"))) == ATTEMPTS


def test_a_full_disk_is_told_and_the_next_run_completes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, list[Row]]
) -> None:
    write, calls = os.write, []

    def full(file: int, data: bytes) -> int:
        calls.append(data)
        if len(calls) == 7:
            return write(file, data[:5])  # the last bytes that fitted
        if len(calls) > 7:
            raise OSError(28, "No space left on device")
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    messages: list[str] = []
    run_all([plan(STUDY, "quick")], tmp_path, on_end=lambda h, e: messages.append(e.message))
    monkeypatch.undo()
    assert "is the disk full?" in messages[0]
    assert all("No space left" in m for m in messages[1:])
    run_all([plan(STUDY, "quick")], tmp_path)
    assert rows(tmp_path) == undisturbed


def cut_short(study: Study, out: Path, after: int) -> Path:
    """Run the first trial and stop it dead after some rows, as a killed process would."""
    item = plan(study, "quick", seeds=1)
    folder = item.folder(out)
    with RunWriter(folder, item.headers[0]) as writer:
        trial = Trial("plain", 0, item.headers[0].settings)
        checkpoints = Checkpoints(writer, 0, study.loop)
        for row in study.loop(trial):
            writer.row({**row, "seconds": trial.seconds})
            if row["step"] == after:
                break
            checkpoints.offer(trial)  # the checkpoint is one row behind the record
    return writer.path


def test_an_interrupted_run_goes_on_from_its_checkpoint(
    tmp_path: Path, undisturbed: dict[str, list[Row]]
) -> None:
    telling = replace(STUDY, methods={"plain": {"tell": True}})
    path = cut_short(telling, tmp_path, 4)
    assert path.with_suffix(SUFFIX).exists()
    item = plan(telling, "quick", seeds=1)
    end = execute(item.study, item.headers[0], path.parent)
    # Row 4 was recorded before the cut as not restored; computed again it says otherwise, and that
    # is noticed.
    assert "the resumed run gives" in end.message
    assert '"restored":true' in end.message

    path = cut_short(STUDY, tmp_path / "quiet", 4)
    run_all([plan(STUDY, "quick")], tmp_path / "quiet")
    assert rows(tmp_path / "quiet") == undisturbed
    assert not path.with_suffix(SUFFIX).exists(), "a finished run needs no checkpoint"


@pytest.mark.parametrize("damage", ["torn", "ahead"])
def test_a_checkpoint_that_does_not_fit_is_not_used(
    tmp_path: Path, damage: str, undisturbed: dict[str, list[Row]]
) -> None:
    path = cut_short(STUDY, tmp_path, 4)
    if damage == "torn":
        checkpoint = path.with_suffix(SUFFIX)
        checkpoint.write_bytes(checkpoint.read_bytes()[:100])
    else:  # power was lost, and the last rows with it
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(lines[:3]))
    run_all([plan(STUDY, "quick")], tmp_path)
    assert rows(tmp_path) == undisturbed


def test_two_writers_of_one_record_are_one_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mindgap.record.store.PATIENCE", 0.1)
    header = plan(STUDY, "quick", seeds=1).headers[0]
    with RunWriter(tmp_path, header) as first:
        first.row({"step": 0})
        with pytest.raises(RecordError, match="is being written by another process"):
            RunWriter(tmp_path, header)
    RunWriter(tmp_path, header).close()


def test_a_run_that_nobody_waits_for_stops_after_a_row_and_is_taken_up_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: dict[str, list[Row]]
) -> None:
    monkeypatch.setattr("mindgap.lab.studies.run.LOOK_EVERY", -1.0)
    looks = iter([True, True, False])
    item = plan(STUDY, "quick")
    end = execute(STUDY, item.headers[0], item.folder(tmp_path), go_on=lambda: next(looks))
    assert end.message == "it was called off; running again continues from here"
    cut = read_run(run_file(item.folder(tmp_path), item.headers[0]))
    assert (len(cut.rows), cut.end) == (3, None)
    run_all([item], tmp_path)
    assert rows(tmp_path) == undisturbed


def test_force_names_what_it_overwrites_and_nothing_else(tmp_path: Path) -> None:
    run_all([plan(STUDY, "quick", seeds=1)], tmp_path)
    wanted = [plan(STUDY, "quick", seeds=2)]
    named = existing_records(wanted, tmp_path)
    assert sorted(p.name for p in named) == sorted(p.name for p in tmp_path.rglob("*.jsonl"))
    assert len(named) == 2
    delete_records(named)
    assert list(tmp_path.rglob("*.jsonl")) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"backend": "slurm"}, "backend must be one of 'local', 'dask', 'ray', got 'slurm'"),
        ({"backend": "ray"}, "address must be given with --backend ray, got ''"),
        ({"address": "tcp://x:1"}, "address must be left out with --backend local"),
        ({"jobs": 0}, "jobs must be a whole number of at least 1, got 0"),
    ],
)
def test_bad_sweeps_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(RuleError, match=message):
        Sweep(**settings)  # type: ignore[arg-type]


def test_a_full_disk_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    item = plan(STUDY, "quick", seeds=1)
    path = run_file(item.folder(tmp_path), item.headers[0])
    with RunWriter(path.parent, item.headers[0]) as writer:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match=f"No space left on device: '{re.escape(str(path))}'"):
            writer.row({"step": 0})
    monkeypatch.undo()
    monkeypatch.setattr(os, "fsync", lambda _: full(0, b""))
    with pytest.raises(OSError, match=r"No space left on device: '.*study\.json'") as caught:
        write_atomically(tmp_path / "study.json", "{}")
    assert caught.value.filename == str(tmp_path / "study.json")
    assert list(tmp_path.glob("*.json*")) == []


def test_a_lost_node_is_no_defect_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """What Ray raises when a node dies fails one trial; a cluster that is gone is one sentence; an
    error of our own code goes on.
    """

    def made(name: str, *bases: type[Exception]) -> Exception:
        kind = type(name, bases or (Exception,), {"__module__": "ray.exceptions"})
        return kind(f"{name} happened\nand more")

    item = plan(STUDY, "quick")
    work = [(STUDY, header, Path()) for header in item.headers]
    told: list[Exception | None] = []

    def result(future: int) -> End:
        if (error := told[future]) is not None:
            raise error
        return End("done")

    def run(*errors: Exception | None) -> list[End]:
        told[:] = [*errors, *[None] * len(work)]
        numbers = iter(range(len(work)))
        cluster = Cluster(lambda call: next(numbers), lambda futures: futures[0], result, list)
        monkeypatch.setattr(sweeping, "_ray", lambda address: cluster)
        sweep = Sweep(backend="ray", address="head:1")
        return [end for _, end in sweeping.spread(execute, work, sweep)]

    ends = run(made("NodeDiedError"), None, made("ObjectLostError"))
    assert [end.outcome for end in ends[:3]] == ["failed", "done", "failed"]
    assert ends[0].message == "its worker or node was lost (NodeDiedError: NodeDiedError happened)"
    with pytest.raises(ValueError, match="RayTaskError happened"):
        run(made("RayTaskError", ValueError))

    def gone(futures: list[int]) -> int:
        raise made("RaySystemError")

    cluster = Cluster(lambda call: 0, gone, result, lambda: gone([]))
    monkeypatch.setattr(sweeping, "_ray", lambda address: cluster)
    with pytest.raises(RecordError, match=r"the ray cluster at head:1 cannot be reached any more"):
        list(sweeping.spread(execute, work, Sweep(backend="ray", address="head:1")))
