"""A small file that unpacks to a very large one is refused while it is read."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from pathlib import Path

import pytest

from mindgap.record import unpacking
from mindgap.record.packed import unpacked
from mindgap.record.schema import RecordError

MANY = 64 * 2**20


def tar(path: Path, name: str, size: int) -> Path:
    with tarfile.open(path, "w:xz", preset=1) as archive:
        member = tarfile.TarInfo(name)
        member.size = size
        archive.addfile(member, io.BytesIO(bytes(size)))
    return path


def test_a_bomb_in_the_place_of_records_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    path = tar(tmp_path / "s" / "quick.tar.xz", "a.jsonl", MANY)
    assert path.stat().st_size < 50_000
    with pytest.raises(RecordError, match=r"quick\.tar\.xz must unpack to at most"):
        unpacked(path)


def test_a_sparse_member_is_refused(tmp_path: Path) -> None:
    member = tarfile.TarInfo("a.jsonl")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 512
    head = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    head[483:495] = b"%011o " % 2**32  # the size it claims to have when it is unpacked
    head[386:398] = b"%011o " % 0
    head[398:410] = b"%011o " % 512
    head[148:156] = b"        "
    head[148:156] = b"%06o\0 " % sum(head[:512])
    path = tmp_path / "quick.tar.xz"
    path.write_bytes(lzma.compress(bytes(head) + bytes(512) + bytes(1024)))
    with pytest.raises(RecordError, match="must unpack to at most"):
        list(unpacking.members(path))


@pytest.mark.parametrize(
    ("name", "pack"),
    [("a.gz", gzip.compress), ("a.bz2", bz2.compress), ("a.xz", lzma.compress)],
)
def test_a_compressed_bomb_is_refused_and_an_ordinary_file_is_read(
    name: str, pack: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "FREE", 2**16)
    path = tmp_path / name
    path.write_bytes(pack(bytes(2**22)))  # type: ignore[operator]
    with pytest.raises(RecordError, match="must unpack to at most"), unpacking.unpacking(path) as f:
        f.read()
    path.write_bytes(pack("zwei Größen\n".encode() * 1000))  # type: ignore[operator]
    with unpacking.unpacking_text(path) as lines:
        assert list(lines) == ["zwei Größen\n"] * 1000


def test_a_bomb_of_zip_is_refused_also_when_it_lies_about_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "FREE", 2**16)
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("one", b"1")
        archive.writestr("bomb", bytes(2**23))
    with pytest.raises(RecordError, match="must unpack to at most"):
        list(unpacking.members(path))
    with pytest.raises(RecordError, match="must unpack to at most"):
        unpacking.checked_zip(path)


def test_data_and_records_are_unpacked_with_a_limit_only() -> None:
    """A new reader must use :mod:`mindgap.record.unpacking`."""
    root = Path(unpacking.__file__).parents[1]
    for path in root.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if path.name != "unpacking.py":
            for word in ("lzma.open", "gzip.open", "bz2.open", "ZipFile(", "import decompress\n"):
                assert word not in text, (path, word)
            assert 'tarfile.open(fileobj=file, mode="w:xz"' in text or "tarfile.open" not in text
