"""Find a data file: ``$MINDGAP_DATA`` first, then the cache, then the web; checked by sha256
wherever it comes from.

A download resumes where it stopped (HTTP Range), never gets larger than the file should be, is
checked, and appears under its name only when it is whole. (pooch would check the sum too, but it
neither resumes nor limits the size.)
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from filelock import FileLock

from mindgap.base.check import fail, one_of, whole
from mindgap.base.checked import check_arguments
from mindgap.lab.tasks.data.datasets import DATASETS, DataFile, DataSet
from mindgap.record.store import naming

#: (bytes so far, bytes in all or 0 where the server does not say) -> nothing
Progress = Callable[[int, int], None]

#: Bytes read at once, and attempts to fetch one file.
_CHUNK, _TRIES = 1 << 16, 4


class DataError(RuntimeError):
    """A data file is missing, damaged or cannot be fetched. The message says what to do."""


def data_folder() -> Path | None:
    """The folder named by ``$MINDGAP_DATA``, or None when the variable is not set.

    Raises:
        DataError: when the variable names something that is not a folder.
    """
    path = os.environ.get("MINDGAP_DATA")
    if not path:
        return None
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"MINDGAP_DATA must name a folder, got {path!r}: create it or unset the variable"
        )
    return folder


def cache_folder() -> Path:
    """Where fetched files are kept: ``$MINDGAP_CACHE``, else ``mindgap`` in the user's cache
    folder.
    """
    named = os.environ.get("MINDGAP_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mindgap"


def available(name: str) -> bool:
    """Whether every file of a data set is in ``$MINDGAP_DATA`` or in the cache; nothing is fetched
    or read.

    Example:
        >>> available("mnst")
        Traceback (most recent call last):
        mindgap.base.check.RuleError: name must be one of ... (did you mean 'mnist'?), got 'mnst'
    """
    data = DATASETS[one_of("name", name, DATASETS)]
    return all(any(place.is_file() for place in _places(data, file)) for file in data.files)


def find(name: str, file: str, *, download: bool = True, progress: Progress | None = None) -> Path:
    """The path of a data file whose sha256 is right, fetched into the cache where it is not on this
    machine yet.

    It is looked for in ``$MINDGAP_DATA``, then in the cache. It is fetched from the address
    ``$MINDGAP_MIRROR``, where that is set, then from the data set's own.

    Args:
        name: data set, a key of ``DATASETS``.
        file: name of one of its files.
        download: whether the web may be asked.
        progress: called with (bytes so far, bytes in all); by default a line on a terminal's
            standard error.

    Raises:
        RuleError: unknown data set or file.
        DataError: missing, damaged or not available; the message says what to do.
    """
    data = DATASETS[one_of("name", name, DATASETS)]
    wanted = data.file(file)
    for path in _places(data, wanted):
        if path.is_file():
            _refuse_damaged(path, wanted)
            return path
    # The mirror, where one is set, is asked before the data set's own address.
    mirror, addresses = os.environ.get("MINDGAP_MIRROR"), []
    if mirror:
        addresses.append(f"{mirror.rstrip('/')}/{data.name}/{file}")
    if data.address:
        addresses.append(data.address + file)
    if not download or not addresses:
        raise DataError(_what_to_do(data, wanted))
    target = cache_folder() / data.name / file
    progress = progress or _terminal_progress(file)
    failures = []
    for address in addresses:
        try:
            return fetch(address, target, wanted.sha256, size=wanted.size, progress=progress)
        except DataError as error:
            failures.append(str(error))
    raise DataError("; ".join(failures) + ". " + _what_to_do(data, wanted))


def fetch(
    address: str,
    target: Path,
    sha256: str,
    *,
    size: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch one file, resuming an earlier attempt, and put it at ``target`` when its sha256 is
    right.

    What has arrived so far is kept in ``target`` + ``.part``. A file with the wrong sum is removed.
    Other processes that want the same target wait.

    Args:
        address: http or https; a redirect to anything else is refused.
        target: where the file goes.
        sha256: of its bytes, in hexadecimal digits.
        size: its length in bytes, if it is known: nothing longer is received.
        progress: called with (bytes so far, bytes in all).

    Returns:
        ``target``.

    Raises:
        RuleError: a bad argument.
        DataError: the server cannot be reached, stops early again and again, or serves other bytes.
    """
    one_of("scheme of the address", address.split(":", 1)[0], ["http", "https"])
    if not re.fullmatch("[0-9a-f]{64}", sha256):
        fail("sha256", "must be 64 hexadecimal digits", sha256)
    if size is not None:
        whole("size", size)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial_file = target.with_name(target.name + ".part")
    # Another process waits, and finds the file finished.
    with FileLock(target.with_name(f".{target.name}.lock")):
        if target.is_file() and _sha256(target) == sha256:
            return target
        reason = ""  # why the last attempt failed
        for _ in range(_TRIES):
            try:
                if _receive(address, partial_file, size, progress):
                    break
                reason = "the connection closed before the end"
            except urllib.error.HTTPError as error:
                raise DataError(f"{address} answered {error.code} {error.reason}") from error
            except (OSError, http.client.HTTPException) as error:
                reason = str(error) or type(error).__name__
        else:  # no attempt got to the end
            arrived = partial_file.stat().st_size if partial_file.exists() else 0
            raise DataError(
                f"{address} could not be fetched: {reason}; {arrived} bytes are kept, run again to "
                "go on from there"
            )
        digest = _sha256(partial_file)
        if digest != sha256:
            partial_file.unlink()
            raise DataError(
                f"{address} served other bytes than expected: sha256 {digest}, expected {sha256}; "
                "removed"
            )
        os.replace(partial_file, target)
    return target


def _web() -> urllib.request.OpenerDirector:
    """An opener of http and https addresses and of nothing else, also after a redirect.

    ``urllib.request.build_opener`` would also open files and ftp, so its handlers are listed here.
    """
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener


def _receive(address: str, partial_file: Path, size: int | None, progress: Progress | None) -> bool:
    """Fetch what is missing of a file and append it to ``partial_file``, from the beginning where
    the server does not resume. A partial file that is longer than the server's is removed.

    Args:
        address: of the file.
        partial_file: what has arrived so far; it need not exist.
        size: the file's length in bytes, if it is known: more is refused.
        progress: called after each chunk.

    Returns:
        Whether all has arrived: as many bytes as the server announced, or all that it sent where
        it announced nothing. False asks for another attempt.
    """
    start = partial_file.stat().st_size if partial_file.exists() else 0
    request = urllib.request.Request(address, headers={"User-Agent": "mindgap"})
    if start:
        request.add_header("Range", f"bytes={start}-")
    try:
        response = _web().open(request, timeout=30)  # seconds
    except urllib.error.HTTPError as error:
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        # The partial file is as long as the server's file, and then all has arrived, or longer, and
        # then it is removed. The header reads "bytes */length".
        length = error.headers.get("Content-Range", "").rpartition("/")[2]
        error.close()
        if length == str(start):
            return True
        partial_file.unlink()
        return False
    with response:
        if start and response.status != http.HTTPStatus.PARTIAL_CONTENT:
            start = 0  # the server does not resume: begin again
        announced = response.headers.get("Content-Length")
        total = start + int(announced) if announced else 0
        _refuse_longer(address, total, size, partial_file)
        received = start
        with partial_file.open("ab" if start else "wb") as file:
            while chunk := response.read(_CHUNK):
                received += len(chunk)
                _refuse_longer(address, received, size, partial_file)
                with naming(partial_file):
                    file.write(chunk)
                if progress is not None:
                    progress(received, total)
    return total == 0 or received >= total


def _refuse_longer(address: str, length: int, size: int | None, partial_file: Path) -> None:
    """Raise a DataError, and remove the partial file, where ``length`` bytes are more than the
    file's ``size``; None for a size that is not known.
    """
    if size is not None and length > size:
        partial_file.unlink(missing_ok=True)
        raise DataError(
            f"{address} serves {length} bytes or more, expected {size}; nothing was kept"
        )


def _places(data: DataSet, file: DataFile) -> list[Path]:
    """The paths where a file may lie: in ``$MINDGAP_DATA``, where that is set, then in the
    cache.
    """
    folders = (data_folder(), cache_folder())
    return [folder / data.name / file.name for folder in folders if folder is not None]


def _what_to_do(data: DataSet, file: DataFile) -> str:
    """Where a missing file can be put, and how its bytes are recognised, in words."""
    paths = " or ".join(str(place) for place in _places(data, file))
    return (
        f"{data.name}/{file.name} ({file.size / 1e6:.1f} MB, licence: {data.licence}) is not on "
        f"this machine: put it at {paths} (set MINDGAP_DATA to a folder that holds {data.name}/), "
        f"or set MINDGAP_MIRROR to a web address that serves {data.name}/{file.name}; its sha256 "
        f"must be {file.sha256}"
    )


def _refuse_damaged(path: Path, file: DataFile) -> None:
    """Raise a DataError if the file at that path has another SHA-256 than ``file`` says."""
    status = path.stat()
    if _cached_sha256(str(path), status.st_mtime_ns, status.st_size) != file.sha256:
        raise DataError(
            f"{path} is damaged: its sha256 is not {file.sha256}; remove it and fetch it again"
        )


@lru_cache(maxsize=256)
def _cached_sha256(path: str, changed: int, size: int) -> str:
    """The SHA-256 of a file, computed once per process; time of change and size tell the cache that
    it is another file.
    """
    return _sha256(Path(path))


def _sha256(path: Path) -> str:
    """A file's SHA-256 in hexadecimal digits, read a mebibyte at a time."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _terminal_progress(name: str) -> Progress | None:
    """A function that shows on one line of the terminal how much of the file ``name`` has arrived;
    None where standard error is no terminal.
    """
    if not sys.stderr.isatty():
        return None

    def show(received: int, total: int) -> None:
        """Write the line of the file ``name`` again, in megabytes: bytes received, and in all, 0
        where that is not known.
        """
        of_total = f" of {total / 1e6:.1f}" if total else ""
        end = "\n" if total and received >= total else ""
        sys.stderr.write(f"\r{name}: {received / 1e6:.1f}{of_total} MB{end}")
        sys.stderr.flush()

    return show


check_arguments(__name__)
