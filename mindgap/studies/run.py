"""Carry a study out: plan its trials, run what is missing, record every row, pronounce the verdict."""

from __future__ import annotations

import os
import platform
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from mindgap import __version__
from mindgap.base.check import whole
from mindgap.record.schema import End, Header, RecordError, Run, Verdict, to_json
from mindgap.record.store import (
    STUDY_FILE,
    VERDICT_FILE,
    RunWriter,
    is_finished,
    read_json,
    read_run,
    run_file,
    write_atomically,
)
from mindgap.studies.catalogue import find
from mindgap.studies.loop import Trial
from mindgap.studies.spec import Study


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


def plan(study: Study, scale: str, *, seeds: int | None = None, overrides: Mapping[str, Any] | None = None) -> Plan:
    """Lay out the trials: every method with every seed, settings checked.

    Args:
        study: what to run.
        scale: one of the study's scales.
        seeds: seeds per method; by default the scale's own number.
        overrides: setting -> value, for all methods alike.
    """
    number = study.scales[scale].seeds if seeds is None and scale in study.scales else seeds
    headers = []
    for method in study.methods:
        settings = study.settings(scale, method, overrides)  # checks the scale as well
        for seed in range(whole("seeds", number, least=1)):
            header = Header(study.name, study.claim, scale, method, seed, settings)
            headers.append(replace(header, run=header.key))
    return Plan(study, scale, tuple(headers))


def execute(study: Study, header: Header, folder: Path) -> End:
    """Run one trial to its end, appending every row to its record; a failure is recorded, not raised.

    A trial that was interrupted is computed again from its start; its recorded rows stay and are checked.
    """
    header = replace(header, versions=versions(), machine=machine(), command=command(), started=now())
    trial = Trial(header.method, header.seed, header.settings)
    with RunWriter(folder, header) as writer:
        try:
            for row in study.loop(trial):
                writer.row({**row, "seconds": round(trial.seconds, 6)})
            end = End("done", round(trial.seconds, 6))
        except (RecordError, OSError):
            raise  # the record itself cannot be kept: nothing to record it in
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(where.filename).name}:{where.lineno}"
            end = End("failed", round(trial.seconds, 6), f"{type(error).__name__}: {error} ({place})")
        writer.end(end)
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
    on_end: Callable[[Header, End], None] = lambda header, end: None,
) -> None:
    """Run everything that is missing, then write each study's description and verdict.

    Args:
        plans: what to run.
        out: folder of records; running again does only what is missing.
        jobs: worker processes, each with one thread.
        on_end: called in this process after each trial.
    """
    whole("jobs", jobs, least=1)
    for item in plans:
        folder = item.folder(out)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / STUDY_FILE, to_json(item.study.describe(item.scale), indent=1) + "\n")
    work = [(item.study, header, item.folder(out)) for item in plans for header in item.missing(out)]
    for header, end in _sweep(work, jobs):
        on_end(header, end)
    for item in plans:
        write_verdict(item, out)


def _sweep(work: list[tuple[Study, Header, Path]], jobs: int) -> Iterator[tuple[Header, End]]:
    if jobs == 1 or len(work) < 2:
        for study, header, folder in work:
            yield header, execute(study, header, folder)
        return
    from joblib import Parallel, delayed

    tasks = (delayed(_execute_in_worker)(*item) for item in work)
    yield from Parallel(n_jobs=jobs, return_as="generator_unordered")(tasks)


def _execute_in_worker(study: Study, header: Header, folder: Path) -> tuple[Header, End]:
    # One thread a worker: two OpenMP threads each on a busy machine make a gradient many times slower.
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    return header, execute(study, header, folder)


def finished_runs(item: Plan, out: Path) -> list[Run]:
    """The finished records of a plan, in the plan's order."""
    folder = item.folder(out)
    paths = [run_file(folder, header) for header in item.headers]
    return [read_run(path) for path in paths if is_finished(path)]


def pronounce(item: Plan, runs: Sequence[Run]) -> Verdict:
    """The verdict on finished runs; inconclusive where some are missing or failed."""
    if len(runs) < len(item.headers):
        return _incomplete(len(item.headers) - len(runs), len(item.headers))
    return item.study.judge(runs)


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
    return study.claim, study.name, study.judge(runs)


def versions() -> dict[str, str]:
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
