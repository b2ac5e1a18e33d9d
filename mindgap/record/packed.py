"""Records packed for keeping: one ``<study>/<scale>.tar.xz`` in place of a folder, read like the
folder.

Every row is kept. Paths of the machine are left out of the command, and equal records give equal
archives.
"""

from __future__ import annotations

import atexit
import io
import lzma
import re
import shutil
import tarfile
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from mindgap.record.schema import RecordError, line
from mindgap.record.store import (
    REGISTERED_FILE,
    STUDY_FILE,
    TUNING_FILE,
    VERDICT_FILE,
    read_run,
    replacing,
)
from mindgap.record.unpacking import members

SUFFIX = ".tar.xz"
#: The files of an archive: nothing else is unpacked, and nothing outside its folder is written.
_MEMBER = re.compile(r"\w[\w.-]*\.jsonl?")


def pack(folder: Path, archive: Path) -> None:
    """Write the files of one ``<study>/<scale>`` folder into an archive, which appears whole or not
    at all; the folder stays. Paths of the machine are cut from the commands in the records.

    Example:
        >>> from mindgap.record.schema import End, Header
        >>> from mindgap.record.store import RunWriter
        >>> folder = Path(tempfile.mkdtemp()) / "s" / "quick"
        >>> with RunWriter(
        ...     folder, Header("s", "S1", "quick", "m", 0, {}, command="mindgap run s --out /x")
        ... ) as writer:
        ...     writer.end(End("done"))
        >>> pack(folder, folder.with_suffix(SUFFIX))
        >>> [
        ...     read_run(path).header.command
        ...     for path in unpacked(folder.with_suffix(SUFFIX)).glob("*.jsonl")
        ... ]
        ['mindgap run s']

    Raises:
        RecordError: a record is damaged.
    """
    contents: dict[str, str] = {}
    for path in sorted(folder.glob("*.jsonl")):
        run = read_run(path)
        # Without the options that name folders, and without the path of the program.
        command = re.sub(r" --(out|tensorboard)[ =]\S+", "", run.header.command)
        header = replace(run.header, command=re.sub(r"^\S*__main__.py", "mindgap", command))
        lines = [line("header", header), *(line("row", row) for row in run.rows)]
        if run.end is not None:
            lines.append(line("end", run.end))
        contents[path.name] = "\n".join([*lines, ""])
    for name in (STUDY_FILE, VERDICT_FILE, TUNING_FILE, REGISTERED_FILE):
        if (folder / name).exists():
            contents[name] = (folder / name).read_text(encoding="utf-8")
    with replacing(archive) as file, tarfile.open(fileobj=file, mode="w:xz", preset=9) as packed:
        for name, text in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            packed.addfile(member, io.BytesIO(text.encode()))


@cache
def unpacked(archive: Path) -> Path:
    """A temporary folder ``.../<study>/<scale>`` with the files of an archive. It is made at the
    first call and removed when the program ends.

    Raises:
        RecordError: the archive cannot be read, or unpacks to more than it may
            (:mod:`mindgap.record.unpacking`).
    """
    top = Path(tempfile.mkdtemp(prefix="mindgap-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    folder = top / archive.parent.name / archive.name.removesuffix(SUFFIX)
    folder.mkdir(parents=True)
    try:
        for name, content in members(archive):
            if not _MEMBER.fullmatch(name):
                raise ValueError(f"it holds {name!r}, which is no record")
            (folder / name).write_bytes(content)
    except (tarfile.TarError, lzma.LZMAError, EOFError, OSError, ValueError) as error:
        raise RecordError(f"{archive} cannot be read: {error}") from error
    return folder
