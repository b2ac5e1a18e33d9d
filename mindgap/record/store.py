"""Records on disk: append-only files that survive a crash, and the folder they live in.

``RUNS/<study>/<scale>/<method>-<seed>-<hash>.jsonl`` holds a run, ``study.json`` beside it the description the page is
drawn from, ``verdict.json`` the verdict. A file appears by atomic rename or grows by whole lines; a line torn by a
crash is recognised (it has no newline) and dropped, everything before it is kept.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Any

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

from mindgap.record.migrate import STEPS, migrate, migrate_file
from mindgap.record.schema import SCHEMA, End, Header, RecordError, Row, Run, from_json, line, to_json, without_timing

STUDY_FILE = "study.json"
VERDICT_FILE = "verdict.json"

#: Seconds to wait for another writer of the same record: a worker whose driver was killed ends a moment later.
PATIENCE = 3.0


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


def write_atomically(path: Path, text: str) -> None:
    """A file is either the old one or the whole new one, whatever happens in between."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # a temporary file is private; a record is an ordinary file
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


#: What :func:`write_atomically` calls its files before they are whole.
_TEMPORARY = re.compile(r"\..+\.(jsonl?|ckpt|html)\.[a-z0-9_]{8}")


def tidy(folder: Path, *, older: float = 10.0) -> None:
    """Remove what a process killed in the middle of an atomic write has left: hidden files some seconds old.

    Whole files appear within milliseconds, so what is older belongs to nobody.

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
        except FileNotFoundError:
            continue


def _umask() -> int:
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
    """Read one record; a torn last line is dropped, a damaged line is an error with file and line number.

    Raises:
        RecordError: unreadable file, damaged line, missing header, or another schema version.
    """
    return _parse(path, _whole_lines(path)[0])


def _whole_lines(path: Path) -> tuple[list[bytes], int]:
    """The complete lines and how many bytes they take; what follows is a torn tail."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror or error}") from error
    end = data.rfind(b"\n") + 1
    return data[:end].split(b"\n")[:-1], end


def _parse(path: Path, lines: list[bytes]) -> Run:
    header: Header | None = None
    rows: list[Row] = []
    end: End | None = None
    version = SCHEMA
    for number, raw in enumerate(lines, 1):
        try:
            ((kind, content),) = from_json(raw.decode("utf-8")).items()
        except (ValueError, AttributeError) as error:
            raise RecordError(f"{path}:{number}: damaged line: {_short(raw)}") from error
        if kind == "header" and number == 1:
            version = _version(path, content)
            header = _header(path, migrate("header", content, version, SCHEMA))
        elif kind == "row" and header is not None:
            rows.append(content)
            end = None
        elif kind == "end" and header is not None:
            end = End(**migrate("end", content, version, SCHEMA))
        else:
            raise RecordError(f"{path}:{number}: a line of kind {kind!r} does not belong here")
    if header is None:
        raise RecordError(f"{path}:1: no header line")
    return Run(header, tuple(rows), end)


def _version(path: Path, content: dict[str, Any]) -> int:
    version = content.get("schema")
    if version != SCHEMA and version not in STEPS:
        raise RecordError(
            f"{path}:1: schema must be {SCHEMA}, the version this program writes, or older, got {version!r}"
        )
    return int(version)


def schema_of(path: Path) -> int:
    """The version of the written form of a record.

    Raises:
        RecordError: unreadable file, or a version this program does not know.
    """
    lines, _ = _whole_lines(path)
    try:
        return _version(path, from_json(lines[0].decode("utf-8"))["header"])
    except (IndexError, KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RecordError(f"{path}:1: no header line") from error


def _header(path: Path, content: dict[str, Any]) -> Header:
    try:
        return Header(**content)
    except TypeError as error:
        known = ", ".join(f.name for f in fields(Header))
        raise RecordError(f"{path}:1: a header has the fields {known}: {error}") from error


def _short(raw: bytes) -> str:
    text = raw.decode("utf-8", "replace")
    return repr(text if len(text) <= 60 else text[:57] + "...")


class RunWriter:
    """Writes one record, or continues one that was interrupted.

    Rows that were recorded before the interruption are kept as they are; a resumed run that is computed again
    from its start passes the same rows through :meth:`row`, which checks that they are the same (less timing)
    and writes only what is new.

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
        self.path = run_file(folder, header)
        self._position = 0
        self._file: int | None = None
        if not self.path.exists():
            write_atomically(self.path, line("header", header) + "\n")
        elif _whole_lines(self.path)[0]:
            migrate_file(self.path)  # lines of two versions must not mix
        else:  # nothing but a torn header: the file holds no information
            write_atomically(self.path, line("header", header) + "\n")
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        try:
            self._lock()
            self.recorded = self._mend()
        except BaseException:
            self.close()
            raise

    def _lock(self) -> None:
        """One writer at a time: two would each append their rows. A killed process lets go by itself."""
        if fcntl is None or self._file is None:
            return
        patience = time.monotonic() + PATIENCE
        while True:
            try:
                return fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > patience:
                    raise RecordError(f"{self.path} is being written by another process") from None
                time.sleep(0.05)
            except OSError:
                return None  # a file system without locks

    def _mend(self) -> tuple[Row, ...]:
        """The rows recorded so far, after cutting off a torn line and the end line of a failure that is tried again."""
        lines, whole = _whole_lines(self.path)
        run = _parse(self.path, lines)
        if run.end is not None and not run.done:
            whole -= len(lines[-1]) + 1
        if whole < self.path.stat().st_size:
            os.truncate(self.path, whole)
        return run.rows

    def row(self, values: Row) -> None:
        """Record one reading (or, while catching up, check it against the one already recorded)."""
        if self._position < len(self.recorded):
            old = self.recorded[self._position]
            new = from_json(to_json(values))
            if to_json(without_timing(old)) != to_json(without_timing(new)):
                raise RecordError(
                    f"{self.path}:{self._position + 2}: the resumed run gives {to_json(without_timing(new))} where "
                    f"{to_json(without_timing(old))} is recorded; run with --force to begin again"
                )
            self._position += 1
            return
        self._append(line("row", values))
        self._position += 1

    def skip_to(self, position: int) -> None:
        """Say that the next row passed to :meth:`row` is row ``position`` (a run resumed from a checkpoint)."""
        self._position = min(position, len(self.recorded))

    @property
    def position(self) -> int:
        """How many rows stand before the next one."""
        return self._position

    def end(self, end: End) -> None:
        """Record how the run ended, and make sure it is on the disk."""
        self._append(line("end", end))
        self.sync()

    def sync(self) -> None:
        """Make sure that everything recorded so far is on the disk."""
        if self._file is not None:
            os.fsync(self._file)

    def _append(self, text: str) -> None:
        if self._file is None:
            raise RecordError(f"{self.path} is closed")
        data = (text + "\n").encode("utf-8")
        try:
            written = os.write(self._file, data)  # one call, so that a killed process leaves whole lines
            if written != len(data):
                raise OSError(f"only {written} of {len(data)} bytes were written (is the disk full?)")
        except OSError:
            self.close()  # nothing may follow a torn line; the next writer cuts it off
            raise

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def study_folders(runs: Path) -> Iterator[Path]:
    """The folders ``<study>/<scale>`` below ``runs`` that hold records, in order of name.

    Raises:
        RecordError: when ``runs`` is no folder, or holds no records.
    """
    if not runs.is_dir():
        raise RecordError(f"RUNS must be a folder of records, got {str(runs)!r}")
    folders = sorted({path.parent for path in runs.glob(f"*/*/{STUDY_FILE}")})
    if not folders:
        raise RecordError(f"RUNS must hold records (made by 'mindgap run'), got {str(runs)!r} with none")
    yield from folders


def read_folder(folder: Path) -> list[Run]:
    """All records of one study at one scale, ordered by method as first seen in file order, then seed."""
    return sorted(
        (read_run(p) for p in folder.glob("*.jsonl")), key=lambda r: (r.header.method, r.header.seed, r.header.key)
    )


def is_finished(path: Path) -> bool:
    """Whether a record ends with a done line, reading only its tail (thousands of runs are listed this way)."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        size = os.fstat(file).st_size
        os.lseek(file, max(0, size - 1024), os.SEEK_SET)
        tail = os.read(file, 1024)
    except OSError:
        return False
    finally:
        os.close(file)
    if not tail.endswith(b"\n"):
        return False
    # Inside a text of JSON every quotation mark is escaped, so these words can only be the end line's own.
    last = tail[:-1].rsplit(b"\n", 1)[-1]
    return last.startswith(b'{"end":{') and b'"outcome":"done"' in last
