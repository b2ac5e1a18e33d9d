"""The diary of a study: how it differs from the paper, and what was decided when.

One Markdown file per study lies in the folder ``diaries``; its two headings are fixed. A study
without a file has an empty diary.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

DIFFERS = "## How it differs from the paper"
HISTORY = "## What was decided when"


@dataclass(frozen=True)
class Diary:
    """The two texts of a file, without its line breaks."""

    differs: str = ""  # how the study differs from the paper
    history: tuple[str, ...] = ()  # what was decided and changed, in order


@cache
def diary(name: str) -> Diary:
    """The diary of the study of that name."""
    path = resources.files("mindgap.lab.studies") / "diaries" / f"{name}.md"
    return parse(path.read_text(encoding="utf-8")) if path.is_file() else Diary()


def parse(text: str) -> Diary:
    """The diary in a Markdown text.

    Example:
        >>> parse("# n1\\n\\n## What was decided when\\n\\n- First\\n  run.\\n- Second.\\n").history
        ('First run.', 'Second.')
    """
    head, _, history = text.partition(HISTORY)
    differs = head.partition(DIFFERS)[2]
    entries = [" ".join(entry.split()) for entry in f"\n{history.strip()}".split("\n- ")[1:]]
    return Diary(" ".join(differs.split()), tuple(entries))
