"""Carry a study out: plan its trials, run what is missing, record every row, pronounce the verdict."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from mindgap import __version__
from mindgap.base.check import whole
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.checkpoint import SUFFIX, Checkpoints
from mindgap.lab.studies.loop import Trial
from mindgap.lab.studies.spec import Study
from mindgap.lab.studies.sweep import Sweep, spread
from mindgap.record.schema import End, Header, RecordError, Run, Verdict, to_json
from mindgap.record.store import (
    STUDY_FILE,
    VERDICT_FILE,
    RunWriter,
    is_finished,
    read_json,
    read_run,
    run_file,
    tidy,
    write_atomically,
)


@dataclass(frozen=True)
class Plan:
    """The trials of a study at one scale: one header each, named by content hash."""

    study: Study
    scale: str
    headers: tuple[Header, ...]

    def folder(self, out: Path) -> Path:
        return out / self.study.name / self.scale

    def missing(self, out: Path) -> list[Header]:
        """The trials that have no finished record yet."""
        folder = self.folder(out)
        return [h for h in self.headers if not is_finished(run_file(folder, h))]


def plan(
    study: Study,
    scale: str,
    *,
    seeds: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    tuned: Mapping[str, Mapping[str, Any]] | None = None,
) -> Plan:
    """Lay out the trials: every method with every seed, settings checked.

    Args:
        study: what to run.
        scale: one of the study's scales.
        seeds: seeds per method; by default the scale's own number.
        overrides: setting -> value, for all methods alike.
        tuned: method -> settings that a search has chosen; the overrides have the last word.
    """
    number = study.scales[scale].seeds if seeds is None and scale in study.scales else seeds
    headers = []
    for method in study.methods:
        laid_over = {**(tuned or {}).get(method, {}), **(overrides or {})}
        settings = study.settings(scale, method, laid_over)  # checks the scale as well
        for seed in range(whole("seeds", number, least=1)):
            header = Header(study.name, study.claim, scale, method, seed, settings)
            headers.append(replace(header, run=header.key))
    return Plan(study, scale, tuple(headers))


#: Seconds between the checkpoints of a run whose loop offers them.
CHECKPOINT_EVERY = 60.0


#: Seconds between two looks at whether anybody still waits for a run.
LOOK_EVERY = 0.5


def execute(
    study: Study,
    header: Header,
    folder: Path,
    *,
    every: float = CHECKPOINT_EVERY,
    go_on: Callable[[], bool] = lambda: True,
) -> End:
    """Run one trial to its end, appending every row to its record; a failure is told, not raised.

    A trial that was interrupted goes on from its last checkpoint, or from its start where it has none; rows that are
    recorded already stay and are checked. An error of the loop is recorded in the record's end line. An error of the
    record itself (disk full, damaged line, rows that differ) can only be returned: the next run tries again.
    Where ``go_on`` says that nobody waits any more, the run stops after a row and can be taken up again later.
    """
    header = replace(header, versions=dict(versions()), machine=machine(), command=command(), started=now())
    try:
        with RunWriter(folder, header) as writer:
            return _record(study, header, writer, every, go_on)
    except (RecordError, OSError) as error:
        return End("failed", message=str(error) if isinstance(error, RecordError) else f"{folder}: {error}")


def _record(study: Study, header: Header, writer: RunWriter, every: float, go_on: Callable[[], bool]) -> End:
    begin = looked = time.perf_counter()
    trial = Trial(header.method, header.seed, header.settings)
    checkpoints = Checkpoints(writer, every)
    checkpoints.restore(trial)
    rows = study.loop(trial)
    outcome, message = "done", ""
    while True:
        try:
            row = next(rows, None)
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            outcome = "failed"
            message = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            break
        if row is None:
            break
        writer.row({**row, "seconds": round(trial.seconds, 6)})
        checkpoints.offer(trial)
        if (clock := time.perf_counter()) - looked > LOOK_EVERY:
            looked = clock
            if not go_on():
                return End("failed", message="it was called off; running again goes on from here")
    end = End(outcome, round(trial.seconds, 6), message, round(time.perf_counter() - begin, 3))
    writer.end(end)
    if outcome == "done":
        checkpoints.clear()
    return end


def simulate(study: Study, scale: str, *, seeds: int | None = None, **overrides: Any) -> list[Run]:
    """Run a study in memory and return its runs; nothing is written. For tests and notebooks."""
    runs = []
    for header in plan(study, scale, seeds=seeds, overrides=overrides).headers:
        trial = Trial(header.method, header.seed, header.settings)
        runs.append(Run(header, tuple(study.loop(trial)), End("done", trial.seconds)))
    return runs


def run_all(
    plans: Sequence[Plan],
    out: Path,
    *,
    jobs: int = 1,
    sweep: Sweep | None = None,
    every: float = CHECKPOINT_EVERY,
    on_end: Callable[[Header, End], None] = lambda header, end: None,
) -> None:
    """Run everything that is missing, then write each study's description and verdict.

    Args:
        plans: what to run.
        out: folder of records; running again does only what is missing.
        jobs: worker processes on this machine, each with one thread.
        sweep: how to spread the trials, where ``jobs`` does not say enough (a cluster).
        every: seconds between checkpoints.
        on_end: called in this process after each trial.
    """
    how = sweep or Sweep(whole("jobs", jobs, least=1))
    for item in plans:
        folder = item.folder(out)
        folder.mkdir(parents=True, exist_ok=True)
        tidy(folder)
        about = {**item.study.describe(item.scale), "files": [run_file(folder, h).name for h in item.headers]}
        write_atomically(folder / STUDY_FILE, to_json(about, indent=1) + "\n")
    work = [(item.study, header, item.folder(out).absolute()) for item in plans for header in item.missing(out)]
    for header, end in spread(partial(execute, every=every), work, how):
        on_end(header, end)
    for item in plans:
        write_verdict(item, out)


def overwritten(plans: Sequence[Plan], out: Path) -> list[Path]:
    """The records that ``--force`` would begin anew: those of the planned trials that exist."""
    files = (run_file(item.folder(out), header) for item in plans for header in item.headers)
    return [path for path in files if path.exists()]


def forget(records: Iterable[Path]) -> None:
    """Delete records and their checkpoints, so that they are run again from the start."""
    for path in records:
        path.with_suffix(SUFFIX).unlink(missing_ok=True)
        path.unlink()


def finished_runs(item: Plan, out: Path) -> list[Run]:
    """The finished records of a plan, in the plan's order."""
    folder = item.folder(out)
    paths = [run_file(folder, header) for header in item.headers]
    return [read_run(path) for path in paths if is_finished(path)]


def pronounce(item: Plan, runs: Sequence[Run]) -> Verdict:
    """The verdict on finished runs; inconclusive where some are missing or failed."""
    if len(runs) < len(item.headers):
        return _incomplete(len(item.headers) - len(runs), len(item.headers))
    return _judge(item.study, runs)


def _judge(study: Study, runs: Sequence[Run]) -> Verdict:
    """The study's own verdict; where its rule cannot be applied to these settings, that is said and nothing lost."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return study.judge(runs)
    except Exception as error:
        return Verdict(
            "inconclusive", f"the pass rule cannot be applied to these runs ({type(error).__name__}: {error})"
        )


def _incomplete(missing: int, planned: int) -> Verdict:
    return Verdict("inconclusive", f"{missing} of {planned} runs are missing or failed")


def verdict_of(item: Plan, out: Path) -> Verdict:
    """Judge what is recorded of a plan."""
    return pronounce(item, finished_runs(item, out))


def write_verdict(item: Plan, out: Path) -> Verdict:
    """Judge the finished runs of a plan and write ``verdict.json`` beside them, with the runs it rests on."""
    verdict = verdict_of(item, out)
    folder = item.folder(out)
    files = [run_file(folder, header).name for header in item.headers]
    content = {**asdict(verdict), "files": files, "seeds": len({h.seed for h in item.headers})}
    write_atomically(folder / VERDICT_FILE, to_json(content, indent=1) + "\n")
    return verdict


def judge_folder(folder: Path) -> tuple[str, str, Verdict]:
    """Claim, study name and verdict of one ``<study>/<scale>`` folder, judged anew from its records.

    The runs judged are those the last ``mindgap run`` planned (named in ``verdict.json``); without that file the
    study is inconclusive, because nobody can tell what is missing.
    """
    study = find(read_json(folder / STUDY_FILE)["name"])
    planned = folder / VERDICT_FILE
    if not planned.exists():
        return study.claim, study.name, Verdict("inconclusive", "the study was never run to its end")
    paths = [folder / name for name in read_json(planned)["files"]]
    runs = [read_run(path) for path in paths if is_finished(path)]
    if len(runs) < len(paths):
        return study.claim, study.name, _incomplete(len(paths) - len(runs), len(paths))
    return study.claim, study.name, _judge(study, runs)


@cache
def versions() -> Mapping[str, str]:
    """Versions of what determines the numbers."""
    found = {"mindgap": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "scipy"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """What the run ran on: no host name, nothing that identifies a person."""
    return {"system": platform.system(), "processor": platform.machine(), "cores": os.cpu_count() or 0}


def command() -> str:
    """The command behind a record, as typed, less the program's path."""
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
