"""Diaries of the studies: one Markdown file per study, read by its two headings."""

from __future__ import annotations

from pathlib import Path

import pytest

import mindgap.lab.studies.spec as module
from mindgap.lab.studies.catalogue import catalogue, find
from mindgap.lab.studies.spec import DIFFERS, HISTORY, Diary, diary, parse_diary

FOLDER = Path(module.__file__).parent / "diaries"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.md")), ids=lambda path: path.stem)
def test_a_diary_belongs_to_a_study_and_nothing_in_it_is_lost(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert path.stem in catalogue()
    assert text.startswith(f"# {path.stem}\n")
    read = parse_diary(text)
    known = {f"# {path.stem}", DIFFERS, HISTORY}
    kept = " ".join((read.differs, *read.history)).split()
    written = " ".join(line for line in text.splitlines() if line not in known).split()
    assert [word for word in kept if word != "-"] == [word for word in written if word != "-"]


def test_a_study_shows_its_diary_and_one_without_a_file_has_none() -> None:
    study = find("h3-language-model")
    assert study.differs.startswith("All optimizers have momentum 0.9")
    assert study.describe("gpu").history == study.history
    assert len(study.history) >= 5
    assert diary("no-such-study") == Diary()
