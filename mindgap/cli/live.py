"""Look on while runs go on: a bar and the running jobs on a terminal, TensorBoard files, both read
from the records.

Workers know nothing of this: whatever the backend, the records are what is looked at.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mindgap.base.check import missing
from mindgap.cli.show import duration_words
from mindgap.lab.studies.catalogue import reference_times
from mindgap.record.schema import Header, Row, read_line
from mindgap.record.store import run_file, slug

if TYPE_CHECKING:
    from mindgap.lab.studies.run import StudyPlan

#: Seconds between two looks at the records, and the running jobs that have a line of their own.
EVERY, SHOWN = 0.5, 12
#: Seconds that the speed of the reference machine weighs beside what is seen.
PRIOR = 5.0
#: Seconds that the reference machine takes to load what runs need; the shipped times leave it out.
LOADING = 8.0
#: No machine is thought to be so many times faster or slower than the reference.
FASTEST = 16.0

#: Takes the header of a run, and kind and content of a new line of its record.
Handler = Callable[[Header, str, Any], None]


@dataclass
class RunProgress:
    """What the watcher knows of one run that has begun."""

    header: Header
    column: str  # whose last value is shown
    started: float  # time of the look before its first row was seen
    rows: int = 0  # recorded so far
    earlier_rows: int = 0  # rows that were there before this program began to look
    last_row: Row = field(default_factory=dict)  # the newest one
    ended: bool = False

    def speed(self, now: float) -> float:
        """Rows per second since this program began to look."""
        return (self.rows - self.earlier_rows) / max(now - self.started, 1e-9)

    def seconds_left(self, now: float, expected: int | None) -> float | None:
        """Seconds until as many rows are recorded as finished runs of the same study have; None
        where it is not known how many these are, or no row was seen yet.
        """
        speed = self.speed(now)
        return max(expected - self.rows, 0) / speed if expected and speed > 0 else None


class Watcher:
    """Follows the records of some plans and hands every new line to whoever wants it.

    Attributes:
        jobs: file of a record -> what is known of its run, for runs that have begun.
        expected: study -> rows of its finished runs.
        planned, missing: how many runs there are, and how many were not recorded at the start.
    """

    def __init__(
        self, plans: Sequence[StudyPlan], out: Path, handlers: Sequence[Handler] = ()
    ) -> None:
        self.jobs: dict[Path, RunProgress] = {}
        self.expected: dict[str, int] = {}
        self.planned = self.missing = 0
        #: study -> seconds per run by the shipped times; missing where they do not fit the scale
        self._cost: dict[str, float] = {}
        self._handlers = handlers
        self._follower = Follower()
        #: files of unfinished runs -> header, and the column of the study's first figure
        self._files: dict[Path, tuple[Header, str]] = {}
        for item in plans:
            column = item.study.figures[0].y if item.study.figures else ""
            unfinished = {h.key for h in item.missing(out)}
            self.planned += len(item.headers)
            self.missing += len(unfinished)
            for header in item.headers:
                if header.key in unfinished:
                    self._files[run_file(item.folder(out), header)] = (header, column)
            if item.scale == "quick" and item.headers and item.study.name in reference_times():
                self._cost[item.study.name] = reference_times()[item.study.name] / len(item.headers)
        self._work = [header for header, _ in self._files.values()]  # all runs to be made
        self._started = self._last_look = time.monotonic()
        self._is_first_look = True

    def look(self) -> None:
        """Read the lines added to the records since the last look, bring ``jobs`` and ``expected``
        up to date, and hand every line on. The file of a run that ended is not looked at again.
        """
        now = time.monotonic()
        for path, (header, column) in list(self._files.items()):
            new_lines = self._follower.new_lines(path)  # (kind, content) of every new line
            if not new_lines:
                continue
            # It began at some time since the last look: its first rows did not come in no time.
            job = self.jobs.setdefault(path, RunProgress(header, column, self._last_look))
            rows = [content for kind, content in new_lines if kind == "row"]
            if self._is_first_look:  # rows of an earlier, interrupted run
                job.earlier_rows += len(rows)
            job.rows += len(rows)
            job.last_row = rows[-1] if rows else job.last_row
            for kind, content in new_lines:
                for handle in self._handlers:
                    handle(header, kind, content)
            # An end line followed by rows is that of a failure tried again. At the first look an
            # old failure may end a file; a run that is done has ended since this program began.
            kind, content = new_lines[-1]
            if kind == "end" and (not self._is_first_look or content.get("outcome") == "done"):
                job.ended = True
                self.expected[header.study] = max(self.expected.get(header.study, 0), job.rows)
                del self._files[path]
        self._is_first_look = False
        self._last_look = now

    def seconds_left(self, now: float) -> float | None:
        """Seconds until all runs are recorded, or None where nothing tells.

        It is the work left, in seconds of the reference machine, over the speed seen so far beside
        that machine. Where a study has no such times, it follows from the number of runs that
        ended.

        Args:
            now: the present ``time.monotonic()``.
        """
        ended = [job.header for job in self.jobs.values() if job.ended]
        passed = now - self._started
        if any(header.study not in self._cost for header in self._work):
            return passed / len(ended) * (self.missing - len(ended)) if ended else None
        # All work is in seconds of the reference machine, with its loading at the start.
        done = sum(self._cost[header.study] for header in ended)
        running = [job for job in self.jobs.values() if not job.ended]
        for job in running:
            if job.header.study in self.expected:  # else its length is not known
                share = job.rows / max(self.expected[job.header.study], job.rows, 1)
                done += self._cost[job.header.study] * share
        loaded = LOADING if ended else min(passed, LOADING)
        # 1 is the reference machine's speed, and what is assumed at first.
        speed = (done + loaded + PRIOR) / (passed + PRIOR)
        work = LOADING + sum(self._cost[header.study] for header in self._work)
        return max(work - loaded - done, 0.0) / max(min(speed, FASTEST), 1 / FASTEST)

    def lines(self, width: int = 80) -> list[str]:
        """A bar with the time left, and one line per running job, at most ``SHOWN``. A line that
        would be wider than ``width`` names the job only.
        """
        now = time.monotonic()
        running = [job for job in self.jobs.values() if not job.ended]
        # Runs recorded before this program began, and those that ended since.
        done = self.planned - self.missing + len(self.jobs) - len(running)
        filled = round(20 * done / max(self.planned, 1))
        seconds_left = self.seconds_left(now)
        bar = "#" * filled + "." * (20 - filled)
        shown = [f"[{bar}] {done} of {self.planned} runs recorded"]
        if seconds_left is not None and done < self.planned:
            shown[0] += f", about {duration_words(seconds_left)} left"
        for job in running[:SHOWN]:
            value = job.last_row.get(job.column)
            run_seconds_left = job.seconds_left(now, self.expected.get(job.header.study))
            words = [
                f"{job.rows} rows",
                f"{job.column} {value:.3g}" if isinstance(value, (int, float)) else "",
                f"{duration_words(run_seconds_left)} left" if run_seconds_left is not None else "",
            ]
            head = f"  {job.header.study}, {job.header.method}, seed {job.header.seed}"
            line = f"{head}: {', '.join(word for word in words if word)}"
            shown.append(line if len(line) <= width else head)
        return shown + ([f"  and {len(running) - SHOWN} more"] if len(running) > SHOWN else [])

    def table(self) -> Any:
        """The lines for a terminal that rewrites them in place."""
        from rich.text import Text

        return Text("\n".join(self.lines()), overflow="fold")


@contextmanager
def looking_on(
    plans: Sequence[StudyPlan], out: Path, *, tensorboard: Path | None = None
) -> Iterator[Watcher]:
    """Look on while the body runs: live lines where the error stream is a terminal, and TensorBoard
    files in a folder where asked. The records are read in a thread; an error there is raised after
    the body.
    """
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

        live = Live(
            watcher.table(), console=Console(stderr=True), auto_refresh=False, transient=True
        )
        live.start()

    failures: list[Exception] = []  # of the thread, at most one

    def follow() -> None:
        """Look at the records every half second and draw them, until the runs have ended."""
        try:
            while not stop.wait(EVERY):
                watcher.look()
                if live is not None:
                    live.update(watcher.table(), refresh=True)
        except Exception as error:  # the runs go on; the main thread raises it after them
            failures.append(error)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield watcher
    finally:
        stop.set()
        thread.join(2)
        if live is not None:
            live.stop()
        if not failures:
            watcher.look()
        if boards is not None:
            boards.close()
    if failures:
        raise failures[0]


class Boards:
    """Event files for TensorBoard, one folder per run: every number of every row."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            missing("tensorboard", "tensorboard")
        # A place that cannot be written is an error before the first run.
        folder.mkdir(parents=True, exist_ok=True)
        self._writer, self._folder = SummaryWriter, folder
        self._open: dict[str, Any] = {}  # key of a run -> writer of its event file
        self._rows: dict[str, int] = {}  # key of a run -> number of its newest row

    def see(self, header: Header, kind: str, content: Any) -> None:
        """Write the numbers of a new row into the event file of its run, at the row's step or,
        where it has none, its number. Other kinds of lines are passed over.
        """
        if kind != "row":
            return
        if header.key not in self._open:
            folder = (
                self._folder
                / slug(header.study)
                / f"{slug(header.method)}-{header.seed}-{header.key}"
            )
            self._open[header.key] = self._writer(str(folder))
        number = self._rows[header.key] = self._rows.get(header.key, -1) + 1
        for name, value in content.items():
            if isinstance(value, (int, float)) and name != "step":
                self._open[header.key].add_scalar(
                    name, float(value), int(content.get("step", number))
                )

    def close(self) -> None:
        """Close every event file."""
        for writer in self._open.values():
            writer.close()


class Follower:
    """Reads each record from where the last look ended.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.jsonl"
        >>> _ = path.write_text('{"row":{"step":0}}\\n{"row":{"st')
        >>> follower = Follower()
        >>> follower.new_lines(path), follower.new_lines(path)
        ([('row', {'step': 0})], [])
    """

    def __init__(self) -> None:
        self._positions: dict[Path, int] = {}  # bytes read of each file

    def new_lines(self, path: Path) -> list[tuple[str, Any]]:
        """The lines added since the last call, as (kind, content); none if the file does not
        exist (yet).
        """
        try:
            with path.open("rb") as file:
                file.seek(self._positions.get(path, 0))
                data = file.read()
        except OSError:
            return []
        complete = data[: data.rfind(b"\n") + 1]  # a line that is being written waits
        self._positions[path] = self._positions.get(path, 0) + len(complete)
        lines = []
        for raw in complete.splitlines():
            with suppress(ValueError):  # read_run names a damaged line
                lines.append(read_line(raw)[:2])
        return lines
