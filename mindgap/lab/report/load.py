"""Read what a page is drawn from: descriptions, verdicts and records, as they lie on the disk."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mindgap.record.schema import RecordError, Run
from mindgap.record.store import STUDY_FILE, VERDICT_FILE, read_json, read_run, study_folders

#: Written by ``mindgap tune`` beside the records.
TUNING_FILE = "tuning.json"


@dataclass(frozen=True)
class Loaded:
    """One study at one scale, as found on the disk.

    Args:
        description: what ``study.json`` says (title, claim, statement, figures, ...).
        verdict: what ``verdict.json`` says; empty where there is none yet.
        runs: the records that belong to the last plan, by method in the study's order, then by seed.
        problems: sentences about files that could not be read, with file and line.
        others: how many further records (of other settings) lie in the folder; they are not drawn.
        tuning: what ``tuning.json`` says; empty where nothing was tuned.
    """

    description: dict[str, Any]
    verdict: dict[str, Any]
    runs: tuple[Run, ...]
    problems: tuple[str, ...] = ()
    others: int = 0
    tuning: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.description["name"])

    @property
    def scale(self) -> str:
        return str(self.description["scale"])

    @property
    def methods(self) -> list[str]:
        """Every method that was planned or recorded, in the study's order."""
        planned = [str(m) for m in self.description.get("methods", [])]
        return planned + sorted({run.header.method for run in self.runs} - set(planned))

    @property
    def seeds(self) -> int:
        return len({run.header.seed for run in self.runs})

    @property
    def failed(self) -> list[Run]:
        return [run for run in self.runs if run.end is not None and run.end.outcome == "failed"]

    @property
    def unfinished(self) -> list[Run]:
        return [run for run in self.runs if run.end is None]


def load(runs: Path) -> list[Loaded]:
    """Every study below ``runs``, in natural order of name and scale.

    A damaged record is named among the study's problems (file and line); the other records are drawn all the same.

    Raises:
        RecordError: when ``runs`` is no folder of records, or a description cannot be read.
    """
    return sorted((load_study(folder) for folder in study_folders(runs)), key=lambda s: natural(s.name))


def load_study(folder: Path) -> Loaded:
    """One folder ``RUNS/<study>/<scale>``."""
    description = read_json(folder / STUDY_FILE)
    verdict = read_json(folder / VERDICT_FILE) if (folder / VERDICT_FILE).exists() else {}
    tuning = read_json(folder / TUNING_FILE) if (folder / TUNING_FILE).exists() else {}
    if "files" in description and "files" in verdict and description["files"] != verdict["files"]:
        verdict = {}  # it was pronounced on other runs than those planned last
    planned = set(description.get("files") or verdict.get("files") or [])
    paths = sorted(folder.glob("*.jsonl"))
    drawn = [path for path in paths if not planned or path.name in planned]
    kept: list[Run] = []
    problems: list[str] = []
    for path in drawn:
        try:
            kept.append(read_run(path))
        except RecordError as error:
            problems.append(str(error).replace(f"{folder}/", ""))
    order = {method: place for place, method in enumerate(description.get("methods", []))}
    kept.sort(key=lambda r: (order.get(r.header.method, len(order)), r.header.method, r.header.seed))
    return Loaded(description, verdict, tuple(kept), tuple(problems), len(paths) - len(drawn), tuning)


def natural(text: str) -> list[tuple[int, int | str]]:
    """Sort key under which e5 comes before e10.

    Example:
        >>> sorted(["e10-b", "e5-a"], key=natural)
        ['e5-a', 'e10-b']
    """
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", text) if part]
