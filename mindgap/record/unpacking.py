"""Compressed files and archives with a limit: a small file that unpacks to a very large one is
refused while it is read, not when the memory is full. Standard library only.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from mindgap.record.schema import RecordError

#: What every file may unpack to, whatever its size.
FREE = 16 * 2**20
#: What every byte of a file may unpack to. Our records have 18 bytes per byte, our data 11.
PER_BYTE = 100
_OPENERS: dict[str, Callable[..., Any]] = {".xz": lzma.open, ".bz2": bz2.open, ".gz": gzip.open}


def most_bytes(path: Path) -> int:
    """How many bytes a file may unpack to: ``FREE`` and ``PER_BYTE`` per byte of its own."""
    return FREE + PER_BYTE * path.stat().st_size


class _Limited(io.RawIOBase):
    """A stream that is refused once it has given more than it may."""

    def __init__(self, path: Path, stream: BinaryIO) -> None:
        # ``_left``: bytes that the stream may still give.
        self._path, self._stream, self._left = path, stream, most_bytes(path)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer, at most 1 MiB at once, and return how many; 0 at the end. The
        file is refused beyond its limit.
        """
        piece = self._stream.read(min(len(buffer), 2**20))
        self._left -= len(piece)
        if self._left < 0:
            _refuse(self._path)
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._stream.close()
        super().close()


def _refuse(path: Path) -> None:
    """Raise the error of a file that unpacks to more than it may."""
    raise RecordError(
        f"{path} must unpack to at most {most_bytes(path)} bytes "
        f"({PER_BYTE} per byte and {FREE} more), got more"
    )


def unpacking(path: Path) -> io.BufferedReader:
    """The content of an ``.xz``, ``.bz2`` or ``.gz`` file as a stream of bytes.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "a.gz"
        >>> _ = path.write_bytes(gzip.compress(b"one"))
        >>> with unpacking(path) as file:
        ...     file.read()
        b'one'

    Raises:
        RecordError: while it is read, once it has given more than the limit.
    """
    # A buffer of 256 KiB.
    return io.BufferedReader(_Limited(path, _OPENERS[path.suffix](path, "rb")), 2**18)


def unpacking_text(path: Path, newline: str | None = None) -> io.TextIOWrapper:
    """The content of an ``.xz``, ``.bz2`` or ``.gz`` file as text in UTF-8, with
    :func:`unpacking`'s limit.
    """
    return io.TextIOWrapper(unpacking(path), encoding="utf-8", newline=newline)


def members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file of a ``.tar.xz`` or ``.zip`` archive, in its order. All files
    together may have ``most_bytes``.

    Raises:
        RecordError: it unpacks to more than the limit, or holds something that is no file.
    """
    bytes_left = most_bytes(path)
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                with archive.open(entry) as file:
                    content = file.read(bytes_left + 1)
                bytes_left -= len(content)
                if bytes_left < 0:
                    _refuse(path)
                yield entry.filename, content
        return
    with unpacking(path) as stream, tarfile.open(fileobj=stream, mode="r|") as packed:
        for member in packed:
            if member.isdir():
                continue
            bytes_left -= member.size
            if bytes_left < 0:  # a sparse member gives more than the stream holds
                _refuse(path)
            file_in_archive = packed.extractfile(member) if member.isfile() else None
            if file_in_archive is None:
                raise RecordError(f"{path} must hold files only, got {member.name!r}")
            yield member.name, file_in_archive.read()


def checked_zip(path: Path) -> Path:
    """The path itself, after a check that the entries of this ``.zip`` or ``.npz`` file unpack to
    no more than ``most_bytes`` together. Nothing is unpacked.

    Raises:
        RecordError: more than the limit, or it is no such file.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
    except zipfile.BadZipFile as error:
        raise RecordError(f"{path} cannot be read: {error}") from error
    if size > most_bytes(path):
        _refuse(path)
    return path
