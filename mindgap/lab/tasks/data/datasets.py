"""The data sets as a static table: files, sha256, sizes, licence, and where the same bytes can be
fetched.

Nothing here is part of the package: a data set is found in ``$MINDGAP_DATA``, in the cache, or
fetched.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from mindgap.base.check import one_of


@dataclass(frozen=True)
class DataFile:
    """One file of a data set: its name, the sha256 of its bytes, its length in bytes."""

    name: str
    sha256: str
    size: int


@dataclass(frozen=True)
class DataSet:
    """One data set.

    Example:
        >>> [file.name for file in DATASETS["ijcnn1"].files]
        ['ijcnn1.trn.bz2', 'ijcnn1.tst.bz2']
        >>> DATASETS["ptb"].file("ptb.test.txt.xz").size
        123576
    """

    name: str  # key in ``DATASETS`` and name of the folder
    title: str  # what it is
    licence: str  # what its origin states
    files: tuple[DataFile, ...]  # the files, all needed
    #: folder on the web that serves exactly these bytes, ending in ``/``; None where no public
    #: address does (then a mirror of one's own, ``$MINDGAP_MIRROR``, or a copy in ``$MINDGAP_DATA``
    #: is needed).
    address: str | None = None

    def file(self, name: str) -> DataFile:
        """The file of that name.

        Raises:
            RuleError: when the data set has no such file.
        """
        one_of("file", name, [file.name for file in self.files])
        return next(file for file in self.files if file.name == name)


def _read(text: str) -> dict[str, DataSet]:
    """The data sets of the text of ``datasets.txt``, by name.

    Its first block explains the file. Every other block is a line ``name | title | licence |
    address`` (the address may be missing) and a line ``sha256 size file`` per file.
    """
    data_sets = {}
    for block in text.split("\n\n")[1:]:
        first_line, *file_lines = block.strip().splitlines()
        name, title, licence, *address = first_line.split(" | ")
        rows = [line.split() for line in file_lines]
        files = tuple(DataFile(file, sha256, int(size)) for sha256, size, file in rows)
        data_sets[name] = DataSet(name, title, licence, files, *address)
    return data_sets


#: name -> data set
DATASETS = _read(Path(__file__).with_name("datasets.txt").read_text(encoding="utf-8"))


def table_markdown() -> str:
    """The data sets as a table in Markdown, one row each, for the documentation.

    Example:
        >>> table_markdown().splitlines()[0]
        '| name | what | files | MB | licence, as its origin states it | fetched from |'
    """
    rows = [
        ("name", "what", "files", "MB", "licence, as its origin states it", "fetched from"),
        ("---",) * 6,
    ]
    for data in DATASETS.values():
        size = sum(file.size for file in data.files) / 1e6
        # The third part of https://host/path is the host.
        place = data.address.split("/")[2] if data.address else "your own copy or mirror"
        rows.append(
            (f"`{data.name}`", data.title, str(len(data.files)), f"{size:.1f}", data.licence, place)
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)
