"""Look on while runs go on: a table of running jobs on a terminal, TensorBoard files, both read from the records.

Workers know nothing of this: whatever the backend, the records are what is looked at.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindgap.base.check import fail
from mindgap.record.follow import Follower
from mindgap.record.schema import Header, Row
from mindgap.record.store import run_file, slug

if TYPE_CHECKING:
    from mindgap.lab.studies.run import StudyPlan

EVERY = 0.5
SHOWN = 12

See = Callable[[Header, str, Any], None]


@dataclass
class RunProgress:
    """What is known of one run that has begun."""

    header: Header
    column: str
    begun: float
    rows: int = 0
    before: int = 0
    last: Row = field(default_factory=dict)
    ended: bool = False

    def speed(self, now: float) -> float:
        """Rows a second since this program began to look."""
        return (self.rows - self.before) / max(now - self.begun, 1e-9)

    def left(self, now: float, expected: int | None) -> float | None:
        """Seconds until as many rows are recorded as finished runs of the same study have."""
        speed = self.speed(now)
        return max(expected - self.rows, 0) / speed if expected and speed > 0 else None


class Watcher:
    """Follows the records of some plans in a thread and hands every new line to whoever wants it."""

    def __init__(self, plans: Sequence[StudyPlan], out: Path, sees: Sequence[See] = ()) -> None:
        self.jobs: dict[Path, RunProgress] = {}
        self.expected: dict[str, int] = {}
        self.planned = self.missing = 0
        self._sees = sees
        self._follower = Follower()
        self._files: dict[Path, tuple[Header, str]] = {}
        for item in plans:
            column = item.study.figures[0].y if item.study.figures else ""
            unfinished = {h.key for h in item.missing(out)}
            self.planned += len(item.headers)
            self.missing += len(unfinished)
            for header in item.headers:
                if header.key in unfinished:
                    self._files[run_file(item.folder(out), header)] = (header, column)
        self._begun = self._looked = time.monotonic()
        self._first = True

    def look(self) -> None:
        """Read what is new."""
        now = time.monotonic()
        for path, (header, column) in list(self._files.items()):
            news = self._follower.news(path)
            if not news:
                continue
            # It began at some time since the last look: its first rows did not come in no time.
            job = self.jobs.setdefault(path, RunProgress(header, column, self._looked))
            rows = [content for kind, content in news if kind == "row"]
            if self._first:  # rows of an earlier, interrupted run
                job.before += len(rows)
            job.rows += len(rows)
            job.last = rows[-1] if rows else job.last
            for kind, content in news:
                for see in self._sees:
                    see(header, kind, content)
            # An end line followed by rows is that of a failure tried again.
            if news[-1][0] == "end" and not self._first:
                job.ended = True
                self.expected[header.study] = max(self.expected.get(header.study, 0), job.rows)
                del self._files[path]
        self._first = False
        self._looked = now

    def table(self) -> Any:
        """The running jobs as a rich table."""
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        running = [job for job in self.jobs.values() if not job.ended]
        ended = len(self.jobs) - len(running)
        done = self.planned - self.missing + ended
        took = now - self._begun
        rest = f", about {_span(took / ended * (self.missing - ended))} left" if ended and self.missing > ended else ""
        title = f"{done} of {self.planned} runs recorded{rest}"
        drawn = Table(
            "study", "method", "seed", "rows", "last value", "rows/s", "left", title=title, title_justify="left"
        )
        for job in running[:SHOWN]:
            value = job.last.get(job.column)
            left = job.left(now, self.expected.get(job.header.study))
            cells = (
                job.header.study,
                job.header.method,
                str(job.header.seed),
                str(job.rows),
                f"{job.column} {value:.4g}" if isinstance(value, (int, float)) else "–",
                f"{job.speed(now):.3g}",
                _span(left) if left is not None else "–",
            )
            drawn.add_row(*(Text(cell) for cell in cells))
        if len(running) > SHOWN:
            drawn.add_row(f"and {len(running) - SHOWN} more")
        return drawn


def _span(seconds: float) -> str:
    """A time as people say it.

    Example:
        >>> _span(42.3), _span(125), _span(7300)
        ('42 s', '2 min 5 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


@contextmanager
def looking_on(plans: Sequence[StudyPlan], out: Path, *, tensorboard: Path | None = None) -> Iterator[Watcher]:
    """Look on while the body runs: a live table where the error stream is a terminal, TensorBoard files where asked."""
    boards = Boards(tensorboard) if tensorboard is not None else None
    watcher = Watcher(plans, out, [boards.see] if boards else [])
    terminal = sys.stderr.isatty() and watcher.missing > 0
    if not terminal and boards is None:
        yield watcher
        return
    stop = threading.Event()
    live: Any = None
    if terminal:
        from rich.console import Console
        from rich.live import Live

        live = Live(watcher.table(), console=Console(stderr=True), auto_refresh=False, transient=True)
        live.start()

    def follow() -> None:
        while not stop.wait(EVERY):
            watcher.look()
            if live is not None:
                live.update(watcher.table(), refresh=True)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield watcher
    finally:
        stop.set()
        thread.join(2)
        watcher.look()
        if live is not None:
            live.stop()
        if boards is not None:
            boards.close()


class Boards:
    """Event files for TensorBoard, one folder a run: every number of every row."""

    def __init__(self, folder: Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError:
            fail("tensorboard", "must be installed: pip install 'mindgap[tensorboard]'", None)
        self._event, self._summary, self._writer = Event, Summary, EventFileWriter
        self._folder = folder
        self._open: dict[str, Any] = {}
        self._rows: dict[str, int] = {}

    def see(self, header: Header, kind: str, content: Any) -> None:
        if kind != "row":
            return
        if header.key not in self._open:
            place = self._folder / slug(header.study) / f"{slug(header.method)}-{header.seed}-{header.key}"
            self._open[header.key] = self._writer(str(place))
        number = self._rows[header.key] = self._rows.get(header.key, -1) + 1
        step = content.get("step", number)
        values = [
            self._summary.Value(tag=name, simple_value=float(value))
            for name, value in content.items()
            if isinstance(value, (int, float)) and name != "step"
        ]
        event = self._event(wall_time=time.time(), step=int(step), summary=self._summary(value=values))
        self._open[header.key].add_event(event)

    def close(self) -> None:
        for writer in self._open.values():
            writer.close()
