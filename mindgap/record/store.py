"""Records on disk: append-only files that survive a crash, and the folder they live in.

``RUNS/<study>/<scale>/<method>-<seed>-<hash>.jsonl`` holds a run, ``study.json`` beside it the
description the page is drawn from, ``verdict.json`` the verdict. A file appears by atomic rename or
grows by whole lines. A crash may leave an incomplete last line (it has no newline): it is dropped,
everything before it is kept.
"""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from mindgap.record.schema import (
    SCHEMA,
    End,
    Header,
    RecordError,
    Row,
    Run,
    check_fields,
    from_json,
    line,
    read_line,
    shorten,
    to_json,
    without_timing,
)

STUDY_FILE = "study.json"
VERDICT_FILE = "verdict.json"
TUNING_FILE = "tuning.json"
REGISTERED_FILE = "registered.json"

#: Seconds to wait for another writer of the same record: a worker whose driver was killed ends
#: within a second.
PATIENCE = 3.0
#: Bytes at the end of a record in which its end line is looked for; that of a finished run is far
#: shorter.
TAIL = 1024


def slug(text: str) -> str:
    """A name that is safe in a path.

    Example:
        >>> slug("SGD, lr=0.1")
        'SGD-lr-0.1'
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.") or "x"


def run_file(folder: Path, header: Header) -> Path:
    """Where the record of that run lives."""
    return folder / f"{slug(header.method)}-{header.seed}-{header.key}.jsonl"


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Give the body a binary file to write. It takes the name ``path`` only when it is whole and on
    the disk; after an error the old file stays. The folder is made.

    Raises:
        OSError: the disk is full or refuses it; the error names the file.
    """
    with naming(path), _replacing(path) as file:
        yield file


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the system name the file: one that comes while a file is written does not."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """Give the body a hidden file beside ``path``. At the end it is put on the disk and takes the
    name; an error removes it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # A temporary file is private; a record is an ordinary file.
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
        sync_folder(path.parent)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_atomically(path: Path, text: str) -> None:
    """Write a text file in UTF-8; ``path`` is the old file or the whole new one at any moment."""
    with replacing(path) as file:
        file.write(text.encode("utf-8"))


def sync_folder(folder: Path) -> None:
    """Put a folder's names on the disk: without this, a new name may be lost when the power
    fails.
    """
    with suppress(PermissionError, NotImplementedError):  # Windows opens no folders
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


#: What :func:`replacing` calls its files before they are whole.
_TEMPORARY = re.compile(r"\..+\.(jsonl?|ckpt|html)\.[a-z0-9_]{8}")


def tidy(folder: Path, *, older: float = 10.0) -> None:
    """Remove from a folder what a process killed during an atomic write has left: hidden files of
    an age of more than ``older`` seconds.

    A whole file appears within milliseconds, so no process still writes an older one.

    Example:
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / ".a.jsonl.x1y2z3_w").touch()
        >>> tidy(folder, older=-1.0)
        >>> list(folder.iterdir())
        []
    """
    now = time.time()
    for path in folder.glob(".*"):
        try:
            if _TEMPORARY.fullmatch(path.name) and now - path.stat().st_mtime > older:
                path.unlink()
        except FileNotFoundError:  # it has its name by now, or another process was faster
            continue


def _umask() -> int:
    """The process's mask of file permissions, which can only be read by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_json(path: Path) -> Any:
    """A JSON file written by :func:`write_atomically`; errors name the file."""
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} cannot be read: {error}") from error


def read_run(path: Path) -> Run:
    """Read one record; an incomplete last line is dropped, a damaged line is an error with file and
    line number.

    Raises:
        RecordError: unreadable file, damaged line, missing header, unknown schema version, or a
            renamed file.
    """
    return _parse(path, _whole_lines(path)[0])


def _whole_lines(path: Path) -> tuple[list[bytes], int]:
    """The complete lines of a file without their newlines, and how many bytes they take with them;
    what follows is an incomplete line.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}") from error
    end = data.rfind(b"\n") + 1
    return data[:end].split(b"\n")[:-1], end


def _parse(path: Path, lines: list[bytes]) -> Run:
    """The run in the lines of a record: a header, then rows and ends. A row behind an end takes the
    end back, because the run went on.

    Args:
        path: the record, whose name must be that of its header.
        lines: all of its complete lines.

    Raises:
        RecordError: a line is damaged or out of place (it is named), the header is missing or of
            another version, or the file was renamed.
    """
    header: Header | None = None
    rows: list[Row] = []
    end: End | None = None
    proper_name = ""
    for number, raw in enumerate(lines, 1):
        try:
            kind, content, summed = read_line(raw)
            if kind == "header" and number == 1 and content.get("schema") != SCHEMA:
                raise RecordError(
                    f"{path}:1: schema must be {SCHEMA}, the version this program reads and "
                    f"writes, got {content.get('schema')!r}"
                )
            if not summed:
                raise ValueError("the line has no checksum")
            if kind == "header" and number == 1:
                check_fields(Header, content)
                header = Header(**content)
                proper_name = run_file(path.parent, header).name
            elif kind == "row" and header is not None:
                rows.append(content)
                end = None
            elif kind == "end" and header is not None:
                check_fields(End, content)
                end = End(**content)
            else:
                raise ValueError(f"a line of kind {kind!r} does not belong here")
        except RecordError:
            raise
        except (ValueError, TypeError) as error:
            is_no_json = isinstance(error, (json.JSONDecodeError, UnicodeDecodeError))
            why = "" if is_no_json else f" ({error})"
            text = shorten(raw.decode("utf-8", "replace"))
            raise RecordError(f"{path}:{number}: damaged line: {text!r}{why}") from error
    if header is None:
        raise RecordError(f"{path}:1: no header line")
    if path.name != proper_name or header.run not in ("", header.key):
        raise RecordError(
            f"{path}:1: damaged header, or the file was renamed: its content belongs to "
            f"{proper_name}"
        )
    return Run(header, tuple(rows), end)


class RunWriter:
    """Writes one record, or continues one that was interrupted.

    Rows that were recorded before the interruption are kept as they are; a resumed run that is
    computed again from its start passes the same rows through :meth:`row`, which checks that they
    are the same (less timing) and writes only what is new.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> header = Header("s", "S1", "quick", "m", 0, {})
        >>> with RunWriter(folder, header) as writer:
        ...     writer.row({"step": 0, "loss": 1.0})
        ...     writer.end(End("done"))
        >>> run = read_run(writer.path)
        >>> run.rows, run.done
        (({'loss': 1.0, 'step': 0},), True)
    """

    def __init__(self, folder: Path, header: Header) -> None:
        """Open and lock the record, which is made with its header where there is none; what an
        interruption or a failure left at its end is cut off.
        """
        self.path = run_file(folder, header)
        self._position = 0  # number of the next row
        folder.mkdir(parents=True, exist_ok=True)
        self._file: int | None = lock(self.path)
        try:
            if not _whole_lines(self.path)[0]:  # new, or nothing but an incomplete header
                os.truncate(self._file, 0)
                self._append(line("header", header))
                sync_folder(folder)
            run = self._mend()
        except BaseException:
            self.close()
            raise
        #: The rows in the file.
        self.recorded = run.rows
        #: How the run ended, if it is done already.
        self.finished = run.end if run.done else None

    def _mend(self) -> Run:
        """Cut an incomplete last line off the file, and the end line of a failed run, which is
        tried again. Returns the record as it was read, with that end.
        """
        lines, kept_bytes = _whole_lines(self.path)
        run = _parse(self.path, lines)
        if run.end is not None and not run.done:
            kept_bytes -= len(lines[-1]) + 1  # the end line with its newline
        if kept_bytes < self.path.stat().st_size:
            os.truncate(self.path, kept_bytes)
        return run

    def row(self, values: Row) -> None:
        """Write one row. While a resumed run catches up, compare the row with the recorded one
        instead (less timing).

        Raises:
            RecordError: it differs from the recorded row, or the record is finished.
        """
        if self._position < len(self.recorded):
            old = self.recorded[self._position]
            new = from_json(to_json(values))
            if to_json(without_timing(old)) != to_json(without_timing(new)):
                # Lines count from 1, and the first one is the header.
                raise RecordError(
                    f"{self.path}:{self._position + 2}: the resumed run gives "
                    f"{to_json(without_timing(new))} where "
                    f"{to_json(without_timing(old))} is recorded; run with --force to begin again"
                )
        elif self.finished is not None:
            raise RecordError(f"{self.path} is finished: no row can be added")
        else:
            self._append(line("row", values))
        self._position += 1

    def skip_to(self, position: int) -> None:
        """Say that the next row passed to :meth:`row` is row ``position`` (a run resumed from a
        checkpoint).
        """
        self._position = min(position, len(self.recorded))

    def cut(self) -> None:
        """Delete the recorded rows from the next one on from the file, for a resumed run that
        cannot repeat them bit for bit; a finished or closed record stays.
        """
        if self._file is not None and self.finished is None and self._position < len(self.recorded):
            lines, _ = _whole_lines(self.path)
            kept = lines[: self._position + 1]  # the header and the rows before the next one
            os.truncate(self._file, sum(len(raw) + 1 for raw in kept))
            self.recorded = self.recorded[: self._position]

    @property
    def position(self) -> int:
        """How many rows stand before the next one."""
        return self._position

    def end(self, end: End) -> None:
        """Record how the run ended, and make sure it is on the disk; the end of a finished run
        stays as it is.
        """
        if self.finished is None:
            self._append(line("end", end))
            self.sync()

    def sync(self) -> None:
        """Make sure that everything recorded so far is on the disk."""
        if self._file is not None:
            os.fsync(self._file)

    def _append(self, text: str) -> None:
        """Write one line, given without its newline. A write that fails closes the record."""
        if self._file is None:
            raise RecordError(f"{self.path} is closed")
        data = (text + "\n").encode("utf-8")
        try:
            with naming(self.path):
                # one call, so that a killed process leaves whole lines
                written = os.write(self._file, data)
                if written != len(data):
                    raise OSError(
                        errno.ENOSPC,
                        f"only {written} of {len(data)} bytes were written (is the disk full?)",
                    )
        except OSError:
            self.close()  # nothing may follow an incomplete line; the next writer removes it
            raise

    def close(self) -> None:
        """Close the file, which ends its lock; a second call does nothing."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def lock(path: Path) -> int:
    """Open a record for appending, created if need be, as its only writer, and return its file
    descriptor. Closing it ends the lock, and so does the end of the process.

    Another writer is waited for ``PATIENCE`` seconds. Where the system has no locks (Windows, some
    network folders) there is none.

    Raises:
        RecordError: another process still writes the record.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            if _try_lock(file):
                with suppress(FileNotFoundError):
                    # Not replaced or removed in between; else it is opened once more.
                    if os.path.samestat(os.fstat(file), os.stat(path)):
                        return file
            elif time.monotonic() > deadline:
                raise RecordError(f"{path} is being written by another process")
            else:
                time.sleep(0.05)
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _try_lock(file: int) -> bool:
    """Take the lock of an open file (a descriptor) without waiting; returns whether this process
    may write it. Where the system has no locks, it may.
    """
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks
            return True
    return True


def remove_run(path: Path) -> None:
    """Delete a record, unless another process writes it.

    Raises:
        RecordError: another process writes the record.
    """
    file = lock(path)
    try:
        path.unlink()
    finally:
        os.close(file)


def is_finished(path: Path) -> bool:
    """Whether a record ends with an end line whose outcome is "done"; False where it cannot be
    read. Only its last ``TAIL`` bytes are read, because thousands of runs are listed this way.
    """
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            tail = file.read(TAIL)
    except OSError:
        return False
    last_line = tail[:-1].rsplit(b"\n", 1)[-1]
    if not tail.endswith(b"\n") or not last_line.startswith(b'{"end":{'):
        return False
    with suppress(ValueError):
        _, end, _ = read_line(last_line)
        return end.get("outcome") == "done"
    return False
