"""Records survive crashes: torn tails are dropped, damaged lines are named, nothing half-written remains."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest

from mindgap.record.schema import SCHEMA, End, Header, RecordError, from_json, line, to_json
from mindgap.record.store import RunWriter, is_finished, read_run, run_file, study_folders, write_atomically

HEADER = Header("study", "S1", "quick", "method", 3, {"lr": 0.1})


def write(folder: Path, rows: int, *, end: bool = True) -> Path:
    with RunWriter(folder, HEADER) as writer:
        for step in range(rows):
            writer.row({"step": step, "loss": 1 / (step + 1)})
        if end:
            writer.end(End("done", 0.5))
    return writer.path


def test_round_trip_keeps_numbers_to_the_bit(tmp_path: Path) -> None:
    values = {"third": 1 / 3, "tiny": 5e-324, "nan": math.nan, "inf": math.inf, "ninf": -math.inf, "text": '<a>\n"é'}
    with RunWriter(tmp_path, HEADER) as writer:
        writer.row(values)
    (row,) = read_run(writer.path).rows
    assert math.isnan(row.pop("nan"))
    values.pop("nan")
    assert row == values


def test_lines_are_standard_json(tmp_path: Path) -> None:
    with RunWriter(tmp_path, HEADER) as writer:
        writer.row({"loss": math.inf})
    for text in writer.path.read_text().splitlines():
        json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert from_json(to_json({"a": math.inf})) == {"a": math.inf}


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_torn_tail_is_dropped_and_the_run_goes_on(tmp_path: Path, cut: int) -> None:
    whole = write(tmp_path / "whole", 5)
    path = write(tmp_path / "torn", 5)
    os.truncate(path, path.stat().st_size - cut)
    assert not is_finished(path)
    assert write(tmp_path / "torn", 5) == path
    assert path.read_bytes() == whole.read_bytes()


def test_every_possible_cut_resumes_to_the_same_record(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole", 3).read_bytes()
    header_end = whole.index(b"\n") + 1
    for cut in range(header_end, len(whole)):
        folder = tmp_path / str(cut)
        folder.mkdir()
        run_file(folder, HEADER).write_bytes(whole[:cut])
        assert write(folder, 3).read_bytes() == whole, f"cut after byte {cut}"


def test_a_damaged_line_is_named_with_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path, 4)
    lines = path.read_bytes().split(b"\n")
    lines[2] = lines[2][:7]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(RecordError, match=rf"{path.name}:3: damaged line"):
        read_run(path)


def test_another_schema_version_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, 1)
    lines = path.read_text().splitlines(keepends=True)
    header = vars(HEADER) | {"schema": 99}
    path.write_text("".join([line("header", header) + "\n", *lines[1:]]))
    with pytest.raises(RecordError, match=rf"schema must be {SCHEMA}, .* got 99"):
        read_run(path)


def test_a_resumed_run_that_differs_is_an_error_and_keeps_what_was_recorded(tmp_path: Path) -> None:
    path = write(tmp_path, 3, end=False)
    before = path.read_bytes()
    with RunWriter(tmp_path, HEADER) as writer, pytest.raises(RecordError, match=":2: the resumed run gives"):
        writer.row({"step": 0, "loss": 2.0})
    assert path.read_bytes() == before


def test_timing_may_differ_on_resume(tmp_path: Path) -> None:
    with RunWriter(tmp_path, HEADER) as writer:
        writer.row({"step": 0, "seconds": 1.0})
    with RunWriter(tmp_path, HEADER) as writer:
        writer.row({"step": 0, "seconds": 2.0})
        writer.row({"step": 1, "seconds": 3.0})
    assert read_run(writer.path).column("seconds") == [1.0, 3.0]


def test_atomic_write_leaves_the_old_file_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, "old")

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.json"]


def test_an_empty_or_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="RUNS must hold records"):
        list(study_folders(tmp_path))
    with pytest.raises(RecordError, match="RUNS must be a folder of records"):
        list(study_folders(tmp_path / "none"))
