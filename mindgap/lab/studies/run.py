"""Run a study: plan its trials, run what is missing, record every row, give the verdict."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cache, partial
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import Any

from mindgap import __version__
from mindgap.base.check import RuleError, fail, whole
from mindgap.lab.studies.catalogue import find
from mindgap.lab.studies.loop import SUFFIX, Checkpoints, Trial
from mindgap.lab.studies.null import null_rates
from mindgap.lab.studies.spec import Study
from mindgap.lab.studies.sweep import Sweep, spread
from mindgap.record.forms import StudyDescription, Tuning, read_form, registered_hash, write_form
from mindgap.record.schema import End, Header, RecordError, Run, Verdict
from mindgap.record.store import (
    STUDY_FILE,
    TUNING_FILE,
    VERDICT_FILE,
    RunWriter,
    is_finished,
    read_run,
    remove_run,
    run_file,
    tidy,
)


@dataclass(frozen=True)
class StudyPlan:
    """The trials of a study at one scale: one header each, named by content hash."""

    study: Study
    scale: str
    headers: tuple[Header, ...]

    def folder(self, out: Path) -> Path:
        """Where the records of the trials are, below the folder of all records."""
        return out / self.study.name / self.scale

    def files(self, out: Path) -> list[Path]:
        """The records of the trials, whether they exist or not."""
        return [run_file(self.folder(out), header) for header in self.headers]

    def missing(self, out: Path) -> list[Header]:
        """The trials that have no finished record yet."""
        return [
            header for header, path in zip(self.headers, self.files(out)) if not is_finished(path)
        ]


def plan(
    study: Study,
    scale: str,
    *,
    seeds: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    tuned: Mapping[str, Mapping[str, Any]] | None = None,
) -> StudyPlan:
    """Lay out the trials of a study: every method with every seed, settings checked.

    Args:
        study: what to run.
        scale: one of the study's scales.
        seeds: seeds per method; by default the scale's own number.
        overrides: setting -> value, for all methods alike.
        tuned: method -> settings that a search has chosen; the overrides have the last word.

    Raises:
        RuleError: an unknown scale or setting, or a number of seeds below 1 or above
            :data:`MOST_SEEDS`.
    """
    if seeds is not None and whole("seeds", seeds, least=1) > MOST_SEEDS:
        fail("seeds", f"must be at most {MOST_SEEDS}", seeds)
    headers = []
    for method, number in study.seeds(scale, seeds).items():
        own_overrides = {**(tuned or {}).get(method, {}), **(overrides or {})}
        settings = study.settings(scale, method, own_overrides)
        for seed in range(number):
            header = Header(study.name, study.claim, scale, method, seed, settings)
            headers.append(replace(header, run=header.key))
    return StudyPlan(study, scale, tuple(headers))


#: More runs per method than this are a slip of the keyboard.
MOST_SEEDS = 100_000

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
    """Run one trial to its end, appending every row to its record.

    A trial that was interrupted goes on from its last checkpoint, or from its start if it has none;
    rows that are recorded already stay and are checked. A record that another process has finished
    is left as it is.

    Args:
        study: whose loop runs.
        header: of the trial; what the record says of versions, machine and time is added here.
        folder: of the study's records at this scale.
        every: seconds between checkpoints.
        go_on: asked now and then; where it returns False, the run stops after a row and can be
            continued later.

    Returns:
        How the trial ended. A failure is returned, not raised: an error of the loop is also written
        to the record's end line, an error of the record itself (disk full, damaged line, rows that
        differ) can only be returned, and the next run tries again.
    """
    header = replace(
        header,
        versions=dict(versions()),
        machine=machine(header.settings),
        command=header.command or command(),  # a worker's own command line is not what was typed
        started=now(),
    )
    try:
        with RunWriter(folder, header) as writer:
            return writer.finished or _record(study, header, writer, every, go_on)
    except RecordError as error:
        return End("failed", message=str(error))
    except OSError as error:
        return End("failed", message=f"{folder}: {error}")


def _record(
    study: Study, header: Header, writer: RunWriter, every: float, go_on: Callable[[], bool]
) -> End:
    """Run one trial into an open record, from its checkpoint if there is one.

    The arguments are those of :func:`execute`; ``writer`` writes the record.

    Returns:
        How the trial ended; nothing is written about the end where ``go_on`` called it off.
    """
    start = last_look = time.perf_counter()
    trial = Trial(header.method, header.seed, header.settings)
    checkpoints = Checkpoints(writer, every, study.loop)
    checkpoints.restore(trial)
    if not str(header.settings.get("device", "cpu")).startswith("cpu"):
        writer.cut()  # rows past the checkpoint: a GPU does not repeat their last bits
    rows = study.loop(trial)
    outcome, message = "done", ""
    while True:
        try:
            row = next(rows, None)
        except Exception as error:
            outcome, message = "failed", _error_words(error)
            break
        if row is None:
            break
        # A study may have its own clock.
        writer.row({**row, "seconds": round(row.get("seconds", trial.seconds), 6)})
        checkpoints.offer(trial)
        if time.perf_counter() - last_look > LOOK_EVERY:
            last_look = time.perf_counter()
            if not go_on():
                return End("failed", message="it was called off; running again continues from here")
    message = "; ".join(text for text in (message, checkpoints.note) if text)
    end = End(outcome, round(trial.seconds, 6), message, round(time.perf_counter() - start, 3))
    writer.end(end)
    if outcome == "done":
        checkpoints.path.unlink(missing_ok=True)
    return end


def simulate(study: Study, scale: str, *, seeds: int | None = None, **overrides: Any) -> list[Run]:
    """Run a study in memory and return its runs, for tests and notebooks.

    Nothing is written. ``seeds`` and ``overrides`` are those of :func:`plan`.
    """
    runs = []
    for header in plan(study, scale, seeds=seeds, overrides=overrides).headers:
        trial = Trial(header.method, header.seed, header.settings)
        runs.append(Run(header, tuple(study.loop(trial)), End("done", trial.seconds)))
    return runs


def run_all(
    plans: Sequence[StudyPlan],
    out: Path,
    *,
    sweep: Sweep | None = None,
    every: float = CHECKPOINT_EVERY,
    on_end: Callable[[Header, End], None] = lambda header, end: None,
) -> list[Verdict]:
    """Run everything that is missing, and write each study's description and verdict.

    Descriptions are written before the first trial, verdicts after the last one.

    Args:
        plans: what to run.
        out: folder of records; running again does only what is missing.
        sweep: how to spread the trials; None: one after the other, in this process.
        every: seconds between checkpoints.
        on_end: called in this process after each trial.

    Returns:
        The verdicts, in the order of the plans.
    """
    work = []  # (study, header, folder of its records) of every missing trial
    for study_plan in plans:
        study, folder = study_plan.study, study_plan.folder(out)
        folder.mkdir(parents=True, exist_ok=True)
        tidy(folder)
        files = tuple(path.name for path in study_plan.files(out))
        write_form(folder / STUDY_FILE, replace(study.describe(study_plan.scale), files=files))
        # header -> the header with what was typed and the hash of the registration.
        stamp = partial(replace, command=command(), registered=registered_hash(folder))
        work += [(study, stamp(header), folder.absolute()) for header in study_plan.missing(out)]
    for header, end in spread(partial(execute, every=every), work, sweep or Sweep()):
        on_end(header, end)
    return [judge_and_write(study_plan, out) for study_plan in plans]


def existing_records(plans: Sequence[StudyPlan], out: Path) -> list[Path]:
    """Those records of the planned trials that exist; ``--force`` deletes them."""
    return [path for study_plan in plans for path in study_plan.files(out) if path.exists()]


def delete_records(records: Iterable[Path]) -> None:
    """Delete records and their checkpoints, so that they are run again from the start.

    Raises:
        RecordError: another process writes one of them.
    """
    for path in records:
        remove_run(path)
        path.with_suffix(SUFFIX).unlink(missing_ok=True)


def finished_runs(paths: Iterable[Path]) -> list[Run]:
    """Those records that are finished, in the given order.

    Raises:
        RecordError: one of them is damaged.
    """
    return [read_run(path) for path in paths if is_finished(path)]


def _judge_files(study: Study, paths: Sequence[Path]) -> Verdict:
    """The verdict on the planned records in ``paths``.

    It is *error* if one of them is damaged or the pass rule raises an exception, and *inconclusive*
    if one is missing or not finished, or if a method of the scale was left out.
    """
    try:
        runs = finished_runs(paths)
    except RecordError as error:
        return Verdict("error", str(error))
    unfinished, planned = len(paths) - len(runs), len(paths)
    if unfinished:
        return Verdict("inconclusive", f"{unfinished} of {planned} runs are missing or failed")
    if study.left_out:
        return Verdict("inconclusive", f"not judged without {', '.join(study.left_out)}")
    try:
        return study.verdict(runs)
    except Exception as error:
        return Verdict("error", f"the pass rule raised {_error_words(error)}")


def _error_words(error: Exception) -> str:
    """Kind and text of an error, with the line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(frame.filename).name}:{frame.lineno})"


def judge_and_write(study_plan: StudyPlan, out: Path) -> Verdict:
    """Judge the finished runs of a plan and write ``verdict.json`` beside them.

    A verdict names the records that it rests on. If the plan is complete and its scale has no
    design (which gives rates of its own), the verdict also gets the rule's error rates, simulated
    from its own runs. If an equal verdict with rates is written already, that one is returned and
    nothing is written.
    """
    study, files = study_plan.study, study_plan.files(out)
    path = study_plan.folder(out) / VERDICT_FILE
    verdict = replace(
        _judge_files(study, files),
        files=tuple(record.name for record in files),
        seeds=len({header.seed for header in study_plan.headers}),
    )
    complete = verdict.verdict != "error" and not study_plan.missing(out) and not study.left_out
    if complete and study_plan.scale not in study.designs:
        with suppress(RecordError, OSError):  # where no verdict is written, or one that is damaged
            written = read_form(Verdict, path)
            if written.null and replace(written, null={}) == verdict:
                return written
        verdict = replace(verdict, null=null_rates(study, finished_runs(files)))
    write_form(path, verdict)
    return verdict


def judge_folder(folder: Path) -> tuple[str, str, Verdict]:
    """Judge one ``<study>/<scale>`` folder again from its records; returns claim, study name and
    verdict.

    The runs judged are those the last ``mindgap run`` planned (named in ``verdict.json``); without
    that file the study is inconclusive, because it is not known what is missing. A folder that
    cannot be read, or that names an unknown study, gives an *error* with an empty claim.
    """
    try:
        description = read_form(StudyDescription, folder / STUDY_FILE)
        study = find(description.name)
        if description.methods and description.scale in study.scales:
            # Methods that the study has today and had not then are left out; no verdict is given
            # without them, unless they are controls.
            known = (*description.methods, *study.controls)
            left_out = tuple(
                method for method in study.seeds(description.scale) if method not in known
            )
            study = replace(study, left_out=left_out)
        if not (folder / VERDICT_FILE).exists():
            never_run = Verdict("inconclusive", "the study was never run to its end")
            return study.claim, study.name, never_run
        files = read_form(Verdict, folder / VERDICT_FILE).files
    except (RecordError, RuleError) as error:
        return "", folder.parent.name, Verdict("error", str(error))
    return study.claim, study.name, _judge_files(study, [folder / name for name in files])


@cache
def versions() -> Mapping[str, str]:
    """Versions of what determines the numbers."""
    numbers = {"mindgap": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "scipy"):
        with suppress(metadata.PackageNotFoundError):
            numbers[package] = metadata.version(package)
    return numbers


def machine(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the run ran on: system, processor and cores, and the GPU where the settings name one.

    There is no host name, and nothing that identifies a person.
    """
    description = {
        "system": platform.system(),
        "processor": platform.machine(),
        "cores": os.cpu_count() or 0,
    }
    if settings.get("device") == "cuda":
        import torch

        if torch.cuda.is_available():
            description["gpu"] = torch.cuda.get_device_name()
    return description


def command() -> str:
    """The command behind a record, as typed.

    Of the program's path and of the folder after ``--out`` only the last name stays.
    """
    # ``--out=FOLDER`` is written as two words, so that one rule finds the folder in both forms.
    words = " ".join(sys.argv[1:]).replace("--out=", "--out ").split()
    shown = [
        Path(word).name if previous == "--out" else word
        for previous, word in pairwise(["", *words])
    ]
    program = Path(sys.argv[0]).name
    return " ".join(["mindgap" if program == "__main__.py" else program, *shown])


def now() -> str:
    """Date and time to the second, in UTC."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def tuned_settings(out: Path, study: Study, scale: str) -> dict[str, dict[str, Any]]:
    """Method -> the settings that a search at that scale has chosen for it.

    It is the search of this study, or else that of the study in ``tuned_by``. A method finds its
    own there by its name, or else by its title (:func:`_title`); one that finds none is left out.

    Args:
        out: the folder of records.
        study, scale: whose settings.
    """
    for searched in (study.name, study.tuned_by):
        path = out / searched / scale / TUNING_FILE
        if searched and path.exists():  # no other study is named where ``tuned_by`` is empty
            tuned = read_form(Tuning, path).methods
            # Method of this study -> the name under which the search may know it.
            name_of = {
                method: method if method in tuned else _title(study, method)
                for method in study.methods
            }
            return {
                method: dict(tuned[name].chosen)
                for method, name in name_of.items()
                if name in tuned
            }
    return {}


def _title(study: Study, method: str) -> str:
    """The paper's name of the bilevel method that a study's method runs, by its setting ``key``.

    Empty where it runs none. So "SLIP, p = 0.2" of one study is the "SLIP" of another.
    """
    from mindgap.bilevel.registry import METHODS

    row = METHODS.get(study.methods[method].get("key", ""))
    return "" if row is None else row.name
