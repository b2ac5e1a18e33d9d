"""The written form of a survey: what ``mindgap measure`` writes, and what the page and the
advice read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mindgap.record.schema import RecordError, to_json
from mindgap.record.store import read_json, write_atomically

#: Version of the written form.
SURVEY_SCHEMA = 2


@dataclass(frozen=True)
class SurveyLine:
    """One quantity: what was measured, in words and as a number with its interval."""

    quantity: str  # its name
    sentence: str  # what was found, or why it was not measured
    #: the number and its interval; NaN where there is none.
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    assumption: str = ""  # the assumption of the textbook that this line speaks about, or ""
    #: whether that assumption fails; None where the measurement cannot tell
    fails: bool | None = None


@dataclass(frozen=True)
class Survey:
    """What ``mindgap.measure.survey`` found.

    Example:
        >>> found = Survey((SurveyLine("loss", "loss 2.3", 2.3),), {})
        >>> Survey.from_dict(found.to_dict()).findings[0].value
        2.3
    """

    findings: tuple[SurveyLine, ...]  # one line per quantity
    #: name -> data of a figure: ``noise_histogram``, ``variance_growth``, ``smoothness``,
    #: ``spectrum``, ``settling``. A figure whose measurement was refused is missing, and its
    #: sentence says why.
    figures: Mapping[str, Any]
    #: size of the model and of the sample, and the seconds it took.
    about: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Numbers, texts, lists and mappings only."""
        return {"kind": "survey", "schema": SURVEY_SCHEMA, **asdict(self)}

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> Survey:
        """The survey that ``to_dict`` was called on."""
        lines = tuple(SurveyLine(**line) for line in content["findings"])
        return Survey(lines, content["figures"], content["about"])

    def write(self, path: str | Path) -> Path:
        """Write the JSON file that the page is drawn from, whole or not at all; returns the
        path.
        """
        path = Path(path)
        write_atomically(path, to_json(self.to_dict(), indent=1) + "\n")
        return path


def read_survey(path: str | Path) -> Survey:
    """A survey as ``Survey.write`` wrote it.

    Raises:
        RecordError: the file cannot be read, is no survey, or is of another version.
    """
    content = read_json(Path(path))
    if not isinstance(content, dict) or content.get("kind") != "survey":
        raise RecordError(f"{path} must be a survey written by 'mindgap measure'")
    if content.get("schema") != SURVEY_SCHEMA:
        raise RecordError(
            f"{path}: schema must be {SURVEY_SCHEMA}, the version this program reads, got "
            f"{content.get('schema')!r}; run 'mindgap measure' again"
        )
    try:
        return Survey.from_dict(content)
    except (KeyError, TypeError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
