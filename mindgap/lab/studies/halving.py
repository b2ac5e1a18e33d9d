"""Successive halving of a grid search: every point of a method runs to a quarter of its length, the
better half of them goes on to a half, and the better half of those to the end.

:func:`~mindgap.lab.studies.grid.grid_search` decides which points go on; this module runs one leg
of a run, from one rung to the next. A leg goes on from the checkpoint that the one before it left,
so that no step is made twice; a loop that offers no checkpoints begins again.

All points of a method wait for each other at a rung. What is chosen depends therefore neither on
the number of processes nor on interruptions (it does in asynchronous halving, as in Ray's ASHA).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mindgap.base.check import fail
from mindgap.lab.studies.spec import Row, Study, Trial

#: Shares of a run's length after which the better half of the points goes on.
RUNGS = (0.25, 0.5)

#: The folder of checkpoints between two rungs, beside the journal of the search.
FOLDER = "tuning-checkpoints"
#: The kind of checkpoint that its header names.
_KIND = "leg of a search"

#: The settings that may say how long a run is -> the column that counts it. The first that is a
#: whole number counts.
_LENGTHS = {"oracle_calls": "oracle_calls", "steps": "step", "epochs": "step"}


def length_of(settings: Mapping[str, Any]) -> tuple[str, int]:
    """Which setting says how long a run is, and its value; ``("", 0)`` where none does.

    Example:
        >>> length_of({"steps": [0.1, 0.3], "epochs": 30})
        ('epochs', 30)
    """
    for name in _LENGTHS:
        if type(settings.get(name)) is int:
            return name, settings[name]
    return "", 0


def check_readings(method: str, settings: Mapping[str, Any]) -> None:
    """Refuse settings whose runs have no reading at the rungs.

    Raises:
        RuleError: no setting says how long a run is, or two readings lie further apart than the
            first rung.

    Example:
        >>> check_readings("Adam", {"steps": 1200, "every": 1200})
        Traceback (most recent call last):
        mindgap.base.check.RuleError: every must be at most 300 to halve a search (a reading at
        each quarter of steps = 1200; method Adam), got 1200
    """
    name, length = length_of(settings)
    if not length:
        rule = f"must say how long a run is by one of {', '.join(_LENGTHS)} to halve a search"
        fail(f"method {method}", rule, sorted(settings))
    where = f"(a reading at each quarter of {name} = {length}; method {method})"
    if "readings" in settings:
        least = math.ceil(1 / RUNGS[0])
        if settings["readings"] < least:
            rule = f"must be at least {least} to halve a search {where}"
            fail("readings", rule, settings["readings"])
    elif settings.get("every", 1) > length * RUNGS[0]:
        most = int(length * RUNGS[0])
        fail("every", f"must be at most {most} to halve a search {where}", settings["every"])


def run_leg(
    study: Study,
    method: str,
    settings: Mapping[str, Any],
    seed: int,
    share: float,
    folder: Path,
    name: str,
) -> tuple[float, float]:
    """Run one method with one seed from the rung before to the first reading at or after a share of
    its length; with the share 1 to its end.

    Args:
        study: with the column ``tune_on``.
        method, settings, seed: of the run.
        share: one of :data:`RUNGS`, or 1.
        folder: of the checkpoints. The one of the rung before is read, and one is left for the
            next. A run whose checkpoint is missing or cannot be used begins again, and ends with
            the same values.
        name: of the run, for its checkpoints.

    Returns:
        The last value of ``tune_on``, infinite where it is not finite or the run diverged, and the
        seconds of this leg.

    Raises:
        RuleError: the reading at a rung does not have the column.
    """
    before = max((rung for rung in RUNGS if rung < share), default=0.0)
    belongs_to = _belongs_to(study, name)
    trial = Trial(method, seed, settings)
    if before:
        trial.restored = _restored(_path(folder, name, before), belongs_to)
    length, whole_length = length_of(settings)
    score, row = math.nan, Row()
    for row in study.loop(trial):
        score = float(row.get(study.tune_on, score))
        state = trial.take_saved()
        if share < 1 and row.get(_LENGTHS[length], 0) >= share * whole_length:
            if study.tune_on not in row and not row.get("diverged"):
                rule = f"must have the column {study.tune_on} in every reading to be halved"
                fail("study", rule, study.name)
            if state is not None:
                from mindgap.base.checkpoint import write_checkpoint

                content = state() if callable(state) else state
                write_checkpoint(_path(folder, name, share), _KIND, content, belongs_to)
            break
    diverged = bool(row.get("diverged", False))
    return score if math.isfinite(score) and not diverged else math.inf, trial.seconds


def _path(folder: Path, name: str, rung: float) -> Path:
    """The checkpoint of a run at a rung."""
    return folder / f"{name}-{rung:g}.ckpt"


def _belongs_to(study: Study, name: str) -> dict[str, str]:
    """What a checkpoint is valid for: the run, the code of the loop and the program's version."""
    from mindgap import __version__
    from mindgap.base.fingerprint import function_text

    return {"run": name, "code": function_text(study.loop), "program": f"mindgap {__version__}"}


def _restored(path: Path, belongs_to: Mapping[str, str]) -> dict[str, Any]:
    """What a checkpoint holds; empty where it is missing or cannot be used."""
    from mindgap.base.checkpoint import CheckpointError, read_checkpoint

    if not path.exists():
        return {}
    try:
        content = read_checkpoint(path, _KIND, belongs_to)
    except CheckpointError:
        return {}
    return content if isinstance(content, dict) else {}
