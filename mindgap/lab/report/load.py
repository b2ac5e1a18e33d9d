"""Read what a page is drawn from: descriptions, verdicts and records, as they lie on the disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mindgap.record.forms import Form, StudyDescription, Tuning, read_form
from mindgap.record.outcomes import claim_order, study_folders
from mindgap.record.schema import RecordError, Run, Verdict
from mindgap.record.store import STUDY_FILE, TUNING_FILE, VERDICT_FILE, read_run

#: Stands for a verdict that is not given yet: a study that is still running is not inconclusive.
NO_VERDICT = Verdict("", "")
NO_TUNING = Tuning("", "", "", {}, 0, (), {})


@dataclass(frozen=True)
class Loaded:
    """One study at one scale, as found on the disk."""

    #: what ``study.json`` says (title, claim, statement, figures, ...)
    description: StudyDescription
    verdict: Verdict  # what ``verdict.json`` says; ``NO_VERDICT`` if there is none yet
    #: the records that belong to the last plan, by method in the study's order, then by seed
    runs: tuple[Run, ...]
    #: sentences about files that could not be read, with file and line
    problems: tuple[str, ...] = ()
    #: how many further records (of other settings) lie in the folder; they are not drawn
    others: int = 0
    tuning: Tuning = NO_TUNING  # what ``tuning.json`` says; ``NO_TUNING`` if nothing was tuned
    folder: Path = Path()  # ``RUNS/<study>/<scale>``

    @property
    def name(self) -> str:
        """The study's name."""
        return self.description.name

    @property
    def scale(self) -> str:
        """The scale at which it ran, such as ``"quick"``."""
        return self.description.scale

    @property
    def methods(self) -> list[str]:
        """Every method that was planned or recorded, in the study's order."""
        planned = list(self.description.methods)
        return planned + sorted({run.header.method for run in self.runs} - set(planned))

    @property
    def seeds(self) -> int:
        """The number of seeds over all methods."""
        return len({run.header.seed for run in self.runs})

    @property
    def failed(self) -> list[Run]:
        """The runs that ended with an error."""
        return [run for run in self.runs if run.end is not None and run.end.outcome == "failed"]

    @property
    def unfinished(self) -> list[Run]:
        """The runs whose record has no end."""
        return [run for run in self.runs if run.end is None]


def load(runs: Path) -> list[Loaded]:
    """Every study below ``runs``, by group of claims and in natural order.

    A damaged file is named among the study's problems; everything else is drawn.

    Raises:
        NoRecordsError: ``runs`` is no folder of records.
    """
    return sorted(
        (load_study(folder) for folder in study_folders(runs)),
        key=lambda study: claim_order(study.description.claim, study.name),
    )


def load_study(folder: Path) -> Loaded:
    """Read one folder ``RUNS/<study>/<scale>``. Damaged files are named among the problems.

    Only the files of the last plan are read, where description or verdict list them, else all. A
    verdict that rests on other files counts as not given. Runs are sorted by method and seed.
    """
    problems: list[str] = []

    def read(kind: type[Form], name: str, default: Form) -> Form:
        """The content of the file ``name`` of ``folder``, or ``default`` where it is missing or
        damaged. What is wrong with a damaged file is appended to ``problems``.
        """
        try:
            return read_form(kind, folder / name) if (folder / name).exists() else default
        except RecordError as error:
            problems.append(str(error).replace(f"{folder}/", ""))  # the page names the folder
            return default

    unknown = StudyDescription(
        folder.parent.name, folder.name, title="The description cannot be read"
    )
    description = read(StudyDescription, STUDY_FILE, unknown)
    verdict = read(Verdict, VERDICT_FILE, NO_VERDICT)
    if description.files and verdict.files and description.files != verdict.files:
        verdict = NO_VERDICT  # it rests on other runs than those planned last
    # Empty where neither lists its files: then all are read.
    planned_files = set(description.files or verdict.files)
    all_paths = sorted(folder.glob("*.jsonl"))
    paths = [path for path in all_paths if not planned_files or path.name in planned_files]
    runs: list[Run] = []
    for path in paths:
        try:
            runs.append(read_run(path))
        except RecordError as error:
            problems.append(str(error).replace(f"{folder}/", ""))
    # The study's order of methods.
    rank = {method: number for number, method in enumerate(description.methods)}
    runs.sort(
        key=lambda run: (
            rank.get(run.header.method, len(rank)),  # methods that were not planned come last
            run.header.method,
            run.header.seed,
        )
    )
    tuning = read(Tuning, TUNING_FILE, NO_TUNING)
    return Loaded(
        description,
        verdict,
        tuple(runs),
        tuple(problems),
        len(all_paths) - len(paths),
        tuning,
        folder,
    )
