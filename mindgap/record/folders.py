"""The folders of records below a folder of runs, archives among them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mindgap.record.packed import SUFFIX, unpacked
from mindgap.record.schema import NoRecordsError
from mindgap.record.store import STUDY_FILE


def study_folders(runs: Path) -> Iterator[Path]:
    """The folders ``<study>/<scale>`` below ``runs`` that hold records, in order of name; archives
    are unpacked.

    Raises:
        NoRecordsError: ``runs`` is no folder, or holds no records.
    """
    if not runs.is_dir():
        raise NoRecordsError(f"RUNS must be a folder of records, got {str(runs)!r}")
    folders = [path.parent for path in runs.glob(f"*/*/{STUDY_FILE}")]
    folders += [unpacked(path) for path in runs.glob(f"*/*{SUFFIX}")]
    folders.sort(key=lambda folder: (folder.parent.name, folder.name))
    if not folders:
        raise NoRecordsError(
            f"RUNS must hold records (made by 'mindgap run'), got {str(runs)!r} with none"
        )
    yield from folders
