"""Where a monitor's readings go: a record on disk, TensorBoard, or a function."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mindgap.base.check import check_call, fail
from mindgap.record.forms import Figure, StudyDescription, write_form
from mindgap.record.schema import End, Header, Row
from mindgap.record.store import STUDY_FILE, RunWriter


class Sink(ABC):
    """Takes rows until it is closed."""

    @abstractmethod
    def write(self, row: Row) -> None:
        """One reading."""

    def event(self, sentence: str) -> None:
        """Something unusual at a step, in words; dropped unless a sink keeps it."""
        return None

    def close(self, problem: str = "") -> None:
        """No more readings come; ``problem`` says why, when the run ended in an error."""
        return None


class CallSink(Sink):
    """Hands every row to a function."""

    def __init__(self, call: Callable[[Row], Any]) -> None:
        self._call = call

    def write(self, row: Row) -> None:
        self._call(dict(row))


class TensorBoardSink(Sink):
    """Writes every number of a row with ``add_scalar``, as ``mindgap/probe/quantity``."""

    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, row: Row) -> None:
        for name, value in row.items():
            if isinstance(value, (int, float)) and name not in ("step", "seconds"):
                # Only the underscore behind the probe's name becomes a slash.
                self._writer.add_scalar(f"mindgap/{name.replace('_', '/', 1)}", value, row["step"])


class RecordSink(Sink):
    """Writes ``FOLDER/monitor/<name>/...jsonl`` with a description beside it, from which ``mindgap
    report`` draws.

    Every monitor writes a record of its own: the moment of its start belongs to the settings.
    """

    def __init__(self, folder: Path, name: str, settings: dict[str, Any], seed: int) -> None:
        self._folder, self._name = folder / "monitor" / name, name
        # Nine further digits keep two monitors apart that start within one second.
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
        stamp = f"{second}.{time.perf_counter_ns() % 10**9:09d}"
        header = Header(
            study="monitor",
            claim="",
            scale=name,
            method=name,
            seed=seed,
            settings={**settings, "begun": stamp},
            started=stamp,
        )
        self._writer = RunWriter(self._folder, header)
        self._columns: list[str] = []  # that some row had so far
        self._events: list[str] = []
        self._begun_at = time.perf_counter()

    def write(self, row: Row) -> None:
        """Write a row; where it has a column that no row had before, first write the description
        anew, with a figure of that column.
        """
        drawn = (*self._columns, "seconds", "lr")  # the last two get no figure
        new_columns = [
            name for name, value in row.items() if isinstance(value, float) and name not in drawn
        ]
        if new_columns:
            self._columns += new_columns
            write_form(self._folder / STUDY_FILE, self._description())
        self._writer.row(row)

    def event(self, sentence: str) -> None:
        # The description shows the sentences, so it is written anew.
        self._events.append(sentence)
        write_form(self._folder / STUDY_FILE, self._description())

    def close(self, problem: str = "") -> None:
        """Write the record's end: how long it took, and the problem where there was one."""
        seconds = round(time.perf_counter() - self._begun_at, 6)
        self._writer.end(End("failed", seconds, problem) if problem else End("done", seconds))
        self._writer.close()

    def _description(self) -> StudyDescription:
        """A study with one figure per column, from which the report draws the run."""
        figures = []
        for column in self._columns:
            label = column.replace("_", " ")
            title = column.replace("_", ": ", 1).replace("_", " ")  # the probe ends at the first _
            figures.append(Figure(title, column, label, x_label="step"))
        # Of the events at most the first twenty.
        sentences = ["What the monitor read along a training run", *self._events[:20]]
        return StudyDescription(
            name="monitor",
            scale=self._name,
            title=f"Readings of {self._name}",
            statement=". ".join(sentences) + ".",
            methods=(self._name,),
            figures=tuple(figures),
            axes={"step": "step", "seconds": "seconds of training"},
        )


def as_sinks(to: Any, name: str, settings: dict[str, Any], seed: int) -> list[Sink]:
    """The sinks for whatever the user gave: a folder, a ``SummaryWriter``, a function of a row, a
    sink, or a list of these.

    Args:
        to: what the user gave.
        name: of the run, in a record.
        settings, seed: of the monitor, for the header of a record.

    Example:
        >>> rows = []
        >>> (sink,) = as_sinks(rows.append, "run", {}, 0)
        >>> sink.write({"step": 3, "noise_level": 0.5})
        >>> rows
        [{'step': 3, 'noise_level': 0.5}]
        >>> as_sinks(3, "run", {}, 0)
        Traceback (most recent call last):
        mindgap.base.check.RuleError: to must be a folder, a SummaryWriter or a function of a row...
    """
    if isinstance(to, Sink):
        return [to]
    if isinstance(to, (list, tuple)):
        return [sink for item in to for sink in as_sinks(item, name, settings, seed)]
    if isinstance(to, (str, os.PathLike)):
        return [RecordSink(Path(to), name, settings, seed)]
    if hasattr(to, "add_scalar"):
        return [TensorBoardSink(to)]
    if callable(to):
        check_call("to", to, "a folder, a SummaryWriter or a function of a row", {})
        return [CallSink(to)]
    fail("to", "must be a folder, a SummaryWriter or a function of a row", to)
